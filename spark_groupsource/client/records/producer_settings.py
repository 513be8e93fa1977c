"""Settings of Kafka's producer: names, defaults, bounds, parsing.

Source: Kafka 4.3 `ProducerConfig`, also for the settings that exclude each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping

from spark_groupsource.client.network.security import OPTION_PREFIX, SECURITY_KEYS, SecuritySettings
from spark_groupsource.client.rejected_settings import PRODUCER_REJECTED_SETTINGS, REJECTED_SETTINGS, UNUSED_SETTINGS
from spark_groupsource.client.settings import (
    ACCEPTED_SETTINGS,
    FIXED_KEYS,
    ClientSettings,
    check_names,
    parse_transactional_id,
)
from spark_groupsource.common.config_def import (
    INT32_MAX,
    INT64_MAX,
    ConfigKey,
    ConfigType,
    config_keys,
    parse_given,
    parse_integer,
    setting,
)
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.records.compression import CODECS, codec_number

ACKS_ALL = -1
_MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5
_ACKS = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": 1}


def _parse_acks(name: str, text: str) -> int:
    if text == "0":
        raise ConfigurationError(
            f"Option {name}=0 is not supported: a task returns when its records are acknowledged. Use all or 1."
        )
    if text not in _ACKS:
        raise ConfigurationError(f"Option {name} must be one of all, -1, 1, got {text!r}.")
    return _ACKS[text]


def _parse_codec(name: str, text: str) -> int:
    if text not in CODECS:
        raise ConfigurationError(f"Option {name} must be one of {', '.join(CODECS)}, got {text!r}.")
    return codec_number(text)


def _parse_gzip_level(name: str, text: str) -> int:
    found = parse_integer(text)
    if found is None or found != -1 and not 1 <= found <= 9:
        raise ConfigurationError(f"Option {name} must be an integer between 1 and 9, or -1, got {text!r}.")
    return found


def _int(name: str, default: int, doc: str, unit: str = "", low: int = 0, **more: Any) -> Any:
    return setting(ConfigKey(name, ConfigType.INT, default, doc, unit, low=low, high=INT32_MAX, **more))


def _long(name: str, default: int, doc: str, unit: str, low: int = 0, **more: Any) -> ConfigKey:
    return ConfigKey(name, ConfigType.LONG, default, doc, unit, low=low, high=INT64_MAX, **more)


def _text(name: str, default: Any, doc: str, parser: Any, **more: Any) -> Any:
    return setting(ConfigKey(name, ConfigType.STRING, default, doc, parser=parser, **more))


@dataclass(frozen=True)
class ProducerSettings:
    """Settings of one producer; picklable.

    Defaults are those of Kafka's Java producer unless the row has a `kafka_default`.
    """

    acks: int = _text(
        "acks",
        ACKS_ALL,
        "Replicas that must have a record before it is acknowledged: all in-sync replicas (all or -1), or the leader "
        "(1), which disables idempotence.",
        _parse_acks,
        aliases=("request.required.acks",),
    )
    idempotence: bool = setting(
        ConfigKey(
            "enable.idempotence",
            ConfigType.BOOLEAN,
            True,
            "Whether a retry writes no record twice and keeps the order of a partition.",
        )
    )
    codec: int = _text(
        "compression.type",
        0,
        f"Codec of record batches: {', '.join(CODECS)}.",
        _parse_codec,
        aliases=("compression.codec",),
    )
    gzip_level: int = _text("compression.gzip.level", -1, "Level of gzip: 1 to 9, or -1.", _parse_gzip_level)
    lz4_level: int = setting(
        ConfigKey("compression.lz4.level", ConfigType.INT, 9, "Level of lz4; 9 is the fast compressor.", low=1, high=17)
    )
    zstd_level: int = setting(
        ConfigKey("compression.zstd.level", ConfigType.INT, 3, "Level of zstd.", low=-131_072, high=22)
    )
    batch_bytes: int = _int(
        "batch.size",
        524_288,
        "Size of a record batch of one partition before compression; with 0, each record is a batch. Large batches are "
        "faster: a task encodes them as columns.",
        "bytes",
        kafka_default=16_384,
        aliases=("batch.num.bytes",),
    )
    linger_ms: int = setting(
        _long(
            "linger.ms",
            5,
            "Accepted without effect: a batch is sent when it is full or when the records of the task end.",
            "ms",
            aliases=("queue.buffering.max.ms",),
        )
    )
    buffer_bytes: int = setting(
        _long(
            "buffer.memory",
            33_554_432,
            "Records of a task: one half for those that wait for their batch, of which the largest are sent early, and "
            "one for batches that are not acknowledged.",
            "bytes",
        )
    )
    max_request_bytes: int = _int(
        "max.request.size",
        1_048_576,
        "Largest size of a record, of a batch before compression, and of a request.",
        "bytes",
    )
    max_in_flight: int = _int(
        "max.in.flight.requests.per.connection",
        5,
        "Requests that a task sends to a broker before it waits; at most 5 with idempotence.",
        low=1,
        aliases=("max.in.flight",),
    )
    delivery_timeout_ms: int = _int(
        "delivery.timeout.ms",
        120_000,
        "How long a task retries while no batch is acknowledged.",
        "ms",
        aliases=("message.timeout.ms",),
    )
    retries: int = _int(
        "retries",
        INT32_MAX,
        "How often a batch is sent again; 0 disables idempotence.",
        aliases=("message.send.max.retries",),
    )
    max_block_ms: int = setting(
        _long("max.block.ms", 60_000, "How long a task waits for metadata and for a producer id.", "ms", low=1)
    )
    transactional_id: str | None = _text(
        "transactional.id",
        None,
        "Writes exactly once: the driver publishes each batch in one transaction. Each query needs its own.",
        parse_transactional_id,
    )
    transaction_timeout_ms: int = _int(
        "transaction.timeout.ms",
        60_000,
        "The coordinator aborts a transaction that is open for longer.",
        "ms",
        low=1,
    )

    @property
    def half_buffer_bytes(self) -> int:
        """Bytes of the records that wait for their batch, and of the batches that are not acknowledged."""
        return self.buffer_bytes // 2

    @property
    def level(self) -> int | None:
        """Level of the codec, None for its default."""
        found, default = {
            "gzip": (self.gzip_level, -1),
            "lz4": (self.lz4_level, 9),
            "zstd": (self.zstd_level, 3),
        }.get(CODECS[self.codec], (None, None))
        return None if found == default else found

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> ProducerSettings:
        """Parses ``kafka.*`` options, given without the prefix.

        Raises: ConfigurationError for malformed, unknown and rejected settings, and for those that exclude each other.
        """
        check_producer_names(settings)
        found = cls(**parse_given(config_keys(cls), settings, OPTION_PREFIX))
        parse_given(PRODUCER_FIXED_KEYS, settings, OPTION_PREFIX)
        _check_delivery_timeout(found, settings)
        return _with_idempotence(found, settings)


def _with_idempotence(found: ProducerSettings, settings: Mapping[str, str]) -> ProducerSettings:
    """Disables idempotence where other settings exclude it.

    Raises: ConfigurationError where idempotence is required.
    """
    if not found.idempotence:
        conflict = "kafka.enable.idempotence is false"
    elif found.acks != ACKS_ALL:
        conflict = f"kafka.acks is {found.acks}"
    elif found.retries == 0:
        conflict = "kafka.retries is 0"
    else:
        if found.max_in_flight > _MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
            raise ConfigurationError(
                "Option kafka.max.in.flight.requests.per.connection must be at most 5 with idempotence, got "
                f"{found.max_in_flight}. Reduce it, or set kafka.enable.idempotence=false."
            )
        return found
    if found.transactional_id is not None:
        raise ConfigurationError(
            f"Option kafka.transactional.id needs idempotence, but {conflict}. Remove one of them."
        )
    if found.idempotence and "enable.idempotence" in settings:
        raise ConfigurationError(
            f"Option kafka.enable.idempotence is true, but {conflict}, which excludes it. Remove one of them."
        )
    return replace(found, idempotence=False)


def _check_delivery_timeout(found: ProducerSettings, settings: Mapping[str, str]) -> None:
    if {"delivery.timeout.ms", "message.timeout.ms"}.isdisjoint(settings):
        return
    key = CONNECTION_KEYS["request_timeout_ms"]
    request_ms = parse_given({"timeout": key}, settings, OPTION_PREFIX).get("timeout", key.default)
    if found.delivery_timeout_ms < found.linger_ms + request_ms:
        raise ConfigurationError(
            "Option kafka.delivery.timeout.ms must be at least kafka.linger.ms + kafka.request.timeout.ms "
            f"({found.linger_ms + request_ms} ms), got {found.delivery_timeout_ms} ms."
        )


_CONNECTION_FIELDS = (
    "bootstrap",
    "client_id",
    "request_timeout_ms",
    "connect_timeout_ms",
    "connections_max_idle_ms",
    "retry_backoff_ms",
    "retry_backoff_max_ms",
    "metadata_max_age_ms",
    "resolve_timeout_ms",
    "checks_cluster",
)
CONNECTION_KEYS: Mapping[str, ConfigKey] = {name: config_keys(ClientSettings)[name] for name in _CONNECTION_FIELDS}
"""Settings of connections that producers share with consumers, by their field of `ClientSettings`."""

_WITHOUT_EFFECT = "Accepted without effect: "
PRODUCER_FIXED_KEYS: Mapping[str, ConfigKey] = {
    "rebootstrap_trigger_ms": FIXED_KEYS["rebootstrap_trigger_ms"],
    "metadata_max_idle_ms": _long(
        "metadata.max.idle.ms",
        300_000,
        f"{_WITHOUT_EFFECT}metadata of a topic are requested again before their use, not forgotten.",
        "ms",
        low=5_000,
    ),
    "adaptive_partitioning": ConfigKey(
        "partitioner.adaptive.partitioning.enable",
        ConfigType.BOOLEAN,
        True,
        f"{_WITHOUT_EFFECT}records without key go to one partition after the other, whatever the load of its broker.",
    ),
    "allocation_strategy": ConfigKey(
        "buffer.memory.allocation.strategy",
        ConfigType.STRING,
        "full",
        f"{_WITHOUT_EFFECT}batches use the memory that they need.",
        choices=("full", "incremental"),
    ),
    "rack": ConfigKey(
        "client.rack",
        ConfigType.STRING,
        "",
        f"{_WITHOUT_EFFECT}it decides where a consumer reads; partitioner.rack.aware is not supported.",
    ),
    "availability_timeout_ms": _long(
        "partitioner.availability.timeout.ms",
        0,
        f"{_WITHOUT_EFFECT}as partitioner.adaptive.partitioning.enable.",
        "ms",
    ),
}
"""Settings that are checked only; keys as in a dataclass, but no field holds the value."""

PRODUCER_SETTINGS: Mapping[str, ConfigKey] = {
    key.name: key
    for keys in (config_keys(ProducerSettings), CONNECTION_KEYS, PRODUCER_FIXED_KEYS, SECURITY_KEYS)
    for key in keys.values()
}
"""Every setting that a producer takes, by Kafka's name."""

_KNOWN_NAMES = frozenset(
    {*PRODUCER_SETTINGS, *(alias for key in PRODUCER_SETTINGS.values() for alias in key.aliases)}
)
_OF_CONSUMERS = frozenset(
    {
        *(name for key in ACCEPTED_SETTINGS.values() for name in (key.name, *key.aliases)),
        *REJECTED_SETTINGS,
        *(name for name in UNUSED_SETTINGS if name.startswith("share.")),
    }
) - {*_KNOWN_NAMES, *PRODUCER_REJECTED_SETTINGS}


def check_producer_names(settings: Mapping[str, str]) -> None:
    """Raises: ConfigurationError for the first setting that a producer does not have."""
    for name in settings:
        if name in _OF_CONSUMERS:
            raise ConfigurationError(
                f"Option {OPTION_PREFIX}{name} is not allowed when writing: it is a setting of consumers. Remove it."
            )
    check_names(settings, _KNOWN_NAMES, PRODUCER_REJECTED_SETTINGS)


def producer_client_settings(settings: Mapping[str, str], producer: ProducerSettings) -> ClientSettings:
    """Returns the settings of a producer's connections; operations without a timeout take max.block.ms.

    Raises: ConfigurationError.
    """
    values = parse_given(CONNECTION_KEYS, settings, OPTION_PREFIX)
    return ClientSettings(
        security=SecuritySettings.parse(settings),
        default_api_timeout_ms=min(producer.max_block_ms, INT32_MAX),
        **values,
    )
