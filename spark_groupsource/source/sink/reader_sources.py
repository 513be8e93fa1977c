"""The groupsource sources of a query, reached over their control sockets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Mapping

from spark_groupsource.errors import BrokerError, NetworkError, TransactionAbortedError
from spark_groupsource.model import ProducerIdAndEpoch, TopicPartition
from spark_groupsource.source.control_client import ControlClient, TransactionReply, TransactionRequest
from spark_groupsource.source.positions.published_progress import WriterProgress
from spark_groupsource.source.process.control_socket import control_sockets, has_transactional_id
from spark_groupsource.source.sink.publisher import JoinedOffsets


class ReaderSources:
    """The sources of one query.

    Args:
        driver: process id of the driver of the application; None for a batch query, which has no such source.
        request: the transaction, without a producer.
        timeout_ms: how long a reader may take to add its offsets.
    """

    def __init__(self, driver: int | None, request: TransactionRequest, timeout_ms: int) -> None:
        self._driver = driver
        self._request = request
        self._timeout_ms = timeout_ms

    def ends(self) -> Mapping[str, str]:
        replies = [self._ask(path, self._request) for path in self._sockets()]
        return _ends([reply for reply in replies if reply is not None])

    def join(self, producer: ProducerIdAndEpoch, known: WriterProgress | None) -> JoinedOffsets:
        request = replace(self._request, producer_id=producer.producer_id, producer_epoch=producer.epoch)
        replies: list[TransactionReply] = []
        ended = ""
        for path in self._sockets():
            reply = self._ask(path, request)
            if reply is not None:
                replies.append(reply)
            elif has_transactional_id(path, self._request.transactional_id):
                ended = path.name
        error = (
            "A reader process of this query has ended, and its offsets cannot be in the transaction"
            f"{ended and f' ({ended})'}. Restart the query."
        )
        # its socket may have been removed; the readers that have published before are counted
        if sum(reply.is_joined for reply in replies) < len(known.ends if known is not None else ()):
            raise TransactionAbortedError(error)
        if ended:
            # a reader of a former run of the query may be closing its socket
            raise NetworkError(error)
        partitions = [TopicPartition(*reply.partition) for reply in replies if reply.partition is not None]
        return JoinedOffsets(_ends(replies), min(partitions, default=None))

    def _sockets(self) -> list[Path]:
        return [] if self._driver is None else control_sockets(self._driver)

    def _ask(self, path: Path, request: TransactionRequest) -> TransactionReply | None:
        """Returns the reply of one reader; None for the socket of an ended one.

        Raises: TransactionAbortedError; BrokerError, NetworkError where another transaction may succeed.
        """
        client = ControlClient.connect(path)
        if client is None:
            return None
        with client:
            reply = client.transaction(request, self._timeout_ms)
        if reply is None:
            return None
        if not reply.failure:
            return reply
        if reply.code:
            raise BrokerError(reply.code, reply.failure)
        raise NetworkError(reply.failure) if reply.can_retry else TransactionAbortedError(reply.failure)


def _ends(replies: list[TransactionReply]) -> dict[str, str]:
    return {name: end for reply in replies for name, end in reply.ends.items()}
