"""Differences between from_json and the decoder of JSON values, which docs/typed-values.md lists.

Each has the name of its row there, an example, and a rule that says which differences it explains.
"""

from __future__ import annotations

import json
import re
from typing import Callable, NamedTuple

from support.json_paths import MALFORMED

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|NaN|-?Infinity")
_WHITESPACE = " \t\r\n"
_MAX_SECONDS = (1 << 63) // 1_000_000
_TIME_OF_DAY = re.compile(r"T?\d{1,2}(?::.*)?", re.S)
# after the seconds: letters that are no zone with an offset
_NAMED_ZONE = re.compile(r".*:\d{1,2}(?:\.\d*)?[^0-9.]*?[A-Za-z].*", re.S)


class Compared(NamedTuple):
    """A value that is decoded in two ways.

    Attributes:
        record: the JSON of the record.
        scalar: the type of the value in it, as DDL; None for a record that is no value in a context.
        value: its JSON.
        theirs: what from_json returns, or MALFORMED.
        ours: the same of the decoder.
    """

    record: bytes
    scalar: str | None
    value: str
    theirs: str
    ours: str

    @property
    def string(self) -> str | None:
        """The content of the value if it is a string."""
        try:
            found = json.loads(self.value)
        except ValueError:
            return None
        return found if isinstance(found, str) else None

    @property
    def is_only_here_malformed(self) -> bool:
        """Whether from_json returns a value."""
        return self.ours == MALFORMED != self.theirs


class Difference(NamedTuple):
    """A row of the list.

    Attributes:
        case: its first column.
        ddl: schema of the example.
        record: JSON of the example.
        explains: whether a difference is of this row.
    """

    case: str
    ddl: str
    record: str | bytes
    explains: Callable[[Compared], bool]


def _has_bytes_after(found: Compared) -> bool:
    text = found.record.decode("utf-8", "replace").strip(_WHITESPACE)
    try:
        end = json.JSONDecoder(strict=False).raw_decode(text)[1]
    except (ValueError, RecursionError):
        return False
    return found.is_only_here_malformed and end < len(text)


def _is_invalid_text(found: Compared) -> bool:
    return found.is_only_here_malformed and "\ufffd" in found.record.decode("utf-8", "replace")


def _has_single_quotes(found: Compared) -> bool:
    return found.is_only_here_malformed and b"'" in found.record


def _has_wide_digit(found: Compared) -> bool:
    text = found.record.decode("utf-8", "replace")
    return found.is_only_here_malformed and re.search(r"\\u[0-9a-fA-F]{0,3}[^\x00-\x7f]", text) is not None


def _is_infinite_word(found: Compared) -> bool:
    return found.is_only_here_malformed and bool(re.search(rb"[:\[, ](?:[+-]INF|\+Infinity)\b", found.record))


def _is_deep(found: Compared) -> bool:
    return found.is_only_here_malformed and found.record.count(b"[") + found.record.count(b"{") > 500


def _is_long(found: Compared) -> bool:
    is_long = re.search(rb"\d{1001}|\.\d{1001}|k{50001}", found.record)
    return found.theirs == MALFORMED != found.ours and is_long is not None


def _is_number_as_text(found: Compared) -> bool:
    is_text = found.scalar == "string" and MALFORMED not in (found.theirs, found.ours)
    # in an array or object, too
    return is_text and found.string is None and _NUMBER.search(found.value) is not None


def _is_wrapped_byte(found: Compared) -> bool:
    is_byte = found.scalar == "tinyint" and found.is_only_here_malformed
    return is_byte and re.fullmatch(r"\d{3}", found.value) is not None and 128 <= int(found.value) <= 255


def _is_negative_zero(found: Compared) -> bool:
    return found.scalar in ("float", "double") and found.value == "-0" and "-0.0" in found.ours


def _is_number_of_days(found: Compared) -> bool:
    is_date = found.scalar == "date" and found.is_only_here_malformed
    return is_date and found.string is not None and re.fullmatch(r"[+-]?\d+", found.string) is not None


def _is_beyond_timestamps(found: Compared) -> bool:
    is_time = found.scalar == "timestamp" and found.is_only_here_malformed
    return is_time and re.fullmatch(r"-?\d+", found.value) is not None and abs(int(found.value)) >= _MAX_SECONDS


def _is_time_of_day(found: Compared) -> bool:
    is_time = found.scalar == "timestamp" and found.is_only_here_malformed
    return is_time and found.string is not None and _TIME_OF_DAY.fullmatch(_trimmed(found.string)) is not None


def _trimmed(text: str) -> str:
    """Returns text without what Spark ignores around it, and GMT, which it ignores in a second attempt."""
    return text.replace("GMT", "").strip("".join(map(chr, range(33))) + "\x7f")


def _has_named_zone(found: Compared) -> bool:
    is_time = found.scalar == "timestamp" and found.is_only_here_malformed
    return is_time and found.string is not None and _NAMED_ZONE.fullmatch(found.string) is not None


def _never(found: Compared) -> bool:
    """Explains nothing: the grid is compared without it."""
    return False


DIFFERENCES = (
    Difference(
        "one field of a value does not fit its type, mode PERMISSIVE", "v int, s string", '{"v":"x","s":"a"}', _never
    ),
    Difference("bytes after the value", "v int", '{"v":1} {"v":2}', _has_bytes_after),
    Difference("invalid UTF-8", "v string", b'{"v":"\xff"}', _is_invalid_text),
    Difference("an object where an array of objects is declared", "array<struct<v: int>>", '{"v":1}', _never),
    Difference(
        "single quotes around keys and strings, and `\\'` in strings", "v string", "{'v':'a'}", _has_single_quotes
    ),
    Difference("a digit of `\\u` escapes that is not ASCII", "v string", '{"v":"\\u006\u0661"}', _has_wide_digit),
    Difference("`-INF`, `+INF` and `+Infinity` without quotes", "v double", '{"v":-INF}', _is_infinite_word),
    Difference(
        "more than 500 levels of arrays and objects", "v int", '{"x":' + "[" * 500 + "]" * 500 + ',"v":1}', _is_deep
    ),
    Difference(
        "a number of more than 1,000 characters, a key of more than 50,000",
        "v int",
        '{"x":' + "1" * 1001 + ',"v":1}',
        _is_long,
    ),
    Difference("a number for `string`, also within an array or object", "v string", '{"v":12.50}', _is_number_as_text),
    Difference("a number from 128 to 255 for `tinyint`", "v tinyint", '{"v":128}', _is_wrapped_byte),
    Difference("`-0` for `float` and `double`", "v double", '{"v":-0}', _is_negative_zero),
    Difference("a string with a number of days for `date`", "v date", '{"v":"20200101"}', _is_number_of_days),
    Difference(
        "a number of seconds beyond the range of `timestamp`",
        "v timestamp",
        '{"v":1691241070000000}',
        _is_beyond_timestamps,
    ),
    Difference("a time of a day without its date for `timestamp`", "v timestamp", '{"v":"10:11:12"}', _is_time_of_day),
    Difference(
        "a zone with a name other than Z, UTC, GMT or UT",
        "v timestamp",
        '{"v":"2020-01-01 10:11:12 Europe/Berlin"}',
        _has_named_zone,
    ),
    Difference("times without a zone", "v timestamp", '{"v":"2020-01-01 10:11:12"}', _never),
    Difference(
        "`variant`, `time`, `char`, `varchar` and intervals",
        "v interval day to second",
        '{"v":"INTERVAL \'1 02:03:04\' DAY TO SECOND"}',
        _never,
    ),
)


def explained(found: Compared) -> list[str]:
    """Returns the rows that explain a difference."""
    return [each.case for each in DIFFERENCES if each.explains(found)]
