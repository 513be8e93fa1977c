"""Whom to ask: bootstrap, pooled connections, cached metadata, leaders and coordinators, and asking again.

Safe for threads: a connection is lent to one call at a time, caches change under one lock, nothing waits under it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from random import Random
from typing import Callable, Iterable, Sequence

from spark_groupsource.client.cluster.metadata import ClusterMetadata, TopicInfo, read_metadata
from spark_groupsource.client.network.connection import BrokerConnection
from spark_groupsource.client.network.retry import Retry
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.errors import BrokerError, ErrorCode, GroupSourceError, NetworkError, RemoteProtocolError
from spark_groupsource.model import Node
from spark_groupsource.net import Address, parse_addresses
from spark_groupsource.wire.messages import FindCoordinatorRequest, Message, MetadataRequest

BOOTSTRAP_PATIENCE_MS = 2_000
"""How long addresses that never worked are tried again; refusals come at once, and typing errors do not mend."""

COORDINATOR_MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_COORDINATOR_RETRIABLE = COORDINATOR_MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
_MAX_IDLE_PER_ADDRESS = 4


class ClientClosedError(GroupSourceError):
    """Somebody closed the `Cluster` that is being used; no repetition mends that."""


def top_level_error(answer: Message) -> tuple[int, ...]:
    """The error codes of an answer that has one for the whole."""
    return (answer.error_code,)


class Router:
    """Finds brokers and talks to them."""

    def __init__(
        self,
        bootstrap: str | Sequence[Address],
        settings: ClientSettings,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.rng = rng or Random()
        self._bootstrap = parse_addresses(bootstrap) if isinstance(bootstrap, str) else tuple(bootstrap)
        self._lock = threading.Lock()
        self._idle: dict[Address, list[BrokerConnection]] = defaultdict(list)
        self._closed = False
        self._reached_once = False
        self._nodes: dict[int, Node] = {}
        self._controller_id = -1
        self._cluster_id: str | None = None
        # topic -> (monotonic ms of the answer, what is known or the error code)
        self._topics: dict[str, tuple[int, TopicInfo | int]] = {}
        self._all_topics_ms: int | None = None
        self._coordinators: dict[str, Node] = {}
        # a look-up under way is waited for by all who need the same; the members of a process all ask at once
        self._lookups: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def close(self) -> None:
        """Closes every connection that is not lent out; those are closed when they come back."""
        with self._lock:
            self._closed = True
            idle = [connection for pool in self._idle.values() for connection in pool]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def retry(self, timeout_ms: int | None = None) -> Retry:
        """Attempts bounded by `timeout_ms`, or by default.api.timeout.ms."""
        settings = self.settings
        return Retry(
            base_ms=settings.retry_backoff_ms,
            max_ms=settings.retry_backoff_max_ms,
            timeout_ms=settings.default_api_timeout_ms if timeout_ms is None else timeout_ms,
            clock=self.clock,
            rng=self.rng,
        )

    def connect(self, address: Address, *, client_id: str | None = None) -> BrokerConnection:
        """A connection of the caller's own, opened at its first request; the caller must close it."""
        settings = self.settings
        return BrokerConnection(
            address,
            client_id=settings.client_id if client_id is None else client_id,
            security=settings.security,
            clock=self.clock,
            request_timeout_ms=settings.request_timeout_ms,
            connect_timeout_ms=settings.connect_timeout_ms,
        )

    def exchange(
        self,
        address: Address,
        request: Message,
        timeout_ms: int | None = None,
        *,
        cap: int | None = None,
        floor: int = 0,
    ) -> Message:
        """One request to one address over a pooled connection; no repetition."""
        connection = self.borrow(address)
        try:
            return connection.call(request, timeout_ms, cap=cap, floor=floor)
        except NetworkError:
            # a broker that went away took the idle connections with it
            self._drop_idle(address)
            raise
        finally:
            self.give_back(connection)

    def call_any(
        self, request: Message, timeout_ms: int | None = None, *, cap: int | None = None, floor: int = 0
    ) -> Message:
        """Asks whichever broker answers: known ones in random order, then the bootstrap addresses.

        Until one of them has been reached for the first time the attempts end after `BOOTSTRAP_PATIENCE_MS` (plus
        socket.connection.setup.timeout.ms where an address does not even refuse), later after `timeout_ms`
        (default.api.timeout.ms).

        Raises: NetworkError naming every address and what is wrong with it; AuthenticationError at once.
        """
        retry = self.retry(timeout_ms)
        while True:
            reasons: dict[Address, str] = {}
            for address in self._addresses():
                if reasons and retry.is_over:
                    break
                try:
                    bound_ms = min(retry.remaining_ms, self.settings.request_timeout_ms)
                    answer = self.exchange(address, request, bound_ms, cap=cap, floor=floor)
                    self._reached_once = True
                    return answer
                except (NetworkError, RemoteProtocolError) as error:
                    reasons[address] = str(error)
            failure = _unreachable(reasons)
            if not self._reached_once and retry.elapsed_ms >= BOOTSTRAP_PATIENCE_MS:
                raise failure
            retry.again(failure)

    def call_node(
        self,
        node_id: int,
        request: Message,
        timeout_ms: int | None = None,
        *,
        cap: int | None = None,
        floor: int = 0,
    ) -> Message:
        """One request to one broker; no repetition.

        Raises: NetworkError, with a hint where the broker's advertised address is what fails.
        """
        node = self.metadata(()).nodes.get(node_id) or self.metadata((), refresh=True).nodes.get(node_id)
        if node is None:
            raise NetworkError(f"broker {node_id} is not in the cluster now")
        try:
            return self.exchange(self.node_address(node), request, timeout_ms, cap=cap, floor=floor)
        except NetworkError as error:
            if self.node_address(node) in self._bootstrap:
                raise
            raise type(error)(
                f"{error} (broker {node_id} advertises {self.node_address(node)}; if that name is not known here, mend "
                "advertised.listeners of the broker)"
            ) from error

    def call_controller(self, request: Message, timeout_ms: int | None = None, *, cap: int | None = None) -> Message:
        """Asks the broker that takes changes of topics; every KRaft broker forwards them."""
        retry = self.retry(timeout_ms)
        while True:
            view = self.metadata((), refresh=retry.attempt > 0)
            try:
                if view.controller_id not in view.nodes:
                    return self.call_any(request, timeout_ms, cap=cap)
                return self.call_node(view.controller_id, request, cap=cap)
            except NetworkError as error:
                retry.again(error)

    def call_coordinator(
        self,
        group_id: str,
        request: Message,
        timeout_ms: int | None = None,
        *,
        errors: Callable[[Message], Iterable[int]] = top_level_error,
        cap: int | None = None,
        floor: int = 0,
    ) -> Message:
        """Asks the coordinator of a group; a moved, loading or lost coordinator is looked up and asked again.

        Args:
            errors: the error codes of an answer; every other code than the coordinator's own is the caller's to judge.
        Raises: BrokerError or NetworkError when `timeout_ms` (default.api.timeout.ms) is over.
        """
        retry = self.retry(timeout_ms)
        while True:
            node = self.find_coordinator(group_id, retry.remaining_ms)
            if retry.is_over:
                raise NetworkError(
                    f"the coordinator of group {group_id} was found only after {retry.elapsed_ms} ms, and not asked"
                )
            try:
                bound_ms = min(retry.remaining_ms, self.settings.request_timeout_ms)
                answer = self.exchange(self.node_address(node), request, bound_ms, cap=cap, floor=floor)
            except NetworkError as error:
                self.forget_coordinator(group_id, node)
                retry.again(error)
                continue
            code = next((code for code in errors(answer) if code in _COORDINATOR_RETRIABLE), None)
            if code is None:
                return answer
            if code in COORDINATOR_MOVED:
                self.forget_coordinator(group_id, node)
            retry.again(BrokerError(code, f"coordinator {node} of group {group_id}"))

    def find_coordinator(self, group_id: str, timeout_ms: int | None = None) -> Node:
        """The broker that coordinates a group, from memory or by asking.

        Raises: BrokerError (GROUP_AUTHORIZATION_FAILED and the like at once, retriable ones at the deadline).
        """
        retry = self.retry(timeout_ms)
        with self._lock:
            known, lookup = self._coordinators.get(group_id), self._lookups[group_id]
        if known is not None:
            return known
        if not lookup.acquire(timeout=retry.remaining_ms / 1000):
            raise NetworkError(f"the coordinator of group {group_id} is still being looked up")
        try:
            with self._lock:
                known = self._coordinators.get(group_id)
            return known or self._look_up_coordinator(group_id, retry)
        finally:
            lookup.release()

    def _look_up_coordinator(self, group_id: str, retry: Retry) -> Node:
        while True:
            answer = self.call_any(
                FindCoordinatorRequest(key=group_id, key_type=0, coordinator_keys=[group_id]), retry.remaining_ms
            )
            found = answer.coordinators[0] if answer.coordinators else answer
            if not found.error_code:
                node = Node(found.node_id, found.host, found.port)
                with self._lock:
                    self._coordinators[group_id] = node
                return node
            told = f" ({found.error_message})" if found.error_message else ""
            error = BrokerError(found.error_code, f"coordinator of group {group_id}{told}")
            if not error.retriable:
                raise error
            retry.again(error)

    def forget_coordinator(self, group_id: str, node: Node) -> None:
        """The next call looks the coordinator up again, unless that happened already."""
        with self._lock:
            if self._coordinators.get(group_id) == node:
                del self._coordinators[group_id]

    def metadata(
        self, topics: Iterable[str] | None = None, *, refresh: bool = False, timeout_ms: int | None = None
    ) -> ClusterMetadata:
        """Brokers and the asked topics (None: all), at most metadata.max.age.ms old, or fresh with `refresh`.

        A topic that does not exist is no error here: it stands in the view's `errors`. Topics are never created.

        Raises: as `call_any`.
        """
        names = None if topics is None else sorted(set(topics))
        if refresh or not self._is_cached(names):
            # before Metadata v4 a request could not say "do not create"
            request = MetadataRequest(
                topics=None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=False,
            )
            self._remember(read_metadata(self.call_any(request, timeout_ms, floor=4)), names)
        with self._lock:
            chosen = {
                name: known for name, (_, known) in self._topics.items() if names is None or name in set(names)
            }
            return ClusterMetadata(
                dict(self._nodes),
                {name: known for name, known in chosen.items() if isinstance(known, TopicInfo)},
                self._controller_id,
                self._cluster_id,
                {name: known for name, known in chosen.items() if not isinstance(known, TopicInfo)},
            )

    @staticmethod
    def node_address(node: Node) -> Address:
        return Address(node.host, node.port)

    def _is_cached(self, names: Sequence[str] | None) -> bool:
        oldest = self.clock.now_ms() - self.settings.metadata_max_age_ms
        with self._lock:
            if not self._nodes:
                return False
            if names is None:
                return self._all_topics_ms is not None and self._all_topics_ms > oldest
            # what did not exist is always asked again: it may exist now
            return all(
                name in self._topics and self._topics[name][0] > oldest and isinstance(self._topics[name][1], TopicInfo)
                for name in names
            )

    def _remember(self, view: ClusterMetadata, names: Sequence[str] | None) -> None:
        now_ms = self.clock.now_ms()
        with self._lock:
            self._nodes = dict(view.nodes)
            self._controller_id = view.controller_id
            self._cluster_id = view.cluster_id
            if names is None:
                self._topics = {}
                self._all_topics_ms = now_ms
            for known in (view.topics, view.errors):
                self._topics.update({name: (now_ms, value) for name, value in known.items()})  # type: ignore[misc]

    def _addresses(self) -> list[Address]:
        with self._lock:
            nodes = [self.node_address(node) for node in self._nodes.values()]
        self.rng.shuffle(nodes)
        return list(dict.fromkeys([*nodes, *self._bootstrap]))

    def borrow(self, address: Address) -> BrokerConnection:
        """A pooled connection, or a new one; it must be given back with `give_back`, or closed."""
        oldest_ms = self.clock.now_ms() - self.settings.connections_max_idle_ms
        stale: list[BrokerConnection] = []
        chosen: BrokerConnection | None = None
        with self._lock:
            if self._closed:
                raise ClientClosedError("this client of the cluster is closed")
            pool = self._idle[address]
            while pool and chosen is None:
                candidate = pool.pop()
                if candidate.last_used_ms < oldest_ms:
                    stale.append(candidate)
                else:
                    chosen = candidate
        for connection in stale:
            connection.close()
        return chosen or self.connect(address)

    def _drop_idle(self, address: Address) -> None:
        with self._lock:
            dropped = self._idle.pop(address, [])
        for connection in dropped:
            connection.close()

    def give_back(self, connection: BrokerConnection) -> None:
        """Takes a borrowed connection back, with no request of it unanswered."""
        if connection.closed:
            return
        with self._lock:
            pool = self._idle[connection.address]
            if not self._closed and len(pool) < _MAX_IDLE_PER_ADDRESS:
                pool.append(connection)
                return
        connection.close()


def _unreachable(reasons: dict[Address, str]) -> GroupSourceError:
    listed = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
    return NetworkError(f"no Kafka broker can be reached, check kafka.bootstrap.servers. Tried {listed}")
