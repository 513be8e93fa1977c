"""Columns of the source: names, types and nullability.

The schemas of Arrow and of Spark are derived from this table. Spark requests the schema in `load()`, so this module
imports neither PyArrow nor NumPy.
"""

from __future__ import annotations

from typing import NamedTuple

HEADERS_TYPE = "array<struct<key:string,value:binary>>"


class Column(NamedTuple):
    """One column.

    Attributes:
        type: name of the type in Spark SQL.
        can_be_null: False if every record has a value.
    """

    name: str
    type: str
    can_be_null: bool = False


SOURCE_COLUMNS = (
    Column("key", "binary", can_be_null=True),
    Column("value", "binary", can_be_null=True),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("offset", "bigint"),
    Column("timestamp", "timestamp"),
    Column("timestampType", "int"),
    Column("headers", HEADERS_TYPE, can_be_null=True),
)
"""The columns of Spark's Kafka source in its order; `headers`, the last, is present with option includeHeaders."""
