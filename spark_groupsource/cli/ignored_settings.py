"""Settings of Kafka's clients that a command skips in properties files."""

from __future__ import annotations

from spark_groupsource.client.rejected_settings import REJECTED_SETTINGS
from spark_groupsource.client.settings import ACCEPTED_SETTINGS

_IGNORED = frozenset(
    {
        *REJECTED_SETTINGS,
        *(
            "acks auto.include.jmx.reporter auto.register.schemas batch.size bootstrap.controllers buffer.memory "
            "compression.gzip.level "
            "compression.lz4.level compression.type compression.zstd.level delivery.timeout.ms "
            "enable.idempotence key.serializer linger.ms max.block.ms "
            "max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms "
            "partitioner.adaptive.partitioning.enable "
            "partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys retries "
            "transaction.timeout.ms transaction.two.phase.commit.enable transactional.id value.serializer"
        ).split(),
    }
)
_KNOWN = frozenset({name for key in ACCEPTED_SETTINGS.values() for name in (key.name, *key.aliases)})
# basic.auth, bearer.auth and schema.registry are settings of Confluent's serializers
_IGNORED_PREFIXES = (
    "basic.auth.",
    "bearer.auth.",
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
    return name not in _KNOWN and (name in _IGNORED or name.startswith(_IGNORED_PREFIXES))
