"""Durability across restarts: records, topics, producer ids, groups, committed offsets."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from support.partition_logs import batch
from support.raw_broker import BrokerProcess, RawConnection, create_topic, fetch, fetched_values, metadata, produce
from support.raw_members import commit, committed, heartbeat, join, sync

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.broker.group import coordinator_partition
from spark_groupsource.errors import GroupSourceError
from spark_groupsource.records.header import iter_batches
from spark_groupsource.wire.messages import (
    CreatePartitionsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

FEW = "offsets.topic.num.partitions=2"
NO_DELAY = "group.initial.rebalance.delay.ms=0"
CONFIG = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0"}


def read_all(connection, topic, partition=0):
    values, offset = [], 0
    while True:
        response = fetch(connection, topic, offset, partition=partition)
        assert response.error_code == 0
        if offset >= response.high_watermark:
            return values
        values += fetched_values(response)
        offset = len(values)


@pytest.mark.conformance("LL-030")
@pytest.mark.slow
def test_a_broker_stopped_by_sigterm_continues_after_a_restart(tmp_path):
    with BrokerProcess(tmp_path) as broker:
        with RawConnection(broker.bootstrap_servers) as connection:
            create_topic(connection, "t")
            assert produce(connection, "t", batch(b"a", b"b")).base_offset == 0
            topic_id = metadata(connection, "t", version=12).topics[0].topic_id
            cluster_id = metadata(connection, "t").cluster_id
        assert broker.terminate() == 0
        assert broker.lines[-1] == "stopped"
        assert (tmp_path / ".kafka_cleanshutdown").exists()
    with BrokerProcess(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        assert metadata(connection, "t", version=12).topics[0].topic_id == topic_id
        assert metadata(connection, "t").cluster_id == cluster_id
        assert produce(connection, "t", batch(b"c")).base_offset == 2
        assert read_all(connection, "t") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("rounds", [3])
@pytest.mark.slow
def test_acknowledged_records_survive_kill(tmp_path, rounds):
    """A thread produces until the process is killed, repeatedly."""
    acknowledged: list[bytes] = []
    for number in range(rounds):
        with BrokerProcess(tmp_path, "log.segment.bytes=20000") as broker:
            enough = threading.Event()

            def load(bootstrap=broker.bootstrap_servers, number=number, enough=enough):
                try:
                    with RawConnection(bootstrap) as connection:
                        if not metadata(connection, "t").topics[0].partitions:
                            create_topic(connection, "t")
                        for item in range(1_000_000):
                            value = b"%d-%d" % (number, item)
                            response = produce(connection, "t", batch(value + b"." * 400))
                            assert response.error_code == 0
                            acknowledged.append(value)
                            if item > 150:
                                enough.set()
                except GroupSourceError:
                    pass  # the broker was killed, as it was to be
                finally:
                    enough.set()

            thread = threading.Thread(target=load)
            thread.start()
            assert enough.wait(30)
            broker.kill()
            thread.join()
    with BrokerProcess(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        stored = [value.rstrip(b".") for value in read_all(connection, "t")]
    # at most one more record per round is stored: its response was not received
    assert [value for value in acknowledged if value not in set(stored)] == []
    assert len(stored) == len(set(stored)) <= len(acknowledged) + rounds


@pytest.mark.slow
def test_an_idempotent_producer_writes_no_duplicates_across_a_kill(tmp_path):
    with BrokerProcess(tmp_path) as broker:
        port = broker.address.port
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        failed = []
        for item in range(3000):
            producer.produce("t", b"%d" % item, on_delivery=lambda error, message: error and failed.append(error))
            producer.poll(0)
            if item == 1500:
                broker.kill()
    with BrokerProcess(tmp_path, port=port) as broker:
        assert producer.flush(30) == 0
        assert failed == []
        with RawConnection(broker.bootstrap_servers) as connection:
            assert read_all(connection, "t") == [b"%d" % item for item in range(3000)]


@pytest.mark.slow
def test_sequence_numbers_are_known_after_a_stop_and_after_a_kill(tmp_path):
    def numbered(sequence):
        # of the present: a producer of an older batch has expired at the restart
        return batch(b"x", timestamp_ms=now_ms, producer_id=7, producer_epoch=0, base_sequence=sequence)

    now_ms = int(time.time() * 1000)
    with BrokerProcess(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        assert [produce(connection, "t", numbered(n)).base_offset for n in range(3)] == [0, 1, 2]
        broker.kill()
    with BrokerProcess(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert produce(connection, "t", numbered(2)).base_offset == 2  # a duplicate gets its offset
        assert produce(connection, "t", numbered(5)).error_code == 45
        assert produce(connection, "t", numbered(3)).base_offset == 3
        broker.terminate()
    with BrokerProcess(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert produce(connection, "t", numbered(3)).base_offset == 3
        assert produce(connection, "t", numbered(4)).base_offset == 4


def test_producer_ids_are_unique_across_restarts(tmp_path):
    def new_id(connection):
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
        )
        return connection.call(request, 4).producer_id

    given = []
    for _ in range(3):
        with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
            given += [new_id(connection) for _ in range(3)]
    assert len(set(given)) == 9


def test_deletions_and_added_partitions_survive_a_restart(tmp_path):
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        for name in ("gone", "kept"):
            create_topic(connection, name)
            for item in range(5):
                produce(connection, name, batch(b"%d" % item))
        deleted = connection.call(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=1000), 5)
        assert deleted.responses[0].error_code == 0
        assert not list(tmp_path.glob("gone-*"))
        topic = DeleteRecordsRequest.DeleteRecordsTopic
        partition = topic.DeleteRecordsPartition(partition_index=0, offset=3)
        request = DeleteRecordsRequest(topics=[topic(name="kept", partitions=[partition])], timeout_ms=1000)
        assert connection.call(request, 2).topics[0].partitions[0].low_watermark == 3
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name="kept", count=3, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
        assert connection.call(request, 3).results[0].error_code == 0
    with EmbeddedBroker(tmp_path) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert metadata(connection, "gone").topics[0].error_code == 3
        assert len(metadata(connection, "kept").topics[0].partitions) == 3
        assert fetch(connection, "kept", 2).error_code == 1
        assert fetched_values(fetch(connection, "kept", 3)) == [b"3", b"4"]
        topic = ListOffsetsRequest.ListOffsetsTopic
        wanted = topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-2)
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic(name="kept", partitions=[wanted])])
        assert connection.call(request, 7).topics[0].partitions[0].offset == 3


# --- groups ---


@pytest.mark.parametrize("end", ["kill", "terminate"])
@pytest.mark.slow
def test_a_group_keeps_its_generation_after_a_restart(tmp_path, end):
    with BrokerProcess(tmp_path, FEW, NO_DELAY) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        joined = join(connection)
        assert sync(connection, joined).assignment == b"mine"
        assert commit(connection, joined, 41) == 0
        assert commit(connection, joined, 42) == 0
        getattr(broker, end)()
    with BrokerProcess(tmp_path, FEW, NO_DELAY) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert heartbeat(connection, joined) == 0
        assert committed(connection) == {("t", 0): (42, "m")}
        (group,) = connection.call(DescribeGroupsRequest(groups=["g"]), 5).groups
        assert (group.group_state, [member.member_id for member in group.members]) == ("Stable", [joined.member_id])
        assert commit(connection, joined, 43) == 0
        stale = joined.generation_id
        joined.generation_id = stale + 5
        assert (heartbeat(connection, joined), commit(connection, joined, 99)) == (22, 22)
        assert committed(connection) == {("t", 0): (43, "m")}


@pytest.mark.conformance("SM-021")
def test_a_corrupt_offsets_partition_is_reported_and_only_its_groups_are_unavailable(tmp_path):
    groups = {
        number: next(f"g{i}" for i in range(99) if coordinator_partition(f"g{i}", 2) == number) for number in (0, 1)
    }
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        for group in groups.values():
            joined = join(connection, group=group)
            sync(connection, joined, group)
            assert [commit(connection, joined, offset, group=group) for offset in (5, 6)] == [0, 0]
    path = tmp_path / "__consumer_offsets-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    second = list(iter_batches(data))[1]
    data[second.position + 70] ^= 1
    path.write_bytes(data)
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert committed(connection, groups[1]) == {("t", 0): (6, "m")}
        (found,) = connection.call(
            FindCoordinatorRequest(key_type=0, coordinator_keys=[groups[0]]), 4
        ).coordinators
        assert found.error_code == 15 and "is damaged at byte" in found.error_message
        assert any("Loading groups of __consumer_offsets-0 failed" in line for line in broker.reports)
        # after DeleteRecords, as the message suggests, the groups are loaded from the remaining records
        topic = DeleteRecordsRequest.DeleteRecordsTopic
        partition = topic.DeleteRecordsPartition(partition_index=0, offset=second.next_offset)
        request = DeleteRecordsRequest(topics=[topic(name="__consumer_offsets", partitions=[partition])], timeout_ms=1)
        assert connection.call(request, 2).topics[0].partitions[0].error_code == 0
        assert committed(connection, groups[0]) == {("t", 0): (6, "m")}
        assert connection.call(request, 2).topics[0].partitions[0].error_code == 17  # nothing damaged is left


def test_deleting_a_topic_removes_its_committed_offsets(tmp_path):
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        create_topic(connection, "other")
        joined = join(connection)
        sync(connection, joined)
        assert commit(connection, joined, 5) == commit(connection, joined, 6, topic="other") == 0
        assert commit(connection, joined, 6, topic="nowhere") == 3
        connection.call(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
        assert committed(connection) == {("other", 0): (6, "m")}
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert committed(connection) == {("other", 0): (6, "m")}


def test_the_offsets_topic_cannot_be_deleted(tmp_path):
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        join(connection)
        response = connection.call(DeleteTopicsRequest(topic_names=["__consumer_offsets"], timeout_ms=1000), 5)
        assert response.responses[0].error_code == 44


@pytest.mark.slow
def test_a_librdkafka_consumer_continues_after_a_restart_on_the_same_port(tmp_path):
    with BrokerProcess(tmp_path, FEW, NO_DELAY, "num.partitions=2") as broker:
        port = broker.address.port
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        for item in range(100):
            producer.produce("t", b"%d" % item, partition=item % 2)
        assert producer.flush(20) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
                "reconnect.backoff.max.ms": 100,
            }
        )
        consumer.subscribe(["t"])
        seen = [message.value() for message in consume(consumer, 100)]
        consumer.commit(asynchronous=False)
        broker.kill()
    with BrokerProcess(tmp_path, FEW, NO_DELAY, port=port) as broker:
        for item in range(100, 200):
            producer.produce("t", b"%d" % item, partition=item % 2)
        assert producer.flush(20) == 0
        seen += [message.value() for message in consume(consumer, 100)]
        partitions = consumer.committed([ConfluentPartition("t", 0), ConfluentPartition("t", 1)], 10)
        assert [partition.offset for partition in partitions] == [50, 50]
        consumer.close()
    assert sorted(seen) == sorted(b"%d" % item for item in range(200))


def consume(consumer, count):
    messages = []
    for _ in range(60):
        messages += [message for message in consumer.consume(count - len(messages), 0.5) if not message.error()]
        if len(messages) >= count:
            return messages
    raise AssertionError(f"{len(messages)} of {count} messages came")


@pytest.mark.parametrize("end", ["clean", "unclean"])
def test_leader_epochs_increase_after_an_unclean_shutdown(tmp_path, end):
    """After a power loss the log may be shorter and grow again, which a consumer detects by the epoch (KIP-320)."""
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "t")
        for value in (b"kept", b"lost", b"lost, too"):
            assert produce(connection, "t", batch(value)).error_code == 0
    if end == "unclean":
        (tmp_path / ".kafka_cleanshutdown").unlink()
        (tmp_path / "recovery-point-offset-checkpoint").unlink()
        (path,) = tmp_path.glob("t-0/*.log")
        second = list(iter_batches(path.read_bytes()))[1]
        with open(path, "r+b") as file:
            file.truncate(second.position)
    with EmbeddedBroker(tmp_path, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
        assert metadata(connection, "t").topics[0].partitions[0].leader_epoch == (end == "unclean")
        for value in (b"a", b"b", b"c"):
            assert produce(connection, "t", batch(value)).error_code == 0
        assert end_of_epoch(connection, "t", epoch=0) == ((0, 1) if end == "unclean" else (0, 6))
        create_topic(connection, "new")
    if end == "unclean":
        (tmp_path / ".kafka_cleanshutdown").unlink()
        (tmp_path / "leaders.json").unlink()  # it could not be stored: the epochs of the logs are still exceeded
        with EmbeddedBroker(tmp_path, config=CONFIG) as broker, RawConnection(broker.bootstrap_servers) as connection:
            assert metadata(connection, "t").topics[0].partitions[0].leader_epoch == 2
            assert [end_of_epoch(connection, "t", epoch) for epoch in (0, 1, 2)] == [(0, 1), (1, 4), (2, 4)]


def end_of_epoch(connection, topic, epoch):
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = wanted.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[wanted(topic=topic, partitions=[partition])])
    (found,) = connection.call(request, 4).topics[0].partitions
    return found.leader_epoch, found.end_offset
