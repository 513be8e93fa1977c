"""Which offset wins at a restart: the checkpoint's or the group's, case by case, through Spark, on both clusters."""

import json
import shutil

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from stream_bench import PARTITIONS, Bench
from support.java_tools import GROUPS
from support.topics import create_topic, delete_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.admin import delete_groups
from spark_groupsource.model import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.spark


class Runs(Bench):
    """A bench whose query reads what is there and ends, as often as asked."""

    def run(self, **options):
        """The values one run has read."""
        before = self.values("a")
        query = self.start("a", {"availableNow": True}, **options)
        assert query.awaitTermination(120)
        fresh = self.values("a")
        for value in before:
            fresh.remove(value)
        return fresh

    def leave_uncommitted(self, **options):
        """One batch that is checkpointed and not committed: the query ends before Spark comes back."""
        query = self.start("a", {"processingTime": "1 hour"}, **options)
        wait_until(lambda: query.lastProgress is not None, "the first batch", 120)
        query.stop()
        wait_until(lambda: not self.members(), "the members have left")

    def operate(self, *arguments):
        """The answer of kafka-consumer-groups."""
        wait_until(lambda: not self.members(), "the members have left")
        servers = ["--bootstrap-server", self.cluster.bootstrap_servers, "--group", self.group]
        told = self.java.call(GROUPS, *servers, *arguments)
        assert told.returncode == 0 and "Error" not in told.stdout, told.stdout + told.stderr
        return told.stdout

    def reset(self, offset):
        self.operate("--reset-offsets", "--topic", self.topic, "--to-offset", str(offset), "--execute")


@pytest.fixture
def runs(spark, cluster, topic, group, tmp_path, java):
    opened = Runs(spark, cluster, topic, group, tmp_path)
    opened.java = java
    yield opened
    opened.close()


def test_checkpoint_equal_to_the_group_goes_on(runs):
    runs.produce(40)
    assert runs.run() == list(range(40))
    runs.produce(4)
    assert runs.run() == [40, 41, 42, 43]
    assert runs.committed() == 44


def test_checkpoint_ahead_of_the_group_is_not_read_again(runs):
    runs.produce(40)
    runs.leave_uncommitted()
    assert runs.committed() == 0 and runs.values("a") == list(range(40))
    runs.produce(4)
    assert runs.run() == [40, 41, 42, 43]
    assert runs.committed() == 44


def test_checkpoint_behind_the_group_follows_it(runs):
    runs.produce(40)
    assert runs.run() == list(range(40))
    runs.produce(40)
    # another reader without checkpoint has read 5 more of each partition
    processed = {TopicPartition(runs.topic, n): OffsetAndMetadata(15) for n in range(PARTITIONS)}
    wait_until(lambda: not runs.members(), "the members have left")
    runs.client.commit(runs.group, processed)
    assert runs.run() == list(range(60, 80))
    assert runs.committed() == 80


@pytest.mark.parametrize("reaction, read", [("follow", list(range(12, 40))), ("ignore", [])])
def test_operator_moves_the_group_back(runs, reaction, read):
    runs.produce(40)
    assert runs.run() == list(range(40))
    runs.reset(3)
    assert runs.committed() == 12
    assert runs.run(onGroupReset=reaction) == read
    assert runs.committed() == 40


def test_operator_moves_the_group_back_and_the_query_refuses(runs):
    runs.produce(40)
    runs.run()
    runs.reset(3)
    with pytest.raises(Exception, match=r"reset by an operator to 3; the checkpoint is at 10 \(onGroupReset=fail\)"):
        runs.run(onGroupReset="fail")
    assert runs.committed() == 12


def test_deleted_checkpoint_leaves_it_to_the_group(runs):
    runs.produce(40)
    runs.run()
    shutil.rmtree(runs.directory / "a")
    runs.produce(4)
    assert runs.run(startingOffsets="earliest") == [40, 41, 42, 43]


def test_deleted_group_leaves_it_to_the_checkpoint_and_is_made_again(runs):
    runs.produce(40)
    runs.run()
    wait_until(lambda: not runs.members(), "the members have left")
    delete_groups(runs.client, [runs.group])
    assert runs.committed() == 0
    assert runs.run() == []
    assert runs.committed() == 40


def test_both_deleted_start_at_starting_offsets(runs):
    runs.produce(40)
    runs.run()
    wait_until(lambda: not runs.members(), "the members have left")
    delete_groups(runs.client, [runs.group])
    shutil.rmtree(runs.directory / "a")
    assert runs.run(startingOffsets="-1") == [36, 37, 38, 39]


@pytest.mark.parametrize("count", [20, 400])
def test_topic_made_anew_is_data_loss_or_is_read_from_its_begin(runs, count):
    """Shorter than before or longer: the length must not decide."""
    runs.produce(40)
    runs.run()
    servers = runs.cluster.bootstrap_servers
    delete_topic(servers, runs.topic)
    create_topic(servers, runs.topic, PARTITIONS)
    produce(servers, runs.topic, ((n % PARTITIONS, None, b"%d" % (1000 + n)) for n in range(count)))
    with pytest.raises(Exception, match="KAFKA_DATA_LOSS.PARTITIONS_DELETED.*deleted and recreated"):
        runs.run()
    assert runs.run(failOnDataLoss="false") == list(range(1000, 1000 + count))
    assert runs.committed() == count
    assert runs.run() == []


def test_partition_added_between_runs_is_read_from_its_begin(runs):
    runs.produce(40)
    assert runs.run(startingOffsets="latest") == []
    admin = AdminClient({"bootstrap.servers": runs.cluster.bootstrap_servers})
    admin.create_partitions([NewPartitions(runs.topic, PARTITIONS + 1)])[runs.topic].result(30)

    def grown():
        return len(admin.list_topics(runs.topic, timeout=10).topics[runs.topic].partitions) == PARTITIONS + 1

    wait_until(grown, "the new partition")
    produce(runs.cluster.bootstrap_servers, runs.topic, ((PARTITIONS, None, b"%d" % n) for n in range(100, 110)))
    assert runs.run(startingOffsets="latest") == list(range(100, 110))


def test_checkpoint_of_sparks_own_kafka_source_goes_on_as_a_group(runs):
    runs.produce(40)
    runs.run()
    log = runs.directory / "a" / "checkpoint" / "offsets"
    # the offset log as Spark's source leaves it: its positions alone
    for path in sorted(log.iterdir()):
        if path.name.isdigit():
            *head, positions = path.read_text().splitlines()
            own = {topic: offsets for topic, offsets in json.loads(positions).items() if topic == runs.topic}
            path.write_text("\n".join([*head, json.dumps(own, separators=(",", ":"))]))
            (log / f".{path.name}.crc").unlink(missing_ok=True)
    delete_groups(runs.client, [runs.group])
    runs.produce(4)
    assert runs.run() == [40, 41, 42, 43]
    assert runs.committed() == 44
