"""A topic, a group and streaming queries on them, through Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from support import clusters
from support.file_sink import committed_rows
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.settings import ClientSettings

PARTITIONS = 4


class QueryHarness:
    """A topic whose values are 0, 1, 2..., a group, and queries that write their rows as Parquet files.

    `produced` is the number of records in the topic.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        cluster: clusters.Cluster,
        topic: str,
        group: str,
        directory: Path,
        replication_factor: int = 1,
    ) -> None:
        self.spark: Any = spark
        self.cluster, self.topic, self.group, self.directory = cluster, topic, group, directory
        settings = ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})
        self.client = ClusterClient(settings.bootstrap, settings)
        self.produced = 0
        self.queries: list[Any] = []
        create_topic(cluster.bootstrap_servers, topic, PARTITIONS, replication_factor=replication_factor)

    def produce(self, count: int) -> None:
        rows = ((n % PARTITIONS, None, b"%d" % n) for n in range(self.produced, self.produced + count))
        self.produced += produce(self.cluster.bootstrap_servers, self.topic, rows)

    def stream(self, **options: str | None) -> DataFrame:
        defaults = {
            "kafka.bootstrap.servers": self.cluster.bootstrap_servers,
            "subscribe": self.topic,
            "kafka.group.id": self.group,
            "startingOffsets": "earliest",
            "members": "2",
            "splitBetweenQueries": "true",
            "kafka.session.timeout.ms": "6000",
            "kafka.heartbeat.interval.ms": "500",
        }
        given = {name: text for name, text in {**defaults, **options}.items() if text is not None}
        frame: DataFrame = self.spark.readStream.format("groupsource").options(**given).load()
        return frame

    def start(self, name: str, trigger: Mapping[str, Any] | None = None, **options: str | None) -> Any:
        """Starts a query whose rows and checkpoint are in the directory `name`."""
        rows = self.stream(**options).selectExpr("partition", "offset", "cast(value as string) as value")
        writer = rows.writeStream.format("parquet").option("path", str(self.directory / name / "rows"))
        writer = writer.option("checkpointLocation", str(self.directory / name / "checkpoint"))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        self.queries.append(query)
        return query

    def values(self, *names: str) -> list[int]:
        """Returns the values that the queries have written, sorted."""
        found: list[int] = []
        for name in names:
            rows = committed_rows(self.directory / name / "rows")
            found += map(int, rows["value"].to_pylist()) if rows is not None else []
        return sorted(found)

    def committed(self) -> int:
        """Returns the sum of the committed offsets."""
        commits = self.client.fetch_committed(self.group)
        return sum(commit.offset for commit in commits.values() if commit is not None)

    def members(self) -> Any:
        return describe_groups(self.client, [self.group])[self.group].members

    def owners(self) -> list[Any]:
        """Returns the members that own partitions, of a stable group."""
        group = describe_groups(self.client, [self.group])[self.group]
        return [m for m in group.members if m.assignment] if group.state == "Stable" else []

    def wait_committed(self, timeout_s: float = 60) -> None:
        wait_until(lambda: self.committed() == self.produced, "everything is committed", timeout_s, 0.1)

    def close(self) -> None:
        for query in self.queries:
            query.stop()
        self.client.close()
