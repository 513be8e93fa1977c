"""Message classes of the records in `__consumer_offsets` and `__transaction_state`.

Use them through `messages`.
"""

from __future__ import annotations

from spark_groupsource.wire.message_base import ApiData

_RESOURCES = "spark_groupsource.wire.resources"


class OffsetCommitKey(ApiData, load_json=_RESOURCES):
    """Key of a committed offset in `__consumer_offsets`."""


class OffsetCommitValue(ApiData, load_json=_RESOURCES):
    """Value of a committed offset."""


class GroupMetadataKey(ApiData, load_json=_RESOURCES):
    """Key of a group in `__consumer_offsets`."""


class GroupMetadataValue(ApiData, load_json=_RESOURCES):
    """Value of a group with its members."""


class TransactionLogKey(ApiData, load_json=_RESOURCES):
    """Key of a transactional id in `__transaction_state`."""


class TransactionLogValue(ApiData, load_json=_RESOURCES):
    """Value of a transactional id."""
