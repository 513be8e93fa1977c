"""Aggregates JSON records by event-time window into Parquet files, with a watermark.

A window is written once, when the watermark has passed its end; a record that is later than the watermark allows is
ignored. SIGTERM and Ctrl-C drain the job; the state of open windows is in the checkpoint.

    spark-submit jobs/windowed_aggregates.py --bootstrap-servers localhost:9092 --topic flights --group delays \\
        --schema 'carrier STRING, delay INT' --by carrier --value delay --window '10 minutes' --watermark '5 minutes' \\
        --output /data/delays --checkpoint /data/delays.checkpoint
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from job_support import CONTEXT, CORRUPT_RECORD, Stream, decode_json, job_session, stream_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORD_TIME = "_record_timestamp"


def aggregated(
    rows: DataFrame, *, event_time: str, by: tuple[str, ...], value: str, window: str, watermark: str
) -> DataFrame:
    """The number of rows of each window and group, and mean, minimum and maximum of `value`; without null times.

    Args:
        event_time: column of type TIMESTAMP.
        window, watermark: durations such as ``10 minutes``.
    """
    from pyspark.sql import functions as F

    groups = rows.withWatermark(event_time, watermark).groupBy(F.window(event_time, window), *by)
    numbers = F.count(value).alias("count"), *(f(value).alias(f.__name__) for f in (F.mean, F.min, F.max))
    return groups.agg(*numbers).select("window.start", "window.end", *by, "count", "mean", "min", "max")


@click.command(context_settings=CONTEXT)
@stream_options
@click.option("--schema", required=True, help="Columns of the JSON values, as in SQL: 'carrier STRING, delay INT'.")
@click.option("--event-time", default=RECORD_TIME, help="Column of the schema of type TIMESTAMP; else the record's.")
@click.option("--by", multiple=True, help="Column to group by; may be repeated.")
@click.option("--value", required=True, help="Column to count, and to compute mean, minimum and maximum of.")
@click.option("--window", default="10 minutes", help="Length of the windows.")
@click.option("--watermark", default="5 minutes", help="How late a record may be, relative to the latest event time.")
@click.option("--output", required=True, help="Directory of the Parquet files, one for each running job.")
def main(
    stream: Stream,
    schema: str,
    event_time: str,
    by: tuple[str, ...],
    value: str,
    window: str,
    watermark: str,
    output: str,
    log_level: str,
) -> None:
    """Aggregate JSON records by window of event time, with a watermark."""
    with job_session(log_level) as spark:
        records = stream.load(spark)
        decoded = records.withColumn("decoded", decode_json("value", schema))
        valid = decoded.where(f"decoded IS NOT NULL AND decoded.{CORRUPT_RECORD} IS NULL")
        rows = valid.selectExpr("decoded.*", f"timestamp AS {RECORD_TIME}")
        rows = aggregated(rows, event_time=event_time, by=by, value=value, window=window, watermark=watermark)
        stream.run(rows.writeStream.format("parquet").option("path", output))


if __name__ == "__main__":
    main()
