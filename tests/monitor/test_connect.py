"""``connect``: topics, groups and lag without Spark; public names."""

from __future__ import annotations

import pydoc
from typing import Any

import pytest
from support.topics import create_topic, produce
from support.waiting import wait_until

import spark_groupsource as gs
from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.errors import ConfigurationError, NetworkError
from spark_groupsource.model import OffsetAndMetadata, TopicPartition
from spark_groupsource.monitor.tables.definitions import TABLES
from spark_groupsource.monitor.tables.results import Result


def test_lag_of_a_group(cluster: Any, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap_servers, topic, 2)
    produce(cluster.bootstrap_servers, topic, [(0, None, b"x")] * 5)
    with gs.connect(cluster.bootstrap_servers, client_id="notebook", check_crcs=True) as found:
        # private: the interface of notebooks commits nothing
        found._client.commit(group, {TopicPartition(topic, 0): OffsetAndMetadata(3)})
        assert repr(found) == f"Cluster('{cluster.bootstrap_servers}')"
        lag = found.group(group).lag()
        assert len(lag) == 1 and [row["lag"] for row in lag] == [2]
        assert lag.arrow().column("lag").to_pylist() == [2]
        head, row, _ = repr(lag).splitlines()
        assert head.split()[:6] == ["topic", "partition", "client_id", "current_offset", "log_end_offset", "lag"]
        assert row.split()[:6] == [topic, "0", "-", "3", "5", "2"]
        assert f">{topic}</td>" in lag._repr_html_()
        assert len(found.group(group).members()) == 0
        assert [row["current_offset"] for row in found.group(group).offsets(topic)] == [3]
        assert [row["partition_count"] for row in found.topics(topic)] == [2]
        assert len(found.partitions(topic)) == 2
        assert group in [row["group"] for row in found.groups()]


def test_few_requests_for_many_partitions_and_only_for_the_selected_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    send = BrokerConnection.send

    def counted(connection: BrokerConnection, request: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(type(request).__name__.removesuffix("Request"))
        return send(connection, request, *arguments, **options)

    with gs.EmbeddedBroker(topics={"flights": 200, "weather": 3}) as broker, gs.connect(broker) as cluster:
        broker.produce("flights", range(400))
        commits = {TopicPartition("flights", n): OffsetAndMetadata(1) for n in range(200)}
        # private: the interface of notebooks commits nothing
        cluster._client.commit("billing", commits)
        cluster._client.commit("other", {TopicPartition("weather", 0): OffsetAndMetadata(0)})
        cluster.group("billing").lag()
        monkeypatch.setattr(BrokerConnection, "send", counted)
        offsets = cluster.group("billing").lag(by="offsets")
        assert len(offsets) == 200
        assert sorted(sent) == ["DescribeGroups", "ListOffsets", "Metadata", "OffsetFetch"]
        sent.clear()
        rows = list(cluster.group("billing").lag())
        assert all(row["lag"] == 1 and row["lag_ms"] >= 0 and row["lag_bytes"] > 0 for row in rows)
        # one for the log end offsets, three for the commits of the last minute
        assert sent.count("Fetch") <= 3 and sent.count("ListOffsets") == 4 and len(sent) < 15
        sent.clear()
        # a pattern selects groups before their offsets are requested, a topic the partitions
        # private: the public methods have one selection each
        assert len(cluster._read("offsets", group="bil.*", topic="flights")) == 200
        assert len(cluster._read("offsets", group="bil.*", topic="weath.*")) == 0
        assert sent.count("OffsetFetch") == 2 and sent.count("ListGroups") == 2


def test_a_result_is_bounded_and_escaped() -> None:
    result = Result(TABLES["topics"], [{"topic": f"<b>{n}\n"} for n in range(25)])
    assert len(repr(result).splitlines()) == 22 and repr(result).endswith("and 5 more rows")
    assert "&lt;b&gt;0\\n" in result._repr_html_() and "<b>" not in result._repr_html_()
    assert repr(Result(TABLES["topics"], [])).endswith("no rows")


@pytest.mark.usefixtures("short_retries")
def test_invalid_settings_and_addresses() -> None:
    with pytest.raises(ConfigurationError, match="Option security.protocoll is unknown. Did you mean security.p"):
        gs.connect("localhost:9092", security_protocoll="SSL")
    with pytest.raises(NetworkError, match="No Kafka broker is reachable"):
        gs.connect("127.0.0.1:1")


def test_only_public_names_are_shown() -> None:
    functions = ["connect", "register", "run_available_now", "run_until_signal", "stop_gracefully", "timeline", "watch"]
    public = ["Cluster", "EmbeddedBroker", "Group", "LagListener", "__version__", *functions]
    assert dir(gs) == sorted(gs.__all__) == public
    text = pydoc.render_doc(gs, renderer=pydoc.plaintext)
    assert "connect(bootstrap" in text and "class EmbeddedBroker" in text and gs.__version__ in text
    assert "import_module" not in text and "TYPE_CHECKING" not in text


def test_connections_are_closed_with_the_last_reference() -> None:
    # of its own: other tests' connections may end meanwhile
    with gs.EmbeddedBroker(topics={"flights": 1}) as broker:
        cluster = gs.connect(broker)
        # private: the interface of notebooks commits nothing
        cluster._client.commit("unnamed", {TopicPartition("flights", 0): OffsetAndMetadata(0)})
        assert broker.call(lambda _: broker.connection_count) > 0
        group = cluster.group("unnamed")
        del cluster
        assert len(group.offsets()) == 1
        del group
        wait_until(lambda: broker.call(lambda _: broker.connection_count) == 0, "the connections are closed")
