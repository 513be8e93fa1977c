"""A consumer group with injected rebalance causes, and the expected records."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import kafka
from chaos.caused_members import SLOW_ASSIGNOR, Member, StuckMember, World, join_request, leave
from support.raw_broker import RawConnection
from support.removed_members import remove_members
from support.waiting import wait_until

from spark_groupsource.client.admin import create_partitions, describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings


class Expected(NamedTuple):
    """One injected rebalance; client and member id are None where the injection does not decide them."""

    cause: str
    client: str | None
    member_id: str | None = None


class Injection(NamedTuple):
    """The rebalances that one action causes, between two times in epoch milliseconds.

    Attributes:
        is_ordered: false if changes were made at the same time, so that any of them may be the first, and some may
            share a rebalance.
    """

    group: str
    action: str
    from_ms: int
    to_ms: int
    expected: Sequence[Expected]
    is_ordered: bool = True


Action = Callable[[], list[Expected]]
# actions with changes at the same time
_AT_ONCE = ("join_and_leave", "join_both", "join_briefly", "restart_all")


class CausedGroup:
    """Members of one group, and actions that cause rebalances; each waits until the group is Stable again."""

    def __init__(
        self,
        settings: ClientSettings,
        topics: Sequence[str],
        world: World,
        seed: int,
        log: Path,
        settle_s: float,
    ) -> None:
        """The name of the group is the stem of `log`, which receives the output of its members."""
        self.name, self.world, self.topics = log.stem, world, list(topics)
        self._cluster, self._log = ClusterClient(settings.bootstrap, settings), log
        self._bootstrap = ",".join(map(str, settings.bootstrap))
        self._random = random.Random(seed)
        self._members: dict[str, Member] = {}
        self._ids: dict[str, str] = {}
        self._number = 0
        self._settle_s = settle_s
        self._partitions = 6
        self._stuck: StuckMember | None = None
        self.injections: list[Injection] = []

    # -- actions -------------------------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        """Returns the actions that are possible now."""
        if self._stuck is not None:
            return [self.join_timed_out]
        members, is_static = self._members.values(), self.world.is_static
        count, libraries = len(members), {m.library for m in members}
        found: list[Action] = [self.join] * (count < (2 if "spark" in self.world.libraries else 4))
        if count >= 2:
            found += [self.remove, self.add_partitions]
            if any(m.can_subscribe for m in members):
                found += [self.subscribe]
            if not is_static:
                found += [self.kill, self.leave, self.terminate, self.pause, self.restart_all]
                if any(m.has_poll_timer for m in members):
                    found += [self.exceed_poll]
                if self.world.assignors == ("range",) and libraries != {"spark"}:
                    found += [self.join_stuck, self.join_briefly]
                if count < 4 and "spark" not in libraries:
                    found += [self.join_and_leave, self.join_both]
            if libraries <= {"own", "java"} and not is_static:
                found += [self.rejoin]
        if is_static and count:
            found += [self.replace, self.replace]
            if len(self.world.assignors) > 1:
                found += [self.change_assignor]
        return found

    def run(self, action: Action) -> None:
        """Performs one action and records what it caused."""
        from_ms = int(time.time() * 1_000)
        expected = action()
        self.wait_stable()
        to_ms, is_ordered = int(time.time() * 1_000), action.__name__ not in _AT_ONCE
        self.injections.append(Injection(self.name, action.__name__, from_ms, to_ms, expected, is_ordered))
        self._let_commit()

    def begin_rebalance(self) -> None:
        """Starts a rebalance and waits until the members have joined; the assignor of the world is slow."""
        for member in self._members.values():
            member.command("rejoin")
        self._wait(
            lambda: describe_groups(self._cluster, [self.name])[self.name].state == "CompletingRebalance",
            "the members have joined",
        )

    def settle(self, what: str, from_ms: int) -> None:
        """Waits until the group is Stable after a restart of its coordinator, and records what that caused."""
        self.wait_stable()
        expected = [Expected("COORDINATOR_MOVED", None)]
        if self.world.assignors == (SLOW_ASSIGNOR,):
            # the first change, after which the coordinator moved: `begin_rebalance`
            expected.append(Expected("LEADER_REJOINED", None))
        self.injections.append(Injection(self.name, what, from_ms, int(time.time() * 1_000), expected))
        self._let_commit()

    def _let_commit(self) -> None:
        # every member commits a few times
        time.sleep(self._settle_s * self._random.uniform(0.7, 1.7) + 2 * self.world.commit_s)

    def join(self) -> list[Expected]:
        return [Expected("JOINED", self._start().client_id)]

    def leave(self) -> list[Expected]:
        name, member = self._choose()
        member.close()
        return [self._gone("LEFT", name)]

    def terminate(self) -> list[Expected]:
        name, member = self._choose()
        member.terminate()
        return [self._gone("LEFT", name)]

    def kill(self) -> list[Expected]:
        name, member = self._choose()
        member.kill()
        return [self._gone("SESSION_EXPIRED", name)]

    def pause(self) -> list[Expected]:
        name, member = self._choose()
        expected = [self._expected("SESSION_EXPIRED", name), Expected("JOINED", member.client_id)]
        member.signal(signal.SIGSTOP)
        self._wait(lambda: len(self._described()) == len(self._members) - 1, "the member expires")
        time.sleep(self._random.uniform(0, 3))
        member.signal(signal.SIGCONT)
        self._wait(lambda: len(self._described()) == len(self._members), "the member returns")
        return expected

    def exceed_poll(self) -> list[Expected]:
        name, member = self._choose(lambda m: m.has_poll_timer)
        expected = [self._expected("POLL_EXCEEDED", name), Expected("JOINED", member.client_id)]
        before = {m.member_id for m in self._described()}
        member.command(f"slow {self.world.poll_ms / 1_000 + 3}")
        self._wait(lambda: not before <= {m.member_id for m in self._described()}, "the member leaves")
        self._wait(lambda: len(self._described()) == len(self._members), "the member returns")
        return expected

    def remove(self) -> list[Expected]:
        name, member = self._choose()
        described = next(m for m in self._described() if m.member_id == self._ids.get(name, m.member_id))
        removed = self._expected("REMOVED_BY_OPERATOR", name)
        self._remove(described)
        if self.world.is_static:
            self._members.pop(name).kill()
            return [removed]
        self._wait(lambda: described.member_id not in {m.member_id for m in self._described()}, "the member is removed")
        self._wait(lambda: len(self._described()) == len(self._members), "the member returns")
        return [removed, Expected("JOINED", member.client_id)]

    def _remove(self, described: Any) -> None:
        """Removes a member with this package or with kafka-python, whose client ids are then the same."""
        if self._random.random() < 0.5 and "kafka-python" in self.world.libraries:
            admin = kafka.KafkaAdminClient(bootstrap_servers=self._bootstrap, client_id=described.client_id)
            instance_id = described.group_instance_id
            entry = kafka.admin.MemberToRemove(None if instance_id else described.member_id, instance_id)
            admin.remove_group_members(self.name, [entry])
            admin.close()
        elif described.group_instance_id is not None:
            remove_members(self._cluster, self.name, group_instance_ids=[str(described.group_instance_id)])
        else:
            remove_members(self._cluster, self.name, [described.member_id])

    def subscribe(self) -> list[Expected]:
        name, member = self._choose(lambda m: m.can_subscribe)
        is_both = len(member.config["topics"]) == 2
        member.config["topics"] = self.topics[:1] if is_both else self.topics
        member.command(f"subscribe {','.join(member.config['topics'])}")
        self._wait_rebalance()
        return [self._expected("SUBSCRIPTION_CHANGED", name)]

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
        _, member = self._restart(None)
        return [Expected("STATIC_REPLACED", member.client_id)]

    def change_assignor(self) -> list[Expected]:
        name, member = self._choose()
        names = member.config["assignors"]
        self._restart(name, names[1:] if len(names) > 1 else list(self.world.assignors))
        return [Expected("ASSIGNOR_CHANGED", member.client_id)]

    def join_stuck(self) -> list[Expected]:
        self._stuck = StuckMember(self._bootstrap, self.name, self.topics[:1], self.world)
        return [Expected("JOINED", self._stuck.client_id)]

    def join_timed_out(self) -> list[Expected]:
        assert self._stuck is not None
        stuck, self._stuck = self._stuck, None
        stuck.is_stuck = True
        self._start()
        self.wait_stable()
        stuck.stop()
        return [Expected("JOIN_TIMED_OUT", stuck.client_id)]

    def join_briefly(self) -> list[Expected]:
        """A member joins, and leaves before the others have joined."""
        with RawConnection(self._bootstrap) as joining, RawConnection(self._bootstrap) as leaving:
            request = join_request(self.name, "", self.topics[:1], self.world)
            member_id = joining.call(request, 7).member_id
            joining.post(join_request(self.name, member_id, self.topics[:1], self.world), 7)
            leave(leaving, self.name, member_id)
        return [Expected("JOINED", "test", member_id), Expected("LEFT", "test", member_id)]

    # -- changes at the same time

    def join_and_leave(self) -> list[Expected]:
        name, member = self._choose()
        joined = Expected("JOINED", self._start().client_id)
        if member.can_obey:
            time.sleep(self._random.uniform(0, 2))
        member.close()
        return [joined, self._gone("LEFT", name)]

    def join_both(self) -> list[Expected]:
        return [Expected("JOINED", self._start().client_id) for _ in range(2)]

    def restart_all(self) -> list[Expected]:
        """A rolling restart: each member is stopped and started again with its client id."""
        expected = []
        for name in sorted(self._members):
            old = self._members[name]
            if self._random.random() < 0.5:
                old.close()
            else:
                old.terminate()
            expected += [self._gone("LEFT", name), Expected("JOINED", self._start(name, old).client_id)]
            self.wait_stable()
        return expected

    def stop(self) -> None:
        """Kills the members."""
        if self._stuck is not None:
            self._stuck.stop()
        for member in self._members.values():
            member.kill()
        self._cluster.close()

    # -- members -------------------------------------------------------------------------------------------------

    def _start(self, name: str | None = None, old: Member | None = None, assignors: Sequence[str] = ()) -> Member:
        if name is None:
            self._number += 1
            name = f"c{self._number}"
        client_id = "shared" if self.world.has_shared_client else name
        config = {
            "bootstrap": self._bootstrap,
            "group": self.name,
            "topics": self.topics[:1] if old is None else old.config["topics"],
            "client_id": client_id,
            "instance_id": f"{self.name}-{client_id}" if self.world.is_static else None,
            "assignors": list(assignors or (self.world.assignors if old is None else old.config["assignors"])),
            "session_ms": self.world.session_ms,
            "heartbeat_ms": self.world.heartbeat_ms,
            "poll_ms": self.world.poll_ms,
            "commit_s": self.world.commit_s,
            "log": str(self._log),
            "scratch": str(self._log.parent),
            "times": str(self._log.parent / "times.jsonl"),
            "checkpoint": str(self._log.parent / f"{self.name}-{name}"),
        }
        # every library of the world has a member early
        library = self.world.libraries[self._number % len(self.world.libraries)] if old is None else old.library
        member = Member(library, config)
        self._members[name] = member
        return member

    def _restart(self, name: str | None, assignors: Sequence[str] = ()) -> tuple[str, Member]:
        """Kills a static member and starts it again within its session timeout."""
        name, member = (name, self._members[name]) if name is not None else self._choose()
        before = {m.member_id for m in self._described()}
        member.kill()
        self._start(name, member, assignors)
        self._wait(lambda: before != {m.member_id for m in self._described()}, "the member is replaced")
        return name, member

    def _choose(self, is_possible: Callable[[Member], bool] = lambda member: True) -> tuple[str, Member]:
        name = self._random.choice(sorted(name for name, member in self._members.items() if is_possible(member)))
        return name, self._members[name]

    def _expected(self, cause: str, name: str) -> Expected:
        return Expected(cause, self._members[name].client_id, self._ids.get(name))

    def _gone(self, cause: str, name: str) -> Expected:
        expected = self._expected(cause, name)
        del self._members[name]
        return expected

    def _described(self) -> Sequence[Any]:
        return describe_groups(self._cluster, [self.name])[self.name].members

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, f"{self.name}: {what}", self.world.start_s, 0.1)

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

    def wait_stable(self) -> None:
        """Waits until the group is Stable with the expected members and their assignments stay the same."""
        names = [m.client_id for m in self._members.values()]
        names += [] if self._stuck is None else [self._stuck.client_id]

        def state() -> Any:
            group = describe_groups(self._cluster, [self.name])[self.name]
            found = [m.client_id for m in group.members]
            is_stable = group.state == "Stable" and sorted(found) == sorted(names)
            is_stable = is_stable and (not self.world.is_static or all(m.group_instance_id for m in group.members))
            assigned = [tp for m in group.members for tp in m.assignment]
            # with cooperative-sticky, the second rebalance assigns the rest
            if not is_stable or len(assigned) < self._partitions:
                return None
            return sorted((m.member_id, m.client_id, m.assignment) for m in group.members)

        started, last, since = time.monotonic(), None, time.monotonic()
        while time.monotonic() - since < self._settle_s or last is None:
            now = state()
            if now is None or now != last:
                last, since = now, time.monotonic()
            if time.monotonic() - started > self.world.start_s:
                group = describe_groups(self._cluster, [self.name])[self.name]
                raise AssertionError(f"group {self.name} is {group.state}, not Stable with {sorted(names)}: {group}")
            time.sleep(0.1)
        self._identify({member_id: client_id for member_id, client_id, _ in last})

    def _identify(self, found: dict[str, str]) -> None:
        """Notes the member id of each process, where it is certain."""
        self._ids = {n: i for n, i in self._ids.items() if n in self._members and i in found}
        for name, member in self._members.items():
            free = [i for i, client in found.items() if client == member.client_id and i not in self._ids.values()]
            if name not in self._ids and len(free) == 1:
                self._ids[name] = free[0]
