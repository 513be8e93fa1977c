"""Random requests of members of groups and of committed offsets."""

from __future__ import annotations

from typing import Any

from support.compared_sides import ComparedSide, Membership
from support.random_requests.actions import GROUPS, MEMBERS, Action, Choices, Weighted
from support.request_cases import groups

from spark_groupsource.wire.api_keys import ApiKey

SESSION_MS = 120_000
PROTOCOLS = ((("range", b"\0\1"),), (("range", b"\0\2"), ("sticky", b"")), (("sticky", b""),))


class GroupRequests(Choices):
    """Requests of groups."""

    def kinds(self) -> Weighted:
        """As in `Choices`."""
        return [
            (self.join, 10), (self.sync, 10), (self.heartbeat, 6), (self.leave, 2), (self.commit, 8),
            (self.fetch_offsets, 4), (self.delete_offsets, 2), (self.describe_groups, 4), (self.list_groups, 2),
            (self.delete_group, 1), (self.fetch_offsets_of_several, 2), (self.describe_several, 1),
        ]  # fmt: skip

    def member(self) -> tuple[str, str, str | None]:
        """A group, a member and its instance id: every third member is static."""
        group, name = self.pick("g0", "g0", *GROUPS), self.pick("m0", "m0", *MEMBERS)
        return group, name, self.mostly(name if name == MEMBERS[-1] else None, None)

    def join(self) -> Action:
        group, name, instance = self.member()
        protocols, kind = self.mostly(PROTOCOLS[0], *PROTOCOLS), self.mostly("consumer", "connect")
        given = self.mostly("its own", "none", "unknown")
        session_ms = self.mostly(SESSION_MS, 1)

        def build(side: ComparedSide) -> Any:
            known = side.member(group, name).member_id
            member = {"none": "", "unknown": "stranger"}.get(given, known)
            return groups.join(group, member, protocols, kind, session_ms, SESSION_MS, instance)(side.broker)

        def read(side: ComparedSide, response: Any) -> None:
            if response.error_code in (0, 79):  # NONE, MEMBER_ID_REQUIRED
                side.members[group, name] = Membership(response.member_id, response.generation_id)
                if response.error_code == 0:
                    side.leaders[group] = response.leader
                    side.groups.add(group)
            elif response.error_code == 25:  # UNKNOWN_MEMBER_ID
                side.members.pop((group, name), None)

        text = f"{group} {name} {instance} {protocols} {kind} id: {given} session {session_ms}"
        since = 5 if instance else 0
        return self.action(ApiKey.JOIN_GROUP, text, build, read, f"{group}-{name}", since=since)

    def sync(self) -> Action:
        group, name, instance = self.member()
        ahead, protocol = self.mostly(0, 1, -1), self.mostly("range", "sticky", None)
        assigned = self.mostly(MEMBERS, (), MEMBERS[:1])

        def build(side: ComparedSide) -> Any:
            member = side.member(group, name)
            ids = side.member_ids(group)
            shares = tuple((ids[each], each.encode()) for each in assigned if each in ids)
            generation = member.generation + ahead
            return groups.sync(group, generation, member.member_id, instance, "consumer", protocol, shares)(side.broker)

        text = f"{group} {name} {instance} generation {ahead:+} {protocol} assigns {assigned}"
        return self.action(ApiKey.SYNC_GROUP, text, build, member=f"{group}-{name}", since=3 if instance else 0)

    def heartbeat(self) -> Action:
        group, name, instance = self.member()
        ahead = self.mostly(0, 1, -1)

        def build(side: ComparedSide) -> Any:
            member = side.member(group, name)
            return groups.heartbeat(group, member.generation + ahead, member.member_id, instance)(side.broker)

        return self.action(ApiKey.HEARTBEAT, f"{group} {name} {instance} {ahead:+}", build, since=3 if instance else 0)

    def leave(self) -> Action:
        group, name, instance = self.member()
        others = self.mostly((), (("stranger", None),), (("", "m2"),))

        def build(side: ComparedSide) -> Any:
            return groups.leave(group, (side.member(group, name).member_id, instance), *others)(side.broker)

        def read(side: ComparedSide, response: Any) -> None:
            if response.error_code == 0:
                side.members.pop((group, name), None)

        def is_alike(side: ComparedSide) -> bool:
            # the next leader is the first in the order of a hash table; the SyncGroup of a member that leaves has no
            # response (docs/apis.md)
            if side.awaits_assignment(group):
                return False
            left = (side.member(group, name).member_id or "unknown", *(f"{of}-" for _, of in others if of))
            has_others = any(of == group and each != name for of, each in side.members) or side.is_waiting(group)
            return not has_others or not side.leaders.get(group, "no leader").startswith(left)

        text = f"{group} {name} {instance} {others}"
        since = 3 if instance else 0
        return self.action(ApiKey.LEAVE_GROUP, text, build, read, since=since, is_alike=is_alike)

    def commit(self) -> Action:
        group, name, instance = self.member()
        parts = [(self.topic(), self.partition(), self.pick(0, 3, 7)) for _ in range(self.pick(1, 1, 2))]
        ahead, kind = self.mostly(0, 1, -1), self.mostly("member", "simple", "simple")

        def build(side: ComparedSide) -> Any:
            member = side.member(group, name) if kind == "member" else Membership()
            given: dict[str, Any] = {
                "generation": member.generation + (ahead if kind == "member" else 0), "member": member.member_id,
                "instance": instance if kind == "member" else None,
            }  # fmt: skip
            return groups.commit(*parts, group=group, **given)(side.broker)

        def read(side: ComparedSide, response: Any) -> None:
            if any(partition.error_code == 0 for topic in response.topics for partition in topic.partitions):
                side.groups.add(group)

        text = f"{group} {name} {instance} {ahead:+} {kind} {parts}"
        return self.action(ApiKey.OFFSET_COMMIT, text, build, read, since=7)

    def fetch_offsets(self) -> Action:
        group, topic = self.pick("g0", *GROUPS, "gone"), self.topic()
        wanted, stable = self.pick(None, ((topic, [0, 1]),)), self.pick(False, True)
        build = groups.fetch_offsets((group, wanted), stable=stable)
        return self.repeatable(ApiKey.OFFSET_FETCH, f"{group} {wanted} stable {stable}", build, since=2)

    def fetch_offsets_of_several(self) -> Action:
        wanted = [(self.pick(*GROUPS, "gone"), self.pick(None, (), ((self.topic(), [0, 1, 0]),))) for _ in range(2)]
        stable = self.pick(False, True)
        build = groups.fetch_offsets(*wanted, stable=stable)
        return self.repeatable(ApiKey.OFFSET_FETCH, f"{wanted} stable {stable}", build, since=8)

    def describe_several(self) -> Action:
        names = [self.pick(*GROUPS, "gone") for _ in range(3)]
        build = groups.describe_groups(*names, operations=self.pick(True, False))
        return self.repeatable(ApiKey.DESCRIBE_GROUPS, f"{names}", build)

    def delete_offsets(self) -> Action:
        group, topic = self.pick("g0", *GROUPS, "gone"), self.topic()
        build = groups.delete_offsets(group, (topic, [0, 1]))
        return self.change(ApiKey.OFFSET_DELETE, f"{group} {topic}", build)

    def describe_groups(self) -> Action:
        group = self.pick("g0", *GROUPS, "gone")
        return self.repeatable(ApiKey.DESCRIBE_GROUPS, group, groups.describe_groups(group))

    def list_groups(self) -> Action:
        states = self.pick((), ("Empty",), ("Stable", "PreparingRebalance"))
        return self.repeatable(ApiKey.LIST_GROUPS, f"{states}", groups.list_groups(states))

    def delete_group(self) -> Action:
        group = self.pick("g0", *GROUPS, "gone")

        def read(side: ComparedSide, response: Any) -> None:
            if response.results[0].error_code == 0:
                side.groups.discard(group)

        return self.change(ApiKey.DELETE_GROUPS, group, groups.delete_groups(group), read)
