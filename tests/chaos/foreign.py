"""A foreign member that can be killed: librdkafka in a process of its own, which writes down what it was given.

Each record's position is in the file before its offset may be committed, so commits never pass what the file holds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from confluent_kafka import Consumer
from processes import popen_leashed, stop_process


class ForeignMember:
    """One run of this script; a context manager that lets it leave."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str, rows: Path, session_timeout_ms: int) -> None:
        self.rows = rows
        rows.touch()
        command = [sys.executable, __file__, bootstrap_servers, group, topic, str(rows), str(session_timeout_ms)]
        with open(rows.with_suffix(".log"), "a") as log:
            self.process = popen_leashed(command, log, log)

    def __enter__(self) -> ForeignMember:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def consumed(self) -> int:
        """Records written down so far."""
        return self.rows.read_bytes().count(b"\n")

    def stop(self) -> None:
        """SIGTERM, which lets it commit and leave."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
        stop_process(self.process, 30)


def main(bootstrap_servers: str, group: str, topic: str, rows: str, session_timeout_ms: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 200,
            "session.timeout.ms": int(session_timeout_ms),
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
        os.write(handle, b"%d %d\n" % (message.partition(), message.offset()))
        try:
            consumer.store_offsets(message)
        except Exception as error:  # its partition was taken away meanwhile
            print(error, flush=True)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
