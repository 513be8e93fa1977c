"""Options through Spark: addresses that every read accepts, values that load() rejects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from support.topics import create_topic, produce


def test_an_address_with_a_protocol_is_read_by_streams_batches_and_tables(
    spark: Any, cluster: Any, topic: str, group: str, tmp_path: Path
) -> None:
    create_topic(cluster.bootstrap_servers, topic, 1)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"x")] * 5)
    # as a value of a Java client, with a comma that older clients ignore
    address = ",".join(f"PLAINTEXT://{each}" for each in cluster.bootstrap_servers.split(",")) + " ,"
    given = {
        "kafka.bootstrap.servers": address,
        "kafka.group.id": f" {group} ",
        "kafka.allow.auto.create.topics": "false",
        "kafka.group.protocol": "classic",
    }
    records = {**given, "subscribe": topic, "startingOffsets": "earliest"}
    assert spark.read.format("groupsource").options(**records).load().count() == 5
    name = f"addresses_{group.replace('-', '_')}"
    writer = spark.readStream.format("groupsource").options(**records).load().writeStream.format("memory")
    query = writer.queryName(name).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(180)
    assert spark.table(name).count() == 5
    table = spark.read.format("groupsource").options(**given, table="offsets", group=group).load()
    assert [(row.topic, row.current_offset) for row in table.collect()] == [(topic, 5)]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("kafka.bootstrap.servers", "SASL_SSL://host", "'SASL_SSL://host' is not host:port"),
        ("kafka.group.id", " ", "Option kafka.group.id is empty"),
        ("kafka.group.protocol", "consumer", "Accepted is classic, got 'consumer'"),
        ("kafka.session.timeout.ms", "1_0", "Option kafka.session.timeout.ms must be an integer"),
        ("kafka.partition.assignment.strategy", "fastest", "assignment.strategy must list range, roundrobin"),
        ("subscribePattern", "[a-z&&[^b]]", "Option subscribePattern must be a regular expression"),
    ],
)
def test_a_wrong_value_is_rejected_by_load(spark: Any, option: str, value: str, message: str) -> None:
    given = {"kafka.bootstrap.servers": "localhost:9092", "subscribePattern": "t", option: value}
    for reader in (spark.readStream, spark.read):
        with pytest.raises(PySparkException) as raised:
            reader.format("groupsource").options(**given).load()
        assert message in str(raised.value)
