"""DescribeConfigs, ListConfigResources, IncrementalAlterConfigs, AlterConfigs, DescribeLogDirs.

Source: Kafka `ConfigHelper`, `ConfigAdminManager`, `ConfigurationControlManager`, `ReplicaManager.describeLogDirs`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Callable

from spark_groupsource.broker.api.topics import default_source
from spark_groupsource.broker.config import (
    BROKER_NAMES,
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    SettingInfo,
    setting_text,
)
from spark_groupsource.broker.dynamic_config import (
    ALL_NODES,
    ALL_NODES_SOURCE,
    DEFAULT_SOURCE,
    NODE_SOURCE,
    STATIC_SOURCE,
    is_dynamic,
)
from spark_groupsource.broker.node import Broker, Call
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.group.config import GroupConfig
from spark_groupsource.wire.messages import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    DescribeLogDirsResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesResponse,
    Message,
)

_TOPIC_RESOURCE = 2
_BROKER_RESOURCE = 4
_TOPIC_SOURCE = 1
_TYPE_UNKNOWN, _TYPE_BOOLEAN, _TYPE_STRING, _TYPE_INT, _TYPE_LONG, _TYPE_DOUBLE, _TYPE_LIST = 0, 1, 2, 3, 5, 6, 7
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_THROTTLED = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})
_LISTS = _THROTTLED | {"cleanup.policy", "log.cleanup.policy", "advertised.listeners", "sasl.enabled.mechanisms"}
_LONGS = frozenset({"offsets.retention.check.interval.ms"})
# Behind these is no setting of Kafka's broker, or one without a default.
_NO_BROKER_DEFAULT = _THROTTLED | {"flush.ms", "remote.storage.enable", "segment.jitter.ms"}
# Others have the default of these, and are shown behind a value in milliseconds only.
_IN_HOURS = {"log.retention.ms": ("log.retention.hours", "168"), "log.roll.ms": ("log.roll.hours", "168")}
# Kafka has no default of these
_EACH_NODES_OWN = frozenset({"node.id", "advertised.listeners"})
_GROUP_RESOURCE, _CLIENT_METRICS_RESOURCE, _BROKER_LOGGER_RESOURCE = 32, 16, 8
_INT32_MAX = 2**31 - 1

_ConfigEntry = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
_LogDir = DescribeLogDirsResponse.DescribeLogDirsResult


# --- what the settings are ---


def describe_configs(broker: Broker, call: Call, request: Message) -> Message:
    """Settings of topics and of this broker; no other resource has any."""
    results = []
    for resource in request.resources:
        # Kafka's message of a success is empty here, not null
        code, message, entries = ErrorCode.NONE, "", []
        try:
            entries = _settings(broker, call, resource, request)
        except ApiError as error:
            code, message = error.code, error.message
        result = DescribeConfigsResponse.DescribeConfigsResult(
            error_code=code,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=entries,
        )
        results.append(result)
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _settings(broker: Broker, call: Call, resource: Message, request: Message) -> list[Message]:
    keys = resource.configuration_keys
    if resource.resource_type == _TOPIC_RESOURCE:
        broker.partitions.check_name(resource.resource_name)
        entry = broker.partitions.topic(resource.resource_name)
        config = broker.partitions.config_of(entry)
        found = []
        for info in TOPIC_SETTINGS.values():
            source = _TOPIC_SOURCE if info.name in entry.settings else default_source(broker, call.node_id, info)
            found.append((info, getattr(config, info.attribute), source))
    elif resource.resource_type == _BROKER_RESOURCE:
        _check_node(call, resource)
        return _settings_of_node(broker, call, resource, request)
    else:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"resource type {resource.resource_type} has no settings here")
    return [_entry(broker, call, *each, request) for each in found if not keys or each[0].name in keys]


def _check_node(call: Call, resource: Message) -> None:
    if resource.resource_name not in (ALL_NODES, str(call.node_id)):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"this is broker {call.node_id}, not {resource.resource_name}")


def _settings_of_node(broker: Broker, call: Call, resource: Message, request: Message) -> list[Message]:
    """All settings of one node; under the empty name what was given to all of them while they ran."""
    keys, config = resource.configuration_keys, broker.config
    owners = {BrokerConfig: config, type(config.group): config.group, type(config.topic): config.topic}
    entries = []
    given = broker.dynamic.of(resource.resource_name)
    of_all = resource.resource_name == ALL_NODES
    for info in BROKER_SETTINGS.values():
        if keys and info.name not in keys:
            continue
        if not of_all:
            source = broker.dynamic.source(info, info.name, call.node_id)
            value = getattr(owners[info.owner], info.attribute)
            if info.name in _EACH_NODES_OWN:
                value, source = _own(broker, call, info.name), STATIC_SOURCE
            entries.append(_entry(broker, call, info, value, source, request))
        elif info.name in given:
            entries.append(_entry(broker, call, info, given[info.name], ALL_NODES_SOURCE, request))
    # nobody knows what kind of value these have, so none is told, as by Kafka
    source = ALL_NODES_SOURCE if of_all else NODE_SOURCE
    for name in given:
        if name not in BROKER_SETTINGS and (not keys or name in keys):
            synonym = _ConfigEntry.DescribeConfigsSynonym(name=name, value=None, source=source)
            synonyms = [synonym] if request.include_synonyms else []
            entries.append(
                _ConfigEntry(name=name, value=None, read_only=True, config_source=source, is_sensitive=True,
                             synonyms=synonyms, config_type=_TYPE_UNKNOWN, documentation=None)
            )  # fmt: skip
    return entries


def _own(broker: Broker, call: Call, name: str) -> object:
    node = next(each for each in broker.nodes if each.node_id == call.node_id)
    protocol = "SASL_PLAINTEXT" if broker.accounts.mechanisms else "PLAINTEXT"
    return node.node_id if name == "node.id" else f"{protocol}://{node.host}:{node.port}"


def _entry(
    broker: Broker, call: Call, info: SettingInfo, value: object, source: int, request: Message
) -> Message:
    is_sensitive = info.name.endswith(".sasl.jaas.config")
    text = None if is_sensitive else setting_text(value)
    return _ConfigEntry(
        name=info.name,
        value=text,
        read_only=not is_dynamic(info),
        config_source=source,
        is_sensitive=is_sensitive,
        synonyms=_synonyms(broker, call, info, text, source) if request.include_synonyms else [],
        config_type=_config_type(info),
        documentation=info.doc if request.include_documentation else None,
    )


def _synonyms(broker: Broker, call: Call, info: SettingInfo, text: str | None, source: int) -> list[Message]:
    """Where a value comes from and what would hold without it, first what counts (KIP-226).

    A topic's setting falls back to the broker's, which mostly has another name, and that one to Kafka's default.
    """
    given = [(info.name, text, source)] if source != DEFAULT_SOURCE else []
    name = info.name
    if name in TOPIC_SETTINGS:
        name = BROKER_NAMES.get(name, name)
        given = given if source == _TOPIC_SOURCE else []
        fallback = default_source(broker, call.node_id, info)
        if fallback != DEFAULT_SOURCE:
            given.append((name, setting_text(getattr(broker.config.topic, info.attribute)), fallback))
    if name in _IN_HOURS:
        behind = any(each == name for each, _, _ in given)
        given += [(*_IN_HOURS[name], DEFAULT_SOURCE)] if behind else []
    elif info.name not in _NO_BROKER_DEFAULT | _EACH_NODES_OWN:
        given.append((name, text if text is None else setting_text(info.default), DEFAULT_SOURCE))
    return [_ConfigEntry.DescribeConfigsSynonym(name=name, value=value, source=of) for name, value, of in given]


def _config_type(info: SettingInfo) -> int:
    if isinstance(info.default, bool):
        return _TYPE_BOOLEAN
    if isinstance(info.default, int):
        small = info.high is not None and info.high <= _INT32_MAX or info.owner is GroupConfig
        return _TYPE_INT if small and info.name not in _LONGS else _TYPE_LONG
    if isinstance(info.default, float):
        return _TYPE_DOUBLE
    return _TYPE_LIST if info.name in _LISTS else _TYPE_STRING


def list_config_resources(broker: Broker, call: Call, request: Message) -> Message:
    """What has settings: brokers and topics. Version 0 asks for those of client metrics, which nobody can set here."""
    nodes = [str(node.node_id) for node in broker.nodes]
    known = {
        _TOPIC_RESOURCE: list(broker.partitions.topics),
        _BROKER_RESOURCE: nodes,
        _BROKER_LOGGER_RESOURCE: nodes,
        _CLIENT_METRICS_RESOURCE: [],
        _GROUP_RESOURCE: [],
    }
    wanted = set(request.resource_types or known) if call.api_version > 0 else {_CLIENT_METRICS_RESOURCE}
    resource = ListConfigResourcesResponse.ConfigResource
    if not wanted <= set(known):
        code = ErrorCode.UNSUPPORTED_VERSION
        return ListConfigResourcesResponse(throttle_time_ms=0, error_code=code, config_resources=[])
    found = [resource(resource_name=name, resource_type=kind) for kind in sorted(wanted) for name in known[kind]]
    return ListConfigResourcesResponse(throttle_time_ms=0, error_code=0, config_resources=found)


# --- changes ---


def incremental_alter_configs(broker: Broker, call: Call, request: Message) -> Message:
    """Changes settings of topics and brokers, each on its own and all of its changes or none."""
    responses = _alter(broker, call, request, _changed, IncrementalAlterConfigsResponse.AlterConfigsResourceResponse)
    return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=responses)


def alter_configs(broker: Broker, call: Call, request: Message) -> Message:
    """Gives topics and brokers other settings altogether: what is not named goes back to its default."""
    responses = _alter(broker, call, request, _replaced, AlterConfigsResponse.AlterConfigsResourceResponse)
    return AlterConfigsResponse(throttle_time_ms=0, responses=responses)


_Settings = Callable[[Message, "dict[str, str]"], "dict[str, str]"]


def _alter(broker: Broker, call: Call, request: Message, settings: _Settings, response: Message) -> list[Message]:
    named = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    results = []
    for resource in request.resources:
        code, message = ErrorCode.NONE, None
        try:
            if named[(resource.resource_type, resource.resource_name)] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            _check_alterable(resource)
            if resource.resource_type == _BROKER_RESOURCE:
                _check_node(call, resource)
                wanted = settings(resource, dict(broker.dynamic.of(resource.resource_name)))
                broker.give_settings(resource.resource_name, wanted, validate_only=request.validate_only)
            else:
                entry = broker.partitions.topic(resource.resource_name)
                wanted = settings(resource, dict(entry.settings))
                broker.partitions.alter_topic(entry.name, wanted, validate_only=request.validate_only)
        except ApiError as error:
            code, message = error.code, error.message
        results.append(
            response(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return results


def _check_alterable(resource: Message) -> None:
    if resource.resource_type not in (_TOPIC_RESOURCE, _BROKER_RESOURCE):
        text = f"resource type {resource.resource_type} has no settings here; topics and brokers have"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    if any(count > 1 for count in Counter(config.name for config in resource.configs).values()):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def _replaced(resource: Message, settings: dict[str, str]) -> dict[str, str]:
    return {config.name: _value(config) for config in resource.configs}


def _changed(resource: Message, settings: dict[str, str]) -> dict[str, str]:
    for config in resource.configs:
        name, operation = config.name, config.config_operation
        if operation not in (_SET, _DELETE, _APPEND, _SUBTRACT):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {operation} for config {name}")
        info = (TOPIC_SETTINGS if resource.resource_type == _TOPIC_RESOURCE else BROKER_SETTINGS).get(name)
        if operation == _DELETE:
            settings.pop(name, None)  # of an unknown one nothing is set either
        elif operation == _SET:
            settings[name] = _value(config)
        else:
            if info is None or name not in _LISTS:
                verb = "APPEND to" if operation == _APPEND else "SUBTRACT from"
                text = f"Can't {verb} key {name} because its type is not LIST."
                raise ApiError(ErrorCode.INVALID_CONFIG, text)
            old = [each for each in settings.get(name, str(info.default)).split(",") if each]
            given = _value(config).split(",")
            if operation == _APPEND:
                new = old + [each for each in given if each not in old]
            else:
                new = [each for each in old if each not in given]
            settings[name] = ",".join(new)
    return settings


def _value(config: Message) -> str:
    if config.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")
    return str(config.value)


# --- the data directory ---


def describe_log_dirs(broker: Broker, call: Call, request: Message) -> Message:
    """The one data directory: how much of it each partition takes, and how much is free."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, number) for topic in request.topics for number in topic.partitions}
    topics: dict[str, list[Message]] = {}
    for partition in broker.partitions:
        if wanted is not None and tuple(partition.topic_partition) not in wanted:
            continue
        described = _LogDir.DescribeLogDirsTopic.DescribeLogDirsPartition(
            partition_index=partition.topic_partition.partition,
            partition_size=partition.log.size_bytes,
            offset_lag=0,
            is_future_key=False,
        )
        topics.setdefault(partition.topic_partition.topic, []).append(described)
    try:
        usage = shutil.disk_usage(broker.data.path)
        code, total, free = ErrorCode.NONE, usage.total, usage.free
    except OSError as error:
        broker.report(f"data directory {broker.data.path} cannot be looked at: {error.strerror}")
        code, total, free = ErrorCode.KAFKA_STORAGE_ERROR, -1, -1
    result = _LogDir(
        error_code=code,
        log_dir=str(broker.data.path.absolute()),
        topics=[_LogDir.DescribeLogDirsTopic(name=name, partitions=found) for name, found in topics.items()],
        total_bytes=total,
        usable_bytes=free,
    )
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=0, results=[result])
