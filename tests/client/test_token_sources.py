"""Sources of tokens for OAUTHBEARER: failures, lifetime, AWS, Google."""

from __future__ import annotations

import json
import sys
import time
import types
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.token_endpoint import Endpoint, jwt

from spark_groupsource.client.network import msk_iam, token_sources
from spark_groupsource.client.network.msk_iam import AwsCredentials, find_credentials, presigned_token
from spark_groupsource.client.network.tokens import RefreshSettings, Token, TokenCache
from spark_groupsource.errors import AuthenticationError, ConfigurationError, NetworkError

NOW_MS = 1_700_000_000_000


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as running:
        yield running


@pytest.mark.parametrize(
    ("answer", "error_class", "message"),
    [
        ((401, {"error": "bad_client", "error_description": "x\n" * 500}), AuthenticationError, "bad_client: x"),
        ((400, b"<html>"), AuthenticationError, "status 400. Check the URL, client id"),
        ((302, b""), AuthenticationError, "status 302"),
        ((503, b""), NetworkError, "status 503. It is retried"),
        ((200, b"<html>"), AuthenticationError, "is not a JSON object"),
        ((200, {"token": "x"}), AuthenticationError, "has no access_token"),
        ((200, {"access_token": jwt(-10)}), AuthenticationError, "has expired [0-9]+ s ago"),
        ((200, {"access_token": "a\rb"}), AuthenticationError, "characters that are not allowed"),
    ],
)
def test_failures_of_the_endpoint(
    endpoint: Endpoint, answer: Any, error_class: type[Exception], message: str
) -> None:
    endpoint.answer = answer
    source = token_sources.EndpointSource(endpoint.url, "me", "hush")
    with pytest.raises(error_class, match=message) as raised:
        source.request(int(time.time() * 1000))
    text = str(raised.value)
    assert len(text) < 600 and "\n" not in text and "hush" not in text and raised.value.__cause__ is None


def test_opaque_token_expires_by_the_response(endpoint: Endpoint) -> None:
    endpoint.answer = (200, {"access_token": "opaque", "expires_in": 60})
    source = token_sources.EndpointSource(endpoint.url, "a b", "c/d", is_urlencoded=True)
    assert source.request(NOW_MS) == Token("opaque", NOW_MS + 60_000)
    assert b64decode(endpoint.requests[0][1].removeprefix("Basic ")) == b"a%20b:c%2Fd"


def test_audience_is_part_of_the_request(endpoint: Endpoint) -> None:
    token_sources.EndpointSource(endpoint.url, "me", "hush", "s", audience="kafka").request(int(time.time() * 1000))
    assert endpoint.requests[0][2] == {"grant_type": ["client_credentials"], "scope": ["s"], "audience": ["kafka"]}


def test_google_token_of_the_metadata_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "google.auth", None)
    answers = {"token": '{"access_token": "ya29", "expires_in": 100}', "email": "me@x.iam"}

    def answer(url: str, headers: Any, *_: Any, **__: Any) -> str:
        assert headers == {"Metadata-Flavor": "Google"}
        return answers[url.rpartition("/")[2]]

    monkeypatch.setattr(token_sources, "http_text", answer)
    monkeypatch.setattr(token_sources, "http_json", lambda *given: json.loads(answer(*given)))
    token = token_sources.GoogleSource().request(NOW_MS)
    header, claims, body = (urlsafe_b64decode(part + "==") for part in token.value.split("."))
    assert json.loads(header) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"} and body == b"ya29"
    assert json.loads(claims)["sub"] == "me@x.iam" and token.expires_ms == NOW_MS + 100_000


# --- AWS ---


@pytest.mark.parametrize(
    ("session", "signature"),
    [
        ("", "9ade64067b2345ebf3b5528ff729c9a07f67eb12c1c44e66d4584b38b9be52a9"),
        ("IQoJ/b3+Jp==", "7c724457960e4dd2ee4590df2ef2da96dcbe8a96cbb060506b3a4878d1609c10"),
    ],
)
def test_signature_is_that_of_botocore(session: str, signature: str) -> None:
    credentials = AwsCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", session)
    token, expires_ms = presigned_token("us-east-1", credentials, 1_795_350_896_000)
    url = urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    assert url.startswith("https://kafka.us-east-1.amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Algorithm=")
    assert f"&X-Amz-Signature={signature}&User-Agent=spark-groupsource%2F" in url
    assert expires_ms == 1_795_350_896_000 + 900_000 and "wJalr" not in repr(credentials)


AWS_NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CONFIG_FILE")


def test_places_of_aws_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "botocore.session", None)
    for name in (*AWS_NAMES, "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    path.write_text("[default]\naws_access_key_id = A\naws_secret_access_key = %B\n")
    (tmp_path / "config").write_text(
        "[profile p]\naws_access_key_id=C\naws_secret_access_key=D\naws_session_token=E\n"
    )
    assert find_credentials("", "", "", "eu-west-1") == AwsCredentials("A", "%B")
    assert find_credentials("p", "", "", "eu-west-1") == AwsCredentials("C", "D", "E")
    monkeypatch.setenv("AWS_PROFILE", "p")
    assert find_credentials("", "", "", "eu-west-1") == AwsCredentials("C", "D", "E")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "F")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "G")
    assert find_credentials("", "", "", "eu-west-1") == AwsCredentials("F", "G")
    with pytest.raises(AuthenticationError, match="not found in profile 'other'"):
        find_credentials("other", "", "", "eu-west-1")
    with pytest.raises(ConfigurationError, match="awsRoleArn, which needs the package botocore"):
        find_credentials("", "arn:aws:iam::1:role/r", "", "eu-west-1")
    for name in AWS_NAMES:
        monkeypatch.delenv(name, raising=False)
    path.write_text("")
    monkeypatch.setattr(msk_iam, "http_text", lambda url, *_, **__: "role" if url.endswith("/") else "session")
    answer = {"AccessKeyId": "H", "SecretAccessKey": "I", "Token": "J"}
    monkeypatch.setattr(msk_iam, "http_json", lambda *_: answer)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_credentials("", "", "", "eu-west-1") == AwsCredentials("H", "I", "J")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/x")
    with pytest.raises(AuthenticationError, match="AWS_WEB_IDENTITY_TOKEN_FILE, which needs the package botocore"):
        find_credentials("", "", "", "eu-west-1")


def test_role_is_assumed_with_external_id_in_the_region_of_sts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Session:
        def __init__(self, profile: str | None) -> None:
            calls.append(profile)

        def create_client(self, name: str, region_name: str) -> Session:
            calls.append((name, region_name))
            return self

        def assume_role(self, **given: str) -> Any:
            calls.append(given)
            return {"Credentials": {"AccessKeyId": "A", "SecretAccessKey": "B", "SessionToken": "C"}}

    session = types.ModuleType("botocore.session")
    session.Session = Session  # type: ignore[attr-defined]
    botocore = types.ModuleType("botocore")
    botocore.session = session  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "botocore", botocore)
    monkeypatch.setitem(sys.modules, "botocore.session", session)
    source = token_sources.MskSource("eu-west-1", "p", "arn:r", "me", "orders", "us-west-2")
    token = source.request(NOW_MS)
    url = urlsafe_b64decode(token.value + "=" * (-len(token.value) % 4)).decode()
    assert "kafka.eu-west-1.amazonaws.com" in url and "X-Amz-Credential=A%2F" in url
    role = {"RoleArn": "arn:r", "RoleSessionName": "me", "ExternalId": "orders"}
    assert calls == ["p", ("sts", "us-west-2"), role]


# --- refresh ---


class CountedSource:
    """A source whose tokens live `lifetime_s`; `failure` is raised once it is set."""

    def __init__(self, lifetime_s: int) -> None:
        self.count, self.failure = 0, None
        self._lifetime_ms = lifetime_s * 1000

    def request(self, now_ms: int) -> Token:
        if self.failure is not None:
            raise self.failure
        self.count += 1
        return Token(str(self.count), now_ms + self._lifetime_ms)


@pytest.mark.parametrize(
    ("lifetime_s", "refresh", "seconds"),
    [
        (3600, RefreshSettings(), 2880),
        (3600, RefreshSettings(window_factor=0.5), 1800),
        (900, RefreshSettings(), 600),  # the buffer of 300 s
        (100, RefreshSettings(), 80),  # shorter than buffer and period
        (400, RefreshSettings(window_factor=0.5, min_period_s=250, buffer_s=0), 250),
    ],
)
def test_token_is_replaced_in_time(lifetime_s: int, refresh: RefreshSettings, seconds: int) -> None:
    now = [NOW_MS]
    cache, source = TokenCache(lambda: now[0], lambda: 0.0), CountedSource(lifetime_s)
    assert cache.get(source, refresh).value == "1"
    now[0] += seconds * 1000 - 1
    assert cache.get(source, refresh).value == "1"
    now[0] += 1
    assert cache.get(source, refresh).value == "2"


def test_valid_token_outlives_a_failing_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    now = [NOW_MS]
    cache, source = TokenCache(lambda: now[0], lambda: 0.0), CountedSource(1000)
    cache.get(source)
    source.failure = NetworkError("no response")  # type: ignore[assignment]
    now[0] += 900_000
    assert cache.get(source).value == cache.get(source).value == "1"
    assert caplog.text.count("Requesting a new token failed, the previous one is still valid: no response") == 1
    now[0] += 100_000
    with pytest.raises(NetworkError, match="no response"):
        cache.get(source)
    cache.invalidate(source)  # type: ignore[arg-type]


