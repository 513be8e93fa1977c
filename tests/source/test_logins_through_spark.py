"""Streams through Spark with each login: security protocols, SASL mechanisms, client certificates.

The broker is the embedded one; `make test-matrix` runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import certificates
from support.token_endpoint import Endpoint
from support.topics import create_topic, produce

from spark_groupsource.broker.embedded import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak]

USERS = [f"{mechanism}=[name=ann,password=secret]" for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")]
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="secret";'
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="secret";'
CLIENT_CERTIFICATE = "SSL-client-certificate"
# security protocol and more, as in docs/runtimes-matrix.md -> options
LOGINS: dict[str, dict[str, str]] = {
    "PLAINTEXT": {},
    "SSL": {},
    CLIENT_CERTIFICATE: {"ssl.keystore.location": "{files}/client.pem", "ssl.keystore.type": "PEM"},
    "SASL_PLAINTEXT-PLAIN": {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN},
    "SASL_SSL-PLAIN": {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN},
    "SASL_SSL-SCRAM-SHA-256": {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": SCRAM},
    "SASL_SSL-SCRAM-SHA-512": {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": SCRAM},
    "SASL_SSL-OAUTHBEARER": {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "{endpoint}",
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": "hush",
    },
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.write_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with Endpoint() as running:
        yield running.url


@pytest.fixture(scope="module")
def brokers(files: Path) -> Iterator[Mapping[bool, EmbeddedBroker]]:
    """Whether it requires a client certificate -> broker."""
    config = {
        **certificates.listener_config(files, *certificates.LISTENERS),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    }
    required = {**certificates.listener_config(files, "PLAINTEXT", "SSL"), "ssl.client.auth": "required"}
    with EmbeddedBroker(config=config, add_scram=USERS) as first, EmbeddedBroker(config=required) as second:
        yield {False: first, True: second}


@pytest.mark.parametrize("login", LOGINS)
def test_stream_logs_in(
    spark: SparkSession,
    brokers: Mapping[bool, EmbeddedBroker],
    files: Path,
    endpoint: str,
    topic: str,
    group: str,
    tmp_path: Path,
    login: str,
) -> None:
    broker, protocol = brokers[login == CLIENT_CERTIFICATE], login.partition("-")[0]
    plaintext = broker.address("PLAINTEXT")
    create_topic(plaintext, topic, 2)
    produce(plaintext, topic, ((n % 2, None, b"%d" % n) for n in range(20)))
    options = {"bootstrap.servers": broker.address(protocol), "security.protocol": protocol, **LOGINS[login]}
    if protocol.endswith("SSL"):
        options |= {"ssl.truststore.location": f"{files}/ca.pem", "ssl.truststore.type": "PEM"}
    options = {f"kafka.{key}": value.format(files=files, endpoint=endpoint) for key, value in options.items()}
    options |= {"subscribe": topic, "kafka.group.id": group, "startingOffsets": "earliest"}
    name = f"rows_{group.replace('-', '_')}"
    rows = spark.readStream.format("groupsource").options(**options).load().selectExpr("cast(value as string) as value")
    writer = rows.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sorted(int(row.value) for row in spark.table(name).collect()) == list(range(20))
