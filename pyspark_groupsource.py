"""The module PySpark looks up for ``format("groupsource")``: any top-level ``pyspark_*`` with a `DefaultSource`.

Spark imports every such module whenever a data source name is looked up, so this one must stay cheap to import.
"""

from spark_groupsource.source.datasource import GroupDataSource as DefaultSource

__all__ = ["DefaultSource"]
