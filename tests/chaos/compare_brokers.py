"""Compares the responses of embedded broker and Kafka to random requests.

    PYTHONPATH=jobs:tests python tests/chaos/compare_brokers.py [--requests 5000] [--seed N] [--kafka HOST:PORT]

The requests create and change topics, write and read records, form groups and transactions; some are slightly invalid
(`support.random_requests`). A sequence has topics, groups and transactional ids of its own. Times, generated ids and
texts of errors may differ. Waiting requests (JoinGroup, SyncGroup) must wait and end on both.

Exits with status 1 and the shortest sequence found that leads to the first difference.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack

from real_kafka import RealKafka
from support.clusters import BROKER_CONFIG
from support.compared_sequences import compare

from spark_groupsource.broker.embedded import EmbeddedBroker


def main() -> None:
    """Runs the comparison on an embedded broker and a real Kafka that it starts, or on the Kafka that is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--kafka", help="bootstrap server of a Kafka with one node")
    options = parser.parse_args()
    with ExitStack() as stack:
        kafka = options.kafka or stack.enter_context(RealKafka(BROKER_CONFIG)).bootstrap_servers
        embedded = stack.enter_context(EmbeddedBroker(config=BROKER_CONFIG)).bootstrap_servers
        began_s = time.monotonic()
        report = compare(embedded, kafka, options.seed, options.requests)
    if report:
        sys.exit("\n".join(report))
    seconds = time.monotonic() - began_s
    print(f"seed {options.seed}: {options.requests} requests in {seconds:.0f} s, all responses are equal")


if __name__ == "__main__":
    main()
