"""Cases of DescribeTopicPartitions, elections, reassignments, and ACLs without an authorizer."""

from __future__ import annotations

from typing import Any

from support.compared_brokers import Case, ComparedBroker

from spark_groupsource.wire import messages


def pages(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
    def build(broker: ComparedBroker) -> Any:
        request = messages.DescribeTopicPartitionsRequest
        begin = None
        if cursor is not None:
            begin = request.Cursor(topic_name=broker.name(cursor[0]), partition_index=cursor[1])
        topics = [request.TopicRequest(name=broker.name(short)) for short in names]
        for short in names:
            broker.id(short)
        return request(topics=topics, response_partition_limit=limit, cursor=begin)

    return build


DESCRIBE_TOPIC_PARTITIONS = [
    Case("two", pages("read", "cut")),
    Case("not in order", pages("read", "made", "cut", "cut")),
    Case("one that is not there", pages("gone", "read")),
    Case("an illegal name", pages("a/b")),
    Case("a page", pages("cut", "made", "read", limit=3)),
    Case("a page that ends within a topic", pages("cut", "made", "read", limit=2)),
    Case("a page that ends before one that is not there", pages("cut", "gone", limit=1)),
    Case("no partitions wanted", pages("made", limit=0)),
    Case("a negative limit", pages("made", limit=-1)),
    Case("from a cursor", pages("cut", "made", "read", cursor=("made", 1))),
    Case("from after the last partition", pages("made", "read", cursor=("made", 7))),
    Case("from a topic that is not requested", pages("made", "read", cursor=("grows", 0))),
    Case("from before the first partition", pages("made", cursor=("made", -1))),
]


def elect(*wanted: tuple[str, list[int]], kind: int = 0) -> Any:
    def build(broker: ComparedBroker) -> Any:
        entry = messages.ElectLeadersRequest.TopicPartitions
        topics = [entry(topic=broker.name(short), partitions=numbers) for short, numbers in wanted]
        return messages.ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout_ms=5_000)

    return build


ELECT_LEADERS = [
    Case("preferred leaders", elect(("read", [0, 1]), ("cut", [0]))),
    Case("unclean election", elect(("read", [0]), kind=1)),
    Case("ones that are not there", elect(("read", [7]), ("gone", [0]))),
    Case("an unknown kind", elect(("read", [0]), ("gone", [0]), kind=9)),
    Case("no partitions", elect(("read", []))),
    Case("nothing", elect()),
]


def reassignments(*wanted: tuple[str, list[int]], everything: bool = False) -> Any:
    def build(broker: ComparedBroker) -> Any:
        entry = messages.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
        topics = [entry(name=broker.name(short), partition_indexes=numbers) for short, numbers in wanted]
        return messages.ListPartitionReassignmentsRequest(timeout_ms=5_000, topics=None if everything else topics)

    return build


LIST_REASSIGNMENTS = [
    Case("all", reassignments(everything=True)),
    Case("some", reassignments(("read", [0, 9]), ("gone", [0]))),
    Case("nothing", reassignments()),
]


def which_acls(kind: int = 2) -> dict[str, Any]:
    return {
        "resource_type_filter": kind, "resource_name_filter": None, "pattern_type_filter": 1,
        "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip


def acls(*kinds: int) -> Any:
    creation = messages.CreateAclsRequest.AclCreation
    made = [
        creation(
            resource_type=kind, resource_name="t", resource_pattern_type=3, principal="User:ann", host="*",
            operation=3, permission_type=3,
        )
        for kind in kinds
    ]  # fmt: skip
    return lambda broker: messages.CreateAclsRequest(creations=made)


def no_acls(*kinds: int) -> Any:
    filters = [messages.DeleteAclsRequest.DeleteAclsFilter(**which_acls(kind)) for kind in kinds]
    return lambda broker: messages.DeleteAclsRequest(filters=filters)


DESCRIBE_ACLS = [Case("of topics", lambda broker: messages.DescribeAclsRequest(**which_acls()))]
CREATE_ACLS = [Case("two", acls(2, 3)), Case("an unknown kind", acls(99)), Case("none", acls())]
DELETE_ACLS = [Case("two", no_acls(2, 3)), Case("none", no_acls())]
