"""Forms of startingOffsets, with and without committed offsets; on both clusters.

Readers are called directly, without Spark; test_restart_positions covers restarts through Spark.
"""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from support.clients import open_cluster
from support.direct_readers import BatchQuery, StreamQuery
from support.removed_members import remove_members
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.admin import delete_offsets, describe_groups
from spark_groupsource.client.cluster.cluster_client import LATEST, ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import BrokerError, ConfigurationError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.wire.commit_reports import commit_metadata

pytestmark = pytest.mark.usefixtures("in_process")

HOUR_MS = 3_600_000
# log end offsets
ENDS = {0: 30, 1: 20}


@pytest.fixture(scope="session")
def aged(cluster):
    """Partitions of 30 and 20 records, one and a half hours apart, the last of each two hours old."""
    topic = f"aged-{uuid4().hex[:8]}"
    create_topic(cluster.bootstrap_servers, topic, len(ENDS))
    timestamp_ms = time.time_ns() // 10**6
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for partition, count in ENDS.items():
        for n in range(count):
            at_ms = timestamp_ms - 2 * HOUR_MS - (count - 1 - n) * 3 * HOUR_MS // 2
            producer.produce(topic, b"%d" % n, None, partition, timestamp=at_ms)
    assert not producer.flush(30)
    return topic


@pytest.fixture
def client(cluster):
    servers = cluster.bootstrap_servers
    with ClusterClient(servers, ClientSettings.parse({"bootstrap.servers": servers})) as opened:
        yield opened


def options(topic, group, **given):
    return {"subscribe": topic, "kafka.group.id": group, **given}


def begins(rows):
    """Returns partition -> first offset read."""
    found = {}
    for row in rows:
        found[row["partition"]] = min(row["offset"], found.get(row["partition"], row["offset"]))
    return found


def commit(client, topic, group, committed):
    if committed:
        client.commit(group, {TopicPartition(topic, p): OffsetAndMetadata(n) for p, n in committed.items()})


# startingOffsets, committed offsets, start offsets of a new stream, of a batch read; T is the topic
FORMS = [
    ("earliest", {}, {0: 0, 1: 0}, {0: 0, 1: 0}),
    ("earliest", {0: 7}, {0: 7, 1: 0}, {0: 0, 1: 0}),
    ("latest", {0: 7}, {0: 7}, None),
    ("group", {0: 7, 1: 9}, {0: 7, 1: 9}, {0: 7, 1: 9}),
    ("group-or-earliest", {0: 7}, {0: 7, 1: 0}, {0: 7, 1: 0}),
    ("group-or-latest", {0: 7}, {0: 7}, None),
    ("Group-Or-Earliest", {}, {0: 0, 1: 0}, {0: 0, 1: 0}),
    ("-5", {}, {0: 25, 1: 15}, {0: 25, 1: 15}),
    ("-25", {0: 3}, {0: 3, 1: 0}, {0: 5, 1: 0}),
    ("-10h", {}, {0: 24, 1: 14}, {0: 24, 1: 14}),
    ("-100m", {}, {}, {}),
    ("-3d", {1: 19}, {0: 0, 1: 19}, {0: 0, 1: 0}),
    ("-99999d", {}, {0: 0, 1: 0}, {0: 0, 1: 0}),
    ('{"T": "earliest"}', {0: 9}, {0: 9, 1: 0}, {0: 0, 1: 0}),
    ('{"T": {"0": 29, "1": -1}}', {}, {0: 29}, None),
    ('{"T": {"0": 29, "1": -2}}', {}, {0: 29, 1: 0}, {0: 29, 1: 0}),
]


@pytest.mark.parametrize("form, committed, expected, _", FORMS)
def test_start_of_a_stream(cluster, client, aged, group, form, committed, expected, _):
    commit(client, aged, group, committed)
    with StreamQuery(cluster, options(aged, group, startingOffsets=form.replace("T", aged))) as query:
        assert begins(query.run().rows) == expected
        committed_offsets = {p.partition: c.offset for p, c in client.fetch_committed(group).items() if c}
        assert committed_offsets == ENDS, "also for partitions without records"


@pytest.mark.parametrize("form, committed, _, expected", FORMS)
def test_start_of_a_batch_read(cluster, client, aged, group, form, committed, _, expected):
    commit(client, aged, group, committed)
    given = options(aged, group, startingOffsets=form.replace("T", aged))
    if expected is None:
        with pytest.raises(ConfigurationError, match="latest"):
            BatchQuery(cluster, given)
    else:
        assert begins(BatchQuery(cluster, given).rows) == expected
        assert not describe_groups(client, [group])[group].members


def run_stream(cluster, given):
    with StreamQuery(cluster, given) as query:
        return query.run()


@pytest.mark.parametrize("read", [run_stream, BatchQuery])
def test_committed_offset_of_a_deleted_topic_of_the_name_is_ignored(cluster, client, aged, group, read):
    # a transaction, or a broker before Kafka 4.1, accepts it after the topic was created again
    cluster_id = client.metadata(()).cluster_id
    of_deleted = OffsetAndMetadata(7, commit_metadata("reader", str(uuid4()), cluster_id=cluster_id))
    topic_id = client.metadata([aged]).topics[aged].topic_id
    of_present = OffsetAndMetadata(9, commit_metadata("reader", str(topic_id)))
    client.commit(group, {TopicPartition(aged, 0): of_deleted, TopicPartition(aged, 1): of_present})
    found = read(cluster, options(aged, group, startingOffsets="group-or-earliest"))
    assert begins(found.rows) == {0: 0, 1: 9}


@pytest.mark.parametrize("is_own", [True, False])
def test_leader_before_the_epoch_of_a_committed_offset_is_not_asked(cluster, aged, group, is_own):
    """A leader that is cut off from its controller has an earlier epoch than the records that were read since."""
    tp = TopicPartition(aged, 0)
    with open_cluster(cluster.bootstrap_servers) as client:
        topic_id = str(client.metadata([aged]).topics[aged].topic_id)
        # what other clients commit does not have the id of the topic, which may be a former one of the name
        metadata = commit_metadata("reader", topic_id if is_own else "")
        client.commit(group, {tp: OffsetAndMetadata(7, metadata, 1_000)})
        client.fetch_committed(group, [tp], topic_ids={aged: topic_id})
        if is_own:
            with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
                client.list_offsets({tp: LATEST}, timeout_ms=50)
        else:
            assert client.list_offsets({tp: LATEST})[tp].offset > 0


@pytest.mark.parametrize("read", [run_stream, BatchQuery])
def test_committed_offset_that_was_copied_from_another_cluster_is_continued(cluster, client, aged, group, read):
    """MirrorMaker translates the offset and copies the metadata, which have the topic id of the other cluster."""
    copied = OffsetAndMetadata(7, commit_metadata("reader", str(uuid4()), cluster_id="other"))
    client.commit(group, {TopicPartition(aged, 0): copied})
    found = read(cluster, options(aged, group, startingOffsets="group-or-earliest"))
    assert begins(found.rows) == {0: 7, 1: 0}


@pytest.mark.conformance("KC-035")
def test_starting_offsets_group_fails_without_a_committed_offset(cluster, client, aged, group):
    commit(client, aged, group, {0: 7})
    given = options(aged, group, startingOffsets="group")
    message = f"no committed offset for {aged}-1. Use group-or-earliest or"
    with StreamQuery(cluster, given) as query, pytest.raises(ConfigurationError, match=message):
        query.trigger()
    with pytest.raises(ConfigurationError, match=message):
        BatchQuery(cluster, given)


@pytest.fixture
def produce_records(cluster, topic):
    """A function that produces `count` records to a topic of one partition."""
    create_topic(cluster.bootstrap_servers, topic, 1)
    return lambda count: produce(cluster.bootstrap_servers, topic, [(0, None, b"x")] * count)


def test_start_of_a_group_is_kept_after_a_crash_before_the_first_commit(cluster, client, topic, group, produce_records):
    produce_records(10)
    given = options(topic, group, startingOffsets="latest")
    with StreamQuery(cluster, given) as first:
        assert first.trigger() == []  # batch 0 is empty, and no trigger follows
        remove_members(client, group, [member.member_id for member in describe_groups(client, [group])[group].members])
        produce_records(5)
        with StreamQuery(cluster, given) as second:
            assert begins(second.run().rows) == {0: 10}


@pytest.mark.parametrize("other_at, begin", [(None, 10), (4, 4), (10, 10), (13, 13)])
def test_checkpoint_continues_under_another_group(cluster, client, topic, group, produce_records, other_at, begin):
    """The commits of the new group apply: ahead of the checkpoint or reset, they are followed."""
    produce_records(10)
    with StreamQuery(cluster, options(topic, group, startingOffsets="earliest")) as query:
        assert len(query.run().rows) == 10
        checkpoint = query.start
    other = f"{group}-other"
    commit(client, topic, other, {} if other_at is None else {0: other_at})
    produce_records(5)
    with StreamQuery(cluster, options(topic, other)) as query:
        query.start = checkpoint
        assert begins(query.run().rows) == {0: begin}
        assert client.fetch_committed(other)[TopicPartition(topic, 0)].offset == 15
    assert client.fetch_committed(group)[TopicPartition(topic, 0)].offset == 10


def test_expired_commits_continue_at_the_checkpoint(cluster, client, topic, group, produce_records):
    produce_records(10)
    with StreamQuery(cluster, options(topic, group, startingOffsets="earliest")) as query:
        query.run()
    wait_until(lambda: not describe_groups(client, [group])[group].members, "the member has left")
    # as if offsets.retention.minutes had passed
    delete_offsets(client, group, [TopicPartition(topic, 0)])
    produce_records(5)
    with StreamQuery(cluster, options(topic, group)) as again:
        again.start = query.start
        assert begins(again.run().rows) == {0: 10}
        assert client.fetch_committed(group)[TopicPartition(topic, 0)].offset == 15
