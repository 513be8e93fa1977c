"""Clients of kafka-python close their sockets."""

from __future__ import annotations

import gc
import warnings

import pytest
from kafka.net.transport import KafkaTCPTransport
from support.kafka_python import KafkaConsumer
from support.raw_broker import RawConnection, create_topic

from spark_groupsource.broker.embedded import EmbeddedBroker


@pytest.mark.slow
def test_a_client_with_unsent_bytes_closes_its_socket(embedded: EmbeddedBroker, topic: str) -> None:
    with RawConnection(embedded.bootstrap_servers) as connection:
        create_topic(connection, topic)
    consumer = KafkaConsumer(topic, bootstrap_servers=embedded.bootstrap_servers, group_id=None)
    consumer.poll(100)
    gc.collect()
    with warnings.catch_warnings(record=True) as caught, pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("always")
        patched.setattr(KafkaTCPTransport, "_sock_send", lambda transport: (0, None))
        consumer.poll(0)
        consumer.close()
        del consumer
        gc.collect()
    assert [str(each.message) for each in caught if each.category is ResourceWarning] == []
