"""The producing side of the demonstration: flights into a topic at a steady pace, held back where the story waits."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

from flights import Flight

from spark_groupsource.client.cluster.client import Cluster
from spark_groupsource.client.records.partitioner import partition_of_key
from spark_groupsource.client.records.producer import BatchProducer
from spark_groupsource.client.settings import ClientSettings
from spark_groupsource.clock import SystemClock
from spark_groupsource.model import TopicPartition
from spark_groupsource.records.encode import Record

TICK_MS = 100
LZ4 = 3


class Feed:
    """A thread that produces `total` flights keyed by carrier, in `duration_s` when nothing holds it back.

    `allow(share)` lets it go on to that share of the flights. An error in the thread is raised by `check()`.
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
        self._allowed = 0
        self._gate = threading.Condition()
        self._stopped = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._gate:
            self._stopped = True
            self._gate.notify_all()
        self._thread.join(30)

    def allow(self, share: float) -> None:
        """Lets the feed go on until `share` of all flights is produced."""
        with self._gate:
            self._allowed = round(self.total * share)
            self._gate.notify_all()

    @property
    def waits(self) -> bool:
        """True when everything allowed so far is produced and acknowledged."""
        return self.produced >= self._allowed

    def check(self) -> None:
        """Raises what the thread failed with."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with Cluster(self._settings.bootstrap, self._settings) as cluster:
                self._produce(cluster)
        except Exception as error:
            # raised again where someone looks: in the thread that tells the story
            self._failure = error

    def _produce(self, cluster: Cluster) -> None:
        clock = SystemClock()
        producer = BatchProducer(cluster, codec=LZ4)
        due_ms = clock.now_ms()
        while self.produced < self.total:
            with self._gate:
                held = self.waits
                self._gate.wait_for(lambda: self._stopped or not self.waits)
                if self._stopped:
                    return
                end = min(self.produced + self._per_tick, self._allowed)
            now_ms = clock.now_ms()
            due_ms = now_ms if held else max(due_ms, now_ms - 1000)
            clock.sleep_ms(due_ms - now_ms)
            due_ms += TICK_MS
            batches: dict[TopicPartition, list[Record]] = defaultdict(list)
            timestamp_ms = clock.timestamp_ms()
            for flight in islice(self._flights, end - self.produced):
                partition = partition_of_key(flight.carrier, self._partitions)
                batches[TopicPartition(self._topic, partition)].append(
                    Record(flight.carrier, flight.value, timestamp_ms)
                )
            producer.send(batches)
            self.produced = end
