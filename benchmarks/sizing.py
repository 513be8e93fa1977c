"""What a large group costs its coordinator and driver.

    python benchmarks/sizing.py [PARTITIONS [TASKS [BROKERS]]]

Requests are encoded by the client's own functions, and plans are made by those of the source; nothing is sent. The
figures of docs/sizing.md are those of 10,000 partitions and 1,000 tasks on 30 brokers.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable

from pyspark.serializers import CPickleSerializer

from spark_groupsource.assign import load_assignor
from spark_groupsource.client.cluster.group_offsets import CommittingMember, offset_commit_request
from spark_groupsource.common.net import Address
from spark_groupsource.model import (
    Assignment,
    GroupMember,
    OffsetAndMetadata,
    OffsetRange,
    Subscription,
    TopicPartition,
)
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.positions.offset_json import SourceOffset, decode_offset, encode_offset
from spark_groupsource.source.positions.planning import Backlog, limit_ends, plan_tasks
from spark_groupsource.source.tasks.task_partition import GroupInputPartition, TaskMembership
from spark_groupsource.wire.commit_reports import commit_metadata
from spark_groupsource.wire.consumer_protocol import encode_assignment, encode_subscription
from spark_groupsource.wire.frames import encode_request, encode_response
from spark_groupsource.wire.messages import HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, SyncGroupRequest

TOPIC, GROUP, CLIENT = "orders", "billing", "driver-1-0"
ID = "8f14e45f-ceea-467f-a0e6-b2f1d3c4a5b6"
STRATEGY = "cooperative-sticky"
# defaults of heartbeat.interval.ms, and a short trigger
HEARTBEAT_S, TRIGGER_S = 3, 10


def size(request: Any, version: int) -> int:
    return len(encode_request(request, version, 1, CLIENT))


def line(name: str, text: str) -> None:
    print(f"{name:30}{text}")


def best_ms(work: Callable[[], Any]) -> float:
    """Returns the least time of five runs."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times) * 1000


def main() -> None:
    partitions, tasks, brokers = [*map(int, sys.argv[1:]), *(10_000, 1_000, 30)[len(sys.argv) - 1 :]]
    owned = [TopicPartition(TOPIC, number) for number in range(partitions)]
    members = [f"app-{number}-{ID}" for number in range(tasks)]
    print(f"{partitions:,} partitions, {tasks:,} members and tasks, {brokers} brokers")
    requests(owned, members)
    rebalance(owned, members)
    batch(owned, members, brokers)


def requests(owned: list[TopicPartition], members: list[str]) -> None:
    """Prints the requests at the coordinator between two rebalances."""
    heartbeat = size(HeartbeatRequest(group_id=GROUP, generation_id=7, member_id=members[0], group_instance_id=None), 4)
    share = owned[: len(owned) // len(members)]
    offsets = {p: OffsetAndMetadata(123_456_789, commit_metadata(ID.replace("-", ""), ID), 5) for p in share}
    member = CommittingMember(7, members[0], None)
    commit = size(offset_commit_request(GROUP, offsets, member, {}), 9)
    per_s = len(members) / HEARTBEAT_S
    line("heartbeats of the reader", f"{per_s:,.0f}/s of {heartbeat} B, {per_s * heartbeat / 1e3:,.0f} kB/s")
    line("heartbeats of running tasks", "at most as many again, each on a connection of its task")
    total = len(members) * commit / 1e6
    line(f"commits, every {TRIGGER_S} s", f"{len(members):,} of {commit} B, {total:.1f} MB per micro-batch")


def rebalance(owned: list[TopicPartition], members: list[str]) -> None:
    """Prints the bytes of a rebalance, and the time of the leader's assignor."""
    share = len(owned) // len(members)
    parts = [owned[n * share : (n + 1) * share] for n in range(len(members))]
    subscriptions = [encode_subscription(Subscription((TOPIC,), owned_partitions=tuple(part))) for part in parts]
    protocol = JoinGroupRequest.JoinGroupRequestProtocol
    join = size(
        JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=3_600_000,
            member_id=members[0],
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[protocol(name=STRATEGY, metadata=subscriptions[0])],
            reason="group is already rebalancing",
        ),
        9,
    )
    row = JoinGroupResponse.JoinGroupResponseMember
    joined = JoinGroupResponse(
        throttle_time_ms=0,
        error_code=0,
        generation_id=8,
        protocol_type="consumer",
        protocol_name=STRATEGY,
        leader=members[0],
        skip_assignment=False,
        member_id=members[0],
        members=[row(member_id=m, group_instance_id=None, metadata=s) for m, s in zip(members, subscriptions)],
    )
    one = SyncGroupRequest.SyncGroupRequestAssignment
    sync = SyncGroupRequest(
        group_id=GROUP,
        generation_id=8,
        member_id=members[0],
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name=STRATEGY,
        assignments=[
            one(member_id=m, assignment=encode_assignment(Assignment(tuple(part)))) for m, part in zip(members, parts)
        ],
    )
    group = [
        GroupMember(m, Subscription((TOPIC,), owned_partitions=tuple(part)), None) for m, part in zip(members, parts)
    ]
    assign_ms = best_ms(lambda: load_assignor(STRATEGY).assign({TOPIC: len(owned)}, group))
    leader = len(encode_response(joined, 9, 1))
    line("JoinGroup", f"{len(members):,} of {join} B; the leader receives {leader:,} B")
    line("SyncGroup", f"the leader sends {size(sync, 5):,} B, the others about 150 B")
    line(STRATEGY, f"{assign_ms:.0f} ms")


def batch(owned: list[TopicPartition], members: list[str], brokers: int) -> None:
    """Prints what the driver spends on one micro-batch."""
    addresses = [Address(f"broker-{number}.kafka.svc.cluster.local", 9092) for number in range(brokers)]
    first = f"{addresses[0].host}:9092"
    base = {"kafka.bootstrap.servers": first, "subscribe": TOPIC, "kafka.group.id": GROUP}
    options = parse_options(base, "stream")
    settings = options.task_settings(options.client_settings(first))
    start = dict.fromkeys(owned, 123_456_789)
    end = SourceOffset(
        positions={p: at + 1_000 for p, at in start.items()},
        generation_id=7,
        reader=ID.replace("-", ""),
        topic_ids={TOPIC: ID},
        partition_counts={TOPIC: len(owned)},
        committed=start,
        group_id=GROUP,
        cluster_id="4L6g3nShT-eMCtK--X86sw",
    )
    text = json.dumps(encode_offset(end))
    owners = {p: number * len(members) // len(owned) for number, p in enumerate(owned)}
    ranges = [OffsetRange(p, at, at + 1_000) for p, at in start.items()]
    backlog = Backlog(start, dict(end.positions))
    plans = plan_tasks(ranges, owners)
    dumps: Callable[[Any], bytes] = CPickleSerializer().dumps  # type: ignore[no-untyped-call]
    tasks = [
        GroupInputPartition(
            ranges=plan.ranges,
            settings=settings,
            fail_on_data_loss=True,
            membership=TaskMembership(GROUP, members[0], 7, None, 3_000),
            topic_ids={TOPIC: ID},
            leader_epochs={r.topic_partition: 5 for r in plan.ranges},
            # the leaders of ten partitions and the coordinator
            known_brokers=tuple(addresses[: min(len(plan.ranges) + 1, brokers)]),
            group_id=GROUP,
        )
        for plan in plans
    ]
    encoding, decoding = (
        best_ms(lambda: json.dumps(encode_offset(end))),
        best_ms(lambda: decode_offset(json.loads(text))),
    )
    limiting, planning = (
        best_ms(lambda: limit_ends(backlog, len(owned) * 500)),
        best_ms(lambda: plan_tasks(ranges, owners)),
    )
    pickles = [dumps(task) for task in tasks]
    pickling = best_ms(lambda: [dumps(task) for task in tasks])
    line("end offset in the checkpoint", f"{len(text):,} B, encoded in {encoding:.0f} ms, decoded in {decoding:.0f} ms")
    line("ListOffsets", f"{brokers} requests for {len(owned) // brokers:,} partitions each, at most every 100 ms")
    line("limits and plan of a batch", f"{limiting:.0f} ms and {planning:.0f} ms")
    total = sum(map(len, pickles)) / 1e6
    line("tasks", f"{len(tasks):,} of {len(pickles[0]):,} B, {total:.1f} MB, pickled in {pickling:.0f} ms")


if __name__ == "__main__":
    main()
