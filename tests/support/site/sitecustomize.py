"""Loaded by every Python process of a test: shortens its start.

Spark puts ``pyspark.zip`` first on the path, the same files as the installed PySpark without their compiled form, and
each process would compile them again. Spark has a Python daemon for each kind of worker, which forks the workers, and
each worker would import what its daemon has not. A reader process of a stream and a broker are new interpreters: of
kafka-python they need the protocol, not the clients that its package imports, and no garbage collection while they
import.
"""

import gc
import importlib
import importlib.util
import os
import sys
import types

_SOURCE = "pyspark_groupsource"
# module of a worker -> what it imports; a daemon serves the workers of one module, which is its last argument
_PRELOADED = {
    "pyspark.worker": (
        "pandas",  # for `mapInPandas` and frames
        "pyspark.sql.worker.plan_data_source_read",
        _SOURCE,
        "spark_groupsource.source.spark.batch_reader",
        "spark_groupsource.source.tasks.task_reader",
    ),
    "pyspark.sql.worker.lookup_data_sources": (_SOURCE,),
    "pyspark.sql.worker.create_data_source": (
        _SOURCE,
        "spark_groupsource.source.options.schema",
        "spark_groupsource.source.options.option_parser",
    ),
    "pyspark.sql.worker.plan_data_source_read": (
        _SOURCE,
        "spark_groupsource.source.spark.batch_reader",
        "spark_groupsource.source.tasks.task_reader",
    ),
}

_zips = [entry for entry in sys.path if entry.endswith(os.path.join("python", "lib", "pyspark.zip"))]
if _zips and any(os.path.exists(os.path.join(entry, "pyspark", "__init__.py")) for entry in sys.path):
    sys.path[:] = [entry for entry in sys.path if entry not in _zips]

if "pyspark.daemon" in sys.orig_argv:
    _module = sys.orig_argv[-1]
    for _name in (_module, *_PRELOADED.get(_module, ())):
        try:
            importlib.import_module(_name)
        except ImportError:
            # without the optional module, or with another PySpark, workers import what there is themselves
            continue

_is_broker = [os.path.basename(argument) for argument in sys.orig_argv[1:3]] == ["groupsource", "broker"]
if _is_broker or "pyspark.sql.streaming.python_streaming_source_runner" in sys.orig_argv:
    # imports create objects that stay; collections at the default threshold take more than a tenth of their time
    gc.set_threshold(50_000)
    _spec = importlib.util.find_spec("kafka")
    if _spec is not None and _spec.submodule_search_locations is not None:
        _package = types.ModuleType("kafka")
        _package.__path__ = list(_spec.submodule_search_locations)
        _package.__spec__ = _spec
        sys.modules["kafka"] = _package
