"""``groupsource produce`` and ``groupsource consume``: lines into a topic, records out of it."""

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
from spark_groupsource.client.records.partitioner import partition_of_key
from spark_groupsource.client.records.producer import BatchProducer
from spark_groupsource.errors import BrokerError, ConfigurationError
from spark_groupsource.model import OffsetRange, TopicPartition
from spark_groupsource.records.batch import Record
from spark_groupsource.records.columns import decode_fetched
from spark_groupsource.records.compression import CODECS, codec_number

_LINES_PER_BATCH = 5_000
_COLUMNS = ("key", "value", "partition", "offset", "timestamp")
_topic = click.option("--topic", required=True, metavar="TOPIC", help="Topic to use; it must exist.")


@click.command(context_settings=HELP)
@cluster_options
@_topic
@click.option("--partition", type=click.IntRange(0), default=None, help="Default: by key, else in turn.")
@click.option("--key-separator", default=None, metavar="TEXT", help="Text between key and value; default: no keys.")
@click.option("--compression", type=click.Choice(CODECS), default="none", show_default=True)
def produce(
    bootstrap: str,
    command_config: Path | None,
    topic: str,
    partition: int | None,
    key_separator: str | None,
    compression: str,
) -> None:
    """Writes each line of standard input as one record; keys land where Kafka's Java producer puts them."""
    with open_cluster(bootstrap, command_config) as cluster:
        count = len(cluster.describe_topics([topic], refresh=True)[topic].partitions)
        if partition is not None and partition >= count:
            raise ConfigurationError(f"--partition: topic {topic} has partitions 0 to {count - 1}, not {partition}")
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
@click.option("--partition", type=click.IntRange(0), default=None, help="Default: every partition, one after another.")
@click.option("--from", "begin", default="earliest", show_default=True, metavar="OFFSET", help="-N for the last N.")
@click.option("--max-messages", type=click.IntRange(1), default=None, help="Default: all up to the log ends.")
@click.option("--show", is_flag=True, help="Put time, partition, offset and key before each value.")
def consume(
    bootstrap: str,
    command_config: Path | None,
    topic: str,
    partition: int | None,
    begin: str,
    max_messages: int | None,
    show: bool,
) -> None:
    """Prints the values of records that are there now, one a line; joins no group and commits nothing."""
    with open_cluster(bootstrap, command_config) as cluster:
        info = cluster.describe_topics([topic], refresh=True)[topic]
        if partition is not None and partition not in info.partitions:
            raise ConfigurationError(f"--partition: topic {topic} has no partition {partition}")
        numbers = sorted(info.partitions) if partition is None else [partition]
        ranges = _ranges(cluster, [TopicPartition(topic, number) for number in numbers], begin)
        records = (found for part in ranges for found in _read(cluster, part))
        for record in islice(records, max_messages):
            if show:
                key = "-" if record["key"] is None else _text(record["key"])
                click.echo(f"{record['timestamp']} {record['partition']}:{record['offset']} {key} ", nl=False)
            click.echo(_text(record["value"] or b""))


def _ranges(cluster: Cluster, partitions: list[TopicPartition], begin: str) -> list[OffsetRange]:
    """From where `begin` says to the log end of now; starts outside the log are moved to its edge."""
    if begin != "earliest" and not begin.lstrip("-").isdigit():
        raise ConfigurationError(f"--from: {begin!r} is not earliest, an offset or -N")
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
    """The records of one range, each as column name -> value."""
    tp, position = part.topic_partition, part.start
    for block in PartitionFetcher(cluster).fetch_blocks([part]):
        if block.error:
            raise BrokerError(block.error, f"read {tp} from offset {position}")
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
        raise ConfigurationError(f"--key-separator: {separator!r} is not in the line {_text(line[:60])!r}")
    return key, value


def _standard_input() -> BinaryIO:
    return sys.stdin.buffer


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
