"""Broker connection: versions, authentication, timeouts, malformed responses."""

from __future__ import annotations

import hashlib
import hmac
import socket
from base64 import b64decode, b64encode
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.clients import ConnectionLostError, advertise, client_settings, fake_broker, open_cluster

from spark_groupsource.broker.embedded import EmbeddedBroker
from spark_groupsource.client.cluster import routing
from spark_groupsource.client.cluster.cluster_client import ClusterClient
from spark_groupsource.client.network.broker_connection import BrokerConnection
from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.common.clock import ManualClock, SystemClock
from spark_groupsource.common.net import UNACKNOWLEDGED_MS, Address, dial
from spark_groupsource.common.tls import TlsSettings
from spark_groupsource.errors import (
    AuthenticationError,
    ConfigurationError,
    NetworkError,
    RemoteProtocolError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from spark_groupsource.wire.frames import encode_response
from spark_groupsource.wire.messages import (
    ApiVersionsResponse,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)

HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)


def connect(address: Address, **settings: Any) -> BrokerConnection:
    values: dict[str, Any] = {"client_id": "test", "security": SecuritySettings(), "request_timeout_ms": 5_000}
    return BrokerConnection(address, clock=SystemClock(), **(values | settings))


def serving(**ranges: tuple[int, int]) -> Any:
    return lambda request, version: advertise(ApiVersions=(0, 3), **ranges)


def respond_to_heartbeat(request: Any, version: int) -> Any:
    return HeartbeatResponse(throttle_time_ms=0, error_code=0)


def test_highest_common_version_is_used() -> None:
    with fake_broker(ApiVersions=serving(Heartbeat=(0, 2)), Heartbeat=respond_to_heartbeat) as broker:
        connection = connect(broker.address)
        assert connection.call(HEARTBEAT).error_code == 0
        assert [(name, version) for name, version, _ in broker.requests] == [("ApiVersions", 3), ("Heartbeat", 2)]
        connection.close()


def test_apiversions_falls_back_to_the_version_of_the_broker() -> None:
    def negotiate(request: Any, version: int) -> Any:
        if version > 0:
            return ApiVersionsResponse(error_code=35, api_keys=[])
        return advertise(ApiVersions=(0, 0), Heartbeat=(0, 0))

    with fake_broker(ApiVersions=negotiate, Heartbeat=respond_to_heartbeat) as broker:
        connection = connect(broker.address)
        assert connection.call(HEARTBEAT).error_code == 0
        assert [version for _, version, _ in broker.requests] == [3, 0, 0]
        connection.close()


@pytest.mark.parametrize("checks", ["true", "false"])
def test_a_connection_to_another_broker_is_rejected_and_the_cluster_is_found_again(tmp_path: Path, checks: str) -> None:
    with EmbeddedBroker(tmp_path / "a") as broker:
        client = open_cluster(broker.bootstrap_servers, metadata_cluster_check_enable=checks)
        former = client.metadata(()).cluster_id
        port = int(broker.bootstrap_servers.rpartition(":")[2])
    with client, EmbeddedBroker(tmp_path / "b", port=port) as other:
        connection = client.connect(Address("127.0.0.1", port))
        if checks == "true":
            with pytest.raises(NetworkError, match=f"the peer is not broker 1 of cluster {former}"):
                connection.open()
        else:
            connection.open()
            connection.close()
        found = client.metadata((), refresh=True).cluster_id
        assert found == other.call(lambda each: each.cluster_id) != former
        # the broker of the metadata is accepted
        with closing(client.connect(Address("127.0.0.1", port))) as connection:
            connection.open()


def test_a_broker_before_the_check_gets_one_request_of_the_former_version() -> None:
    def metadata(request: Any, version: int) -> Any:
        node = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=broker.address.port, rack=None)
        return MetadataResponse(throttle_time_ms=0, brokers=[node], cluster_id="c", controller_id=1, topics=[])

    with fake_broker(ApiVersions=serving(Metadata=(0, 9)), Metadata=metadata) as broker:
        with open_cluster(str(broker.address)) as client:
            client.metadata(())
            with closing(client.connect(broker.address)) as connection:
                connection.open()
        assert [version for name, version, _ in broker.requests if name == "ApiVersions"] == [3, 3]


def test_names_are_resolved_for_as_long_as_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker() as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        found = socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM)
        attempts: list[str] = []

        def look_up(host: str, *_: Any, **__: Any) -> Any:
            attempts.append(host)
            if len(attempts) < 4:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return found

        monkeypatch.setattr(routing, "BOOTSTRAP_TIMEOUT_MS", 0)
        monkeypatch.setattr("socket.getaddrinfo", look_up)
        address = f"kafka.example:{port}"
        with open_cluster(address, retry_backoff_ms="1") as client, pytest.raises(NetworkError, match="resolved"):
            client.metadata(())
        assert len(attempts) == 1
        with open_cluster(address, retry_backoff_ms="1", bootstrap_resolve_timeout_ms="60000") as client:
            assert client.metadata(()).nodes
        assert len(attempts) >= 4


def test_unsupported_version_raises() -> None:
    with fake_broker(ApiVersions=serving(Heartbeat=(0, 2)), Heartbeat=respond_to_heartbeat) as broker:
        connection = connect(broker.address)
        with pytest.raises(UnsupportedVersionError, match=f"{broker.address}: Heartbeat.*0 to 2"):
            connection.call(HEARTBEAT, min_version=3)
        assert connection.call(HEARTBEAT).error_code == 0, "the connection is still good"
        connection.close()


def test_listener_of_a_kraft_controller_is_named() -> None:
    def serve_controller(request: Any, version: int) -> Any:
        response = advertise(ApiVersions=(0, 3))
        row = type(response.api_keys[0])
        # Vote and BrokerRegistration, no Metadata
        response.api_keys += [row(api_key=key, min_version=0, max_version=1) for key in (52, 62)]
        return response

    with fake_broker(ApiVersions=serve_controller) as controller:
        with pytest.raises(RemoteProtocolError, match="it is a listener of a KRaft controller, .* Set kafka.bootstrap"):
            connect(controller.address).call(HEARTBEAT)


def test_pipelined_responses_are_received_in_order() -> None:
    with fake_broker(ApiVersions=serving(Heartbeat=(0, 4)), Heartbeat=respond_to_heartbeat) as broker:
        connection = connect(broker.address)
        first, second = connection.send(HEARTBEAT), connection.send(HEARTBEAT)
        with pytest.raises(RuntimeError, match="order"):
            connection.receive(second)
        assert connection.receive(first).error_code == connection.receive(second).error_code == 0
        connection.close()


def test_response_with_another_correlation_id_raises() -> None:
    wrong = b"\0\0\0\x0a" + b"\x7f\xff\xff\xff" + b"\0\0\0\0\0\0"
    with fake_broker(ApiVersions=serving(Heartbeat=(0, 1)), Heartbeat=lambda r, v: wrong) as broker:
        connection = connect(broker.address)
        with pytest.raises(RemoteProtocolError, match=str(broker.address)):
            connection.call(HEARTBEAT)
        assert connection.is_closed


@pytest.mark.parametrize(
    ("greeting", "problem"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not use Kafka"),
        (b"\x7f\xff\xff\xff", "its length is 2147483647 bytes"),
        (b"\xff\xff\xff\xff", "its length is -1 bytes"),
        (b"\0\0\0\x02ab", "the response has 2 bytes"),
        (b"\x15\x03\x03\0\x02\x02\x50", "uses TLS. Set kafka.security.protocol to SSL"),
        (b"\0\0\0\x08\0\0\0\x01\0\0\0", "closed the connection after 7 of 8 bytes"),
    ],
)
def test_bytes_that_are_not_kafkas_protocol_raise(greeting: bytes, problem: str) -> None:
    with fake_broker(greeting) as broker:
        connection = connect(broker.address)
        with pytest.raises((RemoteProtocolError, NetworkError), match=problem) as raised:
            connection.open()
        assert str(broker.address) in str(raised.value)
        assert connection.is_closed


def test_missing_response_raises_after_the_timeout() -> None:
    with fake_broker(ApiVersions=serving(Heartbeat=(0, 4)), Heartbeat=lambda r, v: None) as broker:
        connection = connect(broker.address)
        connection.open()
        with pytest.raises(RequestTimeoutError, match="Heartbeat.*No response within"):
            connection.call(HEARTBEAT, timeout_ms=50)
        with pytest.raises(NetworkError, match="is closed"):
            connection.call(HEARTBEAT)


def test_error_of_a_refused_connection_names_the_address() -> None:
    with pytest.raises(NetworkError, match="127.0.0.1:1 .*Check that a broker listens there"):
        connect(Address("127.0.0.1", 1)).open()


def test_error_of_a_closed_connection_names_the_security_protocol() -> None:
    with fake_broker() as broker:
        with pytest.raises(NetworkError, match=r"security.protocol=PLAINTEXT"):
            connect(broker.address).open()


# -- credentials -----------------------------------------------------------------------------------------------------


def credentials(mechanism: str, username: str = "ann", password: str = "secret") -> SecuritySettings:
    return SecuritySettings("SASL_PLAINTEXT", None, mechanism, username, password)


def handshake(request: Any, version: int) -> Any:
    return SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN", "SCRAM-SHA-256"])


SASL_APIS = serving(SaslHandshake=(0, 1), SaslAuthenticate=(0, 2), Heartbeat=(0, 4))


def check_plain(request: Any, version: int) -> Any:
    if bytes(request.auth_bytes) in (b"ann\0ann\0secret", b"\0ann\0secret"):
        return SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=0)
    message = "Authentication failed: Invalid username or password"
    return SaslAuthenticateResponse(error_code=58, error_message=message, auth_bytes=b"", session_lifetime_ms=0)


def test_authentication_succeeds() -> None:
    with fake_broker(
        ApiVersions=SASL_APIS, SaslHandshake=handshake, SaslAuthenticate=check_plain, Heartbeat=respond_to_heartbeat
    ) as broker:
        connection = connect(broker.address, security=credentials("PLAIN"))
        assert connection.call(HEARTBEAT).error_code == 0
        connection.close()


def test_connection_is_replaced_before_its_login_expires() -> None:
    def login(request: Any, version: int) -> Any:
        response = check_plain(request, version)
        response.session_lifetime_ms = 10_000
        return response

    with fake_broker(
        ApiVersions=SASL_APIS, SaslHandshake=handshake, SaslAuthenticate=login, Heartbeat=respond_to_heartbeat
    ) as broker:
        settings = replace(client_settings(str(broker.address)), security=credentials("PLAIN"))
        with ClusterClient(settings.bootstrap, settings, clock := ManualClock()) as client:
            for time_ms in (0, 8_000, 9_000):
                clock.advance_ms(time_ms - clock.now_ms())
                assert client.call_address(broker.address, HEARTBEAT).error_code == 0
        names = [name for name, *_ in broker.requests]
        first, second = names[: names.index("Heartbeat") + 2], names[names.index("Heartbeat") + 2 :]
        assert first[-2:] == ["Heartbeat"] * 2 and "SaslAuthenticate" in second and second[-1] == "Heartbeat"


def test_wrong_password_raises() -> None:
    with fake_broker(ApiVersions=SASL_APIS, SaslHandshake=handshake, SaslAuthenticate=check_plain) as broker:
        connection = connect(broker.address, security=credentials("PLAIN", password="wrong"))
        with pytest.raises(AuthenticationError, match="user 'ann' at .*Invalid username or password .PLAIN."):
            connection.open()
        assert connection.is_closed


def test_mechanism_that_the_broker_does_not_offer_raises() -> None:
    def reject_mechanism(request: Any, version: int) -> Any:
        return SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-256"])

    with fake_broker(ApiVersions=SASL_APIS, SaslHandshake=reject_mechanism) as broker:
        with pytest.raises(AuthenticationError, match="does not offer SASL mechanism PLAIN.*one of: SCRAM-SHA-256"):
            connect(broker.address, security=credentials("PLAIN")).open()


class ScramServer:
    """Server side of SCRAM (RFC 5802) for one user; `forge` makes its signature wrong."""

    def __init__(self, username: str, password: str, forge: bool = False, iterations: int = 4096) -> None:
        self._username = username
        self._salt, self._iterations = b"salt", iterations
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), self._salt, self._iterations)
        self._client_key = hmac.digest(salted, b"Client Key", "sha256")
        self._server_key = hmac.digest(b"forged" if forge else salted, b"Server Key", "sha256")
        self._first = ""

    def respond(self, request: Any, version: int) -> Any:
        text = bytes(request.auth_bytes).decode()
        if text.startswith("n,,"):
            bare = text[3:]
            name, nonce = bare.split(",r=")
            assert name == f"n={self._username}"
            text = f"r={nonce}server,s={b64encode(self._salt).decode()},i={self._iterations}"
            self._first = f"{bare},{text}"
            return self._response(text)
        without_proof, proof = text.split(",p=")
        signed = f"{self._first},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(self._client_key).digest(), signed, "sha256")
        if bytes(a ^ b for a, b in zip(b64decode(proof), signature)) != self._client_key:
            return SaslAuthenticateResponse(error_code=58, error_message="no", auth_bytes=b"", session_lifetime_ms=0)
        return self._response("v=" + b64encode(hmac.digest(self._server_key, signed, "sha256")).decode())

    @staticmethod
    def _response(text: str) -> Any:
        return SaslAuthenticateResponse(
            error_code=0, error_message=None, auth_bytes=text.encode(), session_lifetime_ms=0
        )


@pytest.mark.parametrize(("username", "escaped"), [("ann", "ann"), ("a=n,n", "a=3Dn=2Cn")])
def test_scram(username: str, escaped: str) -> None:
    server = ScramServer(escaped, "secret")
    with fake_broker(
        ApiVersions=SASL_APIS, SaslHandshake=handshake, SaslAuthenticate=server.respond, Heartbeat=respond_to_heartbeat
    ) as broker:
        connection = connect(broker.address, security=credentials("SCRAM-SHA-256", username))
        assert connection.call(HEARTBEAT).error_code == 0
        connection.close()


@pytest.mark.parametrize("server", [ScramServer("ann", "other"), ScramServer("ann", "secret", forge=True)])
def test_scram_rejects_a_peer_without_the_password(server: ScramServer) -> None:
    with fake_broker(ApiVersions=SASL_APIS, SaslHandshake=handshake, SaslAuthenticate=server.respond) as broker:
        with pytest.raises(AuthenticationError):
            connect(broker.address, security=credentials("SCRAM-SHA-256")).open()


@pytest.mark.parametrize("iterations", [1, 4095])
def test_scram_rejects_few_iterations_before_it_sends_a_proof(iterations: int) -> None:
    server = ScramServer("ann", "secret", iterations=iterations)
    with fake_broker(ApiVersions=SASL_APIS, SaslHandshake=handshake, SaslAuthenticate=server.respond) as broker:
        with pytest.raises(AuthenticationError, match=f"requests {iterations} iterations, the minimum is 4096"):
            connect(broker.address, security=credentials("SCRAM-SHA-256")).open()
        assert [name for name, _, _ in broker.requests].count("SaslAuthenticate") == 1


# --- TLS ---

ENCRYPTED_KEY_AND_CERTIFICATE = """\
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHjME4GCSqGSIb3DQEFDTBBMCkGCSqGSIb3DQEFDDAcBAh5MBVERoUjvAICCAAw
DAYIKoZIhvcNAgkFADAUBggqhkiG9w0DBwQIOAIaTMh4TVcEgZA/A3gvwe2Mm/+A
sqy3JAJETqRS+3fa6gvFe1j3AlojYbqwnk9Q7e4qmdsiRxj0qPiUYndrOyNTACe/
/fO6AcXs74vbQme3J/EDX7RzIwPHJLs11Rzs4BBPpy3/ucVhvTrQMft7hJlTNN+S
PXiBD/efhQEOmOIGubQMgIfsJm3rjCEr0/5jI3YMQYUFtIqAdX8=
-----END ENCRYPTED PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBgDCCASWgAwIBAgIUbUWnPAR7WQGZgw3uXUr3fK6s1QQwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMjA1NDg0N1oYDzIxMjYxMDI5
MDU0ODQ3WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASVteyVijMdfLB74hQTFx3x8NxzsoLX9uRZmFQwruW8ACAc20IhirZL
6Ojovwt0WFZ6uJwRxGZKhZfg5iAOKIC6o1MwUTAdBgNVHQ4EFgQUy9MO3/mbFczj
78B8o3vbP3PN0SAwHwYDVR0jBBgwFoAUy9MO3/mbFczj78B8o3vbP3PN0SAwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEAo4e0Wj5KqKmcUs8BLvtW
7HVTtJgj3hwdcn+yWT/nqFsCIQDmwV9+9cTHn8LtaUoEObZ3v2wEM8dP4yzqJVHI
SwuLNw==
-----END CERTIFICATE-----
"""


@pytest.mark.parametrize(
    ("password", "error_class", "message"),
    [
        (None, ConfigurationError, "Option kafka.ssl.key.password is not set, but the private key in .* is encrypted"),
        ("", ConfigurationError, "Option kafka.ssl.key.password is not set, but the private key in .* is encrypted"),
        ("wrong", ConfigurationError, "Loading TLS files failed .* kafka.ssl.key.password"),
        ("secret", NetworkError, "Connecting to 127.0.0.1:1 failed"),
    ],
)
def test_an_encrypted_key_needs_its_password(
    tmp_path: Path, password: str | None, error_class: type[Exception], message: str
) -> None:
    path = tmp_path / "client.pem"
    path.write_text(ENCRYPTED_KEY_AND_CERTIFICATE)
    tls = TlsSettings(cert_file=str(path), key_file=str(path), key_password=password)
    with pytest.raises(error_class, match=message):
        dial(Address("127.0.0.1", 1), 1_000, tls)


def test_requests_do_not_wait_for_the_responses_to_earlier_ones() -> None:
    """The broker responds to three requests when it has received the third."""
    waiting: list[int] = []

    def respond(request: Any, version: int) -> bytes | None:
        # correlation ids are consecutive; that of ApiVersions is 1
        waiting.append(len(waiting) + 2)
        if len(waiting) < 3:
            return None
        return b"".join(encode_response(HeartbeatResponse(error_code=n), version, n) for n in waiting)

    with fake_broker(ApiVersions=serving(Heartbeat=(0, 4)), Heartbeat=respond) as broker:
        received: list[Any] = []
        with open_cluster(str(broker.address)) as client:
            client.call_address_each(broker.address, [HEARTBEAT] * 3, received, 5_000)
    assert [response.error_code for response in received] == [2, 3, 4]


def test_few_bytes_are_sent_before_their_responses_are_received() -> None:
    """More would fill the buffers of both sides, each of which would wait for the other."""
    large = HeartbeatRequest(group_id="g" * 30_000, generation_id=1, member_id="m", group_instance_id=None)
    most = waiting = 0

    class Counted(BrokerConnection):
        def send(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal most, waiting
            waiting += 1
            most = max(most, waiting)
            return super().send(*args, **kwargs)

        def receive(self, sent: Any) -> Any:
            nonlocal waiting
            waiting -= isinstance(sent.request, HeartbeatRequest)
            return super().receive(sent)

    with fake_broker(ApiVersions=serving(Heartbeat=(0, 4)), Heartbeat=respond_to_heartbeat) as broker:
        connection = Counted(broker.address, client_id="c", security=SecuritySettings(), clock=SystemClock())
        assert len(list(connection.call_each([large] * 10))) == 10
        connection.close()
    assert most == 3


def test_requests_without_a_response_are_sent_again_and_no_others() -> None:
    lost: list[int] = []
    members = [HeartbeatRequest(group_id="g", generation_id=1, member_id=m, group_instance_id=None) for m in "abc"]

    def respond(request: Any, version: int) -> Any:
        if request.member_id == "b" and not lost:
            raise ConnectionLostError
        return HeartbeatResponse(error_code=0)

    with fake_broker(Heartbeat=respond) as broker:
        row = FindCoordinatorResponse.Coordinator
        found = row(key="g", node_id=0, host="127.0.0.1", port=broker.address.port, error_code=0, error_message=None)
        broker.responses["FindCoordinator"] = lambda r, v: FindCoordinatorResponse(coordinators=[found])
        broker.responses["ApiVersions"] = serving(Heartbeat=(0, 4), FindCoordinator=(4, 4))
        with open_cluster(str(broker.address)) as client:
            outcomes = client.call_coordinator_each("g", members, on_lost=lost.append)
        sent = [request.member_id for name, _, request in broker.requests if name == "Heartbeat"]
    assert [outcome.error_code for outcome in outcomes if isinstance(outcome, HeartbeatResponse)] == [0, 0, 0]
    assert lost == [1, 2] and sent == ["a", "b", "b", "c"]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
def test_a_path_that_no_longer_delivers_is_noticed() -> None:
    """The response to a JoinGroup may take an hour, and no request timeout ends the wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = dial(Address(*server.getsockname()), 5_000)
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNACKNOWLEDGED_MS
