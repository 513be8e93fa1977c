"""A PySpark data source that makes a Spark application a Kafka consumer group."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_groupsource.broker.server import EmbeddedBroker
    from spark_groupsource.source.datasource import register
    from spark_groupsource.source.drain import stop_gracefully
    from spark_groupsource.source.signals import run_until_signal

__all__ = ["EmbeddedBroker", "register", "run_until_signal", "stop_gracefully"]

# loaded when first used: Spark imports this package at every look-up of a data source
_HOMES = {
    "EmbeddedBroker": "spark_groupsource.broker.server",
    "register": "spark_groupsource.source.datasource",
    "run_until_signal": "spark_groupsource.source.signals",
    "stop_gracefully": "spark_groupsource.source.drain",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
