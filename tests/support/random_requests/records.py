"""Random requests that write, read and delete records."""

from __future__ import annotations

from typing import Any

from support.compared_sides import ComparedSide, Producer
from support.random_requests.actions import PRODUCERS, TOPICS, Action, Choices, Weighted
from support.request_cases import admin, data

from spark_groupsource.records.encode import Record, encode_batch
from spark_groupsource.wire.api_keys import ApiKey


class RecordRequests(Choices):
    """Requests of records, also of idempotent producers."""

    def kinds(self) -> Weighted:
        """As in `Choices`."""
        return [
            (self.produce, 8), (self.produce_idempotent, 8), (self.fetch, 8), (self.fetch_in_session, 6),
            (self.list_offsets, 5), (self.epoch_ends, 2), (self.delete_records, 2), (self.describe_producers, 2),
            (self.init_producer, 3), (self.produce_several, 3), (self.fetch_several, 4),
        ]  # fmt: skip

    def batch(self, size: int, **options: Any) -> bytes:
        keys = (b"k0", b"k1", b"k0")[: 1 + size % 3]
        return encode_batch(
            [Record(key, b"v" * size, self.records_ms + number) for number, key in enumerate(keys)], **options
        )

    def produce(self) -> Action:
        topic, partition, acks = self.topic(), self.partition(), self.mostly(-1, 1, 2)
        records = self.batch(self.pick(1, 20, 350), codec=self.pick(0, 0, 1, 2, 3, 4))
        records = self.mostly(records, records[:-3], records + records, b"")
        build = data.produce((topic, partition, records), acks=acks)
        text = f"{topic}-{partition} {len(records)} bytes acks {acks}"
        return self.change(ApiKey.PRODUCE, text, build)

    def produce_several(self) -> Action:
        parts = {(self.topic(), self.partition()): self.batch(self.pick(1, 20, 350)) for _ in range(3)}
        build = data.produce(*((*part, records) for part, records in parts.items()))
        return self.change(ApiKey.PRODUCE, f"{[(*part, len(records)) for part, records in parts.items()]}", build)

    def fetch_several(self) -> Action:
        parts = [(self.topic(), self.partition(), self.pick(0, 0, 1, 3)) for _ in range(3)]
        # with a limit between them, Kafka's response ends within a batch, which leaves less for the other partitions
        options = {
            "isolation_level": self.pick(0, 1), "max_bytes": self.pick(1 << 20, 1),
            "min_bytes": self.pick(0, 1), "part_bytes": self.pick(1 << 20, 1, 200),
        }  # fmt: skip
        build = data.fetch(*{part[:2]: part for part in parts}.values(), **options)
        return self.repeatable(ApiKey.FETCH, f"{parts} {options}", build)

    def produce_idempotent(self) -> Action:
        return self.produce_as(self.pick("p0", *PRODUCERS), None)

    def produce_as(self, name: str, transactional_id: str | None) -> Action:
        topic, partition = self.mostly("t0", *TOPICS), self.pick(0, 0, 1)
        skip, epoch, size = self.mostly(0, -1, 1, 2), self.mostly(0, -1, 1), self.pick(1, 2, 20)

        def build(side: ComparedSide) -> Any:
            producer = side.producers.get(name, Producer())
            sequence = max(side.sequences.get((name, topic, partition), 0) + skip, 0)
            records = self.batch(
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
        return self.action(ApiKey.PRODUCE, text, build, read, until=11)

    def fetch(self) -> Action:
        topic, partition, offset = self.topic(), self.partition(), self.pick(0, 0, 1, 2, 5, 9, 30, -1)
        options = {
            "isolation_level": self.pick(0, 1), "part_bytes": self.mostly(1 << 20, 1, 200),
            "epoch": self.mostly(-1, 0, 3), "last_epoch": self.mostly(-1, 0, 3),
        }  # fmt: skip
        build = data.fetch((topic, partition, offset), **options)
        return self.repeatable(ApiKey.FETCH, f"{topic}-{partition} at {offset} {options}", build)

    def fetch_in_session(self) -> Action:
        parts = [(self.pick(*TOPICS), self.pick(0, 1), self.pick(0, 1, 3)) for _ in range(self.pick(0, 1, 2))]
        parts = list({part[:2]: part for part in parts}.values())
        forget = tuple({(self.pick(*TOPICS), self.pick(0, 1)) for _ in range(self.pick(0, 0, 1))})
        kind = self.mostly("next", "new", "next", "final", "next but one")

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
        return self.action(ApiKey.FETCH, text, build, read, since=7)

    def list_offsets(self) -> Action:
        topic, partition = self.topic(), self.partition()
        time = self.pick(-1, -2, -3, 0, self.records_ms, self.records_ms + 1, self.records_ms + 10**6)
        isolation, epoch = self.pick(0, 1), self.mostly(-1, 0, 3)
        build = data.list_offsets((topic, partition, time), isolation=isolation, epoch=epoch)
        text = f"{topic}-{partition} {time} isolation {isolation} epoch {epoch}"
        return self.repeatable(ApiKey.LIST_OFFSETS, text, build, since=7)

    def epoch_ends(self) -> Action:
        topic, partition, epoch, current = self.topic(), self.partition(), self.pick(0, 1), self.mostly(-1, 0, 3)
        build = data.epoch_ends((topic, partition, epoch), current=current)
        return self.repeatable(ApiKey.OFFSET_FOR_LEADER_EPOCH, f"{topic}-{partition} {epoch} {current}", build)

    def delete_records(self) -> Action:
        topic, partition, offset = self.topic(), self.partition(), self.pick(0, 1, 3, 99, -1, -2)
        build = data.delete_records((topic, partition, offset))
        return self.change(ApiKey.DELETE_RECORDS, f"{topic}-{partition} {offset}", build)

    def describe_producers(self) -> Action:
        topic, partition = self.topic(), self.partition()
        build = data.describe_producers((topic, partition))
        return self.repeatable(ApiKey.DESCRIBE_PRODUCERS, f"{topic}-{partition}", build)

    def init_producer(self) -> Action:
        name = self.pick("p0", *PRODUCERS)
        return self.init(name, None, self.mostly("new", "known", "stale"))

    def init(self, name: str, transactional_id: str | None, kind: str) -> Action:
        timeout_ms = self.mostly(60_000, 0, 10**8)

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
        return self.action(ApiKey.INIT_PRODUCER_ID, text, build, read, since=0 if kind == "new" else 3)
