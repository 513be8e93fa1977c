"""The clusters tests run on, and the settings their brokers have."""

from __future__ import annotations

from typing import NamedTuple

# few partitions of __consumer_offsets: Kafka creates them one by one when the first group appears
BROKER_CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}
# records stamped in the past would go with the first look at retention, five minutes into a run
BROKER_CONFIG["log.retention.ms"] = "-1"


class Cluster(NamedTuple):
    """A running cluster as a client sees it; `name` is ``embedded`` or ``kafka``."""

    name: str
    bootstrap_servers: str
