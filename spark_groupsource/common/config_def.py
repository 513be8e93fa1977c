"""Definitions of settings: name, type, default, bounds, documentation, parsing.

One `ConfigKey` is the only place where a setting is described. Parsers, DescribeConfigs and the generated pages of the
documentation read it.

Source: Kafka `org.apache.kafka.common.config.ConfigDef`.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Callable, Iterable, Mapping

from spark_groupsource.errors import ConfigurationError

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_METADATA = "config_key"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
_MAX_DIGITS = 20
# an error is one line; an option may be a long list or JSON
_SHOWN_CHARS = 200
_DURATION = re.compile(r"([0-9]+)\s*(ms|s|min|m|h|d)", re.IGNORECASE)
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"([0-9]+)\s*([kmg]?b?)", re.IGNORECASE)
_UNITS_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# what Java's String.trim removes
_TRIMMED = "".join(map(chr, range(33)))

NO_DEFAULT_VALUE: Any = object()
"""Default of a setting that must be given."""


class ConfigType(Enum):
    """Types of values, with the names of Kafka's `ConfigDef.Type`."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"
    PASSWORD = "password"


@dataclass(frozen=True)
class ConfigKey:
    """One setting.

    Attributes:
        name: as the user writes it.
        type: decides how the text is parsed and how DescribeConfigs describes the value.
        default: the parsed value that holds when the setting is absent; `NO_DEFAULT_VALUE` when it must be given.
        doc: one sentence for the documentation, ending with a period.
        unit: ``ms``, ``bytes``, ``records`` and so on; empty for values without a unit.
        low, high: inclusive bounds of a number.
        choices: allowed values of a string, allowed entries of a list.
        dynamic: whether a running component accepts a new value.
        aliases: other names of the same setting, for example librdkafka's.
        parser: replaces the parsing by type; takes the setting's name and its trimmed text, raises ConfigurationError.
        is_trimmed: whether whitespace around the value is removed, as Kafka does with every value.
        kafka_default: the default of the same setting in Kafka where it differs, for the documentation.
    """

    name: str
    type: ConfigType
    default: Any
    doc: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    dynamic: bool = False
    aliases: tuple[str, ...] = ()
    parser: Callable[[str, str], Any] | None = None
    kafka_default: Any = None
    is_trimmed: bool = True

    @property
    def is_sensitive(self) -> bool:
        """True when the value must not be shown."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str, name: str | None = None) -> Any:
        """Returns the value of `text`; `name` is the name that the user gave, if it is not the key's.

        Raises: ConfigurationError that names the setting, the bounds and the given value.
        """
        text = trim(text) if self.is_trimmed else text
        try:
            return self._parsed(name or self.name, text)
        except ConfigurationError as error:
            if len(text) <= _SHOWN_CHARS:
                raise
            shown = str(error).replace(repr(text), repr(text[:_SHOWN_CHARS] + "..."))
            raise ConfigurationError(shown) from error.__cause__

    def _parsed(self, name: str, text: str) -> Any:
        if self.parser is not None:
            return self.parser(name, text)
        if self.type is ConfigType.BOOLEAN:
            return self._choice(name, text.lower(), self.choices or ("true", "false")) == "true"
        if self.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE):
            return self._number(name, text)
        if self.type is ConfigType.LIST:
            entries = [entry.strip() for entry in text.split(",")] if text else []
            for entry in entries if self.choices else ():
                if entry not in self.choices:
                    raise ConfigurationError(
                        f"Option {name} must be a list of {', '.join(self.choices)}, got {entry!r} as an entry."
                    )
            return tuple(dict.fromkeys(entries))
        return self._choice(name, text, self.choices) if self.choices else text

    def _choice(self, name: str, text: str, choices: tuple[str, ...]) -> str:
        if text not in choices:
            allowed = f"one of {', '.join(choices)}" if len(choices) > 2 else " or ".join(choices)
            raise ConfigurationError(f"Option {name} must be {allowed}, got {text!r}.")
        return text

    def _number(self, name: str, text: str) -> int | float:
        is_double = self.type is ConfigType.DOUBLE
        number = (_double if is_double else parse_integer)(text)
        if number is None:
            kind = "a number" if is_double else "an integer"
            raise ConfigurationError(f"Option {name} must be {kind}{self._bounds()}, got {text!r}.")
        self.check(number, name)
        return number

    def check(self, number: int | float, name: str | None = None) -> None:
        """Raises: ConfigurationError for a number outside the bounds."""
        is_outside = (self.low is not None and number < self.low) or (self.high is not None and number > self.high)
        if is_outside or math.isnan(number):
            raise ConfigurationError(f"Option {name or self.name} must be{self._bounds()}, got {number}.")

    def _bounds(self) -> str:
        if self.low is not None and self.low == self.high:
            return f" {self.low}"
        if self.low is not None and self.high is not None:
            return f" between {self.low} and {self.high}"
        if self.low is not None:
            return f" at least {self.low}"
        return f" at most {self.high}" if self.high is not None else ""


@dataclass(frozen=True)
class BrokerConfigKey(ConfigKey):
    """One setting of a topic, of the broker or of its group coordinator.

    Attributes:
        broker_name: of a topic setting, Kafka's broker setting that supplies the default; empty where Kafka has none.
        is_broker_setting: of a topic setting, whether this broker accepts `broker_name`.
        is_per_node: whether each node has its own value and Kafka defines no default.
        hours_name: the setting in hours that is Kafka's fallback for this setting in milliseconds.
    """

    broker_name: str = ""
    is_broker_setting: bool = True
    is_per_node: bool = False
    hours_name: str = ""


def setting(key: ConfigKey) -> Any:
    """Returns a dataclass field that holds the value of `key` and defaults to the key's default, if it has one."""
    if key.default is NO_DEFAULT_VALUE:
        return field(metadata={_METADATA: key})
    return field(default=key.default, metadata={_METADATA: key})


def broker_setting(name: str, type_: ConfigType, default: Any, doc: str, **attributes: Any) -> Any:
    """Returns the `setting` of a `BrokerConfigKey`."""
    return setting(BrokerConfigKey(name, type_, default, doc, **attributes))


def format_value(value: Any) -> str:
    """Returns a parsed value as Kafka's tools print it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def config_keys(owner: type) -> Mapping[str, Any]:
    """Returns the keys of a dataclass built with `setting`, by the name of the field, in the order of the fields."""
    return {item.name: item.metadata[_METADATA] for item in fields(owner) if _METADATA in item.metadata}


def parse_given(keys: Mapping[str, ConfigKey], settings: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """Parses those of `settings` that belong to `keys`, and returns the values under the names of `keys`.

    Where a setting is given under its own name and under an alias, the alias is ignored.

    Args:
        prefix: of the names as the user writes them; for error messages.
    Raises: ConfigurationError.
    """
    values = {}
    for field_name, key in keys.items():
        given = next((name for name in (key.name, *key.aliases) if name in settings), None)
        if given is not None:
            values[field_name] = key.parse(settings[given], prefix + given)
    return values


def closest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name nearest to a misspelled one, None when none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def trim(text: str) -> str:
    """Returns the text without the whitespace around it, as `ConfigDef.parseType` trims values."""
    return text.strip(_TRIMMED)


def comma_list(text: str) -> tuple[str, ...]:
    """Returns the entries of a list, without the whitespace around them and without empty ones."""
    return tuple(entry for entry in (part.strip() for part in text.split(",")) if entry)


def parse_integer(text: str) -> int | None:
    """Returns the integer of decimal digits with an optional sign; None for any other text."""
    # a number of thousands of digits takes seconds, and Python refuses it
    return int(text) if len(text) <= _MAX_DIGITS and _INTEGER.fullmatch(text) else None


def _double(text: str) -> float | None:
    return float(text) if _DOUBLE.fullmatch(text) else None


def parse_duration_ms(text: str) -> int | None:
    """Returns the milliseconds of a duration as Spark writes it; None for any other text and beyond a 64-bit number.

    Units in any case: ``10ms``, ``10s``, ``10m``, ``10min``, ``10h``, ``10d``.
    """
    found = _DURATION.fullmatch(text)
    return _product(found[1], _UNITS_MS[found[2].lower()]) if found else None


def parse_size(text: str) -> int | None:
    """Returns the bytes of ``65536``, ``512k`` or ``64mb`` (powers of 1024); None as `parse_duration_ms`."""
    found = _SIZE.fullmatch(text)
    return _product(found[1], _UNITS_BYTES[found[2].lower().removesuffix("b")]) if found else None


def _product(digits: str, unit: int) -> int | None:
    number = parse_integer(digits)
    return None if number is None or number * unit > INT64_MAX else number * unit
