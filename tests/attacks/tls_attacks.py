"""Attacks of one client on the TLS listener of a broker.

Each requires `Target.tls_address`.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack

from attacks.attack_frames import create_topics, fetch, heartbeat, produce
from attacks.client_attacks import Outcome, Target

from spark_groupsource.records.encode import Record, encode_batch

_TIMEOUT_S = 60
_CLOSE_TIMEOUT_S = 5
_RECORD_HEAD = b"\x17\x03\x03\x40\x11"  # of a TLS record with 16,401 bytes
_FRAME_BYTES = 100_000_000


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the broker is the one that is attacked
    return context


def _connect(target: Target) -> socket.socket:
    assert target.tls_address is not None, "the target has a TLS listener"
    return socket.create_connection(target.tls_address, _TIMEOUT_S)


def client_hello() -> bytes:
    """Returns the first record of a handshake."""
    outgoing = ssl.MemoryBIO()
    tls = _context().wrap_bio(ssl.MemoryBIO(), outgoing)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def _call(client: socket.socket, frame: bytes) -> None:
    """Sends a request and drops the response."""
    client.sendall(frame)
    with client.makefile("rb") as stream:
        stream.read(int.from_bytes(stream.read(4), "big"))


def _refused(count: int, connect: Callable[[int], object]) -> int:
    """Calls `connect` for each of `count` connections; returns how many the broker closed."""
    refused = 0
    for number in range(count):
        try:
            connect(number)
        except OSError:
            refused += 1
    return refused


def tls_half_handshakes(target: Target, count: int = 1_000) -> Outcome:
    """Handshakes of which half wait for the client and the others have an incomplete first record."""
    hello = client_hello()
    with ExitStack() as held:

        def connect(number: int) -> None:
            held.enter_context(_connect(target)).sendall(hello if number % 2 else hello[:-1])

        refused = _refused(count, connect)
        time.sleep(2)
    return Outcome(0, refused)


def tls_connections(target: Target, count: int = 2_500) -> Outcome:
    """Connections that complete the handshake and send a part of a request of 100 MB."""
    context = _context()
    part = _FRAME_BYTES.to_bytes(4, "big") + bytes(12_000)
    with ExitStack() as held:

        def connect(number: int) -> None:
            client = held.enter_context(_connect(target))
            held.enter_context(context.wrap_socket(client)).sendall(part)

        refused = _refused(count, connect)
        time.sleep(1)
    return Outcome(0, refused)


def tls_half_records(target: Target, count: int = 500) -> Outcome:
    """Connections that send 12 kB of a record of 16 kB."""
    context = _context()
    with ExitStack() as held:

        def connect(number: int) -> None:
            client = context.wrap_socket(held.enter_context(_connect(target)))
            held.enter_context(socket.socket(fileno=client.detach())).sendall(_RECORD_HEAD + bytes(12_000))

        refused = _refused(count, connect)
        time.sleep(1)
    return Outcome(0, refused)


def tls_clients_that_do_not_read(target: Target, count: int = 10) -> Outcome:
    """Clients that request 1 GB each and do not read."""
    batch = bytes(encode_batch([Record(None, bytes(900_000), 1)]))
    context = _context()
    with ExitStack() as held:
        filler = held.enter_context(context.wrap_socket(_connect(target)))
        _call(filler, create_topics(1, 1, "tls-bulk"))
        for _ in range(20):
            _call(filler, produce("tls-bulk-0", batch))

        def connect(number: int) -> None:
            client = held.enter_context(context.wrap_socket(_connect(target)))
            client.sendall(fetch("tls-bulk-0", 50_000_000) * 20)

        refused = _refused(count, connect)
        time.sleep(2)
    return Outcome(0, refused)


def tls_small_records(target: Target, count: int = 20_000) -> Outcome:
    """One request per record, and each byte of the first hundred in a record of its own."""
    frame = bytes(heartbeat("tls"))
    with _context().wrap_socket(_connect(target)) as client:
        try:
            for byte in frame * (100 // len(frame) + 1):
                client.sendall(bytes([byte]))
            for _ in range(count):
                client.sendall(frame)
        except OSError:
            return Outcome(0, 1)
    return Outcome()


def tls_wrong_records(target: Target) -> Outcome:
    """Bytes that are no TLS, before and after the handshake; each connection should be closed."""
    hello = client_hello()
    wrong = [
        bytes(heartbeat("plain")),  # a request without TLS
        os.urandom(100_000),
        b"\x16\x03\x01\xff\xff" + bytes(65_535),  # longer than a record can be
        hello[:5] + bytes(len(hello) - 5),
        hello * 100,
        b"\x15\x03\x01\x00\x02\x01\x00" * 10_000,  # warnings
        b"\x16\x03\x01\x00\x00" * 10_000,  # empty handshake records
    ]
    refused = 0
    for is_connected in (False, True):
        for data in wrong:
            client: socket.socket = _connect(target)
            if is_connected:
                client = socket.socket(fileno=_context().wrap_socket(client).detach())
            with client:
                client.settimeout(_CLOSE_TIMEOUT_S)
                try:
                    client.sendall(data)
                    while client.recv(65_536):
                        pass
                    refused += 1
                except TimeoutError:
                    pass
                except OSError:
                    refused += 1
    return Outcome(0, refused)


TLS_ATTACKS: dict[str, tuple[Callable[[Target], Outcome], str]] = {
    "tls_half_handshakes": (tls_half_handshakes, "1,000 TLS handshakes that are not completed"),
    "tls_connections": (tls_connections, "2,500 connections with TLS, each with a part of a request"),
    "tls_half_records": (tls_half_records, "500 incomplete TLS records"),
    "tls_clients_that_do_not_read": (tls_clients_that_do_not_read, "ten clients that do not read, with TLS"),
    "tls_small_records": (tls_small_records, "20,000 heartbeats in TLS records of their own"),
    "tls_wrong_records": (tls_wrong_records, "bytes that are no TLS, before and after the handshake"),
}
"""Attack and its description, by name."""
