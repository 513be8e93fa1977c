"""TLS of the client: stores, PEM text, versions, cipher suites, replaced files."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import certificates
from support.certificates import write_pem

from spark_groupsource.client.network.security import SecuritySettings
from spark_groupsource.common import net
from spark_groupsource.common.net import Address
from spark_groupsource.common.tls_stores import read_store, store_type
from spark_groupsource.errors import AuthenticationError, ConfigurationError, NetworkError

FILES = {
    "ca.pem": certificates.CA.encode(),
    "client.pem": certificates.CLIENT.encode(),
    "key.pem": certificates.KEY.encode(),
    "encrypted.pem": certificates.ENCRYPTED_KEY.encode(),
    "both.pem": (certificates.KEY + certificates.CLIENT).encode(),
    "trust.jks": certificates.TRUST_JKS,
    "trust.p12": certificates.TRUST_PKCS12,
    "key.jks": certificates.KEY_JKS,
    "key.p12": certificates.KEY_PKCS12,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    write_pem(directory / "server.pem", certificates.KEY, certificates.SERVER)
    return directory


def parse(files: Path, **settings: str) -> SecuritySettings:
    given = {name.replace("_", "."): text.replace("DIR", str(files)) for name, text in settings.items()}
    return SecuritySettings.parse({"security.protocol": "SSL", **given})


@contextmanager
def mutual_listener(files: Path, versions: tuple[ssl.TLSVersion, ssl.TLSVersion] | None = None) -> Iterator[Address]:
    """A listener that requires a certificate of `certificates.CA` and sends its common name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificates.CA)
    if versions is not None:
        context.minimum_version, context.maximum_version = versions
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                with context.wrap_socket(listener.accept()[0], server_side=True) as peer:
                    subject = dict(pair for (pair,) in (peer.getpeercert() or {})["subject"])
                    peer.sendall(f"{subject['commonName']} {peer.version()} {(peer.cipher() or ('',))[0]}".encode())
            except OSError:
                return  # the handshake failed

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address(*listener.getsockname()[:2])
        thread.join(5)


TRUST = {"ssl_ca_location": "DIR/ca.pem"}
OWN = {"ssl_keystore_location": "DIR/both.pem"}


@pytest.mark.parametrize(
    "settings",
    [
        {**TRUST, **OWN},
        {**TRUST, "ssl_certificate_location": "DIR/client.pem", "ssl_key_location": "DIR/key.pem"},
        {
            **TRUST,
            "ssl_certificate_location": "DIR/client.pem",
            "ssl_key_location": "DIR/encrypted.pem",
            "ssl_key_password": "keypass",
        },
        {"ssl_ca_pem": certificates.CA, "ssl_certificate_pem": certificates.CLIENT, "ssl_key_pem": certificates.KEY},
        {
            "ssl_truststore_type": "PEM",
            "ssl_truststore_certificates": certificates.CA.replace("\n", "\\n"),
            "ssl_keystore_type": "PEM",
            "ssl_keystore_certificate_chain": certificates.CLIENT,
            "ssl_keystore_key": certificates.ENCRYPTED_KEY,
            "ssl_key_password": "keypass",
        },
        {**TRUST, "ssl_certificate_location": "DIR/client.pem", "ssl_key_pem": certificates.KEY},
        {**TRUST, "ssl_certificate_pem": certificates.CLIENT, "ssl_key_location": "DIR/key.pem"},
        {
            "ssl_truststore_location": "DIR/trust.jks",
            "ssl_truststore_password": "trustpass",
            "ssl_keystore_location": "DIR/key.jks",
            "ssl_keystore_password": "storepass",
            "ssl_key_password": "keypass",
        },
        {"ssl_truststore_location": "DIR/trust.jks", **OWN},
        {
            "ssl_truststore_type": "PKCS12",
            "ssl_truststore_location": "DIR/trust.p12",
            "ssl_truststore_password": "trustpass",
            "ssl_keystore_type": "PKCS12",
            "ssl_keystore_location": "DIR/key.p12",
            "ssl_keystore_password": "storepass",
        },
        # Java's KeyStore of type JKS reads PKCS12 too
        {"ssl_keystore_type": "JKS", "ssl_keystore_location": "DIR/key.p12", "ssl_keystore_password": "storepass",
         **TRUST},
    ],
    ids=[
        "keystore PEM", "PEM files", "encrypted key", "librdkafka PEM text", "Java PEM text", "file and text",
        "text and file", "JKS", "JKS without password", "PKCS12", "PKCS12 named JKS",
    ],
)  # fmt: skip
def test_client_certificate(files: Path, settings: dict[str, str]) -> None:
    with mutual_listener(files) as address:
        with net.dial(address, 5_000, parse(files, **settings).tls) as connection:
            assert connection.recv(100).startswith(b"client TLSv1.3 ")


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({"ssl_enabled_protocols": "TLSv1.2"}, b"client TLSv1.2 "),
        ({"ssl_protocol": "TLSv1.2"}, b"client TLSv1.2 "),
        ({"ssl_enabled_protocols": "TLSv1.3,TLSv1.2", "ssl_protocol": "TLS"}, b"client TLSv1.3 "),
        (
            {"ssl_cipher_suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
            b"client TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256",
        ),
        ({"ssl_cipher_suites": "ECDHE-ECDSA-CHACHA20-POLY1305"}, b"client TLSv1.2 ECDHE-ECDSA-CHACHA20-POLY1305"),
    ],
)
def test_versions_and_cipher_suites(files: Path, settings: dict[str, str], answer: bytes) -> None:
    with mutual_listener(files) as address:
        with net.dial(address, 5_000, parse(files, **TRUST, **OWN, **settings).tls) as connection:
            assert connection.recv(100).startswith(answer)


def test_version_that_the_listener_does_not_have_is_an_error(files: Path) -> None:
    with mutual_listener(files, (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)) as address:
        tls = parse(files, **TRUST, ssl_protocol="TLSv1.2").tls
        with pytest.raises((AuthenticationError, NetworkError), match="TLS handshake with"):
            net.dial(address, 5_000, tls)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl_keystore_location": "DIR/key.p12", "ssl_keystore_password": "x"}, "key.p12 failed: the password is w"),
        ({"ssl_keystore_location": "DIR/key.jks", "ssl_keystore_password": "x"}, "key.jks failed: the password is w"),
        ({"ssl_keystore_location": "DIR/key.jks", "ssl_keystore_password": "storepass"}, "key.jks failed: the passw"),
        ({"ssl_keystore_location": "DIR/key.jks"}, "no private key. .* set kafka.ssl.keystore.password"),
        ({"ssl_keystore_location": "DIR/trust.jks", "ssl_keystore_password": "trustpass"}, "has no private key"),
        ({"ssl_keystore_location": "DIR/none.jks"}, "Loading TLS files failed .*none.jks.*No such file"),
        ({"ssl_cipher_suites": "TLS_NONE_WITH_NULL"}, "kafka.ssl.cipher.suites has no cipher suite"),
        (
            {"ssl_keystore_certificate_chain": certificates.CLIENT, "ssl_keystore_key": certificates.ENCRYPTED_KEY},
            "kafka.ssl.key.password is not set, but the private key in kafka.ssl.keystore.key is encrypted",
        ),
    ],
)
def test_files_that_cannot_be_loaded(files: Path, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        net.dial(Address("127.0.0.1", 1), 1_000, parse(files, **TRUST, **settings).tls)
    assert "storepass" not in str(raised.value) and "PRIVATE" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"ssl_ca_location": "a", "ssl_truststore_certificates": "b"},
            "Options kafka.ssl.ca.location and kafka.ssl.truststore.certificates exclude each other",
        ),
        ({"ssl_truststore_type": "PEM", "ssl_truststore_password": "x"}, "truststore.password is set, but a PEM file"),
        ({"ssl_keystore_type": "PEM", "ssl_keystore_password": "x"}, "or set kafka.ssl.key.password to the password"),
        ({"ssl_keystore_key": "x"}, "keystore.key is set without a certificate"),
        ({"ssl_keystore_certificate_chain": "x"}, "set without a private key. Set kafka.ssl.keystore.key"),
        ({"ssl_keystore_type": "JCEKS"}, "must be one of PEM, PKCS12, JKS, .*keytool .*-srcstoretype JCEKS"),
        ({"ssl_enabled_protocols": "SSLv3"}, "must list versions of TLSv1, .* got 'SSLv3'"),
        ({"ssl_enabled_protocols": "TLSv1.3", "ssl_protocol": "TLSv1.2"}, "leave no version of TLS"),
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256"}, "must have all cipher suites of TLS 1.3"),
        ({"enable_ssl_certificate_verification": "false"}, "must be true.* Set kafka.ssl.ca.location to"),
    ],
)
def test_settings_that_exclude_each_other(files: Path, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse(files, **settings)


def test_store_of_another_kind_names_the_conversion() -> None:
    assert store_type(b"\xce\xce\xce\xce\0") == "JCEKS"
    with pytest.raises(ConfigurationError, match="type JCEKS is not supported. Convert it: keytool .* -srckeystore a"):
        read_store(b"\xce\xce\xce\xce\0\0\0\2", "a", "secret")


@pytest.mark.parametrize("size", [12, 20, 40, 100, 300])
def test_truncated_store_is_an_error(size: int) -> None:
    with pytest.raises(ConfigurationError, match="Reading a failed: the JKS store is damaged"):
        read_store(certificates.KEY_JKS[:size], "a", None)


def test_pkcs12_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(ConfigurationError, match=r"Install spark-groupsource\[tls\].*openssl pkcs12 -in a.p12"):
        read_store(certificates.KEY_PKCS12, "a.p12", "storepass")


def test_passwords_and_keys_are_not_in_the_repr(files: Path) -> None:
    settings = parse(
        files,
        ssl_keystore_certificate_chain="hush",
        ssl_keystore_key="hush",
        ssl_key_password="hush",
        ssl_truststore_password="hush",
    )
    assert "hush" not in repr(settings) + repr(settings.tls)


# --- replaced files ---


def write(path: Path, *parts: str) -> None:
    """Replaces a file as cert-manager and Kubernetes do."""
    new = path.with_suffix(".new")
    write_pem(new, *parts)
    os.replace(new, path)


def test_replaced_files_are_used_for_new_connections(
    files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "client.pem", tmp_path / "key.pem"
    write(certificate, certificates.STRANGER)
    write(key, certificates.KEY)
    tls = parse(files, **TRUST, ssl_certificate_location=str(certificate), ssl_key_location=str(key)).tls

    def answer() -> bytes:
        with mutual_listener(files) as address, net.dial(address, 5_000, tls) as connection:
            try:
                return connection.recv(100)
            except OSError as error:
                return str(error).encode()

    assert b"alert" in answer().lower()
    write(certificate, certificates.CLIENT)
    assert answer().startswith(b"client ")
    with caplog.at_level(logging.WARNING):
        # half of a rotation: the certificate is not complete yet
        write(certificate, "-----BEGIN CERTIFICATE-----\n")
        assert answer().startswith(b"client ") and answer().startswith(b"client ")
    assert len([line for line in caplog.messages if "Changed TLS files are not used" in line]) == 1
    write(certificate, certificates.STRANGER)
    assert b"alert" in answer().lower()
