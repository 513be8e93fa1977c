"""Settings of Kafka's clients that a command skips in properties files."""

from __future__ import annotations

from spark_groupsource.client.settings import REJECTED_SETTINGS

_KEPT = ("enable.ssl.certificate.verification", *(n for n in REJECTED_SETTINGS if n.startswith("ssl.")))
_IGNORED = frozenset(
    {
        *(name for name in REJECTED_SETTINGS if name not in _KEPT),
        *(
            "acks auto.include.jmx.reporter batch.size bootstrap.controllers buffer.memory compression.gzip.level "
            "compression.lz4.level compression.type compression.zstd.level config.providers delivery.timeout.ms "
            "enable.idempotence enable.metrics.push key.serializer linger.ms max.block.ms "
            "max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms metadata.recovery.strategy "
            "metadata.recovery.rebootstrap.trigger.ms metric.reporters partitioner.adaptive.partitioning.enable "
            "partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys retries "
            "security.providers share.acknowledgement.mode ssl.cipher.suites ssl.enabled.protocols "
            "ssl.engine.factory.class ssl.keymanager.algorithm ssl.keystore.password ssl.protocol ssl.provider "
            "ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.password "
            "transaction.timeout.ms transaction.two.phase.commit.enable transactional.id value.serializer"
        ).split(),
    }
)
_IGNORED_PREFIXES = (
    "confluent.",
    "metrics.",
    "sasl.client.callback.",
    "sasl.kerberos.",
    "sasl.login.",
    "sasl.oauthbearer.",
    "schema.registry.",
)


def is_ignored(name: str) -> bool:
    """Returns whether a properties file of Kafka's clients may have this setting, which has no effect here."""
    return name in _IGNORED or name.startswith(_IGNORED_PREFIXES)
