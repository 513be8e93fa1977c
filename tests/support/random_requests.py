"""Random requests to two brokers, valid ones and slightly invalid ones.

An action is the same for both brokers; it builds its request for one of them (`ComparedSide`), whose responses it reads
afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from support.compared_sides import ComparedSide, Membership, Producer, Request
from support.request_cases import admin, data, groups, markers

from spark_groupsource.broker.api.versions import SERVED
from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire import messages
from spark_groupsource.wire.api_keys import ApiKey

TOPICS = ("t0", "t1", "t2")
GROUPS = ("g0", "g1")
MEMBERS = ("m0", "m1", "m2")
PRODUCERS = ("p0", "p1")
TRANSACTIONAL_IDS = ("x0", "x1")
SESSION_MS = 120_000
_PROTOCOLS = ((("range", b"\0\1"),), (("range", b"\0\2"), ("sticky", b"")), (("sticky", b""),))


class Action(NamedTuple):
    """One request.

    Attributes: `text`, names it in a report; `member`, the connection on which it may wait, None if it has a response
    at once; `is_repeatable`, whether it changes nothing, so that it can be sent again until the brokers agree;
    `is_alike`, False where the brokers differ on purpose afterwards, or Kafka's behavior depends on chance.
    """

    text: str
    api: ApiKey
    version: int
    build: Callable[[ComparedSide], Any]
    read: Callable[[ComparedSide, Any], None] = lambda side, response: None
    member: str | None = None
    is_repeatable: bool = False
    is_alike: Callable[[ComparedSide], bool] = lambda side: True

    def request(self, side: ComparedSide) -> Request:
        """The request for one of the brokers."""
        side.broker.version = self.version
        return Request(self.build(side), self.version)


class RandomRequests:
    """Yields actions. Equal seeds yield equal actions. `records_ms`: timestamp of the records."""

    def __init__(self, seed: int, records_ms: int) -> None:
        self._random = random.Random(seed)
        self._records_ms = records_ms
        topics = [
            (self._create_topic, 2), (self._delete_topic, 1), (self._add_partitions, 1), (self._alter_topic, 1),
            (self._describe_configs, 1), (self._metadata, 2),
        ]  # fmt: skip
        records = [
            (self._produce, 8), (self._produce_idempotent, 8), (self._fetch, 8), (self._fetch_in_session, 6),
            (self._list_offsets, 5), (self._epoch_ends, 2), (self._delete_records, 2), (self._describe_producers, 2),
            (self._init_producer, 3),
        ]  # fmt: skip
        members = [
            (self._join, 10), (self._sync, 10), (self._heartbeat, 6), (self._leave, 2), (self._commit, 8),
            (self._fetch_offsets, 4), (self._delete_offsets, 2), (self._describe_groups, 4), (self._list_groups, 2),
            (self._delete_group, 1),
        ]  # fmt: skip
        transactions = [
            (self._init_transactional, 3), (self._add_partitions_to, 9), (self._produce_transactional, 9),
            (self._add_offsets, 5), (self._commit_in_transaction, 5), (self._end_transaction, 4), (self._fetch, 4),
            (self._describe_transactions, 3), (self._list_transactions, 1), (self._describe_producers, 2),
            (self._fetch_offsets, 2), (self._list_offsets, 2),
        ]  # fmt: skip
        fields = [topics, records, members, transactions]
        # the requests of one field reach states that those of all fields do not
        focus = self._pick(*fields)
        self._kinds: list[Callable[[], Action]] = []
        for field in fields:
            for kind, weight in field:
                self._kinds += [kind] * (weight * (8 if field is focus and focus is not topics else 1))

    def next(self) -> Action:
        """The next action."""
        kind: Callable[[], Action] = self._pick(*self._kinds)
        return kind()

    # --- choices ---

    def _pick(self, *values: Any) -> Any:
        return self._random.choice(values)

    def _mostly(self, usual: Any, *others: Any) -> Any:
        return usual if self._random.random() < 0.92 else self._pick(*others)

    def _topic(self) -> str:
        return str(self._mostly(self._pick("t0", "t0", "t1"), *TOPICS, "gone"))

    def _partition(self) -> int:
        return int(self._mostly(self._pick(0, 0, 1), 2, -1))

    def _action(
        self, api: ApiKey, text: str, build: Any, *others: Any, since: int = 0, until: int = 99, **more: Any
    ) -> Action:
        served = SERVED[api]
        version = self._random.randint(max(served.min_version, since), min(served.max_version, until))
        return Action(f"{api.name} v{version} {text}", api, version, build, *others, **more)

    # --- topics ---

    def _create_topic(self) -> Action:
        topic, count = self._pick(*TOPICS), self._mostly(self._pick(1, 2), 0, -1, -2)
        settings = self._mostly({}, {"cleanup_policy": "compact"}, {"max_message_bytes": "300"}, {"retention_ms": "x"})
        build = admin.create(topic, partitions=count, **{"retention_ms": "-1", **settings})
        return self._change(ApiKey.CREATE_TOPICS, f"{topic} {count} {settings}", build, since=4)

    def _delete_topic(self) -> Action:
        topic = self._topic()
        return self._change(ApiKey.DELETE_TOPICS, topic, admin.delete(topic), _forget_topic(topic))

    def _add_partitions(self) -> Action:
        topic, count = self._topic(), self._pick(0, 1, 2, 3)
        return self._change(ApiKey.CREATE_PARTITIONS, f"{topic} {count}", admin.more((topic, count)))

    def _alter_topic(self) -> Action:
        topic, operation = self._topic(), self._pick(0, 1, 2, 3)
        # settings without an effect on later requests, because Kafka applies a change after its response
        setting = self._pick(("retention.bytes", "1000000"), ("cleanup.policy", "delete"), ("segment.bytes", "x"))
        build = admin.change((admin.TOPIC, topic, [(setting[0], operation, setting[1])]))
        return self._change(ApiKey.INCREMENTAL_ALTER_CONFIGS, f"{topic} {setting} {operation}", build)

    def _describe_configs(self) -> Action:
        topic = self._topic()
        build = admin.describe_configs((admin.TOPIC, topic, ["retention.bytes", "cleanup.policy"]))
        return self._read(ApiKey.DESCRIBE_CONFIGS, topic, build)

    def _metadata(self) -> Action:
        topic = self._topic()
        return self._read(ApiKey.METADATA, topic, admin.metadata(topic), since=4)

    def _change(self, api: ApiKey, text: str, build: Any, *others: Any, **more: Any) -> Action:
        """A request without ids that a broker has assigned."""
        return self._action(api, text, lambda side: build(side.broker), *others, **more)

    def _read(self, api: ApiKey, text: str, build: Any, **more: Any) -> Action:
        return self._change(api, text, build, is_repeatable=True, **more)

    # --- records ---

    def _batch(self, size: int, **options: Any) -> bytes:
        keys = (b"k0", b"k1", b"k0")[: 1 + size % 3]
        return encode_batch(
            [Record(key, b"v" * size, self._records_ms + number) for number, key in enumerate(keys)], **options
        )

    def _produce(self) -> Action:
        topic, partition, acks = self._topic(), self._partition(), self._mostly(-1, 1, 2)
        records = self._batch(self._pick(1, 20, 350), codec=self._pick(0, 0, 1, 2, 3, 4))
        records = self._mostly(records, records[:-3], records + records, b"")
        build = data.produce((topic, partition, records), acks=acks)
        text = f"{topic}-{partition} {len(records)} bytes acks {acks}"
        return self._change(ApiKey.PRODUCE, text, build)

    def _produce_idempotent(self) -> Action:
        return self._produce_as(self._pick("p0", *PRODUCERS), None)

    def _produce_transactional(self) -> Action:
        name = self._pick("x0", "x0", *TRANSACTIONAL_IDS)
        return self._produce_as(name, self._mostly(name, None, *TRANSACTIONAL_IDS))

    def _produce_as(self, name: str, transactional_id: str | None) -> Action:
        topic, partition = self._mostly("t0", *TOPICS), self._pick(0, 0, 1)
        skip, epoch, size = self._mostly(0, -1, 1, 2), self._mostly(0, -1, 1), self._pick(1, 2, 20)

        def build(side: ComparedSide) -> Any:
            producer = side.producers.get(name, Producer())
            sequence = max(side.sequences.get((name, topic, partition), 0) + skip, 0)
            records = self._batch(
                size, producer_id=producer.producer_id, producer_epoch=producer.epoch + epoch, base_sequence=sequence,
                transactional=transactional_id is not None,
            )  # fmt: skip
            full = None if transactional_id is None else side.broker.name(transactional_id)
            return data.produce((topic, partition, records), transactional_id=full)(side.broker)

        def read(side: ComparedSide, response: Any) -> None:
            if response.responses[0].partition_responses[0].error_code == 0 and not skip:
                key = name, topic, partition
                side.sequences[key] = side.sequences.get(key, 0) + 1 + size % 3

        text = f"{topic}-{partition} of {name}, transactional id {transactional_id}, sequence {skip:+}, epoch {epoch:+}"
        # a transactional batch adds its partition from version 12 on (KIP-890, transaction protocol 2)
        return self._action(ApiKey.PRODUCE, text, build, read, until=11)

    def _fetch(self) -> Action:
        topic, partition, offset = self._topic(), self._partition(), self._pick(0, 0, 1, 2, 5, 9, 30, -1)
        options = {
            "isolation_level": self._pick(0, 1), "part_bytes": self._mostly(1 << 20, 1, 200),
            "epoch": self._mostly(-1, 0, 3), "last_epoch": self._mostly(-1, 0, 3),
        }  # fmt: skip
        build = data.fetch((topic, partition, offset), **options)
        return self._read(ApiKey.FETCH, f"{topic}-{partition} at {offset} {options}", build)

    def _fetch_in_session(self) -> Action:
        parts = [(self._pick(*TOPICS), self._pick(0, 1), self._pick(0, 1, 3)) for _ in range(self._pick(0, 1, 2))]
        parts = list({part[:2]: part for part in parts}.values())
        forget = tuple({(self._pick(*TOPICS), self._pick(0, 1)) for _ in range(self._pick(0, 0, 1))})
        kind = self._mostly("next", "new", "next", "final", "next but one")

        def build(side: ComparedSide) -> Any:
            epoch = {"new": 0, "final": -1, "next but one": side.session_epoch + 1}.get(kind, side.session_epoch)
            session = 0 if kind == "new" or not side.broker.session_id else -1
            return data.fetch(*parts, session=(session, epoch), forget=() if epoch < 1 else forget)(side.broker)

        def read(side: ComparedSide, response: Any) -> None:
            if not response.session_id:
                side.session_epoch, side.broker.session_id = 0, 0
            elif kind != "next but one":
                side.session_epoch = 1 if kind == "new" else side.session_epoch + 1

        text = f"{kind} epoch of the session, {parts}, forget {forget}"
        return self._action(ApiKey.FETCH, text, build, read, since=7)

    def _list_offsets(self) -> Action:
        topic, partition = self._topic(), self._partition()
        time = self._pick(-1, -2, -3, 0, self._records_ms, self._records_ms + 1, self._records_ms + 10**6)
        isolation, epoch = self._pick(0, 1), self._mostly(-1, 0, 3)
        build = data.list_offsets((topic, partition, time), isolation=isolation, epoch=epoch)
        text = f"{topic}-{partition} {time} isolation {isolation} epoch {epoch}"
        return self._read(ApiKey.LIST_OFFSETS, text, build, since=7)

    def _epoch_ends(self) -> Action:
        topic, partition, epoch, current = self._topic(), self._partition(), self._pick(0, 1), self._mostly(-1, 0, 3)
        build = data.epoch_ends((topic, partition, epoch), current=current)
        return self._read(ApiKey.OFFSET_FOR_LEADER_EPOCH, f"{topic}-{partition} {epoch} {current}", build)

    def _delete_records(self) -> Action:
        topic, partition, offset = self._topic(), self._partition(), self._pick(0, 1, 3, 99, -1, -2)
        build = data.delete_records((topic, partition, offset))
        return self._change(ApiKey.DELETE_RECORDS, f"{topic}-{partition} {offset}", build)

    def _describe_producers(self) -> Action:
        topic, partition = self._topic(), self._partition()
        build = data.describe_producers((topic, partition))
        return self._read(ApiKey.DESCRIBE_PRODUCERS, f"{topic}-{partition}", build)

    # --- groups ---

    def _member(self) -> tuple[str, str, str | None]:
        """A group, a member and its instance id: every third member is static."""
        group, name = self._pick("g0", "g0", *GROUPS), self._pick("m0", "m0", *MEMBERS)
        return group, name, self._mostly(name if name == MEMBERS[-1] else None, None)

    def _join(self) -> Action:
        group, name, instance = self._member()
        protocols, kind = self._mostly(_PROTOCOLS[0], *_PROTOCOLS), self._mostly("consumer", "connect")
        given = self._mostly("its own", "none", "unknown")
        session_ms = self._mostly(SESSION_MS, 1)

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
        return self._action(ApiKey.JOIN_GROUP, text, build, read, f"{group}-{name}", since=since)

    def _sync(self) -> Action:
        group, name, instance = self._member()
        ahead, protocol = self._mostly(0, 1, -1), self._mostly("range", "sticky", None)
        assigned = self._mostly(MEMBERS, (), MEMBERS[:1])

        def build(side: ComparedSide) -> Any:
            member = side.member(group, name)
            ids = side.member_ids(group)
            shares = tuple((ids[each], each.encode()) for each in assigned if each in ids)
            generation = member.generation + ahead
            return groups.sync(group, generation, member.member_id, instance, "consumer", protocol, shares)(side.broker)

        text = f"{group} {name} {instance} generation {ahead:+} {protocol} assigns {assigned}"
        return self._action(ApiKey.SYNC_GROUP, text, build, member=f"{group}-{name}", since=3 if instance else 0)

    def _heartbeat(self) -> Action:
        group, name, instance = self._member()
        ahead = self._mostly(0, 1, -1)

        def build(side: ComparedSide) -> Any:
            member = side.member(group, name)
            return groups.heartbeat(group, member.generation + ahead, member.member_id, instance)(side.broker)

        return self._action(ApiKey.HEARTBEAT, f"{group} {name} {instance} {ahead:+}", build, since=3 if instance else 0)

    def _leave(self) -> Action:
        group, name, instance = self._member()
        others = self._mostly((), (("stranger", None),), (("", "m2"),))

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
        return self._action(ApiKey.LEAVE_GROUP, text, build, read, since=since, is_alike=is_alike)

    def _commit(self) -> Action:
        group, name, instance = self._member()
        parts = [(self._topic(), self._partition(), self._pick(0, 3, 7)) for _ in range(self._pick(1, 1, 2))]
        ahead, kind = self._mostly(0, 1, -1), self._mostly("member", "simple", "simple")

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
        return self._action(ApiKey.OFFSET_COMMIT, text, build, read, since=7)

    def _fetch_offsets(self) -> Action:
        group, topic = self._pick("g0", *GROUPS, "gone"), self._topic()
        wanted, stable = self._pick(None, ((topic, [0, 1]),)), self._pick(False, True)
        build = groups.fetch_offsets((group, wanted), stable=stable)
        return self._read(ApiKey.OFFSET_FETCH, f"{group} {wanted} stable {stable}", build, since=2)

    def _delete_offsets(self) -> Action:
        group, topic = self._pick("g0", *GROUPS, "gone"), self._topic()
        build = groups.delete_offsets(group, (topic, [0, 1]))
        return self._change(ApiKey.OFFSET_DELETE, f"{group} {topic}", build)

    def _describe_groups(self) -> Action:
        group = self._pick("g0", *GROUPS, "gone")
        return self._read(ApiKey.DESCRIBE_GROUPS, group, groups.describe_groups(group))

    def _list_groups(self) -> Action:
        states = self._pick((), ("Empty",), ("Stable", "PreparingRebalance"))
        return self._read(ApiKey.LIST_GROUPS, f"{states}", groups.list_groups(states))

    def _delete_group(self) -> Action:
        group = self._pick("g0", *GROUPS, "gone")

        def read(side: ComparedSide, response: Any) -> None:
            if response.results[0].error_code == 0:
                side.groups.discard(group)

        return self._change(ApiKey.DELETE_GROUPS, group, groups.delete_groups(group), read)

    # --- producers and transactions ---

    def _init_producer(self) -> Action:
        name = self._pick("p0", *PRODUCERS)
        return self._init(name, None, self._mostly("new", "known", "stale"))

    def _init_transactional(self) -> Action:
        name = self._pick("x0", "x0", *TRANSACTIONAL_IDS)
        return self._init(name, name, self._mostly("new", "known", "stale", "unknown"))

    def _init(self, name: str, transactional_id: str | None, kind: str) -> Action:
        timeout_ms = self._mostly(60_000, 0, 10**8)

        def build(side: ComparedSide) -> Any:
            producer = side.producers.get(name, Producer())
            known = {"known": producer, "stale": producer._replace(epoch=producer.epoch - 1), "unknown": Producer()}
            full = None if transactional_id is None else side.broker.name(transactional_id)
            given = known.get(kind, Producer(-1, -1))
            return admin.producer_id(full, timeout_ms, given.producer_id, max(given.epoch, -1))(side.broker)

        def read(side: ComparedSide, response: Any) -> None:
            if response.error_code == 0:
                side.producers[name] = Producer(response.producer_id, response.producer_epoch)
                side.sequences = {key: value for key, value in side.sequences.items() if key[0] != name}

        text = f"{name} {transactional_id} {kind} {timeout_ms} ms"
        return self._action(ApiKey.INIT_PRODUCER_ID, text, build, read, since=0 if kind == "new" else 3)

    def _transactional(self) -> tuple[str, Callable[[ComparedSide], dict[str, Any]]]:
        name, epoch = self._pick("x0", "x0", *TRANSACTIONAL_IDS), self._mostly(0, -1, 1)
        full = self._mostly(name, "gone", *TRANSACTIONAL_IDS)

        def own(side: ComparedSide) -> dict[str, Any]:
            producer = side.producers.get(name, Producer())
            return {
                "transactional_id": side.broker.name(full), "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch + epoch,
            }  # fmt: skip

        return f"{full} as {name} epoch {epoch:+}", own

    def _add_partitions_to(self) -> Action:
        text, own = self._transactional()
        parts = {self._topic(): [self._partition()] for _ in range(self._pick(1, 2))}

        def build(side: ComparedSide) -> Any:
            topic = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
            topics = [topic(name=side.broker.name(of), partitions=numbers) for of, numbers in parts.items()]
            fields = {f"v3_and_below_{name}": value for name, value in own(side).items()}
            return messages.AddPartitionsToTxnRequest(**fields, v3_and_below_topics=topics)

        return self._action(ApiKey.ADD_PARTITIONS_TO_TXN, f"{text} {parts}", build)

    def _add_offsets(self) -> Action:
        text, own = self._transactional()
        group = self._pick(*GROUPS)

        def build(side: ComparedSide) -> Any:
            return messages.AddOffsetsToTxnRequest(**own(side), group_id=side.broker.name(group))

        return self._action(ApiKey.ADD_OFFSETS_TO_TXN, f"{text} {group}", build)

    def _commit_in_transaction(self) -> Action:
        text, own = self._transactional()
        group, name, instance = self._member()
        parts = ((self._topic(), self._partition(), self._pick(1, 5)),)
        kind, ahead = self._pick("member", "simple"), self._mostly(0, 1)

        def build(side: ComparedSide) -> Any:
            topic = messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
            topics = [
                topic(name=side.broker.name(of), partitions=[topic.TxnOffsetCommitRequestPartition(
                    partition_index=number, committed_offset=offset, committed_leader_epoch=0, committed_metadata="x"
                )])
                for of, number, offset in parts
            ]  # fmt: skip
            member = side.member(group, name) if kind == "member" else Membership()
            return messages.TxnOffsetCommitRequest(
                **own(side), group_id=side.broker.name(group), topics=topics, member_id=member.member_id,
                generation_id=member.generation + (ahead if kind == "member" else 0),
                group_instance_id=instance if kind == "member" else None,
            )  # fmt: skip

        def is_alike(side: ComparedSide) -> bool:
            # an aborted transaction with the first offsets of a group leaves an Empty group in Kafka (docs/apis.md)
            return group in side.groups

        text = f"{text} {group} {name} {instance} {kind} {ahead:+} {parts}"
        return self._action(ApiKey.TXN_OFFSET_COMMIT, text, build, since=3, is_alike=is_alike)

    def _end_transaction(self) -> Action:
        text, own = self._transactional()
        is_commit = self._pick(True, False)
        return self._action(
            ApiKey.END_TXN,
            f"{text} {'commit' if is_commit else 'abort'}",
            lambda side: messages.EndTxnRequest(**own(side), committed=is_commit),
        )

    def _describe_transactions(self) -> Action:
        name = self._pick(*TRANSACTIONAL_IDS, "gone")
        return self._action(
            ApiKey.DESCRIBE_TRANSACTIONS,
            name,
            lambda side: messages.DescribeTransactionsRequest(transactional_ids=[side.broker.name(name)]),
            is_repeatable=True,
        )

    def _list_transactions(self) -> Action:
        states = self._pick((), ("Ongoing",), ("Empty", "CompleteCommit"))
        return self._read(ApiKey.LIST_TRANSACTIONS, f"{states}", markers.list_transactions(states))


def _forget_topic(topic: str) -> Callable[[ComparedSide, Any], None]:
    def read(side: ComparedSide, response: Any) -> None:
        side.broker.forget(topic)
        side.sequences = {key: value for key, value in side.sequences.items() if key[1] != topic}

    return read
