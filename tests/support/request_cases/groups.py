"""Cases of the group APIs, and the request sequence of a member."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from support.compared_brokers import Case, ComparedBroker

from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire import messages
from spark_groupsource.wire.apis import APIS

RANGE = (("range", b"\0\1"),)


def commit(
    *parts: tuple[str, int, int], group: str = "simple", generation: int = -1, member: str = "",
    instance: str | None = None, note: str | None = "note", full: bool = False, **_: Any,
) -> Any:  # fmt: skip
    """`parts` are (topic, partition, offset)."""

    def build(broker: ComparedBroker) -> Any:
        topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic
        found: dict[str, list[Any]] = {}
        for short, number, offset in parts:
            entry = topic.OffsetCommitRequestPartition(
                partition_index=number, committed_offset=offset, committed_leader_epoch=0, committed_metadata=note
            )
            found.setdefault(short, []).append(entry)
        topics = [
            topic(name=broker.name(short), topic_id=broker.id(short), partitions=entries)
            for short, entries in found.items()
        ]
        return messages.OffsetCommitRequest(
            group_id=group if full else broker.name(group), generation_id_or_member_epoch=generation, member_id=member,
            group_instance_id=instance, retention_time_ms=-1, topics=topics,
        )  # fmt: skip

    return build


ONE = ("read", 0, 3)
OFFSET_COMMIT = [
    Case("a simple consumer", commit(ONE)),
    Case("two", commit(ONE, ("read", 1, 0))),
    Case("no such partition", commit(ONE, ("read", 9, 0))),
    Case("no such topic", commit(ONE, ("gone", 0, 0))),
    Case("only what is not there", commit(("gone", 0, 0))),
    Case("a negative partition", commit(("read", -1, 0))),
    Case("no group", commit(ONE, group="", full=True)),
    Case("no group, nothing there", commit(("gone", 0, 0), group="", full=True)),
    Case("offset -1", commit(("read", 0, -1))),
    Case("offset -9", commit(("read", 0, -9))),
    Case("beyond the end", commit(("read", 0, 10**9))),
    Case("no note", commit(ONE, note=None)),
    Case("an empty note", commit(ONE, note="")),
    Case("a long note", commit(ONE, note="n" * 4_096)),
    Case("a note too long", commit(ONE, note="n" * 4_097)),
    Case("one twice", commit(ONE, ("read", 0, 1))),
    Case("nothing", commit()),
    Case("a generation of no group", commit(ONE, group="no-group", generation=3)),
    Case("a generation of an empty group", commit(ONE, generation=3)),
    Case("an unknown member", commit(ONE, generation=3, member="m")),
    Case("a member without a generation", commit(ONE, member="m")),
    Case("an unknown instance", commit(ONE, generation=3, member="m", instance="i"), 7),
    Case("an instance without a generation", commit(ONE, instance="i"), 7),
]


def fetch_offsets(
    *groups: tuple[str, tuple[tuple[str, list[int]], ...] | None], full: bool = False, stable: bool = False,
    member: str | None = None, epoch: int = -1,
) -> Any:  # fmt: skip
    """`groups` are (group, topics), topics None for all; before version 8 only the first is used."""

    def build(broker: ComparedBroker) -> Any:
        wanted = messages.OffsetFetchRequest.OffsetFetchRequestGroup
        listed = []
        for short, topics in groups:
            named = wanted.OffsetFetchRequestTopics
            inner = topics if topics is None else [
                named(name=broker.name(of), topic_id=broker.id(of), partition_indexes=n) for of, n in topics
            ]
            group = short if full else broker.name(short)
            listed.append(wanted(group_id=group, member_id=member, member_epoch=epoch, topics=inner))
        first = listed[0] if listed else wanted(group_id="", topics=[])
        plain = messages.OffsetFetchRequest.OffsetFetchRequestTopic
        old = first.topics if first.topics is None else [
            plain(name=topic.name, partition_indexes=topic.partition_indexes) for topic in first.topics
        ]
        return messages.OffsetFetchRequest(group_id=first.group_id, topics=old, groups=listed, require_stable=stable)

    return build


READ = (("read", [0, 1]),)
OFFSET_FETCH = [
    Case("two of a topic", fetch_offsets(("simple", READ))),
    Case("a partition that is not there", fetch_offsets(("simple", (("read", [0, 9]),)))),
    Case("a topic that is not there", fetch_offsets(("simple", (("gone", [0]),)))),
    Case("all", fetch_offsets(("simple", None)), 2),
    Case("none", fetch_offsets(("simple", ()))),
    Case("no partitions", fetch_offsets(("simple", (("read", []),)))),
    Case("one twice", fetch_offsets(("simple", (("read", [0, 0]),)))),
    Case("no such group", fetch_offsets(("no-group", READ))),
    Case("no such group, all", fetch_offsets(("no-group", None)), 2),
    Case("no group", fetch_offsets(("", READ), full=True)),
    Case("stable ones", fetch_offsets(("simple", READ), stable=True)),
    Case("two groups", fetch_offsets(("simple", READ), ("no-group", None)), 8),
    Case("a group twice", fetch_offsets(("simple", READ), ("simple", None)), 8),
    Case("no groups", fetch_offsets(), 8),
    Case("a member", fetch_offsets(("simple", READ), member="m", epoch=4), 9),
    Case("a member without an epoch", fetch_offsets(("simple", READ), member="m"), 9),
]


def find(*keys: str, kind: int = 0) -> Any:
    return lambda broker: messages.FindCoordinatorRequest(
        key=keys[0] if keys else "", key_type=kind, coordinator_keys=list(keys)
    )


FIND_COORDINATOR = [
    Case("a group", find("g")),
    Case("two", find("g", "h"), 4),
    Case("one twice", find("g", "g"), 4),
    Case("none", find(), 4),
    Case("no name", find("")),
    Case("an unknown kind", find("g", kind=9), 1),
    Case("a negative kind", find("g", kind=-1), 1),
]


def join(
    group: str, member: str = "", protocols: tuple[tuple[str, bytes], ...] = RANGE, kind: str = "consumer",
    session_ms: int = 10_000, rebalance_ms: int = 10_000, instance: str | None = None, full: bool = False,
) -> Any:  # fmt: skip
    def build(broker: ComparedBroker) -> Any:
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol
        return messages.JoinGroupRequest(
            group_id=group if full else broker.name(group), session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms, member_id=member, group_instance_id=instance, protocol_type=kind,
            protocols=[protocol(name=name, metadata=data) for name, data in protocols], reason="a reason",
        )  # fmt: skip

    return build


JOIN_GROUP = [
    Case("no group", join("", full=True)),
    Case("a short session", join("j", session_ms=5_999)),
    Case("a long session", join("j", session_ms=1_800_001)),
    Case("no session", join("j", session_ms=0)),
    Case("no protocols", join("j", protocols=())),
    Case("no protocol type", join("j", kind="")),
    Case("an unknown member", join("j", member="m")),
    Case("an unknown member of an instance", join("j", member="m", instance="i"), 5),
    Case("an instance without a name", join("j0", instance=""), 5),
    Case("an instance with an illegal name", join("j1", instance="a/b"), 5),
    Case("an instance with a long name", join("j2", instance="a" * 250), 5),
]


def heartbeat(group: str, generation: int = 1, member: str = "m", instance: str | None = None) -> Any:
    return lambda broker: messages.HeartbeatRequest(
        group_id=broker.name(group) if group else "", generation_id=generation, member_id=member,
        group_instance_id=instance,
    )  # fmt: skip


HEARTBEAT = [
    Case("no group", heartbeat("")),
    Case("no such group", heartbeat("no-group")),
    Case("a group without members", heartbeat("simple")),
    Case("no member", heartbeat("simple", member="")),
    Case("a negative generation", heartbeat("simple", generation=-1)),
    Case("an unknown instance", heartbeat("simple", instance="i"), 3),
]


def sync(
    group: str, generation: int = 1, member: str = "m", instance: str | None = None, kind: str | None = "consumer",
    protocol: str | None = "range", shares: tuple[tuple[str, bytes], ...] = (),
) -> Any:  # fmt: skip
    share = messages.SyncGroupRequest.SyncGroupRequestAssignment
    return lambda broker: messages.SyncGroupRequest(
        group_id=broker.name(group) if group else "", generation_id=generation, member_id=member,
        group_instance_id=instance, protocol_type=kind, protocol_name=protocol,
        assignments=[share(member_id=of, assignment=data) for of, data in shares],
    )  # fmt: skip


SYNC_GROUP = [
    Case("no group", sync("")),
    Case("no such group", sync("no-group")),
    Case("a group without members", sync("simple")),
    Case("no kind", sync("no-group", kind=None), 5),
    Case("no protocol", sync("no-group", protocol=None), 5),
]


def leave(group: str, *members: tuple[str, str | None]) -> Any:
    """`members` are (member id, instance id); before version 3 only the first leaves."""

    def build(broker: ComparedBroker) -> Any:
        identity = messages.LeaveGroupRequest.MemberIdentity
        return messages.LeaveGroupRequest(
            group_id=broker.name(group) if group else "", member_id=members[0][0] if members else "",
            members=[identity(member_id=of, group_instance_id=instance, reason="why") for of, instance in members],
        )  # fmt: skip

    return build


LEAVE_GROUP = [
    Case("no group", leave("", ("m", None))),
    Case("no such group", leave("no-group", ("m", None))),
    Case("a group without members", leave("simple", ("m", None))),
    Case("no members", leave("simple")),
    Case("two", leave("simple", ("m", None), ("n", "i")), 3),
    Case("no such group, no members", leave("no-group")),
]


def describe_groups(*names: str, operations: bool = False) -> Any:
    return lambda broker: messages.DescribeGroupsRequest(
        groups=[broker.name(short) if short else "" for short in names], include_authorized_operations=operations
    )


DESCRIBE_GROUPS = [
    Case("one without members", describe_groups("simple")),
    Case("one that is not there", describe_groups("no-group")),
    Case("authorized operations", describe_groups("simple", "no-group", operations=True)),
    Case("no name", describe_groups("")),
    Case("one twice", describe_groups("simple", "simple")),
    Case("nothing", describe_groups()),
]


def list_groups(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> Any:
    return lambda broker: messages.ListGroupsRequest(states_filter=list(states), types_filter=list(types))


LIST_GROUPS = [
    Case("all", list_groups()),
    Case("empty", list_groups(("Empty",)), 4),
    Case("empty, in small letters", list_groups(("empty",)), 4),
    Case("stable or dead", list_groups(("Stable", "Dead")), 4),
    Case("no such state", list_groups(("Nowhere",)), 4),
    Case("a state without a name", list_groups(("",)), 4),
    Case("classic", list_groups((), ("classic",)), 5),
    Case("classic, in capitals", list_groups((), ("CLASSIC",)), 5),
    Case("consumer", list_groups((), ("consumer",)), 5),
    Case("no such type", list_groups((), ("nothing",)), 5),
]


def delete_groups(*names: str) -> Any:
    return lambda broker: messages.DeleteGroupsRequest(
        groups_names=[broker.name(short) if short else "" for short in names]
    )


DELETE_GROUPS = [
    Case("one that is not there", delete_groups("no-group")),
    Case("no name", delete_groups("")),
    Case("one", delete_groups("to-go")),
    Case("one twice", delete_groups("to-go-too", "to-go-too")),
    Case("two, one there", delete_groups("simple-2", "no-group")),
    Case("nothing", delete_groups()),
]


def delete_offsets(group: str, *parts: tuple[str, list[int]]) -> Any:
    def build(broker: ComparedBroker) -> Any:
        topic = messages.OffsetDeleteRequest.OffsetDeleteRequestTopic
        topics = [
            topic(
                name=broker.name(short),
                partitions=[topic.OffsetDeleteRequestPartition(partition_index=number) for number in numbers],
            )
            for short, numbers in parts
        ]
        return messages.OffsetDeleteRequest(group_id=broker.name(group) if group else "", topics=topics)

    return build


OFFSET_DELETE = [
    Case("one that is committed", delete_offsets("simple", ("read", [0]))),
    Case("one that is not committed", delete_offsets("simple", ("read", [1]))),
    Case("no such partition", delete_offsets("simple", ("read", [0, 9]))),
    Case("no such topic", delete_offsets("simple", ("gone", [0]))),
    Case("no such group", delete_offsets("no-group", ("read", [0]))),
    Case("no such group, no such topic", delete_offsets("no-group", ("gone", [0]))),
    Case("no group", delete_offsets("", ("read", [0]))),
    Case("no partitions", delete_offsets("simple", ("read", []))),
    Case("nothing", delete_offsets("simple")),
]

Step = tuple[str, Any, int]
# a label and a function that builds the request for a broker
Steps = Generator[tuple[str, Any], Any, Any]


def member_requests(broker: ComparedBroker, version: int, static: bool) -> Generator[Step, Any, None]:
    """The requests of a member from join to deletion of its group: (label, request, version).

    Each request has `version` or the newest version below it; the caller sends its response into the generator.
    """
    group = f"member-{version}-{'static' if static else 'dynamic'}"
    steps, response = _member_steps(version, group, "one" if static else None), None
    while True:
        try:
            label, build = steps.send(response)
        except StopIteration:
            return
        request = build(broker)
        api = APIS[request.API_KEY]
        response = yield label, request, max(api.min_version, min(version, api.max_version))


def _member_steps(version: int, group: str, instance: str | None) -> Steps:
    member, generation = yield from _join_and_sync(group, instance)
    yield from _stable_member(version, group, instance, member, generation)
    if instance is not None:
        member, generation = yield from _replaced_static_member(group, instance, member, generation)
    yield "joins with the same subscription", join(group, member, instance=instance)
    yield from _rejoin_and_leave(group, instance, member)


def _join_and_sync(group: str, instance: str | None) -> Steps:
    """Returns (member id, generation)."""
    response = yield "joins", join(group, instance=instance)
    member = response.member_id
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        yield "heartbeat before the join", heartbeat(group, 0, member)
        response = yield "joins with its member id", join(group, member)
    member, generation = response.member_id, response.generation_id
    yield "heartbeat before the sync", heartbeat(group, generation, member, instance)
    commit_one = commit(ONE, group=group, generation=generation, member=member, instance=instance)
    yield "commits before the sync", commit_one
    yield "is described before the sync", describe_groups(group)
    yield "is listed before the sync", list_groups()
    yield "syncs the next generation", sync(group, generation + 1, member, instance)
    yield "an unknown member syncs", sync(group, generation)
    yield "syncs another protocol type", sync(group, generation, member, instance, kind="connect")
    yield "syncs another protocol", sync(group, generation, member, instance, protocol="sticky")
    yield "syncs", sync(group, generation, member, instance, shares=((member, b"share"),))
    yield "syncs again", sync(group, generation, member, instance)
    return member, generation


def _stable_member(version: int, group: str, instance: str | None, member: str, generation: int) -> Steps:
    commit_one = commit(ONE, group=group, generation=generation, member=member, instance=instance)
    yield "heartbeat", heartbeat(group, generation, member, instance)
    yield "heartbeat of the next generation", heartbeat(group, generation + 1, member, instance)
    yield "heartbeat of an unknown member", heartbeat(group, generation, "stranger")
    yield "commits", commit_one
    yield "commits for the next generation", commit(ONE, group=group, generation=generation + 1, member=member)
    yield "an unknown member commits", commit(ONE, group=group, generation=generation, member="stranger")
    yield "a simple consumer commits", commit(ONE, group=group)
    yield "a member commits without a generation", commit(ONE, group=group, member=member)
    yield "its offsets", fetch_offsets((group, None)) if version >= 2 else fetch_offsets((group, READ))
    yield "is described", describe_groups(group, operations=True)
    yield "is listed", list_groups()
    yield "joins with another protocol type", join(group, kind="connect")
    yield "joins with another protocol", join(group, protocols=(("sticky", b""),))
    yield "rejoins with another protocol", join(group, member, protocols=(("sticky", b""),), instance=instance)
    yield "is deleted with a member", delete_groups(group)
    yield "its offsets are deleted", delete_offsets(group, ("read", [0]))


def _replaced_static_member(group: str, instance: str, member: str, generation: int) -> Steps:
    """Returns (member id, generation) of the replacement."""
    yield "heartbeat of another member id", heartbeat(group, generation, "other", "one")
    yield "another member id syncs", sync(group, generation, "other", "one")
    other = commit(ONE, group=group, generation=generation, member="other", instance="one")
    yield "another member id commits", other
    yield "heartbeat with another instance id", heartbeat(group, generation, member, "two")
    yield "another member id leaves", leave(group, ("other", "one"))
    response = yield "joins again as its instance", join(group, instance=instance)
    yield "heartbeat of the replaced member", heartbeat(group, generation, member, instance)
    member, generation = response.member_id, response.generation_id
    yield "syncs as replacement", sync(group, generation, member, instance, shares=((member, b"share"),))
    return member, generation


def _rejoin_and_leave(group: str, instance: str | None, member: str) -> Steps:
    another = join(group, member, (("range", b"\0\2"),), instance=instance)
    response = yield "joins with another subscription", another
    member, generation = response.member_id, response.generation_id
    yield "syncs without an assignment", sync(group, generation, member, instance)
    yield "is described again", describe_groups(group)
    yield "an unknown member leaves", leave(group, ("stranger", None))
    yield "two leave, one is known", leave(group, (member, instance), ("stranger", None))
    yield "heartbeat after it has left", heartbeat(group, generation, member, instance)
    yield "is described when it is empty", describe_groups(group)
    yield "joins an empty group with another protocol type", join(group, kind="connect")
    yield "is deleted", delete_groups(group)
    yield "is described when it is deleted", describe_groups(group)
