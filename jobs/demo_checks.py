"""Checks of the demo's results, independent of this package.

pyarrow reads the Parquet files, pandas the source data, and the client of kafka-python the offsets of the group.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow
import pyarrow.dataset

if TYPE_CHECKING:
    from pandas import DataFrame


class Check(NamedTuple):
    """One expectation, whether it is met, and the observed result."""

    name: str
    passed: bool
    result: str


def read_output(path: Path) -> DataFrame:
    """The rows of an output: who has read the record, and its position in the source."""
    columns = ["application", "source_partition", "source_offset", "carrier", "arr_delay"]
    rows: DataFrame = pyarrow.dataset.dataset(path, format="parquet").to_table(columns=columns).to_pandas()
    # "flight delays A"
    rows["application"] = rows["application"].str.split().str[-1]
    return rows.rename(columns={"source_partition": "partition", "source_offset": "offset"})


def check_rows(rows: DataFrame, ends: Mapping[int, int], expected: int) -> list[Check]:
    """Each (partition, offset) occurs exactly once, and every application has delivered records."""
    distinct = rows[["partition", "offset"]].drop_duplicates()
    duplicates = len(rows) - len(distinct)
    counted = distinct.groupby("partition")["offset"].agg(["min", "max", "count"])
    complete = {p: (0, end - 1, end) for p, end in ends.items() if end}
    gaps = {p for p, row in complete.items() if p not in counted.index or tuple(counted.loc[p]) != row}
    shares = rows["application"].value_counts().to_dict()
    return [
        Check("no record lost", len(distinct) == expected and not gaps, f"{len(distinct):,} of {expected:,} flights"),
        Check("no record delivered twice", duplicates == 0, f"{duplicates:,} duplicates"),
        Check("A and B delivered", len(shares) == 2, ", ".join(f"{n}: {c:,}" for n, c in sorted(shares.items()))),
    ]


def carrier_means(flights: DataFrame) -> dict[str, tuple[int, float]]:
    """Flights and mean arrival delay in minutes (NaN where no flight arrived) of each carrier."""
    grouped = flights.groupby("carrier")["arr_delay"].agg(["size", "mean"])
    return {str(carrier): (int(row["size"]), float(row["mean"])) for carrier, row in grouped.iterrows()}


def check_means(found: Mapping[str, tuple[int, float]], expected: Mapping[str, tuple[int, float]]) -> Check:
    """The mean arrival delay of each carrier equals that of the source data."""
    wrong = [
        carrier
        for carrier in sorted({*found, *expected})
        if carrier not in found
        or carrier not in expected
        or found[carrier][0] != expected[carrier][0]
        or not math.isclose(found[carrier][1], expected[carrier][1], rel_tol=1e-9)
    ]
    result = f"different: {', '.join(wrong)}" if wrong else f"{len(expected)} carriers agree with pandas"
    return Check("mean delays are correct", not wrong, result)


def group_positions(bootstrap_servers: str, group: str, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    """Committed offsets and log end offsets by partition."""
    with warnings.catch_warnings():
        # kafka-python loads its schemas with a call that is deprecated in Python 3.11 and 3.12
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaConsumer, TopicPartition
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, group_id=group, enable_auto_commit=False)
    try:
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
        ends = {tp.partition: end for tp, end in consumer.end_offsets(partitions).items()}
        committed = {tp.partition: consumer.committed(tp) for tp in partitions}
    finally:
        consumer.close()
    return {number: offset for number, offset in committed.items() if offset is not None}, ends


def check_lag(committed: Mapping[int, int], ends: Mapping[int, int]) -> Check:
    """The committed offsets of the group equal the log end offsets."""
    # a partition without records has no committed offset
    lag = {p: end - committed.get(p, 0) for p, end in ends.items()}
    lagging = {p: n for p, n in lag.items() if n}
    result = f"lag by partition {lagging}" if lagging else f"lag 0 on all {len(ends)} partitions"
    return Check("all offsets committed", not lagging, result)
