"""Cluster of a query or a table: address and client settings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Mapping

from spark_groupsource.client.network.security import bootstrap_text
from spark_groupsource.client.settings import ClientSettings, check_names
from spark_groupsource.common.net import parse_addresses
from spark_groupsource.errors import ConfigurationError

UNRESOLVED = "localhost:9092"
"""Placeholder for the address of an embedded broker that is not started yet."""


def is_embedded(bootstrap_servers: str) -> bool:
    """Returns True for ``embedded`` and ``embedded:DIR``."""
    return bootstrap_servers.strip().split(":", 1)[0].lower() == "embedded"


@dataclass(frozen=True)
class ClusterOptions:
    """The ``kafka.*`` settings of connections, parsed.

    Attributes:
        bootstrap_servers: the address as given, possibly ``embedded`` or ``embedded:DIR``; empty without one.
    """

    bootstrap_servers: str = ""
    client: ClientSettings = field(default=ClientSettings(parse_addresses(UNRESOLVED)), repr=False)

    @property
    def is_embedded(self) -> bool:
        return is_embedded(self.bootstrap_servers)

    def client_settings(self, bootstrap_servers: str) -> ClientSettings:
        """Returns the client's settings with the address that `bootstrap_servers` was resolved to."""
        return replace(self.client, bootstrap=parse_addresses(bootstrap_servers))


def parse_cluster(kafka: Mapping[str, str], *, is_required: bool = True) -> tuple[str, ClientSettings]:
    """Parses ``kafka.*`` options, given without the prefix; returns the two fields of `ClusterOptions`.

    Raises: ConfigurationError for a missing address, and as `ClientSettings.parse`.
    """
    address = bootstrap_text(kafka)
    if is_required and not address:
        # a misspelled name is the cause
        check_names(kafka)
        check_address(address)
    return address, ClientSettings.parse({**kafka, "bootstrap.servers": usable_address(address)})


def check_address(address: str) -> None:
    """Raises: ConfigurationError for a missing address."""
    if not address:
        raise ConfigurationError(
            "Option kafka.bootstrap.servers is missing. Give host:port of a broker, or embedded for an embedded broker."
        )


def usable_address(address: str) -> str:
    """Returns an address for `ClientSettings`: a placeholder for one of an embedded broker, and for none."""
    return UNRESOLVED if is_embedded(address) or not address else address
