"""A consumer group with injected rebalance causes, and the expected records."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.raw_broker import RawConnection
from support.waiting import wait_until

from spark_groupsource.client.admin import create_partitions, describe_groups, remove_members
from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.errors import ErrorCode
from spark_groupsource.model import Subscription, TopicPartition
from spark_groupsource.wire.consumer_protocol import decode_assignment, encode_subscription
from spark_groupsource.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)

SCRIPT = Path(__file__).with_name("causes_member.py")
SESSION_MS, POLL_MS = 6_000, 9_000
STATIC_SESSION_MS = 90_000
START_TIMEOUT_S = 90


class Expected(NamedTuple):
    """One injected rebalance; the client is None where the injection does not decide it."""

    cause: str
    client: str | None


class Injection(NamedTuple):
    """The rebalances that one action causes, between two times in epoch milliseconds."""

    group: str
    action: str
    from_ms: int
    to_ms: int
    expected: Sequence[Expected]


class World(NamedTuple):
    """How the members of a group are configured."""

    libraries: tuple[str, ...]
    assignors: tuple[str, ...]
    is_static: bool = False
    commit_s: float = 0.5
    heartbeat_ms: int = 500

    @property
    def session_ms(self) -> int:
        """A static member must have time to be started again."""
        return STATIC_SESSION_MS if self.is_static else SESSION_MS


class Member:
    """A member in a process that obeys commands."""

    def __init__(self, library: str, config: dict[str, Any]) -> None:
        self.library = library
        self.config = config
        with open(config["log"], "a") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), json.dumps({**config, "library": library})],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )

    @property
    def client_id(self) -> str:
        # members of this package are numbered
        return f"{self.config['client_id']}-0" if self.library == "own" else str(self.config["client_id"])

    def command(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        """Leaves the group and ends."""
        self.command("close")
        self._wait()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self._wait()

    def _wait(self) -> None:
        self.process.wait(30)
        assert self.process.stdin is not None
        self.process.stdin.close()


class StuckMember:
    """A member that sends heartbeats, and stops to rejoin when it is `stuck`."""

    def __init__(self, bootstrap: str, group: str, topics: Sequence[str], world: World) -> None:
        self._bootstrap, self._group, self._topics, self._world = bootstrap, group, topics, world
        self.client_id = "test"
        self.is_stuck = self.is_ending = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.is_ending = True
        self._thread.join(30)

    def _run(self) -> None:
        with RawConnection(self._bootstrap) as connection:
            member_id, generation, owned = self._join(connection, "")
            committed = 0.0
            while not self.is_ending:
                beat = HeartbeatRequest(
                    group_id=self._group, generation_id=generation, member_id=member_id, group_instance_id=None
                )
                code = connection.call(beat, 4).error_code
                if code == ErrorCode.REBALANCE_IN_PROGRESS and not self.is_stuck:
                    member_id, generation, owned = self._join(connection, member_id)
                elif code and code != ErrorCode.REBALANCE_IN_PROGRESS:
                    return
                if self._world.commit_s and time.monotonic() - committed > self._world.commit_s:
                    committed = time.monotonic()
                    self._commit(connection, member_id, generation, owned)
                time.sleep(0.3)
            entry = LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=None, reason="closed")
            connection.call(LeaveGroupRequest(group_id=self._group, members=[entry]), 5)

    def _join(self, connection: RawConnection, member_id: str) -> tuple[str, int, tuple[TopicPartition, ...]]:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        metadata = encode_subscription(Subscription(tuple(self._topics)), 1)
        while True:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=POLL_MS,
                member_id=member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocols=[protocol(name=name, metadata=metadata) for name in self._world.assignors],
                reason=None,
            )
            joined = connection.call(request, 7)
            member_id = joined.member_id
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue
            assert not joined.error_code and joined.leader != member_id, joined
            assigned = SyncGroupRequest(
                group_id=self._group,
                generation_id=joined.generation_id,
                member_id=member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocol_name=joined.protocol_name,
                assignments=[],
            )
            synced = connection.call(assigned, 5)
            if not synced.error_code:
                owned = decode_assignment(bytes(synced.assignment)).partitions if synced.assignment else ()
                return member_id, joined.generation_id, owned

    def _commit(
        self, connection: RawConnection, member_id: str, generation: int, owned: Sequence[TopicPartition]
    ) -> None:
        row = OffsetCommitRequest.OffsetCommitRequestTopic
        part = row.OffsetCommitRequestPartition
        topics = [
            row(
                name=tp.topic,
                partitions=[
                    part(
                        partition_index=tp.partition,
                        committed_offset=1,
                        committed_leader_epoch=-1,
                        committed_metadata="",
                    )
                ],
            )
            for tp in owned
        ]
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=None,
            topics=topics,
        )
        connection.call(request, 8)


class CausedGroup:
    """Members of one group, and actions that cause rebalances; each waits until the group is Stable again."""

    def __init__(
        self,
        bootstrap: str,
        cluster: Cluster,
        name: str,
        topics: Sequence[str],
        world: World,
        seed: int,
        log: Path,
        settle_s: float,
    ) -> None:
        self.name, self.world, self.topics = name, world, list(topics)
        self._bootstrap, self._cluster, self._log = bootstrap, cluster, log
        self._random = random.Random(seed)
        self._members: dict[str, Member] = {}
        self._number = 0
        self._settle_s = settle_s
        self._partitions = 6
        self._stuck: StuckMember | None = None
        self.injections: list[Injection] = []

    # -- actions -------------------------------------------------------------------------------------------------

    def actions(self) -> list[Callable[[], list[Expected]]]:
        """Returns the actions that are possible now."""
        if self._stuck is not None:
            return [self.join_timed_out]
        count, libraries = len(self._members), {m.library for m in self._members.values()}
        is_static = self.world.is_static
        found: list[Callable[[], list[Expected]]] = []
        if count < 4:
            found += [self.join]
        if count >= 2:
            found += [self.remove]
            if not is_static:
                found += [self.kill, self.leave, self.leave, self.exceed_poll, self.pause]
                if self.world.assignors == ("range",):
                    found += [self.join_stuck]
            found += [self.subscribe, self.add_partitions]
            if libraries <= {"own"} and not is_static:
                found += [self.rejoin]
        if is_static and count:
            found += [self.replace, self.replace]
            if len(self.world.assignors) > 1:
                found += [self.change_assignor]
        return found

    def run(self, action: Callable[[], list[Expected]]) -> None:
        """Performs one action and records what it caused."""
        from_ms = int(time.time() * 1_000)
        expected = action()
        self._wait_stable()
        self.injections.append(Injection(self.name, action.__name__, from_ms, int(time.time() * 1_000), expected))
        # every member commits a few times
        time.sleep(self._settle_s * self._random.uniform(0.7, 1.7) + 2 * self.world.commit_s)

    def join(self) -> list[Expected]:
        return [Expected("JOINED", self._start().client_id)]

    def leave(self) -> list[Expected]:
        member = self._take()
        member.close()
        return [Expected("LEFT", member.client_id)]

    def kill(self) -> list[Expected]:
        member = self._take()
        member.kill()
        return [Expected("SESSION_EXPIRED", member.client_id)]

    def pause(self) -> list[Expected]:
        member = self._choose()
        member.signal(signal.SIGSTOP)
        wait_until(lambda: len(self._described()) == len(self._members) - 1, "the member expires", 40, 0.2)
        time.sleep(self._random.uniform(0, 3))
        member.signal(signal.SIGCONT)
        wait_until(lambda: len(self._described()) == len(self._members), "the member returns", 40, 0.2)
        return [Expected("SESSION_EXPIRED", member.client_id), Expected("JOINED", member.client_id)]

    def exceed_poll(self) -> list[Expected]:
        member = self._choose()
        before = {m.member_id for m in self._described()}
        member.command(f"slow {POLL_MS / 1_000 + 3}")
        wait_until(lambda: not before <= {m.member_id for m in self._described()}, "the member leaves", 40, 0.2)
        wait_until(lambda: len(self._described()) == len(self._members), "the member returns", 40, 0.2)
        return [Expected("POLL_EXCEEDED", member.client_id), Expected("JOINED", member.client_id)]

    def remove(self) -> list[Expected]:
        member = self._choose()
        (described,) = [m for m in self._described() if m.client_id == member.client_id]
        if self.world.is_static:
            remove_members(self._cluster, self.name, group_instance_ids=[str(described.group_instance_id)])
        else:
            remove_members(self._cluster, self.name, [described.member_id])
        if not self.world.is_static:
            wait_until(
                lambda: (
                    described.member_id not in {m.member_id for m in self._described()}
                    and len(self._described()) == len(self._members)
                ),
                "the member returns",
                40,
                0.1,
            )
            return [Expected("REMOVED_BY_OPERATOR", member.client_id), Expected("JOINED", member.client_id)]
        self._members.pop(member.client_id).kill()
        return [Expected("REMOVED_BY_OPERATOR", member.client_id)]

    def subscribe(self) -> list[Expected]:
        member = self._choose()
        is_both = len(member.config["topics"]) == 2
        member.config["topics"] = self.topics[:1] if is_both else self.topics
        member.command(f"subscribe {','.join(member.config['topics'])}")
        self._wait_rebalance()
        return [Expected("SUBSCRIPTION_CHANGED", member.client_id)]

    def add_partitions(self) -> list[Expected]:
        self._partitions += 1
        create_partitions(self._cluster, {self.topics[0]: self._partitions})
        self._wait_rebalance()
        return [Expected("PARTITIONS_CHANGED", None)]

    def rejoin(self) -> list[Expected]:
        for member in self._members.values():
            # the leader starts the rebalance; a JoinGroup of another member of a stable group does not
            member.command("rejoin")
        self._wait_rebalance()
        return [Expected("LEADER_REJOINED", None)]

    def replace(self) -> list[Expected]:
        member = self._restart(None)
        return [Expected("STATIC_REPLACED", member.client_id)]

    def change_assignor(self) -> list[Expected]:
        member = self._choose()
        names = member.config["assignors"]
        member = self._restart(member, names[1:] if len(names) > 1 else list(self.world.assignors))
        return [Expected("ASSIGNOR_CHANGED", member.client_id)]

    def join_stuck(self) -> list[Expected]:
        self._stuck = StuckMember(self._bootstrap, self.name, self.topics[:1], self.world)
        return [Expected("JOINED", self._stuck.client_id)]

    def join_timed_out(self) -> list[Expected]:
        assert self._stuck is not None
        stuck, self._stuck = self._stuck, None
        stuck.is_stuck = True
        self._start()
        self._wait_stable()
        stuck.stop()
        return [Expected("JOIN_TIMED_OUT", stuck.client_id)]

    def stop(self) -> None:
        """Kills the members."""
        if self._stuck is not None:
            self._stuck.stop()
        for member in self._members.values():
            member.kill()
        self._cluster.close()

    # -- members -------------------------------------------------------------------------------------------------

    def _start(self, old: Member | None = None, assignors: Sequence[str] | None = None) -> Member:
        if old is None:
            self._number += 1
            library, client_id = self._random.choice(self.world.libraries), f"c{self._number}"
        else:
            library, client_id = old.library, old.config["client_id"]
        config = {
            "bootstrap": self._bootstrap,
            "group": self.name,
            "topics": self.topics[:1] if old is None else old.config["topics"],
            "client_id": client_id,
            "instance_id": f"{self.name}-{client_id}" if self.world.is_static else None,
            "assignors": list(assignors or (self.world.assignors if old is None else old.config["assignors"])),
            "session_ms": self.world.session_ms,
            "heartbeat_ms": self.world.heartbeat_ms,
            "poll_ms": max(POLL_MS, self.world.session_ms),
            "commit_s": self.world.commit_s,
            "log": str(self._log),
        }
        member = Member(library, config)
        self._members[member.client_id] = member
        return member

    def _restart(self, member: Member | None, assignors: Sequence[str] | None = None) -> Member:
        """Kills a static member and starts it again within its session timeout."""
        member = member or self._choose()
        before = {m.member_id for m in self._described()}
        member.kill()
        self._start(member, assignors)
        wait_until(lambda: before != {m.member_id for m in self._described()}, "the member is replaced", 80, 0.1)
        return member

    def _choose(self) -> Member:
        return self._members[self._random.choice(sorted(self._members))]

    def _take(self) -> Member:
        return self._members.pop(self._choose().client_id)

    def _described(self) -> Sequence[Any]:
        return describe_groups(self._cluster, [self.name])[self.name].members

    def _wait_rebalance(self) -> None:
        def is_rebalancing() -> bool:
            group = describe_groups(self._cluster, [self.name])[self.name]
            now = [m.assignment for m in group.members] if group.state == "Stable" else None
            return now is None or {m.member_id: m.assignment for m in group.members} != before

        before = {m.member_id: m.assignment for m in self._described()}
        try:
            wait_until(is_rebalancing, f"{self.name} rebalances", 5, 0.005)
        except AssertionError:
            # it was over between two requests
            return

    def _wait_stable(self) -> None:
        """Waits until the group is Stable with the expected members and their assignments stay the same."""
        names = [*self._members, *([] if self._stuck is None else [self._stuck.client_id])]

        def state() -> Any:
            group = describe_groups(self._cluster, [self.name])[self.name]
            found = [m.client_id for m in group.members]
            is_stable = group.state == "Stable" and sorted(found) == sorted(names)
            is_stable = is_stable and (not self.world.is_static or self._has_current_members(group.members))
            assigned = [tp for m in group.members for tp in m.assignment]
            # with cooperative-sticky, the second rebalance assigns the rest
            if not is_stable or len(assigned) < self._partitions:
                return None
            return sorted((m.member_id, m.assignment) for m in group.members)

        started, last, since = time.monotonic(), None, time.monotonic()
        while time.monotonic() - since < self._settle_s or last is None:
            now = state()
            if now is None or now != last:
                last, since = now, time.monotonic()
            if time.monotonic() - started > START_TIMEOUT_S:
                group = describe_groups(self._cluster, [self.name])[self.name]
                raise AssertionError(f"group {self.name} is {group.state}, not Stable with {sorted(names)}: {group}")
            time.sleep(0.1)

    def _has_current_members(self, members: Sequence[Any]) -> bool:
        return all(m.group_instance_id for m in members)
