"""The data source before a query starts: lookup, options, schema, read limits."""

import ast
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from support.spark_features import needs_admission_control

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.columns.arrow import kafka_schema
from spark_groupsource.records.columns.column_types import SOURCE_COLUMNS
from spark_groupsource.source.options.schema import select_columns, spark_schema
from spark_groupsource.source.positions.batch_planner import Limits
from spark_groupsource.source.process import reader_process
from spark_groupsource.source.spark.admission_control import ReadAllAvailable, ReadMaxRows, ReadMinRows
from spark_groupsource.source.spark.datasource import GroupDataSource, register
from spark_groupsource.source.spark.stream_reader import GroupStreamReader

OPTIONS = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g"}


@pytest.fixture(autouse=True)
def no_signal_handlers(monkeypatch):
    # the process of the tests keeps its own handlers
    monkeypatch.setattr(reader_process, "install_signal_handlers", lambda terminate: None)


def schema(*fields):
    return StructType.fromJson(
        {"type": "struct", "fields": [{"name": n, "type": t, "nullable": o, "metadata": {}} for n, t, o in fields]}
    )


def test_lookup_of_the_source_imports_neither_client_nor_codec():
    heavy = "kafka", "pyarrow", "numpy", "spark_groupsource.client", "spark_groupsource.broker"
    command = f"""
import sys, pyspark.sql.datasource
# PySpark 4.0 imports NumPy itself
known = set(sys.modules)
import pyspark_groupsource
print([m for m in {heavy!r} if m in sys.modules.keys() - known])
"""
    output = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


@pytest.mark.parametrize("include_headers", ["false", "true"])
def test_schema_imports_neither_pyarrow_nor_numpy(include_headers):
    options = {**OPTIONS, "includeHeaders": include_headers}
    source = f"spark_groupsource.source.spark.datasource.GroupDataSource({options!r})"
    heavy = "kafka", "pyarrow", "numpy", "spark_groupsource.assign", "spark_groupsource.records.columns.arrow"
    command = (
        f"import sys, spark_groupsource.source.spark.datasource; before = set(sys.modules); {source}.schema(); "
        f"print([m for m in {heavy!r} if m in set(sys.modules) - before])"
    )
    output = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_the_processes_of_a_query_load_what_they_need():
    """A read task, then the reader process."""
    package = "spark_groupsource"
    code = f"""
import os, sys
def loaded():
    return sorted(sys.modules)
import {package}.source.spark.stream_reader
task = os.fork()
if not task:
    import {package}.source.tasks.task_reader, {package}.client.membership.task_heartbeat
    print(loaded(), flush=True)
    os._exit(0)
os.waitpid(task, 0)
from {package}.source.spark.datasource import GroupDataSource
source = GroupDataSource({OPTIONS!r})
source.streamReader(source.schema())
import {package}.source.process.reader_process, {package}.source.process.embedded_address
import {package}.source.session, {package}.source.group.ownership
print(loaded())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    task, reader = (set(ast.literal_eval(line)) for line in run.stdout.splitlines())
    assert not {"ssl", "asyncio"} & task, "the members of a reader process have an event loop, read tasks do not"
    for modules in (task, reader):
        assert not {"numba", "pandas", "kafka"} & modules
        unused = "broker", "monitor.tables.table_rows", "cli", "client.admin"
        assert not {f"{package}.{name}" for name in (*unused, "client.membership.commit_history")} & modules
    unused = "client.records", "records.columns.arrow", "source.tasks.task_reader"
    assert not {f"{package}.{name}" for name in unused} & reader
    assert f"{package}.assign" not in task and f"{package}.client.membership.group_client" not in task


@pytest.mark.parametrize("include_headers", [False, True])
def test_schemas_of_spark_and_arrow_are_equal(include_headers):
    assert spark_schema(include_headers) == from_arrow_schema(kafka_schema(include_headers))
    names = [column.name for column in SOURCE_COLUMNS if include_headers or column.name != "headers"]
    assert spark_schema(include_headers).names == names


def test_type_names_of_columns_are_those_of_spark():
    types = [(field.name, field.dataType.simpleString()) for field in spark_schema(include_headers=True)]
    assert types == [(column.name, column.type) for column in SOURCE_COLUMNS]


def test_name_and_options():
    assert GroupDataSource.name() == "groupsource"
    with pytest.raises(ConfigurationError, match="Did you mean subscribe"):
        GroupDataSource({**OPTIONS, "subscrib": "t"})


def test_invalid_stream_option_fails_the_first_callback():
    reader = GroupDataSource({**OPTIONS, "endingOffsets": "latest"}).streamReader(schema(("value", "binary", True)))
    with pytest.raises(ConfigurationError, match="endingOffsets is not allowed in a stream query"):
        reader.getDefaultReadLimit()


@needs_admission_control
def test_reader_is_pickled_without_its_process():
    reader = GroupDataSource(OPTIONS).streamReader(schema(("value", "binary", True)))
    reader.getDefaultReadLimit()
    assert isinstance(reader, GroupStreamReader) and reader._process is not None  # private: pickling must drop it
    assert pickle.loads(pickle.dumps(reader))._process is None


@needs_admission_control
@pytest.mark.parametrize(
    "options, limit",
    [
        ({}, ReadMaxRows(2**63 - 1)),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
    ],
)
def test_read_limit_is_that_of_the_options(options, limit):
    reader = GroupDataSource({**OPTIONS, **options}).streamReader(schema(("value", "binary", True)))
    assert reader.getDefaultReadLimit() == limit
    assert reader.initialOffset() == {}


@needs_admission_control
def test_query_with_trigger_once_names_its_last_commit_and_the_remedy(monkeypatch, caplog):
    """Spark replaces the limit, and does not call the source after the batch."""
    reader = GroupDataSource(OPTIONS).streamReader(schema(("value", "binary", True)))
    limit = reader.getDefaultReadLimit()
    # private: the reader process is not started
    monkeypatch.setattr(reader._process, "latest_offset", lambda start, limits: {"limits": limits})
    assert reader.latestOffset({}, limit) == {"limits": Limits()} and not caplog.records
    assert reader.latestOffset({}, ReadAllAvailable()) == {"limits": Limits()}
    (record,) = caplog.records
    assert "[group=g] Trigger once does not commit the offsets of its batch" in record.getMessage()
    assert "Use trigger(availableNow=True)" in record.getMessage()


@needs_admission_control
def test_trigger_once_is_committed_by_the_transaction_of_the_output(monkeypatch, caplog):
    options = {**OPTIONS, "kafka.transactional.id": "T"}
    reader = GroupDataSource(options).streamReader(schema(("value", "binary", True)))
    reader.getDefaultReadLimit()
    monkeypatch.setattr(reader._process, "latest_offset", lambda start, limits: {})
    reader.latestOffset({}, ReadAllAvailable())
    assert not caplog.records


@pytest.mark.parametrize(
    "fields, message",
    [
        ([("nope", "binary", True)], "Column 'nope' of the schema does not exist: the columns are key, value"),
        ([("value", "string", True)], "Column value of the schema must be binary, got string. Cast it"),
        ([("value", "binary", False)], "Column value of the schema may be null. Leave NOT NULL out"),
        ([("headers", "binary", True)], "Set includeHeaders to true"),
        ([("value", "binary", True), ("value", "binary", True)], "each column once, got value, value"),
        ([], "at least one column.*got none"),
    ],
)
def test_schema_with_other_columns_is_rejected(fields, message):
    with pytest.raises(ConfigurationError, match=message):
        select_columns(schema(*fields), include_headers=False)


def test_schema_selects_columns_in_its_order():
    columns = select_columns(schema(("offset", "long", False), ("key", "binary", True)), include_headers=False)
    assert columns == (("offset", "key"), frozenset({"offset"}), None)


@pytest.mark.spark
@pytest.mark.parametrize("condition", ["DATA_SOURCE_ALREADY_EXISTS", "CANNOT_LOAD_CLASS"])
def test_register_accepts_a_spark_that_has_found_the_source(condition):
    """Spark 4.0 rejects the name of a data source that it found in the environment."""
    error = AnalysisException("refused")
    error.getCondition = lambda: condition

    def refuse(source):
        raise error

    class Session:
        dataSource = SimpleNamespace(register=refuse)
        streams = SimpleNamespace(addListener=lambda listener: None, removeListener=lambda listener: None)

    spark = Session()
    if condition == "CANNOT_LOAD_CLASS":
        with pytest.raises(AnalysisException):
            register(spark)
    else:
        register(spark)


def test_source_is_registered_under_any_case(spark):
    register(spark)
    options = {**OPTIONS, "kafka.bootstrap.servers": "127.0.0.1:1"}
    assert spark.read.format("GroupSource").options(**options).load().columns[0] == "key"
