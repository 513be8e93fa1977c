"""Control socket of a reader process: drains, finished batches, co-readers.

One line of JSON in each direction. The driver requests a drain with ``{"drain": true, "proof": <offset or null>}``,
repeated for each new proof, and receives ``{"drained": true}`` once. A co-reader sends
``{"group": <group id>, "min_age_ms": <n>}`` and receives ``{"reply": <value of PeerReply>}``. Table ``queries`` sends
``{"status": true}`` and receives the state of the reader, or ``{"events": true}`` and
receives ``{"events": [...]}``, the events of its members. A listener of the driver sends ``{"finished": <end offset>}``
after a batch and receives nothing. The sink of a query that writes exactly once sends
``{"transaction": <fields of TransactionRequest>}`` and receives the fields of `TransactionReply`. The sockets of an
application are in one private directory named after the driver JVM; each reader holds a lock on it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from spark_groupsource.common.net import LocalChannel, LocalListener
from spark_groupsource.errors import GroupSourceError, NetworkError, RequestTimeoutError
from spark_groupsource.source.control_client import PeerReply, TransactionReply, TransactionRequest
from spark_groupsource.source.process.driver_process import (
    application_name,
    lock_directory,
    private_directories,
    private_directory,
    process_identity,
    remove_stale_directories,
    temporary_directory,
)

_log = logging.getLogger(__name__)

_POLL_MS = 100
# a client sends its request at once, unless its process is frozen
_REQUEST_MS = 5_000
_NO_WAIT_MS = 1
_RETRY_MS = 1_000
_NAME_LENGTH = 16  # of 32 hex digits of a reader's name: the path of a socket is limited to about 100 characters


def control_directory(driver: int) -> Path:
    """Returns the directory of the control sockets of one application."""
    return private_directory(_directory_name(driver), temporary_directory(driver))


def _directory_name(driver: int) -> str:
    return f"control-{application_name(driver)}"


def control_sockets(driver: int, reader: str = "") -> list[Path]:
    """Returns the control sockets of one reader (two for a moment after a restart), or of all readers."""
    pattern = f"{reader[:_NAME_LENGTH]}[-.]*" if reader else "*-*"
    try:
        return sorted(control_directory(driver).glob(pattern))
    except OSError:
        # no usable directory for temporary files, so no sockets
        return []


def all_control_sockets() -> list[Path]:
    """Returns the control sockets of all readers of this user, of every application with this `TMPDIR`.

    Raises: ConfigurationError as `control_directory`.
    """
    return [path for directory in private_directories("control") for path in sorted(directory.glob("*-*"))]


def reader_of(path: Path) -> str:
    """Returns the beginning of the name of the reader that serves a control socket."""
    return path.name.rpartition("-")[0].partition(".")[0]


def pid_of(path: Path) -> int:
    """Returns the process id of the reader that serves a control socket."""
    return int(path.name.rpartition("-")[2])


def has_transactional_id(path: Path, transactional_id: str) -> bool:
    """Returns whether the reader of a control socket, which may have ended, has this transactional id."""
    return path.name.rpartition("-")[0].endswith(_label(transactional_id))


def _label(transactional_id: str | None) -> str:
    if transactional_id is None:
        return ""
    return f".{hashlib.blake2b(transactional_id.encode(), digest_size=3).hexdigest()}"


def is_first_reader(driver: int, subject: str) -> bool:
    """Returns True for the first caller among the readers of an application, so that it alone logs about `subject`."""
    try:
        (control_directory(driver) / subject).touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        # no usable directory for temporary files: each reader logs it
        return True
    return True


def _remove_stale_sockets(directory: Path) -> None:
    """Removes the sockets of killed readers, one of a previous process with this process id among them."""
    for path in directory.glob("*-*"):
        pid = pid_of(path)
        if pid == os.getpid() or not process_identity(pid):
            path.unlink(missing_ok=True)


class ControlServer:
    """Serves the control socket on a thread until closed.

    Args:
        request_drain: called with each proof; returns True once the reader has drained.
        peer_reply: called with a group id and the minimum age of a planned batch, see `CoReaders.reply`.
        status: returns the state of the reader as JSON values.
        events: returns the events of the reader's members as JSON values.
        batch_finished: called with the end offset of each batch that Spark has checkpointed.
        transaction: called with the transaction of a batch's output, see `TransactionReply`.
        available_now: called to limit the query to the records that exist now.
        idle: called about every 100 ms while there is no request.
        transactional_id: of the query, see `has_transactional_id`.

    Raises: NetworkError, OSError when the socket cannot be created; ConfigurationError as `private_directory`.
    """

    def __init__(
        self,
        driver: int,
        reader: str,
        request_drain: Callable[[dict[str, Any] | None], bool] = lambda proof: False,
        peer_reply: Callable[[str, int], PeerReply] = lambda group_id, min_age_ms: PeerReply.OTHER_GROUP,
        status: Callable[[], Mapping[str, Any]] = dict,
        events: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
        batch_finished: Callable[[dict[str, Any]], None] = lambda end: None,
        transaction: Callable[[TransactionRequest], TransactionReply] = lambda request: TransactionReply(),
        available_now: Callable[[], None] = lambda: None,
        idle: Callable[[], None] = lambda: None,
        transactional_id: str | None = None,
    ) -> None:
        self._parent = temporary_directory(driver)
        remove_stale_directories("control", self._parent)
        directory, self._directory_lock = lock_directory(_directory_name(driver), self._parent)
        try:
            _remove_stale_sockets(directory)
            name = f"{reader[:_NAME_LENGTH]}{_label(transactional_id)}-{os.getpid()}"
            self._listener = LocalListener(str(directory / name))
        except BaseException:
            self._directory_lock.release()
            raise
        self._request_drain = request_drain
        self._peer_reply = peer_reply
        self._status = status
        self._events = events
        self._batch_finished = batch_finished
        self._transaction = transaction
        self._available_now = available_now
        self._idle = idle
        # connections of drains that have not ended
        self._drains: list[LocalChannel] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groupsource control", daemon=True)
        self._thread.start()

    @property
    def path(self) -> str:
        """Path of the socket."""
        return self._listener.path

    def close(self) -> None:
        """Closes and removes the socket, and the directory with the last socket."""
        self._closed.set()
        self._listener.close()
        self._directory_lock.release()
        remove_stale_directories("control", self._parent)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._run_once()
        finally:
            for channel in self._drains:
                channel.close()

    def _run_once(self) -> None:
        try:
            channel = self._listener.accept(_POLL_MS)
        except NetworkError as error:
            # without file descriptors, for example
            if not self._closed.wait(_RETRY_MS / 1000):
                _log.warning("[socket=%s] %s", self.path, error)
            return
        if channel is None:
            self._run_idle()
        elif self._guarded(self._serve, channel):
            self._drains.append(channel)
        else:
            channel.close()
        # a drain waits for the batch in flight, and that may wait for a request of its output
        for drain in list(self._drains):
            if not self._guarded(self._continue_drain, drain):
                self._drains.remove(drain)
                drain.close()

    def _run_idle(self) -> None:
        try:
            self._idle()
        except Exception:
            # the next call of Spark raises what ends the query
            _log.exception("[socket=%s] The group could not be followed between two batches.", self.path)

    def _guarded(self, serve: Callable[[LocalChannel], bool], channel: LocalChannel) -> bool:
        """Returns the result of `serve`; False after an error, because one request must not end the thread."""
        try:
            return serve(channel)
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("[socket=%s] Control request is malformed: %s", self.path, error)
        except Exception as error:
            _log.warning("[socket=%s] Control connection failed: %s: %s", self.path, type(error).__name__, error)
        return False

    def _serve(self, channel: LocalChannel) -> bool:
        """Serves one request; returns True for a drain that has not ended."""
        line = channel.receive(_REQUEST_MS)
        if line is None:
            return False
        request = json.loads(line)
        if "status" in request:
            events = {"events": list(self._events())} if request["events"] else {}
            channel.send(json.dumps({**self._status(), **events}))
        elif "finished" in request:
            self._batch_finished(request["finished"])
        elif "available_now" in request:
            self._available_now()
            channel.send(json.dumps({"prepared": True}))
        elif "transaction" in request:
            reply = self._transaction(TransactionRequest(**request["transaction"]))
            channel.send(json.dumps(asdict(reply)))
        elif "group" in request:
            peer = self._peer_reply(str(request["group"]), int(request["min_age_ms"]))
            channel.send(json.dumps({"reply": peer.value}))
        else:
            return bool(request["drain"]) and self._drain(channel, request["proof"])
        return False

    def _continue_drain(self, channel: LocalChannel) -> bool:
        """Returns False once the reader has drained, or the client has closed the connection."""
        try:
            line = channel.receive(_NO_WAIT_MS)
        except RequestTimeoutError:
            # no new proof; the reader may have drained meanwhile
            return self._drain(channel, None)
        return line is not None and self._drain(channel, json.loads(line)["proof"])

    def _drain(self, channel: LocalChannel, proof: dict[str, Any] | None) -> bool:
        if not self._has_drained(proof):
            return True
        channel.send(json.dumps({"drained": True}))
        return False

    def _has_drained(self, proof: dict[str, Any] | None) -> bool:
        try:
            return self._request_drain(proof)
        except GroupSourceError as error:
            # the next call of Spark commits, too
            _log.warning("[socket=%s] Drain failed, retrying: %s", self.path, error)
            return False
