"""One run of a schedule, then a recovery phase without faults.

Within `RECOVERY_TIMEOUT_MS` after the last fault every running client must be in a Stable group, every subscribed
partition must have one owner, and every request must have its response.
"""

from __future__ import annotations

from typing import Any, Callable

from simulation.broker import Broker
from simulation.checks import InvariantViolation
from simulation.client_base import PARTITIONS, SESSION_MS, Client, Spec
from simulation.clients import EagerConsumer, PackageMember
from simulation.clock import SimulationClock
from simulation.group_requests import Versions, commit_request, leave_request, transactional_request
from simulation.invariants import persistent_state
from simulation.network import Link, Trace
from simulation.schedule import HORIZON_MS, Event, Schedule

from spark_groupsource.broker.group import GroupConfig, GroupShard
from spark_groupsource.broker.group.group_states import EMPTY, STABLE
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import TopicPartition
from spark_groupsource.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
)

RECOVERY_TIMEOUT_MS = 8_000
_RESTART_MS = 200
_LOOK_MS = 20
_NO_LIMIT = 1_000


class SimulationRun:
    """Clients, network and broker of one run."""

    def __init__(self, schedule: Schedule, trace: Trace | None = None) -> None:
        self.schedule = schedule
        self.time = SimulationClock()
        sizes = [event[2] for event in schedule if event[1] == "config"]
        self.max_size = int(str(sizes[-1])) if sizes else _NO_LIMIT
        config = GroupConfig(
            group_min_session_timeout_ms=10,
            group_initial_rebalance_delay_ms=40,
            group_max_size=self.max_size,
            group_new_member_join_timeout_ms=2 * SESSION_MS,
            offsets_retention_minutes=1,
        )
        self.broker = Broker(self.time, config)
        self.clients: dict[str, Client] = {}
        self._links: dict[str, Link] = {}
        self._trace = trace
        self._offsets = 0
        self._next_look_ms = 0

    def run(self) -> None:
        """Raises Breach, or whatever the coordinator raises."""
        for event in self.schedule:
            self.time.call_at(int(str(event[0])), self._happens, event)
        self.time.run(HORIZON_MS)
        self._become_calm()
        self.time.run(HORIZON_MS + RECOVERY_TIMEOUT_MS, self._is_over)
        if not self._all_is_well():
            raise InvariantViolation(f"liveness: after {RECOVERY_TIMEOUT_MS} ms of calm {self._misery()}")
        self.broker.checks.check_all_responses_sent()
        self._check_restart()

    # --- for clients

    def link(self, name: str) -> Link:
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = Link(self.time, self.broker, name, self._trace)
        return link

    def next_offset(self) -> int:
        """Returns an offset that no other commit of the run has."""
        self._offsets += 1
        return self._offsets

    def fenced(self, client: Client) -> None:
        """Another process has its instance id, or its own request was delayed."""
        if client.instance_id is None:
            raise InvariantViolation(f"fenced: {client.name} has no instance id")
        client.stop("fenced")
        self.time.call_in(_RESTART_MS, self._restart, client)

    def refused(self, client: Client, error: ErrorCode) -> None:
        if error is ErrorCode.GROUP_MAX_SIZE_REACHED and self.max_size < _NO_LIMIT:
            client.stop("too many")
        elif error is ErrorCode.UNKNOWN_SERVER_ERROR:  # as for a record that is too large for the log
            client.stop("failed")
            self.time.call_in(_RESTART_MS, self._restart, client)
        else:
            raise InvariantViolation(f"refused: {client.name} of group {client.spec.group_id} got {error.name}")

    def _restart(self, client: Client) -> None:
        identity = (client.spec.group_id, client.instance_id)
        living = [other for other in self.clients.values() if not other.stopped]
        taken = client.instance_id and any((other.spec.group_id, other.instance_id) == identity for other in living)
        if self.clients[client.name] is client and not taken:
            self._start(client.name, client.spec)

    def _start(self, name: str, spec: Spec) -> None:
        if name in self.clients:
            self.clients[name].stop("replaced")
        client = self.clients[name] = (PackageMember if spec.make == "ours" else EagerConsumer)(self, name, spec)
        client.go()

    # --- events

    def _happens(self, event: Event) -> None:
        if self._trace is not None:
            self._trace(f"{self.time.now_ms} ---- {' '.join(map(str, event[1:]))}")
        kind, args = str(event[1]).replace("-", "_"), event[2:]
        if args and args[0] in self.clients and kind != "start":
            client = self.clients[str(args[0])]
            if not client.stopped:
                getattr(self, f"_on_{kind}")(client, *args[1:])
        elif not str(args[0] if args else "").startswith("m") or kind == "start":
            getattr(self, f"_on_{kind}")(*args)

    def _on_config(self, max_size: int) -> None:
        """All topics, fixed for the run."""

    def _on_start(self, name: str, *spec: Any) -> None:
        self._start(name, Spec(*spec))

    def _on_leave(self, client: Client) -> None:
        client.leave()

    def _on_kill(self, client: Client) -> None:
        client.stop("killed")

    def _on_pause(self, client: Client, ms: int) -> None:
        client.paused_until_ms = self.time.now_ms + ms

    def _on_cut(self, client: Client, ms: int) -> None:
        self.link(client.name).cut_until_ms = self.time.now_ms + ms

    def _on_topics(self, client: Client, topics: str) -> None:
        if client.instance_id is None:
            client.resubscribe(topics)
            client.go()

    def _on_lose_request(self, client: Client) -> None:
        self.link(client.name).arm("lose-request", 0)

    def _on_lose_response(self, client: Client) -> None:
        self.link(client.name).arm("lose-response", 0)

    def _on_slow_request(self, client: Client, ms: int) -> None:
        self.link(client.name).arm("slow-request", ms)

    def _on_slow_response(self, client: Client, ms: int) -> None:
        self.link(client.name).arm("slow-response", ms)

    def _on_repeat(self, client: Client, ms: int) -> None:
        self.link(client.name).arm("repeat", ms)

    def _on_stale(self, client: Client) -> None:
        client.act_stale()

    def _on_txn_commit(self, client: Client, producer_id: int) -> None:
        client.act_transactionally(producer_id)

    def _on_txn_simple(self, group_id: str, topic: str, producer_id: int) -> None:
        offsets = {TopicPartition(topic, 0): self.next_offset()}
        self._administer(transactional_request(group_id, "", -1, None, offsets, producer_id), 3)

    def _on_txn_end(self, producer_id: int, how: str) -> None:
        self.broker.end_transaction(producer_id, how == "commit")

    def _on_crash(self, load_ms: int, keep: str) -> None:
        self.broker.crash(load_ms, keep == "keep")
        for client in self.clients.values():
            client.disconnected()

    def _on_move(self, load_ms: int) -> None:
        self.broker.move(load_ms)

    def _on_fail_appends(self, ms: int, error: str) -> None:
        self.broker.fails_until_ms = self.time.now_ms + ms
        self.broker.append_error = ErrorCode[error]

    def _on_slow_appends(self, ms: int, delay_ms: int) -> None:
        self.broker.late_until_ms = self.time.now_ms + ms
        self.broker.append_delay_ms = delay_ms

    def _on_delete_group(self, group_id: str) -> None:
        self._administer(DeleteGroupsRequest(groups_names=[group_id]), 2)

    def _on_delete_offsets(self, group_id: str, topic: str) -> None:
        topic_class = OffsetDeleteRequest.OffsetDeleteRequestTopic
        partitions = [topic_class.OffsetDeleteRequestPartition(partition_index=p) for p in range(PARTITIONS[topic])]
        topics = [topic_class(name=topic, partitions=partitions)]
        self._administer(OffsetDeleteRequest(group_id=group_id, topics=topics), 0)

    def _on_remove_instance(self, group_id: str, instance_id: str) -> None:
        self._administer(leave_request(group_id, "", Versions.of(9), instance_id), 5)

    def _on_simple_commit(self, group_id: str, topic: str) -> None:
        offsets = {TopicPartition(topic, 0): self.next_offset()}
        self._administer(commit_request(group_id, "", -1, None, offsets), 8)

    def _on_look(self, group_id: str) -> None:
        self._administer(DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False), 5)
        self._administer(ListGroupsRequest(states_filter=[], types_filter=[]), 5)

    def _on_drop_topic(self, topic: str) -> None:
        self.broker.drop_partitions([TopicPartition(topic, number) for number in range(PARTITIONS[topic])])

    def _on_expire_offsets(self) -> None:
        self.broker.expire_offsets()

    def _administer(self, request: Any, version: int) -> None:
        self.broker.receive(request, version, "admin", lambda response: None)

    # --- recovery

    def _become_calm(self) -> None:
        self.broker.fails_until_ms = self.broker.late_until_ms = 0
        for link in self._links.values():
            link.repair()

    def _is_over(self) -> bool:
        """Whether every client has recovered; checked periodically."""
        if self.time.now_ms < self._next_look_ms:
            return False
        self._next_look_ms = self.time.now_ms + _LOOK_MS
        return self._all_is_well()

    def _all_is_well(self) -> bool:
        living = [client for client in self.clients.values() if not client.stopped]
        if not all(client.settled for client in living):
            return False
        broker = self.broker
        if not broker.is_loaded or broker.held or broker.waiting:
            return False
        return all(self._is_well(group_id, living) for group_id in "abc")

    def _is_well(self, group_id: str, living: list[Client]) -> bool:
        clients = [client for client in living if client.spec.group_id == group_id]
        group = self.broker.shard.group(group_id)
        if not clients:
            return group is None or (group.state is EMPTY and not group.pending_joins)
        if group is None or group.state is not STABLE:
            return False
        if {client.member_id for client in clients} != group.members.keys():
            return False
        owned = [partition for client in clients for partition in client.owned]
        topics = {topic for client in clients for topic in client.topics}
        wanted = {TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS[topic])}
        return (
            len(owned) == len(wanted)
            and set(owned) == wanted
            and all(client.generation_id == group.generation_id for client in clients)
        )

    def _misery(self) -> str:
        groups = [
            f"group {g.group_id} is {g.state.value} in generation {g.generation_id} with {sorted(g.members)}"
            for g in self.broker.shard.groups.values()
        ]
        clients = [
            f"{c.name} ({c.spec.make}) {'settled' if c.settled else 'unsettled'} as {c.member_id!r} in "
            f"{c.generation_id} owns {', '.join(map(str, c.owned)) or 'nothing'}"
            for c in self.clients.values()
            if not c.stopped
        ]
        waiting = [f"{entry.request} has no response" for entry in self.broker.waiting.values()]
        return "; ".join(groups + clients + waiting)

    def _check_restart(self) -> None:
        """Checks that a coordinator that loads the log, compacted if it has no transaction, restores every group."""
        fresh = GroupShard(0, self.broker.config)
        log = self.broker.log
        if all(entry.producer_id < 0 for entry in log):
            log = list({entry.key: entry for entry in log}.values())
        for entry in log:
            entry.replay_into(fresh)
        fresh.on_loaded(self.time.instant())
        for group_id in "abc":
            live, found = self.broker.shard.group(group_id), fresh.group(group_id)
            if live is None or found is None or group_id in self.broker.checks.unstored:
                continue
            if persistent_state(live) != persistent_state(found):
                states = f"live {persistent_state(live)}, after a restart {persistent_state(found)}"
                raise InvariantViolation(f"replay: {states}")


def run(schedule: Schedule, trace: Callable[[str], None] | None = None) -> str | None:
    """Returns the violation, starting with one word for the invariant; None if there is none."""
    try:
        SimulationRun(schedule, trace).run()
    except InvariantViolation as breach:
        return str(breach)
    except Exception as error:  # any exception of the coordinator is a failure
        return f"{type(error).__name__}: {error}"
    return None
