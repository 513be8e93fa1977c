"""The ``groupsource produce`` and ``groupsource consume`` commands."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import click

from spark_groupsource.cli.common import HELP, cluster_options, open_cluster
from spark_groupsource.client.cluster.client import EARLIEST, LATEST, Cluster
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.client.records.producer import BatchProducer
from spark_groupsource.errors import BrokerError, ConfigurationError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.arrow import decode_fetched
from spark_groupsource.records.compression import CODECS, codec_number
from spark_groupsource.records.encode import Record
from spark_groupsource.records.partitioner import partition_of_key

_LINES_PER_BATCH = 5_000
_COLUMNS = ("key", "value", "partition", "offset", "timestamp")
_topic = click.option("--topic", required=True, metavar="TOPIC", help="Topic; it must exist.")


@click.command(context_settings=HELP)
@cluster_options
@_topic
@click.option("--partition", type=click.IntRange(0), help="Default: by hash of the key; round-robin without a key.")
@click.option("--key-separator", metavar="TEXT", help="Text between key and value. Default: no keys.")
@click.option(
    "--compression", type=click.Choice(CODECS), default="none", show_default=True, help="Codec of the record batches."
)
def produce(
    bootstrap: str,
    command_config: Path | None,
    topic: str,
    partition: int | None,
    key_separator: str | None,
    compression: str,
) -> None:
    """Writes each line of standard input as one record; keys map to partitions as in Kafka's Java producer."""
    with open_cluster(bootstrap, command_config) as cluster:
        count = len(cluster.describe_topics([topic], refresh=True)[topic].partitions)
        if partition is not None and partition >= count:
            raise ConfigurationError(
                f"Option --partition must be between 0 and {count - 1} for topic {topic}, got {partition}."
            )
        producer = BatchProducer(cluster, codec=codec_number(compression))
        lines = (line.rstrip(b"\r\n") for line in _standard_input())
        written = 0
        while chunk := list(islice(lines, _LINES_PER_BATCH)):
            batches: dict[TopicPartition, list[Record]] = defaultdict(list)
            for line in chunk:
                key, value = _key_and_value(line, key_separator)
                chosen = partition
                if chosen is None:
                    chosen = written % count if key is None else partition_of_key(key, count)
                batches[TopicPartition(topic, chosen)].append(Record(key, value, cluster.clock.timestamp_ms()))
                written += 1
            producer.send(batches)
    click.echo(f"{written} records written to {topic}", err=True)


@click.command(context_settings=HELP)
@cluster_options
@_topic
@click.option("--partition", type=click.IntRange(0), help="Default: all partitions, one after the other.")
@click.option(
    "--from",
    "begin",
    default="earliest",
    show_default=True,
    metavar="earliest|OFFSET|-N",
    help="First offset to read; -N is N records before the log end offset of each partition.",
)
@click.option("--max-messages", type=click.IntRange(1), help="Default: all records up to the log end offsets.")
@click.option("--show", is_flag=True, help="Print timestamp, partition, offset and key before each value.")
def consume(
    bootstrap: str,
    command_config: Path | None,
    topic: str,
    partition: int | None,
    begin: str,
    max_messages: int | None,
    show: bool,
) -> None:
    """Prints the values of the existing records, one per line, without joining a group or committing offsets."""
    with open_cluster(bootstrap, command_config) as cluster:
        info = cluster.describe_topics([topic], refresh=True)[topic]
        if partition is not None and partition not in info.partitions:
            raise ConfigurationError(f"Option --partition must be a partition of topic {topic}, got {partition}.")
        numbers = sorted(info.partitions) if partition is None else [partition]
        ranges = _ranges(cluster, [TopicPartition(topic, number) for number in numbers], begin)
        records = (found for part in ranges for found in _read(cluster, part))
        for record in islice(records, max_messages):
            if show:
                key = "-" if record["key"] is None else _text(record["key"])
                click.echo(f"{record['timestamp']} {record['partition']}:{record['offset']} {key} ", nl=False)
            click.echo(_text(record["value"] or b""))


def _ranges(cluster: Cluster, partitions: list[TopicPartition], begin: str) -> list[OffsetRange]:
    """The offsets from `begin` to the current log end offset; a start outside the log is moved to the nearest end."""
    if begin != "earliest" and not begin.lstrip("-").isdigit():
        raise ConfigurationError(f"Option --from must be earliest, an offset or -N, got {begin!r}.")
    starts = cluster.list_offsets({tp: EARLIEST for tp in partitions})
    ends = cluster.list_offsets({tp: LATEST for tp in partitions})
    ranges = []
    for tp in partitions:
        low, high = starts[tp].offset, ends[tp].offset
        start = low if begin == "earliest" else int(begin)
        if begin.startswith("-"):
            start += high
        ranges.append(OffsetRange(tp, min(max(start, low), high), high))
    return [part for part in ranges if part.start < part.end]


def _read(cluster: Cluster, part: OffsetRange) -> Iterator[dict[str, Any]]:
    """The records of one range, each as a mapping of column names to values."""
    tp, position = part.topic_partition, part.start
    for block in PartitionFetcher(cluster).fetch_blocks([part]):
        if block.error:
            raise BrokerError(block.error, f"Reading {tp} from offset {position}")
        decoded = decode_fetched(
            block.data,
            topic_partition=tp,
            columns=_COLUMNS,
            start_offset=position,
            end_offset=part.end,
            read_committed=cluster.settings.read_committed,
            aborted=block.aborted,
        )
        for batch in decoded.batches:
            yield from batch.to_pylist()
        position = block.next_offset


def _key_and_value(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator.encode())
    if not found:
        raise ConfigurationError(f"Option --key-separator must occur in each line, got {_text(line[:60])!r}.")
    return key, value


def _standard_input() -> BinaryIO:
    return sys.stdin.buffer


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
