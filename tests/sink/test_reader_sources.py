"""Sources that are asked for their offsets, or have ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_groupsource.errors import BrokerError, NetworkError, TransactionAbortedError
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.source.control_client import TransactionReply, TransactionRequest
from spark_groupsource.source.positions.published_progress import WriterProgress
from spark_groupsource.source.process.control_socket import ControlServer, control_directory
from spark_groupsource.source.sink.publisher import JoinedOffsets
from spark_groupsource.source.sink.reader_sources import ReaderSources

PRODUCER = ProducerIdAndEpoch(5, 1)
REQUEST = TransactionRequest("T", -1, -1, "q", "c", 4)
FIRST, SECOND = "a" * 32, "b" * 32
# process ids of readers; the second one is not running
DRIVER, ENDED_PID = os.getpid(), 2**22 + 1


@pytest.fixture
def ended() -> Iterator[Callable[[str, str], Path]]:
    """Returns the path of the socket that a killed reader leaves behind."""
    paths: list[Path] = []

    def path_of(reader: str, transactional_id: str) -> Path:
        server = ControlServer(DRIVER, reader, transactional_id=transactional_id)
        name = Path(server.path).name
        server.close()
        paths.append(control_directory(DRIVER) / name.replace(str(os.getpid()), str(ENDED_PID)))
        return paths[-1]

    yield path_of
    for path in paths:
        path.unlink(missing_ok=True)


def server(reader: str, reply: TransactionReply) -> ControlServer:
    return ControlServer(DRIVER, reader, transaction=lambda request: reply, transactional_id="T")


def join(*known: str) -> JoinedOffsets:
    progress = WriterProgress("q", 3, dict.fromkeys(known, "d")) if known else None
    return ReaderSources(DRIVER, REQUEST, 5_000).join(PRODUCER, progress)


@pytest.mark.parametrize(
    ("known", "error"),
    [((), NetworkError), (("a" * 8,), NetworkError), (("a" * 8, "b" * 8), TransactionAbortedError)],
)
def test_a_killed_reader_ends_the_transaction_also_before_its_first_batch(ended, known, error):
    path = ended(SECOND, "T")
    running = server(FIRST, TransactionReply(True, {"a" * 8: "d"}))
    path.touch()
    try:
        with pytest.raises(error, match=f"has ended.*{path.name}.*Restart the query"):
            join(*known)
    finally:
        running.close()


def test_a_killed_reader_of_another_query_is_ignored(ended):
    path = ended(SECOND, "U")
    running = server(FIRST, TransactionReply(True, {"a" * 8: "d"}, TopicPartition("t", 1)))
    path.touch()
    try:
        assert join() == JoinedOffsets({"a" * 8: "d"}, TopicPartition("t", 1))
    finally:
        running.close()


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (TransactionReply(failure="EndTxn", can_retry=True, code=48), BrokerError, "EndTxn failed: INVALID_TXN_STATE"),
        (TransactionReply(failure="No response.", can_retry=True), NetworkError, "No response."),
        (TransactionReply(failure="Group 'g' fenced member 'm'."), TransactionAbortedError, "fenced member"),
    ],
)
def test_the_error_of_a_reader_is_counted_as_one_of_the_publisher(reply, error, message):
    running = server(FIRST, reply)
    try:
        with pytest.raises(error, match=message):
            join()
    finally:
        running.close()


def test_a_reader_without_socket_that_has_published_is_missed():
    with pytest.raises(TransactionAbortedError, match="A reader process of this query has ended"):
        join("a" * 8)
