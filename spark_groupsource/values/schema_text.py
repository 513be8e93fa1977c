"""Text of schemas without byte order mark and comments."""

from __future__ import annotations

import codecs
import re

# a path has no line break, and a schema after a line comment has one
_LINE_COMMENT = re.compile(r"//[^\r\n]*[\r\n]")
# strings are matched so that what is within them is no comment
_STRINGS_AND_COMMENTS = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\r\n]*|/\*.*?\*/', re.DOTALL)
_AROUND = "\ufeff \t\n\r\f\v\u0085\u00a0\u2028\u2029"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def plain_text(text: str) -> str:
    """Returns a text without the byte order marks and whitespace around it."""
    return text.strip(_AROUND)


def decoded_text(data: bytes) -> str:
    """Returns the text of a file in UTF-8, or in UTF-16 with a byte order mark. Raises: UnicodeDecodeError."""
    return plain_text(data.decode("utf-16" if has_utf_16_mark(data) else "utf-8"))


def has_utf_16_mark(data: bytes) -> bool:
    """Returns whether a file begins with a byte order mark of UTF-16."""
    return data.startswith(_UTF_16)


def is_path(text: str) -> bool:
    """Returns whether a text is the path of a file; one that begins with a comment is a schema."""
    return text.startswith(("/", "file:/")) and not text.startswith("/*") and not _LINE_COMMENT.match(text)


def without_comments(text: str) -> str:
    """Returns JSON without comments as in Java, which Avro's parser accepts; each is replaced by a space."""
    return _STRINGS_AND_COMMENTS.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
