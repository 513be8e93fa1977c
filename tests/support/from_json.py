"""Values of Spark's from_json, in the form of `json_paths`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

import pyarrow as pa
from support.json_differences import Compared, explained
from support.json_grid import CONTEXTS
from support.json_paths import MALFORMED, one_block

from spark_groupsource.values.python_values import python_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CORRUPT = "_corrupt"


def from_json(spark: SparkSession, records: Sequence[bytes], schemas: Sequence[str]) -> list[list[str]]:
    """Returns the values of from_json by schema; each schema is of a struct, as DDL."""
    from pyspark.sql import functions as F

    parsed = [
        F.from_json(
            F.col("record").cast("string"), f"{ddl}, {_CORRUPT} string", {"columnNameOfCorruptRecord": _CORRUPT}
        )
        for ddl in schemas
    ]
    columns = [
        part.alias(f"{name}{at}")
        for at, column in enumerate(parsed)
        for name, part in (("value", column.dropFields(_CORRUPT)), ("malformed", column[_CORRUPT].isNotNull()))
    ]
    table = _of_records(spark, records).select("row", *columns).toArrow().sort_by("row")
    return [
        [
            MALFORMED if is_malformed else repr(value)
            for value, is_malformed in zip(python_values(table[f"value{at}"]), table[f"malformed{at}"].to_pylist())
        ]
        for at in range(len(schemas))
    ]


def from_json_as_it_is(spark: SparkSession, record: bytes, ddl: str) -> Any:
    """Returns the value of from_json in mode PERMISSIVE, which may be a part of the record."""
    from pyspark.sql import functions as F

    column = F.from_json(F.col("record").cast("string"), ddl)
    (found,) = python_values(_of_records(spark, [record]).select(column.alias("value")).toArrow()["value"])
    return found


def _of_records(spark: SparkSession, records: Sequence[bytes]) -> DataFrame:
    table = pa.table({"row": pa.array(range(len(records)), pa.int64()), "record": pa.array(records, pa.binary())})
    return spark.createDataFrame(table).coalesce(1)


def unexplained(spark: SparkSession, context: str, scalars: Sequence[str], values: Sequence[str]) -> list[str]:
    """Returns a line for each value in a context that from_json decodes in a way that no known difference explains."""
    form, lines = CONTEXTS[context], []
    records = [form.record(value) for value in values]
    theirs = from_json(spark, records, [form.schema(scalar) for scalar in scalars])
    for scalar, of_type in zip(scalars, theirs):
        for compared in map(
            Compared, records, [scalar] * len(values), values, of_type, one_block(form.kind(scalar), records)
        ):
            if compared.theirs != compared.ours and not explained(compared):
                lines.append(f"{scalar} in {context}: {compared.record!r} is {compared.theirs}, here {compared.ours}")
    return lines
