"""Base classes of Kafka's messages, from kafka-python without its clients."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, TypeVar

from spark_groupsource.common.deferred_packages import defer_package

SCHEMAS = "kafka.protocol"
# their ``__init__`` imports the clients of kafka-python or every schema: 0.3 s of processor time at each query start
_DEFERRED = ("kafka", *(f"{SCHEMAS}.{name}" for name in ("admin", "consumer", "metadata", "producer")))


def import_schemas(module: str) -> Any:
    """Imports a module that builds classes from schemas."""
    with warnings.catch_warnings():
        # kafka-python reads its schemas through an importlib call that is deprecated in Python 3.11 and 3.12
        warnings.simplefilter("ignore", DeprecationWarning)
        return import_module(module)


for _package in _DEFERRED:
    defer_package(_package)

ApiMessage = import_schemas(f"{SCHEMAS}.api_message").ApiMessage
ApiData = import_schemas(f"{SCHEMAS}.api_data").ApiData
DataContainer = import_schemas(f"{SCHEMAS}.data_container").DataContainer
BaseField = import_schemas(f"{SCHEMAS}.schemas").BaseField
StructField = import_schemas(f"{SCHEMAS}.schemas").StructField
EncodeBuffer = import_schemas(f"{SCHEMAS}.schemas.fields.codecs.encode_buffer").EncodeBuffer
EncodeBufferPool = import_schemas(f"{SCHEMAS}.schemas.fields.codecs.encode_buffer").EncodeBufferPool
UUID = import_schemas(f"{SCHEMAS}.schemas.fields.codecs.types").UUID
BitField = import_schemas(f"{SCHEMAS}.schemas.fields.codecs.types").BitField

ResponseT = TypeVar("ResponseT")
Request = Response = ApiMessage
"""Base class of the requests and of the responses; generic in the stub."""
