"""The clusters that tests run on, and the settings of their brokers."""

from __future__ import annotations

from typing import NamedTuple

# few partitions, because Kafka creates those of __consumer_offsets one by one for the first group
BROKER_CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}
# the first retention check, after five minutes, would delete records with old timestamps
BROKER_CONFIG["log.retention.ms"] = "-1"


class Cluster(NamedTuple):
    """A running cluster; `name` is ``embedded`` or ``kafka``."""

    name: str
    bootstrap_servers: str
