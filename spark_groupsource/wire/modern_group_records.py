"""Message classes for the records of KIP-848, share and streams groups.

The package only prints these records. Kafka calls these groups modern, as opposed to classic.

Source: KIP-848 (consumer groups), KIP-932 (share groups), KIP-1071 (streams groups); the schemas of Kafka 4.3 are in
`resources/modern_group_records.json`, by record type.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any, Mapping

from spark_groupsource.wire.message_base import build_class
from spark_groupsource.wire.schemas import parse_schema


@lru_cache(maxsize=1)
def modern_record_classes() -> Mapping[int, tuple[Any, Any]]:
    """Returns the classes of key and value by record type, the version of the key."""
    text = files("spark_groupsource.wire.resources").joinpath("modern_group_records.json").read_text("utf-8")
    return {int(kind): (_class(pair["key"]), _class(pair["value"])) for kind, pair in json.loads(text).items()}


def _class(schema: Mapping[str, Any]) -> Any:
    return build_class(parse_schema(schema), __name__)
