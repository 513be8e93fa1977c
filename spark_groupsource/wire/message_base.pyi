"""Types of `message_base`, whose classes kafka-python builds."""

import uuid
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, Mapping, Sequence, TypeVar

from typing_extensions import dataclass_transform

from spark_groupsource.wire.api_keys import ApiKey

SCHEMAS: str
ResponseT = TypeVar("ResponseT", bound=ApiMessage)

def import_schemas(module: str) -> Any: ...

class BaseField:
    """One field of a schema."""

    name: str
    _name: str
    tag: int | None
    default: Any
    @property
    def type_str(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, BaseField]: ...
    @property
    def array_of(self) -> BaseField: ...
    @property
    def data_class(self) -> type[DataContainer]: ...
    def is_array(self) -> bool: ...
    def is_struct(self) -> bool: ...
    def for_version_q(self, version: int) -> bool: ...
    def nullable_for_version_q(self, version: int) -> bool: ...
    def tagged_field_q(self, version: int) -> bool: ...
    def untagged_fields(self, version: int) -> Sequence[BaseField]: ...
    @classmethod
    def parse_versions(cls, versions: str | None) -> tuple[int, int] | None: ...

class StructField(BaseField):
    """The fields of a message or of a struct in it."""

    def __init__(self, json: Mapping[str, Any]) -> None: ...
    def set_data_class(self, data_class: type[DataContainer]) -> None: ...
    def compiled_encode_into(self, version: int, compact: bool = ..., tagged: bool = ...) -> Any: ...

class EncodeBuffer:
    """A growing buffer; the bytes before `pos` are written."""

    buf: bytearray
    pos: int
    def ensure(self, needed: int) -> None: ...
    def result(self) -> bytearray: ...

class EncodeBufferPool:
    """One encode buffer per thread."""

    @classmethod
    def acquire(cls) -> AbstractContextManager[EncodeBuffer]: ...

class UUID:
    """Codec of a topic id; the zero id is None."""

    size: ClassVar[int]
    @classmethod
    def decode(cls, data: Any, compact: bool = ...) -> uuid.UUID | None: ...

class BitField:
    """Codec of a set of bit numbers; None is no value."""

    size: ClassVar[int]
    @classmethod
    def decode(cls, data: Any, compact: bool = ...) -> set[int] | None: ...

class DataContainer:
    """Base class of messages and of the structs in them."""

    _struct: ClassVar[StructField]
    _version: int | None
    tags: set[str] | None
    unknown_tags: dict[str, bytes] | None
    @property
    def version(self) -> int | None: ...

class ApiMessage(DataContainer):
    """Base class of requests and responses."""

    API_KEY: ClassVar[ApiKey]
    json: ClassVar[Mapping[str, Any]]
    min_version: ClassVar[int]
    max_version: ClassVar[int]
    def __init_subclass__(cls, *, load_json: str = ...) -> None: ...
    @classmethod
    def flexible_version_q(cls, version: int) -> bool: ...
    def encode(self, version: int | None = ..., header: bool = ..., framed: bool = ...) -> bytearray: ...

@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True)
class Request(ApiMessage, Generic[ResponseT]):
    """Base class of requests; the type argument is the class of the response."""

@dataclass_transform(kw_only_default=True, eq_default=False)
class Response(ApiMessage):
    """Base class of responses."""

@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True)
class ApiData(DataContainer):
    """Base class of the keys and values of log records and of the consumer protocol's messages."""

    json: ClassVar[Mapping[str, Any]]
    max_version: ClassVar[int]
    def __init_subclass__(cls, *, load_json: str = ...) -> None: ...
    @classmethod
    def flexible_version_q(cls, version: int) -> bool: ...
    def encode(self, version: int | None = ..., header: bool = ..., framed: bool = ...) -> bytes: ...

@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True)
class FrozenStruct(DataContainer):
    """Base class of the structs of requests and records."""

@dataclass_transform(kw_only_default=True, eq_default=False)
class Struct(DataContainer):
    """Base class of the structs of responses."""
