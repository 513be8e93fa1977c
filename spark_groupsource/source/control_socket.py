"""The control socket of a query's reader process: for the driver's Python, and readers of the same application.

One line of JSON each way. The driver asks for a drain, ``{"drain": true, "proof": <offset or null>}``, repeated as
often as there is a new proof; answer, once: ``{"drained": true}``. A reader of the same group that waits asks
``{"group": <group id>, "least_ms": <n>}``; answer: ``{"standing": <value of PeerReply>}``. The socket lies in a
directory of this user alone, named by the driver JVM.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any, Callable

from spark_groupsource.errors import NetworkError, RequestTimeoutError
from spark_groupsource.net import LocalChannel, LocalListener
from spark_groupsource.source.co_readers import PeerReply
from spark_groupsource.source.driver_process import is_process_alive, private_directory, sweep

_log = logging.getLogger(__name__)

_SLICE_MS = 100
_NAME_LENGTH = 16  # of a reader's 32 hex digits: paths of sockets are limited to about 100 characters


def control_directory(driver: int) -> Path:
    """Where the readers of one driver application listen."""
    return private_directory(f"control-{driver}")


def control_sockets(driver: int, reader: str = "") -> list[Path]:
    """The control sockets of one reader: one, or two for a moment after a restart; without a name, of all."""
    pattern = f"{reader[:_NAME_LENGTH]}-*" if reader else "*-*"
    return sorted(control_directory(driver).glob(pattern))


def _sweep_sockets(directory: Path) -> None:
    """Removes what killed readers have left, one of this process's id among them."""
    for path in directory.iterdir():
        pid = int(path.name.rpartition("-")[2])
        if pid == os.getpid() or not is_process_alive(pid):
            path.unlink(missing_ok=True)


class ControlServer:
    """Listens until closed.

    Args:
        request_drain: called with each proof; tells whether the reader has drained.
        peer_reply: called with a group and how long a planned batch must have waited; tells how the reader stands.
    """

    def __init__(
        self,
        driver: int,
        reader: str,
        request_drain: Callable[[dict[str, Any] | None], bool],
        peer_reply: Callable[[str, int], PeerReply] = lambda group_id, least_ms: PeerReply.ELSEWHERE,
    ) -> None:
        sweep("control")
        self._directory = control_directory(driver)
        _sweep_sockets(self._directory)
        self._listener = LocalListener(str(self._directory / f"{reader[:_NAME_LENGTH]}-{os.getpid()}"))
        self._request_drain = request_drain
        self._tell_standing = peer_reply
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groupsource control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening and removes the socket, and the directory with the last of them."""
        self._closed.set()
        self._listener.close()
        try:
            self._directory.rmdir()
        except OSError:
            # other readers of the application still listen there
            return

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                channel = self._listener.accept(_SLICE_MS)
            except NetworkError:
                return
            if channel is not None:
                try:
                    self._serve(channel)
                except NetworkError as error:
                    _log.warning("control connection lost: %s", error)
                finally:
                    channel.close()

    def _serve(self, channel: LocalChannel) -> None:
        proof: dict[str, Any] | None = None
        asked = False
        while not self._closed.is_set():
            try:
                line = channel.receive(_SLICE_MS)
                if line is None:
                    return
                request = json.loads(line)
                if "group" in request:
                    standing = self._tell_standing(str(request["group"]), int(request["least_ms"]))
                    channel.send(json.dumps({"standing": standing.value}))
                    return
                asked, proof = bool(request["drain"]), request["proof"]
            except RequestTimeoutError:
                # no newer proof; the drain may have come about meanwhile
                pass
            except (ValueError, KeyError, TypeError) as error:
                _log.warning("control request not understood: %s", error)
                return
            if asked and self._request_drain(proof):
                channel.send(json.dumps({"drained": True}))
                return
            proof = None
