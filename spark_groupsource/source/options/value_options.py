"""Options of typed keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Mapping, NamedTuple

from spark_groupsource.client.network.security import OPTION_PREFIX
from spark_groupsource.common.config_def import ConfigType, closest, parse_given
from spark_groupsource.common.config_providers import resolve
from spark_groupsource.common.tls import TlsSettings
from spark_groupsource.common.tls_options import TLS_KEYS, parse_tls
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.source.options.option_row import STREAM, QueryKind, SourceOption
from spark_groupsource.source.options.option_values import parse_text
from spark_groupsource.values.format_options import (
    BINARY,
    CONFLUENT,
    FAILFAST,
    FORMATS,
    HEADERS,
    NO_HEADER,
    PROTOBUF,
    ColumnFormat,
    ValueOptions,
    check_format,
    check_options,
    check_written_format,
    parse_mode,
    parse_schema_text,
)
from spark_groupsource.values.registry.registry_address import RegistryAddress, check_credentials, parse_urls
from spark_groupsource.values.registry.subjects import (
    IGNORE,
    REACTIONS,
    TOPIC,
    SubjectOptions,
    WrittenSubject,
    parse_strategy,
    parse_version,
)

_COLUMNS = ("key", "value")
# how long a command or a notebook waits for a registry
_INTERACTIVE_TIMEOUT_MS = 10_000
_LOGICAL_CLUSTER, _IDENTITY_POOL = "target-sr-cluster", "Confluent-Identity-Pool-Id"
TLS_PREFIXES = tuple(f"{column}.schema.registry.ssl." for column in _COLUMNS)
"""Prefixes of the settings of TLS for a schema registry; the names behind them are those of `TLS_KEYS`."""

REGISTRY_PREFIXES = tuple(
    f"{column}.{prefix}" for column in _COLUMNS for prefix in ("schema.registry.", "basic.auth.", "bearer.auth.")
)
"""Prefixes of the settings of a connection to a schema registry."""


class GivenOptions(NamedTuple):
    """The parsed options of a query.

    Attributes:
        fields: those with a field, by its name.
        formats: those of key and value, by lower-case name.
        registry_tls: texts of those with one of `TLS_PREFIXES`, by lower-case name.
        ignored: names of those that the kind of query ignores.
    """

    fields: dict[str, Any]
    formats: dict[str, Any]
    registry_tls: dict[str, str]
    ignored: list[str]


def parse_given_options(
    given: Mapping[str, tuple[str, str]],
    find_option: Callable[[str], SourceOption],
    field_names: Mapping[str, str],
    query: QueryKind | None,
) -> GivenOptions:
    """Parses the options of `by_lower_name`, except ``kafka.*``.

    Args:
        find_option: returns the option of a name as given, raises ConfigurationError.
        field_names: lower-case name -> field; the other options are those of key and value.
        query: the kind of query, None for all options.
    Raises: ConfigurationError that names the option.
    """
    found = GivenOptions({}, {}, {}, [])
    for key, (name, text) in given.items():
        if key.startswith(OPTION_PREFIX):
            continue
        if key.startswith(TLS_PREFIXES):
            found.registry_tls[key] = text
            continue
        option = find_option(name)
        if query is None or query in option.queries:
            if key in field_names:
                found.fields[field_names[key]] = option.parse(text)
            else:
                found.formats[key] = option.parse(text)
        elif option.elsewhere == "ignored":
            found.ignored.append(option.name)
        else:
            raise ConfigurationError(f"Option {option.name} is not allowed in a {query} query. Leave it out.")
    return found


def _text(name: str, doc: str, default: Any = None, parser: Any = parse_text, **more: Any) -> SourceOption:
    return SourceOption(name, ConfigType.STRING, default, doc, parser=parser, **more)


def _format_options(column: str) -> list[SourceOption]:
    return [
        SourceOption(
            f"{column}.format",
            ConfigType.STRING,
            BINARY,
            f"Format of the column {column}: binary as in Kafka, or decoded: text, JSON, Avro, Protobuf or one of "
            "Kafka's serdes.",
            choices=FORMATS,
        ),
        _text(
            f"{column}.schema",
            f"Schema of the column {column}: for json DDL (id bigint, name string) or the JSON of a StructType, for "
            "avro an Avro schema, for protobuf a descriptor set of protoc, or the text of a .proto file. Text that "
            "begins with / or file:/, and with no comment, is the path of a file on the driver.",
            parser=parse_schema_text,
        ),
        _text(
            f"{column}.message.name",
            f"Full name of the Protobuf message of the column {column}; with a registry, by default the first one of "
            "the schema.",
        ),
        SourceOption(
            f"{column}.recursive.fields.max.depth",
            ConfigType.INT,
            ColumnFormat.recursion_depth,
            f"How often a type of Avro or Protobuf that contains itself is nested in the column {column}: 1 leaves "
            "recursive fields out, 2 has them once, and so on up to 15 for avro and 10 for protobuf, as "
            "recursiveFieldMaxDepth of from_avro and recursive.fields.max.depth of from_protobuf. With 0 or less they "
            "are left out, where Spark's functions reject the schema.",
        ),
        SourceOption(
            f"{column}.schema.header",
            ConfigType.STRING,
            None,
            f"Where a {column} names its writer's schema: confluent (the record header __{column}_schema_id, or a zero "
            "byte and the id before the data; the default with a registry), glue (AWS Glue's 18 bytes; the schema is "
            f"{column}.schema), or none.",
            choices=HEADERS,
        ),
    ]


def _subject_options(column: str) -> list[SourceOption]:
    return [
        _text(
            f"{column}.schema.registry.url",
            f"Addresses of a schema registry, separated by commas: each {column} is read by its writer's schema, as "
            f"{column}.schema or a version of a subject.",
            parser=parse_urls,
        ),
        _text(
            f"{column}.subject.name.strategy",
            f"Subject of the schema of the column without {column}.schema: topic (TOPIC-{column}), record (the name of "
            "the record) or topic-record (TOPIC-NAME); Confluent's class names are accepted.",
            TOPIC,
            parse_strategy,
        ),
        _text(f"{column}.record.name", "Full name of the record, for the strategies record and topic-record."),
        _text(
            f"{column}.schema.version",
            "Version of the subject: latest (when the query is loaded), or a number.",
            "latest",
            parse_version,
        ),
    ]


def _credential_options(column: str) -> list[SourceOption]:
    registry = f"{column}.schema.registry.url"
    return [
        SourceOption(
            f"{column}.basic.auth.credentials.source",
            ConfigType.STRING,
            "user_info",
            f"Source of user and password for {registry}.",
            choices=("user_info",),
        ),
        SourceOption(
            f"{column}.basic.auth.user.info",
            ConfigType.PASSWORD,
            None,
            f"User and password for {registry}, as user:password.",
        ),
        SourceOption(
            f"{column}.bearer.auth.credentials.source",
            ConfigType.STRING,
            "static_token",
            f"Source of the bearer token for {registry}.",
            choices=("static_token",),
        ),
        SourceOption(f"{column}.bearer.auth.token", ConfigType.PASSWORD, None, f"Bearer token for {registry}."),
        _text(f"{column}.bearer.auth.logical.cluster", "Logical cluster of Confluent Cloud, beside a bearer token."),
        _text(f"{column}.bearer.auth.identity.pool.id", "Identity pool of Confluent Cloud, beside a bearer token."),
    ]


VALUE_OPTIONS: Mapping[str, SourceOption] = {
    option.name.lower(): option
    for option in [
        *(
            option
            for column in _COLUMNS
            for options in (_format_options, _subject_options, _credential_options)
            for option in options(column)
        ),
        SourceOption(
            "value.flatten",
            ConfigType.BOOLEAN,
            False,
            "Whether the fields of the value are columns, in place of the column value.",
        ),
        _text(
            "mode",
            "Reaction to a malformed key or value: FAILFAST fails the query, PERMISSIVE returns null and describes it "
            "in the column _error, DROPMALFORMED leaves the record out.",
            FAILFAST,
            parse_mode,
        ),
        _text(
            "deadLetterTopic",
            "Topic to which tasks write malformed records before the batch is committed: key, value and headers as "
            "received, with the error headers of Kafka Connect. It must exist; mode must be PERMISSIVE or "
            "DROPMALFORMED.",
        ),
        SourceOption(
            "onSchemaChange",
            ConfigType.STRING,
            IGNORE,
            "Reaction to a version of the subject that is newer than the schema of the columns: ignore reads it as "
            "these columns, fail ends the query, restart ends it between two batches, so that its next start has the "
            "columns of the newer version.",
            choices=REACTIONS,
        ),
        _text(
            "checkpointLocation",
            "The local checkpoint directory of the query, as its sink has it: load() takes the schema of the columns "
            "from the checkpoint, if it has one, in place of the subject's version; and the start of a first batch "
            "that Spark's Kafka source did not finish.",
            queries=STREAM,
            elsewhere="ignored",
        ),
    ]
}
"""Lower-case name -> option."""


_WRITTEN_DOCS: Mapping[str, str] = {
    "format": "Format of the column {0}: binary (or text) as in Kafka, or encoded: string (as a cast), json (as "
    "to_json), avro (as to_avro), protobuf or one of Kafka's serdes.",
    "schema": "Schema of the column {0}: for avro an Avro schema, by default that of to_avro; for json with a registry "
    "a JSON Schema; for protobuf a descriptor set of protoc, or the text of a .proto file. Text that begins with / or "
    "file:/, and with no comment, is the path of a file on the driver.",
    "message.name": "Full name of the Protobuf message of the column {0}; with a registry, by default the first one of "
    "the schema.",
    "schema.registry.url": "Addresses of a schema registry, separated by commas: each {0} begins with the id of its "
    "schema there, in Confluent's wire format.",
    "subject.name.strategy": "Subject of the schema: topic (TOPIC-{0}), record (the name of the record) or "
    "topic-record (TOPIC-NAME); Confluent's class names are accepted.",
    "record.name": "Full name of the record of {0}.schema, or of the schema that the column has without it (by default "
    "topLevelRecord, as to_avro).",
    "schema.version": "Version of the subject that is the schema of the column: latest, or a number. Without it, the "
    "schema is {0}.schema or that of the column.",
}


def _written_options(column: str) -> list[SourceOption]:
    given = {each.name: each for each in (*_format_options(column), *_subject_options(column))}
    described = [replace(given[f"{column}.{name}"], doc=doc.format(column)) for name, doc in _WRITTEN_DOCS.items()]
    registers = SourceOption(
        f"{column}.auto.register.schemas",
        ConfigType.BOOLEAN,
        True,
        "Whether a schema that is no version of the subject is registered; else the write fails.",
    )
    return [*described, registers, *_credential_options(column)]


WRITTEN_VALUE_OPTIONS: Mapping[str, SourceOption] = {
    option.name.lower(): option for column in _COLUMNS for option in _written_options(column)
}
"""Lower-case name -> option of a write."""


def written_formats(given: Mapping[str, Any], tls: Mapping[str, str], wait_ms: int) -> tuple[ColumnFormat, ...]:
    """Returns the formats of key and value in a write.

    Args:
        given: lower-case name -> parsed value, of the options in `WRITTEN_VALUE_OPTIONS` that are given.
        tls, wait_ms: as in `value_options`.
    Raises: ConfigurationError for options that contradict each other.
    """
    return tuple(_written_format(column, given, tls, wait_ms) for column in _COLUMNS)


def _written_format(column: str, given: Mapping[str, Any], tls: Mapping[str, str], wait_ms: int) -> ColumnFormat:
    def option(name: str, default: Any = None) -> Any:
        return given.get(f"{column}.{name}", default)

    registry = _address(column, given, tls, wait_ms)
    has_version = f"{column}.schema.version" in given
    for name in ("subject.name.strategy", "schema.version", "auto.register.schemas") if registry is None else ():
        if f"{column}.{name}" in given:
            raise ConfigurationError(
                f"Option {column}.{name} has no effect without {column}.schema.registry.url. Remove one of them."
            )
    for name in ("schema", "auto.register.schemas") if has_version else ():
        if option(name):
            raise ConfigurationError(
                f"Options {column}.{name} and {column}.schema.version are both set. Remove one of them: a version of "
                "the subject is the schema, or the schema becomes a version."
            )
    subject = WrittenSubject(
        option("subject.name.strategy", TOPIC),
        option("record.name"),
        option("schema.version"),
        has_version,
        option("auto.register.schemas", True),
    )
    if has_version and subject.strategy != TOPIC and subject.record is None:
        raise ConfigurationError(
            f"Option {column}.record.name is missing: {column}.subject.name.strategy is {subject.strategy}. Give the "
            "full name of the record."
        )
    return check_written_format(
        ColumnFormat(
            column,
            option("format", BINARY),
            option("schema"),
            registry=registry,
            header=NO_HEADER if registry is None else CONFLUENT,
            subject=None if registry is None and subject.record is None else subject,
            message=option("message.name"),
        )
    )


def value_options(given: Mapping[str, Any], tls: Mapping[str, str], wait_ms: int) -> ValueOptions:
    """Returns the formats of key and value.

    Args:
        given: lower-case name -> parsed value, of the options in `VALUE_OPTIONS` that are given.
        tls: lower-case names and texts of the options with one of `TLS_PREFIXES`.
        wait_ms: how long a request to a registry is retried.
    Raises: ConfigurationError for options that contradict each other.
    """
    key, value = (_column_format(column, given, tls, wait_ms) for column in _COLUMNS)
    found = ValueOptions(
        key,
        value,
        given.get("mode", FAILFAST),
        given.get("onschemachange", IGNORE),
        given.get("checkpointlocation"),
        given.get("deadlettertopic"),
    )
    return check_options(found)


def _column_format(column: str, given: Mapping[str, Any], tls: Mapping[str, str], wait_ms: int) -> ColumnFormat:
    def option(name: str, default: Any = None) -> Any:
        return given.get(f"{column}.{name}", default)

    registry = _address(column, given, tls, wait_ms)
    names = ("subject.name.strategy", "record.name", "schema.version")
    for name in names if registry is None or option("schema") is not None else ():
        if f"{column}.{name}" in given:
            needed = "without" if registry is None else "with"
            other = f"{column}.schema.registry.url" if registry is None else f"{column}.schema"
            raise ConfigurationError(f"Option {column}.{name} has no effect {needed} {other}. Remove one of them.")
    subject = SubjectOptions(option(names[0], TOPIC), option(names[1]), option(names[2]))
    if subject.strategy == TOPIC and subject.record is not None:
        remedy = f"Set {column}.message.name" if option("format") == PROTOBUF else "Set the strategy to record"
        raise ConfigurationError(
            f"Option {column}.record.name has no effect with {column}.subject.name.strategy=topic. {remedy}, or "
            "remove it."
        )
    header = option("schema.header", NO_HEADER if registry is None else "confluent")
    return check_format(
        ColumnFormat(
            column,
            option("format", BINARY),
            option("schema"),
            option("flatten", False),
            registry,
            header,
            None if registry is None or option("schema") is not None else subject,
            message=option("message.name"),
            recursion_depth=option("recursive.fields.max.depth", ColumnFormat.recursion_depth),
        )
    )


def _address(column: str, given: Mapping[str, Any], tls: Mapping[str, str], wait_ms: int) -> RegistryAddress | None:
    url, prefix = f"{column}.schema.registry.url", f"{column}.schema.registry."
    settings = {name.removeprefix(prefix): text for name, text in tls.items() if name.startswith(prefix)}
    credentials = [name for name in given if name.startswith((f"{column}.basic.auth.", f"{column}.bearer.auth."))]
    if url not in given:
        for name in [*credentials, *(f"{prefix}{each}" for each in settings)]:
            raise ConfigurationError(f"Option {name} has no effect without {url}. Set both.")
        return None
    info_option, token_option = f"{column}.basic.auth.user.info", f"{column}.bearer.auth.token"
    user_info = check_credentials(info_option, given.get(info_option), is_header=False)
    token = check_credentials(token_option, given.get(token_option), is_header=True)
    if user_info is not None and token is not None:
        raise ConfigurationError(
            f"Options {info_option} and {token_option} are both set. Remove one of them."
        )
    cloud = {
        _LOGICAL_CLUSTER: given.get(f"{column}.bearer.auth.logical.cluster"),
        _IDENTITY_POOL: given.get(f"{column}.bearer.auth.identity.pool.id"),
    }
    for name, option in zip(cloud, (f"{column}.bearer.auth.logical.cluster", f"{column}.bearer.auth.identity.pool.id")):
        check_credentials(option, cloud[name], is_header=True)
    headers = tuple((name, text) for name, text in cloud.items() if text is not None)
    return RegistryAddress(given[url], user_info, token, headers, _tls(prefix, settings), wait_ms)


def _tls(prefix: str, settings: Mapping[str, str]) -> TlsSettings | None:
    known = {name for key in TLS_KEYS for name in (key.name, *key.aliases)}
    for name in settings:
        if name not in known:
            near = closest(name, known)
            hint = f"Did you mean {prefix}{near}?" if near else "Remove it."
            raise ConfigurationError(f"Option {prefix}{name} is unknown. {hint}")
    values = parse_given({key.name: key for key in TLS_KEYS}, settings, prefix)
    return parse_tls(values, prefix) if values else None


def registry_format(column: str, name: str, properties: Mapping[str, str], **given: Any) -> ColumnFormat:
    """Returns the format of a column of Avro or Protobuf that is no column of a query.

    Args:
        name: the format.
        properties: options of the column without its name, for example ``schema.registry.url``.
        given: parsed options; ``_`` for ``.`` in the names.
    Raises: ConfigurationError for an unknown property, and without schema and registry.
    """
    parsed: dict[str, Any] = {f"{column}.format": name}
    tls: dict[str, str] = {}
    names = [f"{column}.schema.registry.url", f"{column}.schema.header"]
    names += [each.name for each in _credential_options(column)]
    for name, text in resolve(properties).items():
        option = f"{column}.{name.lower()}"
        if option.startswith(TLS_PREFIXES):
            tls[option] = text
        elif option in names:
            parsed[option] = VALUE_OPTIONS[option].parse(text, name)
        else:
            near = closest(name, [each.removeprefix(f"{column}.") for each in names])
            raise ConfigurationError(f"Property {name} is unknown. {f'Did you mean {near}?' if near else 'Remove it.'}")
    parsed |= {f"{column}.{name.replace('_', '.')}": each for name, each in given.items() if each is not None}
    values = value_options(parsed, tls, _INTERACTIVE_TIMEOUT_MS)
    return values.key if column == "key" else values.value
