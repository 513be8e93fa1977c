"""Schema and selected columns of a query that decodes values."""

from __future__ import annotations

import json
import logging
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.model import bounded_names
from spark_groupsource.values.format_options import AVRO, PROTOBUF, ColumnFormat, ValueOptions

if TYPE_CHECKING:
    from spark_groupsource.values.format_options import Wanted

_log = logging.getLogger(__name__)

ERROR_FIELD = StructField(
    "_error",
    StructType(
        [
            StructField("column", StringType()),
            StructField("reason", StringType()),
            StructField("schemaId", StringType()),
            StructField("bytes", BinaryType()),
        ]
    ),
)
"""The column that describes a malformed key or value in mode PERMISSIVE."""

_SERDES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "short": ShortType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "uuid": StringType(),
}
# names, literals of comments and defaults, and what separates them
_DDL_TOKEN = re.compile(r"""`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[<>(),]|[^\s<>(),:`'"]+""")
_STRUCT = re.compile(r"struct\s*<(.*)>", re.IGNORECASE | re.DOTALL)
_WITHOUT_FIELDS = re.compile(r"(array|map)\s*<", re.IGNORECASE)


def serde_type(given: ColumnFormat) -> DataType | None:
    """Returns the type of a column with one of Kafka's serdes; None for formats with a schema."""
    return _SERDES.get(given.format)


def typed_schema(plain: StructType, values: ValueOptions) -> StructType | str:
    """Returns the schema of a query, in Spark's types or as DDL, which Spark parses.

    Args:
        plain: the schema without decoding.
    Raises: ConfigurationError for a missing or invalid schema.
    """
    parts: list[StructField | str] = []
    for column in (values.key, values.value):
        _log_left_out(column)
    for field in plain.fields:
        given = {"key": values.key, "value": values.value}.get(field.name)
        parts += [field] if given is None else _columns(field.name, given)
    if values.has_error_column:
        parts.append(ERROR_FIELD)
    if all(isinstance(part, StructField) for part in parts):
        return StructType([part for part in parts if isinstance(part, StructField)])
    return ", ".join(part if isinstance(part, str) else _ddl(part) for part in parts)


def check_flattened(plain: StructType, values: ValueOptions) -> None:
    """Checks that no field of a flattened value has the name of a other field or column; names have no case in Spark.

    Args:
        plain: the schema without decoding.
    Raises: ConfigurationError.
    """
    given = values.value
    if not given.flatten:
        return
    columns = {name.lower(): name for name in plain.names if name != given.column}
    if values.has_error_column:
        columns[ERROR_FIELD.name] = ERROR_FIELD.name
    fields: dict[str, str] = {}
    for part in _columns(given.column, given):
        for name in [part.name] if isinstance(part, StructField) else _ddl_names(part):
            other = fields.setdefault(name.lower(), name)
            if other != name:
                raise ConfigurationError(
                    f"Fields {other} and {name} of the value differ in case alone, and value.flatten is true. Names "
                    "have no case in Spark: set value.flatten to false, or declare the columns with .schema(...) "
                    "without one of them."
                )
            if name.lower() in columns:
                column = columns[name.lower()]
                raise ConfigurationError(
                    f"Field {name} of the value has the name of column {column}, and value.flatten is true. Set "
                    f"value.flatten to false, and select value.`{name}` with another name, or declare the columns with "
                    f".schema(...) without this field: its {column} is that of the record."
                )


def _ddl_names(ddl: str) -> list[str]:
    """Returns the names of the columns of DDL, which may be invalid."""
    names, depth, is_name = [], 0, True
    for token in _DDL_TOKEN.findall(ddl):
        if is_name:
            is_quoted = token.startswith("`") and len(token) > 1
            names.append(token[1:-1].replace("``", "`") if is_quoted else token)
        depth += (token in "<(") - (token in ">)")
        is_name = token == "," and depth == 0
    return names


def _ddl(field: StructField) -> str:
    return f"`{field.name.replace('`', '``')}` {field.dataType.simpleString()}"


def _log_left_out(given: ColumnFormat) -> None:
    """Writes a log line that names the fields of the schema that the column does not have."""
    left_out = available_type(given)[1] if given.format in (AVRO, PROTOBUF) else {}
    if left_out:
        fields = bounded_names(f"{path} (it {reason})" for path, reason in left_out.items())
        _log.warning("[column=%s] Fields that Spark cannot represent are left out: %s.", given.column, fields)


def _columns(name: str, given: ColumnFormat) -> list[StructField | str]:
    """Returns the columns that replace `name`."""
    found = serde_type(given) or declared_type(given)
    if isinstance(found, str):
        struct = _STRUCT.fullmatch(found)
        fields = found if struct is None else struct[1]
        has_fields = _WITHOUT_FIELDS.match(found) is None
        if not given.flatten:
            return [f"{name} {f'struct<{fields}>' if has_fields else found}"]
        if has_fields:
            return [fields]
    elif not given.flatten:
        return [StructField(name, found)]
    elif isinstance(found, StructType):
        return list(found.fields)
    kind = found if isinstance(found, str) else found.simpleString()
    raise ConfigurationError(
        f"Option {name}.flatten needs values with fields, got {kind[:200]} in {name}.schema. Set it to false."
    )


def declared_type(given: ColumnFormat) -> DataType | str:
    """Returns the type of a schema given as option; text is DDL.

    Raises: ConfigurationError.
    """
    option = f"{given.column}.schema"
    if given.format in (AVRO, PROTOBUF):
        return available_type(given)[0]
    if given.schema is None:
        raise ConfigurationError(
            f"Option {option} is missing: {given.column}.format is {given.format}. Give the schema as DDL, for example "
            "id bigint, name string, or declare the column with .schema(...)."
        )
    if not given.schema.startswith("{"):
        return given.schema
    try:
        return StructType.fromJson(_nullable(json.loads(given.schema)))
    except Exception as error:  # PySpark raises many classes for an invalid schema
        raise ConfigurationError(
            f"Option {option} is no schema: {str(error)[:200]}. Give DDL, or the JSON of a StructType (schema.json())."
        ) from None


def available_type(given: ColumnFormat, declared: DataType | None = None) -> tuple[DataType, Mapping[str, str]]:
    """Returns the type of a column of Avro or Protobuf, and path of each field that it cannot have -> the reason.

    Args:
        declared: the type that the query declares; of the fields that it does not select only the names are returned.
    Raises: ConfigurationError.
    """
    wanted = None if declared is None else _wanted(declared)
    # the modules of a format are imported with its first use
    if given.format == PROTOBUF:
        from spark_groupsource.values import arrow_types
        from spark_groupsource.values.protobuf.protobuf_schema import protobuf_message
        from spark_groupsource.values.protobuf.protobuf_types import column_type

        message = column_type(protobuf_message(given), given.column, wanted)
        return arrow_types.spark_type(message.type), message.left_out
    from spark_groupsource.values.avro.avro_types import column_expansion, spark_type

    found = column_expansion(given, wanted)
    return spark_type(found.type), found.left_out


def _wanted(declared: DataType) -> Wanted | None:
    if isinstance(declared, StructType):
        return {field.name: _wanted(field.dataType) for field in declared.fields}
    if isinstance(declared, ArrayType):
        return {"element": _wanted(declared.elementType)}
    return {"value": _wanted(declared.valueType)} if isinstance(declared, MapType) else None


def check_selected(
    declared: DataType, available: DataType, name: str, left_out: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Checks that a declared type selects fields of the type of the values.

    Args:
        left_out: path of each field that the column cannot have -> the reason.
    Raises: ConfigurationError.
    """
    if isinstance(declared, StructType) and isinstance(available, StructType):
        known = {field.name: field.dataType for field in available.fields}
        for field in declared.fields:
            path = f"{name}.{field.name}"
            if path in left_out:
                raise ConfigurationError(
                    f"Column {path} of the schema cannot be read: it {left_out[path]}. Leave it out."
                )
            if field.name not in known:
                raise ConfigurationError(
                    f"Column {name}.{field.name} of the schema does not exist: the fields are "
                    f"{bounded_names(known)}. Correct the name."
                )
            check_selected(field.dataType, known[field.name], path, left_out)
    elif isinstance(declared, ArrayType) and isinstance(available, ArrayType):
        check_selected(declared.elementType, available.elementType, f"{name}.element", left_out)
    elif isinstance(declared, MapType) and isinstance(available, MapType):
        check_selected(declared.keyType, available.keyType, f"{name}.key")
        check_selected(declared.valueType, available.valueType, f"{name}.value", left_out)
    elif declared.simpleString() != available.simpleString():
        raise other_type(name, available.simpleString(), declared)


def other_type(name: str, actual: str, declared: DataType) -> ConfigurationError:
    """Returns the error of a column that a schema declares with another type."""
    types = f"{actual[:200]}, got {declared.simpleString()[:200]}"
    return ConfigurationError(f"Column {name} of the schema must be {types}. Cast it after load().")


def _nullable(schema: Any) -> Any:
    """Returns the JSON of a schema in which everything is nullable, as in from_json."""
    if isinstance(schema, list):
        return [_nullable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    flags = {name: True for name in ("nullable", "containsNull", "valueContainsNull") if name in schema}
    return {name: each if name == "metadata" else _nullable(each) for name, each in schema.items()} | flags
