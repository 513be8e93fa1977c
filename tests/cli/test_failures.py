"""Every command after an expected failure: one line, exit status 1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.clients import open_cluster
from support.fake_leader import FakeLeader

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.cli.main import main
from spark_groupsource.errors import ErrorCode
from spark_groupsource.monitor.selection import parse_selection
from spark_groupsource.monitor.tables.definitions import TABLES
from spark_groupsource.monitor.tables.table_rows import TableQuery, read_rows
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import ApiVersionsResponse

READS = [
    ["topics", "list"],
    ["topics", "describe", "--topic", "t"],
    ["topics", "describe", "--topic", "t", "--offsets", "--json"],
    ["groups", "list"],
    ["groups", "list", "--state"],
    ["groups", "describe", "--group", "g"],
    ["groups", "describe", "--group", "g", "--members"],
    ["groups", "describe", "--all-groups", "--estimates"],
    ["groups", "why", "--group", "g"],
    ["groups", "history", "--group", "g"],
    ["consume", "--topic", "t"],
    ["consume", "--topic", "t", "--last", "2"],
    ["consume", "--topic", "t", "--group", "g"],
    ["offsets-log"],
]
CHANGES = [
    ["topics", "create", "--topic", "new"],
    ["topics", "alter", "--topic", "t", "--partitions", "9"],
    ["topics", "alter", "--topic", "t", "--add-config", "retention.ms=1"],
    ["topics", "delete", "--topic", "t"],
    ["groups", "delete", "--group", "g"],
    ["groups", "delete-offsets", "--group", "g", "--topic", "t"],
    ["groups", "reset-offsets", "--group", "g", "--topic", "t", "--to-earliest", "--execute"],
    ["produce", "--topic", "t"],
]
COMMANDS = [pytest.param(line, id=" ".join(line)) for line in READS + CHANGES]


def run(bootstrap_servers: str, line: list[str], config: Path | None = None) -> Result:
    more = [] if config is None else ["--command-config", str(config)]
    return CliRunner().invoke(main, [*line, "--bootstrap-server", bootstrap_servers, *more], input=b"x\n")


def check(result: Result) -> None:
    """Fails for a traceback, and for a failure without one line that says what failed."""
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert (result.exit_code, len(errors)) in ((0, 0), (1, 1)), result.output


@pytest.mark.usefixtures("short_retries")
@pytest.mark.parametrize("line", COMMANDS)
def test_no_broker(line: list[str]) -> None:
    result = run("127.0.0.1:1", line)
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("Error: No Kafka broker is reachable")


@pytest.fixture(scope="module")
def denying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that allows its clients nothing."""
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    with EmbeddedBroker(config=config) as broker:
        yield broker


@pytest.mark.parametrize("line", COMMANDS)
def test_nothing_is_allowed(denying: EmbeddedBroker, line: list[str]) -> None:
    result = run(denying.bootstrap_servers, line)
    check(result)
    if result.exit_code:
        assert "AUTHORIZATION_FAILED" in result.stderr or "Authorization" in result.stderr
    else:
        # lists omit what a client may not describe
        assert "list" in line or "--all-groups" in line or line[0] == "offsets-log"


@pytest.fixture
def limited() -> Iterator[str]:
    """The address of a broker with one topic and without groups, settings of topics and admin requests."""
    broker = FakeLeader()
    served = broker.responses["ApiVersions"](None, 3).api_keys
    kept = [row for row in served if row.api_key != ApiKey.DESCRIBE_CONFIGS]
    broker.responses["ApiVersions"] = lambda request, version: ApiVersionsResponse(
        error_code=0, api_keys=kept, throttle_time_ms=0
    )
    yield f"127.0.0.1:{broker.address.port}"
    broker.close()


@pytest.mark.parametrize("line", COMMANDS)
def test_an_api_that_the_broker_does_not_serve(limited: str, line: list[str]) -> None:
    result = run(limited, line)
    check(result)
    if result.exit_code:
        assert "support" in result.stderr
    else:
        assert line[0] in ("topics", "consume", "offsets-log")


def test_settings_of_a_broker_without_describe_configs_are_unknown(
    limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Other columns are as they are."""
    described = run(limited, ["topics", "describe", "--topic", "t"])
    assert described.exit_code == 0 and "PartitionCount: 1\t" in described.stdout
    assert described.stdout.splitlines()[0].endswith("Configs: unknown")
    assert described.stderr.startswith("Warning: The settings of t are unknown: ")
    assert "DescribeConfigs" in described.stderr and len(described.stderr.splitlines()) == 1
    (row,) = json.loads(run(limited, ["topics", "describe", "--topic", "t", "--json"]).stdout)
    assert (row["configs"], row["partition_count"], len(row["partitions"])) == (None, 1, 1)
    columns = frozenset(column.name for column in TABLES["topics"].columns)
    with open_cluster(limited) as cluster:
        (row,) = read_rows(cluster, TableQuery("topics", columns, topic=parse_selection("topic", "t")))
    assert (row["configs"], row["partition_count"]) == (None, 1)
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert record.getMessage().startswith("[topic=t] The settings of 1 topics are unknown: ")


def test_sizes_of_a_broker_without_describe_log_dirs_are_unknown(
    limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    columns = frozenset(column.name for column in TABLES["partitions"].columns)
    with open_cluster(limited) as cluster:
        (row,) = read_rows(cluster, TableQuery("partitions", columns, topic=parse_selection("topic", "t")))
    assert (row["size"], row["log_end_offset"]) == (None, 10)
    assert "The sizes of its logs are unknown" in caplog.text


def test_settings_that_a_user_may_not_read_are_unknown() -> None:
    broker = FakeLeader()
    broker.config_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        described = run(f"127.0.0.1:{broker.address.port}", ["topics", "describe", "--topic", "t"])
    finally:
        broker.close()
    assert (described.exit_code, "Configs: unknown" in described.stdout) == (0, True)
    assert "TOPIC_AUTHORIZATION_FAILED" in described.stderr
