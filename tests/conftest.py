"""Fixtures for all tests: the two clusters, a Spark session, unique names.

A test that uses `cluster` runs twice: on the embedded broker and on a real Apache Kafka. Where the two differ, the
embedded broker is wrong. A test that also starts Spark runs on one of them, and on both with ``--soak``.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import hypothesis
import pytest
from real_kafka import RealKafka
from support import startup
from support.clusters import BROKER_CONFIG, Cluster
from support.selection import is_for_soak, place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.java_tools import JavaTools

    from spark_groupsource.broker.embedded import EmbeddedBroker

# a deadline per example would fail on a busy machine; only the profile `soak` draws other examples in each run
hypothesis.settings.register_profile("soak", deadline=None, max_examples=50)
hypothesis.settings.register_profile("suite", deadline=None, max_examples=10, derandomize=True)
hypothesis.settings.register_profile("check", deadline=None, max_examples=5, derandomize=True)
hypothesis.settings.load_profile("suite")

startup.configure()
startup.separate_output_of_click()
# tables have the width of a terminal where it is set
os.environ.pop("COLUMNS", None)


# fixtures that start a process which `make check` does without; a test that uses one of them gets the mark of that name
MARKED_FIXTURES = ("spark", "kafka", "java")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks a test by the fixtures it uses, its fixtures' fixtures included."""
    for name in MARKED_FIXTURES:
        if name in getattr(item, "fixturenames", ()):
            item.add_marker(name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run also the long variants; Spark tests run on both clusters")
    parser.addoption("--yarn", action="store_true", help="run also the tests that start HDFS and YARN")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the long variants to ``--soak`` and YARN to ``--yarn``, and runs long files first.

    The order of the other files is random.
    """
    left = set()
    if not config.getoption("soak"):
        left = {item for item in items if is_for_soak(item)}
    if not config.getoption("yarn"):
        left |= {item for item in items if item.get_closest_marker("yarn")}
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Prepares what the selected tests start, and exempts what exists before the first test from garbage collection."""
    if not session.config.option.collectonly:
        _share_classes(session.items)
    if session.items and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def _share_classes(items: list[pytest.Item]) -> None:
    """Lets the JVMs of these tests start with the classes of an archive, which the first run on a machine builds."""
    from support import class_archives

    marks = {mark.name for item in items for mark in item.iter_markers()}
    if "spark" in marks:
        for variable in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
            startup.share_classes(variable, class_archives.spark_archive())
    if marks & {"kafka", "java"}:
        startup.share_classes("KAFKA_OPTS", class_archives.kafka_archive())


@pytest.fixture(scope="session")
def kafka() -> Iterator[RealKafka]:
    """A real Apache Kafka, one per worker."""
    with RealKafka(BROKER_CONFIG) as broker:
        yield broker


@pytest.fixture(scope="session")
def embedded() -> Iterator[EmbeddedBroker]:
    """The embedded broker with a temporary data directory, one per worker."""
    from spark_groupsource.broker.embedded import EmbeddedBroker

    with EmbeddedBroker(config=BROKER_CONFIG) as broker:
        yield broker


@pytest.fixture(scope="session")
def java() -> Iterator[JavaTools]:
    """Kafka's command line tools, in one JVM per worker."""
    from support.java_tools import JavaTools

    with JavaTools() as tools:
        yield tools


@pytest.fixture(scope="session", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each of the two clusters in turn."""
    return Cluster(request.param, request.getfixturevalue(request.param).bootstrap_servers)


@pytest.fixture
def topic() -> str:
    """A unique topic name; the topic does not exist yet."""
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    """A unique group id."""
    return f"g-{uuid4().hex[:12]}"


@pytest.fixture
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients in this process report an address that was never reachable and an unknown topic after 0.1 s."""
    from spark_groupsource.client.cluster import error_rules, routing
    from spark_groupsource.client.records import fetcher

    monkeypatch.setattr(routing, "BOOTSTRAP_TIMEOUT_MS", 100)
    for module in (error_rules, fetcher):
        monkeypatch.setattr(module, "UNKNOWN_TOPIC_TIMEOUT_MS", 100)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets readers run in the process of the tests: without signal handlers, connections closed afterwards."""
    from support.task_connections import close_connections

    from spark_groupsource.source.process import reader_process

    monkeypatch.setattr(reader_process, "install_signal_handlers", lambda terminate: None)
    yield
    close_connections()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark session with two cores, one per worker."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # otherwise Spark's workers run the python3 of the PATH, which lacks the packages
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("groupsource tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        # a test runs each plan once or twice, which takes less time than the compilation of code for it
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        # an idle query asks for its end every 10 ms otherwise
        .config("spark.sql.streaming.pollingDelay", "50ms")
        .config("spark.python.unix.domain.socket.enabled", "true")
        # checkpoints without checksum files: Hadoop starts processes, `chmod` and `readlink`, for each file
        .config("spark.hadoop.fs.AbstractFileSystem.file.impl", "org.apache.hadoop.fs.local.RawLocalFs")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
