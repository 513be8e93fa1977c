"""Every advertised version is served, and a second implementation decodes the response."""

from __future__ import annotations

import struct
import uuid

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader
from support.partition_logs import batch
from support.raw_broker import RawConnection, create_topic, fetched_values, metadata, produce
from support.request_cases import every_api

from spark_groupsource.broker.api.served_versions import SERVED
from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.wire import messages
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.apis import APIS
from spark_groupsource.wire.frames import read_response_header


@pytest.fixture(scope="module")
def broker():
    config = {"offsets.topic.num.partitions": "2", "group.initial.rebalance.delay.ms": "0", "log.retention.ms": "-1"}
    with EmbeddedBroker(config=config) as running:
        with RawConnection(running.bootstrap_servers) as connection:
            create_topic(connection, "t", 2)
            for number in range(3):
                assert produce(connection, "t", batch(b"%d" % number)).error_code == 0
            # the group whose offsets the requests of other APIs read and delete
            connection.call(every_api.REQUESTS[8](9, None, ""), 9)
        yield running


@pytest.fixture
def topic_id(broker) -> uuid.UUID:
    return broker.call(lambda b: b.partitions.topics["t"].topic_id)


# the newest kio lacks these versions of Kafka 4.4; Java's clients decode them in tests/matrix
NOT_IN_KIO = {(ApiKey.API_VERSIONS, 5), (ApiKey.DELETE_GROUPS, 3)}
VERSIONS = [(key, version) for key, api in SERVED.items() for version in range(api.min_version, api.max_version + 1)]
# `make check` uses the first and the last version of each API
SELECTED = [
    pytest.param(
        key,
        version,
        id=f"{APIS[key].name}-v{version}",
        marks=[pytest.mark.slow] if SERVED[key].min_version < version < SERVED[key].max_version else [],
    )
    for key, version in VERSIONS
    if (key, version) not in NOT_IN_KIO
]


def test_api_versions_advertises_what_is_served(broker):
    with RawConnection(broker.bootstrap_servers) as connection:
        for version in range(6):
            request = messages.ApiVersionsRequest(client_software_name="test", client_software_version="1")
            response = connection.call(request, version)
            returned = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
            assert returned == {key: api.advertised for key, api in SERVED.items()}
            assert response.error_code == 0
            if version >= 3:
                finalized = [(each.name, each.max_version_level) for each in response.finalized_features]
                assert (finalized, response.finalized_features_epoch) == ([("transaction.version", 1)], 0)
                supported = [(each.name, each.max_version) for each in response.supported_features]
                assert supported == ([("group.version", 0), ("transaction.version", 1)] if version >= 4 else [])


@pytest.mark.parametrize("version", range(3))
def test_an_advertised_version_of_produce_that_is_not_served_closes_the_connection(broker, version):
    with RawConnection(broker.bootstrap_servers) as connection:
        body = struct.pack(">hiihih", -1, 1000, 1, 1, 0, 0)
        header = struct.pack(">hhih", 0, version, 1, -1)
        connection.send(struct.pack(">i", len(header + body)) + header + body)
        assert connection.is_closed_by_peer()


@pytest.mark.parametrize("key, version", SELECTED)
def test_two_decoders_agree_on_the_response_of_each_version(broker, topic_id, key, version):
    name = f"{APIS[key].name}-{version}"
    with RawConnection(broker.bootstrap_servers) as connection:
        ours = connection.call(every_api.REQUESTS[key](version, topic_id, name), version)
        # a new name: a second member would delay the join, and the topic exists already
        connection.post(every_api.REQUESTS[key](version, topic_id, f"{name}-again"), version)
        frame = connection.read_frame()
    _, position = read_response_header(frame, APIS[key], version)
    theirs, size = entity_reader(load_response_schema(key, version))(bytes(frame), position)
    assert position + size == len(frame)
    assert ours is not None and theirs is not None
    # unknown members and transactional ids, SASL and ACLs that are not enabled, the consumer protocol
    assert getattr(ours, "error_code", 0) in (0, 25, 34, 35, 49, 54, 79), ours


@pytest.mark.parametrize("version", [version for key, version in VERSIONS if key == 1])
def test_each_fetch_version_returns_the_records(broker, topic_id, version):
    with RawConnection(broker.bootstrap_servers) as connection:
        (topic,) = connection.call(every_api.fetch(version, topic_id, ""), version).responses
        (partition,) = topic.partitions
        assert (topic.topic == "t") if version < 13 else (topic.topic_id == topic_id)
        assert fetched_values(partition) == [b"0", b"1", b"2"]
        assert (partition.high_watermark, partition.last_stable_offset, partition.log_start_offset) == (
            (3, 3, 0) if version >= 5 else (3, 3, partition.log_start_offset)
        )


@pytest.mark.parametrize("version", [version for key, version in VERSIONS if key == 2 and version >= 7])
def test_list_offsets_by_timestamp(broker, topic_id, version):
    with RawConnection(broker.bootstrap_servers) as connection:
        found = []
        for time in every_api.TIMES:
            (topic,) = connection.call(every_api.list_offsets(version, topic_id, "", time), version).topics
            (entry,) = topic.partitions
            found.append((entry.timestamp, entry.offset, entry.error_code))
    nothing, too_new = (-1, -1, 0), (-1, -1, 35)
    local = (-1, 0, 0) if version >= 8 else too_new
    tiered = nothing if version >= 9 else too_new
    pending = nothing if version >= 11 else too_new
    assert found == [
        (-1, 3, 0), (-1, 0, 0), (1000, 0, 0), local, tiered, pending, (1000, 0, 0), nothing
    ]  # fmt: skip


@pytest.mark.parametrize("version", [version for key, version in VERSIONS if key == 0])
def test_each_produce_version_stores_the_records(broker, topic_id, version):
    with RawConnection(broker.bootstrap_servers) as connection:
        before = broker.call(lambda b: b.partitions.partition("t", 1).log.log_end_offset)
        (topic,) = connection.call(every_api.produce(version, topic_id, ""), version).responses
        (partition,) = topic.partition_responses
        assert (partition.error_code, partition.base_offset) == (0, before)


def test_an_unknown_topic_id_is_an_error(broker):
    with RawConnection(broker.bootstrap_servers) as connection:
        response = connection.call(every_api.fetch(13, uuid.uuid4(), ""), 13)
        assert response.responses[0].partitions[0].error_code == 100
        response = connection.call(every_api.produce(13, uuid.uuid4(), ""), 13)
        assert response.responses[0].partition_responses[0].error_code == 100


def test_metadata_of_all_topics_no_topics_and_an_auto_created_topic(broker):
    def names(request, version):
        return sorted(topic.name for topic in connection.call(request, version).topics)

    with RawConnection(broker.bootstrap_servers) as connection:
        assert "t" in names(messages.MetadataRequest(topics=None), 1)
        assert "t" in names(messages.MetadataRequest(topics=[]), 0)
        assert names(messages.MetadataRequest(topics=[]), 1) == []
        topic = messages.MetadataRequest.MetadataRequestTopic(name="made-by-asking")
        requested = messages.MetadataRequest(topics=[topic], allow_auto_topic_creation=True)
        (made,) = connection.call(requested, 9).topics
        assert (made.error_code, len(made.partitions)) == (0, 1)
        assert metadata(connection, "not-made").topics[0].error_code == 3
        topic = messages.MetadataRequest.MetadataRequestTopic(name="not/legal")
        (refused,) = connection.call(messages.MetadataRequest(topics=[topic]), 9).topics
        assert refused.error_code == 17


def test_a_share_coordinator_is_rejected_with_a_message(broker):
    with RawConnection(broker.bootstrap_servers) as connection:
        request = messages.FindCoordinatorRequest(key="t", key_type=2, coordinator_keys=["t"])
        (response,) = connection.call(request, 6).coordinators
        assert response.error_code == 42 and "Coordinator type 2 is not supported" in response.error_message


def test_delete_by_topic_id(broker):
    with RawConnection(broker.bootstrap_servers) as connection:
        made = create_topic(connection, "to-be-deleted")
        state = messages.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=made.topic_id)
        response = connection.call(messages.DeleteTopicsRequest(topics=[state], timeout_ms=100), 6)
        assert (response.responses[0].error_code, response.responses[0].name) == (0, "to-be-deleted")
        assert metadata(connection, "to-be-deleted").topics[0].error_code == 3


def test_an_election_of_all_partitions_reports_only_offline_ones(broker):
    def returned(kind):
        request = messages.ElectLeadersRequest(election_type=kind, topic_partitions=None, timeout_ms=100)
        results = connection.call(request, 2).replica_election_results
        found = {each.topic: [(p.partition_id, p.error_code) for p in each.partition_result] for each in results}
        assert set(found) >= {"t", "dark"}
        return {topic: entries for topic, entries in found.items() if entries}

    with RawConnection(broker.bootstrap_servers) as connection:
        create_topic(connection, "dark", 2)
        assert returned(0) == returned(1) == {}
        broker.call(lambda b: b.partitions.partition("dark", 1).mark_offline(OSError("unplugged")))
        assert (returned(0), returned(1)) == ({"dark": [(1, 80)]}, {"dark": [(1, 83)]})


def test_describe_configs_of_one_broker_and_of_all(broker):
    def returned(name):
        resource = messages.DescribeConfigsRequest.DescribeConfigsResource
        keys = ["advertised.listeners", "node.id", "min.insync.replicas"]
        wanted = resource(resource_type=4, resource_name=name, configuration_keys=keys)
        (result,) = connection.call(messages.DescribeConfigsRequest(resources=[wanted]), 4).results
        return {each.name: (each.value, each.config_source) for each in result.configs}

    given_to_all = {"min.insync.replicas": ("1", 3)}
    with RawConnection(broker.bootstrap_servers) as connection:
        own = {"node.id": ("1", 4), "advertised.listeners": (f"PLAINTEXT://{broker.bootstrap_servers}", 4)}
        assert (returned("1"), returned("")) == (given_to_all | own, given_to_all)
