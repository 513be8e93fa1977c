"""Properties files and KEY=VALUE texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_groupsource.cli.common import key_values, open_cluster, read_properties
from spark_groupsource.errors import ConfigurationError


def test_properties_are_read_without_comments(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# who\nclient.id = me\n\n! old\nsasl.jaas.config=a b=c;\n")
    assert read_properties(path) == {"client.id": "me", "sasl.jaas.config": "a b=c;"}


@pytest.mark.parametrize("line", ["client.id", "=me"])
def test_a_line_that_is_no_setting_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(line)
    with pytest.raises(ConfigurationError, match=f"client.properties: '{line}' is not KEY=VALUE"):
        read_properties(path)


def test_binary_files_are_no_properties(tmp_path: Path) -> None:
    path = tmp_path / "keystore"
    path.write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(ConfigurationError, match="keystore cannot be read"):
        read_properties(path)


def test_unknown_settings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("colour=blue\n")
    with pytest.raises(ConfigurationError, match="colour"), open_cluster("localhost:9092", path):
        pass


def test_the_last_of_two_values_stands() -> None:
    assert key_values(["a=1", "a=2", "b="], "--config") == {"a": "2", "b": ""}
