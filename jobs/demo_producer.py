"""Demo producer: flights at a constant rate, up to a limit."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

from flights import Flight

from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.records.producer import BatchProducer, encoded
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.common.clock import SystemClock
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import Record
from spark_groupsource.records.key_partitions import partition_of_key

TICK_MS = 100
LZ4 = 3


class FlightProducer:
    """A thread that produces `total` flights keyed by carrier, within `duration_s` if it is not paused.

    `resume_until(share)` sets the share of the flights at which it pauses; `raise_error()` raises its error, if any.
    """

    def __init__(
        self,
        settings: ClientSettings,
        topic: str,
        partitions: int,
        flights: Iterator[Flight],
        total: int,
        duration_s: float,
    ) -> None:
        self.produced = 0
        self.total = total
        self._settings = settings
        self._topic = topic
        self._partitions = partitions
        self._flights = flights
        self._per_tick = max(1, round(total * TICK_MS / (duration_s * 1000)))
        self._limit = 0
        self._condition = threading.Condition()
        self._is_stopped = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="flight-producer", daemon=True)

    def __enter__(self) -> FlightProducer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._is_stopped = True
            self._condition.notify_all()
        self._thread.join(30)

    def resume_until(self, share: float) -> None:
        """Continues until `share` of all flights is produced."""
        with self._condition:
            self._limit = round(self.total * share)
            self._condition.notify_all()

    @property
    def is_paused(self) -> bool:
        """True when all flights up to the limit are produced and acknowledged."""
        return self.produced >= self._limit

    def raise_error(self) -> None:
        """Raises the error that ended the thread, if any."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with ClusterClient(self._settings.bootstrap, self._settings) as cluster:
                self._produce(cluster)
        except Exception as error:
            # raised in the main thread by raise_error
            self._error = error

    def _produce(self, cluster: ClusterClient) -> None:
        clock = SystemClock()
        producer = BatchProducer(cluster)
        due_ms = clock.now_ms()
        while self.produced < self.total:
            with self._condition:
                was_paused = self.is_paused
                self._condition.wait_for(lambda: self._is_stopped or not self.is_paused)
                if self._is_stopped:
                    return
                end = min(self.produced + self._per_tick, self._limit)
            now_ms = clock.now_ms()
            due_ms = now_ms if was_paused else max(due_ms, now_ms - 1000)
            clock.sleep_ms(due_ms - now_ms)
            due_ms += TICK_MS
            batches: dict[TopicPartition, list[Record]] = defaultdict(list)
            timestamp_ms = clock.timestamp_ms()
            for flight in islice(self._flights, end - self.produced):
                partition = partition_of_key(flight.carrier, self._partitions)
                batches[TopicPartition(self._topic, partition)].append(
                    Record(flight.carrier, flight.value, timestamp_ms)
                )
            producer.send(batch for tp, records in batches.items() for batch in encoded(tp, records, LZ4))
            self.produced = end
