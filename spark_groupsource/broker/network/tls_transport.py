"""TLS between the socket of a client and its `Connection`.

asyncio's own TLS allocates 256 KiB per connection, counts connections after the handshake only, and does the work of
handshakes of thousands of clients at once. Here the bytes pass the shared buffer of the listener, a connection counts
when it is accepted, and each step of a handshake runs in a time slice of the scheduler.

Source: Kafka `SslTransportLayer`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any, Callable, Mapping

from spark_groupsource.broker.network.connection import Connection, ConnectionOwner
from spark_groupsource.broker.network.scheduler import Task

# two TLS records: what a connection holds outside of the limits of requests
_READ_BYTES = 32_768


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a client's socket, and the transport of its `Connection`.

    Args:
        on_handshake: is called with the certificate of the client, None without one.
    """

    def __init__(
        self,
        connection: Connection,
        owner: ConnectionOwner,
        context: ssl.SSLContext,
        on_handshake: Callable[[Mapping[str, Any] | None], None],
    ) -> None:
        super().__init__()
        self._connection = connection
        self._owner = owner
        self._on_handshake = on_handshake
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: Any = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw: asyncio.Transport | None = None
        self._handshake: Task | None = None
        self._is_reading_paused = False
        self._is_ended_by_client = False

    # --- protocol of the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        self._connection.is_in_handshake = True
        self._connection.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # see Connection.connection_lost
        vars(self._raw).pop("_read_ready_cb", None)
        self._raw = None
        if self._handshake is not None:
            self._handshake.cancel()
        self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._owner.receive_buffer[: min(self._owner.requests.read_bytes, _READ_BYTES)]

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self._owner.receive_buffer[:nbytes])
        if self._connection.is_in_handshake:
            assert self._raw is not None
            self._raw.pause_reading()
            self._handshake = Task(self._do_handshake)
            self._owner.scheduler.submit(self._handshake)
        else:
            self._read()

    def eof_received(self) -> bool:
        if self._connection.is_in_handshake:
            return False
        self._is_ended_by_client = True
        self._read()
        return True

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    # --- TLS ---

    def _do_handshake(self) -> bool:
        """Runs one step of the handshake, which takes a signature at most. Never continues without new bytes."""
        self._handshake = None
        if self._raw is None or self._raw.is_closing():
            return False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            self._raw.resume_reading()
            return False
        except (ssl.SSLError, OSError) as error:
            self._flush()  # the alert
            text = f"[client={self._connection.peer}] Closing the connection: TLS handshake failed: {error}."
            self._owner.broker.report(text, logging.INFO)
            self._raw.close()
            return False
        self._flush()
        self._connection.is_in_handshake = False
        self._on_handshake(self._tls.getpeercert())
        if not self._is_reading_paused:
            self._raw.resume_reading()
        self._read()
        return False

    def _read(self) -> None:
        """Passes decrypted bytes to the connection until it pauses reading or no complete TLS record is left."""
        while self._raw is not None and not self._is_reading_paused and not self._raw.is_closing():
            try:
                buffer = self._connection.get_buffer(-1)
                count = self._tls.read(len(buffer), buffer)
            except ssl.SSLWantReadError:
                if self._is_ended_by_client:
                    self._end()
                break
            except ssl.SSLZeroReturnError:
                self._end()
                break
            except (ssl.SSLError, OSError) as error:
                self._connection.reject(f"TLS failed: {error}.")
                break
            if not count:
                self._end()
                break
            self._connection.buffer_updated(count)
        self._flush()

    def _end(self) -> None:
        self._is_reading_paused = True
        if not self._connection.eof_received():
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending and self._raw is not None:
            self._raw.write(self._outgoing.read())

    # --- transport of the connection ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._raw is None or self._raw.is_closing():
            return
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLError:  # the client has ended TLS
            self._raw.abort()
        self._flush()

    def close(self) -> None:
        if self._raw is None:
            return
        if not self._connection.is_in_handshake:
            try:
                self._tls.unwrap()  # writes close_notify, and does not wait for that of the client
            except (ssl.SSLError, OSError):
                pass
            self._flush()
        self._raw.close()

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw is None or self._raw.is_closing()

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        if self._raw is not None:
            self._raw.resume_reading()
            # decrypted bytes wait; not now, because the connection may be handling others
            asyncio.get_running_loop().call_soon(self._read)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size() if self._raw is not None else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default) if self._raw is not None else default
