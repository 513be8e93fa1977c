"""What this broker serves: one table from API and versions to the function that answers.

ApiVersions advertises exactly this table. A range ends where the tests end, not where the codec does.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Mapping

from spark_groupsource.broker.api import configs, data, groups, placement, producers, topics, transactions, users
from spark_groupsource.broker.node import Broker, Call, Served
from spark_groupsource.errors import ErrorCode
from spark_groupsource.wire.messages import ApiVersionsResponse, Message

API_VERSIONS_KEY = 18
_SOFTWARE_SINCE = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def api_versions(broker: Broker, call: Call, request: Message) -> Message:
    """The table below; a version we do not serve is answered by `unsupported_api_versions`.

    From version 3 on a client says what it is (KIP-511), and says it legibly.
    """
    software = (request.client_software_name, request.client_software_version)
    if call.api_version >= _SOFTWARE_SINCE and not all(_SOFTWARE.fullmatch(each or "") for each in software):
        return _api_versions_response({}, ErrorCode.INVALID_REQUEST)
    return _api_versions_response(broker.served, ErrorCode.NONE)


def unsupported_api_versions(served: Mapping[int, Served]) -> Message:
    """The answer to an ApiVersions version that is not served; sent at version 0, which any client reads (KIP-511)."""
    own = {API_VERSIONS_KEY: served[API_VERSIONS_KEY]}
    return _api_versions_response(own, ErrorCode.UNSUPPORTED_VERSION)


def _api_versions_response(served: Mapping[int, Served], code: ErrorCode) -> Message:
    keys = [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=api.min_version, max_version=api.max_version)
        for key, api in sorted(served.items())
    ]
    return ApiVersionsResponse(error_code=code, api_keys=keys, throttle_time_ms=0)


SERVED: Mapping[int, Served] = MappingProxyType(
    {
        0: Served(3, 13, data.produce),
        1: Served(4, 18, data.fetch),
        2: Served(1, 11, data.list_offsets),
        3: Served(0, 13, topics.metadata),
        8: Served(2, 10, groups.offset_commit),
        9: Served(1, 10, groups.offset_fetch),
        10: Served(0, 6, groups.find_coordinator),
        11: Served(0, 9, groups.group_request),
        12: Served(0, 4, groups.group_request),
        13: Served(0, 5, groups.group_request),
        14: Served(0, 5, groups.group_request),
        15: Served(0, 6, groups.group_request),
        16: Served(0, 5, groups.group_request),
        17: Served(1, 1, users.sasl_handshake),
        API_VERSIONS_KEY: Served(0, 4, api_versions),
        19: Served(2, 7, topics.create_topics),
        20: Served(1, 6, topics.delete_topics),
        21: Served(0, 2, data.delete_records),
        22: Served(0, 5, transactions.init_producer_id),
        23: Served(2, 4, data.offset_for_leader_epoch),
        24: Served(0, 3, transactions.add_partitions),
        25: Served(0, 4, transactions.add_offsets),
        26: Served(0, 4, transactions.end),
        28: Served(0, 4, transactions.commit_offsets),
        29: Served(1, 3, users.describe_acls),
        30: Served(1, 3, users.create_acls),
        31: Served(1, 3, users.delete_acls),
        32: Served(1, 4, configs.describe_configs),
        33: Served(0, 2, configs.alter_configs),
        35: Served(1, 4, configs.describe_log_dirs),
        36: Served(0, 2, users.sasl_authenticate),
        37: Served(0, 3, topics.create_partitions),
        42: Served(0, 2, groups.group_request),
        43: Served(0, 2, placement.elect_leaders),
        44: Served(0, 1, configs.incremental_alter_configs),
        46: Served(0, 0, placement.list_partition_reassignments),
        47: Served(0, 0, groups.offset_delete),
        48: Served(0, 1, users.describe_client_quotas),
        49: Served(0, 1, users.alter_client_quotas),
        50: Served(0, 0, users.describe_scram_credentials),
        51: Served(0, 0, users.alter_scram_credentials),
        60: Served(0, 2, topics.describe_cluster),
        61: Served(0, 0, producers.describe_producers),
        65: Served(0, 0, producers.describe_transactions),
        66: Served(0, 1, producers.list_transactions),
        74: Served(0, 1, configs.list_config_resources),
        75: Served(0, 0, placement.describe_topic_partitions),
    }
)
"""api key -> what is served of it."""
