"""Request routing: bootstrap, metadata cache, leaders, coordinators, retries.

Thread-safe: one call at a time uses a connection; `client.membership` states the rule of the locks.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Callable, Collection, Iterable, Mapping, NamedTuple, Sequence, TypeVar, Union
from uuid import UUID

from spark_groupsource.client.cluster.error_rules import Action, ErrorRules, is_missing
from spark_groupsource.client.cluster.metadata import (
    CachedTopic,
    ClusterMetadata,
    TopicInfo,
    is_contradicted,
    known_topic,
    merge_of,
    merge_topic,
    read_metadata,
    topic_of_most,
    without_earlier_leader,
)
from spark_groupsource.client.network.availability import BrokerAvailability
from spark_groupsource.client.network.broker_connection import (
    CHECKS_BROKER_SINCE,
    MAX_RESPONSE_BYTES,
    BrokerConnection,
    ExpectedBroker,
)
from spark_groupsource.client.network.connection_pool import ConnectionPool
from spark_groupsource.client.network.retry import Retry
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.clock import Clock, SystemClock
from spark_groupsource.common.config_def import INT32_MAX
from spark_groupsource.common.net import Address, parse_addresses
from spark_groupsource.errors import (
    FENCING_ERRORS,
    BrokerError,
    ErrorCode,
    GroupSourceError,
    NetworkError,
    RemoteProtocolError,
    RequestTimeoutError,
    UnresolvedNameError,
    UnsupportedVersionError,
    as_sentence,
)
from spark_groupsource.model import Node, TopicPartition, bounded_names, by_topic
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import (
    FindCoordinatorRequest,
    MetadataRequest,
    OffsetFetchRequest,
    Request,
    Response,
)

if TYPE_CHECKING:
    from spark_groupsource.client.network.request_pipeline import RequestPipeline

R = TypeVar("R", bound="Response")

BOOTSTRAP_TIMEOUT_MS = 2_000
"""How long to retry while no address has ever been reachable: a wrong address should fail soon."""

COORDINATOR_MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
COORDINATOR_UNAVAILABLE = COORDINATOR_MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
_FIND_COORDINATORS_SINCE = 4
_BY_CODE = ErrorRules({})
_UNCACHED = CachedTopic()
# least time for an address that does not respond, while others have not been tried
_MIN_ATTEMPT_MS = 5_000
# a heartbeat tries several generations; one lookup is enough
_CONFIRMED_MS = 1_000
# the group gets no other owner before the session timeout of the member at a new coordinator, which is 6 s at least
_NAMED_MS = 5_000
# other brokers that are asked to name the coordinator, and how long
_NAMING_BROKERS, _NAMING_MS = 2, 2_000
# so that a task finds the rest of the cluster while two brokers are down
_MIN_TASK_BROKERS = 3
# a Fetch response exceeds fetch.max.bytes where its first batch does (KIP-74)
_LARGEST_BATCH_BYTES = 128 * 1024 * 1024


class TransactionalId(NamedTuple):
    """Key of a transaction coordinator; the key of a group coordinator is the group id as text."""

    name: str


CoordinatorKey = Union[str, TransactionalId]


def _described(key: CoordinatorKey) -> str:
    return f"transactional id '{key.name}'" if isinstance(key, TransactionalId) else f"group '{key}'"


def top_level_error(response: Any) -> tuple[int, ...]:
    """Returns the error code of a response as a whole."""
    return (response.error_code,)


class Router:
    """Sends requests to the right broker.

    Attributes:
        pool: connections for callers that send requests of their own, as the fetcher; `connection_lost` reports errors.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[Address],
        settings: ClientSettings,
        clock: Clock | None = None,
        rng: Random | None = None,
        *,
        known_brokers: Iterable[Address] = (),
    ) -> None:
        """`known_brokers`: addresses from the metadata of another process; see `add_known_brokers`."""
        self.availability: BrokerAvailability | None = None
        self.call_timeout_ms: int | None = None
        """Timeout of calls that name none, instead of default.api.timeout.ms; set by a caller that holds a lock."""
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or Random()
        self._bootstrap = parse_addresses(bootstrap) if isinstance(bootstrap, str) else tuple(bootstrap)
        self._lock = threading.Lock()
        self._known_brokers: tuple[Address, ...] = ()
        self.pool = ConnectionPool(self.connect, self.clock, settings.connections_max_idle_ms)
        self._reached_once = False
        self._nodes: dict[int, Node] = {}
        self._controller_id = -1
        self._cluster_id: str | None = None
        # whether a broker has the version of ApiVersions that names the expected broker: others would need two requests
        self._brokers_check = False
        self._topics: dict[str, CachedTopic] = {}
        self._all_topics_ms: int | None = None
        # a lost connection may be that of a leader that is no longer one
        self._lost_ms = -1
        self._coordinators: dict[CoordinatorKey, Node] = {}
        # coordinators that have responded to a request that they reject until they have loaded the group
        self._loaded: dict[CoordinatorKey, Node] = {}
        # group -> coordinator that other brokers have named after it rejected a member, and when
        self._confirmed_coordinators: dict[str, tuple[Node | None, int]] = {}
        # group -> coordinator that another broker has named last, and when
        self._named_coordinators: dict[str, tuple[Node, int]] = {}
        # the next lookup prefers another broker: this one may have older metadata than the others
        self._responded_last: Address | None = None
        # members of one process look up the same coordinator at once; one of them sends the request
        self._lookups: set[CoordinatorKey] = set()
        self._lookup_ended = threading.Condition(self._lock)
        self.add_known_brokers(known_brokers)

    def close(self) -> None:
        """Closes the idle connections; connections in use are closed when they are released."""
        self.pool.close()

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def report_availability(self, entity: str) -> BrokerAvailability:
        """Logs from now on when a broker becomes unreachable and when it is back; the caller must call `check`."""
        self.availability = BrokerAvailability(entity, self.clock, self.known_brokers)
        return self.availability

    def known_brokers(self) -> tuple[Address, ...]:
        """Returns the addresses of the brokers in the metadata, sorted; none before the first Metadata response."""
        with self._lock:
            return tuple(sorted(self.node_address(node) for node in self._nodes.values()))

    def task_brokers(self, partitions: Iterable[TopicPartition], group_id: str | None = None) -> tuple[Address, ...]:
        """Returns the addresses that a task with these partitions needs, sorted; sends no request.

        They are those of the leaders and the group's coordinator in the cached metadata, and of other brokers if these
        are fewer than three: a task finds the rest by itself, because each broker knows all.
        """
        with self._lock:
            nodes, known = self._nodes, self._topics
            found: set[Address] = set()
            for p in partitions:
                topic = known.get(p.topic, _UNCACHED).info
                info = topic.partitions.get(p.partition) if topic is not None else None
                if info is not None and info.leader_id in nodes:
                    found.add(self.node_address(nodes[info.leader_id]))
            coordinator = self._coordinators.get(group_id) if group_id is not None else None
            if coordinator is not None:
                found.add(self.node_address(coordinator))
            others = (self.node_address(node) for node in nodes.values())
            while len(found) < _MIN_TASK_BROKERS and (other := next(others, None)) is not None:
                found.add(other)
        return tuple(sorted(found))

    def add_known_brokers(self, addresses: Iterable[Address]) -> None:
        """Adds addresses of this cluster from the metadata of another process.

        They are used like bootstrap addresses. Because the cluster exists, calls are retried until their timeout even
        before the first success.
        """
        with self._lock:
            self._known_brokers = tuple(addresses) or self._known_brokers
            self._reached_once = self._reached_once or bool(self._known_brokers)

    def add_known_partitions(self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, str]) -> None:
        """Adds partitions that another process has found, and the ids of their topics as text, as far as known.

        They are requested before their use. That they no longer exist, or are others, is believed only if most of the
        brokers say so, as for those that this client has found.
        """
        with self._lock:
            for name, numbers in by_topic(partitions).items():
                topic = known_topic(name, UUID(topic_ids[name]) if name in topic_ids else None, numbers)
                cached = self._topics.get(name, _UNCACHED).info
                if cached is None:
                    self._topics[name] = CachedTopic(-1, topic)
                elif not is_contradicted(topic, cached) or cached.topic_id == topic.topic_id:
                    missing = {n: p for n, p in topic.partitions.items() if n not in cached.partitions}
                    if missing:
                        known = cached._replace(partitions={**cached.partitions, **missing})
                        self._topics[name] = CachedTopic(-1, known)

    def retry(self, timeout_ms: int | None = None) -> Retry:
        """Returns a retry loop bounded by `timeout_ms`, or by `call_timeout_ms` or default.api.timeout.ms."""
        settings = self.settings
        if timeout_ms is None:
            timeout_ms = settings.default_api_timeout_ms if self.call_timeout_ms is None else self.call_timeout_ms
        return Retry(
            base_ms=settings.retry_backoff_ms,
            max_ms=settings.retry_backoff_max_ms,
            timeout_ms=timeout_ms,
            clock=self.clock,
            rng=self.rng,
        )

    def connect(self, address: Address, *, client_id: str | None = None) -> BrokerConnection:
        """Returns an unopened connection outside the pool; the caller must close it."""
        settings = self.settings
        return BrokerConnection(
            address,
            client_id=settings.client_id if client_id is None else client_id,
            security=settings.security,
            clock=self.clock,
            request_timeout_ms=settings.request_timeout_ms,
            connect_timeout_ms=settings.connect_timeout_ms,
            max_response_bytes=max(MAX_RESPONSE_BYTES, min(settings.fetch_max_bytes + _LARGEST_BATCH_BYTES, INT32_MAX)),
            availability=self.availability,
            expected=self._expected_broker(address),
        )

    def _expected_broker(self, address: Address) -> ExpectedBroker | None:
        """Returns the broker at an address by the metadata; None if it has none there or brokers do not check it."""
        with self._lock:
            found = [node_id for node_id, node in self._nodes.items() if self.node_address(node) == address]
            if len(found) != 1 or self._cluster_id is None or not self._brokers_check:
                return None
            return ExpectedBroker(self._cluster_id, found[0], self._rebootstrap)

    def _rebootstrap(self) -> None:
        """Forgets the brokers of the cluster, which are no longer where the metadata has them (KIP-1242)."""
        with self._lock:
            self._nodes = {}
            self._cluster_id = None
            self._coordinators.clear()

    def open_pipeline(self, address: Address, timeout_ms: int) -> RequestPipeline:
        """Opens a connection for an event loop, outside the pool; the caller must close it.

        Raises: as `BrokerConnection.open`.
        """
        # read tasks have no event loop, whose library takes 7 MB
        from spark_groupsource.client.network.request_pipeline import RequestPipeline

        connection = self.connect(address)
        connection.open(timeout_ms)
        return RequestPipeline(connection, self.clock, self.settings.request_timeout_ms, self.availability)

    def call_address(
        self,
        address: Address,
        request: Request[R],
        timeout_ms: int | None = None,
        *,
        max_version: int | None = None,
        min_version: int = 0,
    ) -> R:
        """Sends one request to one address over a pooled connection, without retries."""
        received: list[R] = []
        self.call_address_each(
            address, [request], received, timeout_ms, max_version=max_version, min_version=min_version
        )
        return received[0]

    def call_address_each(
        self,
        address: Address,
        requests: Iterable[Request[R]],
        received: list[R],
        timeout_ms: int | None = None,
        *,
        max_version: int | None = None,
        min_version: int = 0,
    ) -> None:
        """Sends requests to one address over one pooled connection, without waiting for each response.

        Args: `received` gets the responses in the order of the requests, also those before an error.
        """
        connection = self.pool.acquire(address)
        try:
            received.extend(
                connection.call_each(requests, timeout_ms, max_version=max_version, min_version=min_version)
            )
        except NetworkError:
            self.connection_lost(address)
            raise
        finally:
            self.pool.release(connection)
        self.pool.responded(address)
        self._brokers_check = self._brokers_check or (
            self.settings.checks_cluster
            and connection.api_versions.get(ApiKey.API_VERSIONS, (0, 0))[1] >= CHECKS_BROKER_SINCE
        )

    def call_any(
        self,
        request: Request[R],
        timeout_ms: int | None = None,
        *,
        min_version: int = 0,
    ) -> R:
        """Sends a request to any broker: known brokers in random order, then the bootstrap addresses.

        An address that does not respond leaves a share of the time for each of the others. Before the first success
        the retries end after `BOOTSTRAP_TIMEOUT_MS` (plus the time for addresses that do not respond), or after
        bootstrap.resolve.timeout.ms if that is longer and a name is not resolved; later after `timeout_ms` (default:
        default.api.timeout.ms).

        Raises: NetworkError with the error of every address; RequestTimeoutError if one of them accepts the request
            and a broker has responded before; AuthenticationError without a retry.
        """
        retry = self.retry(timeout_ms)
        while True:
            reasons: dict[Address, GroupSourceError] = {}
            addresses = self._addresses()
            for index, address in enumerate(addresses):
                if reasons and retry.is_expired:
                    break
                try:
                    share_ms = max(retry.remaining_ms // (len(addresses) - index), _MIN_ATTEMPT_MS)
                    bound_ms = min(share_ms, retry.remaining_ms, self.settings.request_timeout_ms)
                    response = self.call_address(
                        address, request, bound_ms, min_version=min_version
                    )
                    self._reached_once = True
                    self._responded_last = address
                    return response
                except (NetworkError, RemoteProtocolError) as error:
                    reasons[address] = error
            failure = _unreachable(reasons, self._reached_once)
            limit_ms = BOOTSTRAP_TIMEOUT_MS
            if any(isinstance(reason, UnresolvedNameError) for reason in reasons.values()):
                limit_ms = max(limit_ms, self.settings.resolve_timeout_ms)
            if not self._reached_once and retry.elapsed_ms >= limit_ms:
                raise failure
            retry.backoff_or_raise(failure)

    def call_node(
        self,
        node_id: int,
        request: Request[R],
        timeout_ms: int | None = None,
        *,
        max_version: int | None = None,
        min_version: int = 0,
    ) -> R:
        """Sends one request to one broker, without retries; metadata included it takes at most `timeout_ms`.

        Raises: NetworkError, with a hint if only the broker's advertised address fails.
        """
        retry = self.retry(self.settings.request_timeout_ms if timeout_ms is None else timeout_ms)
        node = self.metadata((), timeout_ms=retry.remaining_ms).nodes.get(node_id)
        if node is None:
            node = self.metadata((), refresh=True, timeout_ms=retry.remaining_ms).nodes.get(node_id)
        if node is None:
            raise NetworkError(f"Request to broker {node_id} failed: the broker is not in the cluster metadata.")
        try:
            return self.call_address(
                self.node_address(node), request, retry.remaining_ms, max_version=max_version, min_version=min_version
            )
        except NetworkError as error:
            if self.node_address(node) in self._bootstrap:
                raise
            raise type(error)(
                f"{error} Broker {node_id} advertises {self.node_address(node)}; if the address is wrong, correct "
                "advertised.listeners of the broker."
            ) from error

    def call_controller(self, request: Request[R], timeout_ms: int | None = None) -> R:
        """Sends a request to the controller; a KRaft broker that is named instead forwards it."""
        retry = self.retry(timeout_ms)
        while True:
            view = self.metadata((), refresh=retry.attempt > 0, timeout_ms=retry.remaining_ms)
            try:
                if view.controller_id not in view.nodes:
                    return self.call_any(request, retry.remaining_ms)
                bound_ms = min(retry.remaining_ms, self.settings.request_timeout_ms)
                return self.call_node(view.controller_id, request, bound_ms)
            except NetworkError as error:
                retry.backoff_or_raise(error)

    def call_coordinator(
        self,
        key: CoordinatorKey,
        request: Request[R],
        timeout_ms: int | None = None,
        *,
        errors: Callable[[R], Iterable[int]] = top_level_error,
        min_version: int = 0,
    ) -> R:
        """Sends a request to the coordinator of a group or of a transactional id; see `call_coordinator_each`.

        Raises: BrokerError or NetworkError after `timeout_ms` (default: default.api.timeout.ms).
        """
        (outcome,) = self.call_coordinator_each(
            key,
            [request],
            timeout_ms,
            errors=errors,
            min_version=min_version,
        )
        if isinstance(outcome, GroupSourceError):
            raise outcome
        return outcome

    def call_coordinator_each(
        self,
        key: CoordinatorKey,
        requests: Sequence[Request[R]],
        timeout_ms: int | None = None,
        *,
        errors: Callable[[R], Iterable[int]] = top_level_error,
        error_of: Callable[[int, R], BrokerError | None] = lambda index, response: None,
        rules: ErrorRules = _BY_CODE,
        on_lost: Callable[[int], None] = lambda index: None,
        min_version: int = 0,
    ) -> list[R | GroupSourceError]:
        """Sends requests to a coordinator, one after the other without waiting for each response.

        Retries those for which the coordinator moves, loads or is unreachable, and those whose error is retried.
        A coordinator that is cut off from its controller does not know that another one has the group since. So
        requests that it rejects because of the member are sent to the coordinator that the other brokers name, if any.

        Args:
            errors: returns the error codes of a response, which may be those of a coordinator that has moved.
            error_of: returns the error of the response to the request with this index, None without one.
            rules: which of these errors are retried; those of unknown topics for `UNKNOWN_TOPIC_TIMEOUT_MS` at most.
            on_lost: called with the index of each request without a response.
        Returns: the response to each request, or its error, a retried one after `timeout_ms` (default:
            default.api.timeout.ms).
        Raises: errors that no retry ends, for example AuthenticationError.
        """
        retry = self.retry(timeout_ms)
        rejected_by: set[Node] = set()
        found: dict[int, R | GroupSourceError] = {}
        pending = list(range(len(requests)))
        while pending:
            failure: GroupSourceError | None = None
            try:
                node = self.find_coordinator(key, retry.remaining_ms)
                if retry.is_expired:
                    took = f"the lookup took {retry.elapsed_ms} ms"
                    raise RequestTimeoutError(f"Request to the coordinator of {_described(key)} failed: {took}.")
            except (BrokerError, NetworkError) as error:
                found.update(dict.fromkeys(pending, error))
                break
            received: list[R] = []
            try:
                self.call_address_each(
                    self.node_address(node),
                    [requests[index] for index in pending],
                    received,
                    min(retry.remaining_ms, self.settings.request_timeout_ms),
                    min_version=min_version,
                )
            except NetworkError as error:
                self.invalidate_coordinator(key, node)
                for index in pending[len(received) :]:
                    on_lost(index)
                failure = error
            rejected: list[int] = []
            for index, response in zip(pending, received):
                codes = list(errors(response))
                code = next((code for code in codes if code in COORDINATOR_UNAVAILABLE), None)
                if code is not None:
                    failure = failure or BrokerError(code, f"Request to coordinator {node} of {_described(key)}")
                    if code in COORDINATOR_MOVED:
                        self.invalidate_coordinator(key, node)
                    continue
                if isinstance(requests[index], OffsetFetchRequest):
                    with self._lock:
                        self._loaded[key] = node
                problem = error_of(index, response)
                is_retried = problem is not None and rules.action(problem.code) is Action.RETRY
                if problem is not None and is_retried and not is_missing(problem, retry):
                    failure = failure or problem
                    continue
                found[index] = response if problem is None else problem
                is_of_member = bool(getattr(requests[index], "member_id", ""))
                if isinstance(key, str) and is_of_member and not FENCING_ERRORS.keys().isdisjoint(codes):
                    rejected.append(index)
            if rejected and isinstance(key, str):
                rejected_by.add(node)
                if self.find_other_coordinator(key, rejected_by, retry.remaining_ms):
                    for index in rejected:
                        del found[index]
            pending = [index for index in pending if index not in found]
            if failure is not None and pending:
                try:
                    retry.backoff_or_raise(failure)
                except GroupSourceError as error:
                    found.update(dict.fromkeys(pending, error))
                    break
        return [found[index] for index in range(len(requests))]

    def find_coordinator(self, key: CoordinatorKey, timeout_ms: int | None = None) -> Node:
        """Returns the coordinator of a group or of a transactional id, from the cache or by FindCoordinator.

        Raises: BrokerError, for retriable codes after the timeout; NetworkError.
        """
        retry = self.retry(timeout_ms)
        with self._lookup_ended:
            while key not in self._coordinators and key in self._lookups:
                if not self._lookup_ended.wait(retry.remaining_ms / 1000):
                    raise NetworkError(f"Coordinator lookup of {_described(key)} failed: a lookup is in progress.")
            known = self._coordinators.get(key)
            if known is not None:
                return known
            self._lookups.add(key)
        try:
            return self._request_coordinator(key, retry)
        finally:
            with self._lookup_ended:
                self._lookups.discard(key)
                self._lookup_ended.notify_all()

    def cached_coordinator(self, key: CoordinatorKey) -> Node | None:
        """Returns the coordinator if it is in the cache; sends no request."""
        return self._coordinators.get(key)

    def has_loaded(self, key: CoordinatorKey) -> bool:
        """Returns whether the coordinator in the cache is known to have loaded its log; sends no request.

        Until then, it responds NONE to every Heartbeat.

        Source: GroupCoordinatorService.heartbeat, GroupCoordinator.handleHeartbeat.
        """
        with self._lock:
            node = self._coordinators.get(key)
            return node is not None and self._loaded.get(key) == node

    def find_other_coordinator(self, group_id: str, rejected_by: Collection[Node], timeout_ms: int) -> bool:
        """Looks up whether the coordinator of a group has moved; returns True if the cache has another one now.

        Args:
            rejected_by: the coordinators that have rejected a member. The other brokers are asked, one after the other,
                and the node that most brokers name is the coordinator; one that has rejected names itself.
        Raises: NetworkError if no broker responds to a client without metadata.
        """
        with self._lock:
            confirmed, confirmed_ms = self._confirmed_coordinators.get(group_id, (None, 0))
        if confirmed in rejected_by and self.clock.now_ms() < confirmed_ms + _CONFIRMED_MS:
            return False
        retry, named = self.retry(timeout_ms), Counter(rejected_by)
        # a client that has sent its first request has no metadata yet
        brokers = self.metadata((), timeout_ms=retry.remaining_ms).nodes.values()
        nodes = [node for node in brokers if not _is_among(node, rejected_by)]
        for index, node in enumerate(nodes):
            bound_ms = max(min(retry.remaining_ms // (len(nodes) - index), self.settings.request_timeout_ms), 1)
            each = self._coordinator_named_by(self.node_address(node), group_id, bound_ms)
            if each is not None:
                named[each] += 1
        # of two that as many brokers name, the other one
        found = max(named, key=lambda node: (named[node], node not in rejected_by))
        with self._lock:
            if found not in rejected_by:
                self._coordinators[group_id] = found
                return True
            if sum(named.values()) > len(rejected_by):
                self._confirmed_coordinators[group_id] = found, self.clock.now_ms()
        return False

    def confirm_coordinator(self, group_id: str, timeout_ms: int | None = None) -> None:
        """Asks another broker for the coordinator of a group, unless one has named it in the last five seconds.

        A coordinator that is cut off from its controller accepts its members for as long as that lasts, although the
        group has another one, which removes them after their session timeout. If another broker names another
        coordinator, the one that most brokers name is in the cache afterwards. It is not confirmed where no other
        broker responds.

        Raises: BrokerError, NetworkError as `find_coordinator`.
        """
        retry = self.retry(timeout_ms)
        node = self.find_coordinator(group_id, retry.remaining_ms)
        with self._lock:
            named, named_ms = self._named_coordinators.get(group_id, (None, 0))
        if named == node and self.clock.now_ms() < named_ms + _NAMED_MS:
            return
        brokers = self.metadata((), timeout_ms=retry.remaining_ms).nodes.values()
        addresses = [self.node_address(each) for each in brokers if each.node_id != node.node_id]
        self.rng.shuffle(addresses)
        for address in self.pool.reachable_first(addresses)[:_NAMING_BROKERS]:
            found = self._coordinator_named_by(address, group_id, min(retry.remaining_ms, _NAMING_MS))
            if found is not None:
                if found.node_id != node.node_id:
                    self.find_other_coordinator(group_id, {node}, retry.remaining_ms)
                break
        with self._lock:
            self._named_coordinators[group_id] = self._coordinators.get(group_id, node), self.clock.now_ms()

    def _coordinator_named_by(self, address: Address, group_id: str, timeout_ms: int) -> Node | None:
        """Returns the coordinator that the broker at an address names; None if it does not respond or names none."""
        request = FindCoordinatorRequest(key=group_id, key_type=0, coordinator_keys=[group_id])
        try:
            response = self.call_address(address, request, timeout_ms)
        except (NetworkError, RemoteProtocolError):
            return None
        row = response.coordinators[0] if response.coordinators else response
        return None if row.error_code else Node(row.node_id, row.host, row.port)

    def find_coordinators(self, group_ids: Iterable[str]) -> dict[str, Node]:
        """Returns the coordinators of several groups, with one request for those that are not cached (KIP-699).

        Raises: as `find_coordinator`.
        """
        distinct_ids = list(dict.fromkeys(group_ids))
        with self._lock:
            missing = [group_id for group_id in distinct_ids if group_id not in self._coordinators]
        if len(missing) > 1:
            request = FindCoordinatorRequest(key="", key_type=0, coordinator_keys=missing)
            try:
                response = self.call_any(request, min_version=_FIND_COORDINATORS_SINCE)
            except UnsupportedVersionError:
                # the groups are looked up one by one
                return {group_id: self.find_coordinator(group_id) for group_id in distinct_ids}
            with self._lock:
                for found in response.coordinators:
                    if not found.error_code:
                        self._coordinators[found.key] = Node(found.node_id, found.host, found.port)
        return {group_id: self.find_coordinator(group_id) for group_id in distinct_ids}

    def _request_coordinator(self, key: CoordinatorKey, retry: Retry) -> Node:
        is_transactional = isinstance(key, TransactionalId)
        name = key.name if isinstance(key, TransactionalId) else key
        request = FindCoordinatorRequest(key=name, key_type=int(is_transactional), coordinator_keys=[name])
        while True:
            response = self.call_any(request, retry.remaining_ms, min_version=int(is_transactional))
            found = response.coordinators[0] if response.coordinators else response
            if not found.error_code:
                node = Node(found.node_id, found.host, found.port)
                with self._lock:
                    self._coordinators[key] = node
                return node
            operation = f"Coordinator lookup of {_described(key)}"
            error = BrokerError(found.error_code, operation, as_sentence(found.error_message))
            if not error.retriable:
                raise error
            retry.backoff_or_raise(error)

    def invalidate_coordinator(self, key: CoordinatorKey, node: Node) -> None:
        """Removes a coordinator from the cache, unless the cache has another one already."""
        with self._lock:
            if self._coordinators.get(key) == node:
                del self._coordinators[key]
                self._loaded.pop(key, None)

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster by the last metadata; None before them, and for brokers without one."""
        return self._cluster_id

    def metadata(
        self, topics: Iterable[str] | None = None, *, refresh: bool = False, timeout_ms: int | None = None
    ) -> ClusterMetadata:
        """Returns brokers and topics (None: all), at most metadata.max.age.ms old, or requested now with `refresh`.

        A topic that does not exist is in `ClusterMetadata.errors`; it is not created.

        Raises: as `call_any`.
        """
        names = None if topics is None else sorted(set(topics))
        if refresh or not self._is_cached(names):
            # allow_auto_topic_creation exists since version 4
            request = MetadataRequest(
                topics=None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=False,
            )
            retry = self.retry(timeout_ms)
            view = self._request_metadata(request, retry)
            self._update_cache(self._confirmed(view, names, retry), names)
        with self._lock:
            wanted = self._topics if names is None else [name for name in names if name in self._topics]
            chosen = {name: self._topics[name] for name in wanted}
            return ClusterMetadata(
                dict(self._nodes),
                {name: each.info for name, each in chosen.items() if each.info is not None and not each.error},
                self._controller_id,
                self._cluster_id,
                {name: each.error for name, each in chosen.items() if each.error},
            )

    def refresh_topics(self) -> None:
        """Requests the metadata of all topics that are cached, in one request. Raises: as `call_any`."""
        with self._lock:
            names = list(self._topics)
        if names:
            self.metadata(names, refresh=True)

    def _request_metadata(self, request: MetadataRequest, retry: Retry) -> ClusterMetadata:
        """Returns the metadata of the first response with brokers: one that starts may not know the cluster yet.

        Source: NetworkClient.DefaultMetadataUpdater.handleSuccessfulResponse.
        """
        while True:
            view = read_metadata(self.call_any(request, retry.remaining_ms, min_version=4))
            if view.nodes:
                return view
            retry.backoff_or_raise(NetworkError("Metadata request failed: the response names no broker. Try again."))

    def _confirmed(self, view: ClusterMetadata, names: Sequence[str] | None, retry: Retry) -> ClusterMetadata:
        """Returns a response, with the known topics that most of the brokers do not confirm to be deleted or recreated.

        Such a response is from a broker with older metadata, whose list of brokers is not used either.
        """
        with self._lock:
            nodes = {**self._nodes, **view.nodes}
            former = dict(self._nodes) or view.nodes
            wanted = list(self._topics) if names is None else [name for name in names if name in self._topics]
            cached = {name: self._topics[name].info for name in wanted}
        doubtful = {name: known for name, known in cached.items() if known is not None and _is_changed(known, view)}
        if not doubtful or len(nodes) <= 1:
            return view
        received = self._topics_at_each(sorted(doubtful), list(nodes.values()), retry)
        topics, errors, is_old = dict(view.topics), dict(view.errors), False
        for name, known in doubtful.items():
            found = topic_of_most(known, received[name], len(nodes))
            topics.pop(name, None)
            errors.pop(name, None)
            if found is not None:
                topics[name] = found
                is_old = is_old or not is_contradicted(known, found)
            elif names is not None:
                errors[name] = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return replace(view, nodes=former if is_old else view.nodes, topics=topics, errors=errors)

    def _topics_at_each(
        self, names: Sequence[str], nodes: Sequence[Node], retry: Retry
    ) -> dict[str, dict[int, TopicInfo | None]]:
        """Returns each topic in the metadata of every broker that responds, by its id; None where it does not exist."""
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        received: dict[str, dict[int, TopicInfo | None]] = {name: {} for name in names}
        for index, node in enumerate(nodes):
            bound_ms = min(max(retry.remaining_ms // (len(nodes) - index), 1), self.settings.request_timeout_ms)
            try:
                view = read_metadata(self.call_address(self.node_address(node), request, bound_ms, min_version=4))
            except (NetworkError, RemoteProtocolError):
                # a broker that does not respond confirms nothing
                continue
            for name in names if view.nodes else ():
                if view.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    received[name][node.node_id] = view.topics.get(name)
        return received

    def confirm_leaders(self, topics: Iterable[str], timeout_ms: int | None = None) -> None:
        """Requests topics from every broker; after it the cache has the leaders with the latest epochs.

        A leader that is cut off from its controller does not know that another one was elected, and its log may end
        before that of the other. So a log is shorter than expected only if most of the brokers know no later leader.

        Raises: NetworkError unless more than half of the brokers respond.
        """
        names, retry = sorted(set(topics)), self.retry(timeout_ms)
        nodes = self.metadata(names, refresh=True, timeout_ms=retry.remaining_ms).nodes
        if len(nodes) <= 1:
            return
        received = self._topics_at_each(names, list(nodes.values()), retry)
        with self._lock:
            for name in names:
                cached = self._topics.get(name, _UNCACHED)
                if cached.info is not None:
                    self._topics[name] = cached._replace(info=merge_of(cached.info, received[name].values()))
        responded = min((len(each) for each in received.values()), default=len(nodes))
        if 2 * responded <= len(nodes):
            raise NetworkError(
                f"The leaders of topic {bounded_names(names)} cannot be confirmed: {responded} of {len(nodes)} brokers "
                "responded."
            )

    def cached_leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the leader epochs in the cached metadata, -1 where one is unknown; sends no request.

        After a successful `list_offsets` they are the epochs of the leaders that responded.
        """
        with self._lock:
            known = {name: each.info.partitions for name, each in self._topics.items() if each.info is not None}
        found = ((p, known.get(p.topic, {}).get(p.partition)) for p in partitions)
        return {p: -1 if info is None else info.leader_epoch for p, info in found}

    def forget_earlier_leaders(self, epochs: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]) -> None:
        """Forgets cached leaders with an earlier epoch than one that is known, until metadata name a later one.

        Args:
            topic_ids: topic -> id of the topic that the epochs are of, as text.

        Source: Metadata.updateLastSeenEpochIfNewer.
        """
        with self._lock:
            for tp, epoch in epochs.items():
                cached = self._topics.get(tp.topic, _UNCACHED)
                if cached.info is not None and str(cached.info.topic_id) == topic_ids[tp.topic]:
                    known = without_earlier_leader(cached.info, tp.partition, epoch)
                    self._topics[tp.topic] = cached._replace(info=known)

    @staticmethod
    def node_address(node: Node) -> Address:
        return Address(node.host, node.port)

    def _is_cached(self, names: Sequence[str] | None) -> bool:
        with self._lock:
            oldest = max(self.clock.now_ms() - self.settings.metadata_max_age_ms, self._lost_ms)
            if not self._nodes:
                return False
            if names is None:
                return self._all_topics_ms is not None and self._all_topics_ms > oldest
            # missing topics are requested every time: they may exist now
            found = (self._topics.get(name, _UNCACHED) for name in names)
            return all(each.at_ms > oldest and each.info is not None and not each.error for each in found)

    def _update_cache(self, view: ClusterMetadata, names: Sequence[str] | None) -> None:
        now_ms = self.clock.now_ms()
        with self._lock:
            self._nodes = dict(view.nodes)
            self._controller_id = view.controller_id
            self._cluster_id = view.cluster_id
            cached = self._topics
            if names is None:
                self._topics = {}
                self._all_topics_ms = now_ms
            for name, code in view.errors.items():
                is_deleted = code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                known = None if is_deleted else cached.get(name, _UNCACHED).info
                self._topics[name] = CachedTopic(now_ms, known, code)
            for name, topic in view.topics.items():
                known = cached.get(name, _UNCACHED).info
                self._topics[name] = CachedTopic(now_ms, topic if known is None else merge_topic(known, topic))

    def _addresses(self) -> list[Address]:
        with self._lock:
            nodes = [self.node_address(node) for node in self._nodes.values()]
            known = list(self._known_brokers)
        self.rng.shuffle(nodes)
        self.rng.shuffle(known)
        # also where there are no metadata: the first bootstrap address may be that of a broker that is cut off
        last = self._responded_last
        sources = [sorted(each, key=lambda address: address == last) for each in (nodes, known, self._bootstrap)]
        return self.pool.reachable_first([address for source in sources for address in source])

    def connection_lost(self, address: Address) -> None:
        """Closes the idle connections to a broker and prefers other brokers.

        Metadata are requested again before their next use, as in Kafka's client.
        """
        with self._lock:
            self._lost_ms = self.clock.now_ms()
        self.pool.connection_lost(address)


def _is_among(node: Node, others: Collection[Node]) -> bool:
    """Compares ids: only the metadata have the rack of a node."""
    return any(node.node_id == other.node_id for other in others)


def _is_changed(known: TopicInfo, view: ClusterMetadata) -> bool:
    """Returns whether a response shows that a known topic was deleted or recreated; other errors do not."""
    code = view.errors.get(known.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and is_contradicted(known, view.topics.get(known.name))


def _unreachable(reasons: dict[Address, GroupSourceError], reached_once: bool) -> NetworkError:
    listed = " ".join(map(str, reasons.values()))
    if reached_once and any(isinstance(reason, RequestTimeoutError) for reason in reasons.values()):
        # the cluster is there, perhaps overloaded; a first peer may be no broker
        return RequestTimeoutError(f"No Kafka broker responded in time: {listed}")
    return NetworkError(f"No Kafka broker is reachable: {listed} Check kafka.bootstrap.servers.")
