"""Python interface to clusters and groups, for notebooks and scripts."""

from __future__ import annotations

import weakref
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Callable, Mapping

from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings, without_prefix
from spark_groupsource.common.arguments import check_integer, check_mapping, check_text, shown
from spark_groupsource.common.config_providers import resolve
from spark_groupsource.errors import ConfigurationError, GroupSourceError
from spark_groupsource.monitor.near_names import missing_group_text, suggests_topics
from spark_groupsource.monitor.offsets.offset_reset import (
    ALL_COMMITTED,
    ResetPlan,
    TargetKind,
    parse_scope,
    parse_target,
    plan,
)
from spark_groupsource.monitor.rebalances.explanation import Explanation
from spark_groupsource.monitor.rebalances.rebalance_sources import read_history
from spark_groupsource.monitor.selection import NameSelection, parse_selection
from spark_groupsource.monitor.tables.definitions import TABLES
from spark_groupsource.monitor.tables.peek import MAX_RECORDS, PeekQuery, peek
from spark_groupsource.monitor.tables.record_decoding import decoders
from spark_groupsource.monitor.tables.results import Result
from spark_groupsource.monitor.tables.row_filter import parse_filter
from spark_groupsource.monitor.tables.table_rows import TableQuery, read_rows
from spark_groupsource.notebook.group_results import HistoryResult, LagResult
from spark_groupsource.source.options.value_options import registry_format


def connect(bootstrap: Any, **kafka: Any) -> Cluster:
    """Returns a client of a cluster.

    Args:
        bootstrap: ``host:port`` of one or more brokers, separated by commas, or an `EmbeddedBroker`.
        kafka: settings of the Kafka client, with ``_`` or ``.`` in their names (``security_protocol="SASL_SSL"``);
            values may have references such as ``${env:NAME}``.
    Raises: ConfigurationError for an invalid address and unknown or invalid settings; NetworkError if no broker is
        reachable.

    Examples:
        >>> cluster = connect("localhost:9092")
        >>> cluster.group("billing").lag()
    """
    if not isinstance(bootstrap, str) and "bootstrap_servers" not in dir(bootstrap):
        raise ConfigurationError(
            f"Argument bootstrap must be HOST:PORT or an EmbeddedBroker, got {shown(bootstrap)}."
        )
    address = bootstrap if isinstance(bootstrap, str) else bootstrap.bootstrap_servers
    parsed = parse_settings(address, kafka)
    client = ClusterClient(parsed.bootstrap, parsed)
    try:
        client.metadata(())
    except BaseException:
        client.close()
        raise
    return Cluster(client, address)


def parse_settings(address: str, kafka: Mapping[str, Any]) -> ClientSettings:
    """Returns the settings of the arguments of `connect`.

    Raises: ConfigurationError that names the setting without the prefix of the data source.
    """
    for name, value in kafka.items():
        if not isinstance(value, (str, int, float)):
            # not the value, which may be a password
            found = type(value).__name__
            raise ConfigurationError(f"Argument {name} must be a text, a number or a boolean, got {found}.")
    try:
        settings = resolve({name.replace("_", "."): _text(value) for name, value in kafka.items()})
        return ClientSettings.parse({**settings, "bootstrap.servers": address})
    except ConfigurationError as error:
        raise ConfigurationError(without_prefix(str(error))) from None


class Cluster:
    """Topics and groups of a cluster; each call reads them again. A context manager.

    `topic` and `group` are names or regular expressions, separated by commas; None selects all. Only `group(name)`
    takes one name exactly as it is.
    """

    def __init__(self, client: ClusterClient, address: str) -> None:
        self._client = client
        self._address = address
        # a notebook rarely closes it, and gs.connect(...).group(...) has no name to close
        self._finalizer = weakref.finalize(self, client.close)

    def topics(self, topic: str | None = None) -> Result:
        """Returns the topics; internal ones only if `topic` selects them."""
        return self._read("topics", topic=topic)

    def partitions(self, topic: str | None = None) -> Result:
        """Returns the partitions of the topics with their offsets and sizes."""
        return self._read("partitions", topic=topic)

    def groups(self, group: str | None = None) -> Result:
        """Returns the consumer groups."""
        return self._read("groups", group=group)

    def peek(
        self,
        topic: str,
        last: int = 20,
        at: str | int | datetime | timedelta | None = None,
        where: str | Callable[[dict[str, Any]], Any] | None = None,
        decode: str | Mapping[str, str] = "auto",
        *,
        schema: Any = None,
        message: str | None = None,
        registry: Mapping[str, str] | None = None,
        partition: int | None = None,
    ) -> Result:
        """Returns the last records of a topic, or the first ones since a time; joins no group, commits nothing.

        At most 10,000 records and about 64 MB are read, also with a filter.

        Args:
            last: number of records, at most 10,000.
            at: None for the end of the topic. Otherwise the first records at or after this time are returned: ``-10m``
                (time back), an ISO time, a datetime, or epoch milliseconds.
            where: function of a row (a dictionary with key, value, topic, partition, offset and timestamp), or an
                expression such as ``delay > 60 and carrier == 'UA'`` over columns and fields of decoded values.
            decode: ``auto``, ``utf-8``, ``json``, ``avro``, ``protobuf`` or ``hex``; ``{"key": "utf-8", "value":
                "json"}`` by column. ``auto`` chooses JSON, text or hexadecimal by the bytes, and the writers' schemas
                with `registry`.
            schema: with ``decode="avro"`` an Avro schema, with ``decode="protobuf"`` a descriptor set or the text of a
                .proto file; without it the writers' schemas of the registry.
            message: name of the Protobuf message; the first one of the schema by default.
            registry: options of a schema registry, for example ``{"schema.registry.url": "http://localhost:8081"}``;
                names are those of the source without ``value.``.
            partition: None for all partitions.
        Raises: ConfigurationError for an invalid argument, an expression with a name that no record has, and records
            that cannot be decoded; BrokerError, NetworkError.
        """
        check_text("topic", topic, meaning="the name of a topic")
        check_integer("last", last, 0, MAX_RECORDS)
        check_integer("partition", partition, 0, optional=True)
        check_text("message", message, optional=True)
        check_mapping("registry", registry, "a mapping from options of a registry to values")
        matches = parse_filter(where) if isinstance(where, str) else where
        if matches is not None and not callable(matches):
            raise ConfigurationError(f"Argument where must be a function or an expression, got {shown(where)}.")
        timestamp_ms = None if at is None else _timestamp_ms(at, self._client.clock.timestamp_ms())
        query = PeekQuery(topic, last, timestamp_ms, partition, matches)
        given = {option: _text(value) for option, value in (registry or {}).items()}
        columns = () if registry is None else ("key", "value")
        written = {name: registry_format(name, "avro", given) for name in columns}
        decoding = decoders(decode, schema, written, message)
        with suggests_topics(self._client, [topic]):
            return Result.of_table(topic, peek(self._client, query, decoding))

    def group(self, name: str) -> Group:
        """Returns one consumer group, which need not exist yet. Raises: ConfigurationError for another type."""
        check_text("name", name, meaning="the name of a group")
        return Group(self, name)

    def close(self) -> None:
        """Closes the connections, which are also closed when the object is no longer used."""
        self._finalizer()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Cluster({self._address!r})"

    def _read(
        self,
        table: str,
        *,
        group: str | None = None,
        groups: NameSelection | None = None,
        topic: str | None = None,
        columns: tuple[str, ...] = (),
    ) -> Result:
        for name, value in (("group", group), ("topic", topic)):
            check_text(name, value, optional=True, meaning=f"the name of a {name} or a regular expression")
        definition = TABLES[table]
        if columns:
            definition = definition._replace(columns=tuple(map(definition.column, columns)), shown=())
        topics = None if topic is None else parse_selection("topic", topic)
        query = TableQuery(
            table,
            frozenset(column.name for column in definition.columns),
            groups if group is None else parse_selection("group", group),
            topics,
        )
        with suggests_topics(self._client, () if topics is None else topics.exact):
            return Result(definition, read_rows(self._client, query))


class Group:
    """One consumer group; each call reads it again.

    Each method raises GroupSourceError, with the near names, for a group that does not exist; a group with a history
    exists for `history` and `why`.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        # the name may have commas and the characters of patterns
        self._selection = NameSelection((name,))

    def lag(self, topic: str | None = None, by: str | None = None) -> LagResult:
        """Returns the partitions of the group with their lag.

        It shows partition, owner, offsets, lag, and how long ago the next record was written; `LagResult.all` shows the
        rest, and `LagResult.chart` draws it.

        Args:
            by: ``offsets``, ``time`` or ``bytes``: the columns of this measure only, the largest lag first. Time
                requires reads of records; so do bytes where DescribeLogDirs returns no size of the log.
        """
        if by is None:
            return self._read_lag(topic)
        if by not in list(_MEASURES):
            raise ConfigurationError(f"Argument by must be one of {', '.join(_MEASURES)}, got {shown(by)}.")
        found = self._read_lag(topic, (*_LAG_COLUMNS, *_MEASURES[by]))
        return found.sorted_by(_MEASURES[by][0] if _MEASURES[by] else "lag")

    def _read_lag(self, topic: str | None, columns: tuple[str, ...] = ()) -> LagResult:
        found = self._cluster._read("lag", groups=self._selection, topic=topic, columns=columns)
        return LagResult.of_group(self.name, found)

    def members(self) -> Result:
        """Returns the members with their partitions."""
        return self._cluster._read("members", groups=self._selection)

    def offsets(self, topic: str | None = None) -> Result:
        """Returns the committed offsets."""
        found = self._cluster._read("offsets", groups=self._selection, topic=topic)
        if not len(found):
            self.check_exists()
        return found

    def history(self, last: int | None = None) -> HistoryResult:
        """Returns the last rebalances, None for all: from events, else from the history in `__consumer_offsets`.

        It shows time, cause, phases and effect; `HistoryResult.all` shows the rest, and `HistoryResult.chart` draws it.
        """
        check_integer("last", last, 0, optional=True)
        found = HistoryResult.of_group(self.name, self._cluster._read("rebalances", groups=self._selection))
        if not len(found):
            self.check_exists()
        return found if last is None else found.last(last)

    def why(self, last: int | None = 5) -> Explanation:
        """Explains the last rebalances in sentences and names the settings to change; None for all."""
        check_integer("last", last, 0, optional=True)
        found = read_history(self._cluster._client, self.name)
        if not found.rebalances:
            self.check_exists()
        return found.explain(last)

    def reset(
        self,
        to: str | int | datetime | timedelta,
        topic: str | None = None,
        checkpoint: str | Path | None = None,
    ) -> ResetPlan:
        """Plans new committed offsets; only `ResetPlan.execute` commits them, and only without running members.

        With `topic` the group need not exist; a warning of the plan says so.

        Args:
            to: ``earliest``, ``latest``, ``current``, an offset (``100``), a shift (``"+10"``, ``"-10"``), a time back
                (``"-1h"``, a timedelta) or a time (``"2026-01-31T10:00:00"``, a datetime).
            topic: ``flights`` or ``flights:0,1``; None for all partitions with a committed offset.
            checkpoint: directory of the checkpoint of a Spark query: the plan then says where the query continues, and
                which offset decides.
        Raises: ConfigurationError, GroupSourceError for an impossible reset; BrokerError, NetworkError.
        """
        if isinstance(to, bool) or not isinstance(to, (str, int, datetime, timedelta)):
            raise ConfigurationError(f"Argument to must be a text, an offset, a time or a duration, got {shown(to)}.")
        check_text("topic", topic, optional=True, meaning="the name of a topic")
        if not isinstance(checkpoint, (str, Path, type(None))):
            raise ConfigurationError(f"Argument checkpoint must be a directory or None, got {shown(checkpoint)}.")
        client = self._cluster._client
        scope = ALL_COMMITTED if topic is None else parse_scope([topic])
        rule = None
        if checkpoint is not None:
            from spark_groupsource.source.positions.checkpoint import read_checkpoint

            rule = read_checkpoint(checkpoint).restart_rule(client, self.name)
        with suggests_topics(client, (topic or "").split(":")[:1]):
            planned = plan(client, self.name, scope, parse_target(to, client.clock.timestamp_ms()), rule)
        if all(row.current_offset is None for row in planned.rows):
            self._check_reset(planned)
        return planned

    def _check_reset(self, planned: ResetPlan) -> None:
        """Warns of a group that does not exist yet. Raises: GroupSourceError for a plan without partitions."""
        if not planned.rows:
            self.check_exists()
            raise GroupSourceError(
                f"Group {self.name!r} has no committed offsets, so nothing is selected. Set argument topic."
            )
        try:
            self.check_exists()
        except GroupSourceError as error:
            planned.warnings += (f"{error} execute() creates the group.",)

    def check_exists(self) -> None:
        client = self._cluster._client
        if describe_groups(client, [self.name])[self.name].state == "Dead":
            raise GroupSourceError(missing_group_text(client, self.name))

    def __repr__(self) -> str:
        return f"Group({self.name!r})"


_LAG_COLUMNS = ("group", "topic", "partition", "current_offset", "log_end_offset", "lag")
_MEASURES: Mapping[str, tuple[str, ...]] = {
    "offsets": (),
    "time": ("lag_ms", "log_end_lag_ms", "records_per_second", "catch_up_ms"),
    "bytes": ("lag_bytes",),
}


def _timestamp_ms(at: str | int | datetime | timedelta, timestamp_ms: int) -> int:
    if isinstance(at, int) and not isinstance(at, bool):
        return at
    target = None
    if isinstance(at, (str, datetime, timedelta)):
        with suppress(ConfigurationError):
            target = parse_target(at, timestamp_ms)
    if target is None or target.kind is not TargetKind.TIMESTAMP:
        raise ConfigurationError(
            "Argument at must be a time back such as -10m (ms, s, m, h or d), an ISO time, a datetime or epoch ms, "
            f"got {shown(at)}."
        )
    return target.value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
