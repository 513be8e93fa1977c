"""Options that would be ignored are rejected with both names."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner
from support.topics import create_topic
from support.topics import produce as produce_records

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli import checkpoint_command as checkpoint
from spark_groupsource.cli import consume, group_resets
from spark_groupsource.cli import produce_command as produce
from spark_groupsource.cli.effects import Excludes, Needs, check_effects
from spark_groupsource.cli.main import main

# option -> a value of it; others are flags
VALUES = {
    "--command-config": __file__,
    "--delimiter": "x",
    "--format": "%s",
    "--formatter-config": __file__,
    "--from": "2",
    "--from-file": "f",
    "--group": "g",
    "--key": "k",
    "--key-format": "int",
    "--key-message": "M",
    "--key-schema": "s",
    "--key-separator": ":",
    "--last": "3",
    "--message": "M",
    "--null-marker": "~",
    "--transactional-id": "T",
    "--partition": "0",
    "--property": "schema.registry.url=http://x",
    "--schema": "s",
    "--schema-id": "1",
    "--source": "0",
    "--topic": "t",
    "--until": "5",
    "--value-format": "text",
}
COMMANDS = {
    "consume": (["--topic", "t"], consume.EFFECTS, consume.consume),
    "produce": (["--topic", "t"], produce.EFFECTS, produce.produce),
    "checkpoint show": (["DIR"], checkpoint.SHOW_EFFECTS, checkpoint.show),
    "groups reset-offsets": (
        ["--group", "g"], group_resets.EFFECTS, group_resets.reset_offsets,
    ),
}  # fmt: skip
RULES = [
    pytest.param(name, rule, id=f"{name} {rule.option} {rule[1]}")
    for name, (_, rules, _) in COMMANDS.items()
    for rule in rules
]


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_each_rule_rejects_and_names_both_options(name: str, rule: Excludes | Needs) -> None:
    words, _, command = COMMANDS[name]
    given = [rule.option, *([rule.other] if isinstance(rule, Excludes) else [])]
    line = [*words, *(word for option in given for word in (option, *([VALUES[option]] if option in VALUES else [])))]
    with pytest.raises(click.UsageError) as error:
        check_effects(command.make_context(name, line), [rule])
    if isinstance(rule, Excludes):
        assert not rule.values or VALUES[rule.other] in rule.values
        assert f"{rule.option} and {rule.other}" in str(error.value)
    else:
        assert f"Option {rule.option} has no effect without {rule.others[0]}" in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("consume --topic t --last 3 --from 2", "Options --last and --from cannot be given together."),
        ("consume --topic t --schema s --value-format int", "Options --schema and --value-format int cannot be given"),
        ("consume --topic t --property print.key=true", "Option --property has no effect without --schema, --value-fo"),
        ("produce --topic t --key a --key-separator :", "Options --key-separator and --key cannot be given together."),
        ("checkpoint show DIR --source 0", "Option --source has no effect without --export."),
        ("groups reset-offsets --group g --from-file f --topic t", "Options --topic and --from-file cannot be given"),
    ],
)
def test_commands_check_their_options_without_a_broker(line: str, message: str) -> None:
    result = CliRunner().invoke(main, line.split(), input=b"")
    assert result.exit_code == 2 and result.stderr.splitlines()[-1].startswith(f"Error: {message}"), result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_rules_are_about_options_of_the_command(name: str) -> None:
    _, rules, command = COMMANDS[name]
    known = {param.opts[0] for param in command.params if isinstance(param, click.Option)}
    for rule in rules:
        others = [rule.other] if isinstance(rule, Excludes) else [other.partition(" ")[0] for other in rule.others]
        assert {rule.option, *others} <= known


@pytest.mark.parametrize(
    "words",
    [
        ["--last", "3", "--max-messages", "2", "--json"],
        ["--from", "2", "--until", "9", "--show", "--null-marker", "~"],
        ["--key-format", "int", "--format", "%k %s"],
        ["--schema", "s", "--value-format", "avro"],
        ["--follow", "--group", "g", "--from", "latest"],
    ],
)
def test_options_with_an_effect_are_accepted(words: list[str]) -> None:
    """What follows fails: there is no broker, or no schema."""
    result = CliRunner().invoke(main, ["consume", "--topic", "t", "--bootstrap-server", "127.0.0.1:x", *words])
    assert result.exit_code == 1 and "cannot be given together" not in result.stderr


# each changes what is printed of the records below
PRINTING = {
    "--partition": "1",
    "--from": "1",
    "--until": "2",
    "--last": "5",
    "--max-messages": "3",
    "--show": None,
    "--json": None,
    "--format": r"%s %k %T\n",
    "--key-separator": ":",
    "--null-marker": "NULL",
    "--key-format": "hex",
    "--value-format": "hex",
}


@pytest.mark.slow
def test_an_option_that_is_accepted_changes_the_output(embedded: EmbeddedBroker, topic: str) -> None:
    """Alone, and beside each other option."""
    create_topic(embedded.bootstrap_servers, topic, 2)
    values = [None if n in (2, 7, 12, 13) else b"%d" % n for n in range(14)]
    records = ((n % 2, b"k%d" % n, value) for n, value in enumerate(values))
    produce_records(embedded.bootstrap_servers, topic, records)
    line = ["consume", "--topic", topic, "--bootstrap-server", embedded.bootstrap_servers]

    def printed(*options: str) -> bytes | None:
        words = [word for option in options for word in (option, PRINTING[option]) if word is not None]
        result = CliRunner().invoke(main, [*line, *words])
        assert result.exit_code in (0, 2), result.output
        return result.stdout_bytes if result.exit_code == 0 else None

    ignored = []
    for other in (None, *PRINTING):
        before = printed(*([other] if other else []))
        for option in PRINTING:
            if option != other and before is not None and printed(option, *([other] if other else [])) == before:
                ignored.append((option, other))
    assert ignored == []


# each changes the records of the lines below
WRITING = {
    "--partition": "0",
    "--key-separator": ":",
    "--key": "35",
    "--header": "h=x",
    "--null-marker": "4e",
    "--key-format": "hex",
    "--value-format": "hex",
    "--json": None,
}


@pytest.mark.slow
def test_an_option_that_is_accepted_changes_the_records(embedded: EmbeddedBroker, topic: str) -> None:
    server = ["--bootstrap-server", embedded.bootstrap_servers]
    created = []

    def written(*options: str) -> list[object] | None:
        name = f"{topic}-{len(created)}"
        created.append(name)
        create_topic(embedded.bootstrap_servers, name, 2)
        # keys of both partitions
        keys = [b"31", b"32", b"33", b"34", b"4e", b"36"]
        lines = b"".join(b"%s:4e\n" % key if "--key-separator" in options else b"%s\n" % key for key in keys)
        if "--json" in options:
            lines = b"".join(b'{"key": "%s", "value": "32"}\n{"value": "4e"}\n' % key for key in keys)
        words = [word for option in options for word in (option, WRITING[option]) if word is not None]
        result = CliRunner().invoke(main, ["produce", "--topic", name, *server, *words], input=lines)
        assert result.exit_code in (0, 2), result.output
        shown = CliRunner().invoke(main, ["consume", "--topic", name, *server, "--json"]).stdout.splitlines()
        fields = ("partition", "key", "value", "headers")
        return [[json.loads(line)[f] for f in fields] for line in shown] if result.exit_code == 0 else None

    ignored = []
    for other in (None, *WRITING):
        before = written(*([other] if other else []))
        for option in WRITING:
            if option != other and before is not None and written(option, *([other] if other else [])) == before:
                ignored.append((option, other))
    assert ignored == []
