"""Dates and times of text, as Spark casts them.

Only the names Z, UTC, GMT and UT are zones here, and offsets: the rules of other zones depend on the machine.

Source: Spark `SparkDateTimeUtils`, Java `ZoneOffset.of`.
"""

from __future__ import annotations

import re
from datetime import date

_MICROS = 1_000_000
# characters that Spark trims
_TRIMMED = "".join(map(chr, range(33))) + "\x7f"
_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.S)
_TIMESTAMP = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?)?)?",
    re.S,
)
_ZONE = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2}|[0-9]{4}|[0-9]{6}|[0-9]{2}:[0-9]{2}(?::[0-9]{2})?)")
_ZULU = ("Z", "UTC", "GMT", "UT")
# an hour and a minute of one digit
_HOUR, _MINUTE = re.compile(r"([+-])([0-9]):"), re.compile(r"([+-][0-9]{2}):([0-9])$")
_MAX_OFFSET = 18 * 3600
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_EPOCH = date(1970, 1, 1).toordinal()


def days_of(text: str) -> int:
    """Returns the days since 1970 of a date. Raises: ValueError."""
    found = _DATE.fullmatch(text.strip(_TRIMMED))
    if found is None and "GMT" in text:
        found = _DATE.fullmatch(text.replace("GMT", "").strip(_TRIMMED))
    if found is None:
        raise ValueError("it is no date")
    days = _days(*found.groups())
    if not -(1 << 31) <= days < 1 << 31:
        raise ValueError("the date is beyond the range of its type")
    return days


def micros_of(text: str) -> int:
    """Returns the microseconds since 1970 of a time, which is UTC if it has no zone. Raises: ValueError."""
    try:
        micros, offset = _parse(text)
    except ValueError:
        if "GMT" not in text:
            raise
        micros, offset = _parse(text.replace("GMT", ""))
    return check_micros(micros - (offset or 0) * _MICROS)


def local_micros_of(text: str) -> int:
    """Returns the microseconds since 1970 of a time without a zone. Raises: ValueError."""
    micros, offset = _parse(text)
    if offset is not None:
        raise ValueError("it has a zone, which timestamp_ntz has not")
    return check_micros(micros)


def check_micros(micros: int) -> int:
    """Returns microseconds since 1970. Raises: ValueError if they are beyond the range of a timestamp."""
    if not -(1 << 63) <= micros < 1 << 63:
        raise ValueError("the time is beyond the range of its type")
    return micros


def _parse(text: str) -> tuple[int, int | None]:
    """Returns microseconds since 1970, and the offset of the zone in seconds, if there is one."""
    found = _TIMESTAMP.fullmatch(text.strip(_TRIMMED))
    if found is None:
        raise ValueError("it is no time")
    hour, minute, second = (int(part or 0) for part in found.groups()[4:7])
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("there is no such time of a day")
    zone = found[9]
    micros = ((_days(*found.groups()[:4]) * 24 + hour) * 60 + minute) * 60 + second
    fraction = int(((found[8] or "") + "000000")[:6])
    return micros * _MICROS + fraction, None if zone is None else _offset(zone.strip(_TRIMMED))


def _days(sign: str, year: str, month: str | None, day: str | None) -> int:
    cycles, in_cycle = divmod(int(sign + year), _CYCLE_YEARS)
    # Python has the years 1 to 9999
    found = date(in_cycle + _CYCLE_YEARS, int(month or 1), int(day or 1)).toordinal()
    return found - _EPOCH + (cycles - 1) * _CYCLE_DAYS


def _offset(zone: str) -> int:
    """Returns seconds."""
    if zone in _ZULU:
        return 0
    written = _ZONE.fullmatch(_MINUTE.sub(r"\1:0\2", _HOUR.sub(r"\g<1>0\2:", zone, count=1)))
    if written is None:
        raise ValueError("its zone is neither UTC nor an offset")
    digits = written[2].replace(":", "")
    hours, minutes, seconds = (int(part) for part in (digits[:2], digits[2:4] or "0", digits[4:] or "0"))
    offset = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or offset > _MAX_OFFSET:
        raise ValueError("the offset of its zone is beyond 18 hours")
    return -offset if written[1] == "-" else offset
