"""Producer of numbered records that retries during broker outages."""

from __future__ import annotations

import threading
from collections.abc import Callable

from confluent_kafka import Producer


class NumberedProducer:
    """Produces 0, 1, 2, … to all partitions in turn; `acknowledged` are the numbers that the broker stored.

    `is_idempotent`: a retry after an outage stores nothing twice.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, partitions: int, records_per_s: int, is_idempotent: bool = False
    ) -> None:
        self._topic, self._partitions, self._records_per_s = topic, partitions, records_per_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "linger.ms": 5,
                "log_level": 0,
                "enable.idempotence": is_idempotent,
            }
        )
        self.acknowledged: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the producer did not send its last records within 120 s"

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.05):
            for _ in range(self._records_per_s // 20):
                self._producer.produce(
                    self._topic,
                    b"%d" % number,
                    partition=number % self._partitions,
                    on_delivery=self._on_delivery(number),
                )
                number += 1
            self._producer.poll(0)
        self._producer.flush(100)

    def _on_delivery(self, number: int) -> Callable[[object, object], None]:
        return lambda error, _: None if error else self.acknowledged.add(number)
