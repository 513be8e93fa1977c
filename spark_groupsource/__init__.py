"""PySpark data source that makes a Spark application a Kafka consumer group."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from spark_groupsource.version import __version__

if TYPE_CHECKING:
    from spark_groupsource.broker.embedded import EmbeddedBroker
    from spark_groupsource.notebook.cluster import Cluster, Group, connect
    from spark_groupsource.notebook.live import watch
    from spark_groupsource.notebook.timeline_chart import timeline
    from spark_groupsource.source.process.drain import stop_gracefully
    from spark_groupsource.source.process.signals import run_until_signal
    from spark_groupsource.source.spark.available_now import run_available_now
    from spark_groupsource.source.spark.datasource import register
    from spark_groupsource.source.spark.lag_listener import LagListener

__all__ = [
    "__version__", "Cluster", "EmbeddedBroker", "Group", "LagListener", "connect", "register", "run_available_now",
    "run_until_signal", "stop_gracefully", "timeline", "watch",
]  # fmt: skip

_NEEDS_PYSPARK = ("LagListener", "register")
# name -> module, imported at first use: Spark imports this package at every lookup of a data source
_MODULES = {
    "EmbeddedBroker": "spark_groupsource.broker.embedded",
    "Cluster": "spark_groupsource.notebook.cluster",
    "Group": "spark_groupsource.notebook.cluster",
    "LagListener": "spark_groupsource.source.spark.lag_listener",
    "connect": "spark_groupsource.notebook.cluster",
    "register": "spark_groupsource.source.spark.datasource",
    "run_available_now": "spark_groupsource.source.spark.available_now",
    "run_until_signal": "spark_groupsource.source.process.signals",
    "stop_gracefully": "spark_groupsource.source.process.drain",
    "timeline": "spark_groupsource.notebook.timeline_chart",
    "watch": "spark_groupsource.notebook.live",
}

# Spark starts python3 of the PATH otherwise, which may be another installation. Under spark-submit, which sets the
# port, Spark runs already and has chosen the interpreter.
if not os.environ.get("PYSPARK_PYTHON") and sys.executable and "PYSPARK_GATEWAY_PORT" not in os.environ:
    os.environ["PYSPARK_PYTHON"] = sys.executable


def __dir__() -> list[str]:
    # help() and completion resolve every name
    has_pyspark = find_spec("pyspark") is not None
    return [name for name in __all__ if name not in _NEEDS_PYSPARK or has_pyspark]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise ModuleNotFoundError(
            f"spark_groupsource.{name} cannot be imported: PySpark is not installed in this Python environment. "
            "Use the environment of the Spark runtime, or run: pip install 'spark-groupsource[spark]'.",
            name="pyspark",
        ) from error
