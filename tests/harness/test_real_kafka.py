"""The fetched Apache Kafka and the foreign members that other tests use."""

from __future__ import annotations

from pathlib import Path

import kafka_jars
import pytest
from real_kafka import RealKafka
from support.members import JavaMember, JavaProducer, LibrdkafkaMember
from support.topics import create_topic, produce
from support.waiting import wait_until

pytestmark = pytest.mark.kafka


def test_tools_reach_the_broker(kafka: RealKafka, topic: str) -> None:
    create_topic(kafka.bootstrap_servers, topic, 3)
    listed = kafka.tool(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.bootstrap_servers, "--list"
    )
    assert listed.returncode == 0
    assert topic in listed.stdout.splitlines()


def test_java_and_librdkafka_members_share_a_group(kafka: RealKafka, topic: str, group: str) -> None:
    create_topic(kafka.bootstrap_servers, topic, 4)
    produce(kafka.bootstrap_servers, topic, ((n % 4, None, b"%d" % n) for n in range(400)))
    with LibrdkafkaMember(kafka.bootstrap_servers, group, topic) as ours:
        ours.wait_for_partitions(4)
        wait_until(lambda: sum(ours.seen.values()) == 400, "librdkafka reads all records")
        with JavaMember(kafka.bootstrap_servers, group, topic) as java:
            assert java.wait_for_partitions(2).isdisjoint(ours.wait_for_partitions(2))
        ours.wait_for_partitions(4)


def test_java_producer_reports_each_acknowledgement(kafka: RealKafka, topic: str) -> None:
    create_topic(kafka.bootstrap_servers, topic)
    with JavaProducer(kafka.bootstrap_servers, topic, 20) as producer:
        assert sorted(event["offset"] for event in producer.finish()) == list(range(20))


def test_rejected_setting_is_named() -> None:
    with pytest.raises(kafka_jars.UnavailableError, match="process.roles"):
        RealKafka({"process.roles": "dishwasher"}).start()


def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(kafka_jars.UnavailableError, match="Install Java 17"):
        kafka_jars.java()


def test_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(kafka_jars.UnavailableError, match="is Java 11; Java 17 or newer"):
        kafka_jars.java()


def test_unreachable_repository_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="nowhere"/><resolvers>'
        f'<filesystem name="nowhere"><artifact pattern="{tmp_path}/[artifact].[ext]"/></filesystem>'
        "</resolvers></ivysettings>"
    )
    monkeypatch.setenv("GROUPSOURCE_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(kafka_jars.UnavailableError, match="GROUPSOURCE_IVY_SETTINGS"):
        kafka_jars.spark_connector_jars()
    assert not list((tmp_path / "cache" / "groupsource").glob("spark*/"))
