"""A topic, a group and streaming queries on them, for tests through Spark."""

from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.client.admin import describe_groups
from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.settings import ClientSettings

PARTITIONS = 4


class Bench:
    """A topic, a group, and queries that write what they read, by position, into directories of their own."""

    def __init__(self, spark, cluster, topic, group, directory):
        self.spark, self.cluster, self.topic, self.group, self.directory = spark, cluster, topic, group, directory
        self.client = Cluster(
            cluster.bootstrap_servers, ClientSettings.parse({"bootstrap.servers": cluster.bootstrap_servers})
        )
        self.produced = 0
        self.queries = []
        create_topic(cluster.bootstrap_servers, topic, PARTITIONS)

    def produce(self, count):
        rows = ((n % PARTITIONS, None, b"%d" % n) for n in range(self.produced, self.produced + count))
        self.produced += produce(self.cluster.bootstrap_servers, self.topic, rows)

    def stream(self, **options):
        defaults = {
            "kafka.bootstrap.servers": self.cluster.bootstrap_servers,
            "subscribe": self.topic,
            "kafka.group.id": self.group,
            "startingOffsets": "earliest",
            "members": "2",
            "kafka.session.timeout.ms": "6000",
            "kafka.heartbeat.interval.ms": "500",
        }
        given = {name: text for name, text in {**defaults, **options}.items() if text is not None}
        return self.spark.readStream.format("groupsource").options(**given).load()

    def start(self, name, trigger=None, **options):
        rows = self.stream(**options).selectExpr("partition", "offset", "cast(value as string) as value")
        writer = rows.writeStream.format("parquet").option("path", str(self.directory / name / "rows"))
        writer = writer.option("checkpointLocation", str(self.directory / name / "checkpoint"))
        query = (writer.trigger(**trigger) if trigger else writer).start()
        self.queries.append(query)
        return query

    def values(self, *names):
        found = []
        for name in names:
            path = self.directory / name / "rows"
            if path.exists():
                # the schema is given because a query that owns nothing yet has written no file
                written = self.spark.read.schema("value string").parquet(str(path))
                found += [int(row.value) for row in written.collect()]
        return sorted(found)

    def committed(self):
        commits = self.client.fetch_committed(self.group)
        return sum(commit.offset for commit in commits.values() if commit is not None)

    def members(self):
        return describe_groups(self.client, [self.group])[self.group].members

    def owners(self):
        group = describe_groups(self.client, [self.group])[self.group]
        return [m for m in group.members if m.assignment] if group.state == "Stable" else []

    def wait_committed(self, timeout_s=60):
        wait_until(lambda: self.committed() == self.produced, "everything is committed", timeout_s)

    def close(self):
        for query in self.queries:
            query.stop()
        self.client.close()
