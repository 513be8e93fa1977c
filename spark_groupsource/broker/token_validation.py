"""Validation of OAUTHBEARER tokens: unsecured JWT, or signed JWT.

Source: Kafka `OAuthBearerUnsecuredValidatorCallbackHandler`, `BrokerJwtValidator`; RFC 7515, RFC 7517.
"""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64decode
from typing import Any, Callable, Mapping, NamedTuple

from spark_groupsource.broker.security_config import SecurityConfig
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.wire.sasl_server import InvalidTokenError

_RSA_HASHES = {"RS256": "SHA256", "RS384": "SHA384", "RS512": "SHA512"}
_EC_CURVES = {"ES256": ("SECP256R1", "SHA256", 32), "ES384": ("SECP384R1", "SHA384", 48)}
_MAX_SUBJECT = 1_000


class ValidToken(NamedTuple):
    """User of a token, and its end in milliseconds since 1970."""

    user: str
    expires_ms: int


class TokenValidator:
    """Validates tokens by the settings `sasl.oauthbearer.*`.

    Args: `now_ms`, milliseconds since 1970.

    Raises: ConfigurationError for an invalid file of keys.
    """

    def __init__(self, config: SecurityConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        url = config.sasl_oauthbearer_jwks_endpoint_url
        if url and not url.startswith("file:"):
            raise ConfigurationError(
                f"Option sasl.oauthbearer.jwks.endpoint.url must be file:///PATH, got {url!r}. Save the keys of the "
                "provider in a file."
            )
        self._path = url.removeprefix("file://")
        self._stamp: tuple[int, int] | None = None
        self._keys: Mapping[str, Any] = {}
        if self._path:
            self._load_keys()

    def validate(self, token: str) -> ValidToken:
        """Returns the user of a token. Raises: InvalidTokenError with the cause."""
        header, claims, signed, signature = _parsed(token)
        if self._path:
            self._verify(header, signed, signature)
        elif header.get("alg") != "none" or signature:
            raise InvalidTokenError("the token is signed, but sasl.oauthbearer.jwks.endpoint.url is not set")
        config, now_ms = self._config, self._now_ms()
        skew_ms = config.sasl_oauthbearer_clock_skew_seconds * 1000
        expires_s, starts_s = _seconds(claims, "exp"), _seconds({"nbf": 0, **claims}, "nbf")
        if now_ms >= expires_s * 1000 + skew_ms:
            raise InvalidTokenError("the token has expired")
        if now_ms < starts_s * 1000 - skew_ms:
            raise InvalidTokenError("the token is not valid yet")
        user = claims.get(config.sasl_oauthbearer_sub_claim_name)
        if not isinstance(user, str) or not 0 < len(user) <= _MAX_SUBJECT:
            raise InvalidTokenError(f"the claim {config.sasl_oauthbearer_sub_claim_name} is missing")
        issuer, audience = config.sasl_oauthbearer_expected_issuer, config.sasl_oauthbearer_expected_audience
        if issuer and claims.get("iss") != issuer:
            raise InvalidTokenError("the claim iss is not sasl.oauthbearer.expected.issuer")
        named = claims.get("aud")
        if audience and not set(audience) & set(named if isinstance(named, list) else [named]):
            raise InvalidTokenError("the claim aud has none of sasl.oauthbearer.expected.audience")
        return ValidToken(user, int(expires_s * 1000))

    def _load_keys(self) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import ec, rsa
        except ImportError as error:
            raise ConfigurationError(
                "Option sasl.oauthbearer.jwks.endpoint.url needs the package cryptography. Install "
                "spark-groupsource[tls]."
            ) from error
        try:
            found = os.stat(self._path)
            stamp = (found.st_mtime_ns, found.st_size)
            if stamp == self._stamp:
                return
            with open(self._path, "rb") as file:
                listed = json.loads(file.read())["keys"]
            keys: dict[str, Any] = {}
            for key in listed:
                if key["kty"] == "RSA":
                    numbers = rsa.RSAPublicNumbers(_integer(key["e"]), _integer(key["n"]))
                    keys[key.get("kid", "")] = numbers.public_key()
                elif key["kty"] == "EC":
                    curve = {"P-256": ec.SECP256R1, "P-384": ec.SECP384R1}[key["crv"]]()
                    point = ec.EllipticCurvePublicNumbers(_integer(key["x"]), _integer(key["y"]), curve)
                    keys[key.get("kid", "")] = point.public_key()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"Option sasl.oauthbearer.jwks.endpoint.url names {self._path}, which is no file of keys "
                f"({type(error).__name__}). Correct it."
            ) from error
        self._keys, self._stamp = keys, stamp

    def _verify(self, header: Mapping[str, Any], signed: bytes, signature: bytes) -> None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

        try:
            self._load_keys()
        except ConfigurationError:
            pass  # while the file is being replaced, its previous keys are used
        algorithm, key = str(header.get("alg")), self._keys.get(str(header.get("kid", "")))
        try:
            if isinstance(key, rsa.RSAPublicKey) and algorithm in _RSA_HASHES:
                key.verify(signature, signed, padding.PKCS1v15(), getattr(hashes, _RSA_HASHES[algorithm])())
                return
            if isinstance(key, ec.EllipticCurvePublicKey) and algorithm in _EC_CURVES:
                curve, name, size = _EC_CURVES[algorithm]
                if key.curve.name == curve.lower() and len(signature) == 2 * size:
                    parts = int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big")
                    key.verify(utils.encode_dss_signature(*parts), signed, ec.ECDSA(getattr(hashes, name)()))
                    return
        except InvalidSignature:
            raise InvalidTokenError("the signature of the token is wrong") from None
        raise InvalidTokenError("the token names no key of sasl.oauthbearer.jwks.endpoint.url, or another algorithm")


def _parsed(token: str) -> tuple[dict[str, Any], dict[str, Any], bytes, bytes]:
    parts = token.split(".")
    try:
        if len(parts) != 3:
            raise ValueError
        header, claims = (json.loads(_decoded(part)) for part in parts[:2])
        if not isinstance(header, dict) or not isinstance(claims, dict):
            raise ValueError
        return header, claims, ".".join(parts[:2]).encode(), _decoded(parts[2])
    except (ValueError, RecursionError):
        raise InvalidTokenError("the token is no JWT") from None


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _integer(text: str) -> int:
    return int.from_bytes(_decoded(text), "big")


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e11:
        raise InvalidTokenError(f"the claim {name} is no time")
    return value
