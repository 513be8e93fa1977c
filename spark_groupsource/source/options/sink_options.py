"""Options of the sink: the table, parsed into a `SinkOptions`.

``kafka.*`` settings are in `client.records.producer_settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping

from spark_groupsource.client.network.security import OPTION_PREFIX, bootstrap_text
from spark_groupsource.client.records.producer_settings import (
    PRODUCER_SETTINGS,
    ProducerSettings,
    check_producer_names,
    producer_client_settings,
)
from spark_groupsource.client.settings import ACCEPTED_SETTINGS
from spark_groupsource.common.config_def import INT64_MAX, ConfigType, config_keys, parse_given, setting
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.options.cluster_options import ClusterOptions, check_address, usable_address
from spark_groupsource.source.options.option_row import (
    BATCH,
    STREAM,
    QueryKind,
    SourceOption,
    by_lower_name,
    kafka_settings,
    unknown_option,
)
from spark_groupsource.source.options.option_values import parse_text
from spark_groupsource.source.options.secret_options import resolve_references
from spark_groupsource.source.options.source_options import OPTIONS
from spark_groupsource.source.options.table_options import TABLE_OPTIONS
from spark_groupsource.source.options.value_options import WRITTEN_VALUE_OPTIONS, parse_given_options, written_formats
from spark_groupsource.values.format_options import ColumnFormat

_GROUP_ID = ACCEPTED_SETTINGS["group.id"]
_SUBSCRIPTION = frozenset({"subscribe", "subscribepattern", "assign"})
UNSUPPORTED_SINK_OPTIONS: Mapping[str, str] = {
    "path": "The sink writes to topics, not to paths: use option topic, and save() or start() without a path.",
    "key.use.latest.version": "Set key.schema.version=latest.",
    "value.use.latest.version": "Set value.schema.version=latest.",
}
"""Lower-case names of options that are rejected, each with the reason."""


def _text(name: str, doc: str, **more: Any) -> Any:
    return setting(SourceOption(name, ConfigType.STRING, None, doc, parser=parse_text, **more))


@dataclass(frozen=True)
class SinkOptions(ClusterOptions):
    """The options of one write, parsed.

    `bootstrap_servers` is the address as given, possibly ``embedded`` or ``embedded:DIR``. `client` holds the settings
    of connections, `producer` those of producers. `formats` are those of key and value. `driver_heap_bytes` is
    spark.driver.memory, None if unknown.
    """

    topic: str | None = _text("topic", "Topic of all records; without it, the column topic names the topic of each.")
    txn_app_id: str | None = _text(
        "txnAppId",
        "With txnVersion and kafka.transactional.id: names the writer inside foreachBatch, whose versions are written "
        "once each to a topic of option topic.",
        queries=BATCH,
    )
    txn_version: int | None = setting(
        SourceOption(
            "txnVersion",
            ConfigType.LONG,
            None,
            "Version of the write, for example the batch id of foreachBatch; one that is not larger than the last one "
            "of txnAppId in the topic is skipped.",
            low=0,
            high=INT64_MAX,
            queries=BATCH,
        )
    )
    include_headers: bool = setting(
        SourceOption(
            "includeHeaders",
            ConfigType.BOOLEAN,
            False,
            "Has no effect: the column headers is written if it exists.",
        )
    )
    checkpoint: str | None = _text("checkpointLocation", "Spark's checkpoint.", queries=STREAM, elsewhere="ignored")
    query_name: str | None = _text("queryName", "Spark's name of the query.", queries=STREAM, elsewhere="ignored")
    producer: ProducerSettings = ProducerSettings()
    formats: tuple[ColumnFormat, ...] = ()
    driver_heap_bytes: int | None = None

    @property
    def transactional_id(self) -> str | None:
        return self.producer.transactional_id

    def with_address(self, bootstrap_servers: str) -> SinkOptions:
        """Returns the options with the address that `bootstrap_servers` was resolved to."""
        return replace(self, client=self.client_settings(bootstrap_servers))


SINK_OPTIONS: Mapping[str, SourceOption] = {
    **{key.name.lower(): key for key in config_keys(SinkOptions).values()},
    **WRITTEN_VALUE_OPTIONS,
}
"""Lower-case name -> option, every option of the sink except ``kafka.*``."""

_FIELDS = {key.name.lower(): name for name, key in config_keys(SinkOptions).items()}


def parse_sink_options(options: Mapping[str, str], kind: QueryKind) -> SinkOptions:
    """Parses the options of one write.

    Args:
        options: name in any case -> text.
    Raises: ConfigurationError that names the option.
    """
    given = by_lower_name(resolve_references(options))
    values, formats, registry_tls, _ = parse_given_options(given, _find_option, _FIELDS, kind)
    kafka = kafka_settings(given)
    address = bootstrap_text(kafka)
    # of the source, for jobs that give both the same options; readers add their groups to a transaction themselves
    group = {name: kafka.pop(name) for name in (_GROUP_ID.name,) if name in kafka}
    parse_given({"group_id": _GROUP_ID}, group, OPTION_PREFIX)
    kafka.pop("metadata.broker.list", None)
    check_producer_names(kafka)
    check_address(address)
    producer = ProducerSettings.parse(kafka)
    client = producer_client_settings({**kafka, "bootstrap.servers": usable_address(address)}, producer)
    parsed = SinkOptions(
        **values,
        bootstrap_servers=address,
        client=client,
        producer=producer,
        formats=written_formats(formats, registry_tls, producer.max_block_ms),
    )
    _check_transactions(parsed)
    return parsed


def _find_option(name: str) -> SourceOption:
    key = name.lower()
    if key in SINK_OPTIONS:
        return SINK_OPTIONS[key]
    if key in UNSUPPORTED_SINK_OPTIONS:
        raise ConfigurationError(f"Option {name} is not supported. {UNSUPPORTED_SINK_OPTIONS[key]}")
    if key in OPTIONS or key in TABLE_OPTIONS:
        remedy = "Name the topic with option topic." if key in _SUBSCRIPTION else "Remove it."
        raise ConfigurationError(f"Option {name} is not allowed when writing: it is an option of reads. {remedy}")
    raise unknown_option(name, SINK_OPTIONS, PRODUCER_SETTINGS)


def _check_transactions(options: SinkOptions) -> None:
    given = [options.txn_app_id is not None, options.txn_version is not None]
    if any(given) and not all(given):
        raise ConfigurationError("Options txnAppId and txnVersion need each other. Give both of them, or none.")
    if any(given) and options.transactional_id is None:
        raise ConfigurationError(
            "Option txnAppId needs kafka.transactional.id. Give it, or remove txnAppId and txnVersion."
        )
