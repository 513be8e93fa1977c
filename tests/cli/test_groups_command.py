"""``groupsource groups`` prints the output of ``kafka-consumer-groups`` for a group."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from real_kafka import RealKafka
from support.clients import POLL_MS, group_client, open_cluster
from support.clusters import Cluster
from support.java_tools import GROUPS, JavaTools
from support.members import JavaMember, JavaTool, LibrdkafkaMember
from support.topics import create_topic, delete_topic, produce
from support.waiting import wait_until

from spark_groupsource import __version__
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli import why
from spark_groupsource.cli.main import main
from spark_groupsource.monitor.rebalances import group_watch
from spark_groupsource.monitor.rebalances.event_sources import group_events
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.wire.group_events import EventKind


def run(bootstrap_servers: str, *arguments: str) -> Result:
    verb, *rest = arguments
    return CliRunner().invoke(main, ["groups", verb, "--bootstrap-server", bootstrap_servers, *rest])


def run_kafka_tool(java: JavaTools, bootstrap_servers: str, *arguments: str) -> tuple[str, str]:
    verb, *rest = arguments
    completed = java.call(GROUPS, "--bootstrap-server", bootstrap_servers, f"--{verb}", *rest)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout, completed.stderr


@pytest.fixture(scope="module")
def active_group(cluster: Cluster) -> Iterator[str]:
    """A stable group of a static Java member and a librdkafka member; all records are committed."""
    group, topic = f"g-{uuid4().hex[:12]}", f"a-topic-with-quite-a-long-name-{uuid4().hex[:12]}"
    create_topic(cluster.bootstrap_servers, topic, 5)
    produce(cluster.bootstrap_servers, topic, ((n % 4, None, b"%d" % n) for n in range(40)))
    with LibrdkafkaMember(cluster.bootstrap_servers, group, topic, client_id="other") as other:
        with JavaMember(cluster.bootstrap_servers, group, topic, group_instance_id="first") as java:
            wait_until(lambda: {len(java.partitions), len(other.partitions)} == {2, 3}, "five partitions are shared")

            def all_committed() -> bool:
                rows = run(cluster.bootstrap_servers, "describe", "--group", group).stdout.splitlines()[2:]
                return len(rows) == 5 and sum(row.split()[5] == "0" for row in rows) >= 4

            wait_until(all_committed, f"group {group} commits all records")
            yield group


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--offsets"],
        ["--offsets", "--verbose"],
        ["--members"],
        ["--members", "--verbose"],
        ["--state"],
        ["--state", "--verbose"],
    ],
)
def test_describe_equals_the_output_of_kafkas_tool(
    cluster: Cluster, active_group: str, java: JavaTools, arguments: list[str]
) -> None:
    result = run(cluster.bootstrap_servers, "describe", "--group", active_group, *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    expected, _ = run_kafka_tool(java, cluster.bootstrap_servers, "describe", "--group", active_group, *arguments)
    assert result.stdout == expected


@pytest.mark.parametrize("arguments", [[], ["--state"], ["--type"], ["--state", "stable,EMPTY"]])
def test_list_equals_the_output_of_kafkas_tool(
    cluster: Cluster, active_group: str, java: JavaTools, arguments: list[str]
) -> None:
    result = run(cluster.bootstrap_servers, "list", *arguments)
    assert active_group in result.stdout
    expected, _ = run_kafka_tool(java, cluster.bootstrap_servers, "list", *arguments)
    assert sorted(result.stdout.splitlines()) == sorted(expected.splitlines())


@pytest.mark.parametrize("arguments", [["--offsets"], ["--members"], ["--state"]])
def test_empty_group_equals_the_output_of_kafkas_tool(
    cluster: Cluster, topic: str, group: str, java: JavaTools, arguments: list[str]
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"x")])
    with LibrdkafkaMember(cluster.bootstrap_servers, group, topic) as member:
        wait_until(lambda: member.seen, "the record is read")
    result = run(cluster.bootstrap_servers, "describe", "--group", group, *arguments)
    expected, note = run_kafka_tool(java, cluster.bootstrap_servers, "describe", "--group", group, *arguments)
    assert result.stdout == expected
    assert result.stderr == note == f"\nConsumer group '{group}' has no active members.\n"


def test_describe_with_offsets_of_a_deleted_topic(kafka: RealKafka, topic: str, group: str) -> None:
    kept = f"{topic}-kept"
    for name in (topic, kept):
        create_topic(kafka.bootstrap_servers, name)
        produce(kafka.bootstrap_servers, name, [(0, None, b"x")])
        with LibrdkafkaMember(kafka.bootstrap_servers, group, name) as member:
            wait_until(lambda: member.seen, "the record is read")
    delete_topic(kafka.bootstrap_servers, topic)
    rows = run(kafka.bootstrap_servers, "describe", "--group", group).stdout.splitlines()[2:]
    assert [row.split()[1:6] for row in rows if kept in row] == [[kept, "0", "1", "1", "0"]]


def test_json_of_each_command(cluster: Cluster, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"x"), (0, None, b"y")])
    scope = ("--group", group, "--topic", topic, "--json")
    (row,) = json.loads(run(cluster.bootstrap_servers, "reset-offsets", *scope, "--to-offset", "1", "--execute").stdout)
    assert (row["current_offset"], row["new_offset"], row["lag"], row["is_executed"]) == (None, 1, 1, True)
    (row,) = json.loads(run(cluster.bootstrap_servers, "describe", *scope[:2], "--estimates", "--json").stdout)
    assert (row["topic"], row["current_offset"], row["log_end_offset"], row["lag"]) == (topic, 1, 2, 1)
    assert row["lag_ms"] >= 0 and row["lag_bytes"] > 0 and row["consumer_id"] is None
    shown = run(cluster.bootstrap_servers, "describe", *scope[:2], "--estimates").stdout.splitlines()
    columns = ["CLIENT-ID", "LAG-MS", "LAG-BYTES", "RECORDS-PER-SECOND", "CATCH-UP-MS", "LOG-END-LAG-MS"]
    assert shown[1].split()[-6:] == columns
    (row,) = json.loads(run(cluster.bootstrap_servers, "describe", *scope[:2], "--state", "--json").stdout)
    assert (row["group"], row["state"], row["members"]) == (group, "Empty", 0)
    listed = json.loads(run(cluster.bootstrap_servers, "list", "--json").stdout)
    assert {"group": group, "type": "classic", "state": "Empty"} in listed
    deleted = run(cluster.bootstrap_servers, "delete", "--group", group, "--group", "missing", "--json")
    assert json.loads(deleted.stdout) == [
        {"group": group, "error": None},
        {"group": "missing", "error": "GROUP_ID_NOT_FOUND"},
    ]
    assert deleted.exit_code == 1 and "GroupIdNotFoundException" in deleted.stderr


def test_group_of_type_consumer(kafka: RealKafka, topic: str, group: str, java: JavaTools) -> None:
    """DescribeGroups does not return such a group; its offsets must not be reset while it has members (KIP-848)."""
    from confluent_kafka import Consumer

    create_topic(kafka.bootstrap_servers, topic, 11)
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "group.protocol": "consumer"}
    member = Consumer(settings)
    member.subscribe([topic])
    try:
        wait_until(lambda: member.poll(0.1) or member.assignment(), "the member owns the topic")
        for arguments in ([], ["--members", "--verbose"], ["--members"], ["--state", "--verbose"], ["--state"]):
            expected = run_kafka_tool(
                java, kafka.bootstrap_servers, "describe", "--group", group, *arguments
            )
            described = run(kafka.bootstrap_servers, "describe", "--group", group, *arguments)
            assert (described.stdout, described.stderr) == expected
        described = run(kafka.bootstrap_servers, "describe", "--group", group, "--group", "missing", "--state")
        assert described.exit_code == 1 and " Stable " in described.stdout and "'missing'" in described.stderr
        reset = run(kafka.bootstrap_servers, "reset-offsets", "--group", group, "--topic", topic, "--to-latest")
        assert reset.exit_code == 1 and "the current state is Stable" in reset.stderr
    finally:
        member.close()


@pytest.mark.slow
def test_share_group(kafka: RealKafka, topic: str, group: str, java: JavaTools) -> None:
    servers = kafka.bootstrap_servers
    create_topic(servers, topic, 1)
    names = ("--bootstrap-server", servers, "--topic", topic, "--group-id", group)
    with JavaTool("org.apache.kafka.tools.VerifiableShareConsumer", *names):

        def is_share_group() -> bool:
            described = java.call(GROUPS, "--bootstrap-server", servers, "--describe", "--group", group)
            return "is not a consumer group" in described.stdout

        wait_until(is_share_group, "the share group exists")
        for arguments in ([], ["--members"], ["--state"]):
            line = ["--describe", "--group", group, *arguments, "--bootstrap-server", servers]
            expected = java.call(GROUPS, *line)
            described = CliRunner().invoke(main, ["groups", *line])
            assert (described.exit_code, described.stdout) == (expected.returncode, expected.stdout)
        described = run(servers, "describe", "--group", group)
        assert described.exit_code == 1
        assert f"Group '{group}' is not a consumer group. Describe it with kafka-share-groups" in described.stderr


@pytest.mark.parametrize("arguments", [["watch"], ["why", "--watch", "--json"]])
def test_watch_reports_a_broker_that_is_down(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    broker = EmbeddedBroker(topics={"flights": 1}).start()
    restarted = EmbeddedBroker(port=int(broker.bootstrap_servers.rpartition(":")[2]))
    steps = iter([broker.stop, lambda: None, restarted.start, lambda: None])

    def step(_: float) -> None:
        try:
            next(steps)()
        except StopIteration:
            raise KeyboardInterrupt from None

    # a busy machine takes more than a tenth of a second for the first response of the second broker
    monkeypatch.setattr(group_watch, "CALL_TIMEOUT_MS", 1_000)
    monkeypatch.setattr(why, "wait_while_read", step)
    try:
        result = run(broker.bootstrap_servers, *arguments[:1], "--group", "g", *arguments[1:])
    finally:
        restarted.stop()
    state, *lines = [line.partition("  ")[2] for line in ["", *(result.stdout + result.stderr).splitlines()][-3:]]
    assert state == ("" if "--json" in arguments else "g: The group does not exist.")
    assert result.exit_code == 0 and len(lines) == 2
    assert re.match(r"Unreachable since \d\d:\d\d:\d\d: .*127.0.0.1", lines[0])
    assert "kafka." not in lines[0] and lines[1] == "The broker responds again."
    assert "--json" not in arguments or result.stdout == ""


def test_misspelled_names_are_reported_with_near_ones(cluster: Cluster, topic: str, group: str) -> None:
    servers = cluster.bootstrap_servers
    create_topic(servers, topic)
    scope = ("--topic", topic, "--to-earliest")
    assert run(servers, "reset-offsets", "--group", group, *scope, "--execute").exit_code == 0
    wrong_group, wrong_topic = group.replace("g-", "G-"), topic.replace("t-", "T-")
    for arguments in (
        ["describe", "--group", wrong_group],
        ["describe", "--group", wrong_group, "--state", "--json"],
        ["why", "--group", wrong_group],
        ["history", "--group", wrong_group, "--json"],
        ["delete", "--group", wrong_group],
        ["delete-offsets", "--group", wrong_group, "--topic", topic],
        ["delete-offsets", "--group", group, "--topic", wrong_topic],
        ["delete-offsets", "--group", group, "--topic", f"{wrong_topic}:0"],
        ["delete-offsets", "--group", group, "--topic", wrong_topic, "--json"],
        ["reset-offsets", "--group", group, "--topic", wrong_topic, "--to-earliest"],
        ["reset-offsets", "--group", group, "--topic", f"{wrong_topic}:0", "--to-offset", "1"],
    ):
        result = run(servers, *arguments)
        assert result.exit_code == 1, arguments
        assert f"Did you mean '{group if wrong_group in arguments else topic}'" in result.stderr, arguments
    both = run(servers, "describe", "--group", wrong_group, "--group", "missing")
    assert [line.split("'")[1] for line in both.stderr.splitlines()] == sorted([wrong_group, "missing"])
    # a new group may get offsets before its first member starts
    planned = run(servers, "reset-offsets", "--group", wrong_group, *scope, "--dry-run")
    warning = f"WARN: Consumer group '{wrong_group}' does not exist yet. Did you mean '{group}'"
    assert planned.exit_code == 0 and planned.stderr.startswith(warning)


def test_the_plan_of_a_reset_has_the_offsets_before_it(cluster: Cluster, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, ((n % 2, None, b"x") for n in range(6)))
    reset = ("reset-offsets", "--group", group, "--topic")
    run(cluster.bootstrap_servers, *reset, f"{topic}:1", "--to-offset", "2", "--execute")
    planned = run(cluster.bootstrap_servers, *reset, topic, "--to-latest")
    assert [line.split() for line in planned.stdout.splitlines()[1:]] == [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"],
        [group, topic, "0", "-", "3"],
        [group, topic, "1", "2", "3"],
    ]
    assert planned.stderr == (
        "Nothing is committed: this is the plan. Add --execute to commit the new offsets.\n"
    )
    # the form of Kafka's tool has its output
    line = ["groups", "--reset-offsets", *reset[1:], topic, "--to-latest", "--bootstrap-server"]
    result = CliRunner().invoke(main, [*line, cluster.bootstrap_servers])
    assert result.stdout.splitlines()[1].split() == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
    assert "In version 5.0" in result.stderr


@pytest.mark.parametrize("width", [80, 40])
def test_tables_are_as_narrow_as_the_terminal(
    cluster: Cluster, topic: str, group: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = cluster.bootstrap_servers
    create_topic(servers, topic)
    produce(servers, topic, [(0, None, b"x")])
    with LibrdkafkaMember(servers, group, topic, client_id="a-client-with-a-name") as member:
        wait_until(lambda: member.seen, "the record is read")
        plain = {}
        for arguments in ([], ["--verbose"], ["--members"], ["--members", "--verbose"], ["--state"], ["--estimates"]):
            plain[tuple(arguments)] = run(servers, "describe", "--group", group, *arguments).stdout
        monkeypatch.setenv("COLUMNS", str(width))
        for arguments in plain:
            narrow = run(servers, "describe", "--group", group, *arguments)
            assert narrow.exit_code == 0 and all(len(line) <= width for line in narrow.stdout.splitlines())
            # names are divided
            assert "a-client-with-a-name" in narrow.stdout.replace("\n", "") or width == 80 or "--state" in arguments
        line = ["groups", "--describe", "--members", "--group", group, "--bootstrap-server", servers]
        assert CliRunner().invoke(main, line).stdout == plain[("--members",)]
        for command in ("history", "why"):
            shown = run(servers, command, "--group", group)
            assert shown.exit_code == 0 and all(len(text) <= width for text in shown.stdout.splitlines())


def test_rebalances_since_a_time_are_explained(embedded: EmbeddedBroker, topic: str, group: str) -> None:
    servers = embedded.bootstrap_servers
    create_topic(servers, topic)
    with open_cluster(servers) as client:
        for _ in range(4):
            with group_client(client, group, topic) as member:
                assert member.poll(POLL_MS).is_stable

    def history(*arguments: str) -> list[tuple[int, str]]:
        rows = json.loads(run(servers, "history", "--group", group, "--json", *arguments).stdout)
        return [(row["generation"], row["completed_at"]) for row in rows]

    def written() -> bool:
        # until then the time of a rebalance is that of its record
        with open_cluster(servers) as client:
            events = group_events(client, NameSelection((group,))).get(group, ())
        return (8, EventKind.ASSIGNED) in [(event.generation, event.kind) for event in events] and len(history()) == 8

    wait_until(written, "the events of the coordinator are written")
    found = history()
    at = found[2][1]
    assert history("--since", at) == [row for row in found if row[1] >= at] and len(history("--since", at)) <= 6
    assert history("--since", at, "--last", "1") == found[-1:] and history("--since", "-1h") == found

    def explained(*arguments: str) -> list[int]:
        answer = json.loads(run(servers, "why", "--group", group, "--json", *arguments).stdout)
        return [rebalance["generation"] for rebalance in answer["rebalances"]]

    # a default of five rebalances would leave out those of the night
    assert explained() == [4, 5, 6, 7, 8] and explained("--since", "-1h") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert run(servers, "why", "--group", group, "--since", "2100-01-01T00:00:00Z").stdout == (
        f"Group {group}: no rebalance is recorded since then.\n"
    )


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_watch_prints_the_state_at_once_and_then_each_change(
    embedded: EmbeddedBroker, topic: str, group: str, form: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = embedded.bootstrap_servers
    create_topic(servers, topic, 2)
    produce(servers, topic, [(0, None, b"x")])
    reset = ("--group", group, "--topic", topic, "--to-earliest", "--execute")
    assert run(servers, "reset-offsets", *reset).exit_code == 0
    steps = iter([lambda: None, lambda: produce(servers, topic, [(1, None, b"y")] * 2), lambda: None])

    def step(_: float) -> None:
        try:
            next(steps)()
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(why, "wait_while_read", step)
    result = run(servers, "watch", "--group", group, *form)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    if form:
        first, second = map(json.loads, lines)
        assert (first["group"], first["state"], first["members"], first["lag"]) == (group, "Empty", 0, 1)
        assert (second["lag"], [each["lag"] for each in second["partitions"]]) == (3, [1, 2])
    else:
        assert lines[0].partition("  ")[2] == (
            f"{group}: Empty, 0 members, 2 partitions, lag 1: {topic}-0 1, {topic}-1 0."
        )
        assert lines[1].partition("  ")[2] == f"{group}: Empty, 0 members, 2 partitions, lag 3 (+2): {topic}-1 2."


def test_unknown_group_is_reported(cluster: Cluster) -> None:
    result = run(cluster.bootstrap_servers, "describe", "--group", "missing")
    assert result.exit_code == 1
    assert result.stderr == "Error: Consumer group 'missing' does not exist. Run: groupsource groups list.\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["describe"], 2, "--group GROUP"),
        (["describe", "--group", "g", "--all-groups"], 2, "--all-groups"),
        (["list", "--state", "sleepy"], 2, "Option --state must be one or more of Stable"),
        (["why", "--group", "g", "--since", "night"], 2, "a time back such as -12h or a time such as 2026-01-31T03:00"),
        (["history", "--group", "g", "--since", "100"], 2, "a time back such as -12h or a time such as"),
        (["why", "--group", "g", "--since", "-1h", "--watch"], 2, "--since and --watch cannot be given together"),
        (["list", "--timeout", "0"], 2, "Option --timeout must be an integer of at least 1, got '0'."),
        (["reset-offsets", "--group", "g", "--topic", "t", "--shift-by", "x"], 2, "--shift-by must be an integer"),
        (["describe", "--group", "g", "--state", "--estimates"], 2, "Options --estimates and --state cannot be given"),
        (["list", "--command-config", "/nowhere/client.properties"], 1, "Cannot read properties file"),
    ],
)
def test_invalid_option_is_reported(arguments: list[str], status: int, message: str) -> None:
    result = run("127.0.0.1:1", *arguments)
    assert result.exit_code == status
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_version_has_precedence_as_in_kafkas_tool() -> None:
    for arguments in (["--version"], ["--version", "--list"]):
        result = CliRunner().invoke(main, ["groups", *arguments])
        assert (result.exit_code, result.stdout) == (0, f"{__version__}\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("groups de", ["delete", "delete-offsets", "describe"]),
        ("groups --de", ["--delete", "--delete-offsets", "--describe"]),
        ("groups --describe --mem", ["--members"]),
        ("groups describe --mem", ["--members"]),
        ("groups list --type c", ["Classic", "Consumer"]),
        ("groups --list --state St", ["Stable"]),
        ("groups --list --state empty,st", ["empty,Stable"]),
    ],
)
def test_both_forms_are_completed(words: str, expected: list[str]) -> None:
    *given, incomplete = words.split()
    found = ShellComplete(main, {}, "groupsource", "_GROUPSOURCE_COMPLETE").get_completions(given, incomplete)
    assert sorted(item.value for item in found) == expected
