"""Content of the generated page of tables, `tables.md`."""

from __future__ import annotations

from collections.abc import Iterator

from spark_groupsource.monitor.tables.definitions import TABLES, TableDefinition

_INTRODUCTION = """\
# Tables

```python
lag = (
    spark.read.format("groupsource")
    .option("kafka.bootstrap.servers", "localhost:9092")
    .option("table", "lag")
    .option("group", "billing")
    .load()
)
```

In SQL: ``CREATE TEMP VIEW lag USING groupsource OPTIONS (`kafka.bootstrap.servers` 'localhost:9092', table 'lag')``, or
`CREATE TABLE` without columns; a table of the catalog stores no passwords.

Each read requests current values from the cluster, in one task on an executor. The option `group` is the name of one
group, exactly as given; `groupPattern` instead is a regular expression (Python's re) that matches whole names. The
option `topic` has names or regular expressions, separated by commas. Only what they select is requested. A schema
selects columns: `.schema("group string, lag bigint")` computes no other column, which saves the requests for time,
bytes and rates. Columns are null where the value is unknown.
"""


def tables_page() -> str:
    """The page as Markdown."""
    return "\n".join([_INTRODUCTION, *(line for table in TABLES.values() for line in _table(table))])


def _table(table: TableDefinition) -> Iterator[str]:
    yield from (f"## {table.name}", "", table.doc)
    names = [*sorted(table.filters), *(["groupPattern"] if "group" in table.filters else [])]
    yield f"Options: {', '.join(f'`{name}`' for name in names) or 'none'}." + (
        " Also with `readStream`; option `startingOffsets` is `earliest` (the default) or `latest`."
        if table.is_streamable
        else ""
    )
    yield from ("", "| Column | Type | Unit | Description |", "| --- | --- | --- | --- |")
    yield from (f"| `{c.name}` | {c.type} | {c.unit} | {c.doc} |" for c in table.columns)
    yield ""
