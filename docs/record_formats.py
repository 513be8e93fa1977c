"""Generates docs/record-formats.md: the records of the coordinators."""

from __future__ import annotations

import struct
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from spark_groupsource.model import Assignment, Subscription, TopicPartition
from spark_groupsource.wire.consumer_protocol import encode_assignment, encode_subscription
from spark_groupsource.wire.group_records import (
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    encode_group_value,
    encode_key,
    encode_offset_value,
)
from spark_groupsource.wire.messages import TransactionLogKey, TransactionLogValue
from spark_groupsource.wire.record_json import RECORD_TYPES, key_json, modern_record_classes, value_json
from spark_groupsource.wire.schemas import Field as SchemaField

# field, value as text, bytes
Field = tuple[str, str, bytes]

_COMMITTED_MS = 1_795_000_000_000
_INTRODUCTION = """\
# Record formats of `__consumer_offsets`

Kafka stores the state of consumer groups as records of the compacted topic `__consumer_offsets`. The partition of a
group is `abs(hash(group id)) % partitions`, with the hash of Java's `String.hashCode` and 50 partitions by default;
its leader is the coordinator of the group. The last record of each key is the present state; a record without a value
(tombstone) deletes it. Numbers are big-endian, a string is its length as int16 (-1 for null) and its UTF-8 bytes,
bytes have a length as int32. The schemas are Kafka's `OffsetCommitKey`, `OffsetCommitValue`, `GroupMetadataKey` and
`GroupMetadataValue`.

`groupsource offsets-log` and the table `offsets_log` decode these records. To read one value by hand, see
[the committed offset out of the bytes](#the-committed-offset-of-a-partition-out-of-the-bytes).

## Types of records

The version of a key, its first two bytes, is the type of the record: committed offsets (0, 1), which groups of all
kinds have; classic groups (2), as queries of Spark are; groups of the consumer protocol (3 to 8, 16), share groups (9
to 15) and streams groups (17 to 24). Beside them are transaction markers, which are control records. Embedded brokers
write types 1 and 2, read type 0, and skip all others.
"""
_MODERN_NOTES = """\
## Records of the newer groups

Groups of the consumer protocol (KIP-848), share groups (KIP-932) and streams groups (KIP-1071) have a record for each
part of their state, so that a change of one member writes a few small records. The type is the version of the key; the
rest of the key has the encoding above. The value has version 0 and the flexible encoding (KIP-482): the length of a
string, bytes or list is an unsigned varint of the length plus 1 (0 for null), a structure ends with its tagged fields,
and an id is 16 bytes. `?` marks a field that may be null, `[]` a list, *tag* a tagged field, which is absent if it has
its default.
"""
_BY_HAND = """\
### The committed offset of a partition, out of the bytes

Which offset has group `delays` committed for `flights-0`?

1. Compute the partition of the group: `abs(hash) % partitions`. All records of the group are there.
2. Read this partition from its start to its end. The order of the log decides: a later record of the same key replaces
   the earlier one.
3. Bytes 0 and 1 of a key are its version, which is the type. Keep 1 (and 0, which has the same layout).
4. The rest of the key is the length and the bytes of the group, the same of the topic, and four bytes of the partition.
   Keep those of the question: other groups share this partition of `__consumer_offsets`.
5. If the last of these records has no value, nothing is committed: the offset was deleted, or has expired.
6. Otherwise bytes 0 and 1 of its value are the version, and bytes 2 to 9 are the offset, in every version: the number
   of the next record that the group reads.

A commit of a transaction counts when the transaction has committed: `kafka.isolation.level=read_committed` leaves out
the others. The user needs READ of the topic `__consumer_offsets`. The steps in Python; columns `key` and `value` are
the bytes:

```python
import json, struct
import spark_groupsource as gs

address, group, topic, partition = "localhost:9092", "delays", "flights", 0


def java_hash(text):
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) % 2**32
    return value - 2**32 if value >= 2**31 else value


def text_at(data, position):
    (length,) = struct.unpack_from(">h", data, position)
    return data[position + 2 : position + 2 + length].decode(), position + 2 + length


count = len(list(gs.connect(address).partitions("__consumer_offsets")))
number = abs(java_hash(group)) % count
rows = (
    spark.read.format("groupsource")
    .option("kafka.bootstrap.servers", address)
    .option("kafka.isolation.level", "read_committed")
    .option("assign", json.dumps({"__consumer_offsets": [number]}))
    .load()
    .orderBy("offset")
    .select("key", "value")
    .collect()
)
committed = None
for row in rows:
    key, value = bytes(row.key), row.value
    if struct.unpack_from(">h", key)[0] in (0, 1):
        of_group, position = text_at(key, 2)
        of_topic, position = text_at(key, position)
        if (of_group, of_topic, *struct.unpack_from(">i", key, position)) == (group, topic, partition):
            committed = None if value is None else struct.unpack_from(">q", bytes(value), 2)[0]
print(committed)
```

`groupsource groups describe --group delays` prints the same number as `CURRENT-OFFSET`: it asks the coordinator
(OffsetFetch), which has the last record of each key in memory.
"""
_EXAMPLE_NOTES = """\
Group `delays` of the consumer protocol is in epoch 7, with the hash of its topics' metadata in a tagged field.
"""
_OTHER_TOPICS = """\
## Other topics of coordinators

The coordinators of transactions and of share groups have topics of their own. `__transaction_state` has the partition
`abs(hash(transactional id)) % partitions`; Kafka 4.3 and later add nextProducerEpoch int16 (tag 3) to its values.
Embedded brokers have no `__share_group_state`.
"""


class _Type(NamedTuple):
    """What a record says; `source` is the KIP, and what releases differ in."""

    meaning: str
    source: str


_TYPES: Mapping[int, _Type] = {
    0: _Type("committed offset; since Kafka 0.9 brokers write version 1", ""),
    1: _Type("committed offset of a group and partition", "values 0 to 4"),
    2: _Type("classic group: generation, members, assignments", "values 0 to 4"),
    3: _Type("epoch of the group", "KIP-848; tag 0: KIP-1101"),
    4: _Type("partitions and racks of the subscribed topics; the hash in type 3 replaces it (KIP-1101)", "KIP-848"),
    5: _Type("subscription and client of a member; a classic member has its protocols in tag 0", "KIP-848"),
    6: _Type("epoch for which the target assignment was computed", "KIP-848"),
    7: _Type("target assignment of a member", "KIP-848"),
    8: _Type(
        "epoch and partitions that a member has reached; state 0 stable, 1 unrevoked, 2 unreleased partitions",
        "KIP-848",
    ),
    9: _Type("partitions of the subscribed topics; not in Kafka 4.3 and later", "KIP-932"),
    10: _Type("subscription and client of a member", "KIP-932"),
    11: _Type("epoch of the group", "KIP-932"),
    12: _Type("epoch for which the target assignment was computed", "KIP-932"),
    13: _Type("target assignment of a member", "KIP-932"),
    14: _Type("epoch and partitions of a member", "KIP-932"),
    15: _Type("topics whose share state is being created, exists, or is being deleted", "KIP-932"),
    16: _Type("topics that a regular expression of a subscription matches", "KIP-848"),
    17: _Type("epoch of the group, its topology and settings", "KIP-1071; tags 2 and 3, topology epochs: Kafka 4.4"),
    18: _Type("partitions of the source topics; not in Kafka 4.3 and later", "KIP-1071"),
    19: _Type("process and client of a member", "KIP-1071"),
    20: _Type("epoch for which the target assignment was computed", "KIP-1071"),
    21: _Type("target tasks of a member", "KIP-1071"),
    22: _Type("epoch and tasks that a member has reached", "KIP-1071"),
    23: _Type("topology of the application", "KIP-1071"),
    24: _Type("topic ids for which the target assignment was computed; trunk after Kafka 4.4", "KIP-1071"),
}
# types without a schema in Kafka 4.4
_UNRELEASED: Mapping[int, str] = {
    9: "ShareGroupPartitionMetadata",
    18: "StreamsGroupPartitionMetadata",
    24: "StreamsGroupTargetAssignmentResolvedTopicIds",
}
_GROUP_NOTES = """\
One record is written when a rebalance completes, and one without members when the last member has left. Subscription
and assignment are opaque to the coordinator. `current state timestamp` is the end of the join phase: the timestamp of
the record minus this one is the time of the assignor and of SyncGroup.
"""


def record_formats_page() -> str:
    """The text of docs/record-formats.md."""
    return "\n".join(
        [
            _INTRODUCTION,
            *_types(),
            "## Committed offset\n",
            "Group `delays` commits offset 2,500 of partition 2 of topic `flights`.\n",
            "### Key, version 1\n",
            *_table(_offset_key(), encode_key(OffsetKey("delays", "flights", 2))),
            "### Value, version 3\n",
            *_table(_offset_value(), encode_offset_value(OffsetValue(2_500, 4, "", _COMMITTED_MS))),
            "Versions 0 to 2 have no leader epoch; version 1 has the time of expiration (int64) at its end. Version 4",
            "(Kafka 4.1) has compact strings and may have the topic id.\n",
            _BY_HAND,
            "## Group\n",
            "Group `delays` is in generation 3 with one member, which owns `flights-2`.\n",
            "### Key, version 2\n",
            *_table([("version", "2", _int16(2)), _string("group", "delays")], encode_key(GroupKey("delays"))),
            "### Value, version 3\n",
            *_table(_group_value(), encode_group_value(_GROUP)),
            _GROUP_NOTES,
            "### Subscription of a member, version 3\n",
            *_table(_subscription(), _SUBSCRIPTION),
            "### Assignment of a member, version 3\n",
            *_table(_assignment(), _ASSIGNMENT),
            _MODERN_NOTES,
            *_modern_types(),
            "### Example: type 3\n",
            _EXAMPLE_NOTES,
            *_table(_EPOCH_KEY, _checked_example()[0]),
            *_table(_EPOCH_VALUE, _checked_example()[1]),
            _OTHER_TOPICS,
            *_other_topics(),
        ]
    )


def _types() -> Iterable[str]:
    names = {**_UNRELEASED, **RECORD_TYPES}
    if names.keys() != _TYPES.keys():
        raise SystemExit(f"docs/record_formats.py: update _TYPES: {names.keys() ^ _TYPES.keys()}")
    yield "| version of the key | name in Kafka | content | source |\n|---|---|---|---|"
    for kind, (meaning, source) in _TYPES.items():
        yield f"| {kind} | `{names[kind]}` | {meaning} | {source} |"
    yield ""


def _modern_types() -> Iterable[str]:
    yield "| type | key | value |\n|---|---|---|"
    for kind, (key, value) in sorted(modern_record_classes().items()):
        yield f"| {kind} `{RECORD_TYPES[kind]}` | {_fields(key)} | {_fields(value)} |"
    yield ""


def _other_topics() -> Iterable[str]:
    yield "| topic | type | key | value |\n|---|---|---|---|"
    yield (
        f"| `__transaction_state` | 0 `TransactionLog` | {_fields(TransactionLogKey)} "
        f"| versions 0 and 1 (KIP-890): {_fields(TransactionLogValue)} |"
    )
    partition = "groupId string, topicId uuid, partition int32"
    batches = "stateBatches []{firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16}"
    yield (
        f"| `__share_group_state` | 0 `ShareSnapshot` (KIP-932) | {partition} | snapshotEpoch int32, stateEpoch int32, "
        "leaderEpoch int32, startOffset int64, deliveryCompleteCount int32 (tag 0), createTimestamp int64, "
        f"writeTimestamp int64, {batches} |"
    )
    yield (
        f"| `__share_group_state` | 1 `ShareUpdate`, since a snapshot (KIP-932) | {partition} | snapshotEpoch int32, "
        f"leaderEpoch int32, startOffset int64, deliveryCompleteCount int32 (tag 0), {batches} |"
    )
    yield ""


def _fields(message: Any) -> str:
    return ", ".join(_field_text(field, message.SCHEMA.versions) for field in message.SCHEMA.fields)


def _field_text(field: SchemaField, versions: range) -> str:
    inner = field.type
    if field.fields is not None:
        inner = f"{{{', '.join(_field_text(each, versions) for each in field.fields)}}}"
    notes = [f"tag {field.tag}"] if field.tag is not None else []
    if field.versions.start > versions.start:
        notes.append(f"since version {field.versions.start}")
    question = "?" if len(field.nullable) else ""
    note = f" ({', '.join(notes)})" if notes else ""
    return f"{field.json_name} {'[]' if field.is_array else ''}{inner}{question}{note}"


_SUBSCRIPTION = encode_subscription(
    Subscription(("flights",), owned_partitions=(TopicPartition("flights", 2),), generation_id=2)
)
_ASSIGNMENT = encode_assignment(Assignment((TopicPartition("flights", 2),)))
_MEMBER = MemberValue("app-0-9b2d", None, "app-0", "/10.0.0.7", 300_000, 45_000, _SUBSCRIPTION, _ASSIGNMENT)
_GROUP = GroupValue("consumer", 3, "range", "app-0-9b2d", _COMMITTED_MS, (_MEMBER,))


def _offset_key() -> list[Field]:
    partition = ("partition", "2", _int32(2))
    return [("version", "1", _int16(1)), _string("group", "delays"), _string("topic", "flights"), partition]


def _offset_value() -> list[Field]:
    return [
        ("version", "3", _int16(3)),
        ("offset", "2500", _int64(2_500)),
        ("leader epoch", "4 (-1: unknown)", _int32(4)),
        _string("metadata", ""),
        ("commit timestamp", f"{_COMMITTED_MS} ms", _int64(_COMMITTED_MS)),
    ]


def _group_value() -> list[Field]:
    return [
        ("version", "3", _int16(3)),
        _string("protocol type", "consumer"),
        ("generation", "3", _int32(3)),
        _string("protocol (assignor)", "range"),
        _string("leader", "app-0-9b2d"),
        ("current state timestamp", f"{_COMMITTED_MS} ms", _int64(_COMMITTED_MS)),
        ("number of members", "1", _int32(1)),
        _string("member id", "app-0-9b2d"),
        ("group instance id", "null", _int16(-1)),
        _string("client id", "app-0"),
        _string("client host", "/10.0.0.7"),
        ("rebalance timeout", "300000 ms", _int32(300_000)),
        ("session timeout", "45000 ms", _int32(45_000)),
        ("subscription", f"{len(_SUBSCRIPTION)} bytes, see below", _int32(len(_SUBSCRIPTION)) + _SUBSCRIPTION),
        ("assignment", f"{len(_ASSIGNMENT)} bytes, see below", _int32(len(_ASSIGNMENT)) + _ASSIGNMENT),
    ]


def _subscription() -> list[Field]:
    return [
        ("version", "3", _int16(3)),
        ("number of topics", "1", _int32(1)),
        _string("topic", "flights"),
        ("user data", "null", _int32(-1)),
        ("topics of owned partitions", "1", _int32(1)),
        _string("topic", "flights"),
        ("partitions", "[2]", _int32(1) + _int32(2)),
        ("generation (KIP-792)", "2", _int32(2)),
        ("rack (KIP-881)", "null", _int16(-1)),
    ]


def _assignment() -> list[Field]:
    return [
        ("version", "3", _int16(3)),
        ("number of topics", "1", _int32(1)),
        _string("topic", "flights"),
        ("partitions", "[2]", _int32(1) + _int32(2)),
        ("user data", "null", _int32(-1)),
    ]


_EPOCH_KEY: list[Field] = [
    ("version", "3", struct.pack(">h", 3)),
    ("group", "`delays`", b"\x00\x06delays"),
]
_EPOCH_VALUE: list[Field] = [
    ("version", "0", struct.pack(">h", 0)),
    ("epoch", "7", struct.pack(">i", 7)),
    ("number of tagged fields", "1", b"\x01"),
    ("tag, size", "0, 8 bytes", b"\x00\x08"),
    ("metadata hash", "123456789", struct.pack(">q", 123_456_789)),
]


def _checked_example() -> tuple[bytes, bytes]:
    """Returns key and value of the example, which the decoder has read."""
    key, value = (b"".join(data for _, _, data in fields) for fields in (_EPOCH_KEY, _EPOCH_VALUE))
    decoded = (key_json(key)["data"], value_json(key, value)["data"])
    if decoded != ({"groupId": "delays"}, {"epoch": 7, "metadataHash": 123_456_789}):
        raise AssertionError(f"The decoder returns {decoded}.")
    return key, value


def _table(fields: Sequence[Field], encoded: bytes) -> Iterable[str]:
    described = b"".join(data for _, _, data in fields)
    if described != encoded:
        raise AssertionError(f"The fields are {described.hex(' ')}, but the encoder returns {encoded.hex(' ')}.")
    yield "| Field | Value | Bytes |\n| --- | --- | --- |"
    for name, value, data in fields:
        yield f"| {name} | {value} | `{data.hex(' ')}` |"
    yield ""


def _string(name: str, text: str) -> Field:
    return name, f"`{text}`" if text else "empty", _int16(len(text.encode())) + text.encode()


def _int16(number: int) -> bytes:
    return struct.pack(">h", number)


def _int32(number: int) -> bytes:
    return struct.pack(">i", number)


def _int64(number: int) -> bytes:
    return struct.pack(">q", number)
