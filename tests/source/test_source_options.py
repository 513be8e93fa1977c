"""Parsing of the source's options."""

import dataclasses
import pickle

import pytest

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import TopicPartition
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.source_options import EARLIEST, LATEST, OPTIONS, UNSUPPORTED_OPTIONS, SourceOption

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t", "kafka.group.id": "g"}


def test_names_are_case_insensitive_and_defaults_apply():
    given = {"KAFKA.Bootstrap.Servers": "h:1", "SUBSCRIBE": " a, b,,a ", "kafka.GROUP.id": "g"}
    options = parse_options(given, "stream")
    assert options.subscribe == ("a", "b")
    assert (options.group_id, options.bootstrap_servers, options.is_embedded) == ("g", "h:1", False)
    assert (options.fail_on_data_loss, options.max_trigger_delay_ms) == (True, 900_000)
    assert options.on_group_reset == "follow"
    assert options.starting is None
    assert options.members is None and parse_options({**given, "members": "auto"}, "stream").members is None
    assert options.ending.default == LATEST


def test_last_of_two_names_that_differ_in_case_counts():
    options = parse_options({**BASE, "maxOffsetsPerTrigger": "none", "MAXOFFSETSPERTRIGGER": "5"}, "stream")
    assert options.max_offsets_per_trigger == 5
    batch = parse_options({**BASE, "maxOffsetsPerTrigger": "1", "MAXOFFSETSPERTRIGGER": "5"}, "batch")
    assert batch.ignored == ("maxOffsetsPerTrigger",)


def test_each_option_has_a_row_of_its_own():
    assert len({option.name for option in OPTIONS.values()}) == len(OPTIONS)
    assert all(isinstance(option, SourceOption) and option.queries for option in OPTIONS.values())
    assert all(option.doc.endswith(".") and option.elsewhere in ("ignored", "rejected") for option in OPTIONS.values())
    assert not OPTIONS.keys() & UNSUPPORTED_OPTIONS.keys()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"subscrib": "t"}, "Option subscrib is unknown. Did you mean subscribe?"),
        ({"group.instance.id": "x"}, "Did you mean kafka.group.instance.id?"),
        ({"zzz": "1"}, "need the prefix kafka."),
        ({"maxBytesPerTrigger": "0"}, "such as 65536, 512k or 64m"),
        ({"maxBytesPerTrigger": "1 parsec"}, "maxBytesPerTrigger must be .*, got '1 parsec'"),
        ({"rebalanceListener": "no-class"}, "must be module:Class"),
        ({"path": "/x"}, "not paths"),
        ({"databricks.serviceCredential": "c"}, "not supported.* Set kafka.security.protocol, "),
        ({"databricks.serviceCredential.scope": "s"}, "serviceCredential.scope is not supported.* Remove it"),
        # a character class of Java that Python does not have
        ({"subscribe": None, "subscribePattern": r"\p{Lower}+"}, "must be a regular expression of Python's re"),
        ({"assign": '{"t":[0]}'}, "Exactly one of .* got subscribe and assign"),
        ({"subscribe": " , "}, "must be a comma-separated list of topics"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "", "kafka.bootstrap.server": "a:1"}, "Did you mean kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": "nohost"}, "not host:port"),
        ({"kafka.auto.offset.reset": "latest"}, "startingOffsets"),
        ({"kafka.key.deserializer": "x"}, "kafka.key.deserializer is not supported"),
        ({"kafka.group.protocol": "consumer"}, "classic group protocol, .*Brokers serve it in Kafka 5 and 6 too"),
        ({"kafka.group.remote.assignor": "uniform"}, "classic group protocol"),
        ({"kafka.nonsense": "x"}, "kafka.nonsense is unknown"),
        ({"kafka.isolation.level": "none"}, "isolation.level"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be .*, got 0"),
        ({"maxOffsetsPerTrigger": "many"}, "must be an integer between 1 and"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            r"\(9\) must not exceed maxOffsetsPerTrigger \(8\)",
        ),
        ({"maxTriggerDelay": "soon"}, "duration such as"),
        ({"startingOffsets": "first"}, "must be earliest, latest, group"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "must be JSON"),
        ({"startingOffsets": '{"t":{"-1":3}}'}, "must be JSON"),
        ({"startingOffsets": "{}"}, "must list at least one partition"),
        ({"startingOffsets": '{"t":"newest"}'}, "must be JSON"),
        ({"startingOffsetsByTimestamp": '{"t":"earliest"}'}, "must be JSON"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"startingTimestamp": str(2**63)}, "must be between 0 and 9223372036854775807"),
        ({"startingOffsets": f'{{"t":{{"0":{2**63}}}}}'}, "must be JSON"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "must be error or latest"),
        ({"endingOffsets": "latest"}, "not allowed in a stream query"),
        ({"endingTimestamp": "5"}, "not allowed in a stream query"),
        ({"members": "0"}, "members must be .*, got '0'"),
        ({"onGroupReset": "panic"}, "follow, fail, ignore"),
        ({"group.id": "other"}, "group.id and kafka.group.id differ"),
        ({"kafka.partition.assignment.strategy": "fastest"}, "fastest"),
        ({"kafka.heartbeat.interval.ms": "50000"}, "must be below kafka.session.timeout.ms"),
    ],
)
@pytest.mark.conformance("KC-016", "KC-020")
def test_invalid_options_are_rejected_by_name(given, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_options({name: text for name, text in {**BASE, **given}.items() if text is not None}, "stream")


@pytest.mark.parametrize(
    "given, message",
    [
        ({"startingOffsets": "latest"}, "in a batch query: the read would be empty"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "in a batch query: the read would be empty"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "the read would be empty"),
        ({"endingOffsets": "earliest"}, "must be latest or JSON"),
        ({"startingOffsets": "group"}, "kafka.group.id is missing"),
    ],
)
def test_invalid_batch_options_are_rejected_by_name(given, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **given}, "batch")


@pytest.mark.conformance("KC-067")
def test_stream_needs_a_group_unless_partitions_are_assigned():
    plain = {"kafka.bootstrap.servers": "h:1"}
    with pytest.raises(ConfigurationError, match="kafka.group.id is missing"):
        parse_options({**plain, "subscribe": "t"}, "stream")
    assert parse_options({**plain, "assign": '{"t":[1,0]}'}, "stream").group_id is None
    assert parse_options({**plain, "subscribe": "t", "group.id": "g"}, "stream").group_id == "g"
    assert parse_options({**plain, "subscribe": "t"}, "batch").group_id is None


def test_trigger_options_are_ignored_in_a_batch_query():
    options = parse_options({**BASE, "maxOffsetsPerTrigger": "5"}, "batch")
    assert (options.max_offsets_per_trigger, options.ignored) == (None, ("maxOffsetsPerTrigger",))


def test_options_are_immutable_picklable_and_show_no_password():
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="secret";'
    security = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas}
    options = parse_options({**BASE, **security, "startingOffsets": "-100"}, "stream")
    assert options.client.security != parse_options(BASE, "stream").client.security
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.subscribe = ("other",)
    assert "secret" not in repr(options)


def test_settings_of_client_members_and_tasks():
    given = {**BASE, "kafka.client.id": "app", "kafka.session.timeout.ms": "9000", "kafkaConsumer.pollTimeoutMs": "700"}
    options = parse_options(given, "stream")
    client = options.client_settings("other:1234")
    assert ([str(a) for a in client.bootstrap], client.client_id) == (["other:1234"], "app")
    assert options.task_settings(client) == dataclasses.replace(client, default_api_timeout_ms=700)
    group = options.group_settings(3)
    assert (group.group_id, group.members, group.topics, group.session_timeout_ms) == ("g", 3, ("t",), 9000)


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_starting_positions():
    def starting(text):
        return parse_options({**BASE, "startingOffsets": text}, "stream").starting

    assert starting("Earliest").default == EARLIEST
    assert (starting("group").uses_group, starting("group").default) == (True, None)
    assert (starting("group-or-latest").uses_group, starting("group-or-latest").default) == (True, LATEST)
    assert starting("-100").back_count == 100
    assert starting("-10m").back_ms == 600_000
    listed = starting('{"t":{"0":23,"1":-2},"u":"latest"}')
    assert listed.listed(T0) == 23 and listed.listed(T1) == EARLIEST
    assert listed.listed(TopicPartition("u", 5)) == LATEST and listed.listed(TopicPartition("v", 0)) is None


def test_timestamps_have_precedence_over_offsets():
    options = {**BASE, "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t":{"0":5}}'}
    starting = parse_options(options, "batch").starting
    assert starting.by_time and starting.listed(T0) == 5
    starting = parse_options({**options, "startingTimestamp": "9"}, "batch").starting
    assert (starting.option, starting.timestamp_ms) == ("startingTimestamp", 9)


def test_embedded_addresses():
    for address in ("embedded", "embedded:/data/x"):
        assert parse_options({**BASE, "kafka.bootstrap.servers": address}, "batch").is_embedded
