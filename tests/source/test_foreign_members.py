"""Query in one group with a librdkafka or Java consumer."""

import pytest
from support.members import JavaMember, LibrdkafkaMember
from support.query_harness import PARTITIONS, QueryHarness
from support.waiting import wait_until

from spark_groupsource import stop_gracefully

pytestmark = pytest.mark.spark

JAVA = "org.apache.kafka.clients.consumer"
STRATEGIES = {
    "librdkafka eager": ("range", LibrdkafkaMember, {"partition_assignment_strategy": "range"}),
    "librdkafka cooperative": (
        "cooperative-sticky",
        LibrdkafkaMember,
        {"partition_assignment_strategy": "cooperative-sticky"},
    ),
    "Java eager": ("roundrobin", JavaMember, {"assignor": f"{JAVA}.RoundRobinAssignor"}),
    "Java cooperative": ("cooperative-sticky", JavaMember, {"assignor": f"{JAVA}.CooperativeStickyAssignor"}),
}


@pytest.fixture
def harness(spark, cluster, topic, group, tmp_path):
    opened = QueryHarness(spark, cluster, topic, group, tmp_path)
    yield opened
    opened.close()


def consumed_by(member):
    """Returns the values that a foreign member has consumed."""
    if isinstance(member, LibrdkafkaMember):
        return {offset * PARTITIONS + partition for partition, offset in member.seen}
    spans = [span for event in member.of("records_consumed") for span in event["partitions"]]
    return {
        offset * PARTITIONS + span["partition"]
        for span in spans
        for offset in range(span["minOffset"], span["maxOffset"] + 1)
    }


@pytest.mark.parametrize("kind", STRATEGIES)
def test_foreign_member_leads_then_follows(harness, kind):
    strategy, member, settings = STRATEGIES[kind]
    servers = harness.cluster.bootstrap_servers
    harness.produce(40)
    with member(servers, harness.group, harness.topic, **settings) as leading:
        leading.wait_for_partitions(PARTITIONS)
        query = harness.start("a", **{"kafka.partition.assignment.strategy": strategy})
        wait_until(lambda: len(harness.owners()) == 3, "three members own partitions", 90)
        harness.produce(400)
        harness.wait_committed(90)
    # only members of the query are left, so one of them leads
    wait_until(lambda: len(harness.owners()) == 2, "the query's two members own all partitions", 90)
    harness.produce(100)
    harness.wait_committed(90)
    with member(servers, harness.group, harness.topic, **settings) as following:
        wait_until(lambda: len(harness.owners()) == 3, "three members own partitions again", 90)
        harness.produce(400)
        harness.wait_committed(90)
        stop_gracefully(query, 60)
        following.wait_for_partitions(PARTITIONS)
    own, foreign = harness.values("a"), consumed_by(leading) | consumed_by(following)
    assert own and len(own) == len(set(own)), "the query reads nothing twice"
    assert {*own, *foreign} == set(range(harness.produced))
