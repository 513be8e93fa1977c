"""Python interface to clusters and groups, for notebooks and scripts."""

from __future__ import annotations

from typing import Any

from spark_groupsource.client.cluster.client import Cluster as ClusterClient
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.monitor.definitions import TABLES
from spark_groupsource.monitor.explanation import Explanation
from spark_groupsource.monitor.rebalance_sources import read_history
from spark_groupsource.monitor.results import Result
from spark_groupsource.monitor.selection import parse_selection
from spark_groupsource.monitor.tables import TableQuery, read_rows


def connect(bootstrap: Any, **kafka: Any) -> Cluster:
    """Returns a client of a cluster.

    Args:
        bootstrap: ``host:port`` of one or more brokers, separated by commas, or an `EmbeddedBroker`.
        kafka: settings of the Kafka client, with ``_`` or ``.`` in their names (``security_protocol="SASL_SSL"``).
    Raises: ConfigurationError for an invalid address and unknown or invalid settings; NetworkError if no broker is
        reachable.

    Examples:
        >>> cluster = connect("localhost:9092")
        >>> cluster.group("billing").lag()
    """
    address = str(getattr(bootstrap, "bootstrap_servers", bootstrap))
    settings = {name.replace("_", "."): _text(value) for name, value in kafka.items()}
    parsed = ClientSettings.parse({**settings, "bootstrap.servers": address})
    client = ClusterClient(parsed.bootstrap, parsed)
    try:
        client.metadata(())
    except BaseException:
        client.close()
        raise
    return Cluster(client, address)


class Cluster:
    """Topics and groups of a cluster; each call reads them again. A context manager.

    `topic` and `group` are names or regular expressions, separated by commas; None selects all.
    """

    def __init__(self, client: ClusterClient, address: str) -> None:
        self._client = client
        self._address = address

    def topics(self, topic: str | None = None) -> Result:
        """Returns the topics; internal ones only if `topic` selects them."""
        return self._read("topics", topic=topic)

    def partitions(self, topic: str | None = None) -> Result:
        """Returns the partitions of the topics with their offsets and sizes."""
        return self._read("partitions", topic=topic)

    def groups(self, group: str | None = None) -> Result:
        """Returns the consumer groups."""
        return self._read("groups", group=group)

    def group(self, name: str) -> Group:
        """Returns one consumer group, which need not exist yet."""
        return Group(self, name)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Cluster({self._address!r})"

    def _read(self, table: str, *, group: str | None = None, topic: str | None = None) -> Result:
        definition = TABLES[table]
        query = TableQuery(
            table,
            frozenset(column.name for column in definition.columns),
            None if group is None else parse_selection("group", group),
            None if topic is None else parse_selection("topic", topic),
        )
        return Result(definition, read_rows(self._client, query))


class Group:
    """One consumer group; each call reads it again."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self.name = name

    def lag(self, topic: str | None = None) -> Result:
        """Returns the partitions of the group with their lag in offsets, time and bytes."""
        return self._cluster._read("lag", group=self.name, topic=topic)

    def members(self) -> Result:
        """Returns the members with their partitions."""
        return self._cluster._read("members", group=self.name)

    def offsets(self, topic: str | None = None) -> Result:
        """Returns the committed offsets."""
        return self._cluster._read("offsets", group=self.name, topic=topic)

    def history(self) -> Result:
        """Returns the rebalances: from events where there are some, else from the history in `__consumer_offsets`."""
        return self._cluster._read("rebalances", group=self.name)

    def why(self, last: int | None = 5) -> Explanation:
        """Explains the last rebalances in sentences and names the settings to change; None for all."""
        return read_history(self._cluster._client, self.name).explain(last)

    def __repr__(self) -> str:
        return f"Group({self.name!r})"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
