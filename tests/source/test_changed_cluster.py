"""Streams while certificates are replaced, or a broker under the same id."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from real_kafka import free_address
from support import certificates
from support.certificates import write_pem
from support.source_process import SourceProcess

from spark_groupsource.broker.embedded import EmbeddedBroker


def replace(path: Path, *parts: str) -> None:
    """Replaces a file as cert-manager and Kubernetes do."""
    new = path.with_suffix(".new")
    write_pem(new, *parts)
    os.replace(new, path)


def read_batch(source: SourceProcess, topic: str, start: dict[str, object], expected: int) -> dict[str, object]:
    """Plans batches from `start` until one ends at offset `expected`; returns its end."""
    for _ in range(20):
        end = source.latest_offset(start)
        if end.get(topic) == {"0": expected}:
            source.call(start, end)
            source.result()
            return end
    raise AssertionError(f"the batch ends at {end}: {source.log}")


@pytest.mark.slow
def test_broker_and_client_certificates_are_replaced(topic: str, group: str, tmp_path: Path) -> None:
    """Neither end accepts the certificates that the other had before."""
    trust, own, server, clients = (tmp_path / f"{name}.pem" for name in ("trust", "own", "server", "clients"))
    replace(trust, certificates.CA)
    replace(own, certificates.KEY, certificates.CLIENT)
    replace(server, certificates.KEY, certificates.SERVER)
    replace(clients, certificates.CA)
    config = {
        "listeners": f"SSL://{free_address()}",
        "ssl.client.auth": "required",
        "ssl.keystore.location": str(server),
        "ssl.truststore.location": str(clients),
        "offsets.topic.num.partitions": "1",
    }
    login = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.location": str(trust),
        "kafka.ssl.keystore.location": str(own),
    }
    with EmbeddedBroker(tmp_path / "data", config=config, topics={topic: [b"1"]}) as broker:
        source = SourceProcess(tmp_path, broker.bootstrap_servers, topic, group, **login)
        try:
            end = read_batch(source, topic, {}, 1)
            replace(trust, certificates.RENEWED)
            replace(own, certificates.KEY, certificates.STRANGER)
            broker.stop()
            replace(server, certificates.KEY, certificates.RENEWED)
            replace(clients, certificates.STRANGER)
            with EmbeddedBroker(tmp_path / "data", config=config) as again:
                again.produce(topic, [b"2"])
                read_batch(source, topic, end, 2)
                source.stop()
        finally:
            source.kill()


@pytest.mark.slow
def test_broker_is_replaced_under_the_same_id_at_another_address(topic: str, group: str, tmp_path: Path) -> None:
    """The bootstrap servers contain the new address, as a name in DNS would."""
    first, second = free_address(), free_address()
    with EmbeddedBroker(tmp_path / "data", port=first.port, topics={topic: [b"1"]}) as broker:
        source = SourceProcess(tmp_path, f"{first},{second}", topic, group)
        try:
            end = read_batch(source, topic, {}, 1)
            broker.stop()
            with EmbeddedBroker(tmp_path / "data", port=second.port) as moved:
                moved.produce(topic, [b"2"])
                read_batch(source, topic, end, 2)
                source.stop()
        finally:
            source.kill()
