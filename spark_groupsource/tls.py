"""TLS settings, contexts, and the meaning of failed handshakes.

`ssl` is imported where TLS is used, because it takes as long as all other imports of a connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spark_groupsource.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

# OpenSSL's names; a listener that is not ready or out of resources sends the alert internal_error
_LOST_IN_HANDSHAKE = frozenset({"UNEXPECTED_EOF_WHILE_READING", "TLSV1_ALERT_INTERNAL_ERROR"})
# X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_OUTSIDE_OF_VALIDITY = frozenset({9, 10})
# X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_OTHER_NAME = frozenset({62, 64})
# OpenSSL's names of the alerts about the certificate of a client
_CERTIFICATE_ALERTS = frozenset(
    {
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "SSLV3_ALERT_NO_CERTIFICATE",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
        "TLSV1_ALERT_UNKNOWN_CA",
    }
)
CLIENT_CERTIFICATE = (
    "Set kafka.ssl.certificate.location and kafka.ssl.key.location to a certificate that the broker trusts "
    "(ssl.client.auth)."
)


class TlsSettings(NamedTuple):
    """TLS files of one client, in PEM; None for the system's defaults."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = None
    check_hostname: bool = True


def handshake_remedy(error: ssl.SSLError) -> str:
    """Returns what to do after a handshake that failed with a verdict on a certificate."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _OTHER_NAME:
        return (
            "Set kafka.bootstrap.servers and advertised.listeners of the brokers to names in their certificates, or "
            "kafka.ssl.endpoint.identification.algorithm to an empty value."
        )
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _OUTSIDE_OF_VALIDITY:
        return "Renew the certificate of the broker, or correct the clock of this machine."
    if is_certificate_alert(error):
        return CLIENT_CERTIFICATE
    return "Check kafka.ssl.ca.location and the broker's listener."


def is_certificate_alert(error: BaseException | None) -> bool:
    """True if the peer has rejected the certificate of this client."""
    import ssl

    return isinstance(error, ssl.SSLError) and (error.reason or "") in _CERTIFICATE_ALERTS


def is_lost_in_handshake(error: ssl.SSLError) -> bool:
    """True if the peer ended the handshake without a verdict on certificates: a broker or proxy that stops."""
    import ssl

    ended = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
    return isinstance(error, ended) or (error.reason or "") in _LOST_IN_HANDSHAKE


def tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """Returns the context of a client. Raises: ConfigurationError if a file cannot be loaded."""
    import ssl

    def key_password() -> str:
        # called for an encrypted key; without a function, Python would read the password from the terminal
        if not tls.key_password:
            raise ConfigurationError(
                f"Option kafka.ssl.key.password is not set, but the private key in {tls.key_file or tls.cert_file} is "
                "encrypted. Set it to the password of the key."
            )
        return tls.key_password

    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        context.check_hostname = tls.check_hostname
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file, key_password)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (tls.ca_file, tls.cert_file, tls.key_file)))
        raise ConfigurationError(
            f"Loading TLS files failed ({files}): {error}. Give them in PEM format, and the password of an encrypted "
            "key as kafka.ssl.key.password."
        ) from error
    return context
