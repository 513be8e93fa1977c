"""Configuration of topics and brokers (DescribeConfigs)."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.errors import BrokerError, as_sentence
from spark_groupsource.wire.messages import DescribeConfigsRequest

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
_DYNAMIC_TOPIC_CONFIG = 1


class ConfigEntry(NamedTuple):
    """One setting of a topic or broker; `value` is None for sensitive settings."""

    name: str
    value: str | None
    is_default: bool
    is_sensitive: bool


def describe_config(
    cluster: Cluster, resource_type: int, name: str, timeout_ms: int | None = None
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


def describe_topic_overrides(cluster: Cluster, topics: Sequence[str]) -> dict[str, dict[str, str]]:
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


def is_compacted(cluster: Cluster, topic: str, timeout_ms: int | None = None) -> bool:
    """Returns True if the cleanup.policy of a topic contains compact.

    Raises: as `describe_config`; the permission DESCRIBE_CONFIGS on the topic is required.
    """
    entry = describe_config(cluster, TOPIC_RESOURCE, topic, timeout_ms).get("cleanup.policy")
    return entry is not None and "compact" in (entry.value or "").split(",")
