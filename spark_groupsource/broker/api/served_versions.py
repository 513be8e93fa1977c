"""Served APIs and features: versions, handlers, differences from Apache Kafka 4.4.

ApiVersions advertises exactly these tables. A range ends with the versions that tests compare with a real Kafka, not
with those that the codec can decode. A row without a note serves the versions of Kafka 4.4, which has no versions older
than those that Kafka 4.0 kept (KIP-896). `NOT_SERVED` has the reason for each API of Kafka 4.4 that is missing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import MappingProxyType
from typing import Mapping, NamedTuple

from spark_groupsource.broker.api import acl_requests as acls
from spark_groupsource.broker.api import config_requests as configs
from spark_groupsource.broker.api import data, placement, producers, users
from spark_groupsource.broker.api import group_requests as groups
from spark_groupsource.broker.api import produce_requests as produce
from spark_groupsource.broker.api import topic_requests as topics
from spark_groupsource.broker.api import transaction_requests as transactions
from spark_groupsource.broker.api.dispatch import ServedApi
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import ApiVersionsRequest, ApiVersionsResponse

_CLIENT_SOFTWARE_SINCE = 3
# clients up to version 3 reject a feature range that starts at 0 (KIP-1022)
_ZERO_FEATURES_SINCE = 4
_EXPECTED_BROKER_SINCE = 5
_NO_NODE = -1
# never changes: the features are those of the code
_FEATURES_EPOCH = 0
_CLIENT_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


class Feature(NamedTuple):
    """The supported versions of a feature of Kafka; the highest one is in use (finalized), 0 is its absence."""

    min_version: int
    max_version: int
    note: str


FEATURES: Mapping[str, Feature] = MappingProxyType(
    {
        "group.version": Feature(0, 0, "Kafka: 0-1. Version 1 is the consumer group protocol of KIP-848."),
        "transaction.version": Feature(
            0, 1, "Kafka: 0-2. Records of __transaction_state have tagged fields; version 2 is KIP-890's protocol 2."
        ),
    }
)
"""Features of this broker. Those of Kafka's metadata log, share groups and Streams groups do not exist here."""


def api_versions(broker: Broker, context: ApiRequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Returns the table; rejects an illegal client software name or version (KIP-511).

    A client that names another cluster or node has a connection that was routed to the wrong broker (KIP-1242).
    `unsupported_api_versions` responds to versions of ApiVersions that are not served.
    """
    software = (request.client_software_name, request.client_software_version)
    has_software = context.api_version >= _CLIENT_SOFTWARE_SINCE
    if has_software and not all(_CLIENT_SOFTWARE.fullmatch(each or "") for each in software):
        return _api_versions_response({}, ErrorCode.INVALID_REQUEST, context.api_version)
    if context.api_version >= _EXPECTED_BROKER_SINCE:
        if (request.cluster_id is None) != (request.node_id == _NO_NODE):
            return _api_versions_response({}, ErrorCode.INVALID_REQUEST, context.api_version)
        expected = (request.cluster_id, request.node_id)
        if request.cluster_id is not None and expected != (broker.cluster_id, context.node_id):
            return _api_versions_response({}, ErrorCode.REBOOTSTRAP_REQUIRED, context.api_version)
    return _all_api_versions(context.api_version >= _ZERO_FEATURES_SINCE)


@lru_cache(maxsize=None)
def _all_api_versions(has_zero_features: bool) -> ApiVersionsResponse:
    # every client requests them once for each connection
    version = _ZERO_FEATURES_SINCE if has_zero_features else _ZERO_FEATURES_SINCE - 1
    return _api_versions_response(SERVED, ErrorCode.NONE, version)


def unsupported_api_versions() -> ApiVersionsResponse:
    """Returns the response to an unsupported version of ApiVersions, to be encoded in version 0 (KIP-511)."""
    own = {ApiKey.API_VERSIONS: SERVED[ApiKey.API_VERSIONS]}
    return _api_versions_response(own, ErrorCode.UNSUPPORTED_VERSION, 0)


def _api_versions_response(
    served: Mapping[ApiKey, ServedApi], code: ErrorCode, api_version: int
) -> ApiVersionsResponse:
    keys = []
    for key, api in sorted(served.items()):
        first, last = api.advertised
        keys.append(ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last))
    if code is not ErrorCode.NONE:
        return ApiVersionsResponse(error_code=code, api_keys=keys, throttle_time_ms=0)
    return ApiVersionsResponse(
        error_code=code,
        api_keys=keys,
        throttle_time_ms=0,
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(
                name=name, min_version=feature.min_version, max_version=feature.max_version
            )
            for name, feature in FEATURES.items()
            if feature.min_version > 0 or api_version >= _ZERO_FEATURES_SINCE
        ],
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(
                name=name, max_version_level=feature.max_version, min_version_level=feature.max_version
            )
            for name, feature in FEATURES.items()
            if feature.max_version > 0
        ],
    )


SERVED: Mapping[ApiKey, ServedApi] = MappingProxyType(
    {
        ApiKey.PRODUCE: ServedApi(
            3, 13, produce.produce,
            "As Kafka, advertises 0-13 and rejects 0-2: librdkafka before 2.16 compresses only if 0 is advertised "
            "(KAFKA-18659).",
            advertised_since=0,
        ),
        ApiKey.FETCH: ServedApi(4, 18, data.fetch),
        ApiKey.LIST_OFFSETS: ServedApi(1, 11, data.list_offsets),
        ApiKey.METADATA: ServedApi(0, 13, topics.metadata),
        ApiKey.OFFSET_COMMIT: ServedApi(2, 10, groups.offset_commit),
        ApiKey.OFFSET_FETCH: ServedApi(1, 10, groups.offset_fetch),
        ApiKey.FIND_COORDINATOR: ServedApi(0, 6, groups.find_coordinator),
        ApiKey.JOIN_GROUP: ServedApi(0, 9, groups.group_request),
        ApiKey.HEARTBEAT: ServedApi(0, 4, groups.group_request),
        ApiKey.LEAVE_GROUP: ServedApi(0, 5, groups.leave_group),
        ApiKey.SYNC_GROUP: ServedApi(0, 5, groups.group_request),
        ApiKey.DESCRIBE_GROUPS: ServedApi(0, 6, groups.describe_groups),
        ApiKey.LIST_GROUPS: ServedApi(0, 5, groups.list_groups),
        ApiKey.SASL_HANDSHAKE: ServedApi(0, 1, users.sasl_handshake),
        ApiKey.API_VERSIONS: ServedApi(0, 5, api_versions),
        ApiKey.CREATE_TOPICS: ServedApi(2, 7, topics.create_topics),
        ApiKey.DELETE_TOPICS: ServedApi(1, 6, topics.delete_topics),
        ApiKey.DELETE_RECORDS: ServedApi(0, 2, data.delete_records),
        ApiKey.INIT_PRODUCER_ID: ServedApi(
            0, 5, transactions.init_producer_id, "Kafka: 0-6. Version 6 (two-phase commit, KIP-939) is not stable."
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: ServedApi(2, 4, data.offset_for_leader_epoch),
        ApiKey.ADD_PARTITIONS_TO_TXN: ServedApi(
            0, 3, transactions.add_partitions, "Kafka: 0-5. Only brokers send versions 4 and 5 (KIP-890)."
        ),
        ApiKey.ADD_OFFSETS_TO_TXN: ServedApi(0, 4, transactions.add_offsets),
        ApiKey.END_TXN: ServedApi(
            0, 4, transactions.end, "Kafka: 0-5. Version 5 belongs to transaction protocol 2 (KIP-890)."
        ),
        ApiKey.WRITE_TXN_MARKERS: ServedApi(1, 2, producers.write_txn_markers),
        ApiKey.TXN_OFFSET_COMMIT: ServedApi(
            0, 4, transactions.commit_offsets,
            "Kafka: 0-6. Version 5 belongs to transaction protocol 2 (KIP-890), and so does version 6, with topic ids "
            "(KIP-1319).",
        ),
        ApiKey.DESCRIBE_ACLS: ServedApi(1, 3, acls.describe_acls),
        ApiKey.CREATE_ACLS: ServedApi(1, 3, acls.create_acls),
        ApiKey.DELETE_ACLS: ServedApi(1, 3, acls.delete_acls),
        ApiKey.DESCRIBE_CONFIGS: ServedApi(1, 4, configs.describe_configs),
        ApiKey.ALTER_CONFIGS: ServedApi(0, 2, configs.alter_configs),
        ApiKey.DESCRIBE_LOG_DIRS: ServedApi(1, 5, configs.describe_log_dirs),
        ApiKey.SASL_AUTHENTICATE: ServedApi(0, 2, users.sasl_authenticate),
        ApiKey.CREATE_PARTITIONS: ServedApi(0, 3, topics.create_partitions),
        ApiKey.DELETE_GROUPS: ServedApi(0, 3, groups.delete_groups),
        ApiKey.ELECT_LEADERS: ServedApi(0, 2, placement.elect_leaders),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: ServedApi(0, 1, configs.incremental_alter_configs),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: ServedApi(0, 0, placement.list_partition_reassignments),
        ApiKey.OFFSET_DELETE: ServedApi(0, 0, groups.offset_delete),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: ServedApi(0, 1, users.describe_client_quotas),
        ApiKey.ALTER_CLIENT_QUOTAS: ServedApi(0, 1, users.alter_client_quotas),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ServedApi(0, 0, users.describe_scram_credentials),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ServedApi(0, 0, users.alter_scram_credentials),
        ApiKey.DESCRIBE_CLUSTER: ServedApi(0, 2, topics.describe_cluster),
        ApiKey.DESCRIBE_PRODUCERS: ServedApi(0, 0, producers.describe_producers),
        ApiKey.DESCRIBE_TRANSACTIONS: ServedApi(0, 0, producers.describe_transactions),
        ApiKey.LIST_TRANSACTIONS: ServedApi(0, 2, producers.list_transactions),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: ServedApi(
            0, 1, groups.consumer_group_heartbeat,
            "As Kafka with group.version=0, responds with UNSUPPORTED_VERSION: without the API, librdkafka looks for "
            "another coordinator and reports no error.",
        ),
        ApiKey.LIST_CONFIG_RESOURCES: ServedApi(0, 1, configs.list_config_resources),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: ServedApi(0, 0, placement.describe_topic_partitions),
    }
)
"""Served versions by API."""

_KRAFT = "There is no KRaft quorum and no controller: the catalog of the data directory has the metadata."
_TOKENS = "Delegation tokens (KIP-48) are not implemented."
_SHARE_GROUPS = "Share groups (KIP-932) are not implemented."
_NEXT_GROUPS = "Only the classic group protocol is implemented."

NOT_SERVED: Mapping[int, str] = MappingProxyType(
    {
        34: "AlterReplicaLogDirs: the broker has one log directory.",
        **dict.fromkeys((38, 39, 40, 41), _TOKENS),
        45: "AlterPartitionReassignments: every node is a replica of every partition.",
        **dict.fromkeys((55, 57, 64, 80, 81, 94), _KRAFT),
        **dict.fromkeys((69, 88, 89, 93), _NEXT_GROUPS),
        **dict.fromkeys((76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92), _SHARE_GROUPS),
    }
)
"""APIs that a broker of Kafka 4.4 advertises and this broker does not serve, with the reason."""
