"""Streams through Spark over each security protocol, with mechanism PLAIN.

The broker is the embedded one; `make test-matrix` runs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import certificates
from support.topics import create_topic, produce

from spark_groupsource.broker.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak]

PROTOCOLS = certificates.LISTENERS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.write_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def broker(files: Path) -> Iterator[EmbeddedBroker]:
    config = certificates.listener_config(files, *PROTOCOLS)
    with EmbeddedBroker(config=config) as running:
        yield running


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stream_logs_in(
    spark: SparkSession, broker: EmbeddedBroker, files: Path, topic: str, group: str, tmp_path: Path, protocol: str
) -> None:
    plaintext = broker.address("PLAINTEXT")
    create_topic(plaintext, topic, 2)
    produce(plaintext, topic, ((n % 2, None, b"%d" % n) for n in range(20)))
    options = {"kafka.bootstrap.servers": broker.address(protocol), "kafka.security.protocol": protocol}
    options |= {"subscribe": topic, "kafka.group.id": group, "startingOffsets": "earliest"}
    if protocol.startswith("SASL"):
        login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="secret";'
        options |= {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": login}
    if protocol.endswith("SSL"):
        options |= {"kafka.ssl.truststore.location": f"{files}/ca.pem", "kafka.ssl.truststore.type": "PEM"}
    name = f"rows_{group.replace('-', '_')}"
    rows = spark.readStream.format("groupsource").options(**options).load().selectExpr("cast(value as string) as value")
    writer = rows.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sorted(int(row.value) for row in spark.table(name).collect()) == list(range(20))
