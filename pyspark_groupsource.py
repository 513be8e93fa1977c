"""Module that PySpark imports for ``format("groupsource")``: any ``pyspark_*`` with a `DefaultSource`.

Spark imports all such modules whenever a data source is looked up, so this one imports little.
"""

from spark_groupsource.source.spark.datasource import GroupDataSource as DefaultSource

__all__ = ["DefaultSource"]
