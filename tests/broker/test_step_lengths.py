"""Length of the steps of long work."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from support.partition_logs import batch
from support.step_calls import calls_of_steps

from spark_groupsource.broker.api import config_requests as configs
from spark_groupsource.broker.api import produce_requests as produce
from spark_groupsource.broker.api import producers
from spark_groupsource.broker.api.topic_requests import create_partitions
from spark_groupsource.broker.config import broker_config
from spark_groupsource.broker.coordinators import group_runtime
from spark_groupsource.broker.coordinators.transaction_runtime import TransactionRuntime
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.broker.storage.partition import Partition
from spark_groupsource.common import coroutines
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.common.coroutines import begin, run_at_once
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import Node, ProducerIdAndEpoch, TopicPartition
from spark_groupsource.wire.messages import (
    CreatePartitionsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    JoinGroupRequest,
    ProduceRequest,
    SyncGroupRequest,
)

# of processor time, for sizes at which linear work takes some hundredths of it and quadratic work some times as long
_LINEAR_S = 2


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def sent():
    return {}


@pytest.fixture
def started():
    """Work that the broker has started beside the requests."""
    return []


@pytest.fixture
def broker(tmp_path, clock, sent, started):
    config = broker_config(
        {
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
    )
    data = DataDirectory(tmp_path)
    running = Broker(config, data, clock, sent.__setitem__, lambda line, level=0: None, start_task=started.append)
    running.start()
    running.node_started(1, {"PLAINTEXT": Node(1, "127.0.0.1", 9092)})
    yield running
    running.stop()
    for work in started:
        work.close()


def test_markers_are_written_for_a_few_milliseconds_at_a_time(broker, clock, started, monkeypatch):
    run_at_once(broker.create_topic("t", 40, {}))
    coordinator = broker.transaction_coordinator
    run_at_once(coordinator.shards.ensure_topic())
    _, producer = coordinator.init(1, "id", 60_000, None)
    coordinator.add(1, "id", producer, [TopicPartition("t", number) for number in range(40)])
    write = TransactionRuntime.write_marker

    def write_slowly(*arguments):
        clock.advance_ms(2)
        return write(*arguments)

    monkeypatch.setattr(TransactionRuntime, "write_marker", write_slowly)
    monkeypatch.setattr(coroutines, "monotonic_ns", lambda: clock.now_ms() * 1_000_000)
    coordinator.end(1, "id", ProducerIdAndEpoch(*producer), True)
    (work,) = started
    steps = []
    while coordinator.transaction(1, "id").partitions:
        began_ms = clock.now_ms()
        with suppress(StopIteration):
            begin(work)
        steps.append(clock.now_ms() - began_ms)
    assert sum(steps) == 80 and max(steps) <= 2
    assert broker.partitions.partition("t", 39).log.log_end_offset == 1


def test_batches_of_many_partitions_are_appended_for_a_few_milliseconds_at_a_time(broker, clock, monkeypatch):
    run_at_once(broker.create_topic("t", 20, {}))
    append = Partition.append_validated

    def append_slowly(*arguments):
        clock.advance_ms(1)
        return append(*arguments)

    monkeypatch.setattr(Partition, "append_validated", append_slowly)
    monkeypatch.setattr(produce, "monotonic_ns", lambda: clock.now_ms() * 1_000_000)
    entry = ProduceRequest.TopicProduceData
    data = [entry.PartitionProduceData(index=number, records=batch(b"x")) for number in range(20)]
    request = ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=1000, topic_data=[entry(name="t", partition_data=data)]
    )
    steps = []
    began_ms = clock.now_ms()
    response = None
    # private: the length of each step of one request
    handled = produce.produce(broker, ApiRequestContext(1, 0, 8, "c", "h", 1), request)
    while response is None:
        try:
            begin(handled, 0)
        except StopIteration as end:
            response = end.value
        steps.append(clock.now_ms() - began_ms)
        began_ms = clock.now_ms()
    assert sum(steps) == 20 and max(steps) <= 3
    assert {each.error_code for each in response.responses[0].partition_responses} == {0}


@pytest.mark.parametrize("has_new_member", [False, True])
def test_a_large_assignment_is_stored_and_returned_in_two_steps(broker, sent, started, monkeypatch, has_new_member):
    monkeypatch.setattr(group_runtime, "_LARGE_VALUE_BYTES", 1_000)
    coordinator = broker.group_coordinator
    run_at_once(coordinator.shards.ensure_topic())

    def call(token: int, api_key: int, version: int, request) -> None:
        coordinator.handle(ApiRequestContext(token, api_key, version, "c", "h", 1), request)

    def join(token: int) -> None:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")
        request = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        call(token, 11, 3, request)
        broker.run_timers()

    join(1)
    joined = sent[1]
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(2_000))
    sync = SyncGroupRequest(
        group_id="g", generation_id=joined.generation_id, member_id=joined.member_id, assignments=[assignment]
    )
    call(2, 14, 3, sync)
    assert 2 not in sent and broker.partitions.partition("__consumer_offsets", 0).log.size_bytes > 2_000
    if has_new_member:
        join(3)
        assert (sent[2].error_code, 3 in sent) == (27, False)  # the group has another generation soon
    else:
        while started:
            run_at_once(started.pop(0))
        assert (sent[2].error_code, len(sent[2].assignment)) == (0, 2_000)


def altered(config, operation, value):
    """Returns cleanup.policy after one operation of IncrementalAlterConfigs."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = resource.AlterableConfig(name="cleanup.policy", config_operation=operation, value=value)
    # private: such a list is rejected or stored afterwards
    changed = configs._changed(resource(resource_type=2, resource_name="t", configs=[change]), dict(config))
    return changed["cleanup.policy"]


def test_topics_that_cannot_be_enlarged_are_checked_in_steps(broker):
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    topics = [topic(name=f"unknown-{number}", count=2, assignments=None) for number in range(20_000)]
    request = CreatePartitionsRequest(topics=topics, timeout_ms=0, validate_only=False)
    calls, _, response = calls_of_steps(create_partitions(broker, None, request))
    assert [result.error_code for result in response.results] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 20_000
    assert max(calls) < sum(calls) / 10


def test_results_of_many_markers_are_collected_in_steps(broker):
    codes = {TopicPartition("t", number): ErrorCode.NONE for number in range(39_000)}
    # private: the markers themselves take most of the time of a request
    calls, _, result = calls_of_steps(producers._marker_result(7, codes))
    assert [len(topic.partitions) for topic in result.topics] == [39_000]
    assert max(calls) < sum(calls) / 10


# the operations APPEND and SUBTRACT
@pytest.mark.parametrize("operation, expected", [(2, 60_001), (3, 1)])
def test_long_lists_of_settings_are_changed_in_linear_time(operation, expected):
    names = ",".join(f"name-{number}" for number in range(60_000))
    config = {"cleanup.policy": f"compact,{names}"}
    began = time.thread_time()
    assert len(altered(config, operation, names).split(",")) == expected
    assert time.thread_time() - began < _LINEAR_S


def test_many_names_of_settings_are_looked_up_in_linear_time(broker):
    run_at_once(broker.alter_config("", {f"own.{number}": "" for number in range(6_000)}, validate_only=False))
    resource = DescribeConfigsRequest.DescribeConfigsResource
    names = [f"other.{number}" for number in range(100_000)] + ["own.999"]
    described = resource(resource_type=4, resource_name="", configuration_keys=names)
    request = DescribeConfigsRequest(resources=[described], include_synonyms=False, include_documentation=False)
    began = time.thread_time()
    # private: the rest of a request is measured by others
    (entry,) = configs._describe_all_nodes(broker, None, described, request)
    assert entry.name == "own.999"
    assert time.thread_time() - began < _LINEAR_S


def test_transactional_ids_are_matched_in_steps():
    ids = [f"{'ab' * 60}-{number:05}" for number in range(500)]
    # private: transactions of 500 ids take longer
    calls, in_worker, found = calls_of_steps(producers._matching_ids(ids, "(a|b)*-00[12].*"))
    assert found == set(ids[100:300]) and in_worker == len(calls) - 1 >= 10


@pytest.mark.parametrize("pattern", ["(a|b|c)*" * 126, "a)|(b", "(ab"])
def test_patterns_of_transactional_ids_are_checked(pattern):
    with pytest.raises(ApiError) as raised:
        # private: as above
        calls_of_steps(producers._matching_ids([], pattern))
    assert raised.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
