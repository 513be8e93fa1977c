"""Creates the topics of the coordinators at their first use.

Source: Kafka `KafkaApis.getCoordinator`, `AutoTopicCreationManager`: there the client retries until the topic exists.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Sequence

from spark_groupsource.broker.coordinators.shard_registry import ShardRegistry
from spark_groupsource.broker.node import Broker
from spark_groupsource.errors import ApiError
from spark_groupsource.wire.api_keys import ApiKey

_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_GROUP_APIS = frozenset(
    {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.ADD_OFFSETS_TO_TXN,
    }
)
_TRANSACTION_APIS = frozenset(
    {
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.DESCRIBE_TRANSACTIONS,
    }
)
_GROUP_ONLY_APIS = _GROUP_APIS - _TRANSACTION_APIS
_TRANSACTIONAL_ID_APIS = frozenset({ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE})
USES_TOPICS = _GROUP_APIS | _TRANSACTION_APIS | _TRANSACTIONAL_ID_APIS | {ApiKey.FIND_COORDINATOR}
"""APIs whose requests may create a topic; such a request is completed even if the client disconnects."""


def missing_topics(broker: Broker, request: Any) -> list[ShardRegistry[Any, Any]]:
    """Returns the coordinators that `request` needs and whose topics do not exist; none in the usual case."""
    if request.API_KEY not in USES_TOPICS or (request.API_KEY == ApiKey.PRODUCE and not request.transactional_id):
        return []
    group, transaction = broker.group_coordinator.shards, broker.transaction_coordinator.shards
    if group.partition_count and (
        request.API_KEY in _GROUP_ONLY_APIS or transaction.partition_count or not _needs_transactions(request)
    ):
        return []  # that of each heartbeat and commit is decided first
    needed = ((group, _needs_groups), (transaction, _needs_transactions))
    return [shards for shards, is_needed in needed if not shards.partition_count and is_needed(request)]


async def create_topics(coordinators: Sequence[ShardRegistry[Any, Any]]) -> None:
    """Creates the topics of coordinators. An error is ignored here: the handler of the request raises it again."""
    with suppress(ApiError):
        for shards in coordinators:
            await shards.ensure_topic()


def _needs_groups(request: Any) -> bool:
    return request.API_KEY in _GROUP_APIS or (
        request.API_KEY == ApiKey.FIND_COORDINATOR and request.key_type == _GROUP_KEY
    )


def _needs_transactions(request: Any) -> bool:
    return (
        request.API_KEY in _TRANSACTION_APIS
        or (request.API_KEY == ApiKey.FIND_COORDINATOR and request.key_type == _TRANSACTION_KEY)
        or (request.API_KEY in _TRANSACTIONAL_ID_APIS and bool(request.transactional_id))
    )

