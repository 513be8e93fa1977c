"""Values of confluent-kafka's serializers, through a schema registry."""

from __future__ import annotations

import pytest
from schema_registry import SchemaRegistryServer
from support import registry_checks

# importing the serializers takes longer than all other tests of this directory
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checks(embedded):
    with SchemaRegistryServer() as registry:
        found = registry_checks.RegistryChecks(embedded.bootstrap_servers, registry.url)
        yield found
        found.close()


@pytest.mark.parametrize("name", registry_checks.CHECKS)
def test_values_are_read_as_they_were_serialized(checks, name: str) -> None:
    getattr(checks, name)()
