"""Which offset wins after a failure, with other group members.

Readers are called directly, without Spark: a query is killed by not calling it again.
"""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient
from support.commits import commit_as
from support.direct_readers import StreamQuery
from support.members import LibrdkafkaMember
from support.topics import create_topic, delete_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.errors import ConfigurationError, DataLossError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.usefixtures("in_process")


class Scenario:
    """A topic of one partition whose values are its offsets, and queries of one group that continue each other."""

    def __init__(self, cluster, topic, group):
        self.cluster, self.topic, self.group = cluster, topic, group
        self.partition = TopicPartition(topic, 0)
        servers = cluster.bootstrap_servers
        self.client = ClusterClient(servers, ClientSettings.parse({"bootstrap.servers": servers}))
        self.checkpoint = {}
        create_topic(servers, topic)

    def produce(self, count, topic=None):
        produce(self.cluster.bootstrap_servers, topic or self.topic, [(0, None, b"x")] * count)

    def query(self, **options):
        given = {"subscribe": self.topic, "kafka.group.id": self.group, "startingOffsets": "earliest", **options}
        opened = StreamQuery(self.cluster, given)
        opened.start = self.checkpoint
        return opened

    def run_and_kill(self, **options):
        """Runs one batch that is checkpointed but not committed."""
        with self.query(**options) as query:
            rows = query.trigger()
            self.checkpoint = query.start
        return offsets(rows)

    def consume_as_other_member(self, count):
        """A foreign member reads `count` records from the committed offset, commits and leaves."""
        self.wait_left()
        settings = {"bootstrap.servers": self.cluster.bootstrap_servers, "group.id": self.group}
        consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
        consumer.subscribe([self.topic])
        read = [record.offset() for record in consumer.consume(count, 30)]
        # without the leader epoch, as Kafka's tools commit
        consumer.commit(offsets=[RdTopicPartition(self.topic, 0, read[-1] + 1)], asynchronous=False)
        consumer.close()
        return read

    def reset(self, offset):
        self.wait_left()
        commit_as(self.cluster.bootstrap_servers, self.group, [RdTopicPartition(self.topic, 0, offset)])

    def delete_group(self):
        self.wait_left()
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap_servers})
        admin.delete_consumer_groups([self.group])[self.group].result(30)

    def committed(self):
        return self.client.fetch_committed(self.group)[self.partition].offset

    def wait_left(self):
        wait_until(lambda: not describe_groups(self.client, [self.group])[self.group].members, "the members have left")


def offsets(rows):
    return [row["offset"] for row in rows]


@pytest.fixture
def scenario(cluster, topic, group):
    opened = Scenario(cluster, topic, group)
    yield opened
    opened.client.close()


def test_progress_of_another_member_is_no_reset_and_a_reset_between_is(scenario):
    scenario.produce(30)
    scenario.reset(10)
    assert scenario.run_and_kill() == list(range(10, 30))
    assert scenario.consume_as_other_member(5) == list(range(10, 15))
    with scenario.query(onGroupReset="fail") as restarted:
        assert restarted.trigger() == [] and scenario.committed() == 30
    # the same offset with the same checkpoint, but now the query has committed what follows
    scenario.reset(15)
    with scenario.query(onGroupReset="fail") as again, pytest.raises(ConfigurationError, match="reset .* to 15; .* 30"):
        again.trigger()
    with scenario.query() as following:
        assert offsets(following.trigger()) == list(range(15, 30))


def test_replay_does_not_repeat_what_another_member_has_processed(scenario):
    scenario.produce(30)
    scenario.reset(10)
    with scenario.query() as killed:
        end = killed.latest_offset()
    assert scenario.consume_as_other_member(15) == list(range(10, 25))
    with scenario.query() as restarted:
        tasks = restarted.reader.partitions({}, end)
        rows = [row for task in tasks for batch in restarted.reader.read(task) for row in batch.to_pylist()]
        assert offsets(rows) == list(range(25, 30))
        restarted.start = end
        assert restarted.trigger() == [] and scenario.committed() == 30


def test_recreated_topic_is_reported_before_a_replay_reads_it(scenario):
    scenario.produce(30)
    with scenario.query() as killed:
        end = killed.latest_offset()
    scenario.wait_left()
    delete_topic(scenario.cluster.bootstrap_servers, scenario.topic)
    create_topic(scenario.cluster.bootstrap_servers, scenario.topic)
    scenario.produce(50)
    with scenario.query() as restarted, pytest.raises(DataLossError, match="deleted and recreated"):
        restarted.reader.partitions({}, end)
    with scenario.query(failOnDataLoss="false") as lenient:
        assert lenient.reader.partitions({}, end) == []
        lenient.start = end
        assert offsets(lenient.trigger()) == list(range(50))


def test_offsets_of_a_recreated_topic_do_not_move_back(scenario):
    """Another application has read records of the new topic; the checkpoint has the id of the former one."""
    scenario.produce(30)
    scenario.run_and_kill()
    scenario.wait_left()
    delete_topic(scenario.cluster.bootstrap_servers, scenario.topic)
    create_topic(scenario.cluster.bootstrap_servers, scenario.topic)
    scenario.produce(50)
    former, scenario.checkpoint = scenario.checkpoint, {}
    with scenario.query(maxOffsetsPerTrigger="20") as other:
        assert offsets(other.trigger()) == list(range(20))
        other.trigger()
    scenario.wait_left()
    assert scenario.committed() == 20
    scenario.checkpoint = former
    with scenario.query(failOnDataLoss="false") as restarted:
        assert offsets(restarted.trigger()) == list(range(20, 50))
        assert scenario.committed() == 20
        assert restarted.trigger() == [] and scenario.committed() == 50


def test_commit_of_a_deleted_topic_is_not_followed(scenario):
    """A commit by name, in a transaction for example, may arrive after the topic was recreated."""
    with scenario.query() as query:
        scenario.produce(1)
        query.trigger()
        query.trigger()
        (metadata,) = {c.metadata for c in scenario.client.fetch_committed(scenario.group).values()}
    scenario.wait_left()
    delete_topic(scenario.cluster.bootstrap_servers, scenario.topic)
    create_topic(scenario.cluster.bootstrap_servers, scenario.topic)
    scenario.produce(50)
    scenario.client.commit(scenario.group, {scenario.partition: OffsetAndMetadata(40, metadata)})
    assert scenario.committed() == 40
    with scenario.query() as new:
        assert offsets(new.trigger()) == list(range(50))
        assert new.trigger() == [] and scenario.committed() == 50


def test_a_deleted_group_is_continued_from_the_checkpoint_and_starts_again_without_one(scenario):
    """Expiration deletes a group, too, while its query is stopped."""
    scenario.produce(30)
    with scenario.query() as query:
        assert offsets(query.trigger()) == list(range(30))
        assert query.trigger() == [] and scenario.committed() == 30
        scenario.checkpoint = query.start
    scenario.delete_group()
    scenario.produce(10)
    with scenario.query(onGroupReset="fail") as restarted:
        assert offsets(restarted.trigger()) == list(range(30, 40))
        assert restarted.trigger() == [] and scenario.committed() == 40
    scenario.delete_group()
    scenario.checkpoint = {}
    with scenario.query(startingOffsets="latest") as new:
        assert new.trigger() == []
        scenario.produce(5)
        assert offsets(new.trigger()) == list(range(40, 45))


@pytest.mark.slow
def test_deleted_topic_does_not_delay_a_rebalance_and_is_read_again_when_recreated(scenario):
    servers, other = scenario.cluster.bootstrap_servers, f"{scenario.topic}-other"
    create_topic(servers, other)
    scenario.produce(30)
    scenario.produce(20, other)
    with scenario.query(subscribe=f"{scenario.topic},{other}", failOnDataLoss="false") as query:
        assert len(query.trigger()) == 50
        delete_topic(servers, scenario.topic)
        with LibrdkafkaMember(servers, scenario.group, other) as member:
            # a member that is not readmitted within 20 s has waited for the commit of the deleted topic
            wait_until(lambda: (query.trigger(), member.rebalances)[1], "the foreign member has joined", 20)
            assert scenario.client.fetch_committed(scenario.group)[TopicPartition(other, 0)].offset == 20
            create_topic(servers, scenario.topic)
            scenario.produce(10)
            read = []
            wait_until(lambda: read.extend(query.trigger()) or len(read) >= 10, "the recreated topic is read", 30)
        assert [(row["topic"], row["offset"]) for row in read] == [(scenario.topic, n) for n in range(10)]


@pytest.mark.slow
@pytest.mark.parametrize("is_restarted", [False, True])
def test_standby_query_reads_from_where_it_started(scenario, is_restarted):
    """The owner has not committed; a member whose id sorts last owns no partition."""
    scenario.produce(100)
    given = {"startingOffsets": "latest", "kafka.client.id": "standby"}
    with LibrdkafkaMember(
        scenario.cluster.bootstrap_servers, scenario.group, scenario.topic, enable_auto_commit=False
    ) as owner:
        owner.wait_for_partitions(1)
        with scenario.query(**given) as standby:
            assert standby.trigger() == []
            if is_restarted:
                scenario.checkpoint = standby.start
                standby.reader.stop()
                standby = scenario.query(**given)
                assert standby.trigger() == []
            scenario.produce(20)
            owner.stop()
            read = []
            wait_until(lambda: read.extend(standby.trigger()) or read, "the standby query owns the partition")
            assert offsets(read) == list(range(100, 120))
            standby.reader.stop()
