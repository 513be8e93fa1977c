"""Streaming queries with both sources, and rows that compare them."""

from __future__ import annotations

import os
import uuid
from typing import Any, Mapping, NamedTuple, Sequence

from bench.spark import CEILING, KAFKA, OWN, register_ceiling

SOURCES = (KAFKA, OWN)
PHASES = ("latestOffset", "queryPlanning", "walCommit", "getBatch", "addBatch", "commitBatch", "commitOffsets")


class Sample(NamedTuple):
    """What was measured of one source: the number of values, the figures to compare, and the times of the phases."""

    values: int
    figures: Sequence[float]
    phases: Sequence[float]


def streaming_settings(has_unix_socket: bool) -> dict[str, str]:
    """Returns the settings of a session for streaming queries: the transport to Python, and all progress events."""
    return {
        "spark.python.unix.domain.socket.enabled": str(has_unix_socket).lower(),
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }


def stream_writer(
    spark: Any, source: str, bootstrap_servers: str, topic: str, starting_offsets: str, directory: str
) -> Any:
    """Returns the writer of a query to the sink `noop`, with a new group and a new checkpoint below `directory`."""
    stream = spark.readStream.format(source).option("kafka.bootstrap.servers", bootstrap_servers)
    stream = stream.option("subscribe", topic).option("startingOffsets", starting_offsets)
    if source == OWN:
        stream = stream.option("kafka.group.id", f"benchmark-{uuid.uuid4().hex[:8]}")
    return _to_noop(stream, directory)


def ceiling_writer(spark: Any, options: Mapping[str, str], directory: str) -> Any:
    """Returns the writer of a query over the prebuilt Arrow batches of the ceiling."""
    register_ceiling(spark)
    return _to_noop(spark.readStream.format(CEILING).options(**options), directory)


def _to_noop(stream: Any, directory: str) -> Any:
    checkpoint = os.path.join(directory, uuid.uuid4().hex)
    return stream.load().writeStream.format("noop").option("checkpointLocation", checkpoint)


def comparison_rows(title: str, samples: Mapping[str, Sample]) -> list[list[str]]:
    """Returns a row of each source, and the ratios of ours to theirs."""
    rows = [
        [title, source, str(samples[source].values)]
        + [f"{value:,.0f}" for value in (*samples[source].figures, *samples[source].phases)]
        for source in SOURCES
    ]
    theirs, ours = (samples[source] for source in SOURCES)
    ratios = [f"{own / rival:.2f}" for own, rival in zip(ours.figures, theirs.figures, strict=True)]
    return [*rows, [title, "ratio", "", *ratios, *[""] * len(ours.phases)]]
