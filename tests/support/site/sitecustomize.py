"""Loaded by every Python process of a test: shortens its start.

Spark puts ``pyspark.zip`` first on the path, the same files as the installed PySpark without their compiled form, and
each process would compile them again. Spark's Python daemon forks its workers, and each worker would import what the
daemon has not.
"""

import importlib
import os
import sys

# what workers of the data source import: Spark's worker modules, its readers, and pandas for `mapInPandas` and frames
_PRELOADED = (
    "pandas",
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark_groupsource",
    "spark_groupsource.source.batch_reader",
    "spark_groupsource.source.task_reader",
)

_zips = [entry for entry in sys.path if entry.endswith(os.path.join("python", "lib", "pyspark.zip"))]
if _zips and any(os.path.exists(os.path.join(entry, "pyspark", "__init__.py")) for entry in sys.path):
    sys.path[:] = [entry for entry in sys.path if entry not in _zips]

if "pyspark.daemon" in sys.orig_argv:
    for _name in _PRELOADED:
        try:
            importlib.import_module(_name)
        except ImportError:
            # without the optional module, or with another PySpark, workers import what there is themselves
            continue
