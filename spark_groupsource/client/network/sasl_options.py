"""SASL settings of a client: mechanisms, login modules, callback handlers, token sources.

Names are those of Kafka's Java client and of librdkafka; login modules and handlers are recognized by the last part of
their class name, because vendors move classes to other packages.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping, NamedTuple
from urllib.parse import unquote, urlparse

from spark_groupsource.client.network.token_sources import (
    EndpointSource,
    FileSource,
    FunctionSource,
    GoogleSource,
    MskSource,
    UnsecuredSource,
)
from spark_groupsource.client.network.tokens import RefreshSettings, TokenSource
from spark_groupsource.common.config_def import ConfigKey, ConfigType, comma_list
from spark_groupsource.errors import ConfigurationError

OAUTHBEARER, AWS_MSK_IAM = "OAUTHBEARER", "AWS_MSK_IAM"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER, AWS_MSK_IAM)

_JAAS_OPTION = re.compile(r'([\w.]+)\s*=\s*("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^\s;]+)')
_JAAS_MODULES: Mapping[str, tuple[str, ...]] = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": (OAUTHBEARER,),
    "IAMLoginModule": (AWS_MSK_IAM,),
}
_MSK_HOST = re.compile(r"\.([a-z]{2}(?:-[a-z]+)+-\d)\.(?:amazonaws|api\.aws)")
_CLIENT_HANDLERS = ("", "IAMClientCallbackHandler", "IAMOAuthBearerLoginCallbackHandler")
_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_ENDPOINT_HINT = (
    "Set kafka.sasl.oauthbearer.token.endpoint.url, kafka.sasl.oauthbearer.client.credentials.client.id and "
    "kafka.sasl.oauthbearer.client.credentials.client.secret instead, or "
    "kafka.sasl.login.callback.handler.class=module:function of a function in Python that returns a token."
)

_KERBEROS = "Kerberos is not supported. Use a listener of the cluster with SCRAM or TLS certificates."
_STATIC_KEYS = (
    "Set the environment variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN on the driver and "
    "the executors instead."
)
_REJECTED_JAAS_OPTIONS: Mapping[str, str] = {
    "awsRoleAccessKeyId": _STATIC_KEYS,
    "awsRoleSecretAccessKey": _STATIC_KEYS,
    "awsRoleSessionToken": _STATIC_KEYS,
    "oauth.access.token": f"Write the token to a file and set kafka.{_ENDPOINT}=file:///PATH.",
    "oauth.refresh.token": _ENDPOINT_HINT,
    "oauth.refresh.token.location": _ENDPOINT_HINT,
    "oauth.password.grant.username": _ENDPOINT_HINT,
    "oauth.client.assertion": _ENDPOINT_HINT,
    "oauth.client.assertion.location": _ENDPOINT_HINT,
    "oauth.ssl.keystore.location": "Use a token endpoint without client certificates.",
    "ssl.keystore.location": "Use a token endpoint without client certificates.",
}
"""Options of login modules that change the identity, with what to do; others without effect here are ignored."""


def _text(name: str, doc: str, *aliases: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.STRING, None, doc, parser=lambda _, text: text, aliases=aliases)


def _secret(name: str, doc: str, *aliases: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.PASSWORD, None, doc, parser=lambda _, text: text, aliases=aliases)


def _number(
    name: str, type_: ConfigType, default: float, low: float, high: float, doc: str, unit: str = ""
) -> ConfigKey:
    return ConfigKey(name, type_, default, doc, low=low, high=high, unit=unit)


def _parse_mechanism(name: str, text: str) -> str:
    return text.upper()


SASL_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "sasl.mechanism",
        ConfigType.STRING,
        None,
        "SASL mechanism; taken from the login module where sasl.jaas.config is set.",
        choices=MECHANISMS,
        aliases=("sasl.mechanisms",),
        parser=_parse_mechanism,
        kafka_default="GSSAPI",
    ),
    _secret(
        "sasl.jaas.config",
        "PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule or IAMLoginModule with their options.",
    ),
    _text("sasl.username", "User name; librdkafka's alternative to sasl.jaas.config."),
    _secret("sasl.password", "Password; librdkafka's alternative to sasl.jaas.config."),
    _text(
        "sasl.client.callback.handler.class",
        "IAMClientCallbackHandler or IAMOAuthBearerLoginCallbackHandler of AWS are accepted, others have no effect in "
        "Python and are rejected.",
    ),
    _text(
        "sasl.login.callback.handler.class",
        "Source of tokens: a handler of Kafka, AWS, Google or Strimzi, or module:function of a function in Python.",
    ),
    _text(
        _ENDPOINT,
        "Token endpoint for the client credentials grant, or file:///PATH of a token that another process replaces.",
    ),
    _text(
        "sasl.oauthbearer.client.credentials.client.id",
        "Client id at the token endpoint.",
        "sasl.oauthbearer.client.id",
    ),
    _secret(
        "sasl.oauthbearer.client.credentials.client.secret",
        "Client secret at the token endpoint.",
        "sasl.oauthbearer.client.secret",
    ),
    _text("sasl.oauthbearer.scope", "Scope requested at the token endpoint."),
    _text("sasl.oauthbearer.extensions", "SASL extensions as name=value, separated by commas."),
    _text("sasl.oauthbearer.method", "librdkafka's choice of the token source: default or oidc."),
    _secret("sasl.oauthbearer.config", "Passed to the function of sasl.login.callback.handler.class."),
    _text(
        "sasl.oauthbearer.jwt.retriever.class",
        "DefaultJwtRetriever, ClientCredentialsJwtRetriever or FileJwtRetriever of Kafka.",
    ),
    ConfigKey(
        "sasl.oauthbearer.header.urlencode",
        ConfigType.BOOLEAN,
        False,
        "Whether client id and secret are URL-encoded in the Authorization header.",
    ),
    _text("https.ca.location", "PEM file of the authorities of the token endpoint; the system's when not set."),
    _number(
        "sasl.login.connect.timeout.ms", ConfigType.INT, 10_000, 1, 2**31 - 1,
        "How long to wait for the token endpoint.", "ms",
    ),
    _number(
        "sasl.login.refresh.window.factor", ConfigType.DOUBLE, 0.8, 0.5, 1.0,
        "Part of a token's lifetime after which new connections request another one.",
    ),
    _number(
        "sasl.login.refresh.window.jitter", ConfigType.DOUBLE, 0.05, 0.0, 0.25,
        "Largest random part of the lifetime that is added to the window factor.",
    ),
    _number(
        "sasl.login.refresh.min.period.seconds", ConfigType.INT, 60, 0, 900,
        "Shortest time between two requests of a token.", "s",
    ),
    _number(
        "sasl.login.refresh.buffer.seconds", ConfigType.INT, 300, 0, 3600,
        "Time before the end of a token at which it is replaced at the latest.", "s",
    ),
)  # fmt: skip
"""Settings of SASL."""


class Login(NamedTuple):
    """Mechanism and credentials; `source` is None for user and password."""

    mechanism: str
    username: str | None = None
    password: str | None = None
    source: TokenSource | None = None
    refresh: RefreshSettings = RefreshSettings()


class JaasConfig(NamedTuple):
    """Login module (the last part of its class name) and its options."""

    module: str
    options: Mapping[str, str]


def read_jaas(text: str) -> JaasConfig:
    """Parses a ``sasl.jaas.config`` value. Raises: ConfigurationError for another login module."""
    module = text.split(maxsplit=1)[0].rpartition(".")[2] if text.split() else ""
    if module not in _JAAS_MODULES:
        kerberos = f" {_KERBEROS}" if module == "Krb5LoginModule" else ""
        # other text may be a password
        got = f"got {module!r}" if module.endswith("LoginModule") else "got another text"
        raise ConfigurationError(
            f"Option kafka.sasl.jaas.config must name one of {', '.join(_JAAS_MODULES)}, {got}.{kerberos}"
        )
    options = {
        name: re.sub(r"\\(.)", r"\1", value[1:-1]) if value[:1] in ('"', "'") else value
        for name, value in _JAAS_OPTION.findall(text)
    }
    _check_jaas_options(options)
    return JaasConfig(module, options)


def _check_jaas_options(options: Mapping[str, str]) -> None:
    rejected = next((name for name in options if name in _REJECTED_JAAS_OPTIONS), None)
    if rejected is not None:
        raise ConfigurationError(
            f"Option kafka.sasl.jaas.config has {rejected}, which is not supported. {_REJECTED_JAAS_OPTIONS[rejected]}"
        )
    if options.get("tokenauth", "").lower() == "true":
        raise ConfigurationError(
            "Option kafka.sasl.jaas.config has tokenauth, which is not supported: delegation tokens. Use the name and "
            "the password of a SCRAM user."
        )


def parse_jaas(text: str) -> tuple[tuple[str, ...], str, str]:
    """Returns mechanisms, user name and password of a ``sasl.jaas.config`` value.

    Raises: ConfigurationError on another login module and on a missing user name or password.
    """
    module, options = read_jaas(text)
    for needed in ("username", "password"):
        if needed not in options:
            raise ConfigurationError(
                f'Option kafka.sasl.jaas.config has no {needed}. Write {needed}="..." before the semicolon.'
            )
    return _JAAS_MODULES[module], options["username"], options["password"]


def parse_login(values: Mapping[str, Any], protocol: str, bootstrap: str) -> Login:
    """Returns the login of parsed values of `SASL_KEYS`.

    Args:
        bootstrap: the bootstrap servers, whose names contain the region of AWS.
    Raises: ConfigurationError for a mechanism, module or handler that is not supported, and missing credentials.
    """
    mechanism = values.get("sasl.mechanism", "")
    if mechanism in ("GSSAPI", "KERBEROS"):
        raise ConfigurationError(
            f"Option kafka.sasl.mechanism must be one of {', '.join(MECHANISMS)}, got {mechanism!r}: {_KERBEROS}"
        )
    jaas = read_jaas(values["sasl.jaas.config"]) if "sasl.jaas.config" in values else None
    if jaas is not None:
        allowed = _JAAS_MODULES[jaas.module]
        mechanism = mechanism or allowed[0]
        if mechanism not in allowed:
            raise ConfigurationError(
                f"Option kafka.sasl.mechanism is {mechanism}, but the login module in kafka.sasl.jaas.config "
                f"is for {', '.join(allowed)}. Set both to the same mechanism."
            )
    if mechanism not in MECHANISMS:
        got = f"got {mechanism!r}" if mechanism else "but is not set"
        raise ConfigurationError(f"Option kafka.sasl.mechanism must be one of {', '.join(MECHANISMS)}, {got}.")
    if mechanism in (OAUTHBEARER, AWS_MSK_IAM):
        source = _token_source(mechanism, values, jaas.options if jaas is not None else {}, bootstrap)
        return Login(mechanism, source=source, refresh=_refresh(values))
    username, password = values.get("sasl.username"), values.get("sasl.password")
    if jaas is not None:
        _, username, password = parse_jaas(values["sasl.jaas.config"])
    if not username or password is None:
        raise ConfigurationError(
            f"Option kafka.security.protocol is {protocol}, but user name or password is missing. Set "
            "kafka.sasl.username and kafka.sasl.password, or kafka.sasl.jaas.config."
        )
    return Login(mechanism, username, password)


def _refresh(values: Mapping[str, Any]) -> RefreshSettings:
    default = RefreshSettings()
    return RefreshSettings(
        values.get("sasl.login.refresh.window.factor", default.window_factor),
        values.get("sasl.login.refresh.window.jitter", default.window_jitter),
        values.get("sasl.login.refresh.min.period.seconds", default.min_period_s),
        values.get("sasl.login.refresh.buffer.seconds", default.buffer_s),
    )


class _Given(NamedTuple):
    """What a token source is made from."""

    values: Mapping[str, Any]
    jaas: Mapping[str, str]
    bootstrap: str

    def extensions(self) -> tuple[tuple[str, str], ...]:
        listed = (part.partition("=") for part in comma_list(self.values.get("sasl.oauthbearer.extensions") or ""))
        found = {name.strip(): value.strip() for name, _, value in listed if name.strip()}
        found |= {
            name.removeprefix("extension_"): value for name, value in self.jaas.items() if name.startswith("extension_")
        }
        return tuple(sorted(found.items()))


def _token_source(
    mechanism: str, values: Mapping[str, Any], jaas: Mapping[str, str], bootstrap: str
) -> TokenSource:
    given = _Given(values, jaas, bootstrap)
    client_handler = (values.get("sasl.client.callback.handler.class") or "").rpartition(".")[2]
    if client_handler not in _CLIENT_HANDLERS:
        raise ConfigurationError(
            f"Option kafka.sasl.client.callback.handler.class names {client_handler}, a class in Java. Remove it."
        )
    if mechanism == AWS_MSK_IAM or client_handler == "IAMClientCallbackHandler":
        return _msk(given)
    name = values.get("sasl.login.callback.handler.class") or ""
    if ":" in name:
        return FunctionSource(name, values.get("sasl.oauthbearer.config") or "", given.extensions())
    handler = name.rpartition(".")[2]
    factory = _HANDLERS.get(handler)
    if factory is None:
        raise ConfigurationError(
            f"Option kafka.sasl.login.callback.handler.class names {handler}, a class in Java that cannot run in "
            f"Python. {_ENDPOINT_HINT}"
        )
    return factory(given)


def _msk(given: _Given) -> TokenSource:
    found = _MSK_HOST.search(given.bootstrap)
    region = given.jaas.get("awsStsRegion") or (found[1] if found else "")
    if found is None and not region:
        import os

        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    if not region:
        raise ConfigurationError(
            "Option kafka.bootstrap.servers does not name a region of AWS, which MSK IAM needs. Set the environment "
            "variable AWS_REGION on the driver and the executors."
        )
    return MskSource(
        found[1] if found else region,
        given.jaas.get("awsProfileName", ""),
        given.jaas.get("awsRoleArn", ""),
        given.jaas.get("awsRoleSessionName", ""),
        given.jaas.get("awsRoleExternalId", ""),
        given.jaas.get("awsStsRegion", ""),
    )


def _endpoint(given: _Given) -> TokenSource:
    values, jaas = given.values, given.jaas
    url = values.get(_ENDPOINT) or jaas.get("oauth.token.endpoint.uri") or ""
    retriever = (values.get("sasl.oauthbearer.jwt.retriever.class") or "").rpartition(".")[2]
    if retriever not in ("", "DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever"):
        raise ConfigurationError(
            f"Option kafka.sasl.oauthbearer.jwt.retriever.class names {retriever}, which is not supported. "
            f"{_ENDPOINT_HINT}"
        )
    if not url and jaas.get("oauth.access.token.location"):
        return FileSource(jaas["oauth.access.token.location"], given.extensions())
    if not url:
        return _unsecured(given)
    if url.startswith("file:"):
        return FileSource(unquote(urlparse(url).path), given.extensions())
    client_id = (
        values.get("sasl.oauthbearer.client.credentials.client.id")
        or jaas.get("clientId")
        or jaas.get("oauth.client.id")
    )
    secret = (
        values.get("sasl.oauthbearer.client.credentials.client.secret")
        or jaas.get("clientSecret")
        or jaas.get("oauth.client.secret")
    )
    if not client_id or not secret:
        missing = "client.id" if not client_id else "client.secret"
        raise ConfigurationError(
            f"Option kafka.{_ENDPOINT} is set without client id or secret. Set "
            f"kafka.sasl.oauthbearer.client.credentials.{missing}, or clientId and clientSecret in "
            "kafka.sasl.jaas.config."
        )
    return EndpointSource(
        # without a scheme, librdkafka requests by HTTP
        url if "://" in url else f"http://{url}",
        client_id,
        secret,
        values.get("sasl.oauthbearer.scope") or jaas.get("scope") or jaas.get("oauth.scope") or "",
        given.extensions(),
        values.get("https.ca.location") or _endpoint_authorities(jaas),
        bool(values.get("sasl.oauthbearer.header.urlencode")),
        int(values.get("sasl.login.connect.timeout.ms", 10_000)),
        jaas.get("oauth.audience", ""),
    )


def _endpoint_authorities(jaas: Mapping[str, str]) -> str | None:
    """Returns the trust store of the token endpoint that a login module of Strimzi or Kafka names; None without one."""
    for prefix in ("oauth.ssl.truststore", "ssl.truststore"):
        path = jaas.get(f"{prefix}.location")
        if path and jaas.get(f"{prefix}.type", "").upper() != "PEM":
            raise ConfigurationError(
                f"Option kafka.sasl.jaas.config has {prefix}.location, which is supported for PEM files alone. Set "
                "kafka.https.ca.location to a PEM file of the authorities of the token endpoint."
            )
        if path:
            return path
    return None


def _unsecured(given: _Given) -> TokenSource:
    claims = tuple(
        (name.removeprefix("unsecuredLoginStringClaim_"), value)
        for name, value in sorted(given.jaas.items())
        if name.startswith("unsecuredLoginStringClaim_")
    )
    if not claims:
        raise ConfigurationError(f"Option kafka.sasl.mechanism is OAUTHBEARER without a token source. {_ENDPOINT_HINT}")
    lifetime_s = given.jaas.get("unsecuredLoginLifetimeSeconds", "3600")
    if not lifetime_s.isdigit():
        raise ConfigurationError(
            "Option kafka.sasl.jaas.config has unsecuredLoginLifetimeSeconds, which must be an integer."
        )
    return UnsecuredSource(claims, int(lifetime_s), given.extensions())


_HANDLERS: Mapping[str, Callable[[_Given], TokenSource]] = {
    "": _endpoint,
    # Kafka 3.1 to 4.x, also in the package of secured handlers
    "OAuthBearerLoginCallbackHandler": _endpoint,
    "OAuthBearerUnsecuredLoginCallbackHandler": _endpoint,
    "JaasClientOauthLoginCallbackHandler": _endpoint,  # Strimzi
    "IAMOAuthBearerLoginCallbackHandler": _msk,
    "GcpLoginCallbackHandler": lambda given: GoogleSource(),
}
"""Login callback handlers by the last part of their class name."""
