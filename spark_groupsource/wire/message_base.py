"""Classes of messages and of the structures in them, built from schemas."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Callable, ClassVar, Mapping, TypeVar

from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.schemas import EMPTY, Field, Schema

ResponseT = TypeVar("ResponseT")
_ABSENT = object()
NO_TAGS: Mapping[int, bytes] = MappingProxyType({})
"""No unknown tagged fields."""


class DataContainer:
    """Base class of messages and of the structures in them: one attribute per field of any version.

    The constructor takes the fields as keyword arguments; others have their defaults. Names are checked, not types.
    """

    __slots__ = ()
    FIELDS: ClassVar[tuple[Field, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if self.__class__ is not other.__class__:
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.FIELDS)
        return f"{self.__class__.__name__}({values})"


class RecordStruct(DataContainer):
    """Base class of the keys and values of log records, and of the structures in them.

    Attributes: `unknown_tags`, the bytes of tagged fields that the schema lacks, by tag: a newer broker wrote them.
    """

    __slots__ = ("unknown_tags",)
    unknown_tags: Mapping[int, bytes]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordStruct):
            return NotImplemented
        return super().__eq__(other) is True and self.unknown_tags == other.unknown_tags

    __hash__ = None  # type: ignore[assignment]


class ApiMessage(DataContainer):
    """Base class of requests and responses."""

    __slots__ = ()
    SCHEMA: ClassVar[Schema]
    API_KEY: ClassVar[ApiKey]


class ApiData(RecordStruct):
    """Base class of the keys and values of log records and of the consumer protocol's messages."""

    __slots__ = ()
    SCHEMA: ClassVar[Schema]


Request = Response = ApiMessage
"""Base class of the requests and of the responses; generic in the stub."""


def build_class(schema: Schema, module: str) -> Any:
    """Returns the class of a message, whose structures are its attributes by type; `module` is where it is found."""
    attributes: dict[str, Any] = {"SCHEMA": schema}
    if schema.type == "data":
        return _class(schema.name, ApiData, schema.fields, module, schema.name, attributes)
    if schema.api_key is not None:
        attributes["API_KEY"] = ApiKey(schema.api_key)
    return _class(schema.name, ApiMessage, schema.fields, module, schema.name, attributes)


def _class(
    name: str,
    base: type[DataContainer],
    fields: tuple[Field, ...],
    module: str,
    path: str,
    attributes: dict[str, Any],
) -> Any:
    for field in fields:
        if field.fields is not None and field.type not in attributes:
            inner_path = f"{path}.{field.type}"
            inner_base = RecordStruct if issubclass(base, RecordStruct) else DataContainer
            attributes[field.type] = _class(field.type, inner_base, field.fields, module, inner_path, {})
    attributes |= {
        "FIELDS": fields,
        "__slots__": tuple(field.name for field in fields),
        "__module__": module,
        "__qualname__": path,
        "__init__": _first_init,
    }
    return type(name, (base,), attributes)


def _first_init(self: Any, **values: Any) -> None:
    """Generates the constructor of a class at its first call: most structures are only decoded."""
    data_class: Any = type(self)
    data_class.__init__ = _constructor(data_class)
    data_class.__init__(self, **values)


def empty_value(data_class: type[DataContainer], field: Field) -> Callable[[], Any]:
    """Returns what creates the default of a field whose default is `EMPTY`."""
    return list if field.is_array else getattr(data_class, field.type)  # type: ignore[no-any-return]


def _constructor(data_class: type[DataContainer]) -> Any:
    """Returns a generated ``__init__``: one that loops over the fields takes ten times as long."""
    fields = data_class.FIELDS
    names: dict[str, Any] = {"_absent": _ABSENT, "_defaults": [field.default for field in fields]}
    parameters, lines = [], []
    for at, field in enumerate(fields):
        value, default = field.name, f"_defaults[{at}]"
        if field.default == EMPTY:
            # each message has a list of its own
            names[f"_new{at}"] = empty_value(data_class, field)
            value, default = f"_new{at}() if {field.name} is _absent else {field.name}", "_absent"
        parameters.append(f"{field.name}={default}")
        lines.append(f" self.{field.name} = {value}")
    if issubclass(data_class, RecordStruct):
        names["_no_tags"] = NO_TAGS
        parameters.append("unknown_tags=_no_tags")
        lines.append(" self.unknown_tags = unknown_tags")
    head = f"def __init__(self{', *, ' if parameters else ''}{', '.join(parameters)}):"
    exec("\n".join([head, *(lines or [" pass"])]), names)
    return names["__init__"]
