"""Parser of Java properties files.

Source: Java 17 `java.util.Properties.load`.
"""

from __future__ import annotations

import re
from typing import Iterator, NamedTuple

from spark_groupsource.errors import ConfigurationError

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANK = " \t\f"
# key, separator, value; a key ends at an unescaped separator, and of several separators one is no whitespace
_ENTRY = re.compile(r"((?:\\.|[^\\=: \t\f])*)([ \t\f]*[=:][ \t\f]*|[ \t\f]*)(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BYTE_ORDER_MARK = "\ufeff"


class Property(NamedTuple):
    """One entry of a properties file; `line` is the number of its first line.

    `has_separator` is False for a key alone, whose value is empty.
    """

    line: int
    key: str
    value: str
    has_separator: bool = True


def decode(data: bytes) -> str:
    """Returns the text of a file: UTF-8, or ISO-8859-1 if it is not valid UTF-8.

    Java reads a stream of bytes as ISO-8859-1, and Kafka's `FileConfigProvider` a file as UTF-8. Text that both can
    read is the same.

    Raises: ValueError for bytes that are no text.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("iso-8859-1")
    if "\0" in text:
        raise ValueError("it is no text")
    return text


def entries(text: str) -> Iterator[Property]:
    """Yields the entries of a text, in its order; a byte order mark is skipped.

    Raises: ConfigurationError with the number of a line that has an incomplete Unicode escape.
    """
    for number, line in _logical_lines(text.removeprefix(_BYTE_ORDER_MARK)):
        found = _ENTRY.fullmatch(line)
        assert found is not None  # the pattern matches every line
        key, separator, value = found.groups()
        yield Property(number, _unescape(key, number), _unescape(value, number), bool(separator))


def parse_properties(text: str) -> dict[str, str]:
    """Returns the entries of a text; of several values of a key, the last one. Raises: ConfigurationError."""
    return {entry.key: entry.value for entry in entries(text)}


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields each line with its number; a line that ends with a backslash continues in the next one."""
    pending, first, continues = "", 0, False
    lines = _LINE_END.split(text)
    if len(lines) > 1 and not lines[-1]:
        del lines[-1]
    for number, natural in enumerate(lines, 1):
        line = natural.lstrip(_BLANK)
        if not pending and line[:1] in ("", "#", "!"):
            continues = False
            continue
        first = first if pending else number
        line = pending + line
        continues = bool((len(line) - len(line.rstrip("\\"))) % 2)
        if continues:
            # a line of a backslash alone leaves nothing that the next line could continue
            pending = line[:-1]
        else:
            yield first, line
            pending = ""
    # Java returns an empty entry for a backslash alone at the end, but not before the two characters of a line end
    if pending or (continues and not text.endswith("\r\n")):
        yield first, pending


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text

    def replacement(found: re.Match[str]) -> str:
        char = found[1]
        if char == "u":
            raise ConfigurationError(f"Line {line} has an incomplete \\uxxxx escape. Write four hexadecimal digits.")
        return chr(int(char[1:], 16)) if len(char) > 1 else _ESCAPED.get(char, char)

    replaced = _ESCAPE.sub(replacement, text)
    # two escapes for one character beyond U+FFFF; half of one cannot be sent
    return replaced.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
