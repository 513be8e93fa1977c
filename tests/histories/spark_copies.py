"""A Spark query that copies the logs of a history exactly once."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import chaos.copying_application
from chaos.streaming_application import wait_s
from chaos.submitted_application import SubmittedApplication, signal_all
from support.topics import create_topic
from support.waiting import wait_until

from histories.clients import LibrdkafkaReader, Recorder
from histories.history import History, Operation, Polled, Sent

_SCRIPT = Path(chaos.copying_application.__file__)
_MAX_OFFSETS = 300


class SparkCopies:
    """An application with one streaming query.

    The copy of a record is in the partition of the same number, and has the offset of the record as its key.
    """

    faults = ("kill driver", "kill reader", "kill worker")

    def __init__(self, directory: Path, bootstrap_servers: str, recorder: Recorder) -> None:
        self._recorder = recorder
        self._copies = Recorder(f"{recorder.topic}-copy", recorder.partitions)
        create_topic(bootstrap_servers, self._copies.topic, recorder.partitions)
        self._bootstrap_servers = bootstrap_servers
        arguments = ["--bootstrap-servers", bootstrap_servers, "--topic", recorder.topic]
        arguments += ["--group", f"{recorder.topic}-copies", "--max-offsets", _MAX_OFFSETS]
        self._application = SubmittedApplication(recorder.topic, directory, 4, arguments, _SCRIPT)

    def wait_ready(self) -> None:
        self._application.wait_ready()

    def inject(self, fault: str) -> None:
        self.wait_ready()
        if fault == "kill driver":
            # Spark 4.3 rejects a checkpoint whose driver was killed while it wrote the first batch's offsets
            # (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY)
            wait_until(self._ends, "the first micro-batch", wait_s(), 0.2)
            self._application.process.kill()
            self._application.end()
            self._application.start()
        else:
            found = self._application.readers() if fault == "kill reader" else self._application.workers()
            signal_all(found, signal.SIGKILL)

    def operations(self) -> History:
        """Returns an operation of each micro-batch and of a reader of the copies, once all that was read is copied.

        A micro-batch has sent copies of all records between its offsets in the checkpoint.
        """
        records = sorted({polled for operation in self._recorder.history for polled in operation.polled})
        last: dict[str, int] = {}
        for log, offset, _ in records:
            last[log] = max(last.get(log, -1), offset)

        # while there is progress
        while not _reaches(known := self._ends(), last):
            what = f"another micro-batch, until {last} is copied"
            wait_until(lambda: len(self._ends()) > len(known), what, wait_s(), 0.2)
        reader = LibrdkafkaReader(self._copies, self._bootstrap_servers, "end of the copies")
        assert reader.read_to_end(lambda: False)
        reader.close()
        copied = [
            Polled(self._recorder.log(self._copies.partition(polled.log)), reader.keys[polled.value], polled.value)
            for operation in self._copies.history
            for polled in operation.polled
        ]
        found, begins = list[Operation](), dict[str, int]()
        for ends in self._ends():

            def is_within(polled: Polled) -> bool:
                return begins.get(polled.log, 0) <= polled.offset < ends.get(polled.log, 0)

            sent = [Sent(self._copies.log(self._recorder.partition(p.log)), p.value) for p in records if is_within(p)]
            read = tuple(sorted({polled for polled in copied if is_within(polled)}))
            found.append(Operation("spark", sent=tuple(sent), polled=read, is_transaction=True))
            begins = ends
        return found + self._copies.history

    def _ends(self) -> list[dict[str, int]]:
        """Returns the end offsets by log of each committed batch of the checkpoint, in order."""
        checkpoint = self._application.directory / self._copies.topic
        commits = [path.name for path in checkpoint.glob("commits/*") if path.name.isdigit()]
        found = []
        for name in sorted(commits, key=int):
            offsets = json.loads((checkpoint / "offsets" / name).read_text().splitlines()[2])
            ends = offsets.get(self._recorder.topic, {})
            found.append({self._recorder.log(int(number)): end for number, end in ends.items()})
        return found

    def close(self) -> None:
        self._application.close()


def _reaches(ends: list[dict[str, int]], last: dict[str, int]) -> bool:
    return bool(ends) and all(ends[-1].get(log, 0) > offset for log, offset in last.items())
