"""Server side of SASL: RFC 7677 example, client of this package."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode

import pytest

from spark_groupsource.errors import AuthenticationError
from spark_groupsource.wire.sasl_client import SaslClient
from spark_groupsource.wire.sasl_server import (
    SCRAM_HASHES,
    PlainSaslServer,
    ScramCredential,
    ScramSaslServer,
    salted_password,
    scram_credential,
)

SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")


def credential(mechanism: str = "SCRAM-SHA-256", password: str = "pencil") -> ScramCredential:
    return scram_credential(mechanism, salted_password(mechanism, password, SALT, 4096), SALT, 4096)


def server(mechanism: str = "SCRAM-SHA-256", nonce: str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0") -> ScramSaslServer:
    return ScramSaslServer(mechanism, {"user": credential(mechanism)}.get, nonce)


def test_the_example_of_rfc_7677() -> None:
    exchange = server()
    assert exchange.evaluate_response(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert not exchange.is_complete
    assert exchange.evaluate_response(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.is_complete and exchange.user == "user"
    with pytest.raises(AuthenticationError):
        exchange.evaluate_response(b"n,,n=user,r=again")


def test_a_final_message_may_repeat_the_client_nonce() -> None:
    """As librdkafka before 2.6.1 does; Kafka accepts every nonce that ends with the nonce of the challenge."""
    exchange = server(nonce="nonce")
    challenge = exchange.evaluate_response(b"n,,n=user,r=c").decode()
    without_proof = "c=biws,r=ccnonce"
    auth_message = f"n=user,r=c,{challenge},{without_proof}".encode()
    client_key = hmac.digest(salted_password("SCRAM-SHA-256", "pencil", SALT, 4096), b"Client Key", "sha256")
    signature = hmac.digest(credential().stored_key, auth_message, "sha256")
    proof = b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True)))
    assert exchange.evaluate_response(f"{without_proof},p=".encode() + proof).startswith(b"v=")
    assert exchange.is_complete


@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
@pytest.mark.parametrize("user", ["user", "odd=,name", "üser"])
def test_our_client_authenticates(mechanism: str, user: str) -> None:
    exchange = ScramSaslServer(mechanism, {user: credential(mechanism)}.get, "nonce")
    client = SaslClient(mechanism, user, "pencil")
    while not client.is_complete:
        client.evaluate_challenge(exchange.evaluate_response(client.next_token()))
    assert exchange.is_complete and exchange.user == user


@pytest.mark.parametrize("mechanism", SCRAM_HASHES)
@pytest.mark.parametrize(("user", "password"), [("user", "pen"), ("nobody", "pencil")])
def test_a_wrong_password_and_an_unknown_user_have_the_same_error(mechanism: str, user: str, password: str) -> None:
    exchange, client = server(mechanism), SaslClient(mechanism, user, password)
    with pytest.raises(AuthenticationError, match=f"invalid credentials with SASL mechanism {mechanism}"):
        client.evaluate_challenge(exchange.evaluate_response(client.next_token()))
        exchange.evaluate_response(client.next_token())
    assert not exchange.is_complete


@pytest.mark.parametrize(
    "token",
    [
        b"", b"n,,", b"n,,n=user", b"n,,n=,r=x", b"y,,m=x,n=user,r=x", b"p=tls-unique,,n=user,r=x",
        b"n,a=other,n=user,r=x", b"\xff\xfe", b"n,,r=x,n", b"x" * 70_000,
    ],
)  # fmt: skip
def test_an_invalid_first_message_is_rejected(token: bytes) -> None:
    with pytest.raises(AuthenticationError):
        server().evaluate_response(token)


@pytest.mark.parametrize(
    "token",
    [
        b"", b"c=biws,r=cnonce", b"c=biws,r=other,p=AAAA", b"c=eSws,r=cnonce,p=AAAA", b"c=biws,r=cnonce,p=AAAA",
        b"c=biws,r=cnonce,p=!!!!", b"c=biws,r=cnonce,p=",
    ],
)  # fmt: skip
def test_an_invalid_final_message_is_rejected(token: bytes) -> None:
    exchange = server(nonce="nonce")
    assert exchange.evaluate_response(b"n,,n=user,r=c").startswith(b"r=cnonce,")
    with pytest.raises(AuthenticationError):
        exchange.evaluate_response(token)
    assert not exchange.is_complete


def test_plain_authenticates() -> None:
    passwords = {"ann": "secret", "üser": "pässword"}
    for token, user in (("\0ann\0secret", "ann"), ("ann\0ann\0secret", "ann"), ("\0üser\0pässword", "üser")):
        exchange = PlainSaslServer(passwords.get)
        assert exchange.evaluate_response(token.encode()) == b"" and exchange.is_complete and exchange.user == user


@pytest.mark.parametrize(
    "token",
    [
        b"", b"\0ann\0", b"\0ann\0Secret", b"\0\0", b"\0bob\0secret", b"bob\0ann\0secret", b"ann\0secret",
        b"\0ann\0\xff",
    ],
)  # fmt: skip
def test_plain_rejects_invalid_tokens_and_passwords(token: bytes) -> None:
    exchange = PlainSaslServer({"ann": "secret"}.get)
    with pytest.raises(AuthenticationError, match="Authentication failed"):
        exchange.evaluate_response(token)
    assert not exchange.is_complete
