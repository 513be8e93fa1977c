"""Types of `message_base`, whose subclasses `messages.pyi` declares."""

from typing import Any, Callable, ClassVar, Generic, Mapping, TypeVar

from typing_extensions import dataclass_transform

from spark_groupsource.wire.api_keys import ApiKey
from spark_groupsource.wire.schemas import Field, Schema

ResponseT = TypeVar("ResponseT", bound=ApiMessage)

def build_class(schema: Schema, module: str) -> Any: ...
def empty_value(data_class: type[DataContainer], field: Field) -> Callable[[], Any]: ...

class DataContainer:
    """Base class of messages and of the structs in them."""

    FIELDS: ClassVar[tuple[Field, ...]]

NO_TAGS: Mapping[int, bytes]

class RecordStruct(DataContainer):
    """Base class of the keys and values of log records, and of the structs in them."""

    unknown_tags: Mapping[int, bytes]

class ApiMessage(DataContainer):
    """Base class of requests and responses."""

    SCHEMA: ClassVar[Schema]
    API_KEY: ClassVar[ApiKey]

@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True)
class Request(ApiMessage, Generic[ResponseT]):
    """Base class of requests; the type argument is the class of the response."""

@dataclass_transform(kw_only_default=True, eq_default=False)
class Response(ApiMessage):
    """Base class of responses."""

@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True)
class ApiData(RecordStruct):
    """Base class of the keys and values of log records and of the consumer protocol's messages."""

    SCHEMA: ClassVar[Schema]

@dataclass_transform(kw_only_default=True, eq_default=False, frozen_default=True)
class FrozenStruct(DataContainer):
    """Base class of the structs of requests and records."""

@dataclass_transform(kw_only_default=True, eq_default=False)
class Struct(DataContainer):
    """Base class of the structs of responses."""
