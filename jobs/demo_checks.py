"""Whether the demonstration kept its promises, found out without any code of this project: the Parquet files are read
by pyarrow, the source data by pandas, the group's offsets by kafka-python's own client."""

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
    """One promise, whether it held, and what was seen."""

    promise: str
    held: bool
    seen: str


def read_outputs(outputs: Mapping[str, Path]) -> DataFrame:
    """Every row that the applications wrote, with the name of the application in ``application``."""
    import pandas

    columns = ["topic", "partition", "offset", "carrier", "arr_delay"]
    tables = []
    for name, path in outputs.items():
        table = pyarrow.dataset.dataset(path, format="parquet").to_table(columns=columns).to_pandas()
        tables.append(table.assign(application=name))
    return pandas.concat(tables, ignore_index=True)


def check_rows(rows: DataFrame, ends: Mapping[int, int], expected: int) -> list[Check]:
    """Every (partition, offset) exactly once, none missing, and every application took part."""
    distinct = rows[["partition", "offset"]].drop_duplicates()
    repeated = len(rows) - len(distinct)
    counted = distinct.groupby("partition")["offset"].agg(["min", "max", "count"])
    whole = {p: (0, end - 1, end) for p, end in ends.items() if end}
    gaps = {p for p, due in whole.items() if p not in counted.index or tuple(counted.loc[p]) != due}
    shares = rows["application"].value_counts().to_dict()
    return [
        Check("nothing lost", len(distinct) == expected and not gaps, f"{len(distinct):,} of {expected:,} flights"),
        Check("nothing read twice", repeated == 0, f"{repeated:,} repeated"),
        Check("both applications read", len(shares) == 2, ", ".join(f"{n}: {c:,}" for n, c in sorted(shares.items()))),
    ]


def carrier_means(flights: DataFrame) -> dict[str, tuple[int, float]]:
    """Flights and mean arrival delay in minutes (NaN where no flight arrived) of each carrier."""
    grouped = flights.groupby("carrier")["arr_delay"].agg(["size", "mean"])
    return {str(carrier): (int(row["size"]), float(row["mean"])) for carrier, row in grouped.iterrows()}


def check_means(found: Mapping[str, tuple[int, float]], expected: Mapping[str, tuple[int, float]]) -> Check:
    """Mean arrival delay of each carrier as pandas has it from the source data."""
    wrong = [
        carrier
        for carrier in sorted({*found, *expected})
        if carrier not in found
        or carrier not in expected
        or found[carrier][0] != expected[carrier][0]
        or not math.isclose(found[carrier][1], expected[carrier][1], rel_tol=1e-9)
    ]
    seen = f"differ: {', '.join(wrong)}" if wrong else f"{len(expected)} carriers agree with pandas"
    return Check("delays are right", not wrong, seen)


def group_positions(bootstrap_servers: str, group: str, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    """Committed offsets and log ends by partition."""
    with warnings.catch_warnings():
        # kafka-python reads its schemas through an importlib call that Python 3.11 and 3.12 call deprecated
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
    """The group has committed exactly the log ends."""
    # a partition that never held a record need not have a commit
    lag = {p: end - committed.get(p, 0) for p, end in ends.items()}
    behind = {p: n for p, n in lag.items() if n}
    seen = f"lag by partition {behind}" if behind else f"lag 0 on all {len(ends)} partitions"
    return Check("everything committed", not behind, seen)
