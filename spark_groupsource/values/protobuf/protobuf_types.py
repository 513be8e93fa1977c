"""Column types of Protobuf messages.

Source: Spark `protobuf.utils.SchemaConverters`, which `from_protobuf` uses, with its default options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, NamedTuple

import pyarrow as pa

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.protobuf.protobuf_schema import ProtoField, ProtoMessage

if TYPE_CHECKING:
    from spark_groupsource.values.format_options import Wanted

_SCALARS: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("int32", "uint32", "sint32", "fixed32", "sfixed32"), pa.int32()),
    **dict.fromkeys(("int64", "uint64", "sint64", "fixed64", "sfixed64"), pa.int64()),
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
}
_TIMES = {"Timestamp": pa.timestamp("us", tz="UTC"), "Duration": pa.duration("us")}
_MAX_DEPTH = 100
# a message that is used several times is read, and is a column, at each place
_MAX_MESSAGES = 20_000


class TooManyMessagesError(ConfigurationError):
    """A column has too many messages, or too deep ones."""


class ColumnType(NamedTuple):
    """The type of a column; every field may be null.

    Attributes:
        left_out: path of each field that the column cannot have -> the reason.
    """

    type: pa.StructType
    left_out: Mapping[str, str]


def column_type(message: ProtoMessage, column: str = "value", wanted: Wanted | None = None) -> ColumnType:
    """Returns the type of the column of a message.

    A message without fields is left out, and one that is within itself more often than allowed.

    Args:
        wanted: of other fields only the names are returned, with the type null.
    Raises: ConfigurationError for a type that the schema does not define, and for too many or too deep messages.
    """
    builder = _Builder(column)
    return ColumnType(builder.struct(message, column, wanted), dict(builder.left_out))


def message_type(message: ProtoMessage) -> pa.StructType:
    """Returns the type of the column of a message. Raises: as `column_type`."""
    return column_type(message).type


class _Builder:
    def __init__(self, column: str) -> None:
        self._column = column
        self._messages = 0
        self.left_out: list[tuple[str, str]] = []

    def struct(self, message: ProtoMessage, path: str, wanted: Wanted | None) -> pa.StructType:
        self._messages += 1
        if self._messages > _MAX_MESSAGES or len(message.outer) > _MAX_DEPTH:
            limit = f"more than {_MAX_MESSAGES} messages, those that are used repeatedly included"
            if self._messages <= _MAX_MESSAGES:
                limit = f"messages within more than {_MAX_DEPTH} others"
            raise TooManyMessagesError(
                f"Option {self._column}.schema has {limit}. Declare the fields to read with .schema(...), or lower "
                f"{self._option}."
            )
        fields = []
        for each in message.fields:
            kind: pa.DataType | None = pa.null()
            if wanted is None or each.name in wanted:
                kind = self._field(each, f"{path}.{each.name}", None if wanted is None else wanted[each.name])
            if kind is not None:
                fields.append(pa.field(each.name, kind))
        return pa.struct(fields)

    @property
    def _option(self) -> str:
        return f"{self._column}.recursive.fields.max.depth"

    def _field(self, field: ProtoField, path: str, wanted: Wanted | None) -> pa.DataType | None:
        if not field.is_repeated:
            return self._value(field, path, path, wanted)
        if field.message is not None and field.message.is_map_entry:
            key, value = field.message.fields
            item = self._value(value, path, f"{path}.value", None if wanted is None else wanted.get("value", {}))
            if item is None:
                return None
            return pa.map_(pa.field("key", _SCALARS[key.kind], nullable=False), pa.field("value", item))
        inner = None if wanted is None else wanted.get("element", {})
        element = self._value(field, path, f"{path}.element", inner)
        return None if element is None else pa.list_(pa.field("element", element))

    def _value(self, field: ProtoField, column: str, path: str, wanted: Wanted | None) -> pa.DataType | None:
        """Returns the type of a value, None if the column `column` is left out for it."""
        if field.is_recursive:
            assert field.message is not None
            name = field.message.name[:60]
            reason = f"is of type {name}, which contains it; {self._option} is {field.recursion_depth}"
        elif field.message is None:
            # an enum that is not defined is reported
            return _SCALARS["enum" if field.enum is not None else field.kind]
        elif field.message.time:
            return _TIMES[field.message.time]
        else:
            before = len(self.left_out)
            found = self.struct(field.message, path, wanted)
            if found.num_fields:
                return found
            # one for which all its fields are left out is reported in place of these
            inner = self.left_out[before:]
            del self.left_out[before:]
            reason = inner[0][1] if inner else "is a message without fields"
        self.left_out.append((column, reason))
        return None
