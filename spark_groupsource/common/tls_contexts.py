"""TLS contexts of clients and listeners, from files that may be replaced."""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from spark_groupsource.common.tls import ClientAuth, TlsSettings
from spark_groupsource.common.tls_stores import read_store, store_type
from spark_groupsource.errors import ConfigurationError

_VERIFY_MODES: dict[ClientAuth, ssl.VerifyMode] = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_MAX_CONTEXTS = 64
_log = logging.getLogger(__name__)


class _LoadedContext(NamedTuple):
    """A context and the stamp of the files that it was loaded from."""

    stamp: tuple[Any, ...]
    context: ssl.SSLContext


_contexts: dict[tuple[Any, ...], _LoadedContext] = {}
_lock = threading.Lock()


def tls_context(tls: TlsSettings, server_auth: ClientAuth | None = None) -> ssl.SSLContext:
    """Returns the context of a client, or of a listener with `server_auth`; files that have changed are read again.

    While changed files cannot be loaded, because they are being replaced, the previous context remains in use.

    Raises: ConfigurationError if a file cannot be loaded.
    """
    key, stamp = (tls, server_auth), _file_stamp(tls)
    with _lock:
        kept = _contexts.get(key)
        if kept is not None and kept.stamp == stamp:
            return kept.context
        try:
            context = _new_context(tls, server_auth)
        except ConfigurationError as error:
            if kept is None:
                raise
            _log.warning("[tls] Changed TLS files are not used: %s", error)
            context = kept.context
        if len(_contexts) >= _MAX_CONTEXTS:
            _contexts.clear()
        _contexts[key] = _LoadedContext(stamp, context)
        return context


def _file_stamp(tls: TlsSettings) -> tuple[tuple[int, int, int] | None, ...]:
    """Returns what changes when a file is written or replaced."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in (tls.ca_file, tls.cert_file, tls.key_file):
        try:
            found = os.stat(path) if path else None
        except OSError:
            found = None
        stamps.append(found and (found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(stamps)


def _new_context(tls: TlsSettings, server_auth: ClientAuth | None) -> ssl.SSLContext:
    try:
        if server_auth is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = tls.check_hostname
            # any certificate of a trust store is trusted, as in Java: also an intermediate one or that of the broker
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.options |= ssl.OP_NO_RENEGOTIATION
            context.verify_mode = _VERIFY_MODES[server_auth]
        _load_authorities(context, tls)
        _load_own_certificate(context, tls)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (tls.ca_file, tls.cert_file, tls.key_file)))
        raise ConfigurationError(
            f"Loading TLS files failed ({files or 'PEM text'}): {error}. Check that the files are PEM, PKCS12 or JKS, "
            "that the key belongs to the certificate, and kafka.ssl.key.password where the key is encrypted."
        ) from error
    _select_versions(context, tls)
    return context


def _load_authorities(context: ssl.SSLContext, tls: TlsSettings) -> None:
    if tls.ca_pem is not None:
        context.load_verify_locations(cadata=tls.ca_pem)
    elif tls.ca_file is None:
        context.load_default_certs()
    elif os.path.isdir(tls.ca_file):
        context.load_verify_locations(capath=tls.ca_file)
    else:
        data = _read(tls.ca_file)
        if store_type(data) == "PEM":
            context.load_verify_locations(cafile=tls.ca_file)
        else:
            certificates = read_store(data, tls.ca_file, tls.ca_password).certificates
            if not certificates:
                raise ConfigurationError(f"Reading {tls.ca_file} failed: the store has no certificates.")
            context.load_verify_locations(cadata=certificates)


def _load_own_certificate(context: ssl.SSLContext, tls: TlsSettings) -> None:
    def key_password() -> str:
        # called for an encrypted key; without a function, Python would read the password from the terminal
        if not tls.key_password:
            raise ConfigurationError(
                f"Option kafka.ssl.key.password is not set, but the private key in "
                f"{tls.key_file or tls.cert_file or 'kafka.ssl.keystore.key'} is encrypted. Set it to the password of "
                "the key."
            )
        return tls.key_password

    certificate, key = tls.cert_pem, tls.key_pem
    if certificate is None and tls.cert_file:
        data = _read(tls.cert_file)
        if store_type(data) == "PEM":
            if key is None:
                context.load_cert_chain(tls.cert_file, tls.key_file, key_password)
                return
            certificate = data.decode("latin-1")
        else:
            store = read_store(data, tls.cert_file, tls.cert_password, tls.key_password)
            if not store.key:
                raise ConfigurationError(
                    f"Reading {tls.cert_file} failed: the store has no private key. Check that "
                    "kafka.ssl.keystore.location is the key store, and set kafka.ssl.keystore.password."
                )
            certificate, key = store
    if certificate is None:
        return
    if key is None and tls.key_file:
        key = _read(tls.key_file).decode("latin-1")
    with _private_file(f"{key or ''}\n{certificate}") as path:
        context.load_cert_chain(path, None, key_password)


def _select_versions(context: ssl.SSLContext, tls: TlsSettings) -> None:
    if tls.protocols:
        versions = sorted(ssl.TLSVersion[name.replace(".", "_")] for name in tls.protocols)
        context.minimum_version, context.maximum_version = versions[0], versions[-1]
    if tls.ciphers:
        try:
            context.set_ciphers(":".join(tls.ciphers))
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"Option kafka.ssl.cipher.suites has no cipher suite that OpenSSL supports: {', '.join(tls.ciphers)}. "
                "Remove the option, or use names such as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384."
            ) from error


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@contextmanager
def _private_file(text: str) -> Iterator[str]:
    """Yields the path of a file with a decrypted key, which OpenSSL reads from files only; in memory on Linux."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("groupsource-key", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp(prefix="groupsource-key-")  # mode 0600
    try:
        with open(descriptor, "w", encoding="latin-1", closefd=False) as file:
            file.write(text)
        yield path
    finally:
        os.close(descriptor)
        if not path.startswith("/proc/"):
            os.unlink(path)
