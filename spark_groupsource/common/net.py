"""Sockets: addresses, connections and listeners with deadlines, their errors."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import re
import socket
import stat
import threading
from contextlib import contextmanager, suppress
from typing import Any, Iterator, NamedTuple, Sequence

from spark_groupsource.common.clock import SystemClock
from spark_groupsource.common.config_def import comma_list
from spark_groupsource.common.deadlines import TransferDeadline
from spark_groupsource.common.descriptors import describe_os_error, is_out_of_descriptors
from spark_groupsource.common.tls import (
    CLIENT_CERTIFICATE,
    TlsSettings,
    handshake_remedy,
    is_certificate_alert,
    is_lost_in_handshake,
)
from spark_groupsource.errors import (
    AuthenticationError,
    ConfigurationError,
    NetworkError,
    RequestTimeoutError,
    UnresolvedNameError,
)

Socket = socket.socket
"""Type of a connected socket, for modules that do not import `socket`."""

# the alert of a peer that has closed the connection has been received already
_ALERT_WAIT_S = 0.1
_CLOCK = SystemClock()
_log = logging.getLogger(__name__)
_SLOW_LOOKUP_MS = 5_000
# HOST_PORT_PATTERN of Kafka's Utils
_HOST_PORT = re.compile(r"(?:[0-9a-zA-Z\-%._]*://)?\[?([0-9a-zA-Z\-%._:]*)\]?:([0-9]+)")
_MAX_PORT_DIGITS = 5
# sun_path of 108 bytes on Linux, 104 elsewhere, with its zero
_MAX_SOCKET_PATH_BYTES = 103
# connections that wait for `LocalListener.accept`; a further one is refused at once
_LOCAL_BACKLOG = 1024
_RECEIVE_BYTES = 1 << 16
_TLS_WOULD_BLOCK = frozenset({"SSLWantReadError", "SSLWantWriteError"})


class Address(NamedTuple):
    """A host and a port; `str` gives ``host:port``, with IPv6 hosts in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str, setting: str = "kafka.bootstrap.servers") -> tuple[Address, ...]:
    """Parses ``host:port,host:port`` as Kafka's Java client does; duplicates and empty entries are dropped.

    ``SASL_SSL://`` may precede an address, without effect. An address without a host, and a host that has colons and is
    no IPv6 address, are rejected; the Java client takes the first for this machine, and does not find the second.

    Raises: ConfigurationError naming the option `setting` if an entry has no host or no port from 0 to 65535.
    """
    addresses = []
    for entry in comma_list(text):
        address = _parse_address(entry)
        if address is None:
            raise ConfigurationError(
                f"Option {setting} must list host:port addresses: {entry!r} is not host:port. "
                "Give for example localhost:9092."
            )
        addresses.append(address)
    if not addresses:
        raise ConfigurationError(f"Option {setting} is empty. Give at least one host:port.")
    return tuple(dict.fromkeys(addresses))


def parse_listen_address(text: str, setting: str) -> Address:
    """Parses the ``host:port`` that a server listens on, without a protocol.

    Raises: ConfigurationError naming the option `setting`.
    """
    address = None if "://" in text else _parse_address(text.strip())
    if address is None:
        raise ConfigurationError(f"Option {setting} must be one HOST:PORT, got {text!r}.")
    return address


def _parse_address(entry: str) -> Address | None:
    found = _HOST_PORT.fullmatch(entry)
    if found is None or not found[1] or (":" in found[1] and not _is_ip_address(found[1])):
        return None
    digits = found[2].lstrip("0") or "0"
    if len(digits) > _MAX_PORT_DIGITS or int(digits) > 65535:
        return None
    return Address(found[1], int(digits))


def resolve(address: Address, timeout_ms: int = 10_000) -> tuple[str, ...]:
    """Returns the IP addresses of a host, in the order in which `dial` tries them. Raises: NetworkError."""
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in _look_up(address, timeout_ms)))


def _look_up(address: Address, timeout_ms: int) -> Sequence[tuple[Any, ...]]:
    """Returns the rows of getaddrinfo, which has no timeout: the lookup of a name continues in its own thread.

    Raises: NetworkError.
    """
    found: list[Sequence[tuple[Any, ...]] | Exception] = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:  # a name that is no valid host name
            found.append(error)

    if _is_ip_address(address.host):
        look_up()
    else:
        started_ms = _CLOCK.now_ms()
        thread = threading.Thread(target=look_up, name=f"lookup of {address.host}", daemon=True)
        thread.start()
        thread.join(timeout_ms / 1000)
        if found and _CLOCK.now_ms() - started_ms > _SLOW_LOOKUP_MS:
            _log.warning("[broker=%s] Slow name lookup: %d ms.", address, _CLOCK.now_ms() - started_ms)
    if not found:
        raise UnresolvedNameError(
            f"Connecting to {address} failed: the host name was not resolved within {timeout_ms} ms. "
            "Check the name server."
        )
    if isinstance(found[0], OSError) and is_out_of_descriptors(found[0]):
        raise NetworkError(f"Connecting to {address} failed: {describe_os_error(found[0], '')}") from found[0]
    if isinstance(found[0], Exception):
        reason = getattr(found[0], "strerror", None) or found[0]
        raise UnresolvedNameError(
            f"Connecting to {address} failed: the host name cannot be resolved ({reason}). Check the address."
        ) from found[0]
    return found[0]


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


UNACKNOWLEDGED_MS = 30_000
"""How long sent bytes may remain without an acknowledgement of TCP before the connection is lost."""


def dial(address: Address, timeout_ms: int, tls: TlsSettings | None = None) -> socket.socket:
    """Opens a connected blocking TCP socket, over TLS when `tls` is given; each of the two in `timeout_ms`.

    Raises: NetworkError, also if the peer ends the TLS handshake; AuthenticationError if TLS verification fails;
        ConfigurationError if the files of `tls` cannot be loaded.
    """
    context = None
    if tls is not None:
        # imported where TLS is used
        from spark_groupsource.common.tls_contexts import tls_context

        context = tls_context(tls)
    try:
        connection = _connect(address, timeout_ms)
    except NetworkError:
        raise
    except (TimeoutError, socket.timeout) as error:
        raise NetworkError(
            f"Connecting to {address} failed: no response within {timeout_ms} ms. Check the address and the firewall."
        ) from error
    except OSError as error:
        reason = describe_os_error(error, "Check that a broker listens there.")
        raise NetworkError(f"Connecting to {address} failed: {reason}") from error
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        # macOS, if the peer has closed the connection already
        connection.close()
        raise NetworkError(f"Connecting to {address} failed: the connection was lost ({error}).") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # on Linux: a path that no longer delivers is noticed, also where the response to a JoinGroup may take an hour.
        # A sandbox may lack it
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    if context is None:
        return connection
    import ssl

    try:
        return context.wrap_socket(connection, server_hostname=address.host)
    except OSError as error:
        connection.close()
        if isinstance(error, ssl.SSLError) and not is_lost_in_handshake(error):
            remedy = handshake_remedy(error)
            raise AuthenticationError(f"TLS handshake with {address} failed: {error}. {remedy}") from error
        if isinstance(error, TimeoutError):
            raise NetworkError(f"TLS handshake with {address} failed: no response within {timeout_ms} ms.") from error
        raise NetworkError(
            f"TLS handshake with {address} failed: the peer closed the connection ({error}). Check that the listener "
            "uses TLS, as kafka.security.protocol says."
        ) from error


def has_tls_listener(address: Address, timeout_ms: int) -> bool:
    """Returns whether the peer responds to a TLS handshake, whatever its certificate; False if it is unreachable."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(address, timeout=timeout_ms / 1000) as connection:
            context.wrap_socket(connection, server_hostname=address.host).close()
        return True
    except ssl.SSLError as error:
        # an alert is a response in TLS too
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _connect(address: Address, timeout_ms: int) -> socket.socket:
    """Connects to the first reachable address of a host name; each of them has a share of the time.

    Raises: OSError of the last one; NetworkError if the name was not resolved.
    """
    deadline_ms = _CLOCK.now_ms() + timeout_ms
    found = _look_up(address, timeout_ms)
    failure: OSError | None = None
    for index, (family, kind, protocol, _, target) in enumerate(found):
        share_ms = max((deadline_ms - _CLOCK.now_ms()) // (len(found) - index), 1)
        try:
            connection = socket.socket(family, kind, protocol)
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                raise
            # a kernel without IPv6 resolves names to IPv6 addresses, too; the error of another address is the cause
            failure = failure or error
            continue
        try:
            connection.settimeout(share_ms / 1000)
            connection.connect(target)
            connection.settimeout(timeout_ms / 1000)
            return connection
        except OSError as error:
            connection.close()
            failure = error
    raise failure or OSError("the host name has no address")


def certificate_rejection(connection: socket.socket, error: NetworkError) -> str | None:
    """Returns alert and remedy if a connection was lost because the peer rejected the client certificate, else None.

    In TLS 1.3 the handshake of a client ends before the peer has checked the certificate: the first response is the
    alert, or the first request fails. Source: Kafka's SslTransportLayer, state POST_HANDSHAKE.
    """
    if type(connection) is socket.socket:
        return None
    alert: BaseException | None = error.__cause__
    if not is_certificate_alert(alert):
        try:
            connection.settimeout(_ALERT_WAIT_S)
            connection.recv(1)
        except OSError as received:
            alert = received
    return f"{alert}. {CLIENT_CERTIFICATE}" if is_certificate_alert(alert) else None


def send_all(connection: socket.socket, data: bytes | bytearray | memoryview, timeout_ms: int) -> None:
    """Writes every byte of `data`; the peer must receive some within `timeout_ms` each time, see `TransferDeadline`.

    Raises: NetworkError if the connection breaks, RequestTimeoutError if the peer does not receive in time.
    """
    deadline = TransferDeadline(timeout_ms, _CLOCK.now_ms())
    view = memoryview(data)
    try:
        while deadline.count < len(view):
            left_ms = deadline.left_ms(_CLOCK.now_ms())
            if deadline.count and left_ms <= 0:
                raise TimeoutError
            connection.settimeout(max(left_ms, 1) / 1000)
            deadline.moved(connection.send(view[deadline.count :]), _CLOCK.now_ms())
    except (TimeoutError, socket.timeout) as error:
        received = "no data" if not deadline.count else f"{deadline.count} of {len(view)} bytes"
        waited_ms = deadline.elapsed_ms(_CLOCK.now_ms()) if deadline.count else timeout_ms
        raise RequestTimeoutError(f"Sending failed: the peer received {received} within {waited_ms} ms.") from error
    except OSError as error:
        raise NetworkError(f"Sending failed: the connection was lost ({error}).") from error


def transfer_deadline(timeout_ms: int) -> TransferDeadline:
    """Returns the deadline of a transfer that begins now."""
    return TransferDeadline(timeout_ms, _CLOCK.now_ms())


def receive_into(
    connection: socket.socket, buffer: memoryview, timeout: int | TransferDeadline, expected: int = 0
) -> None:
    """Fills `buffer` completely; the bytes that arrive are progress, see `TransferDeadline`.

    Args:
        timeout: in ms, of a transfer that begins now; or the deadline of one that has begun.
        expected: number of bytes of the whole transfer, for the error; 0 for those of `buffer`.
    Raises: NetworkError if the peer closes the connection before, RequestTimeoutError if the bytes do not arrive in
        time.
    """
    deadline = transfer_deadline(timeout) if isinstance(timeout, int) else timeout
    filled = 0
    try:
        while filled < len(buffer):
            left_ms = deadline.left_ms(_CLOCK.now_ms())
            if deadline.count and left_ms <= 0:
                # a peer that sends byte by byte never lets a single read time out
                raise TimeoutError
            connection.settimeout(max(left_ms, 1) / 1000)
            count = connection.recv_into(buffer[filled:])
            if count == 0:
                raise NetworkError(f"The peer closed the connection after {filled} of {len(buffer)} bytes.")
            filled += count
            deadline.moved(count, _CLOCK.now_ms())
    except (TimeoutError, socket.timeout) as error:
        if not deadline.count:
            raise RequestTimeoutError(f"No response within {deadline.timeout_ms} ms.") from error
        elapsed_ms = deadline.elapsed_ms(_CLOCK.now_ms())
        bytes_text = f"{deadline.count} of {expected or len(buffer)} bytes"
        raise RequestTimeoutError(f"{bytes_text} within {elapsed_ms} ms.") from error
    except OSError as error:
        if isinstance(error, NetworkError):
            raise
        raise NetworkError(f"Receiving failed: the connection was lost ({error}).") from error


def is_readable(connection: socket.socket, timeout_ms: int) -> bool:
    """Waits until bytes have arrived or the connection has ended; returns False if neither happened in time."""
    import selectors  # read tasks do not need it

    # bytes that TLS has decrypted
    if type(connection) is not socket.socket and connection.pending():  # type: ignore[attr-defined]
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(max(timeout_ms, 1) / 1000))


def send_some(connection: socket.socket, data: bytearray) -> int:
    """Returns how many bytes a connection that does not block has taken, 0 if none now. Raises: NetworkError."""
    try:
        with memoryview(data) as view:
            return connection.send(view)
    except OSError as error:
        if _would_block(error):
            return 0
        raise NetworkError(f"Sending failed: the connection was lost ({error}).") from error


def receive_some(connection: socket.socket) -> bytes | None:
    """Returns bytes that have arrived on a connection that does not block, None if there are none now.

    Raises: NetworkError, also if the peer has closed the connection.
    """
    try:
        data = connection.recv(_RECEIVE_BYTES)
    except OSError as error:
        if _would_block(error):
            return None
        raise NetworkError(f"Receiving failed: the connection was lost ({error}).") from error
    if not data:
        raise NetworkError("The peer closed the connection.")
    return data


def _would_block(error: OSError) -> bool:
    # SSLWantReadError and SSLWantWriteError, without the import of ssl
    return isinstance(error, (BlockingIOError, InterruptedError)) or type(error).__name__ in _TLS_WOULD_BLOCK


def listen(address: Address, setting: str = "listeners") -> socket.socket:
    """Opens a listening TCP socket; port 0 means any free port.

    Raises: ConfigurationError if the port is in use or the host is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(
                f"Option {setting} cannot be used: port {address.port} of {address.host} is in use by another process. "
                "Stop it or choose another port."
            ) from error
        raise ConfigurationError(
            f"Option {setting} cannot be used: listening on {address} failed ({error}). Choose another address."
        ) from error
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether a listening TCP socket accepts connections from this machine only."""
    host: str = listener.getsockname()[0]
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


class LocalChannel:
    """Connection over a Unix domain socket; the messages are lines of text."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""

    def send(self, line: str, timeout_ms: int = 5_000) -> None:
        """Writes one line. Raises: NetworkError, RequestTimeoutError."""
        send_all(self._connection, line.encode() + b"\n", timeout_ms)

    def receive(self, timeout_ms: int) -> str | None:
        """Returns the next line, or None when the peer has closed.

        Raises: RequestTimeoutError if no line arrives in time; NetworkError if the connection breaks.
        """
        self._connection.settimeout(max(timeout_ms, 1) / 1000)
        try:
            while b"\n" not in self._received:
                more = self._connection.recv(65536)
                if not more:
                    return None
                self._received += more
        except (TimeoutError, socket.timeout) as error:
            raise RequestTimeoutError(f"No line within {timeout_ms} ms.") from error
        except OSError as error:
            raise NetworkError(f"Receiving failed: the local connection was lost ({error}).") from error
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _socket_address(path: str) -> Iterator[str]:
    """Yields an address of a Unix domain socket: `path`, or a short name of a path that exceeds the limit (Linux)."""
    directory, name = os.path.split(path)
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES or not os.path.isdir("/proc/self/fd"):
        yield path
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


class LocalListener:
    """A listening Unix domain socket; `close` deletes its file."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            reason = describe_os_error(error, "Check the system.")
            raise NetworkError(f"Listening on {path} failed: {reason}") from error
        try:
            with _socket_address(path) as address:
                self._listener.bind(address)
            self._listener.listen(_LOCAL_BACKLOG)
        except OSError as error:
            self._listener.close()
            raise NetworkError(f"Listening on {path} failed: {error}.") from error

    def accept(self, timeout_ms: int) -> LocalChannel | None:
        """Returns the next connection, or None if there was none in time.

        Raises: NetworkError after `close`.
        """
        try:
            self._listener.settimeout(max(timeout_ms, 1) / 1000)
            connection, _ = self._listener.accept()
        except (TimeoutError, socket.timeout):
            return None
        except OSError as error:
            if is_out_of_descriptors(error):
                raise NetworkError(f"Accepting on {self.path} failed: {describe_os_error(error, '')}") from error
            raise NetworkError(f"Accepting on {self.path} failed: the listener is closed.") from error
        return LocalChannel(connection)

    def close(self) -> None:
        self._listener.close()
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return


def dial_local(path: str, timeout_ms: int) -> LocalChannel:
    """Connects to a `LocalListener`.

    Raises: NetworkError if no process listens there, or without a file descriptor.
    """
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        reason = describe_os_error(error, "Check the system.")
        raise NetworkError(f"Connecting to {path} failed: {reason}") from error
    try:
        connection.settimeout(max(timeout_ms, 1) / 1000)
        with _socket_address(path) as address:
            connection.connect(address)
    except OSError as error:
        connection.close()
        raise NetworkError(f"Connecting to {path} failed: no process listens there ({error}).") from error
    return LocalChannel(connection)


def find_connection(peer: str | int) -> socket.socket | None:
    """Returns a duplicate of this process's connection to a local peer; None if there is none.

    Args:
        peer: path of a Unix domain socket, or a TCP port.
    """
    for connection in _own_sockets():
        try:
            address = connection.getpeername()
        except OSError:
            address = None  # a listener
        if peer == (address[1] if isinstance(address, tuple) else address):
            return connection
        connection.close()
    return None


def first_loopback_connection() -> socket.socket | None:
    """Returns a duplicate of the TCP connection to this machine that this process opened first; None if it has none."""
    for connection in _own_sockets():
        if _is_loopback_connection(connection):
            return connection
        connection.close()
    return None


def _own_sockets() -> Iterator[socket.socket]:
    """Yields a duplicate of each socket of this process, in the order of their descriptors; the caller closes it."""
    for descriptor in sorted(map(int, os.listdir("/dev/fd"))):
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            connection = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            # closed meanwhile
            continue
        yield connection


def _is_loopback_connection(connection: socket.socket) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    try:
        return ipaddress.ip_address(connection.getpeername()[0].partition("%")[0]).is_loopback
    except OSError:
        # a listener
        return False


def send_without_delay(connection: socket.socket) -> None:
    """Disables Nagle's algorithm for what this side sends."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


CAN_ACKNOWLEDGE_NOW = hasattr(socket, "TCP_QUICKACK")
"""Whether `acknowledge_now` has an effect: on Linux."""


def acknowledge_now(connection: socket.socket) -> None:
    """Acknowledges what this side has received, which the kernel does 40 ms later otherwise (Linux; see tcp(7))."""
    if CAN_ACKNOWLEDGE_NOW:
        # not permanent: the kernel returns to delayed acknowledgments
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def is_closed_by_peer(connection: socket.socket) -> bool:
    """True once the peer has closed the connection and everything that it sent has been received."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
