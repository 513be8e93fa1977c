"""Columns of the tables: names, types, units, descriptions.

The schemas of Arrow and of Spark and docs/tables.md are derived from these definitions. Columns have the names of
Kafka's tools in snake case. Spark requests the schema in `load()`, so this module imports neither PyArrow nor PySpark.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple

from spark_groupsource.common.config_def import closest
from spark_groupsource.errors import ConfigurationError


class TableColumn(NamedTuple):
    """One column.

    Attributes:
        type: name of the type in Spark SQL.
        doc: one sentence.
        label: header in a notebook, if it is not the name.
    """

    name: str
    type: str
    doc: str
    unit: str = ""
    label: str = ""

    @property
    def comment(self) -> str:
        """The description with the unit."""
        return f"{self.doc.rstrip('.')} ({self.unit})." if self.unit else self.doc


class TableDefinition(NamedTuple):
    """One table; every column may be null where the value is unknown.

    Attributes:
        filters: which of the options group and topic select rows.
        is_streamable: whether ``readStream`` serves the table.
        shown: columns that a notebook shows of the whole table; empty for all.
    """

    name: str
    doc: str
    columns: tuple[TableColumn, ...]
    filters: frozenset[str] = frozenset()
    is_streamable: bool = False
    shown: tuple[str, ...] = ()

    def column(self, name: str) -> TableColumn:
        """Raises: KeyError."""
        return {column.name: column for column in self.columns}[name]


_GROUP = TableColumn("group", "string", "Name of the group.")
_TOPIC = TableColumn("topic", "string", "Name of the topic.")
_PARTITION = TableColumn("partition", "int", "Number of the partition.")
_CURRENT_OFFSET = TableColumn(
    "current_offset", "bigint", "Committed offset, the next offset to read; null if none is committed."
)
_CLIENT_ID = TableColumn("client_id", "string", "Client id of the member.")
_HOST = TableColumn("host", "string", "Address of the member at its coordinator.")
_CONSUMER_ID = TableColumn("consumer_id", "string", "Member id.")

_DEFINITIONS = (
    TableDefinition(
        "topics",
        "Topics of the cluster; internal topics only where option topic selects them.",
        (
            _TOPIC,
            TableColumn("topic_id", "string", "Id of the topic in base64, as Kafka's tools print it."),
            TableColumn("partition_count", "int", "Number of partitions."),
            TableColumn("replication_factor", "int", "Number of replicas of partition 0."),
            TableColumn("is_internal", "boolean", "True for a topic of the broker itself."),
            TableColumn(
                "configs",
                "string",
                "Settings that the topic overrides, as name=value separated by commas; null without permission, and "
                "for brokers without DescribeConfigs.",
            ),
        ),
        frozenset({"topic"}),
    ),
    TableDefinition(
        "partitions",
        "Partitions of the topics.",
        (
            _TOPIC,
            _PARTITION,
            TableColumn("leader", "int", "Broker id of the leader; null while there is none."),
            TableColumn("leader_epoch", "int", "Epoch of the leader."),
            TableColumn("replicas", "array<int>", "Broker ids of the replicas."),
            TableColumn("isr", "array<int>", "Broker ids of the replicas in sync."),
            TableColumn("log_start_offset", "bigint", "First offset of the log."),
            TableColumn("log_end_offset", "bigint", "High watermark, the end that consumers can read."),
            TableColumn(
                "size",
                "bigint",
                "Size of the log of the leader; null without permission, and for brokers without DescribeLogDirs.",
                "bytes",
            ),
        ),
        frozenset({"topic"}),
    ),
    TableDefinition(
        "groups",
        "Consumer groups of the cluster.",
        (
            _GROUP,
            TableColumn("coordinator", "string", "Broker that coordinates the group, as host:port (id)."),
            TableColumn("assignment_strategy", "string", "Assignor of the group; null without members."),
            TableColumn(
                "state", "string", "State of the group: Stable, PreparingRebalance, CompletingRebalance, Empty, Dead."
            ),
            TableColumn(
                "generation",
                "int",
                "Generation of the last group record in __consumer_offsets; null without permission to read the topic.",
            ),
            TableColumn("members", "int", "Number of members."),
        ),
        frozenset({"group"}),
    ),
    TableDefinition(
        "members",
        "Members of consumer groups.",
        (
            _GROUP,
            _CONSUMER_ID,
            TableColumn("group_instance_id", "string", "Group instance id of a static member, null for others."),
            _HOST,
            _CLIENT_ID,
            TableColumn("partitions", "int", "Number of assigned partitions."),
            TableColumn("assignment", "string", "Assigned partitions, for example orders:0,1;users:3."),
            TableColumn(
                "is_leader",
                "boolean",
                "True for the leader, from the last group record in __consumer_offsets; null if it is unknown.",
            ),
        ),
        frozenset({"group"}),
    ),
    TableDefinition(
        "offsets",
        "Committed offsets of groups.",
        (
            _GROUP,
            _TOPIC,
            _PARTITION,
            _CURRENT_OFFSET,
            TableColumn("leader_epoch", "int", "Leader epoch of the last record read, null if it is unknown."),
            TableColumn("metadata", "string", "Text that the consumer committed with the offset."),
        ),
        frozenset({"group", "topic"}),
    ),
    TableDefinition(
        "lag",
        "Assigned or committed partitions of groups with their lag.",
        (
            _GROUP,
            _TOPIC,
            _PARTITION,
            _CURRENT_OFFSET,
            TableColumn("log_end_offset", "bigint", "High watermark, the end that consumers can read."),
            TableColumn("lag", "bigint", "log_end_offset minus current_offset.", "offsets"),
            TableColumn("consumer_id", "string", "Member id of the owner; null without one."),
            TableColumn("host", "string", "Address of the owner at its coordinator."),
            TableColumn("client_id", "string", "Client id of the owner."),
            TableColumn(
                "lag_ms",
                "bigint",
                "Now minus the timestamp of the record at current_offset, 0 without lag; exact if the clocks of the "
                "producers are; null if the record is not found within 32 MiB of fetched record batches, or 32 KiB per "
                "partition of the group if that is more.",
                "ms",
                label="behind",
            ),
            TableColumn(
                "lag_bytes",
                "bigint",
                "Estimate: lag times the mean size of an offset in the log of the partition (DescribeLogDirs), or in "
                "the batch at current_offset without permission; exact if all records have the same size. Too large "
                "after DeleteRecords within a segment: the broker counts the bytes until it deletes the segment.",
                "bytes",
            ),
            TableColumn(
                "records_per_second",
                "double",
                "Growth of current_offset since the first commit of the last 60 s, from __consumer_offsets; 0 without "
                "a commit; null without permission to read the topic.",
                "records/s",
            ),
            TableColumn(
                "catch_up_ms",
                "bigint",
                "Estimate: lag divided by records_per_second minus the records appended per second in the last 60 s; 0 "
                "without lag, null if the lag does not decrease.",
                "ms",
            ),
            TableColumn(
                "log_end_lag_ms",
                "bigint",
                "Largest timestamp of the log minus the timestamp of the record at current_offset, 0 without lag: the "
                "time span of the unread records, which does not grow while nothing is produced; null as lag_ms, and "
                "for brokers before 3.0.",
                "ms",
            ),
        ),
        frozenset({"group", "topic"}),
        shown=("topic", "partition", "client_id", "current_offset", "log_end_offset", "lag", "lag_ms"),
    ),
    TableDefinition(
        "rebalances",
        "Completed rebalances of consumer groups: from the events of the coordinator or of the members where there are "
        "some, else inferred from the group records and commits that are left in __consumer_offsets.",
        (
            _GROUP,
            TableColumn("generation", "int", "Generation that the rebalance produced."),
            TableColumn("cause", "string", "Cause, for example JOINED or SESSION_EXPIRED; UNKNOWN if it is not known."),
            TableColumn("reason", "string", "Reason that the member sent (KIP-800); null in the history."),
            TableColumn("difference", "string", "Difference to the previous generation in words."),
            TableColumn("client_id", "string", "Client id of the member that caused the rebalance, if it is known."),
            TableColumn("host", "string", "Address of that member."),
            TableColumn("group_instance_id", "string", "Group instance id of that member."),
            TableColumn("application", "string", "Spark application of that member; null in the history."),
            TableColumn("query", "string", "Query of that member; null in the history."),
            TableColumn("started_at", "timestamp", "Start of the rebalance; null where the history does not show it."),
            TableColumn("completed_at", "timestamp", "Timestamp of the group record: the assignment is complete."),
            TableColumn("notice_ms", "bigint", "Time until the last member was notified.", "ms"),
            TableColumn("batch_ms", "bigint", "Longest wait for a micro-batch in flight.", "ms"),
            TableColumn("join_ms", "bigint", "Time until the last member had joined.", "ms"),
            TableColumn("assignment_ms", "bigint", "Time of the assignor.", "ms"),
            TableColumn(
                "sync_ms", "bigint", "Time from the end of the join phase to the group record, assignor included.", "ms"
            ),
            TableColumn("first_record_ms", "bigint", "Time until the first record after the rebalance.", "ms"),
            TableColumn("slowest_member", "string", "Member id of the last member that joined."),
            TableColumn("members", "int", "Number of members after the rebalance."),
            TableColumn("partitions_moved", "int", "Number of partitions whose owner changed."),
            TableColumn("partitions_unassigned", "int", "Number of partitions that lost their owner."),
            TableColumn(
                "unowned_seconds",
                "double",
                "Sum over the partitions of the time without an owner; from the history, a lower bound.",
                "s",
            ),
            TableColumn("repeated_records", "bigint", "Records that a new owner read again."),
            TableColumn("lag_added", "bigint", "Growth of the lag of the group during the rebalance.", "offsets"),
            TableColumn(
                "inferred",
                "string",
                "Values of the row that are inferred, separated by commas; the others that are not null were seen.",
            ),
        ),
        frozenset({"group"}),
        shown=(
            "completed_at",
            "generation",
            "cause",
            "client_id",
            "join_ms",
            "sync_ms",
            "partitions_moved",
            "unowned_seconds",
        ),
    ),
    TableDefinition(
        "offsets_log",
        "Records of __consumer_offsets, decoded.",
        (
            TableColumn("partition", "int", "Partition of __consumer_offsets."),
            TableColumn("offset", "bigint", "Offset of the record."),
            TableColumn("timestamp", "timestamp", "Timestamp of the record."),
            TableColumn(
                "type", "string", "offset, group, marker (transaction), newer (not of a classic group), error, unknown."
            ),
            TableColumn("group", "string", "Group of the record."),
            TableColumn("topic", "string", "Topic of a committed offset."),
            TableColumn("topic_partition", "int", "Partition of a committed offset."),
            TableColumn("committed_offset", "bigint", "Committed offset; null in a tombstone."),
            TableColumn("leader_epoch", "int", "Leader epoch of a committed offset."),
            TableColumn("metadata", "string", "Text that the consumer committed with an offset."),
            TableColumn("generation", "int", "Generation of a group record."),
            TableColumn("protocol", "string", "Assignor of a group record."),
            TableColumn("leader", "string", "Member id of the leader of a group record."),
            TableColumn("members", "int", "Number of members of a group record."),
            TableColumn("is_tombstone", "boolean", "True if the record deletes its key."),
            TableColumn("producer_id", "bigint", "Producer id of a transactional record, null for others."),
            TableColumn("key", "string", "Key in the JSON of Kafka's tools."),
            TableColumn("value", "string", "Value in the JSON of Kafka's tools, or the error of the record."),
        ),
        frozenset({"group"}),
        is_streamable=True,
    ),
    TableDefinition(
        "queries",
        "Streaming queries of this application that read with groupsource.",
        (
            TableColumn(
                "query",
                "string",
                "Name of the query; null without one, before its first batch, and if no task runs on the driver's "
                "machine.",
            ),
            TableColumn(
                "query_id",
                "string",
                "Id of the query; null before its first batch, and if no task runs on the driver's machine.",
            ),
            _GROUP,
            TableColumn("state", "string", "starting, rebalancing, running, draining or drained."),
            TableColumn("generation", "int", "Generation of the group at the last call of Spark."),
            TableColumn("partitions", "int", "Number of owned partitions."),
            TableColumn("assignment", "string", "Owned partitions, for example orders:0,1;users:3."),
            TableColumn(
                "last_batch",
                "bigint",
                "Number of the last batch that a task on the driver's machine has read; null if none does.",
            ),
            TableColumn("transactional_id", "string", "kafka.transactional.id of the source; null without it."),
            TableColumn(
                "published_batch", "bigint", "Number of the last batch that was published with its offsets."
            ),
            TableColumn(
                "metrics",
                "string",
                "Metrics of the members of the query together as JSON, with the names and units of Kafka's "
                "consumer-coordinator-metrics, for example join-rate; null before the group is joined.",
            ),
            TableColumn("last_offsets", "string", "End offsets of the last planned batch, as JSON."),
            TableColumn("reader_pid", "int", "Process id of the reader process."),
        ),
        frozenset({"group"}),
    ),
)

TABLES: Mapping[str, TableDefinition] = {table.name: table for table in _DEFINITIONS}
"""The tables by name."""


def parse_table(name: str, text: str) -> TableDefinition:
    """Parses the name of a table. Raises: ConfigurationError with the closest known name."""
    table = TABLES.get(text.strip().lower())
    if table is None:
        near = closest(text.strip().lower(), TABLES)
        hint = f" Did you mean {near}?" if near else ""
        raise ConfigurationError(f"Option {name} must be one of {', '.join(TABLES)}, got {text!r}.{hint}")
    return table
