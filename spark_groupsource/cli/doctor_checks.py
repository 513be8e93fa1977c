"""Checks of a cluster: connection, versions, login, topics, group, offsets, checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Mapping, NamedTuple

from spark_groupsource.cli.doctor_findings import Check, CheckResult, Facts, Status, each, outcome
from spark_groupsource.cli.doctor_transactions import TransactionFacts, evaluate_transaction, read_transaction
from spark_groupsource.client.admin import GroupDescription, describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient, TopicInfo
from spark_groupsource.client.cluster.metadata import MAX_TIMESTAMP
from spark_groupsource.client.network.broker_connection import VERSION_CAPS, BrokerConnection
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common import net
from spark_groupsource.common.clock import SystemClock, monotonic_ns
from spark_groupsource.common.net import Address
from spark_groupsource.errors import (
    BrokerError,
    ErrorCode,
    GroupSourceError,
    NetworkError,
    RemoteProtocolError,
    UnsupportedVersionError,
)
from spark_groupsource.model import TopicPartition, bounded_names
from spark_groupsource.monitor.near_names import near_groups
from spark_groupsource.monitor.offsets.cluster_reads import (
    committed_offsets,
    first_batches,
    log_end_offsets,
    log_start_offsets,
    selected_topics,
)
from spark_groupsource.monitor.offsets.offsets_log import log_ranges
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.source.positions.checkpoint import ComparedRow, compare, read_checkpoint
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.apis import APIS
from spark_groupsource.wire.group_records import OFFSETS_TOPIC
from spark_groupsource.wire.messages import MetadataRequest
from spark_groupsource.wire.versions import VersionRanges, negotiate

REQUIRED_APIS: Mapping[ApiKey, int] = {
    ApiKey.METADATA: 4,
    ApiKey.LIST_OFFSETS: 1,
    ApiKey.FETCH: 4,
    ApiKey.FIND_COORDINATOR: 0,
    ApiKey.JOIN_GROUP: 0,
    ApiKey.SYNC_GROUP: 0,
    ApiKey.HEARTBEAT: 0,
    ApiKey.LEAVE_GROUP: 0,
    ApiKey.OFFSET_COMMIT: 0,
    ApiKey.OFFSET_FETCH: 0,
}
"""API -> lowest version with the fields that a streaming query needs."""
_REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})
_SKEW_MS = 5_000


class Target:
    """What the user requests to check; a context manager, because it keeps connections."""

    def __init__(
        self,
        settings: ClientSettings,
        topics: NameSelection | None,
        group: str | None,
        checkpoint: str | None,
        timeout_ms: int,
        transactional_id: str | None = None,
    ) -> None:
        self.settings = settings
        self.topics = topics
        self.group = group
        self.checkpoint = checkpoint
        self.timeout_ms = timeout_ms
        self.transactional_id = transactional_id
        self._cluster: ClusterClient | None = None

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def connect(self, address: Address, security: SecuritySettings) -> BrokerConnection:
        """Returns an unopened connection; the caller must close it."""
        return BrokerConnection(
            address,
            client_id=self.settings.client_id,
            security=security,
            clock=SystemClock(),
            request_timeout_ms=self.timeout_ms,
            connect_timeout_ms=self.timeout_ms,
        )

    def open_cluster(self, addresses: Iterable[Address]) -> ClusterClient:
        """Creates `cluster`, which uses only addresses that respond."""
        self._cluster = ClusterClient(tuple(addresses), replace(self.settings, connect_timeout_ms=self.timeout_ms))
        return self._cluster

    @property
    def cluster(self) -> ClusterClient:
        assert self._cluster is not None  # the checks that use it need the check that opens it
        return self._cluster


# -- connection ------------------------------------------------------------------------------------------------------


def _good(facts: Facts, check: str) -> list[Address]:
    return [address for address, found in facts[check].items() if not isinstance(found, GroupSourceError)]


def _read_dns(target: Target, facts: Facts) -> dict[Address, Any]:
    return {a: outcome(lambda: net.resolve(a)) for a in dict.fromkeys(target.settings.bootstrap)}


def _evaluate_dns(outcomes: dict[Address, Any]) -> list[CheckResult]:
    return each(outcomes, lambda a, ips: f"{a.host} has the address {', '.join(ips)}.", "Check the address.")


def _read_tcp(target: Target, facts: Facts) -> dict[Address, Any]:
    def dial(address: Address) -> int:
        started_ns = monotonic_ns()
        net.dial(address, target.timeout_ms).close()
        return (monotonic_ns() - started_ns) // 1_000_000

    return {a: outcome(lambda: dial(a)) for a in _good(facts, "dns")}


def _evaluate_tcp(outcomes: dict[Address, Any]) -> list[CheckResult]:
    return each(outcomes, lambda a, ms: f"{a} accepted a connection in {ms} ms.", "Check the address.")


def _read_tls(target: Target, facts: Facts) -> dict[Address, Any]:
    security = target.settings.security
    addresses = _good(facts, "tcp")
    if security.tls is None:
        return dict.fromkeys(addresses, f"not used, because security.protocol is {security.protocol}")

    def handshake(address: Address) -> str:
        net.dial(address, target.timeout_ms, security.tls).close()
        return f"certificate accepted, security.protocol is {security.protocol}"

    return {a: outcome(lambda: handshake(a)) for a in addresses}


def _evaluate_tls(outcomes: dict[Address, Any]) -> list[CheckResult]:
    fix = "If the listener does not use TLS, set security.protocol to PLAINTEXT or SASL_PLAINTEXT."
    return each(outcomes, lambda a, text: f"{a}: {text}.", fix)


def _read_versions(target: Target, facts: Facts) -> dict[Address, Any]:
    # listeners serve ApiVersions before the login
    security = target.settings.security
    without_login = replace(security, sasl_mechanism=None)

    def ranges(address: Address) -> VersionRanges:
        connection = target.connect(address, without_login)
        try:
            connection.open(target.timeout_ms)
            _check_versions(address, connection.api_versions)
            return connection.api_versions
        except (NetworkError, RemoteProtocolError) as error:
            if security.tls is not None or not net.has_tls_listener(address, target.timeout_ms):
                raise
            raise RemoteProtocolError(
                f"Connecting to {address} failed: the listener uses TLS. Set kafka.security.protocol to SSL, or to "
                "SASL_SSL if it requires a login."
            ) from error
        finally:
            connection.close()

    return {a: outcome(lambda: ranges(a)) for a in _good(facts, "tls")}


def _check_versions(address: Address, ranges: VersionRanges) -> None:
    """Raises: UnsupportedVersionError for the first required API without a common version."""
    for key, floor in REQUIRED_APIS.items():
        try:
            negotiate(APIS[key], ranges, cap=VERSION_CAPS.get(key), floor=floor)
        except UnsupportedVersionError as error:
            raise UnsupportedVersionError(f"Broker {address}: {error}") from error


def _evaluate_versions(outcomes: dict[Address, Any]) -> list[CheckResult]:
    def text(address: Address, ranges: VersionRanges) -> str:
        shown = (ApiKey.METADATA, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.OFFSET_COMMIT)
        highest = ", ".join(f"{APIS[key].name} {ranges[key][1]}" for key in shown)
        return f"{address} supports the {len(REQUIRED_APIS)} APIs that a query needs (up to {highest})."

    return each(outcomes, text, "Check that the listener is that of a Kafka broker, and security.protocol.")


def _read_login(target: Target, facts: Facts) -> dict[Address, Any]:
    security = target.settings.security
    name = f"user {security.username!r}" if security.username else security.principal
    user = f"{name} by {security.sasl_mechanism}" if security.sasl_mechanism else "no login"

    def login(address: Address) -> str:
        connection = target.connect(address, security)
        try:
            # a listener with SASL closes the connection at the first request without a login
            connection.call(MetadataRequest(topics=[], allow_auto_topic_creation=False), target.timeout_ms)
            return f"{user}, security.protocol is {security.protocol}"
        finally:
            connection.close()

    return {a: outcome(lambda: login(a)) for a in _good(facts, "versions")}


def _evaluate_login(outcomes: dict[Address, Any]) -> list[CheckResult]:
    fix = "Set security.protocol, sasl.mechanism and the credentials to those of the listener."
    return each(outcomes, lambda a, text: f"{a}: {text}.", fix)


def _read_brokers(target: Target, facts: Facts) -> dict[str, Any]:
    cluster = target.open_cluster(_good(facts, "login"))

    def reach(name: str, address: Address) -> str:
        connection = target.connect(address, target.settings.security)
        try:
            connection.open(target.timeout_ms)
        except GroupSourceError as error:
            raise GroupSourceError(
                f"{name} advertises {address}, which cannot be used from here: {str(error).partition('. ')[0]}. "
                "Set advertised.listeners of the broker to an address that its clients reach."
            ) from error
        finally:
            connection.close()
        return f"advertises {address}"

    nodes = cluster.metadata((), refresh=True).nodes.values()
    return {
        name: outcome(lambda: reach(name, cluster.node_address(node)))
        for node in nodes
        for name in [f"Broker {node.node_id}"]
    }


def _evaluate_brokers(outcomes: dict[str, Any]) -> list[CheckResult]:
    return each(outcomes, lambda name, text: f"{name} {text}, which responds.", "Start the broker.")


# -- topics and group ------------------------------------------------------------------------------------------------


def _read_topics(target: Target, facts: Facts) -> list[TopicInfo]:
    return selected_topics(target.cluster, target.topics)


def _evaluate_topics(topics: list[TopicInfo]) -> Iterator[CheckResult]:
    if not topics:
        yield CheckResult(Status.BAD, "No topic matches --topic.", "Run: groupsource topics list.")
    for topic in topics:
        partitions = topic.partitions.values()
        headless = [p.partition for p in partitions if p.leader_id < 0]
        short = [p.partition for p in partitions if len(p.in_sync) < len(p.replicas)]
        if headless:
            text = f"{topic.name}: {len(headless)} of {len(partitions)} partitions have no leader: "
            yield CheckResult(Status.BAD, text + f"{bounded_names(headless)}.", "Start the brokers of their replicas.")
        elif short:
            text = f"{topic.name}: {len(short)} of {len(partitions)} partitions are under-replicated: "
            yield CheckResult(Status.BAD, text + f"{bounded_names(short)}.", "Start the missing brokers.")
        else:
            yield CheckResult(Status.GOOD, f"{topic.name}: {len(partitions)} partitions, all with leader and replicas.")


class DescribedGroup(NamedTuple):
    """A group; `near` suggests other names if it does not exist."""

    group: GroupDescription
    near: str = ""


def _read_group(target: Target, facts: Facts) -> DescribedGroup:
    name = target.group or ""
    group = describe_groups(target.cluster, [name])[name]
    return DescribedGroup(group, near_groups(target.cluster, name) if group.state == "Dead" else "")


def evaluate_group(found: DescribedGroup) -> Iterator[CheckResult]:
    group = found.group
    name = f"Group {group.group_id!r}"
    if group.state == "Dead":
        fix = f"{found.near} The first member creates it. Run: groupsource groups list.".lstrip()
        yield CheckResult(Status.UNKNOWN, f"{name} does not exist.", fix)
        return
    if group.protocol_type not in ("", "consumer"):
        text = f"{name} is a group of protocol type {group.protocol_type!r}, which consumers cannot join."
        yield CheckResult(Status.BAD, text, "Choose another kafka.group.id.")
        return
    text = f"{name} is {group.state}: {len(group.members)} members, coordinator {group.coordinator}"
    if group.state in _REBALANCING:
        fix = f"If it lasts, run: groupsource groups watch --group {group.group_id}."
        yield CheckResult(Status.UNKNOWN, f"{text}.", fix)
        return
    idle = [m.client_id for m in group.members if not m.assignment]
    without = f"; {len(idle)} without partitions: {bounded_names(idle)}" if idle else ""
    yield CheckResult(Status.GOOD, f"{text}, assignor {group.protocol or 'none'}{without}.")


class GroupPositions(NamedTuple):
    group: str
    committed: Mapping[TopicPartition, int]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


def _read_offsets(target: Target, facts: Facts) -> GroupPositions:
    group = target.group or ""
    committed = {
        tp: commit.offset
        for tp, commit in committed_offsets(target.cluster, [group])[group].items()
        if target.topics is None or target.topics.matches(tp.topic)
    }
    ends = log_end_offsets(target.cluster, committed)
    return GroupPositions(group, committed, log_start_offsets(target.cluster, committed), ends)


def evaluate_offsets(found: GroupPositions) -> Iterator[CheckResult]:
    if not found.committed:
        fix = "A query without checkpoint starts at startingOffsets."
        yield CheckResult(Status.UNKNOWN, f"Group {found.group!r} has no committed offsets.", fix)
        return
    known = [tp for tp in found.committed if tp in found.starts and tp in found.ends]
    expired = [f"{tp} at {found.committed[tp]}" for tp in known if found.committed[tp] < found.starts[tp]]
    beyond = [f"{tp} at {found.committed[tp]}" for tp in known if found.committed[tp] > found.ends[tp]]
    missing = [tp for tp in found.committed if tp not in known]
    reset = "Run: groupsource groups reset-offsets --group GROUP."
    if expired:
        text = f"{len(expired)} committed offsets are below the log start offset: {bounded_names(expired)}."
        yield CheckResult(Status.BAD, text, f"Records are lost: increase retention.ms of the topic. {reset}")
    if beyond:
        text = f"{len(beyond)} committed offsets are above the log end offset: {bounded_names(beyond)}."
        yield CheckResult(Status.BAD, text, f"The topic was recreated or truncated. {reset}")
    if missing:
        text = f"{len(missing)} partitions with committed offsets have no leader or do not exist: "
        fix = "Run: groupsource topics list, or groups delete-offsets if a topic was deleted."
        yield CheckResult(Status.UNKNOWN, text + f"{bounded_names(missing)}.", fix)
    if not expired and not beyond and known:
        lag = sum(found.ends[tp] - found.committed[tp] for tp in known)
        yield CheckResult(Status.GOOD, f"{len(known)} committed offsets are within the log: lag {lag:,}.")


class ComparedCheckpoint(NamedTuple):
    group: str
    checkpoint_group: str | None
    rows: list[ComparedRow]


def _read_checkpoint(target: Target, facts: Facts) -> ComparedCheckpoint:
    source = read_checkpoint(target.checkpoint or "").source()
    group = target.group or source.planned.group_id or ""
    rows = compare(target.cluster, group, source, "follow") if group else []
    return ComparedCheckpoint(group, source.planned.group_id or None, rows)


def evaluate_checkpoint(found: ComparedCheckpoint) -> Iterator[CheckResult]:
    if not found.group:
        yield CheckResult(Status.UNKNOWN, "The checkpoint does not name its group.", "Give --group.")
        return
    if found.checkpoint_group not in (None, found.group):
        text = f"The checkpoint is that of group {found.checkpoint_group!r}, not of {found.group!r}."
        yield CheckResult(Status.BAD, text, "Use another checkpointLocation, or the group of the checkpoint.")
        return
    starts = {TopicPartition(r.topic, r.partition): r.restart.offset for r in found.rows if r.restart is not None}
    log = {TopicPartition(r.topic, r.partition): r for r in found.rows}
    lost = [tp for tp, at in starts.items() if at is not None and at < (log[tp].log_start_offset or 0)]
    ends = {tp: row.log_end_offset for tp, row in log.items()}
    beyond = [tp for tp, at in starts.items() if at is not None and at > (end if (end := ends[tp]) is not None else at)]
    if lost:
        text = f"A restart begins below the log start offset in {len(lost)} partitions: {bounded_names(lost)}."
        remedy = "Commit offsets that exist: groupsource groups reset-offsets --to-earliest, with --topic for these."
        yield CheckResult(Status.BAD, text, remedy)
    if beyond:
        text = f"A restart begins above the log end offset in {len(beyond)} partitions: {bounded_names(beyond)}."
        yield CheckResult(Status.BAD, text, "The topic was recreated or truncated: use a new checkpoint.")
    if not lost and not beyond:
        sources = bounded_names(dict.fromkeys(r.restart.source for r in found.rows if r.restart), 2)
        text = f"A restart continues in {len(found.rows)} partitions"
        yield CheckResult(Status.GOOD, f"{text} ({sources or 'no offsets yet'}).")


# -- __consumer_offsets ----------------------------------------------------------------------------------------------


class _Log(NamedTuple):
    partitions: int
    with_records: int
    is_readable: bool


def _read_log(target: Target, facts: Facts) -> _Log:
    view = target.cluster.metadata([OFFSETS_TOPIC], refresh=True)
    code = view.errors.get(OFFSETS_TOPIC, 0)
    if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        raise BrokerError(code, f"Describing {OFFSETS_TOPIC}")
    partitions = view.partitions_of(OFFSETS_TOPIC)
    ranges = log_ranges(target.cluster, partitions) if partitions else []
    positions = {part.topic_partition: part.start for part in ranges[:1]}
    return _Log(len(partitions), len(ranges), bool(positions) and bool(first_batches(target.cluster, positions)))


def _evaluate_log(found: _Log) -> Iterator[CheckResult]:
    text = f"{OFFSETS_TOPIC} has {found.partitions} partitions, {found.with_records} with records"
    if not found.with_records:
        yield CheckResult(Status.UNKNOWN, f"{text}.", "No group has committed an offset yet.")
    elif not found.is_readable:
        fix = f"groups why and history need READ on it (kafka-acls --add --operation READ --topic {OFFSETS_TOPIC})."
        yield CheckResult(Status.UNKNOWN, f"{text}, which cannot be read.", fix)
    else:
        yield CheckResult(Status.GOOD, f"{text}, which can be read.")


class Clocks(NamedTuple):
    latest_ms: int | None
    timestamp_ms: int


def _read_clock(target: Target, facts: Facts) -> Clocks:
    # the coordinator sets the timestamps of these records
    partitions = target.cluster.metadata([OFFSETS_TOPIC]).partitions_of(OFFSETS_TOPIC)
    found = target.cluster.list_offsets(dict.fromkeys(partitions, MAX_TIMESTAMP)) if partitions else {}
    times = [entry.timestamp_ms for entry in found.values() if entry.timestamp_ms >= 0]
    return Clocks(max(times, default=None), SystemClock().timestamp_ms())


def evaluate_clock(found: Clocks) -> Iterator[CheckResult]:
    age_ms = None if found.latest_ms is None else found.timestamp_ms - found.latest_ms
    if age_ms is not None and age_ms < -_SKEW_MS:
        text = f"The clock of a broker is at least {-age_ms:,} ms ahead of this machine."
        yield CheckResult(Status.BAD, text, "Synchronize the clocks (NTP): lag in time and retention depend on them.")
    elif age_ms is not None and age_ms <= _SKEW_MS:
        yield CheckResult(Status.GOOD, f"The last record that a coordinator wrote is {age_ms:,} ms old by this clock.")
    else:
        text = f"No record of the last {_SKEW_MS:,} ms in {OFFSETS_TOPIC} shows the clock of a broker."
        yield CheckResult(Status.UNKNOWN, text, "Run it again while a group commits.")


def _read_transaction(target: Target, facts: Facts) -> TransactionFacts:
    return read_transaction(target.cluster, target.transactional_id or "", facts.get("topic", ()))


def _has_group(target: Target) -> bool:
    return target.group is not None


CLUSTER_CHECKS: tuple[Check[Target], ...] = (
    Check("dns", _read_dns, _evaluate_dns),
    Check("tcp", _read_tcp, _evaluate_tcp, needs="dns"),
    Check("tls", _read_tls, _evaluate_tls, needs="tcp"),
    Check("versions", _read_versions, _evaluate_versions, needs="tls"),
    Check("login", _read_login, _evaluate_login, needs="versions"),
    Check("brokers", _read_brokers, _evaluate_brokers, needs="login"),
    Check("topic", _read_topics, _evaluate_topics, "brokers", lambda target: target.topics is not None),
    Check("group", _read_group, evaluate_group, "brokers", _has_group),
    Check("offsets", _read_offsets, evaluate_offsets, "brokers", _has_group),
    Check("transaction", _read_transaction, evaluate_transaction, "brokers", lambda t: t.transactional_id is not None),
    Check("checkpoint", _read_checkpoint, evaluate_checkpoint, "brokers", lambda t: t.checkpoint is not None),
    Check(OFFSETS_TOPIC, _read_log, _evaluate_log, "brokers", on_error=Status.UNKNOWN),
    Check("clock", _read_clock, evaluate_clock, "brokers", on_error=Status.UNKNOWN),
)
"""Checks over the protocol, in the order in which a client depends on them."""
