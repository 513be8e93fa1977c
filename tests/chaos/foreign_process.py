"""Process of a librdkafka member.

``foreign_process.py BOOTSTRAP GROUP TOPIC FILE SESSION_TIMEOUT_MS ASSIGNOR``.

Each position is written to the file before its offset can be committed, so commits are never ahead of the file.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from confluent_kafka import Consumer


def main(bootstrap_servers: str, group: str, topic: str, rows: str, timeout_ms: str, assignor: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 200,
            "session.timeout.ms": int(timeout_ms),
            "partition.assignment.strategy": assignor,
            "heartbeat.interval.ms": 500,
        }
    )
    consumer.subscribe([topic])
    handle = os.open(rows, os.O_WRONLY | os.O_APPEND)
    while not ended.is_set():
        message = consumer.poll(0.05)
        if message is None:
            continue
        if message.error():
            print(message.error(), flush=True)
            continue
        os.write(handle, f"{message.partition()} {message.offset()}\n".encode())
        try:
            consumer.store_offsets(message)
        except Exception as error:  # the partition was revoked
            print(error, flush=True)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
