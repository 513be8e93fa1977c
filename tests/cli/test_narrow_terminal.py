"""Output of the commands in a narrow terminal."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from support.topics import create_topic, produce

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli.main import main

LINES = [
    "topics describe --topic TOPIC",
    "topics describe --topic TOPIC --offsets",
    "groups list --state --type",
    "groups describe --group GROUP",
    "groups describe --group GROUP --estimates --verbose",
    "groups describe --group GROUP --state --verbose",
    "groups describe --group GROUP --members --verbose",
    "groups reset-offsets --group GROUP --topic TOPIC --to-latest --dry-run",
    "groups delete-offsets --group GROUP --topic TOPIC:0 --topic another:0",
    "doctor --topic TOPIC --group GROUP",
]


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("line", LINES)
def test_no_line_is_wider_than_the_terminal(
    embedded: EmbeddedBroker, topic: str, group: str, line: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, name = embedded.bootstrap_servers, f"{topic}-with-a-long-name-{'x' * 40}"
    # longer than the columns of Kafka's tool
    group = f"{group}-of-thirty-characters"
    create_topic(servers, name, 2, {"retention.ms": "123456789", "cleanup.policy": "compact,delete"})
    produce(servers, name, [(0, b"k", b"x")])
    reset = ["groups", "reset-offsets", "--group", group, "--topic", name, "--to-earliest", "--execute"]
    assert CliRunner().invoke(main, [*reset, "--bootstrap-server", servers]).exit_code == 0
    words = [*line.replace("TOPIC", name).replace("GROUP", group).split(), "--bootstrap-server", servers]
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = CliRunner().invoke(main, words).stdout
    assert narrow and all(len(text.expandtabs()) <= width for text in narrow.splitlines())
