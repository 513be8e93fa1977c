"""DescribeConfigs, ListConfigResources, IncrementalAlterConfigs, AlterConfigs, DescribeLogDirs.

Source: Kafka `ConfigHelper`, `ConfigAdminManager`, `ConfigurationControlManager`, `ReplicaManager.describeLogDirs`.
"""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from typing import Callable, Mapping, Sequence, TypeVar, Union

from spark_groupsource.broker.api.request_limits import check_changes
from spark_groupsource.broker.config import BROKER_SETTINGS
from spark_groupsource.broker.dynamic_config import (
    ALL_NODES,
    ALL_NODES_SOURCE,
    DEFAULT_SOURCE,
    NODE_SOURCE,
    STATIC_SOURCE,
)
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.broker.storage.catalog import UNLISTED_TOPICS
from spark_groupsource.broker.storage.topic_config import TOPIC_FIELDS, TOPIC_SETTINGS
from spark_groupsource.common.config_def import BrokerConfigKey, ConfigType, format_value
from spark_groupsource.common.coroutines import enter_task, pause, portions
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_TOPIC_RESOURCE, _BROKER_RESOURCE, _BROKER_LOGGER_RESOURCE, _CLIENT_METRICS_RESOURCE, _GROUP_RESOURCE = 2, 4, 8, 16, 32
_TOPIC_SOURCE = 1
_UNKNOWN_TYPE = 0
_TYPE_CODES = {
    ConfigType.BOOLEAN: 1,
    ConfigType.STRING: 2,
    ConfigType.INT: 3,
    ConfigType.LONG: 5,
    ConfigType.DOUBLE: 6,
    ConfigType.LIST: 7,
    ConfigType.PASSWORD: 9,
}
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_HOUR_MS = 3_600_000
_MAX_REPEATED_ENTRIES = 10_000
_MAX_ENTRIES = 120_000
"""Settings of a DescribeConfigs response, which has up to 200 bytes for each of them."""
_PER_STEP = 200

_ConfigEntry = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
_LogDir = DescribeLogDirsResponse.DescribeLogDirsResult
_Resource = DescribeConfigsRequest.DescribeConfigsResource
_IncrementalResource = IncrementalAlterConfigsRequest.AlterConfigsResource
_AlteredResource = Union[AlterConfigsRequest.AlterConfigsResource, _IncrementalResource]

_Synonym = tuple[str, "str | None", int]
"""Name, value and config source of a setting that supplies a value, listed in order of precedence (KIP-226)."""


# --- DescribeConfigs ---


async def describe_configs(
    broker: Broker, context: ApiRequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describes the settings of topics and of this broker; no other resource has any.

    Equal descriptions share their entries. A resource that is named repeatedly is described again while the response is
    small.
    """
    results = []
    known: dict[object, list[_ConfigEntry]] = {}
    shared: dict[object, _ConfigEntry] = {}
    seen: set[object] = set()
    size = 0
    for resource in request.resources:
        # as Kafka, the message of a success is empty and not null
        code, message = ErrorCode.NONE, ""
        entries: list[_ConfigEntry] = []
        names = None if resource.configuration_keys is None else tuple(resource.configuration_keys)
        identity = (resource.resource_type, resource.resource_name, names)
        try:
            if identity in seen and size > _MAX_REPEATED_ENTRIES:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The request contains a resource too many times.")
            if size > _MAX_ENTRIES:
                text = f"The response has more than {_MAX_ENTRIES:,} settings. Describe fewer resources per request."
                raise ApiError(ErrorCode.POLICY_VIOLATION, text)
            topic = broker.partitions.topics.get(resource.resource_name)
            is_topic = resource.resource_type == _TOPIC_RESOURCE and topic is not None
            key = (names, tuple(sorted(topic.settings.items()))) if is_topic and topic is not None else identity
            if key not in known:
                known[key] = [
                    shared.setdefault((resource.resource_type, each.name, each.value, each.config_source), each)
                    for each in _describe(broker, context, resource, request)
                ]
            entries = known[key]
        except ApiError as error:
            code, message = error.code, error.message
        seen.add(identity)
        size += len(entries)
        result = DescribeConfigsResponse.DescribeConfigsResult(
            error_code=code,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=entries,
        )
        results.append(result)
        await pause()
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _describe(
    broker: Broker, context: ApiRequestContext, resource: _Resource, request: DescribeConfigsRequest
) -> list[_ConfigEntry]:
    if resource.resource_type == _TOPIC_RESOURCE:
        return _describe_topic(broker, context, resource, request)
    if resource.resource_type != _BROKER_RESOURCE:
        raise ApiError(ErrorCode.INVALID_REQUEST, _no_settings(resource.resource_type))
    _check_node(context, resource)
    if resource.resource_name == ALL_NODES:
        return _describe_all_nodes(broker, context, resource, request)
    return _describe_node(broker, context, resource, request)


def _check_node(context: ApiRequestContext, resource: _Resource | _AlteredResource) -> None:
    if resource.resource_name not in (ALL_NODES, str(context.node_id)):
        text = f"This is broker {context.node_id}, not broker {resource.resource_name}. Send it to that broker."
        raise ApiError(ErrorCode.INVALID_REQUEST, text)


def _no_settings(resource_type: int) -> str:
    return f"Resource type {resource_type} has no settings. Use topics or brokers."


def _requested(table: Mapping[str, BrokerConfigKey], resource: _Resource) -> list[BrokerConfigKey]:
    """Returns the rows that the request names, every row where it names none."""
    names = frozenset(resource.configuration_keys or ())
    return [key for key in table.values() if not names or key.name in names]


def _describe_topic(
    broker: Broker, context: ApiRequestContext, resource: _Resource, request: DescribeConfigsRequest
) -> list[_ConfigEntry]:
    broker.partitions.check_name(resource.resource_name)
    topic = broker.partitions.topic(resource.resource_name)
    config = broker.partitions.config_of(topic)
    entries = []
    for key in _requested(TOPIC_SETTINGS, resource):
        broker_source = broker.dynamic.source(key.broker_name, context.node_id)
        source = _TOPIC_SOURCE if key.name in topic.settings else broker_source
        value = format_value(getattr(config, TOPIC_FIELDS[key.name]))
        synonyms: list[_Synonym] = [(key.name, value, source)] if source == _TOPIC_SOURCE else []
        broker_name = key.broker_name or key.name
        if broker_source != DEFAULT_SOURCE:
            synonyms.append((broker_name, format_value(broker.config.value(broker_name)), broker_source))
        if key.broker_name:
            synonyms += _default_synonym(key, broker_name, is_set=broker_source != DEFAULT_SOURCE)
        entries.append(_entry(key, value, source, synonyms, request))
    return entries


def _describe_node(
    broker: Broker, context: ApiRequestContext, resource: _Resource, request: DescribeConfigsRequest
) -> list[_ConfigEntry]:
    """Returns every setting of one node, including altered settings that are not in the table."""
    entries = []
    for key in _requested(BROKER_SETTINGS, resource):
        value, source = broker.config.value(key.name), broker.dynamic.source(key.name, context.node_id)
        if key.is_per_node:
            value, source = _value_of_node(broker, context, key), STATIC_SOURCE
        entries.append(_broker_entry(key, value, source, request))
    return entries + _describe_unknown(broker, resource, NODE_SOURCE, request)


def _describe_all_nodes(
    broker: Broker, context: ApiRequestContext, resource: _Resource, request: DescribeConfigsRequest
) -> list[_ConfigEntry]:
    """Returns the settings that were altered for all nodes."""
    altered = broker.dynamic.of(ALL_NODES)
    entries = [
        _broker_entry(key, altered[key.name], ALL_NODES_SOURCE, request)
        for key in _requested(BROKER_SETTINGS, resource)
        if key.name in altered
    ]
    return entries + _describe_unknown(broker, resource, ALL_NODES_SOURCE, request)


def _describe_unknown(
    broker: Broker, resource: _Resource, source: int, request: DescribeConfigsRequest
) -> list[_ConfigEntry]:
    """Returns altered settings that are not in the table; as in Kafka they have no type and no visible value."""
    names = frozenset(resource.configuration_keys or ())
    entries = []
    for name in broker.dynamic.of(resource.resource_name):
        if name in BROKER_SETTINGS or (names and name not in names):
            continue
        synonym = _ConfigEntry.DescribeConfigsSynonym(name=name, value=None, source=source)
        entries.append(
            _ConfigEntry(
                name=name,
                value=None,
                read_only=True,
                config_source=source,
                is_sensitive=True,
                synonyms=[synonym] if request.include_synonyms else [],
                config_type=_UNKNOWN_TYPE,
                documentation=None,
            )
        )
    return entries


def _value_of_node(broker: Broker, context: ApiRequestContext, key: BrokerConfigKey) -> object:
    if key.name == "node.id":
        return context.node_id
    endpoints = broker.nodes.endpoints(context.node_id)
    return tuple(f"{listener}://{node.host}:{node.port}" for listener, node in endpoints.items())


def _broker_entry(
    key: BrokerConfigKey, value: object, source: int, request: DescribeConfigsRequest
) -> _ConfigEntry:
    text = None if key.is_sensitive else format_value(value)
    is_set = source != DEFAULT_SOURCE
    synonyms: list[_Synonym] = [(key.name, text, source)] if is_set else []
    if not key.is_per_node:
        synonyms += _default_synonym(key, key.name, is_set=is_set)
    return _entry(key, text, source, synonyms, request)


def _default_synonym(key: BrokerConfigKey, broker_name: str, *, is_set: bool) -> list[_Synonym]:
    """Returns the default as a synonym. Kafka lists the default of a setting in hours only if the setting in ms is set.
    """
    if key.hours_name:
        return [(key.hours_name, str(key.default // _HOUR_MS), DEFAULT_SOURCE)] if is_set else []
    return [(broker_name, None if key.is_sensitive else format_value(key.default), DEFAULT_SOURCE)]


def _entry(
    key: BrokerConfigKey, value: str | None, source: int, synonyms: list[_Synonym], request: DescribeConfigsRequest
) -> _ConfigEntry:
    synonym = _ConfigEntry.DescribeConfigsSynonym
    return _ConfigEntry(
        name=key.name,
        value=value,
        read_only=not key.dynamic,
        config_source=source,
        is_sensitive=key.is_sensitive,
        synonyms=[synonym(name=name, value=text, source=of) for name, text, of in synonyms]
        if request.include_synonyms
        else [],
        config_type=_TYPE_CODES[key.type],
        documentation=key.doc if request.include_documentation else None,
    )


# --- ListConfigResources ---


async def list_config_resources(
    broker: Broker, context: ApiRequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Lists the resources with settings: brokers and topics. Version 0 lists client metrics only, which have none."""
    nodes = [str(node_id) for node_id in broker.nodes.ids()]
    known = {
        _TOPIC_RESOURCE: [name for name in broker.partitions.topics if name not in UNLISTED_TOPICS],
        _BROKER_RESOURCE: nodes,
        _BROKER_LOGGER_RESOURCE: nodes,
        _CLIENT_METRICS_RESOURCE: [],
        _GROUP_RESOURCE: [],
    }
    requested = set(request.resource_types or known) if context.api_version > 0 else {_CLIENT_METRICS_RESOURCE}
    resource = ListConfigResourcesResponse.ConfigResource
    if not requested <= set(known):
        code = ErrorCode.UNSUPPORTED_VERSION
        return ListConfigResourcesResponse(throttle_time_ms=0, error_code=code, config_resources=[])
    found = []
    for kind in sorted(requested):
        for names in portions(known[kind], _PER_STEP):
            found += [resource(resource_name=name, resource_type=kind) for name in names]
            await pause()
    return ListConfigResourcesResponse(throttle_time_ms=0, error_code=0, config_resources=found)


# --- AlterConfigs and IncrementalAlterConfigs ---


async def incremental_alter_configs(
    broker: Broker, context: ApiRequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Alters settings of topics and brokers; the changes of one resource succeed or fail together."""
    result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    responses = await _alter(
        broker, context, request.resources, _changed, result, validate_only=request.validate_only
    )
    return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=responses)


async def alter_configs(
    broker: Broker, context: ApiRequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Replaces all settings of topics and brokers; a setting that is not named returns to its default."""
    result = AlterConfigsResponse.AlterConfigsResourceResponse
    responses = await _alter(
        broker, context, request.resources, _replaced, result, validate_only=request.validate_only
    )
    return AlterConfigsResponse(throttle_time_ms=0, responses=responses)


_ResourceT = TypeVar("_ResourceT", AlterConfigsRequest.AlterConfigsResource, _IncrementalResource)
_ResultT = TypeVar(
    "_ResultT",
    AlterConfigsResponse.AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
)


async def _alter(
    broker: Broker,
    context: ApiRequestContext,
    resources: Sequence[_ResourceT],
    settings: Callable[[_ResourceT, dict[str, str]], dict[str, str]],
    response: type[_ResultT],
    *,
    validate_only: bool,
) -> list[_ResultT]:
    named = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    changes = sum(len(resource.configs) for resource in resources)
    results = []
    for resource in resources:
        await pause()
        code: int = ErrorCode.NONE
        message: str | None = None
        try:
            check_changes(changes, "settings")
            if named[(resource.resource_type, resource.resource_name)] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            _check_alterable(resource)
            if resource.resource_type == _BROKER_RESOURCE:
                _check_node(context, resource)
            await enter_task()
            async with broker.alteration:
                if resource.resource_type == _BROKER_RESOURCE:
                    altered = settings(resource, dict(broker.dynamic.of(resource.resource_name)))
                    await broker.alter_config(resource.resource_name, altered, validate_only=validate_only)
                else:
                    entry = broker.partitions.topics.get(resource.resource_name)
                    altered = settings(resource, {} if entry is None else dict(entry.settings))
                    broker.partitions.check_name(resource.resource_name)
                    broker.partitions.check_settings(altered)  # before the topic is looked up, as Kafka does
                    entry = broker.partitions.topic(resource.resource_name)
                    await broker.partitions.alter_topic(entry.name, altered, validate_only=validate_only)
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


def _check_alterable(resource: _AlteredResource) -> None:
    if resource.resource_type not in (_TOPIC_RESOURCE, _BROKER_RESOURCE):
        raise ApiError(ErrorCode.INVALID_REQUEST, _no_settings(resource.resource_type))
    if any(count > 1 for count in Counter(config.name for config in resource.configs).values()):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")


def _replaced(resource: AlterConfigsRequest.AlterConfigsResource, settings: dict[str, str]) -> dict[str, str]:
    return {config.name: _value(config) for config in resource.configs}


def _changed(resource: _IncrementalResource, settings: dict[str, str]) -> dict[str, str]:
    for config in resource.configs:
        name, operation = config.name, config.config_operation
        if operation not in (_SET, _DELETE, _APPEND, _SUBTRACT):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {operation} for config {name}")
        key = (TOPIC_SETTINGS if resource.resource_type == _TOPIC_RESOURCE else BROKER_SETTINGS).get(name)
        if operation == _DELETE:
            settings.pop(name, None)  # an unknown name is not set either
        elif operation == _SET:
            settings[name] = _value(config)
        else:
            if key is None or key.type is not ConfigType.LIST:
                verb = "APPEND to" if operation == _APPEND else "SUBTRACT from"
                text = f"Can't {verb} key {name} because its type is not LIST."
                raise ApiError(ErrorCode.INVALID_CONFIG, text)
            old = [each for each in settings.get(name, format_value(key.default)).split(",") if each]
            entries = _value(config).split(",")
            if operation == _APPEND:
                known = frozenset(old)
                new = old + [each for each in entries if each not in known]
            else:
                removed = frozenset(entries)
                new = [each for each in old if each not in removed]
            settings[name] = ",".join(new)
    return settings


def _value(
    config: AlterConfigsRequest.AlterConfigsResource.AlterableConfig | _IncrementalResource.AlterableConfig,
) -> str:
    if config.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")
    return config.value


# --- DescribeLogDirs ---


async def describe_log_dirs(
    broker: Broker, context: ApiRequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Describes the only data directory: the size of each partition, total and usable bytes."""
    requested: set[tuple[str, int]] | None = None
    if request.topics is not None:
        requested = set()
        for each in request.topics:
            for numbers in portions(each.partitions, _PER_STEP):
                requested.update((each.topic, number) for number in numbers)
                await pause()
    topics: dict[str, list[_LogDir.DescribeLogDirsTopic.DescribeLogDirsPartition]] = {}
    for partition in broker.partitions:
        await pause()
        topic = partition.topic_partition.topic
        if topic in UNLISTED_TOPICS if requested is None else tuple(partition.topic_partition) not in requested:
            continue
        described = _LogDir.DescribeLogDirsTopic.DescribeLogDirsPartition(
            partition_index=partition.topic_partition.partition,
            partition_size=partition.log.size_bytes,
            offset_lag=0,
            is_future_key=False,
        )
        topics.setdefault(topic, []).append(described)
    try:
        usage = shutil.disk_usage(broker.data.path)
        code, total, free = ErrorCode.NONE, usage.total, usage.free
    except OSError as error:
        text = f"[broker] Data directory {broker.data.path} cannot be read: {error.strerror}. Check the disk."
        broker.report(text, logging.ERROR)
        code, total, free = ErrorCode.KAFKA_STORAGE_ERROR, -1, -1
    result = _LogDir(
        error_code=code,
        log_dir=str(broker.data.path.absolute()),
        topics=[_LogDir.DescribeLogDirsTopic(name=name, partitions=found) for name, found in topics.items()],
        total_bytes=total,
        usable_bytes=free,
    )
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=0, results=[result])
