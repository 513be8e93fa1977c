"""TLS settings, and the meaning of failed handshakes.

`ssl` is imported where TLS is used, because it takes as long as all other imports of a connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

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
    "Set kafka.ssl.certificate.location and kafka.ssl.key.location, or kafka.ssl.keystore.location, to a certificate "
    "that the broker trusts (ssl.client.auth)."
)
ClientAuth = Literal["none", "requested", "required"]
"""Whether a listener requests the certificate of a client (ssl.client.auth)."""
STORE_TYPES = ("PEM", "PKCS12", "JKS")
"""The accepted values of `ssl.keystore.type` and `ssl.truststore.type`."""


@dataclass(frozen=True)
class TlsSettings:
    """TLS settings of one client or listener; `repr` omits passwords and keys.

    Attributes:
        ca_file: certificate authorities: a file in PEM, PKCS12 or JKS, or a directory as of `c_rehash`; `ca_pem`: the
            same as PEM text. Without both, the system's.
        cert_file: own certificate with its chain, and the key if `key_file` is None: PEM, PKCS12 or JKS; `cert_pem`
            and `key_pem`: as PEM text.
        ca_password, cert_password: of the stores. key_password: of the private key; None if it is `cert_password`.
        protocols: enabled versions; the default of Python's `ssl` if empty.
        ciphers: enabled cipher suites of TLS 1.2 and earlier in OpenSSL's names; OpenSSL's default if empty.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    ca_pem: str | None = field(default=None, repr=False)
    cert_pem: str | None = field(default=None, repr=False)
    key_pem: str | None = field(default=None, repr=False)
    ca_password: str | None = field(default=None, repr=False)
    cert_password: str | None = field(default=None, repr=False)
    protocols: tuple[str, ...] = ()
    ciphers: tuple[str, ...] = ()


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
    return "Check kafka.ssl.ca.location or kafka.ssl.truststore.location, and the broker's listener."


def is_certificate_alert(error: BaseException | None) -> bool:
    """True if the peer has rejected the certificate of this client."""
    import ssl

    return isinstance(error, ssl.SSLError) and (error.reason or "") in _CERTIFICATE_ALERTS


def is_lost_in_handshake(error: ssl.SSLError) -> bool:
    """True if the peer ended the handshake without a verdict on certificates: a broker or proxy that stops."""
    import ssl

    ended = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
    return isinstance(error, ended) or (error.reason or "") in _LOST_IN_HANDSHAKE
