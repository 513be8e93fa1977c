"""A Spark query in one group with librdkafka's and Kafka's own consumer, each leading and following; both clusters."""

import pytest
from stream_bench import PARTITIONS, Bench
from support.members import JavaMember, RdMember
from support.waiting import wait_until

from spark_groupsource import stop_gracefully

pytestmark = pytest.mark.spark

JAVA = "org.apache.kafka.clients.consumer"
STRATEGIES = {
    "librdkafka eager": ("range", RdMember, {"partition_assignment_strategy": "range"}),
    "librdkafka cooperative": (
        "cooperative-sticky",
        RdMember,
        {"partition_assignment_strategy": "cooperative-sticky"},
    ),
    "Java eager": ("roundrobin", JavaMember, {"assignor": f"{JAVA}.RoundRobinAssignor"}),
    "Java cooperative": ("cooperative-sticky", JavaMember, {"assignor": f"{JAVA}.CooperativeStickyAssignor"}),
}


@pytest.fixture
def bench(spark, cluster, topic, group, tmp_path):
    opened = Bench(spark, cluster, topic, group, tmp_path)
    yield opened
    opened.close()


def consumed_by(member):
    """The values one foreign member has consumed."""
    if isinstance(member, RdMember):
        return {offset * PARTITIONS + partition for partition, offset in member.seen}
    spans = [span for event in member.of("records_consumed") for span in event["partitions"]]
    return {
        offset * PARTITIONS + span["partition"]
        for span in spans
        for offset in range(span["minOffset"], span["maxOffset"] + 1)
    }


@pytest.mark.parametrize("kind", STRATEGIES)
def test_foreign_member_leads_then_follows(bench, kind):
    strategy, member, settings = STRATEGIES[kind]
    servers = bench.cluster.bootstrap_servers
    bench.produce(40)
    with member(servers, bench.group, bench.topic, **settings) as leading:
        leading.wait_for_partitions(PARTITIONS)
        query = bench.start("a", **{"kafka.partition.assignment.strategy": strategy})
        wait_until(lambda: len(bench.owners()) == 3, "three members own partitions", 90)
        bench.produce(400)
        bench.wait_committed(90)
    # ours are alone now, so one of them leads
    wait_until(lambda: len(bench.owners()) == 2, "our two own all partitions", 90)
    bench.produce(100)
    bench.wait_committed(90)
    with member(servers, bench.group, bench.topic, **settings) as following:
        wait_until(lambda: len(bench.owners()) == 3, "three members own partitions again", 90)
        bench.produce(400)
        bench.wait_committed(90)
        stop_gracefully(query, 60)
        following.wait_for_partitions(PARTITIONS)
    ours, theirs = bench.values("a"), consumed_by(leading) | consumed_by(following)
    assert ours and len(ours) == len(set(ours)), "our own members read nothing twice"
    assert {*ours, *theirs} == set(range(bench.produced))
