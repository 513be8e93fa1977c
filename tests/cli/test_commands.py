"""Suggestions for commands and options, also those of Kafka's tools and kcat."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from spark_groupsource.cli.commands import OTHER_NAMES, OTHER_OPTIONS, Command
from spark_groupsource.cli.main import main
from spark_groupsource.common.config_def import INT64_MAX


@pytest.mark.parametrize(
    ("line", "suggested"),
    [
        ("grups", "groups"),
        ("kafka-consumer-groups", "groups"),
        ("kafka-console-consumer.sh", "consume"),
        ("topic", "topics"),
        ("doc", "doctor"),
        ("offsets", "offsets-log"),
        ("compile_pyspark", "compile-pyspark"),
        ("groups descibe", "describe"),
        ("groups reset", "reset-offsets"),
        ("groups reset_offsets", "reset-offsets"),
        ("groups ls", "list"),
        ("groups rm", "delete"),
        ("topics lst", "list"),
        ("topics show", "describe"),
        ("checkpoint compar", "compare"),
        ("frobnicate", None),
    ],
)
def test_a_command_that_is_unknown(line: str, suggested: str | None) -> None:
    result = CliRunner().invoke(main, line.split())
    expected = f"Error: No such command {line.split()[-1]!r}."
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (f"{expected} Did you mean {suggested!r}?" if suggested else expected)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("consume --topic t --from-beginning", "No such option: --from-beginning. Did you mean --from earliest?"),
        ("consume --topic t --offset 3", "No such option: --offset. Did you mean --from?"),
        ("consume -t x", "No such option: -t. Did you mean --topic?"),
        ("consume --topic t --consumer.config x", "No such option: --consumer.config. Did you mean --command-config?"),
        ("produce --broker-list x", "No such option: --broker-list. Did you mean --bootstrap-server?"),
        ("produce --topic t -K :", "No such option: -K. Did you mean --key-separator?"),
        (
            "--bootstrap-server x --describe --all-groups",
            "Option --describe is one of Kafka's tools. Run: main groups describe or main topics describe ...",
        ),
        ("--reset-offsets", "Option --reset-offsets is one of Kafka's tools. Run: main groups reset-offsets ..."),
        ("topics --list", "Option --list is one of Kafka's tools. Run: main topics list ..."),
        ("topics --zookeeper x --alter", "Option --alter is one of Kafka's tools. Run: main topics alter ..."),
    ],
)
def test_an_option_that_is_unknown(line: str, message: str) -> None:
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: {message}"


def all_commands(command: click.Command = main, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yields each command that is not a group, with its words."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from all_commands(found, f"{path} {name}".strip())


def test_every_suggested_option_and_command_exists() -> None:
    names = {word for path, _ in all_commands() for word in path.split()}
    options = {option for _, command in all_commands() for param in command.params for option in param.opts}
    assert {name.partition(" ")[0] for name in OTHER_OPTIONS.values()} <= options
    assert set(OTHER_NAMES.values()) <= names


def test_every_command_that_reads_has_json() -> None:
    others = {"topics create", "topics alter", "topics delete", "produce", "exporter", "ui"}
    for path, command in all_commands():
        options = {option for param in command.params for option in param.opts}
        if "--bootstrap-server" in options and path not in others:
            assert "--json" in options or path == "groups validate-regex", path


def test_every_command_checks_its_arguments() -> None:
    assert all(isinstance(command, Command) for _, command in all_commands())


def test_every_number_has_the_limits_of_its_field() -> None:
    """A larger one would fail in the encoding of a request."""
    numbers = [
        (path, param.opts[0], param.type)
        for path, command in all_commands()
        for param in command.params
        if isinstance(param.type, click.IntRange)
    ]
    assert len(numbers) > 10
    for path, option, limits in numbers:
        assert limits.min is not None and limits.max is not None and limits.max <= INT64_MAX, (path, option)
        result = CliRunner().invoke(main, [*path.split(), option, str(limits.max + 1)])
        assert result.exit_code == 2, (path, option, result.output)
