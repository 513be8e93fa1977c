"""Messages of the Protobuf files by which values were written."""

from __future__ import annotations

from spark_groupsource.values.decoded import bounded_reason
from spark_groupsource.values.protobuf.protobuf_schema import ProtoFiles, ProtoMessage, paths_of
from spark_groupsource.values.registry.proto_files import InvalidProtoError
from spark_groupsource.values.registry.protobuf_indexes import encoded_indexes
from spark_groupsource.values.registry.registry_client import SchemaRegistry, UnreadableSchemaError
from spark_groupsource.values.registry.subjects import ReaderSchema


class RegisteredMessages:
    """Finds the message of a column in the file of each id, by its full name.

    Args:
        reader: the schema of the column, if it is one of the registry.
    """

    def __init__(self, registry: SchemaRegistry, message: ProtoMessage, reader: ReaderSchema | None) -> None:
        self._registry = registry
        self._name = message.name
        # the schema of the column is not compiled again by each worker
        self._found: dict[int | str, list[bytes] | str] = (
            {} if reader is None else {reader.schema_id: encoded_indexes(message.paths)}
        )

    def indexes(self, schema_id: int | str) -> list[bytes] | str:
        """Returns the encodings of the indexes of the message, or why the file has none.

        Raises: NetworkError, AuthenticationError; ConfigurationError if protoc is missing.
        """
        if schema_id not in self._found:
            self._found[schema_id] = self._indexes(schema_id)
        return self._found[schema_id]

    def _indexes(self, schema_id: int | str) -> list[bytes] | str:
        try:
            files = written_files(self._registry, schema_id)
        except (InvalidProtoError, UnreadableSchemaError) as error:
            return bounded_reason(str(error))
        if files is None:
            return "the registry has no Protobuf schema with this id"
        paths = paths_of(self._name, files.names)
        return encoded_indexes(paths) if paths else f"its schema has no message {self._name}"


def written_files(registry: SchemaRegistry, schema_id: int | str) -> ProtoFiles | None:
    """Returns the files of a schema; None if the registry has no Protobuf schema with this id.

    Raises: InvalidProtoError for a schema that does not compile; ConfigurationError if protoc is missing; NetworkError,
        AuthenticationError.
    """
    found = registry.registered(schema_id)
    if found is None or found.kind != "PROTOBUF":
        return None
    return ProtoFiles(f"The schema with id {schema_id}", found.descriptor_set(f"id {schema_id}"))
