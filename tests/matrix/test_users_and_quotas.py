"""Client quotas and SCRAM users with ``kafka-configs`` on both clusters."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from support.clusters import Cluster
from support.java_tools import CONFIGS, JavaTools

pytestmark = pytest.mark.kafka


def test_describe_quotas_is_empty(cluster: Cluster, java: JavaTools) -> None:
    for kind in ("clients", "ips", "users"):
        servers = cluster.bootstrap_servers
        returned = java.run(CONFIGS, "--bootstrap-server", servers, "--describe", "--entity-type", kind)
        assert returned == "", kind


@pytest.fixture
def of_user(cluster: Cluster, java: JavaTools) -> Iterator[list[str]]:
    """Arguments for a new user, whose credentials are removed after the test."""
    name = f"user-{uuid4()}"
    arguments = ["--bootstrap-server", cluster.bootstrap_servers, "--entity-type", "users", "--entity-name", name]
    yield arguments
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        java.run(CONFIGS, *arguments, "--alter", "--delete-config", mechanism)


def test_scram_credentials_are_added_and_removed(of_user: list[str], java: JavaTools) -> None:
    user = of_user[-1]

    def alter(verb: str, config: str) -> str:
        return java.run(CONFIGS, *of_user, "--alter", verb, config)

    def described() -> set[str]:
        """The mechanisms in no order, which a real broker does not keep."""
        returned = java.run(CONFIGS, *of_user, "--describe")
        return set(returned.removeprefix(f"SCRAM credential configs for user-principal '{user}' are ").split(", "))

    assert described() == {""}
    for added in ("SCRAM-SHA-512=[password=y]", "SCRAM-SHA-256=[iterations=8192,password=x]"):
        assert alter("--add-config", added) == f"Completed updating config for user {user}."
    twice = alter("--add-config", "SCRAM-SHA-256=[password=x],SCRAM-SHA-512=[password=y]")
    assert "A user credential cannot be altered twice in the same request" in twice
    assert described() == {"SCRAM-SHA-256=iterations=8192", "SCRAM-SHA-512=iterations=4096"}
    assert alter("--delete-config", "SCRAM-SHA-256") == f"Completed updating config for user {user}."
    assert described() == {"SCRAM-SHA-512=iterations=4096"}
    again = alter("--delete-config", "SCRAM-SHA-256")
    assert "Attempt to delete a user credential that does not exist" in again
    assert "iterations" in alter("--add-config", "SCRAM-SHA-256=[iterations=5,password=x]").lower()
    alter("--delete-config", "SCRAM-SHA-512")
    assert described() == {""}
