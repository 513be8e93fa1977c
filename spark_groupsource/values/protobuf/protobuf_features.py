"""Features of Protobuf editions: presence, closed enums, encoding of messages.

Source: `FeatureSet` of `google/protobuf/descriptor.proto`, Protobuf editions (feature settings, inheritance).
"""

from __future__ import annotations

from typing import NamedTuple

from spark_groupsource.values.lanes.protobuf_scan import VARINT, read_fields

FILE_OPTIONS, MESSAGE_OPTIONS, FIELD_OPTIONS, ONEOF_OPTIONS, ENUM_OPTIONS = 50, 12, 21, 1, 7
"""Number of the field `features` in the options of a file, message, field, oneof and enum."""
_IMPLICIT, _LEGACY_REQUIRED, _CLOSED, _DELIMITED = 2, 3, 2, 2
_PRESENCE, _ENUM, _ENCODING = 1, 2, 5
_PROTO2, _PROTO3 = 998, 999


class Features(NamedTuple):
    """Features of a declaration.

    Attributes:
        presence: of a field: 1 explicit, 2 implicit, 3 required.
        enum: 1 if other numbers than those of the enum are valid, 2 if not.
        encoding: of messages: 1 with their lengths, 2 as groups.
    """

    presence: int = 1
    enum: int = 1
    encoding: int = 1

    @property
    def is_implicit(self) -> bool:
        """Whether a field that has its default is not set."""
        return self.presence == _IMPLICIT

    @property
    def is_required(self) -> bool:
        """Whether a field must be set."""
        return self.presence == _LEGACY_REQUIRED

    @property
    def is_closed(self) -> bool:
        """Whether other numbers than those of the enum are invalid."""
        return self.enum == _CLOSED

    @property
    def is_delimited(self) -> bool:
        """Whether messages are written as groups."""
        return self.encoding == _DELIMITED

    def overridden(self, options: bytes, number: int) -> Features:
        """Returns the features of a declaration within the one of these.

        Args:
            number: that of the field with the features in the message of the options.
        """
        # a message that is set several times is merged
        parts = [value for each, _, value in read_fields(options) if each == number and isinstance(value, bytes)]
        given = b"".join(parts)
        found = {each: value for each, wire, value in read_fields(given) if wire == VARINT and isinstance(value, int)}
        return Features(
            found.get(_PRESENCE) or self.presence,
            found.get(_ENUM) or self.enum,
            found.get(_ENCODING) or self.encoding,
        )


def default_features(syntax: str, edition: int) -> Features:
    """Returns the features of a file that gives none; one without syntax is proto2."""
    if syntax == "proto3" or edition == _PROTO3:
        return Features(presence=_IMPLICIT)
    if syntax in ("", "proto2") or edition == _PROTO2:
        return Features(enum=_CLOSED)
    return Features()
