"""Numbers, booleans, durations and sizes: one parser for each, in any option."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from spark_groupsource.common import config_def
from spark_groupsource.common.config_def import INT64_MAX, config_keys
from spark_groupsource.errors import ConfigurationError
from spark_groupsource.monitor.offsets.offset_reset import parse_target
from spark_groupsource.source.options.option_parser import parse_options
from spark_groupsource.source.options.position_spec import parse_starting_offsets
from spark_groupsource.source.options.source_options import OPTIONS, SourceOptions

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t", "kafka.group.id": "g"}
DURATIONS = {
    "500ms": 500, "90s": 90_000, "15m": 900_000, "15min": 900_000, "2h": 7_200_000, "1d": 86_400_000,
    "90 s": 90_000, "15M": 900_000, "2H": 7_200_000, "500MS": 500, "00s": 0,
}  # fmt: skip
NO_DURATIONS = ["", "s", "1w", "1.5h", "1_0s", "\u0663s", "-1s", "1h30m", "1 000ms", "9" * 18 + "d", "9" * 5000 + "s"]
NO_INTEGERS = ["", "1_0", "\u0663", "1.0", "1e3", "0x10", "1 0", "--1", "nan", "true", "9" * 5000]


@pytest.mark.parametrize("text", DURATIONS)
def test_a_duration_is_the_same_in_every_option(text: str) -> None:
    expected = DURATIONS[text]
    assert parse_options({**BASE, "maxTriggerDelay": text}, "stream").max_trigger_delay_ms == expected
    assert parse_starting_offsets("startingOffsets", f"-{text}").back_ms == expected
    now_ms = 10**12
    assert parse_target(f"-{text}", now_ms).value == now_ms - expected


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_other_durations_are_rejected(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Option maxTriggerDelay must be a duration such as") as error:
        parse_options({**BASE, "maxTriggerDelay": text}, "stream")
    assert len(str(error.value)) < 400
    assert config_def.parse_duration_ms(text) is None


def test_a_bare_number_is_milliseconds_in_max_trigger_delay() -> None:
    assert parse_options({**BASE, "maxTriggerDelay": " 1500 "}, "stream").max_trigger_delay_ms == 1500


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("1b", 1), ("512k", 524_288), ("512 KB", 524_288), ("64m", 64 << 20), ("1G", 1 << 30), ("2gb", 2 << 30)],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_options({**BASE, "maxBytesPerTrigger": text}, "stream").max_bytes_per_trigger == expected


@pytest.mark.parametrize("text", ["", "0", "k", "1t", "1.5m", "-1", "1_0", "\u0663", "9" * 5000, f"{INT64_MAX}k"])
def test_other_sizes_are_rejected(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Option maxBytesPerTrigger must be a positive number of bytes"):
        parse_options({**BASE, "maxBytesPerTrigger": text}, "stream")


NUMBERS = [key.name for key in OPTIONS.values() if key.type in (config_def.ConfigType.INT, config_def.ConfigType.LONG)]


@pytest.mark.parametrize("name", [*NUMBERS, "members"])
@pytest.mark.parametrize("text", NO_INTEGERS)
def test_a_number_is_decimal_digits(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Option {name} must be .*integer"):
        OPTIONS[name.lower()].parse(text)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_may_have_a_sign_and_whitespace_around_it(name: str) -> None:
    assert {OPTIONS[name.lower()].parse(text) for text in (" 7 ", "+7", "07", "\t7\n")} == {7}


BOOLEANS = [key.name for key in OPTIONS.values() if key.type is config_def.ConfigType.BOOLEAN]


@pytest.mark.parametrize("name", BOOLEANS)
def test_a_boolean_is_true_or_false_in_any_case(name: str) -> None:
    key = OPTIONS[name.lower()]
    assert [key.parse(text) for text in ("true", " TRUE ", "False", "false\n")] == [True, True, False, False]
    for text in ("", "yes", "1", "on", "t"):
        with pytest.raises(ConfigurationError, match=f"Option {name} must be true or false, got {text!r}"):
            key.parse(text)


@pytest.mark.parametrize("field_name", config_keys(SourceOptions))
@pytest.mark.parametrize("around", [" ", "\t", "\n"])
def test_whitespace_around_a_value_has_no_meaning(field_name: str, around: str) -> None:
    key = config_keys(SourceOptions)[field_name]
    values = ("5", "true", "t", "earliest", '{"t":[0]}', '{"t":{"0":5}}', "m:C", "fail", "error", "latest")
    for text in values:
        assert outcome(key, text) == outcome(key, f"{around}{text}{around}")


def outcome(key: Any, text: str) -> Any:
    try:
        return key.parse(text)
    except ConfigurationError as error:
        return str(error)


@pytest.mark.parametrize(
    "text", ['{"t":[true]}', '{"t":[1.5]}', '{"t":[-1]}', '{"t":["x"]}', '{"t":[2147483648]}', '{"t":[null]}', "[]"]
)
def test_partitions_are_integers(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Option assign must be JSON such as"):
        OPTIONS["assign"].parse(text)


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(ConfigurationError) as raised:
        OPTIONS["startingoffsets"].parse('{"t":{' + ",".join(f'"{n}":-9' for n in range(5000)) + "}}")
    assert str(raised.value).endswith("...'.") and len(str(raised.value)) < 400


def test_targets_of_resets_keep_their_other_forms() -> None:
    time = datetime(2026, 1, 31, tzinfo=timezone.utc)
    assert parse_target(timedelta(hours=1), 3_600_000).value == 0
    assert parse_target("2026-01-31", 0).value == int(time.timestamp() * 1000)
