"""Kafka's ``kafka-configs`` on clients and users: what it prints of both brokers."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from support.clusters import Cluster
from support.java_tools import JavaTools

CONFIGS = "kafka.admin.ConfigCommand"

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def java() -> Iterator[JavaTools]:
    with JavaTools() as tools:
        yield tools


def test_nobody_has_a_quota(cluster: Cluster, java: JavaTools) -> None:
    for kind in ("clients", "ips", "users"):
        told = java.run(CONFIGS, "--bootstrap-server", cluster.bootstrap_servers, "--describe", "--entity-type", kind)
        assert told == "", kind


def test_credentials_of_users_come_and_go(cluster: Cluster, java: JavaTools) -> None:
    user = f"user-{uuid4().hex[:8]}"
    of_user = ["--bootstrap-server", cluster.bootstrap_servers, "--entity-type", "users", "--entity-name", user]
    assert java.run(CONFIGS, *of_user, "--describe") == ""
    for added in ("SCRAM-SHA-512=[password=y]", "SCRAM-SHA-256=[iterations=8192,password=x]"):
        told = java.run(CONFIGS, *of_user, "--alter", "--add-config", added)
        assert told == f"Completed updating config for user {user}."
    twice = "SCRAM-SHA-256=[password=x],SCRAM-SHA-512=[password=y]"
    told = java.run(CONFIGS, *of_user, "--alter", "--add-config", twice)
    assert "A user credential cannot be altered twice in the same request" in told
    described = f"SCRAM credential configs for user-principal '{user}' are "
    both = f"{described}SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096"
    assert java.run(CONFIGS, *of_user, "--describe") == both
    gone = java.run(CONFIGS, *of_user, "--alter", "--delete-config", "SCRAM-SHA-256")
    assert gone == f"Completed updating config for user {user}."
    assert java.run(CONFIGS, *of_user, "--describe") == f"{described}SCRAM-SHA-512=iterations=4096"
    again = java.run(CONFIGS, *of_user, "--alter", "--delete-config", "SCRAM-SHA-256")
    assert "Attempt to delete a user credential that does not exist" in again
    few = java.run(CONFIGS, *of_user, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=5,password=x]")
    assert "iterations" in few.lower()
    java.run(CONFIGS, *of_user, "--alter", "--delete-config", "SCRAM-SHA-512")
    assert java.run(CONFIGS, *of_user, "--describe") == ""
