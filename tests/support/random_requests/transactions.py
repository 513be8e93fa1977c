"""Random requests of transactional producers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.compared_sides import ComparedSide, Membership, Producer
from support.random_requests.actions import GROUPS, TRANSACTIONAL_IDS, Action, Weighted
from support.random_requests.groups import GroupRequests
from support.random_requests.records import RecordRequests
from support.request_cases import markers

from spark_groupsource.wire import messages
from spark_groupsource.wire.api_keys import ApiKey


class TransactionRequests(RecordRequests, GroupRequests):
    """Requests of transactions, and those that show their effects."""

    def kinds(self) -> Weighted:
        """As in `Choices`."""
        return [
            (self.init_transactional, 3), (self.add_partitions_to, 9), (self.produce_transactional, 9),
            (self.add_offsets, 5), (self.commit_in_transaction, 5), (self.end_transaction, 4), (self.fetch, 4),
            (self.describe_transactions, 3), (self.list_transactions, 1), (self.describe_producers, 2),
            (self.fetch_offsets, 2), (self.list_offsets, 2), (self.write_marker, 1),
        ]  # fmt: skip

    def produce_transactional(self) -> Action:
        name = self.pick("x0", "x0", *TRANSACTIONAL_IDS)
        return self.produce_as(name, self.mostly(name, None, *TRANSACTIONAL_IDS))

    def init_transactional(self) -> Action:
        name = self.pick("x0", "x0", *TRANSACTIONAL_IDS)
        return self.init(name, name, self.mostly("new", "known", "stale", "unknown"))

    def transactional(self) -> tuple[str, Callable[[ComparedSide], dict[str, Any]]]:
        name, epoch = self.pick("x0", "x0", *TRANSACTIONAL_IDS), self.mostly(0, -1, 1)
        full = self.mostly(name, "gone", *TRANSACTIONAL_IDS)

        def own(side: ComparedSide) -> dict[str, Any]:
            producer = side.producers.get(name, Producer())
            return {
                "transactional_id": side.broker.name(full), "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch + epoch,
            }  # fmt: skip

        return f"{full} as {name} epoch {epoch:+}", own

    def add_partitions_to(self) -> Action:
        text, own = self.transactional()
        parts = {self.topic(): [self.partition()] for _ in range(self.pick(1, 2))}

        def build(side: ComparedSide) -> Any:
            topic = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
            topics = [topic(name=side.broker.name(of), partitions=numbers) for of, numbers in parts.items()]
            fields = {f"v3_and_below_{name}": value for name, value in own(side).items()}
            return messages.AddPartitionsToTxnRequest(**fields, v3_and_below_topics=topics)

        return self.action(ApiKey.ADD_PARTITIONS_TO_TXN, f"{text} {parts}", build)

    def add_offsets(self) -> Action:
        text, own = self.transactional()
        group = self.pick(*GROUPS)

        def build(side: ComparedSide) -> Any:
            return messages.AddOffsetsToTxnRequest(**own(side), group_id=side.broker.name(group))

        return self.action(ApiKey.ADD_OFFSETS_TO_TXN, f"{text} {group}", build)

    def commit_in_transaction(self) -> Action:
        text, own = self.transactional()
        group, name, instance = self.member()
        parts = ((self.topic(), self.partition(), self.pick(1, 5)),)
        kind, ahead = self.pick("member", "simple"), self.mostly(0, 1)

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
        return self.action(ApiKey.TXN_OFFSET_COMMIT, text, build, since=3, is_alike=is_alike)

    def end_transaction(self) -> Action:
        text, own = self.transactional()
        is_commit = self.pick(True, False)
        return self.action(
            ApiKey.END_TXN,
            f"{text} {'commit' if is_commit else 'abort'}",
            lambda side: messages.EndTxnRequest(**own(side), committed=is_commit),
        )

    def write_marker(self) -> Action:
        """A marker as `kafka-transactions abort` sends it.

        Its epoch is not higher than the producer's: it would fence the coordinator, whose transaction then never ends.
        """
        name, topic, number = self.pick("x0", *TRANSACTIONAL_IDS), self.topic(), self.partition()
        epoch, coordinator_epoch, is_commit = self.mostly(0, -1), self.mostly(0, -1, 1), self.pick(True, False)

        def build(side: ComparedSide) -> Any:
            producer = side.producers.get(name, Producer())
            marker = (producer.producer_id, producer.epoch + epoch, coordinator_epoch, ((topic, [number]),))
            return markers.markers(marker, committed=is_commit)(side.broker)

        text = f"{topic}-{number} of {name} epoch {epoch:+} coordinator epoch {coordinator_epoch} commit {is_commit}"
        return self.action(ApiKey.WRITE_TXN_MARKERS, text, build)

    def describe_transactions(self) -> Action:
        name = self.pick(*TRANSACTIONAL_IDS, "gone")
        return self.action(
            ApiKey.DESCRIBE_TRANSACTIONS,
            name,
            lambda side: messages.DescribeTransactionsRequest(transactional_ids=[side.broker.name(name)]),
            is_repeatable=True,
        )

    def list_transactions(self) -> Action:
        states = self.pick((), ("Ongoing",), ("Empty", "CompleteCommit"))
        return self.repeatable(ApiKey.LIST_TRANSACTIONS, f"{states}", markers.list_transactions(states))
