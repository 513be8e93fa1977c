"""Served APIs: version ranges, handlers, and differences from Apache Kafka 4.3.

ApiVersions advertises exactly this table. A range ends with the versions that tests compare with a real Kafka, not with
those that the codec can decode. A row without a note serves the versions of Kafka 4.3, whose oldest ones are those that
Kafka 4.0 kept (KIP-896).
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Mapping

from spark_groupsource.broker.api import configs, data, groups, placement, producers, topics, transactions, users
from spark_groupsource.broker.api.dispatch import ServedApi
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.messages import ApiVersionsRequest, ApiVersionsResponse

_CLIENT_SOFTWARE_SINCE = 3
_CLIENT_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def api_versions(broker: Broker, context: ApiRequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    """Returns the table; rejects an illegal client software name or version (KIP-511).

    `unsupported_api_versions` responds to versions of ApiVersions that are not served.
    """
    software = (request.client_software_name, request.client_software_version)
    has_software = context.api_version >= _CLIENT_SOFTWARE_SINCE
    if has_software and not all(_CLIENT_SOFTWARE.fullmatch(each or "") for each in software):
        return _api_versions_response({}, ErrorCode.INVALID_REQUEST)
    return _api_versions_response(SERVED, ErrorCode.NONE)


def unsupported_api_versions() -> ApiVersionsResponse:
    """The response to an unsupported version of ApiVersions, to be encoded in version 0 (KIP-511)."""
    own = {ApiKey.API_VERSIONS: SERVED[ApiKey.API_VERSIONS]}
    return _api_versions_response(own, ErrorCode.UNSUPPORTED_VERSION)


def _api_versions_response(served: Mapping[ApiKey, ServedApi], code: ErrorCode) -> ApiVersionsResponse:
    keys = [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=api.min_version, max_version=api.max_version)
        for key, api in sorted(served.items())
    ]
    return ApiVersionsResponse(error_code=code, api_keys=keys, throttle_time_ms=0)


SERVED: Mapping[ApiKey, ServedApi] = MappingProxyType(
    {
        ApiKey.PRODUCE: ServedApi(
            3, 13, data.produce, "Kafka: serves 3-13, advertises 0-13 for old librdkafka versions (KAFKA-18659)."
        ),
        ApiKey.FETCH: ServedApi(4, 18, data.fetch),
        ApiKey.LIST_OFFSETS: ServedApi(1, 11, data.list_offsets),
        ApiKey.METADATA: ServedApi(0, 13, topics.metadata),
        ApiKey.OFFSET_COMMIT: ServedApi(2, 10, groups.offset_commit),
        ApiKey.OFFSET_FETCH: ServedApi(1, 10, groups.offset_fetch),
        ApiKey.FIND_COORDINATOR: ServedApi(0, 6, groups.find_coordinator),
        ApiKey.JOIN_GROUP: ServedApi(0, 9, groups.group_request),
        ApiKey.HEARTBEAT: ServedApi(0, 4, groups.group_request),
        ApiKey.LEAVE_GROUP: ServedApi(0, 5, groups.group_request),
        ApiKey.SYNC_GROUP: ServedApi(0, 5, groups.group_request),
        ApiKey.DESCRIBE_GROUPS: ServedApi(0, 6, groups.group_request),
        ApiKey.LIST_GROUPS: ServedApi(0, 5, groups.group_request),
        ApiKey.SASL_HANDSHAKE: ServedApi(
            1, 1, users.sasl_handshake, "Kafka: 0-1. After version 0, SASL tokens come without a request header."
        ),
        ApiKey.API_VERSIONS: ServedApi(0, 4, api_versions),
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
        ApiKey.TXN_OFFSET_COMMIT: ServedApi(
            0, 4, transactions.commit_offsets, "Kafka: 0-5. Version 5 belongs to transaction protocol 2 (KIP-890)."
        ),
        ApiKey.DESCRIBE_ACLS: ServedApi(1, 3, users.describe_acls),
        ApiKey.CREATE_ACLS: ServedApi(1, 3, users.create_acls),
        ApiKey.DELETE_ACLS: ServedApi(1, 3, users.delete_acls),
        ApiKey.DESCRIBE_CONFIGS: ServedApi(1, 4, configs.describe_configs),
        ApiKey.ALTER_CONFIGS: ServedApi(0, 2, configs.alter_configs),
        ApiKey.DESCRIBE_LOG_DIRS: ServedApi(
            1, 4, configs.describe_log_dirs, "Kafka: 1-5. Version 5 adds response fields that are not implemented."
        ),
        ApiKey.SASL_AUTHENTICATE: ServedApi(0, 2, users.sasl_authenticate),
        ApiKey.CREATE_PARTITIONS: ServedApi(0, 3, topics.create_partitions),
        ApiKey.DELETE_GROUPS: ServedApi(0, 2, groups.group_request),
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
        ApiKey.LIST_TRANSACTIONS: ServedApi(
            0, 1, producers.list_transactions, "Kafka: 0-2. Version 2 (pattern, KIP-1152) is not implemented."
        ),
        ApiKey.LIST_CONFIG_RESOURCES: ServedApi(0, 1, configs.list_config_resources),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: ServedApi(0, 0, placement.describe_topic_partitions),
    }
)
"""Served versions by API."""
