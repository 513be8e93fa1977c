"""Requests for many ACLs and settings: steps, limits and responses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator

import pytest
from support.step_calls import StepCalls, calls_of_steps

from spark_groupsource.broker.acls import MAX_ACLS, Acl, Authorizer
from spark_groupsource.broker.api import acl_requests as acls
from spark_groupsource.broker.api import config_requests as configs
from spark_groupsource.broker.api import topic_requests as topics
from spark_groupsource.broker.api.dispatch import RequestDispatcher
from spark_groupsource.broker.api.served_versions import SERVED
from spark_groupsource.broker.config import broker_config
from spark_groupsource.broker.node import Broker
from spark_groupsource.broker.requests import ApiRequestContext
from spark_groupsource.broker.storage.data_directory import DataDirectory
from spark_groupsource.common.clock import ManualClock
from spark_groupsource.common.coroutines import run_at_once
from spark_groupsource.errors import ApiError, ErrorCode
from spark_groupsource.model import Node
from spark_groupsource.wire.messages import (
    CreateAclsRequest,
    CreateTopicsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)

CONTEXT = ApiRequestContext(1, 30, 3, "c", "127.0.0.1", 1, principal="User:admin")
ANYTHING = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
_Creation = CreateAclsRequest.AclCreation


def creation(name: str, principal: str = "User:ann") -> _Creation:
    return _Creation(
        resource_type=2, resource_name=name, resource_pattern_type=3, principal=principal, host="*", operation=3,
        permission_type=3,
    )  # fmt: skip


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    config = broker_config(
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
        }
    )
    running = Broker(config, DataDirectory(tmp_path), ManualClock(), lambda token, response: None, lambda *line: None)
    running.start()
    running.node_started(1, {"PLAINTEXT": Node(1, "127.0.0.1", 9092)})
    yield running
    running.stop()


def authorizer(broker: Broker) -> Authorizer:
    assert broker.authorizer is not None
    return broker.authorizer


def create(broker: Broker, names: list[str]) -> StepCalls:
    creations = [creation(name) for name in names]
    return calls_of_steps(acls.create_acls(broker, CONTEXT, CreateAclsRequest(creations=creations)))


def has_short_steps(done: StepCalls) -> bool:
    return max(done.in_steps) < sum(done.in_steps) / 10


def test_many_acls_are_created_described_and_deleted_in_steps(broker: Broker) -> None:
    names = [f"t-{number:04}" for number in range(5_000)]
    created = create(broker, names)
    assert {each.error_code for each in created.response.results} == {ErrorCode.NONE}
    assert has_short_steps(created) and created.in_worker == 1
    described = calls_of_steps(acls.describe_acls(broker, CONTEXT, DescribeAclsRequest(**ANYTHING)))
    assert [resource.resource_name for resource in described.response.resources] == names
    # the first step selects the entries: it has a call for each
    assert described.in_steps[0] < 3 * len(names) and max(described.in_steps[1:]) < sum(described.in_steps) / 10
    filters = [DeleteAclsRequest.DeleteAclsFilter(**{**ANYTHING, "resource_name_filter": name}) for name in names[:40]]
    deleted = calls_of_steps(acls.delete_acls(broker, CONTEXT, DeleteAclsRequest(filters=filters)))
    assert [len(each.matching_acls) for each in deleted.response.filter_results] == [1] * 40
    assert has_short_steps(deleted) and deleted.in_worker == 1
    # private: what is left
    assert [acl.resource_name for acl in authorizer(broker)._acls] == names[40:]


def test_a_request_that_selects_acls_many_times_returns_a_limited_number(broker: Broker) -> None:
    create(broker, [f"t-{number}" for number in range(MAX_ACLS)])
    filters = [DeleteAclsRequest.DeleteAclsFilter(**ANYTHING) for _ in range(6)]
    deleted = calls_of_steps(acls.delete_acls(broker, CONTEXT, DeleteAclsRequest(filters=filters)))
    found = [(each.error_code, len(each.matching_acls)) for each in deleted.response.filter_results]
    assert found == [(ErrorCode.NONE, MAX_ACLS)] * 2 + [(ErrorCode.POLICY_VIOLATION, 0)] * 4


def test_a_request_creates_a_limited_number_of_acls(broker: Broker) -> None:
    created = create(broker, ["t"] * (MAX_ACLS + 1))
    assert {each.error_code for each in created.response.results} == {ErrorCode.POLICY_VIOLATION}
    # private: nothing is stored
    assert authorizer(broker)._acls == () and has_short_steps(created)


@pytest.mark.parametrize("character", ["x", "\N{GRINNING FACE}"])
def test_the_texts_of_all_acls_have_a_limited_size(tmp_path: Path, broker: Broker, character: str) -> None:
    checked = authorizer(broker)
    room = 2_000_000 // (910 * len(character.encode()))
    fits = [Acl(2, f"{number:05}" + character * 890, 3, "User:a", "*", 3, 3) for number in range(room)]
    checked.change(fits)
    more = [each._replace(principal="User:b") for each in fits[: room // 2]]
    with pytest.raises(ApiError, match="The texts of all ACLs have at most 2,000,000 bytes") as raised:
        checked.change(more)
    assert raised.value.code == ErrorCode.INVALID_REQUEST
    checked.change((), fits[1:])
    assert json.loads((tmp_path / "acls.json").read_bytes())["acls"] == [list(fits[0])]


def test_a_request_changes_a_limited_number_of_settings(broker: Broker) -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    changes = [resource.AlterableConfig(name=f"own.{n}", config_operation=0, value="") for n in range(MAX_ACLS + 1)]
    altered = resource(resource_type=4, resource_name="", configs=changes)
    request = IncrementalAlterConfigsRequest(resources=[altered], validate_only=True)
    (result,) = calls_of_steps(configs.incremental_alter_configs(broker, CONTEXT, request)).response.responses
    assert result.error_code == ErrorCode.POLICY_VIOLATION
    assert result.error_message.startswith("A request changes at most 10,000 settings, got 10,001.")
    topic = CreateTopicsRequest.CreatableTopic
    named = [topic.CreatableTopicConfig(name=f"own.{n}", value=None) for n in range(MAX_ACLS + 1)]
    made = topic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=named)
    creating = CreateTopicsRequest(topics=[made], timeout_ms=0, validate_only=True)
    (created,) = calls_of_steps(topics.create_topics(broker, CONTEXT, creating)).response.topics
    assert created.error_code == ErrorCode.POLICY_VIOLATION


def test_the_names_in_the_error_of_a_setting_without_a_value_are_limited(broker: Broker) -> None:
    topic = CreateTopicsRequest.CreatableTopic
    named = [topic.CreatableTopicConfig(name=f"own.{n}", value=None) for n in range(8)]
    made = topic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=named)
    creating = CreateTopicsRequest(topics=[made], timeout_ms=0, validate_only=True)
    (created,) = calls_of_steps(topics.create_topics(broker, CONTEXT, creating)).response.topics
    assert created.error_message.endswith("own.0, own.1, own.2, own.3, own.4 and 3 more")


def test_the_response_of_a_coroutine_is_completed(broker: Broker) -> None:
    authorizer(broker).change([Acl(2, "t", 4, "User:ann", "*", 8, 3)])
    for name in ("t-0", "other-0"):
        run_at_once(broker.create_topic(name, 1, {}))
    sent: dict[int, Any] = {}
    completions: dict[int, Any] = {}

    def run(token: int, work: Any, *_: int, **__: bool) -> None:
        sent[token] = run_at_once(work)

    dispatcher = RequestDispatcher(broker, SERVED, sent.__setitem__, run, completions.__setitem__)
    context = CONTEXT._replace(api_key=3, api_version=8, principal="User:ann")
    request = MetadataRequest(
        topics=None, allow_auto_topic_creation=False, include_cluster_authorized_operations=False,
        include_topic_authorized_operations=True,
    )  # fmt: skip
    dispatcher.handle(context, request)
    assert {topic.name for topic in completions[1](sent[1]).topics} == {"t-0"}
