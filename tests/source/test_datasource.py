"""What Spark sees of the source before anything is read."""

import pickle
import subprocess
import sys

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source import stream_reader
from spark_groupsource.source.datasource import GroupDataSource
from spark_groupsource.source.schema import select_columns
from spark_groupsource.source.stream_reader import GroupStreamReader

OPTIONS = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g"}


@pytest.fixture(autouse=True)
def no_signals(monkeypatch):
    # the handlers of a reader process are not for the process that runs the tests
    monkeypatch.setattr(stream_reader._Live, "_handle_signals", lambda self: None)


def schema(*fields):
    return StructType.fromJson(
        {"type": "struct", "fields": [{"name": n, "type": t, "nullable": o, "metadata": {}} for n, t, o in fields]}
    )


def test_looking_the_source_up_loads_neither_client_nor_codec():
    heavy = "kafka", "pyarrow", "numpy", "spark_groupsource.client", "spark_groupsource.broker"
    command = f"import sys, pyspark_groupsource; print([m for m in {heavy!r} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"


def test_name_and_options():
    assert GroupDataSource.name() == "groupsource"
    with pytest.raises(ConfigurationError, match="did you mean subscribe"):
        GroupDataSource({**OPTIONS, "subscrib": "t"})


def test_wrong_stream_option_is_told_by_the_first_callback():
    reader = GroupDataSource({**OPTIONS, "endingOffsets": "latest"}).streamReader(schema(("value", "binary", True)))
    with pytest.raises(ConfigurationError, match="endingOffsets has no meaning in a stream query"):
        reader.getDefaultReadLimit()


def test_reader_is_pickled_without_what_is_live():
    reader = GroupDataSource(OPTIONS).streamReader(schema(("value", "binary", True)))
    reader.getDefaultReadLimit()
    assert isinstance(reader, GroupStreamReader) and reader._live is not None
    assert pickle.loads(pickle.dumps(reader))._live is None


@pytest.mark.parametrize(
    "options, limit",
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
    ],
)
def test_read_limit_is_that_of_the_options(options, limit):
    reader = GroupDataSource({**OPTIONS, **options}).streamReader(schema(("value", "binary", True)))
    assert reader.getDefaultReadLimit() == limit
    assert reader.initialOffset() == {}


@pytest.mark.parametrize(
    "fields, message",
    [
        ([("nope", "binary", True)], "column 'nope' is not one of the source's: key, value"),
        ([("value", "string", True)], "column value is binary, not string; cast it"),
        ([("value", "binary", False)], "column value may be null; leave NOT NULL out"),
        ([("headers", "binary", True)], "set includeHeaders to true"),
        ([("value", "binary", True), ("value", "binary", True)], "may be named once"),
        ([], "one at least"),
    ],
)
def test_schema_that_is_not_the_sources_is_refused(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        select_columns(schema(*fields), include_headers=False)


def test_schema_chooses_columns_in_its_own_order():
    columns = select_columns(schema(("offset", "long", False), ("key", "binary", True)), include_headers=False)
    assert columns == (("offset", "key"), frozenset({"offset"}))


@pytest.mark.spark
def test_registered_source_knows_how_many_tasks_run(spark):
    from spark_groupsource import register

    register(spark)
    options = {**OPTIONS, "kafka.bootstrap.servers": "127.0.0.1:1"}
    assert spark.read.format("GroupSource").options(**options).load().columns[0] == "key"
