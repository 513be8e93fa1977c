"""Positions after a restart: checkpoint, committed offset or startingOffsets."""

import json
import shutil

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from support.java_tools import GROUPS
from support.query_harness import PARTITIONS, QueryHarness
from support.topics import create_topic, delete_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.admin import delete_groups, describe_groups
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.source.spark.admission_control import HAS_ADMISSION_CONTROL

pytestmark = pytest.mark.spark


class RestartHarness(QueryHarness):
    """Runs one query repeatedly with the trigger availableNow."""

    def run(self, **options):
        """Returns the values that one run has read."""
        before = self.values("a")
        query = self.start("a", {"availableNow": True}, **options)
        assert query.awaitTermination(120)
        if not HAS_ADMISSION_CONTROL:
            # the next run commits the batch
            assert self.start("a", {"availableNow": True}, **options).awaitTermination(120)
        fresh = self.values("a")
        for value in before:
            fresh.remove(value)
        return fresh

    def leave_uncommitted(self, **options):
        """Runs one batch that is checkpointed but not committed: the query stops before the next latestOffset."""
        query = self.start("a", {"processingTime": "1 hour"}, **options)
        wait_until(lambda: query.lastProgress is not None, "the first batch", 120)
        query.stop()
        wait_until(lambda: not self.members(), "the members have left")

    def consumer_groups(self, *arguments):
        """Runs kafka-consumer-groups; returns its output."""
        wait_until(lambda: not self.members(), "the members have left")
        servers = ["--bootstrap-server", self.cluster.bootstrap_servers, "--group", self.group]
        result = self.java.call(GROUPS, *servers, *arguments)
        assert result.returncode == 0 and "Error" not in result.stdout, result.stdout + result.stderr
        return result.stdout

    def delete_group(self):
        wait_until(lambda: not self.members(), "the members have left")
        delete_groups(self.client, [self.group])

    def reset(self, offset):
        self.consumer_groups("--reset-offsets", "--topic", self.topic, "--to-offset", str(offset), "--execute")


@pytest.fixture
def harness(spark, cluster, topic, group, tmp_path, java):
    opened = RestartHarness(spark, cluster, topic, group, tmp_path)
    opened.java = java
    yield opened
    opened.close()


def test_checkpoint_equal_to_the_commit_is_continued_and_a_commit_ahead_of_it_is_followed(harness):
    harness.produce(40)
    assert harness.run() == list(range(40))
    harness.produce(4)
    assert harness.run() == [40, 41, 42, 43]
    assert harness.committed() == 44
    harness.produce(36)
    # another consumer has read 5 more records of each partition
    processed = {TopicPartition(harness.topic, n): OffsetAndMetadata(16) for n in range(PARTITIONS)}
    wait_until(lambda: not harness.members(), "the members have left")
    harness.client.commit(harness.group, processed)
    assert harness.run() == list(range(64, 80))
    assert harness.committed() == 80


def test_checkpoint_ahead_of_the_commit_is_not_read_again(harness):
    harness.produce(40)
    harness.leave_uncommitted()
    assert harness.committed() == 0 and harness.values("a") == list(range(40))
    harness.produce(4)
    assert harness.run() == [40, 41, 42, 43]
    assert harness.committed() == 44


@pytest.mark.parametrize(
    "reaction, read, is_deleted",
    [
        ("follow", list(range(12, 40)), True),
        # test_session_positions.py has these without Spark
        pytest.param("follow", list(range(12, 40)), False, marks=pytest.mark.soak),
        pytest.param("ignore", [], False, marks=pytest.mark.soak),
    ],
)
def test_operators_reset_is_followed_or_ignored(harness, reaction, read, is_deleted):
    harness.produce(40)
    assert harness.run() == list(range(40))
    if is_deleted:
        harness.delete_group()
    harness.reset(3)
    assert harness.committed() == 12
    assert harness.run(onGroupReset=reaction) == read
    assert harness.committed() == 40


def test_operators_reset_fails_the_query_with_on_group_reset_fail(harness):
    harness.produce(40)
    harness.run()
    harness.reset(3)
    with pytest.raises(Exception, match=r"reset by an operator to 3; the checkpoint is at 10 \(onGroupReset=fail\)"):
        harness.run(onGroupReset="fail")
    assert harness.committed() == 12


def test_deleted_group_deleted_checkpoint_or_both(harness):
    """The group is recreated from the checkpoint, the commit is continued, or startingOffsets apply."""
    harness.produce(40)
    harness.run()
    harness.delete_group()
    assert harness.committed() == 0
    assert harness.run() == []
    assert harness.committed() == 40

    shutil.rmtree(harness.directory / "a")
    harness.produce(4)
    assert harness.run(startingOffsets="earliest") == [40, 41, 42, 43]

    harness.delete_group()
    shutil.rmtree(harness.directory / "a")
    assert harness.run(startingOffsets="-1") == [40, 41, 42, 43]


# parity/test_same_progress.py recreates a topic with fewer records
@pytest.mark.parametrize("count", [pytest.param(20, marks=pytest.mark.soak), 400])
def test_recreated_topic_is_data_loss_or_is_read_from_its_start(harness, count):
    """The length of the new topic does not matter."""
    harness.produce(40)
    harness.run()
    servers = harness.cluster.bootstrap_servers
    delete_topic(servers, harness.topic)
    create_topic(servers, harness.topic, PARTITIONS)
    produce(servers, harness.topic, ((n % PARTITIONS, None, b"%d" % (1000 + n)) for n in range(count)))
    with pytest.raises(Exception, match="KAFKA_DATA_LOSS.PARTITIONS_DELETED.*deleted and recreated"):
        harness.run()
    assert harness.run(failOnDataLoss="false") == list(range(1000, 1000 + count))
    assert harness.committed() == count
    assert harness.run() == []


def test_partition_added_between_runs_is_read_from_its_start(harness):
    harness.produce(40)
    assert harness.run(startingOffsets="latest") == []
    admin = AdminClient({"bootstrap.servers": harness.cluster.bootstrap_servers})
    admin.create_partitions([NewPartitions(harness.topic, PARTITIONS + 1)])[harness.topic].result(30)

    def grown():
        return len(admin.list_topics(harness.topic, timeout=10).topics[harness.topic].partitions) == PARTITIONS + 1

    wait_until(grown, "the new partition")
    produce(harness.cluster.bootstrap_servers, harness.topic, ((PARTITIONS, None, b"%d" % n) for n in range(100, 110)))
    assert harness.run(startingOffsets="latest") == list(range(100, 110))


# parity/test_migration.py moves a job
@pytest.mark.soak
def test_checkpoint_of_sparks_kafka_source_continues_as_a_group(harness):
    harness.produce(40)
    harness.run()
    log = harness.directory / "a" / "checkpoint" / "offsets"
    # the offset log of Spark's Kafka source has only positions
    for path in sorted(log.iterdir()):
        if path.name.isdigit():
            *head, positions = path.read_text().splitlines()
            own = {topic: offsets for topic, offsets in json.loads(positions).items() if topic == harness.topic}
            path.write_text("\n".join([*head, json.dumps(own, separators=(",", ":"))]))
            (log / f".{path.name}.crc").unlink(missing_ok=True)
    # the members leave while the reader process ends
    wait_until(lambda: not describe_groups(harness.client, [harness.group])[harness.group].members, "the members leave")
    delete_groups(harness.client, [harness.group])
    harness.produce(4)
    assert harness.run() == [40, 41, 42, 43]
    assert harness.committed() == 44
