"""Several drivers and members during a batch that writes exactly once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import sink_application
from support.clusters import Cluster
from support.sink_application import PARTITIONS, RECORDS, KilledError, SinkApplication, check, read_output, run_out

from spark_groupsource.errors import ConfigurationError, RequestTimeoutError, TransactionAbortedError

pytestmark = [pytest.mark.slow, pytest.mark.one_cluster]

STATE = {str(number): RECORDS // PARTITIONS for number in range(PARTITIONS)}


class Application(SinkApplication):
    """An application with calls at its steps."""

    def __init__(self, *args: Any, **options: str) -> None:
        # another driver waits for the end of the session of one that is suspended
        super().__init__(*args, **{"kafka.session.timeout.ms": "6000", **options})
        self._arguments = args
        self.calls: dict[str, Callable[[], None]] = {}

    def reached(self, step: str) -> None:
        self.calls.pop(step, lambda: None)()
        super().reached(step)

    def other_driver(self) -> Application:
        """Returns another driver of the query, with a copy of its checkpoint."""
        other = Application(*self._arguments)
        other._options = dict(self._options)
        other.transactional_id, other.query_id = self.transactional_id, self.query_id
        other.offsets, other.commits = list(self.offsets), self.commits
        other._states = [dict(each) for each in self._states]
        return other


@pytest.fixture
def separate_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets each application of this process be a driver of its own, which reaches its own reader alone."""
    found = sink_application._Sources._sockets

    def sockets(sources: Any) -> list[Path]:
        # private: the application of the sources
        pid = sources._reached.__self__.reader.process.pid
        return [path for path in found(sources) if path.name.endswith(f"-{pid}")]

    monkeypatch.setattr(sink_application._Sources, "_sockets", sockets)


@pytest.mark.usefixtures("separate_drivers")
@pytest.mark.parametrize(("step", "batches"), [("initialized", 1), ("joined", 1), ("sent", 2), ("joined", 2)])
def test_a_driver_that_resumes_within_its_transaction_after_another_one_has_continued(
    filled: Cluster, topic: str, group: str, output: str, tmp_path: Path, step: str, batches: int
) -> None:
    first = Application(tmp_path, filled.bootstrap_servers, topic, group, output)
    first.trigger()
    second: list[Application] = []

    def continue_elsewhere() -> None:
        assert first.reader is not None
        os.kill(first.reader.process.pid, signal.SIGSTOP)
        second.append(first.other_driver())
        # the logged batch is left out, and the next one reads its records
        for count in (0, 40)[:batches]:
            assert second[0].trigger() == count
        os.kill(first.reader.process.pid, signal.SIGCONT)

    first.calls[step] = continue_elsewhere
    # the resumed reader learns that its member was removed from a Heartbeat, or from the transaction
    with pytest.raises(
        (ConfigurationError, TransactionAbortedError),
        match="Batch 1 is committed with other offsets of the source: another driver|"
        "Batch 2 is committed, but batch 1 .* another driver runs|fenced member .* restart the query",
    ):
        first.trigger()
    first.kill()
    run_out(second[0])
    second[0].stop()
    check(filled, topic, group, output)
    assert second[0].state == STATE


@pytest.mark.usefixtures("separate_drivers")
@pytest.mark.parametrize(
    ("step", "assignor"), [("read", "range"), ("read", "cooperative-sticky"), ("joined", "cooperative-sticky")]
)
def test_an_application_joins_the_group_while_a_batch_is_published(
    filled: Cluster, topic: str, group: str, output: str, tmp_path: Path, step: str, assignor: str
) -> None:
    options = {"kafka.partition.assignment.strategy": assignor}
    first, second = (Application(tmp_path, filled.bootstrap_servers, topic, group, output, **options) for _ in range(2))
    first.trigger()
    second.start()
    reader = second.reader
    assert reader is not None
    first.calls[step] = reader.call
    first.trigger()
    for _ in range(100):
        first.trigger()
        try:
            end = reader.result(100)
            break
        except RequestTimeoutError:
            continue
    if end:
        second.offsets.append(end)
    for _ in range(2):
        run_out(second)
        run_out(first)
    first.stop()
    second.stop()
    check(filled, topic, group, output)


@pytest.mark.parametrize(
    ("step", "has_group"),
    [
        ("read", True),
        ("joined", True),
        ("joined", False),
        ("ended", False),
        ("published", True),
        *(
            pytest.param(*each, marks=pytest.mark.soak)
            for each in (("read", False), ("ended", True), ("published", False))
        ),
    ],
)
def test_kills_of_a_query_of_assigned_partitions(
    filled: Cluster, topic: str, group: str, output: str, step: str, has_group: bool, tmp_path: Path
) -> None:
    unused = dict.fromkeys(
        ("subscribe", "splitBetweenQueries", "kafka.session.timeout.ms", "kafka.heartbeat.interval.ms"), ""
    )
    options = {"assign": json.dumps({topic: list(range(PARTITIONS))}), **unused}
    named = group if has_group else ""
    application = Application(tmp_path, filled.bootstrap_servers, topic, named, output, **options)
    application.trigger()
    application.kill_at = step
    with pytest.raises(KilledError):
        application.trigger()
    run_out(application)
    application.stop()
    assert sorted(read_output(filled, output)) == sorted(f"{n % PARTITIONS}-{n}" for n in range(RECORDS))
    assert application.state == STATE
    if has_group:
        check(filled, topic, group, output)


def test_another_query_of_the_application_with_the_same_transactional_id(
    filled: Cluster, topic: str, group: str, output: str, tmp_path: Path
) -> None:
    first = Application(tmp_path, filled.bootstrap_servers, topic, group, output)
    second = Application(tmp_path, filled.bootstrap_servers, topic, f"{group}-2", output)
    second._options["kafka.transactional.id"] = second.transactional_id = first.transactional_id
    first.trigger()
    with pytest.raises(TransactionAbortedError, match="Another query uses kafka.transactional.id"):
        second.trigger()
    second.stop()
    run_out(first)
    first.stop()
    check(filled, topic, group, output)
