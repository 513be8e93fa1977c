"""Kafka's error codes and the exceptions of this package.

The class of an exception shows its cause:

* the user's settings or credentials: `ConfigurationError`, `AuthenticationError`;
* the network, or a broker that is down: `NetworkError`, `RequestTimeoutError`;
* a broker: `BrokerError`, `UnsupportedVersionError`, `RemoteProtocolError`;
* a client of the embedded broker: `ApiError`, `RemoteProtocolError`;
* a rebalance: `GenerationMismatchError`;
* a rebalance, or another query with the same transactional id: `TransactionAbortedError`;
* retention, deletion, damage: `DataLossError`, `CorruptRecordError`, `StorageError`;
* a producer whose values are not of the format of the query: `MalformedRecordError`;
* a newer schema in a schema registry: `SchemaChangedError`;
* the Spark application: `ApplicationEndedError`.

Every other exception is a defect of this package.

A message is one line, ``<what failed>: <observed fact>. <what to do>.``, and names the option where one is involved.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Mapping

from spark_groupsource.log_text import escaped, shortened

_MAX_MESSAGE_CHARS = 1_000
_BROKERS_MESSAGE = "The broker's message: "


class ErrorCode(IntEnum):
    """Error codes of the protocol (Kafka `Errors`); `error_name` also names newer ones."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129


RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

FENCING_ERRORS: Mapping[int, str] = {
    ErrorCode.ILLEGAL_GENERATION: "the group has completed a rebalance since then (ILLEGAL_GENERATION)",
    ErrorCode.UNKNOWN_MEMBER_ID: (
        "the coordinator removed the member after session.timeout.ms or the rebalance timeout, the member left, or an "
        "operator removed it (UNKNOWN_MEMBER_ID)"
    ),
    ErrorCode.FENCED_INSTANCE_ID: "another process joined with the same group.instance.id (FENCED_INSTANCE_ID)",
}
"""Error code -> cause, for the codes that end a member's ownership of its partitions."""


def error_name(code: int) -> str:
    """Returns Kafka's name of an error code, ``ERROR_<n>`` for a number without a name in `ErrorCode`."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"ERROR_{code}"


REMEDIES: Mapping[int, str] = {
    ErrorCode.MESSAGE_TOO_LARGE: (
        "Increase max.message.bytes of the topic (message.max.bytes of the broker), or send smaller records."
    ),
    ErrorCode.RECORD_LIST_TOO_LARGE: "Increase segment.bytes of the topic, or send smaller batches.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "Grant the user the operation on the topic: DESCRIBE and READ to read it, WRITE to write, ALTER, DELETE or "
        "ALTER_CONFIGS to change it (kafka-acls --add --allow-principal User:NAME --operation READ --topic TOPIC)."
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "Grant the user the operation on the group: READ to join it and to commit, DESCRIBE to describe it, DELETE to "
        "delete it (kafka-acls --add --allow-principal User:NAME --operation READ --group GROUP)."
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "Grant the user the operation on the cluster: DESCRIBE to list groups, CREATE to create topics, "
        "IDEMPOTENT_WRITE to write to brokers before 2.8 (kafka-acls --add --allow-principal User:NAME --cluster)."
    ),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Grant the user WRITE on the transactional id (kafka-acls).",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Start the missing brokers, or lower min.insync.replicas of the topic.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Choose another name, or skip existing topics (groupsource: --if-not-exists).",
    ErrorCode.INVALID_REPLICATION_FACTOR: "Set it to at most the number of brokers.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "A topic name has 1 to 249 letters, digits, '.', '_', '-'.",
    ErrorCode.NON_EMPTY_GROUP: "Stop the members of the group first.",
    ErrorCode.GROUP_ID_NOT_FOUND: "The group does not exist. List the groups to find its name.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Stop the members that subscribe to the topic first.",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "Increase group.max.size of the broker, or start fewer members.",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "Choose another compression, or upgrade the broker.",
    ErrorCode.INVALID_RECORD: "A compacted topic requires a key for each record; other rules are those of the topic.",
    ErrorCode.INVALID_TIMESTAMP: (
        "Compare the clocks of the producer and the broker, and see message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms of the topic."
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "The topic or partition does not exist. Create it, or correct the name.",
    ErrorCode.KAFKA_STORAGE_ERROR: "Check the disks and the log of the broker.",
}
"""Error code -> what to do, for the errors whose message otherwise is only the name of the code."""


def as_sentence(message: str | None) -> str:
    """Returns a broker's error message as a sentence in quotes, empty if there is none."""
    text = escaped(shortened(message or "", _MAX_MESSAGE_CHARS)).rstrip(".")
    return f"{_BROKERS_MESSAGE}{text}." if message else ""


class GroupSourceError(Exception):
    """Base class of the exceptions of this package."""


class ConfigurationError(GroupSourceError, ValueError):
    """An option is missing, unknown, malformed or not supported. The user corrects it."""


class NetworkError(GroupSourceError, ConnectionError):
    """A peer cannot be reached or the connection broke. Network, address or a stopped broker; usually retried."""


class UnresolvedNameError(NetworkError):
    """The name of a host cannot be resolved. Name server or address; retried for bootstrap.resolve.timeout.ms."""


class RequestTimeoutError(NetworkError):
    """A peer accepted a request and sent no response in time. Network or an overloaded broker; usually retried."""


class AuthenticationError(GroupSourceError):
    """The broker rejected the credentials, or TLS verification failed. The user corrects them; never retried."""


class RemoteProtocolError(GroupSourceError):
    """The peer sent bytes that are not Kafka's protocol. Its fault; the connection is closed."""


class UnsupportedVersionError(GroupSourceError):
    """The broker and this package have no version of an API in common. The broker is too old."""


class BrokerError(GroupSourceError):
    """A broker responded with an error code. The code shows whether the request or the broker is at fault.

    Args:
        code: error number, possibly without a name in `ErrorCode`.
        operation: what failed, as a noun phrase that begins a sentence: ``Fetch of orders-0 at offset 5``.
        hint: sentences about the cause and what to do.
        is_retried: this request is retried after the code, although others are not.
    """

    def __init__(self, code: int, operation: str, hint: str = "", is_retried: bool = False) -> None:
        parts = (f"{operation} failed: {error_name(code)} ({code}).", hint, _remedy(code, hint))
        super().__init__(" ".join(filter(None, parts)))
        self.code = code
        self.operation = operation
        self.hint = hint
        self._is_retried = is_retried

    @property
    def retriable(self) -> bool:
        return self._is_retried or self.code in RETRIABLE

    def __reduce__(self) -> tuple[object, ...]:
        return BrokerError, (self.code, self.operation, self.hint, self._is_retried)


def _remedy(code: int, hint: str) -> str:
    """Returns what to do, unless the hint says it; the broker's message states the cause only."""
    return REMEDIES.get(code, "") if not hint or hint.startswith(_BROKERS_MESSAGE) else ""


class ApiError(GroupSourceError):
    """The embedded broker rejects a request, or one entry of it. The client's fault; the text is sent to it.

    Attributes:
        message: the name of `code` where the broker gives no text; cut where names in the request make it longer than
            a string of the protocol can be.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        self.message = shortened(message or code.name, _MAX_MESSAGE_CHARS)
        super().__init__(self.message)

    def without_traceback(self) -> ApiError:
        """Returns this error, to be kept as the outcome of one entry.

        A traceback refers to the frames that the error has passed, and they to what keeps the error.
        """
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class GenerationMismatchError(GroupSourceError):
    """The group fenced a member, so nothing that it read may be committed. A rebalance, an operator, or slow progress.

    Attributes:
        generation_id: the generation of the member's assignment.
        current_generation: the generation of the group, -1 where it is unknown.
    """

    def __init__(
        self, *, group_id: str, member_id: str, generation_id: int, current_generation: int = -1, cause: str
    ) -> None:
        now = str(current_generation) if current_generation >= 0 else "unknown"
        super().__init__(
            f"Group '{group_id}' fenced member '{member_id}' of generation {generation_id} "
            f"(the group's generation is now {now}): {cause}. "
            "The batch is not committed; restart the query to continue from its checkpoint."
        )
        self.group_id = group_id
        self.member_id = member_id
        self.generation_id = generation_id
        self.current_generation = current_generation
        self.cause = cause

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_generation_mismatch, (
            self.group_id,
            self.member_id,
            self.generation_id,
            self.current_generation,
            self.cause,
        )


def _rebuild_generation_mismatch(
    group_id: str, member_id: str, generation_id: int, current_generation: int, cause: str
) -> GenerationMismatchError:
    return GenerationMismatchError(
        group_id=group_id,
        member_id=member_id,
        generation_id=generation_id,
        current_generation=current_generation,
        cause=cause,
    )


class DataLossError(GroupSourceError):
    """Planned records are no longer available: retention, a deleted topic or partition, a truncated log.

    Attributes:
        error_class: subclass of Spark's error condition `KAFKA_DATA_LOSS`, for example ``START_OFFSET_RESET``.
        message: what was observed, and by which reader.
        remedy: what to do, one or more sentences; what gives up records is last.
    """

    def __init__(self, error_class: str, message: str, remedy: str) -> None:
        super().__init__(f"[KAFKA_DATA_LOSS.{error_class}] {message} {remedy}")
        self.error_class = error_class
        self.message = message
        self.remedy = remedy

    def __reduce__(self) -> tuple[object, ...]:
        return DataLossError, (self.error_class, self.message, self.remedy)


class ApplicationEndedError(GroupSourceError):
    """The application stopped its SparkContext before the query; the members have left the group."""


class TransactionAbortedError(GroupSourceError):
    """The output of a batch was not committed, and none of it is visible to read_committed consumers.

    A rebalance, another query with the same transactional id, or a transaction that took too long; the message says it.
    """


class CorruptRecordError(GroupSourceError):
    """A record batch fails its checksum or cannot be decoded. Damage in the broker's log or a faulty producer."""


class MalformedRecordError(GroupSourceError):
    """A key or value is not of its format or schema, and the option mode is FAILFAST."""


class SchemaChangedError(GroupSourceError):
    """A registry has a newer schema than the columns of the query, and the option onSchemaChange ends the query."""


class StorageError(GroupSourceError):
    """A data directory of the embedded broker cannot be used: locked, of another program, unwritable or damaged."""
