"""Regular expressions that select names: Python's, without constructs that Java understands otherwise.

Users of Spark and Kafka write the patterns of Java. Where Python accepts such a text with another meaning, it would
select other topics without notice; such a text is rejected with the form that Python has.

Source: Java 17 `java.util.regex.Pattern`.
"""

from __future__ import annotations

import re
from typing import Iterator

from spark_groupsource.errors import ConfigurationError

_SPECIAL = re.compile(r"[*+?^$|()\[\]{}\\]")
_OCTAL = re.compile(r"\\(0|[1-3][0-7][0-7])")
_FLAGS = re.compile(r"\(\?[a-zA-Z]*(-[a-zA-Z]*)?\)")
_NAMED_GROUP = re.compile(r"\(\?<(?![=!])")
_ESCAPES = {
    **dict.fromkeys("pP", "is a class of characters in Java: write the characters, for example [a-z]"),
    **dict.fromkeys("QE", "quotes text in Java: put a backslash before each special character instead"),
    **dict.fromkeys("hHvVRX", "is a class of characters in Java: write the characters"),
    "z": r"is the end of the text in Java: write \Z",
    "G": "is the end of the previous match in Java: leave it out",
    "k": "refers to a group in Java: write (?P=name)",
    "c": "is a control character in Java: write \\x and two hexadecimal digits",
    "e": "is the escape character in Java: write \\x1b",
}
"""Letter behind a backslash -> what it is in Java, and what to write."""


def is_pattern(text: str) -> bool:
    """Returns whether a text has characters of regular expressions; a dot alone is part of many names."""
    return _SPECIAL.search(text) is not None


def check_pattern(name: str, text: str, what: str = "a regular expression") -> str:
    """Returns the text of a regular expression.

    Args:
        name: of the option or argument.
        what: what the option takes.
    Raises: ConfigurationError for an invalid expression and for one that has another meaning in Java.
    """
    problem = next(_java_constructs(text), None)
    if problem is None:
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            problem = str(error)
    if problem is not None:
        raise ConfigurationError(f"Option {name} must be {what} of Python's re module, got {text!r}: {problem}.")
    return text


def split_names(text: str) -> tuple[str, ...]:
    """Returns the names and patterns that commas separate; a comma within brackets is part of a pattern."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
        at += 2 if char == "\\" else 1
    stripped = (part.strip() for part in (*parts, text[start:]))
    return tuple(dict.fromkeys(filter(None, stripped)))


def _java_constructs(text: str) -> Iterator[str]:
    """Yields what Python and Java understand differently, with what to write."""
    at, set_start = 0, -1
    while at < len(text):
        char, pair = text[at], text[at : at + 2]
        if char == "\\":
            if pair[1:] in _ESCAPES and pair[1:]:
                yield f"{pair} {_ESCAPES[pair[1]]}"
            if _OCTAL.match(text, at):
                yield f"{pair} is an octal number in Python alone: write \\x and two hexadecimal digits"
            if set_start < 0 and text.startswith("b{", at + 1):
                yield r"\b{ is a boundary in Java: write \b"
            at += 2
            continue
        if set_start >= 0:
            if pair == "&&":
                yield "&& is an intersection in a set of Java: write the characters that remain, for example [ac-z]"
            if char == "[":
                yield r"[ within a set is a union in Java: write one set, or \[ for the bracket itself"
            if char == "]" and at > set_start:
                set_start = -1
        elif char == "[":
            # a bracket that closes the set directly is part of it
            set_start = at + 1 + text.startswith("^", at + 1)
        elif at and _FLAGS.match(text, at):
            yield "flags apply from their place on in Java: write (?i:...) around the part, or the flags at the start"
        elif _NAMED_GROUP.match(text, at):
            yield "(?<name> is a named group in Java: write (?P<name>"
        at += 1
