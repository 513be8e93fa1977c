"""Key and trust stores of Java (PKCS12, JKS) as PEM text.

Source: RFC 7292 (PKCS12); the JDK's `sun.security.provider.JavaKeyStore` and `KeyProtector` (JKS).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from base64 import encodebytes
from typing import NamedTuple

from spark_groupsource.errors import ConfigurationError

_JKS_MAGIC, _JCEKS_MAGIC = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_KEY_ENTRY, _CERTIFICATE_ENTRY = 1, 2
_DIGEST_BYTES = 20
# 1.3.6.1.4.1.42.2.17.1.1 in DER: the algorithm of KeyProtector
_KEY_PROTECTOR = bytes.fromhex("060a2b060104012a02110101")


class StoreContent(NamedTuple):
    """Certificates of a store, those of its first private key first, and this key; PEM text, empty if absent."""

    certificates: str
    key: str


def store_type(data: bytes) -> str:
    """Returns the type of a store by its first bytes, as Java does whatever the setting says: PEM is the rest."""
    if data.startswith(_JKS_MAGIC):
        return "JKS"
    if data.startswith(_JCEKS_MAGIC):
        return "JCEKS"
    return "PKCS12" if data.startswith(b"\x30") else "PEM"


def read_store(data: bytes, path: str, password: str | None, key_password: str | None = None) -> StoreContent:
    """Decodes a PKCS12 or JKS store.

    Args:
        path: of the store, for messages.
        key_password: of the private key of a JKS store; None if it is `password`.
    Raises: ConfigurationError if the password is wrong, the store is damaged or of another type.
    """
    kind = store_type(data)
    if kind == "PKCS12":
        return _read_pkcs12(data, path, password)
    if kind == "JKS":
        try:
            return _read_jks(data, path, password, key_password)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"Reading {path} failed: the JKS store is damaged ({error}).") from error
    raise ConfigurationError(
        f"Reading {path} failed: a store of type {kind} is not supported. Convert it: keytool -importkeystore "
        f"-srckeystore {path} -srcstoretype {kind} -destkeystore store.p12 -deststoretype PKCS12."
    )


def _wrong_password(path: str) -> ConfigurationError:
    return ConfigurationError(
        f"Reading {path} failed: the password is wrong or the store is damaged. Check kafka.ssl.keystore.password, "
        "kafka.ssl.key.password or kafka.ssl.truststore.password."
    )


def _pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{encodebytes(der).decode()}-----END {label}-----\n"


def _read_pkcs12(data: bytes, path: str, password: str | None) -> StoreContent:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError as error:
        raise ConfigurationError(
            f"Reading {path} failed: PKCS12 stores need the package cryptography. Install spark-groupsource[tls] on "
            f"the driver and the executors, or convert the store: openssl pkcs12 -in {path} -nodes -out store.pem."
        ) from error
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        raise _wrong_password(path) from error
    found = [store.cert] if store.cert is not None else []
    certificates = [each.certificate for each in (*found, *store.additional_certs)]
    encoding = serialization.Encoding.PEM
    key = b""
    if store.key is not None:
        key = store.key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    return StoreContent("".join(each.public_bytes(encoding).decode() for each in certificates), key.decode())


class _Reader:
    """Reads the fields of a JKS store in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, layout: str = ">I") -> int:
        (value,) = struct.unpack_from(layout, self._data, self._position)
        self._position += struct.calcsize(layout)
        return int(value)

    def take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise IndexError(f"{size} bytes announced, {len(self._data) - self._position} left")
        taken, self._position = self._data[self._position : end], end
        return taken

    def skip_text(self) -> None:
        self.take(self.number(">H"))


def _read_jks(data: bytes, path: str, password: str | None, key_password: str | None) -> StoreContent:
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password is not None:
        # without a password Java does not check the digest either
        secret = password.encode("utf-16-be")
        if not hmac.compare_digest(hashlib.sha1(secret + b"Mighty Aphrodite" + body).digest(), digest):
            raise _wrong_password(path)
    reader = _Reader(body)
    reader.take(len(_JKS_MAGIC))
    version, count = reader.number(), reader.number()

    def certificate() -> bytes:
        if version > 1:
            reader.skip_text()  # X.509
        return reader.take(reader.number())

    trusted: list[bytes] = []
    chain: list[bytes] = []
    protected: bytes | None = None
    for _ in range(count):
        kind = reader.number()
        reader.skip_text()  # alias
        reader.take(8)  # time of creation
        if kind == _CERTIFICATE_ENTRY:
            trusted.append(certificate())
        elif kind == _KEY_ENTRY:
            key = reader.take(reader.number())
            certificates = [certificate() for _ in range(reader.number())]
            if protected is None:
                protected, chain = key, certificates
        else:
            raise IndexError(f"unknown entry {kind}")
    key_text = ""
    if protected is not None and (key_password or password) is not None:
        key_text = _pem("PRIVATE KEY", _unprotect(protected, key_password or password or "", path))
    return StoreContent("".join(_pem("CERTIFICATE", each) for each in (*chain, *trusted)), key_text)


def _unprotect(info: bytes, password: str, path: str) -> bytes:
    """Decrypts an EncryptedPrivateKeyInfo of the JDK's `KeyProtector`: salt, XOR with chained SHA-1, check."""
    start = info.find(_KEY_PROTECTOR)
    if start < 0:
        raise ConfigurationError(f"Reading {path} failed: its private key has an unknown encryption.")
    # NULL parameters, then an OCTET STRING to the end
    octets = _octet_string(info, start + len(_KEY_PROTECTOR) + 2)
    salt, encrypted, check = octets[:_DIGEST_BYTES], octets[_DIGEST_BYTES:-_DIGEST_BYTES], octets[-_DIGEST_BYTES:]
    secret = password.encode("utf-16-be")
    stream, block = b"", salt
    while len(stream) < len(encrypted):
        block = hashlib.sha1(secret + block).digest()
        stream += block
    key = bytes(a ^ b for a, b in zip(encrypted, stream))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), check):
        raise _wrong_password(path)
    return key


def _octet_string(data: bytes, position: int) -> bytes:
    """Returns the content of the OCTET STRING at `position` of a DER encoding."""
    if data[position] != 0x04:
        raise IndexError("no OCTET STRING")
    length, position = data[position + 1], position + 2
    if length & 0x80:
        size = length & 0x7F
        length, position = int.from_bytes(data[position : position + size], "big"), position + size
    return data[position : position + length]
