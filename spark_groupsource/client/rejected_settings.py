"""Kafka client settings that are rejected, except with some values.

A value that says what is the case anyway is accepted, and so is a setting that the other settings leave without effect
in Kafka too. Everything else is rejected: a setting without effect would go unnoticed.
"""

from __future__ import annotations

from typing import Mapping

from spark_groupsource.common.config_def import trim

_COMMITS = "offsets are committed when Spark has checkpointed a batch. Remove the option."
_SOCKET_BUFFERS = "the operating system sizes socket buffers. Remove the option."
# phases of KIP-1274: Java's consumer has the other default in 5.0 and loses the classic protocol in 6.0, brokers do not
_CLASSIC_ONLY = (
    "a query joins its group with the classic group protocol, beside members with group.protocol=consumer if there are "
    "any. Brokers serve it in Kafka 5 and 6 too; only Java's consumer loses it in Kafka 6.0 (KIP-1274). Remove the "
    "option."
)
_JAVA_CLASS = "classes in Java cannot run in Python. Remove the option."
_METRICS = "the metrics of the Java client do not exist in Python. Remove the option."
_ASSERTIONS = "tokens are not requested with assertions. Use the client credentials grant, and remove the option."
_LOGIN_RETRIES = "one backoff applies to all retries. Set kafka.retry.backoff.ms instead."

REJECTED_SETTINGS: Mapping[str, str] = {
    "auto.offset.reset": "the source decides where partitions start. Set the option startingOffsets instead.",
    "enable.auto.commit": _COMMITS,
    "auto.commit.interval.ms": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "key.deserializer": "the column key is always binary. Decode it with DataFrame functions.",
    "value.deserializer": "the column value is always binary. Decode it with DataFrame functions.",
    "interceptor.classes": "Java interceptors cannot run in Python. Remove the option.",
    "group.protocol": _CLASSIC_ONLY,
    "group.remote.assignor": _CLASSIC_ONLY,
    "max.poll.records": "a batch has no such limit. Set the option maxOffsetsPerTrigger or maxBytesPerTrigger instead.",
    "receive.buffer.bytes": _SOCKET_BUFFERS,
    "send.buffer.bytes": _SOCKET_BUFFERS,
    "socket.receive.buffer.bytes": _SOCKET_BUFFERS,
    "socket.send.buffer.bytes": _SOCKET_BUFFERS,
    "api.version.request": "API versions are always negotiated. Remove the option.",
    "client.dns.lookup": "every resolved address is tried. Remove the option.",
    "reconnect.backoff.ms": "one backoff applies to all retries. Set kafka.retry.backoff.ms instead.",
    "reconnect.backoff.max.ms": "one backoff applies to all retries. Set kafka.retry.backoff.max.ms instead.",
    "socket.connection.setup.timeout.max.ms": (
        "the timeout grows up to request.timeout.ms. Set kafka.request.timeout.ms instead."
    ),
    "allow.auto.create.topics": "the source never creates topics of a cluster. Remove the option.",
    "socket.keepalive.enable": "lost connections are replaced. Remove the option.",
    "enable.metrics.push": "no metrics are sent to the brokers. Remove the option.",
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "metadata.recovery.strategy": (
        "the bootstrap servers are tried again as soon as no known broker responds. Remove the option."
    ),
    "internal.throw.on.fetch.stable.offset.unsupported": "it is internal to Kafka Streams. Remove the option.",
    "security.providers": _JAVA_CLASS,
    "ssl.engine.factory.class": _JAVA_CLASS,
    "ssl.keymanager.algorithm": "OpenSSL selects the client certificate. Remove the option.",
    "ssl.trustmanager.algorithm": "OpenSSL verifies certificates. Remove the option.",
    "ssl.provider": _JAVA_CLASS,
    "ssl.secure.random.implementation": _JAVA_CLASS,
    "sasl.login.class": _JAVA_CLASS,
    "sasl.login.read.timeout.ms": (
        "the timeout of the connection is that of the response, too. Set kafka.sasl.login.connect.timeout.ms instead."
    ),
    "sasl.login.retry.backoff.ms": _LOGIN_RETRIES,
    "sasl.login.retry.backoff.max.ms": _LOGIN_RETRIES,
    "sasl.oauthbearer.scope.claim.name": "the broker checks the scope of a token. Remove the option.",
    "sasl.oauthbearer.sub.claim.name": "the broker checks the subject of a token. Remove the option.",
    "sasl.oauthbearer.jwt.validator.class": _JAVA_CLASS,
    "sasl.oauthbearer.assertion.algorithm": _ASSERTIONS,
    "sasl.oauthbearer.assertion.claim.aud": _ASSERTIONS,
    "sasl.oauthbearer.assertion.claim.exp.seconds": _ASSERTIONS,
    "sasl.oauthbearer.assertion.claim.iss": _ASSERTIONS,
    "sasl.oauthbearer.assertion.claim.jti.include": _ASSERTIONS,
    "sasl.oauthbearer.assertion.claim.nbf.seconds": _ASSERTIONS,
    "sasl.oauthbearer.assertion.claim.sub": _ASSERTIONS,
    "sasl.oauthbearer.assertion.file": _ASSERTIONS,
    "sasl.oauthbearer.assertion.private.key.file": _ASSERTIONS,
    "sasl.oauthbearer.assertion.private.key.passphrase": _ASSERTIONS,
    "sasl.oauthbearer.assertion.template.file": _ASSERTIONS,
}
"""Settings that are rejected unless their value is accepted: name -> reason and what to do instead."""

_OF_CONSUMERS = frozenset(
    {
        "auto.offset.reset",
        "enable.auto.commit",
        "auto.commit.interval.ms",
        "enable.auto.offset.store",
        "key.deserializer",
        "value.deserializer",
        "group.protocol",
        "group.remote.assignor",
        "max.poll.records",
        "allow.auto.create.topics",
        "internal.throw.on.fetch.stable.offset.unsupported",
    }
)

PRODUCER_REJECTED_SETTINGS: Mapping[str, str] = {
    **{name: reason for name, reason in REJECTED_SETTINGS.items() if name not in _OF_CONSUMERS},
    "key.serializer": "the column key is binary or string, and is written as it is. Remove the option.",
    "value.serializer": "the column value is binary or string, and is written as it is. Remove the option.",
    "partitioner.class": (
        "partitions are those that the default partitioner of Kafka's Java producer chooses. Set the column partition "
        "to choose others, and remove the option."
    ),
    "partitioner.ignore.keys": "a key decides the partition. Set the column partition, and remove the option.",
    "partitioner.rack.aware": "partitions are those of all racks. Remove the option.",
    "transaction.two.phase.commit.enable": "transactions end without an external coordinator. Remove the option.",
}
"""As `REJECTED_SETTINGS`, of producers."""

_BINARY = ("org.apache.kafka.common.serialization.ByteArrayDeserializer",)
_SERIALIZER = ("org.apache.kafka.common.serialization.ByteArraySerializer",)
ACCEPTED_VALUES: Mapping[str, tuple[str, ...]] = {
    "enable.auto.commit": ("false",),
    "enable.auto.offset.store": ("false",),
    "key.deserializer": _BINARY,
    "value.deserializer": _BINARY,
    "key.serializer": _SERIALIZER,
    "value.serializer": _SERIALIZER,
    "partitioner.class": ("",),
    "partitioner.ignore.keys": ("false",),
    "partitioner.rack.aware": ("false",),
    "transaction.two.phase.commit.enable": ("false",),
    "interceptor.classes": ("",),
    "group.protocol": ("classic",),
    "receive.buffer.bytes": ("-1",),
    "send.buffer.bytes": ("-1",),
    "socket.receive.buffer.bytes": ("0",),
    "socket.send.buffer.bytes": ("0",),
    "api.version.request": ("true",),
    "client.dns.lookup": ("use_all_dns_ips",),
    "allow.auto.create.topics": ("false",),
    "socket.keepalive.enable": ("false",),
    "enable.metrics.push": ("false",),
    "metric.reporters": ("",),
    "metrics.num.samples": ("2",),
    "metrics.recording.level": ("INFO",),
    "metrics.sample.window.ms": ("30000",),
    "metadata.recovery.strategy": ("rebootstrap",),
    "internal.throw.on.fetch.stable.offset.unsupported": ("false",),
    "security.providers": ("",),
    "ssl.engine.factory.class": ("",),
    "ssl.keymanager.algorithm": ("SunX509", "PKIX"),
    "ssl.trustmanager.algorithm": ("PKIX",),
    "ssl.provider": ("",),
    "ssl.secure.random.implementation": ("",),
    "sasl.login.class": ("",),
    "sasl.oauthbearer.scope.claim.name": ("scope",),
    "sasl.oauthbearer.sub.claim.name": ("sub",),
    "sasl.oauthbearer.jwt.validator.class": (
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "org.apache.kafka.common.security.oauthbearer.ClientJwtValidator",
    ),
    # used with an assertion alone
    "sasl.oauthbearer.assertion.algorithm": ("RS256", "ES256"),
    "sasl.oauthbearer.assertion.claim.exp.seconds": ("300",),
    "sasl.oauthbearer.assertion.claim.jti.include": ("false",),
    "sasl.oauthbearer.assertion.claim.nbf.seconds": ("60",),
}
"""Values of rejected settings, in any case, that say what is the case anyway, or are defaults that ask for nothing."""

EQUAL_SETTINGS: Mapping[str, str] = {
    "reconnect.backoff.ms": "retry.backoff.ms",
    "reconnect.backoff.max.ms": "retry.backoff.max.ms",
    "socket.connection.setup.timeout.max.ms": "request.timeout.ms",
    "sasl.login.read.timeout.ms": "sasl.login.connect.timeout.ms",
    "sasl.login.retry.backoff.ms": "retry.backoff.ms",
    "sasl.login.retry.backoff.max.ms": "retry.backoff.max.ms",
}
"""Rejected settings that are accepted with the value of another setting, which holds for both."""

_GSSAPI, _BROKERS, _SHARE = "GSSAPI, which is rejected", "brokers", "share consumers"
UNUSED_SETTINGS: Mapping[str, str] = {
    "sasl.kerberos.kinit.cmd": _GSSAPI,
    "sasl.kerberos.min.time.before.relogin": _GSSAPI,
    "sasl.kerberos.service.name": _GSSAPI,
    "sasl.kerberos.ticket.renew.jitter": _GSSAPI,
    "sasl.kerberos.ticket.renew.window.factor": _GSSAPI,
    "sasl.oauthbearer.allow.unverified.audience": _BROKERS,
    "sasl.oauthbearer.allow.unverified.issuer": _BROKERS,
    "sasl.oauthbearer.clock.skew.seconds": _BROKERS,
    "sasl.oauthbearer.expected.audience": _BROKERS,
    "sasl.oauthbearer.expected.issuer": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": _BROKERS,
    "sasl.oauthbearer.jwks.endpoint.url": _BROKERS,
    "share.acknowledgement.mode": _SHARE,
    "share.acquire.mode": _SHARE,
}
"""Settings without effect in a consumer, also in Kafka's: name -> what uses them; every value is accepted."""


def is_unused(name: str, settings: Mapping[str, str]) -> bool:
    """Returns whether the other settings leave a setting without effect, in Kafka too."""
    protocol = trim(settings.get("security.protocol", "PLAINTEXT")).upper()
    mechanism = trim(settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "").upper()
    if name.startswith("ssl."):
        return not protocol.endswith("SSL")
    if name.startswith("sasl."):
        return not protocol.startswith("SASL") or mechanism not in ("", "OAUTHBEARER")
    return name == "auto.commit.interval.ms" and trim(settings.get("enable.auto.commit", "")).lower() == "false"


def is_accepted_value(name: str, value: str) -> bool:
    """Returns whether a rejected setting has a value that says what is the case anyway."""
    return trim(value).lower() in [each.lower() for each in ACCEPTED_VALUES.get(name, ())]
