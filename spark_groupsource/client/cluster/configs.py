"""Configuration of topics and brokers (DescribeConfigs)."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

from spark_groupsource.client.cluster.client import ClusterClient
from spark_groupsource.errors import BrokerError, as_sentence
from spark_groupsource.wire.messages import DescribeConfigsRequest, IncrementalAlterConfigsRequest

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
_DYNAMIC_TOPIC_CONFIG = 1
# operations of IncrementalAlterConfigs (KIP-339)
_SET, _DELETE = 0, 1


class ConfigEntry(NamedTuple):
    """One setting of a topic or broker; `value` is None for sensitive settings."""

    name: str
    value: str | None
    is_default: bool
    is_sensitive: bool


def describe_config(
    cluster: ClusterClient, resource_type: int, name: str, timeout_ms: int | None = None
) -> dict[str, ConfigEntry]:
    """Describes the configuration of a topic (`TOPIC_RESOURCE`) or of a broker (`BROKER_RESOURCE`, its id as text).

    Raises: BrokerError, NetworkError.
    """
    row = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[row(resource_type=resource_type, resource_name=name, configuration_keys=None)]
    )
    # a broker describes no settings of other brokers
    if resource_type == BROKER_RESOURCE:
        response = cluster.call_node(int(name), request, timeout_ms)
    else:
        response = cluster.call_any(request, timeout_ms)
    result = response.results[0]
    if result.error_code:
        operation = f"Describing the configuration of '{name}'"
        raise BrokerError(result.error_code, operation, as_sentence(result.error_message))
    return {
        c.name: ConfigEntry(c.name, c.value, c.is_default or c.config_source == 5, c.is_sensitive)
        for c in sorted(result.configs, key=lambda c: str(c.name))
    }


def describe_topic_overrides(cluster: ClusterClient, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the settings that each topic overrides, with one request; topics without permission are absent.

    Raises: NetworkError.
    """
    row = DescribeConfigsRequest.DescribeConfigsResource
    resources = [row(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None) for name in topics]
    response = cluster.call_any(DescribeConfigsRequest(resources=resources))
    return {
        result.resource_name: {
            c.name: "" if c.value is None else c.value
            for c in sorted(result.configs, key=lambda c: str(c.name))
            if c.config_source == _DYNAMIC_TOPIC_CONFIG
        }
        for result in response.results
        if not result.error_code
    }


def alter_config(
    cluster: ClusterClient,
    resource_type: int,
    name: str,
    changes: Mapping[str, str | None],
    timeout_ms: int | None = None,
) -> None:
    """Changes settings of a topic or broker; None resets one to its default.

    Raises: BrokerError, NetworkError; UnsupportedVersionError for brokers before 2.3.
    """
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        resource.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in changes.items()
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=resource_type, resource_name=name, configs=configs)], validate_only=False
    )
    for result in cluster.call_controller(request, timeout_ms).responses:
        if result.error_code:
            operation = f"Changing the configuration of '{name}'"
            raise BrokerError(result.error_code, operation, as_sentence(result.error_message))


def is_compacted(cluster: ClusterClient, topic: str, timeout_ms: int | None = None) -> bool:
    """Returns True if the cleanup.policy of a topic contains compact.

    Raises: as `describe_config`; the permission DESCRIBE_CONFIGS on the topic is required.
    """
    entry = describe_config(cluster, TOPIC_RESOURCE, topic, timeout_ms).get("cleanup.policy")
    return entry is not None and "compact" in (entry.value or "").split(",")
