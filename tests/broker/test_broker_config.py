"""Broker and topic settings: names, values, rejected values."""

from __future__ import annotations

import asyncio

import pytest
from support.broker_without_sockets import BrokerWithoutSockets

from spark_groupsource.broker.api.config_requests import incremental_alter_configs
from spark_groupsource.broker.config import BROKER_SETTINGS, FIXED_SETTINGS, BrokerConfig, broker_config
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.broker.storage.topic_config import TOPIC_SETTINGS, TopicConfig, topic_config
from spark_groupsource.common.config_def import format_value
from spark_groupsource.common.coroutines import rest_of
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import IncrementalAlterConfigsRequest


def test_defaults_are_those_of_kafka():
    assert broker_config({}) == BrokerConfig()
    config = BrokerConfig()
    assert (config.offsets_topic_num_partitions, config.num_partitions) == (50, 1)
    assert config.auto_create_topics_enable is True
    assert (config.topic.segment_bytes, config.topic.max_message_bytes) == (1 << 30, 1_048_588)
    assert config.group.group_initial_rebalance_delay_ms == 3_000


def test_settings_are_parsed_into_their_fields():
    config = broker_config(
        {"num.partitions": " 3 ", "log.segment.bytes": "2048", "group.max.size": "7", "delete.topic.enable": "FALSE"}
    )
    assert (config.num_partitions, config.topic.segment_bytes, config.group.group_max_size) == (3, 2048, 7)
    assert config.delete_topic_enable is False


def test_values_of_other_types_are_parsed_as_their_text():
    assert broker_config({"num.partitions": 3, "log.segment.bytes": 2048, "delete.topic.enable": False}) == (
        broker_config({"num.partitions": "3", "log.segment.bytes": "2048", "delete.topic.enable": "false"})
    )
    assert topic_config({"retention.ms": 5, "preallocate": True}, TopicConfig()) == (
        topic_config({"retention.ms": "5", "preallocate": "true"}, TopicConfig())
    )


def test_topic_settings_override_broker_defaults():
    defaults = broker_config({"log.retention.ms": "5", "log.segment.bytes": "2048"}).topic
    config = topic_config({"segment.bytes": "4096", "cleanup.policy": "compact", "max.message.bytes": None}, defaults)
    assert (config.retention_ms, config.segment_bytes, config.is_compacted) == (5, 4096, True)
    assert config.max_message_bytes == TopicConfig().max_message_bytes


@pytest.mark.parametrize("name", sorted(BROKER_SETTINGS))
def test_every_broker_setting_accepts_its_default(name):
    info = BROKER_SETTINGS[name]
    assert broker_config({name: format_value(info.default)}) == BrokerConfig()


@pytest.mark.parametrize("name", sorted(FIXED_SETTINGS))
def test_settings_that_say_what_is_the_case_are_accepted(name):
    values, reason = FIXED_SETTINGS[name]
    for value in values:
        assert broker_config({name: f" {value.upper()} "}) == BrokerConfig()
    with pytest.raises(ConfigurationError, match=f"Option {name} must be {values[0]}, got '7': {reason}. Remove the"):
        broker_config({name: "7"})


@pytest.mark.parametrize("name", sorted(TOPIC_SETTINGS))
def test_every_topic_setting_accepts_its_default(name):
    info = TOPIC_SETTINGS[name]
    assert topic_config({name: format_value(info.default)}, TopicConfig()) == TopicConfig()


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"num.partition": "3"}, "num.partition is not a broker setting .* closest name is num.partitions"),
        ({"zzz": "3"}, "zzz is not a broker setting .* Known names: advertised.listeners"),
        ({"num.partitions": "three"}, "num.partitions must be an integer between 1 and 100000, got 'three'"),
        ({"message.max.bytes": "-1"}, "message.max.bytes must be between 0 and 2147483647, got -1"),
        ({"delete.topic.enable": "1"}, "delete.topic.enable must be true or false"),
        ({"log.message.timestamp.type": "Now"}, "must be CreateTime or LogAppendTime, got 'Now'"),
        ({"group.max.size": "0"}, "group.max.size must be between 1 and 2147483647"),
    ],
)
def test_errors_contain_the_setting_and_the_accepted_values(settings, reason):
    with pytest.raises(ConfigurationError, match=reason):
        broker_config(settings)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("compact", ("compact",)), ("compact,delete", ("compact", "delete")),
        (" delete , compact,delete ", ("delete", "compact")), ("", ()),
    ],
)  # fmt: skip
def test_list_entries_are_unique(text, expected):
    config = topic_config({"cleanup.policy": text}, TopicConfig())
    assert (config.cleanup_policy, config.is_compacted) == (expected, "compact" in expected)


@pytest.mark.parametrize("text", ["keep", "compact,", ",", "delete;compact"])
def test_unknown_list_entries_are_rejected(text):
    with pytest.raises(ConfigurationError, match="cleanup.policy must be a list of delete, compact, got "):
        topic_config({"cleanup.policy": text}, TopicConfig())


def test_alterations_of_several_clients_follow_one_another(tmp_path):
    """Also one that arrives after the first has ended, while the second is stored."""
    broker = BrokerWithoutSockets(tmp_path).broker
    context = ApiRequestContext(1, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, "c", "127.0.0.1", 1)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource

    async def alter(name: str) -> None:
        change = resource.AlterableConfig(name=name, config_operation=0, value="1")
        changed = resource(resource_type=4, resource_name="", configs=[change])
        request = IncrementalAlterConfigsRequest(resources=[changed], validate_only=False)
        (result,) = (await rest_of(incremental_alter_configs(broker, context, request))).responses
        assert not result.error_code

    async def alter_all() -> None:
        first, second = asyncio.create_task(alter("own.a")), asyncio.create_task(alter("own.b"))
        await first
        await alter("own.c")
        await second

    asyncio.run(alter_all())
    assert broker.dynamic.of("").keys() >= {"own.a", "own.b", "own.c"}
