"""Sources of tokens: token endpoint, file, Python function, AWS, Google, unsecured JWT.

Source: Kafka `HttpJwtRetriever`, `ClientCredentialsJwtRetriever`, `FileJwtRetriever`,
`OAuthBearerUnsecuredLoginCallbackHandler`; RFC 6749 section 4.4.
"""

from __future__ import annotations

import importlib
import json
from base64 import b64encode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Any, Mapping
from urllib.parse import quote, urlencode

from spark_groupsource.client.network.http_requests import http_json, http_text
from spark_groupsource.client.network.tokens import Token, token_of
from spark_groupsource.errors import AuthenticationError, ConfigurationError, GroupSourceError

_METADATA_URL = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/"


@dataclass(frozen=True)
class EndpointSource:
    """The client credentials grant of OAuth 2.0 at a token endpoint."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    ca_file: str | None = None
    is_urlencoded: bool = False
    connect_timeout_ms: int = 10_000
    audience: str = ""

    def request(self, now_ms: int) -> Token:
        user, secret = self.client_id, self.client_secret
        if self.is_urlencoded:
            user, secret = quote(user, safe=""), quote(secret, safe="")
        fields = {"grant_type": "client_credentials"}
        fields |= {name: value for name, value in (("scope", self.scope), ("audience", self.audience)) if value}
        headers = {
            "Authorization": "Basic " + b64encode(f"{user}:{secret}".encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        response = http_json(self.url, headers, urlencode(fields).encode(), self.connect_timeout_ms, self.ca_file)
        value = response.get("access_token") or response.get("id_token")
        if not isinstance(value, str):
            raise AuthenticationError(f"Requesting a token from {self.url} failed: the response has no access_token.")
        seconds = response.get("expires_in")
        expires_ms = now_ms + int(float(seconds) * 1000) if seconds and value.count(".") != 2 else None
        return token_of(value, now_ms, expires_ms, self.extensions)


@dataclass(frozen=True)
class FileSource:
    """A file that another process replaces, for example a Kubernetes service account token."""

    path: str
    extensions: tuple[tuple[str, str], ...] = ()

    def request(self, now_ms: int) -> Token:
        try:
            with open(self.path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise AuthenticationError(
                f"Reading the token file {self.path} failed: {getattr(error, 'strerror', None) or error}. Check "
                "sasl.oauthbearer.token.endpoint.url."
            ) from error
        return token_of(text, now_ms, extensions=self.extensions)


@dataclass(frozen=True)
class FunctionSource:
    """``module:function``, called with `config`: returns the token, or (token, seconds since 1970 at its end, ...).

    The further elements are those of confluent-kafka's `oauth_cb`: the name of the principal, and extensions.
    """

    name: str
    config: str = field(default="", repr=False)
    extensions: tuple[tuple[str, str], ...] = ()

    def request(self, now_ms: int) -> Token:
        function = load_function(self.name)
        try:
            returned = function(self.config)
        except GroupSourceError:
            raise
        except Exception as error:
            # the text of the exception may contain what the function has received
            raise AuthenticationError(
                f"Function {self.name} of sasl.login.callback.handler.class raised {type(error).__name__}. Correct it."
            ) from error
        value, *more = (returned,) if isinstance(returned, str) else tuple(returned)
        extensions = {**dict(self.extensions), **(more[2] if len(more) > 2 and more[2] else {})}
        return token_of(str(value), now_ms, int(float(more[0]) * 1000) if more else None, extensions)


def load_function(name: str) -> Any:
    """Imports ``module:function``. Raises: ConfigurationError."""
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"Option kafka.sasl.login.callback.handler.class names {name!r}, which cannot be imported: {error}. "
            "Install the module on the driver and the executors."
        ) from error
    return function


@dataclass(frozen=True)
class UnsecuredSource:
    """A JWT without signature, for tests, as Kafka's default handler creates it."""

    claims: tuple[tuple[str, str], ...]
    lifetime_s: int = 3600
    extensions: tuple[tuple[str, str], ...] = ()

    def request(self, now_ms: int) -> Token:
        claims = {**dict(self.claims), "iat": now_ms / 1000, "exp": now_ms / 1000 + self.lifetime_s}
        return token_of(f"{_encoded({'alg': 'none'})}.{_encoded(claims)}.", now_ms, extensions=self.extensions)


@dataclass(frozen=True)
class MskSource:
    """AWS MSK IAM: a URL that is signed with the credentials of this machine.

    Attributes:
        region: of the cluster; `sts_region`: where the role is assumed, by default the same.
    """

    region: str
    profile: str = ""
    role_arn: str = ""
    role_session: str = ""
    role_external_id: str = ""
    sts_region: str = ""

    def request(self, now_ms: int) -> Token:
        # most clients do not need it
        from spark_groupsource.client.network.msk_iam import find_credentials, presigned_token

        sts_region = self.sts_region or self.region
        credentials = find_credentials(
            self.profile, self.role_arn, self.role_session, sts_region, self.role_external_id
        )
        value, expires_ms = presigned_token(self.region, credentials, now_ms)
        return token_of(value, now_ms, expires_ms)


@dataclass(frozen=True)
class GoogleSource:
    """Google Managed Service for Apache Kafka: an access token of this machine, as of `GcpLoginCallbackHandler`."""

    def request(self, now_ms: int) -> Token:
        access_token, account, expires_ms = _google_credentials(now_ms)
        header = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
        claims = {
            "exp": expires_ms // 1000,
            "iat": now_ms // 1000,
            "scope": "kafka",
            "sub": account,
            "iss": "Google",
        }
        body = urlsafe_b64encode(access_token.encode()).decode().rstrip("=")
        return token_of(f"{_encoded(header)}.{_encoded(claims)}.{body}", now_ms, expires_ms)


def _google_credentials(now_ms: int) -> tuple[str, str, int]:
    """Returns access token, account and end: of `google-auth` if it is installed, else of the metadata server."""
    try:
        import google.auth
        import google.auth.transport.urllib3
        import urllib3
    except ImportError:
        headers = {"Metadata-Flavor": "Google"}
        response = http_json(_METADATA_URL + "token", headers, None, 5_000)
        account = http_text(_METADATA_URL + "email", headers, None, 5_000)
        return str(response["access_token"]), account.strip(), now_ms + int(response.get("expires_in", 3600)) * 1000
    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        credentials.refresh(google.auth.transport.urllib3.Request(urllib3.PoolManager()))
    except Exception as error:
        raise AuthenticationError(
            f"Requesting a token of Google failed: {type(error).__name__}. Check the application default credentials."
        ) from error
    expires_ms = int(credentials.expiry.timestamp() * 1000) if credentials.expiry else now_ms + 3_600_000
    return credentials.token, getattr(credentials, "service_account_email", "") or "user", expires_ms


def _encoded(value: Mapping[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")
