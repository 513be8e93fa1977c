"""Selection and order of tests.

Options select variants (``--soak``) and the files of one of several processes. Long files run first.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

CLUSTERS = ("embedded", "kafka")
TESTS = Path(__file__).parents[1]
# the files that take longest, in the order of their time in `make test`
LONG_FILES = (
    "source/test_downstream_queries.py",
    "source/test_restart_positions.py",
    "parity/test_same_frames.py",
    "parity/test_same_progress.py",
    "parity/test_same_errors.py",
    "matrix/test_members.py",
    "matrix/test_same_answers.py",
    "source/test_errors_through_spark.py",
    "source/test_flight_delays.py",
    "source/test_driver_exit.py",
    "source/test_moving_brokers.py",
    "source/test_group_features.py",
    "source/test_stream.py",
    "source/test_spark_clusters.py",
    "matrix/test_java_tools.py",
    "group/test_simulation.py",
    "source/test_foreign_members.py",
    "matrix/test_kafka_directory.py",
    "matrix/test_old_java_clients.py",
    "client/test_mixed_group.py",
    "chaos/test_stream_chaos.py",
    "parity/test_feature_rows.py",
    "cli/test_broker_command.py",
    "chaos/test_zombie.py",
    "broker/test_stock_clients.py",
    "records/test_arrow.py",
    "records/test_parser.py",
    "wire/test_messages.py",
)
# the files that wait or calculate longest in `make check`, in seconds; any other takes about 0.7
QUICK_SECONDS: Mapping[str, float] = {
    "matrix/test_members.py": 12,
    "broker/test_stock_clients.py": 19,
    "client/test_cluster.py": 12,
    "records/test_arrow.py": 11,
    "matrix/test_transactional_clients.py": 10,
    "source/test_cooperative_flow.py": 9,
    "cli/test_broker_command.py": 8,
    "client/test_fetcher.py": 8,
    "client/test_moving_leaders.py": 8,
    "parity/test_feature_rows.py": 8,
    "broker/test_transactions.py": 7,
    "client/test_group_client.py": 7,
    "group/test_simulation.py": 7,
    "storage/test_log_cleaner.py": 7,
    "wire/test_messages.py": 7,
    "broker/test_served_versions.py": 6,
    "records/test_compression.py": 6,
    "storage/test_cleaner_transactions.py": 6,
    "broker/test_sasl.py": 5,
    "cli/test_offsets_log.py": 5,
    "cli/test_topics_command.py": 5,
    "source/test_starting_positions.py": 5,
    "storage/test_log_validator.py": 5,
}
# the files that take most processor time in `make test`, that of their child processes included, in seconds
ALL_SECONDS: Mapping[str, float] = {
    "source/test_downstream_queries.py": 60,
    "parity/test_same_frames.py": 43,
    "source/test_flight_delays.py": 39,
    "source/test_restart_positions.py": 39,
    "source/test_spark_clusters.py": 38,
    "source/test_group_features.py": 37,
    "parity/test_same_progress.py": 32,
    "chaos/test_stream_chaos.py": 30,
    "source/test_stream.py": 27,
    "source/test_foreign_members.py": 21,
    "cli/test_broker_command.py": 20,
    "source/test_errors_through_spark.py": 20,
    "broker/test_restart.py": 17,
    "matrix/test_java_tools.py": 16,
    "source/test_moving_brokers.py": 16,
    "matrix/test_members.py": 14,
    "monitor/test_tables_in_spark.py": 14,
    "client/test_mixed_group.py": 13,
    "records/test_parser.py": 12,
    "broker/test_stock_clients.py": 11,
    "records/test_arrow.py": 11,
    "source/test_embedded.py": 11,
    "group/test_simulation.py": 10,
    "matrix/test_same_answers.py": 10,
    "source/test_driver_exit.py": 10,
    "chaos/test_hostile.py": 9,
    "chaos/test_power_loss_rounds.py": 9,
    "matrix/test_kafka_directory.py": 9,
    "source/test_notebook_use.py": 9,
    "harness/test_real_kafka.py": 8,
    "parity/test_same_errors.py": 8,
    "source/test_reader_signals.py": 8,
    "jobs/test_spark_jobs.py": 25,
    "broker/test_transactions.py": 7,
    "chaos/test_broker_kills.py": 7,
    "parity/test_feature_rows.py": 7,
    "source/test_cooperative_flow.py": 7,
    "source/test_group_claims.py": 7,
    "broker/test_served_versions.py": 6,
    "matrix/test_old_java_clients.py": 6,
    "records/test_record_interop.py": 6,
    "source/test_batch_read.py": 6,
    "storage/test_cleaner_crashes.py": 6,
    "wire/test_messages.py": 6,
    "broker/test_sasl.py": 5,
    "broker/test_upkeep.py": 5,
    "cli/test_groups_command.py": 5,
    "source/test_starting_positions.py": 5,
    "wire/test_message_stubs.py": 5,
    "broker/test_moving_coordinators.py": 4,
    "broker/test_request_parts.py": 4,
    "chaos/test_zombie.py": 4,
    "cli/test_produce_consume.py": 4,
    "matrix/test_transactional_clients.py": 4,
    "source/test_datasource.py": 4,
    "storage/test_log_cleaner.py": 4,
    "storage/test_log_validator.py": 4,
    "assign/test_properties.py": 3,
    "assign/test_user_data.py": 3,
    "broker/test_full_disk.py": 3,
    "broker/test_transaction_shards.py": 3,
    "chaos/test_exactly_once.py": 3,
    "client/test_fetcher.py": 3,
    "client/test_moving_leaders.py": 3,
    "group/test_every_request.py": 3,
    "records/test_compression.py": 3,
    "source/test_co_readers.py": 3,
    "source/test_offset_decisions.py": 3,
    "storage/test_log_recovery.py": 3,
}
_SECONDS: Mapping[str, Mapping[str, float]] = {"quick": QUICK_SECONDS, "all": ALL_SECONDS}
DEFAULT_SECONDS = 0.7


def is_for_soak(item: pytest.Item) -> bool:
    """Whether the test is marked ``soak``, or is a Spark test on the cluster that this test is not selected for."""
    if item.get_closest_marker("soak") is not None:
        return True
    callspec = getattr(item, "callspec", None)
    if callspec is None or "cluster" not in callspec.params or item.get_closest_marker("spark") is None:
        return False
    cluster = callspec.params["cluster"]
    others = [part for part in callspec.id.split("-") if part != cluster]
    return bool(cluster != selected_cluster("-".join([item.originalname, *others])))  # type: ignore[attr-defined]


def place(item: pytest.Item) -> int:
    """Returns the place of a test's file in the order of a run, equal for all files that are not long.

    With a long file at the end, one worker would run it while the others have nothing to do.
    """
    name = _name(item.path)
    return LONG_FILES.index(name) if name in LONG_FILES else len(LONG_FILES)


def _name(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"


def selected_cluster(test: str) -> str:
    """Returns the cluster of a Spark test: always the same one, and each one for about half of the tests."""
    return CLUSTERS[zlib.crc32(test.encode()) % len(CLUSTERS)]


@cache
def files_of_share(share: str) -> frozenset[Path]:
    """Returns the test files of share ``PLAN:K/N``; the shares of a plan take about the same time.

    A Spark session and a real Kafka each take seconds to start and to warm up. So the plan ``all`` gives the files that
    use Spark to one half of the shares, and the other files that use a real Kafka, which mostly wait, to the other.
    """
    plan, _, part = share.rpartition(":")
    number, count = map(int, part.split("/"))
    shares: list[list[Path]] = [[] for _ in range(count)]
    seconds = [0.0] * count
    expected = {file: _SECONDS[plan].get(_name(file), DEFAULT_SECONDS) for file in TESTS.rglob("test_*.py")}
    for file in sorted(expected, key=lambda file: (-expected[file], file)):
        allowed = _shares_for(file, count) if plan == "all" else range(count)
        least = min(allowed, key=lambda share: seconds[share])
        shares[least].append(file)
        seconds[least] += expected[file]
    return frozenset(shares[number - 1])


def _shares_for(file: Path, count: int) -> range:
    """Returns the shares, counted from 0, that may have a file."""
    text = file.read_text(encoding="utf-8")
    # a word is enough: a file that only mentions Spark is put among those that use it, which does no harm
    if re.search(r"\bspark\b", text):
        return range((count + 1) // 2)
    return range(count // 2, count) if re.search(r"\b(kafka|cluster|java)\b *[,):]", text) else range(count)
