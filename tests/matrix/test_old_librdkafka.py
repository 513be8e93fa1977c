"""Old librdkafka versions on both clusters: codecs, groups, transactions, SASL.

Releases before 2.16 decide by the lowest advertised versions whether a broker has codecs and SASL (KAFKA-18659).
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from support.old_librdkafka import CODECS, RELEASES, run_with
from support.raw_broker import RawConnection, fetch
from support.topics import create_topic

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.records.header import iter_batches

USER, PASSWORD = "ann", "secret"
# newer Pythons have no wheels of the oldest releases
AVAILABLE = [release for release, newest in RELEASES.items() if sys.version_info[:2] <= newest]
OLDEST = AVAILABLE[:1]
pytestmark = [pytest.mark.kafka, pytest.mark.skipif(not AVAILABLE, reason="no old release has wheels for this Python")]


def expected(release: str) -> dict[str, Any]:
    seen = sorted(f"{partition} {record} xxxxx" for partition in range(len(CODECS)) for record in range(3))
    return {"release": release, "seen": seen, "committed": [3] * len(CODECS)}


def stored_codecs(bootstrap_servers: str, topic: str) -> list[set[str]]:
    """The codecs of the first batches of each partition."""
    with RawConnection(bootstrap_servers) as connection:
        fetched = [fetch(connection, topic, 0, partition=number) for number in range(len(CODECS))]
    return [{CODECS[next(iter_batches(bytes(each.records))).codec]} for each in fetched]


@pytest.mark.parametrize("release", AVAILABLE)
def test_codecs_groups_and_transactions(cluster: Any, topic: str, group: str, release: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, len(CODECS))
    settings = {"bootstrap.servers": cluster.bootstrap_servers}
    returned = run_with(release, settings=settings, topic=topic, group=group)
    assert returned == {**expected(release), "transactional": [["0 kept"], 2]}
    assert stored_codecs(cluster.bootstrap_servers, topic) == [{codec} for codec in CODECS]


@pytest.mark.parametrize(
    ("release", "mechanism"), [*((each, "SCRAM-SHA-256") for each in AVAILABLE), *((each, "PLAIN") for each in OLDEST)]
)
def test_login(secured: EmbeddedBroker, topic: str, group: str, release: str, mechanism: str) -> None:
    settings = {
        "bootstrap.servers": secured.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD,
    }  # fmt: skip
    secured.call(lambda broker: broker.create_topic(topic, len(CODECS), {}))
    returned = run_with(release, settings=settings, topic=topic, group=group, transactions=False)
    assert returned == expected(release)


@pytest.fixture(scope="module")
def secured() -> Any:
    """The embedded broker with authentication."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    config = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{module} required user_{USER}="{PASSWORD}";',
        "group.initial.rebalance.delay.ms": "0",
    }
    users = [f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"]
    with EmbeddedBroker(config=config, add_scram=users) as broker:
        yield broker
