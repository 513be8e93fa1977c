"""Outages that last longer than the timeouts of the client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients import open_cluster
from support.fake_leader import TP, FakeLeader, fake_leader
from support.session_fakes import NO_LIMITS, Query
from support.topics import create_topic, produce
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.task_heartbeat import TaskHeartbeat
from spark_groupsource.client.network.outage import Outage
from spark_groupsource.client.records.fetcher import PartitionFetcher
from spark_groupsource.common.clock import ManualClock, SystemClock
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.errors import GenerationMismatchError, GroupSourceError
from spark_groupsource.model import OffsetRange
from spark_groupsource.source.group.ownership import GroupPartitions
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.session import StreamSession

SETTINGS = {"retry_backoff_ms": "10000", "retry_backoff_max_ms": "10000", "default_api_timeout_ms": "60000"}
TEN_MINUTES = 60
"""Number of failures, with the backoff of `SETTINGS`."""


@pytest.fixture
def broker() -> Iterator[FakeLeader]:
    with fake_leader() as running:
        yield running


@pytest.fixture
def client(broker: FakeLeader) -> Iterator[ClusterClient]:
    with open_cluster(str(broker.address), **SETTINGS) as opened:
        opened.clock = ManualClock()
        yield opened


def outage(client: ClusterClient, limit_ms: int | None) -> Outage:
    return Outage("partition=t-0", client.clock, limit_ms=limit_ms, report_after_ms=60_000)


def stop_leader(broker: FakeLeader, how: str) -> None:
    """The leader of the partition is gone for ten minutes; metadata are served by the other brokers."""
    if how == "connection":
        broker.lost = TEN_MINUTES
        return
    described, remaining = broker.responses["Metadata"], [None] * TEN_MINUTES

    def metadata(request: Any, version: int) -> Any:
        response = described(request, version)
        if remaining:
            remaining.pop()
            for topic in response.topics:
                topic.partitions[0].leader_id = -1
        return response

    broker.responses["Metadata"] = metadata


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, bool]]:
    found = [(r.levelname, r.getMessage()) for r in caplog.records if "cluster" in r.getMessage()]
    return [(level, "responds again" in text) for level, text in found]


@pytest.mark.parametrize("how", ["connection", "no leader"])
def test_task_waits_for_the_leader_of_its_partition(
    broker: FakeLeader, client: ClusterClient, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stop_leader(broker, how)
    fetcher = PartitionFetcher(client, outage=outage(client, None))
    blocks = list(fetcher.fetch_blocks([OffsetRange(TP, 0, 10)]))
    assert blocks[-1].next_offset == 10 and client.clock.now_ms() > 400_000
    assert lines(caplog) == [("WARNING", False), ("INFO", True)]


@pytest.mark.parametrize("how", ["connection", "no leader"])
@pytest.mark.parametrize("limit_ms", [120_000, None])
def test_wait_for_a_leader_is_bounded(
    broker: FakeLeader, client: ClusterClient, how: str, limit_ms: int | None
) -> None:
    """By maxOutage, or as that of a batch read by default.api.timeout.ms."""
    stop_leader(broker, how)
    began_ms = client.clock.now_ms()
    known = {} if limit_ms is None else {"outage": outage(client, limit_ms)}
    with pytest.raises(GroupSourceError):
        list(PartitionFetcher(client, **known).fetch_blocks([OffsetRange(TP, 0, 10)]))
    waited_ms = client.clock.now_ms() - began_ms
    assert (limit_ms or 60_000) <= waited_ms <= (limit_ms or 60_000) + 25_000


def test_fenced_task_does_not_wait_for_the_leader(broker: FakeLeader, client: ClusterClient) -> None:
    stop_leader(broker, "no leader")
    checks = []

    def check() -> None:
        checks.append(client.clock.now_ms())
        if len(checks) > 5:
            raise GenerationMismatchError(group_id="g", member_id="m", generation_id=1, cause="test")

    fetcher = PartitionFetcher(client, outage=outage(client, None), check=check)
    with pytest.raises(GenerationMismatchError):
        list(fetcher.fetch_blocks([OffsetRange(TP, 0, 10)]))


@pytest.mark.parametrize("limit_ms", [None, 120_000])
def test_task_waits_for_its_coordinator(
    broker: FakeLeader, client: ClusterClient, limit_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "confirm_coordinator", lambda group_id, timeout_ms: None)
    monkeypatch.setattr(client, "await_loaded", lambda group_id, timeout_ms: None)
    monkeypatch.setattr(client, "has_loaded", lambda group_id: True)
    sent = []

    class Heartbeat(TaskHeartbeat):
        def send_heartbeat(self, timeout_ms: int) -> int:
            sent.append(timeout_ms)
            if len(sent) <= TEN_MINUTES:
                return 15  # COORDINATOR_NOT_AVAILABLE
            return 0

    heartbeat = Heartbeat(client, group_id="g", member_id="m", generation_id=1, outage=outage(client, limit_ms))
    if limit_ms is None:
        heartbeat.check_now()
        assert len(sent) == TEN_MINUTES + 1 and max(sent) == 60_000
    else:
        with pytest.raises(GroupSourceError, match="COORDINATOR_NOT_AVAILABLE"):
            heartbeat.check_now()
        assert len(sent) < 20


@pytest.mark.parametrize("text, expected", [(None, None), ("90s", 90_000), ("15m", 900_000)])
def test_tasks_of_a_stream_wait_as_long_as_the_query(text: str | None, expected: int | None) -> None:
    options = {} if text is None else {"maxOutage": text}
    query = Query(startingOffsets="earliest", **options)
    end = query.session.latest_offset({}, NO_LIMITS)
    assert {task.max_outage_ms for task in query.session.input_partitions({}, end)} == {expected}
    ignored = parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **options}, "batch").ignored
    assert ignored == (() if text is None else ("maxOutage",))


@pytest.mark.slow
def test_query_continues_after_an_outage_that_is_longer_than_the_timeouts(
    topic: str, group: str, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client_options = {"kafka.default.api.timeout.ms": "1200", "kafka.request.timeout.ms": "1200"}
    with EmbeddedBroker(tmp_path / "data", config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, topic, 1)
        produce(servers, topic, [(0, None, b"v")])
        options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "kafka.group.id": group, **client_options}
        parsed = parse_options({**options, "startingOffsets": "earliest"}, "stream")
        with ClusterClient(parsed.client.bootstrap, parsed.client) as client:
            session = StreamSession(client, parsed, GroupPartitions(client, parsed, SystemClock(), 1), SystemClock())
            end = session.latest_offset({}, NO_LIMITS)
            session.input_partitions({}, end)
            broker.stop()
            results: list[Any] = []
            calling = threading.Thread(target=lambda: results.append(session.latest_offset(end, NO_LIMITS)))
            calling.start()
            wait_until(lambda: "Waiting for the cluster" in caplog.text, "the warning, after the timeout")
            with EmbeddedBroker(tmp_path / "data", port=parse_addresses(servers)[0].port):
                calling.join(60)
                assert results and results[0][topic] == {"0": 1}
                assert session.latest_offset(end, NO_LIMITS)[topic] == {"0": 1}
                session.close("test")
    assert lines(caplog) == [("WARNING", False), ("INFO", True)]
