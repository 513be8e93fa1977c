"""Configuration of topics and brokers (DescribeConfigs)."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.errors import BrokerError, GroupSourceError, UnsupportedVersionError, as_sentence
from spark_groupsource.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)

_TOPIC_RESOURCE = 2
_DYNAMIC_TOPIC_CONFIG, _DEFAULT_CONFIG = 1, 5
# operations of IncrementalAlterConfigs (KIP-339)
_SET, _DELETE = 0, 1


class ConfigEntry(NamedTuple):
    """One setting of a topic or broker.

    Attributes:
        value: None for sensitive settings.
        is_of_topic: whether the topic overrides it.
    """

    name: str
    value: str | None
    is_default: bool
    is_sensitive: bool
    is_of_topic: bool = False


def describe_topic_config(
    cluster: ClusterClient, topic: str, timeout_ms: int | None = None
) -> dict[str, ConfigEntry]:
    """Returns the settings of a topic by name.

    Raises: BrokerError, NetworkError.
    """
    row = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[row(resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=None)]
    )
    response = cluster.call_any(request, timeout_ms)
    found = _entries_or_error(response.results[0])
    if isinstance(found, GroupSourceError):
        raise found
    return {entry.name: entry for entry in found}


def describe_topic_configs(
    cluster: ClusterClient, topics: Sequence[str]
) -> dict[str, list[ConfigEntry] | GroupSourceError]:
    """Returns the settings of each topic, sorted, with one request, or the error of those that cannot be read.

    A broker without DescribeConfigs, as some services that are compatible with Kafka, is an error of each topic.

    Raises: NetworkError.
    """
    row = DescribeConfigsRequest.DescribeConfigsResource
    resources = [row(resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None) for name in topics]
    if not topics:
        return {}
    try:
        response = cluster.call_any(DescribeConfigsRequest(resources=resources))
    except UnsupportedVersionError as error:
        return dict.fromkeys(topics, error)
    return {result.resource_name: _entries_or_error(result) for result in response.results}


def _entries_or_error(result: DescribeConfigsResponse.DescribeConfigsResult) -> list[ConfigEntry] | GroupSourceError:
    if result.error_code:
        operation = f"Describing the configuration of '{result.resource_name}'"
        return BrokerError(result.error_code, operation, as_sentence(result.error_message))
    return [_entry(config) for config in sorted(result.configs, key=lambda c: str(c.name))]


def _entry(config: DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        config.is_default or config.config_source == _DEFAULT_CONFIG,
        config.is_sensitive,
        config.config_source == _DYNAMIC_TOPIC_CONFIG,
    )


def alter_topic_config(cluster: ClusterClient, topic: str, changes: Mapping[str, str | None]) -> None:
    """Changes settings of a topic; None resets one to its default.

    Raises: BrokerError, NetworkError; UnsupportedVersionError for brokers before 2.3.
    """
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        resource.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in changes.items()
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=_TOPIC_RESOURCE, resource_name=topic, configs=configs)], validate_only=False
    )
    for result in cluster.call_controller(request).responses:
        if result.error_code:
            operation = f"Changing the configuration of '{topic}'"
            raise BrokerError(result.error_code, operation, as_sentence(result.error_message))


def is_compacted(cluster: ClusterClient, topic: str, timeout_ms: int | None = None) -> bool:
    """Returns True if the cleanup.policy of a topic contains compact.

    Raises: as `describe_topic_config`; the permission DESCRIBE_CONFIGS on the topic is required.
    """
    entry = describe_topic_config(cluster, topic, timeout_ms).get("cleanup.policy")
    return entry is not None and "compact" in (entry.value or "").split(",")
