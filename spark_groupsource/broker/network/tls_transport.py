"""TLS between the socket of a client and its `Connection`.

asyncio's own TLS allocates 256 KiB per connection, counts connections after the handshake only, and does the work of
handshakes of thousands of clients at once. Here the bytes pass the shared buffer of the listener, a connection counts
when it is accepted, and each step of a handshake runs in a time slice.

OpenSSL keeps its buffers as large as they have ever been, and needs 35 kB for an incomplete record. So it gets complete
records only, in pieces, and makes the records of a response in pieces too; received bytes that are not decrypted count
as those of an incomplete request.

Source: Kafka `SslTransportLayer`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any, Callable, Mapping

from spark_groupsource.broker.network.client_connection import Connection, ConnectionOwner
from spark_groupsource.broker.network.tls_handshakes import HandshakeQueue
from spark_groupsource.common.coroutines import call_in_turn

# two TLS records: what is received at a time
_READ_BYTES = 32_768
_PIECE_BYTES = 8_192
_WRITTEN_AT_ONCE_BYTES = 262_144
_HEADER_BYTES = 5
_MAX_RECORD_BYTES = 16_384 + 2_048 + _HEADER_BYTES
_RECORD_TYPES = range(20, 25)


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """The protocol of a client's socket, and the transport of its `Connection`.

    Args:
        on_handshake: is called with the certificate of the client, None without one.

    Attributes: `is_pending`, whether the next step of the handshake is the broker's.
    """

    def __init__(
        self,
        connection: Connection,
        owner: ConnectionOwner,
        context: ssl.SSLContext,
        handshakes: HandshakeQueue,
        on_handshake: Callable[[Mapping[str, Any] | None], None],
    ) -> None:
        super().__init__()
        self._connection = connection
        self._owner = owner
        self._context = context
        self._handshakes = handshakes
        self._on_handshake = on_handshake
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._encrypted = bytearray()  # received, not passed to TLS
        self._complete_bytes = 0  # of them, those of complete records
        self._tls: Any = None  # until the handshake begins
        self._raw: asyncio.Transport | None = None
        self.is_pending = False
        self._is_reading_paused = False
        self._is_ended_by_client = False
        self._error: Exception | None = None

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
        self._handshakes.remove(self)
        self._encrypted.clear()
        self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._owner.receive_buffer[: min(self._owner.requests.read_bytes, _READ_BYTES)]

    def buffer_updated(self, nbytes: int) -> None:
        self._encrypted += self._owner.receive_buffer[:nbytes]
        self._find_complete_records()
        if not self._connection.is_in_handshake:
            self._read()
            return
        self._connection.set_encrypted_bytes(len(self._encrypted))
        if self._complete_bytes and not self.is_pending and self._raw is not None:
            self.is_pending = True
            self._raw.pause_reading()
            self._handshakes.add(self)

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

    # --- records ---

    def _find_complete_records(self) -> None:
        """Finds the end of the complete records; TLS gets and rejects what is none."""
        data, end = self._encrypted, self._complete_bytes
        while len(data) - end >= _HEADER_BYTES:
            size = _HEADER_BYTES + int.from_bytes(data[end + 3 : end + _HEADER_BYTES], "big")
            if data[end] not in _RECORD_TYPES or size > _MAX_RECORD_BYTES:
                end = len(data)
            elif end + size > len(data):
                break
            else:
                end += size
        self._complete_bytes = end

    def _pass_piece(self) -> bool:
        """Passes some bytes of complete records to TLS; returns False if there are none."""
        size = min(self._complete_bytes, _PIECE_BYTES)
        if size:
            self._incoming.write(self._encrypted[:size])
            del self._encrypted[:size]
            self._complete_bytes -= size
        return size > 0

    # --- TLS ---

    def start_step(self) -> None:
        """Is called by the queue of handshakes: runs the next step in a time slice."""
        if self._tls is None:
            self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        call_in_turn(self._do_handshake)

    def reject(self, reason: str) -> None:
        self._connection.reject(reason)

    def _do_handshake(self) -> None:
        """Runs one step of the handshake, which takes a signature at most. Never continues without new bytes."""
        self.is_pending = False
        if self._raw is None or self._raw.is_closing():
            return
        try:
            is_complete = self._has_shaken_hands()
        except (ssl.SSLError, OSError) as error:
            self._flush()  # the alert
            text = f"[client={self._connection.peer}] Closing the connection: TLS handshake failed: {error}."
            self._owner.broker.report(text, logging.INFO)
            self._raw.close()
            return
        self._flush()
        if is_complete:
            self._handshakes.remove(self)
            self._connection.is_in_handshake = False
            self._on_handshake(self._tls.getpeercert())
        if not self._is_reading_paused:
            self._raw.resume_reading()
        self._read()

    def _has_shaken_hands(self) -> bool:
        """Passes the received records to the handshake; returns whether it is complete. Raises: ssl.SSLError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                if not self._pass_piece():
                    return False
            else:
                return True

    def _read(self) -> None:
        """Passes decrypted bytes to the connection until it pauses reading or no complete TLS record is left."""
        while self._can_read:
            try:
                count = self._decrypt(self._connection.get_buffer(-1))
            except ssl.SSLZeroReturnError:
                self._end()
                break
            except (ssl.SSLError, OSError) as error:
                self._connection.reject(f"TLS failed: {error}.")
                break
            if not count:
                if self._is_ended_by_client:
                    self._end()
                break
            self._connection.buffer_updated(count)
        self._flush()
        self._connection.set_encrypted_bytes(len(self._encrypted))

    @property
    def _can_read(self) -> bool:
        if self._raw is None or self._is_reading_paused or self._connection.is_in_handshake:
            return False
        return not self._raw.is_closing()

    def _decrypt(self, buffer: memoryview) -> int:
        """Decrypts records until the buffer is full; returns the number of bytes. Raises: ssl.SSLError, OSError."""
        if self._error is not None:
            raise self._error
        count = 0
        while count < len(buffer):
            try:
                size = self._tls.read(len(buffer) - count, buffer[count:])
                if not size:
                    raise ssl.SSLZeroReturnError("the client has ended TLS")
            except ssl.SSLWantReadError:
                if not self._pass_piece():
                    break
                continue
            except (ssl.SSLError, OSError) as error:
                if not count:
                    raise
                self._error = error  # after the bytes before it
                break
            count += size
        return count

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
        records: list[bytes] = []
        size = 0
        try:
            while left:
                left = left[self._tls.write(left[:_PIECE_BYTES]) :]
                records.append(self._outgoing.read())
                size += len(records[-1])
                if size >= _WRITTEN_AT_ONCE_BYTES or not left:
                    self._raw.write(b"".join(records))
                    records, size = [], 0
        except ssl.SSLError:  # the client has ended TLS
            self._raw.abort()

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
        if self._raw is not None and not self.is_pending:
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
