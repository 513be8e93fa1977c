"""Rebalance events of the embedded coordinator and in commit metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from support.clients import POLL_MS, group_client, open_cluster, polling, settle
from support.members import LibrdkafkaMember
from support.topics import create_topic
from support.waiting import wait_until

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.membership.group_client import GroupClient
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import OffsetAndMetadata
from spark_groupsource.monitor.rebalances.event_rebalances import rebalances_from_events
from spark_groupsource.monitor.rebalances.event_sources import file_events, group_events
from spark_groupsource.monitor.rebalances.group_history import read_groups
from spark_groupsource.monitor.rebalances.rebalance import Cause, Origin, Rebalance
from spark_groupsource.monitor.selection import NameSelection
from spark_groupsource.source.group.rebalance_reports import RebalanceReports
from spark_groupsource.wire.commit_reports import author_metadata
from spark_groupsource.wire.group_events import GROUP_EVENTS_TOPIC
from spark_groupsource.wire.messages import LeaveGroupRequest


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"group.initial.rebalance.delay.ms": "0"}) as running:
        yield running


def rebalances(client: ClusterClient, group: str) -> list[Rebalance]:
    return rebalances_from_events(group_events(client, NameSelection((group,))).get(group, ()))


def wait_for(client: ClusterClient, group: str, cause: Cause, after: int = 0) -> Rebalance:
    """The last rebalance of a cause after a generation; the broker writes events a moment later.

    A rebalance may follow by itself: a leader that joined before it knew the new topic joins again.
    """

    def found() -> Rebalance | None:
        matching = (r for r in reversed(rebalances(client, group)) if r.cause is cause and r.generation > after)
        return next(matching, None)

    rebalance = wait_until(found, f"a rebalance of cause {cause.value}")
    assert rebalance is not None and rebalance.origins["cause"] is Origin.SEEN
    return rebalance


@pytest.mark.slow
def test_causes_and_actors_of_own_and_foreign_members(broker: EmbeddedBroker) -> None:
    servers, group, topic = broker.bootstrap_servers, "mixed", "mixed"
    create_topic(servers, topic, 4)
    with open_cluster(servers, metadata_max_age_ms="200") as client, group_client(client, group, topic) as ours:
        settle(ours, 4)
        first = wait_for(client, group, Cause.JOINED)
        assert first.members == 1
        with LibrdkafkaMember(servers, group, topic, client_id="foreign", partition_assignment_strategy="range"):
            view = settle(ours, 2)
            joined = wait_for(client, group, Cause.JOINED, after=first.generation)
            assert joined.actor is not None and joined.actor.client_id == "foreign"
            assert (joined.members, joined.partitions_moved, joined.generation) == (2, 2, view.generation_id)
            # an eager member reads nothing from its JoinGroup on
            assert joined.unowned_seconds is not None and 0 < joined.unowned_seconds < 60
        settle(ours, 4)
        left = wait_for(client, group, Cause.LEFT)
        assert left.actor is not None and left.actor.client_id == "foreign"
        admin_client = AdminClient({"bootstrap.servers": servers})
        admin_client.create_partitions([NewPartitions(topic, 5)])[topic].result(10)
        settle(ours, 5)
        changed = wait_for(client, group, Cause.PARTITIONS_CHANGED)
        assert (changed.reason, changed.actor and changed.actor.client_id) == ("cached metadata has changed", "app-0")
        # as Kafka's admin client removes members
        member_id = ours.view.members[0].member_id
        identity = LeaveGroupRequest.MemberIdentity(
            member_id=member_id, group_instance_id=None, reason="member was removed by an admin"
        )
        with open_cluster(servers, client_id="operator") as admin:
            admin.call_coordinator(group, LeaveGroupRequest(group_id=group, members=[identity]), 5_000, min_version=3)
        removed = wait_for(client, group, Cause.REMOVED_BY_OPERATOR)
        assert removed.actor is not None and removed.actor.member_id == member_id


def test_topic_of_events_is_not_listed(broker: EmbeddedBroker) -> None:
    servers = broker.bootstrap_servers
    with open_cluster(servers) as client, group_client(client, "listed", "listed") as ours:
        create_topic(servers, "listed", 1)
        settle(ours, 1)
        wait_until(lambda: rebalances(client, "listed"), "the rebalance is recorded")
        admin = AdminClient({"bootstrap.servers": servers})
        assert GROUP_EVENTS_TOPIC not in admin.list_topics(timeout=10).topics
        described = admin.list_topics(GROUP_EVENTS_TOPIC, timeout=10).topics[GROUP_EVENTS_TOPIC]
        assert len(described.partitions) == 1 and described.error is None
    (entry,) = [broker.call(lambda node: node.partitions.topics[GROUP_EVENTS_TOPIC])]
    assert (entry.settings["cleanup.policy"], entry.settings["retention.ms"]) == ("delete", "604800000")


def test_events_that_cannot_be_written_do_not_affect_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(records: object) -> None:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "No space left on device.")

    with EmbeddedBroker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        # of this broker alone: another one would record nothing for a minute
        monkeypatch.setattr(broker.call(lambda node: node.group_coordinator.event_log), "_append", fail)
        create_topic(broker.bootstrap_servers, "t", 2)
        with open_cluster(broker.bootstrap_servers) as client, group_client(client, "g", "t") as ours:
            settle(ours, 2)
            ours.commit({tp: OffsetAndMetadata(1) for tp in ours.view.partitions})
            wait_until(lambda: any("Recording events" in line for line in broker.reports), "the failure is reported")
            assert group_events(client) == {}


def test_reports_of_our_members_on_any_kafka(cluster: Any, topic: str, group: str, tmp_path: Any) -> None:
    servers, path = cluster.bootstrap_servers, tmp_path / "rebalances.jsonl"
    create_topic(servers, topic, 4)
    with open_cluster(servers) as client, group_client(client, group, topic, client_id="a") as first:
        reports = RebalanceReports(
            first, group, SystemClock(), str(path), "flights", lambda: {"name": "enrich", "first_record": None}
        )
        first.poll(POLL_MS)
        commit(first, reports, 1)
        with group_client(client, group, topic, client_id="b") as second, polling(second):
            view = settle(first, 2)
            reports.batch_started()
            reports.batch_ended()
            reports.append_to_file()
            commit(first, reports, 2)
            # the same report is not repeated
            assert reports.pending() == ""
        events = read_groups(client, NameSelection((group,)))[group].reports
        last = rebalances_from_events(events)[-1]
        assert (last.generation, last.origins["phases"]) == (view.generation_id, Origin.SEEN)
        assert last.phases.join_ms is not None and last.phases.first_record_ms is not None
        assert last.phases.batch_ms is not None
        assert {(event.application, event.query) for event in events} == {("flights", "enrich")}
        started = rebalances_from_events(events)[0]
        assert started.cause is Cause.JOINED and started.actor is not None
        assert (started.actor.client_id, started.actor.application, started.actor.query) == ("a-0", "flights", "enrich")
        generations = {rebalance.generation for rebalance in rebalances_from_events(file_events(path))}
        assert generations >= {started.generation, last.generation}


def commit(client: GroupClient, reports: RebalanceReports, offset: int) -> None:
    report = reports.pending()
    assert report and len(report) < 1_000
    first, *others = client.view.partitions
    metadata = author_metadata("0123456789abcdef")
    offsets = {tp: OffsetAndMetadata(offset, metadata) for tp in others}
    client.commit({**offsets, first: OffsetAndMetadata(offset, f"{metadata} {report}")})
    reports.committed()
