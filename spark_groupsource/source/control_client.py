"""Client of the control socket of a reader process.

The requests and replies are those of `process/control_socket.py`; each request has one connection.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Callable, Mapping, TypeVar

from spark_groupsource.common.descriptors import is_out_of_descriptors
from spark_groupsource.common.net import LocalChannel, dial_local
from spark_groupsource.errors import NetworkError
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.group_events import event_of_form

_Reply = TypeVar("_Reply")

_CONNECT_MS = 1_000
# a control socket serves one connection at a time
_REPLY_MS = 3_000


class PeerReply(Enum):
    """Reply of a reader to a co-reader; the values are sent over the control socket."""

    OTHER_GROUP = "other_group"
    BUSY = "busy"
    REJOINED = "rejoined"
    BATCH_PLANNED = "batch_planned"


@dataclass(frozen=True)
class TransactionRequest:
    """The transaction of the output of a batch, which the sink has begun.

    Attributes:
        query_id: id of the streaming query.
        batch: number of its batch.
        cluster_id: the cluster of the transaction.
        producer_id: -1 asks for the batch alone, and adds nothing.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    query_id: str
    cluster_id: str
    batch: int


@dataclass(frozen=True)
class TransactionReply:
    """What a reader has added to a transaction.

    Attributes:
        is_joined: False for a reader with another transactional id, which adds nothing.
        ends: digest of the end offset of its batch, by the name of the reader; see `WriterProgress`.
        partition: one of the partitions whose offsets were added.
        failure: message of the error; the transaction must be aborted then.
        can_retry: whether another transaction for the batch may succeed.
        code: error code of the broker, with which `failure` names the operation alone; 0 for another error.
    """

    is_joined: bool = False
    ends: Mapping[str, str] = field(default_factory=dict)
    partition: TopicPartition | None = None
    failure: str = ""
    can_retry: bool = False
    code: int = 0


class ControlClient:
    """Connection to one reader, for one request.

    Every request raises NetworkError for a reader that replies too late, or in the form of another version.
    """

    def __init__(self, channel: LocalChannel) -> None:
        self._channel = channel

    @classmethod
    def connect(cls, path: Path) -> ControlClient | None:
        """Returns a connection; None for the socket of a killed reader.

        Raises: NetworkError without a file descriptor, which says nothing about the reader.
        """
        try:
            return cls(dial_local(str(path), _CONNECT_MS))
        except NetworkError as error:
            if isinstance(error.__cause__, OSError) and is_out_of_descriptors(error.__cause__):
                raise
            return None

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def status(self, with_events: bool = False) -> dict[str, Any] | None:
        """Returns the state of the reader; None if it has ended meanwhile.

        Args:
            with_events: adds the events of its members as field `events`.
        Raises: CorruptRecordError for events of another version.
        """

        def read(reply: Any) -> dict[str, Any]:
            events = {"events": [event_of_form(form) for form in reply["events"]]} if with_events else {}
            return {**reply, **events}

        return self._reply({"status": True, "events": with_events}, read)

    def peer_reply(self, group_id: str, min_age_ms: int) -> PeerReply:
        """Requests a rejoin from a co-reader; BUSY if it has ended meanwhile."""
        request = {"group": group_id, "min_age_ms": min_age_ms}
        return self._reply(request, lambda reply: PeerReply(reply["reply"])) or PeerReply.BUSY

    def transaction(self, request: TransactionRequest, timeout_ms: int) -> TransactionReply | None:
        """Requests the offsets of the batch in flight for a transaction; None if the reader has ended meanwhile."""
        return self._reply(
            {"transaction": asdict(request)}, lambda reply: TransactionReply(**reply), timeout_ms=timeout_ms
        )

    def prepare_available_now(self) -> bool:
        """Limits the query to the records that exist now; False if the reader has ended meanwhile."""
        return self._reply({"available_now": True}, lambda reply: bool(reply["prepared"])) or False

    def batch_finished(self, end: Any) -> None:
        """Reports the end offset of a batch that Spark has checkpointed; there is no reply."""
        self._send({"finished": end})

    def request_drain(self, proof: Any) -> None:
        """Requests a drain, repeated for each new proof; see `StreamSession.request_drain`."""
        self._send({"drain": True, "proof": proof})

    def await_drained(self, timeout_ms: int) -> bool:
        """Waits for the reply to `request_drain`; returns True once the reader has drained, False if it has ended.

        Raises: RequestTimeoutError while it has not.
        """
        return self._channel.receive(timeout_ms) is not None

    def _send(self, request: Mapping[str, Any]) -> None:
        self._channel.send(json.dumps(request))

    def _reply(
        self, request: Mapping[str, Any], read: Callable[[Any], _Reply], timeout_ms: int = _REPLY_MS
    ) -> _Reply | None:
        self._send(request)
        line = self._channel.receive(timeout_ms)
        try:
            return None if line is None else read(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise NetworkError(f"Control request {request} failed: reply {line} is malformed.") from error
