"""Validation of tokens: claims, signatures, keys that are replaced."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.token_endpoint import encoded

from spark_groupsource.broker.security_config import SecurityConfig
from spark_groupsource.broker.token_validation import TokenValidator
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.wire.sasl_server import InvalidTokenError

NOW_MS = 1_700_000_000_000


def validator(**settings: Any) -> TokenValidator:
    return TokenValidator(SecurityConfig(**settings), lambda: NOW_MS)


def claims(**more: Any) -> str:
    values = {"sub": "ann", "exp": NOW_MS / 1000 + 60, **more}
    return f"{encoded({'alg': 'none'})}.{encoded({name: v for name, v in values.items() if v is not None})}."


@pytest.mark.parametrize(
    ("token", "config", "message"),
    [
        (claims(exp=NOW_MS / 1000 - 31), {}, "has expired"),
        (claims(nbf=NOW_MS / 1000 + 31), {}, "not valid yet"),
        (claims(exp=None), {}, "claim exp is no time"),
        (claims(exp=True), {}, "claim exp is no time"),
        (claims(exp="1"), {}, "claim exp is no time"),
        (claims(exp=1e300), {}, "claim exp is no time"),
        (claims(sub=None), {}, "claim sub is missing"),
        (claims(sub=""), {}, "claim sub is missing"),
        (claims(sub=["a"]), {}, "claim sub is missing"),
        (claims(iss="b"), {"sasl_oauthbearer_expected_issuer": "a"}, "claim iss is not"),
        (claims(aud=["b", "c"]), {"sasl_oauthbearer_expected_audience": ("a",)}, "claim aud has none"),
        (claims() + "YWI", {}, "the token is signed, but"),
        (claims().replace(encoded({"alg": "none"}), encoded({"alg": "HS256"})), {}, "the token is signed, but"),
        ("a.b", {}, "is no JWT"),
        ("a.b.", {}, "is no JWT"),
        (f"{encoded([])}.{encoded({})}.", {}, "is no JWT"),
        (f"{encoded(b'[' * 100_000)}.{encoded({})}.", {}, "is no JWT"),
    ],
)
def test_invalid_tokens(token: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidTokenError, match=message):
        validator(**config).validate(token)


def test_claims_of_valid_tokens() -> None:
    assert validator().validate(claims(exp=NOW_MS / 1000 - 29)) == ("ann", NOW_MS - 29_000)
    config = {"sasl_oauthbearer_expected_audience": ("a", "b"), "sasl_oauthbearer_sub_claim_name": "client_id"}
    assert validator(**config).validate(claims(aud="b", client_id="me")).user == "me"


def test_signed_tokens(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

    def number(value: int) -> str:
        return encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))

    rsa_key = rsa.generate_private_key(65537, 2048)
    ec_key = ec.generate_private_key(ec.SECP256R1())
    public, point = rsa_key.public_key().public_numbers(), ec_key.public_key().public_numbers()
    keys = [
        {"kty": "RSA", "kid": "r", "e": number(public.e), "n": number(public.n)},
        {"kty": "EC", "kid": "e", "crv": "P-256", "x": number(point.x), "y": number(point.y)},
    ]
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": keys}))

    def signed(algorithm: str, key: str) -> str:
        text = f"{encoded({'alg': algorithm, 'kid': key})}.{claims().split('.')[1]}"
        if key == "e":
            der = ec_key.sign(text.encode(), ec.ECDSA(hashes.SHA256()))
            signature = b"".join(part.to_bytes(32, "big") for part in utils.decode_dss_signature(der))
        else:
            signature = rsa_key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{encoded(signature)}"

    checked = validator(sasl_oauthbearer_jwks_endpoint_url=path.as_uri())
    assert checked.validate(signed("RS256", "r")).user == checked.validate(signed("ES256", "e")).user == "ann"
    other = signed("RS256", "r")
    forged = f"{other.split('.')[0]}.{claims(sub='bob').split('.')[1]}.{other.split('.')[2]}"
    for token, message in (
        (forged, "signature of the token is wrong"),
        (claims(), "names no key"),
        (signed("RS256", "x"), "names no key"),
        (signed("HS256", "r"), "or another algorithm"),
        (signed("ES256", "r"), "or another algorithm"),
    ):
        with pytest.raises(InvalidTokenError, match=message):
            checked.validate(token)
    path.write_text(json.dumps({"keys": keys[1:]}))
    os.utime(path, (1, 1))
    with pytest.raises(InvalidTokenError, match="names no key"):
        checked.validate(signed("RS256", "r"))
    for url in ("http://x/jwks", (tmp_path / "none").as_uri()):
        with pytest.raises(ConfigurationError, match="sasl.oauthbearer.jwks.endpoint.url"):
            validator(sasl_oauthbearer_jwks_endpoint_url=url)


