"""Selection and order of tests.

Options select variants (``--soak``) and the files of one of several processes. Long files run first.
"""

from __future__ import annotations

import zlib
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
QUICK_SECONDS = {
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
    """Returns the test files of share ``K/N``; the shares take about the same time."""
    number, count = map(int, share.split("/"))
    shares: list[list[Path]] = [[] for _ in range(count)]
    seconds = [0.0] * count
    expected = {file: QUICK_SECONDS.get(_name(file), 0.7) for file in TESTS.rglob("test_*.py")}
    for file in sorted(expected, key=lambda file: (-expected[file], file)):
        least = seconds.index(min(seconds))
        shares[least].append(file)
        seconds[least] += expected[file]
    return frozenset(shares[number - 1])
