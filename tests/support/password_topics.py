"""Topics of a broker with passwords, and the options to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from support.topics import produce

from spark_groupsource.broker.embedded import EmbeddedBroker

PASSWORD = "hush-7c1f94"
PARTITIONS = 4
RECORDS = 1_200
"""In each topic."""
_USER = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@contextmanager
def password_topics(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields the options of the source for these topics, all but the password."""
    config = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{_USER} user_ann="{PASSWORD}";',
    }
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ann"}
    with EmbeddedBroker(topics=dict.fromkeys(names, PARTITIONS), config=config) as broker:
        for topic in names:
            records = [(number % PARTITIONS, None, b"%d" % number) for number in range(RECORDS)]
            produce(broker.bootstrap_servers, topic, records, **login, **{"sasl.password": PASSWORD})
        login["bootstrap.servers"] = broker.bootstrap_servers
        yield {f"kafka.{name}": value for name, value in login.items()}
