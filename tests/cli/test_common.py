"""Properties files and KEY=VALUE texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_groupsource.cli.common import key_values, open_cluster, read_properties
from spark_groupsource.cli.main import main
from spark_groupsource.errors import ConfigurationError


def test_read_properties_ignores_comments(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# comment\nclient.id = me\n\n! old\nsasl.jaas.config=a b=c;\n")
    assert read_properties(path) == {"client.id": "me", "sasl.jaas.config": "a b=c;"}


@pytest.mark.parametrize("line", ["secret", "=secret"])
def test_invalid_line_is_reported_by_its_number_without_its_text(tmp_path: Path, line: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(f"client.id=me\n\n{line}\n")
    with pytest.raises(ConfigurationError, match="Line 3 of .*client.properties must be KEY=VALUE") as error:
        read_properties(path)
    assert "secret" not in str(error.value)


def test_read_properties_has_the_format_of_java(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "sasl.jaas.config=org.apache.kafka.ScramLoginModule required \\\n"
        "  username=\"ann\" \\\n"
        "  password=\"a\\\\b=c:d#e\";\n"
        "  client.id : me\n"
        "group.id\tg 1\n"
        "# a comment \\\n"
        "a\\=b\\u0041=\\t\\u00e9 x \n"
        "empty=\n"
        "last=continued \\"
    )
    assert read_properties(path) == {
        "sasl.jaas.config": 'org.apache.kafka.ScramLoginModule required username="ann" password="a\\b=c:d#e";',
        "client.id": "me",
        "group.id": "g 1",
        "a=bA": "é x",
        "empty": "",
        "last": "continued",
    }


def test_binary_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "keystore"
    path.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    with pytest.raises(ConfigurationError, match="Cannot read properties file .*keystore"):
        read_properties(path)


def test_unknown_setting_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("color=blue\n")
    with pytest.raises(ConfigurationError, match="color"), open_cluster("localhost:9092", path):
        pass


def test_settings_of_other_clients_are_skipped_with_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "key.serializer=org.apache.kafka.common.serialization.StringSerializer\nenable.auto.commit=true\n"
        "acks=all\nclient.id=me\nsasl.login.class=x\n"
    )
    with open_cluster("localhost:9092", path) as cluster:
        assert cluster.settings.client_id == "me"
    warning = "acks, enable.auto.commit, key.serializer, sasl.login.class"
    assert capsys.readouterr().err == f"Warning: Settings of {path} without effect here are skipped: {warning}.\n"


def test_damaged_trust_store_of_java_is_named_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "ca.jks").write_bytes(b"\xfe\xed\xfe\xed")
    path = tmp_path / "client.properties"
    path.write_text(
        f"security.protocol=SSL\nssl.truststore.location={tmp_path}/ca.jks\nssl.truststore.password=secret\n"
    )
    result = CliRunner().invoke(main, ["topics", "list", "--command-config", str(path)])
    assert result.exit_code == 1
    assert f"Error: Reading {tmp_path}/ca.jks failed: the password is wrong" in result.stderr
    assert "Check ssl.keystore.password" in result.stderr and "secret" not in result.stderr


@pytest.mark.parametrize("name", ["bootstrap.servers", "metadata.broker.list"])
def test_bootstrap_servers_of_the_file_are_used(tmp_path: Path, name: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(f"{name}=127.0.0.1:nothing\n")
    assert "127.0.0.1:nothing" in CliRunner().invoke(main, ["topics", "list", "--command-config", str(path)]).stderr


def test_last_of_two_values_wins() -> None:
    assert key_values(["a=1", "a=2", "b="], "--config") == {"a": "2", "b": ""}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grups"], "No such command 'grups'. Did you mean 'groups'?"),
        (["groups", "descibe"], "No such command 'descibe'. Did you mean 'describe'?"),
        (["frobnicate"], "No such command 'frobnicate'."),
    ],
)
def test_a_misspelled_command_gets_a_suggestion(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and result.stderr.splitlines()[-1] == f"Error: {message}"


@pytest.mark.parametrize("option", ["--from", "--until"])
def test_an_invalid_position_is_reported_without_a_broker(option: str) -> None:
    line = ["consume", "--bootstrap-server", "127.0.0.1:1", "--topic", "t", option, "soon"]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 2 and f"Option {option} must be earliest, an offset or -N, got 'soon'." in result.stderr
