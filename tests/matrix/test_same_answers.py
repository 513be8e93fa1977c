"""Every version of every API: the same requests to both brokers, and their answers field by field.

Where the two differ, the embedded broker is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any
from uuid import uuid4

import pytest
import twin_admin
import twin_data
import twin_groups
import twin_placement
from support.waiting import wait_until
from twins import Case, Twin, ask, differences, plain

from spark_groupsource.broker.api.versions import SERVED
from spark_groupsource.wire.apis import APIS

pytestmark = pytest.mark.kafka

CASES: dict[int, list[Case]] = {
    0: twin_data.PRODUCE,
    1: twin_data.FETCH,
    2: twin_data.LIST_OFFSETS,
    3: twin_admin.METADATA,
    8: twin_groups.OFFSET_COMMIT,
    9: twin_groups.OFFSET_FETCH,
    10: twin_groups.FIND_COORDINATOR,
    11: twin_groups.JOIN_GROUP,
    12: twin_groups.HEARTBEAT,
    13: twin_groups.LEAVE_GROUP,
    14: twin_groups.SYNC_GROUP,
    15: twin_groups.DESCRIBE_GROUPS,
    16: twin_groups.LIST_GROUPS,
    18: twin_admin.API_VERSIONS,
    19: twin_admin.CREATE_TOPICS,
    20: twin_admin.DELETE_TOPICS,
    21: twin_data.DELETE_RECORDS,
    22: twin_admin.INIT_PRODUCER_ID,
    23: twin_data.EPOCH_ENDS,
    29: twin_placement.DESCRIBE_ACLS,
    30: twin_placement.CREATE_ACLS,
    31: twin_placement.DELETE_ACLS,
    32: twin_admin.DESCRIBE_CONFIGS,
    33: twin_admin.ALTER_CONFIGS,
    35: twin_admin.LOG_DIRS,
    37: twin_admin.CREATE_PARTITIONS,
    42: twin_groups.DELETE_GROUPS,
    43: twin_placement.ELECT_LEADERS,
    44: twin_admin.CHANGE_CONFIGS,
    46: twin_placement.LIST_REASSIGNMENTS,
    47: twin_groups.OFFSET_DELETE,
    60: twin_admin.DESCRIBE_CLUSTER,
    74: twin_admin.LIST_CONFIG_RESOURCES,
    75: twin_placement.DESCRIBE_TOPIC_PARTITIONS,
}
Pair = tuple[Twin, Twin]
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    **{name: (2, {}) for name in ("read", "made")},
    **{name: (1, {}) for name in ("cut", "squeezed", "grows", "set", *(f"away{n}" for n in range(1, 6)))},
    "small": (1, {"max_message_bytes": "1000"}),
    "compacted": (1, {"cleanup_policy": "compact"}),
    "stamped": (1, {"message_timestamp_type": "LogAppendTime"}),
}
GROUPS = ("simple", "simple-2", "to-go", "to-go-too")
# what an API changes for good is made anew for each of its versions
MADE_ANEW = {
    0: (("made", "small", "compacted", "stamped"), ()),
    19: ((), ()),
    20: (tuple(name for name in TOPICS if name.startswith("away")), ()),
    37: (("grows",), ()),
    33: (("set",), ()),
    44: (("set",), ()),
    # Kafka remembers a group that nobody could join
    11: ((), ()),
    42: (("read",), GROUPS),
    47: (("read",), GROUPS),
}


def prepare(twin: Twin, topics: Collection[str] = tuple(TOPICS), groups: Collection[str] = GROUPS) -> None:
    """Makes topics, with records in some, and groups with a committed offset."""
    for name in topics:
        partitions, settings = TOPICS[name]
        (made,) = twin.exchange(twin_admin.create(name, partitions=partitions, **settings)(twin), 7).topics
        assert made.error_code == 0, made
    batch = twin_data.batch
    for name, *batches in (
        ("read", batch(b"a", b"b"), batch(b"c"), batch(b"d")),
        ("cut", batch(b"a", b"b", b"c")),
        ("squeezed", batch(b"a" * 90, codec=4)),
    ):
        for data in batches if name in topics else ():
            wait_until(lambda: _stores(twin, name, data), f"{name} can be written")
    if "cut" in topics:
        twin.exchange(twin_data.delete_records(("cut", 0, 2))(twin), 2)
    wait_until(lambda: _has_producer_ids(twin), "the first block of producer ids is there")
    for group in groups:
        wait_until(lambda: _commits(twin, group), f"group {group} has a coordinator")


def _stores(twin: Twin, name: str, data: bytes) -> bool:
    (topic,) = twin.exchange(twin_data.produce((name, 0, data))(twin), 9).responses
    return bool(topic.partition_responses[0].error_code == 0)


def _has_producer_ids(twin: Twin) -> bool:
    return bool(twin.exchange(twin_admin.producer_id()(twin), 4).error_code == 0)


def _commits(twin: Twin, group: str) -> bool:
    # whoever asks for the first coordinator makes Kafka create the group log
    twin.exchange(twin_groups.find(twin.name(group))(twin), 4)
    (topic,) = twin.exchange(twin_groups.commit(twin_groups.ONE, group=group)(twin), 8).topics
    return bool(topic.partitions[0].error_code == 0)


@pytest.fixture(scope="module")
def prepared(embedded: Any, kafka: Any) -> Iterator[Pair]:
    prefix = f"w{uuid4().hex[:8]}"
    with Twin(embedded.bootstrap_servers, prefix) as ours, Twin(kafka.bootstrap_servers, prefix) as theirs:
        for twin in (ours, theirs):
            prepare(twin)
        yield ours, theirs


@pytest.fixture
def pair(prepared: Pair) -> Iterator[Pair]:
    prefix = prepared[0].prefix
    yield prepared
    for twin in prepared:
        twin.prefix = prefix


@pytest.mark.parametrize("key", CASES, ids=[APIS[key].name for key in CASES])
def test_the_answers_are_the_same(pair: Pair, key: int) -> None:
    found, prefix = [], pair[0].prefix
    for version in range(SERVED[key].min_version, SERVED[key].max_version + 1):
        for twin in pair:
            twin.version = version
            if key in MADE_ANEW:
                twin.prefix = f"{APIS[key].name}-{version}-{prefix}"
                twin.forget_all()
                prepare(twin, *MADE_ANEW[key])
        for case in CASES[key]:
            if case.since <= version <= case.until:
                ours, theirs = (ask(twin, case.build(twin), version) for twin in pair)
                found += [f"v{version} {case.label}: {line}" for line in differences(ours, theirs)]
    for twin in pair:
        twin.prefix = prefix
        twin.forget_all()
    assert not found, "\n".join(found)


LIVES = [(version, static) for version in range(10) for static in (False, True) if version >= 5 or not static]


@pytest.mark.parametrize("version, static", LIVES)
def test_the_life_of_a_member(pair: Pair, version: int, static: bool) -> None:
    found = []
    lives = [twin_groups.life(twin, version, static) for twin in pair]
    steps = [next(life) for life in lives]
    while steps:
        answers = [twin.exchange(request, at) for twin, (_, request, at) in zip(pair, steps)]
        ours, theirs = (plain(twin, answer) for twin, answer in zip(pair, answers))
        found += [f"{steps[0][0]}: {line}" for line in differences(ours, theirs)]
        try:
            steps = [life.send(answer) for life, answer in zip(lives, answers)]
        except StopIteration:
            break
    assert not found, "\n".join(found)
