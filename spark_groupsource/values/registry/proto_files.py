"""Descriptor sets of the Protobuf schemas of a registry.

A registry returns the text of a `.proto` file, and that of each file that it imports as a reference. protoc of the
package grpcio-tools compiles them, in a process of its own. confluent-kafka for Python registers a
FileDescriptorProto in base64 in place of a text.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from base64 import b64decode, b64encode
from functools import lru_cache
from pathlib import Path, PurePosixPath

from spark_groupsource.errors import ConfigurationError
from spark_groupsource.values.lanes.avro_scan import DamagedValueError
from spark_groupsource.values.lanes.protobuf_scan import read_fields
from spark_groupsource.values.registry.protobuf_indexes import varint

_TIMEOUT_S = 60
# protoc logs a file without syntax before the errors
_LOG_LINE = re.compile(r"WARNING: All log messages before absl|[IWEF][0-9]{4} ")
_INVALID_NAMES = (errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST)
_MAIN = "schema-of-the-value.proto"
# a name that no module has: the directory is on the path of the modules of protoc's process
_IMPORTS, _OUTPUT = "imported files", "descriptor set"
_META = """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""
_DECIMAL = """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
"""
_KNOWN = {"confluent/meta.proto": _META, "confluent/type/decimal.proto": _DECIMAL}
"""Files that Confluent's serializers do not register as references; protoc has those of google/protobuf."""


class InvalidProtoError(ConfigurationError):
    """A Protobuf schema is invalid."""


def is_proto_text(schema: str) -> bool:
    """Returns whether a schema is the text of a `.proto` file; base64 has no braces and semicolons."""
    return "{" in schema or ";" in schema


@lru_cache(maxsize=256)
def descriptor_set(subject: str, schema: str, references: tuple[tuple[str, str], ...] = ()) -> str:
    """Returns the FileDescriptorSet of a schema in base64; the file of the schema is the last one.

    Args:
        subject: what has the schema, for messages.
        references: name by which a file is imported, and its text.
    Raises: InvalidProtoError for a schema that does not compile; ConfigurationError if protoc cannot be started.
    """
    files = [*references, (_MAIN, schema)]
    if not any(is_proto_text(text) for _, text in files):
        return _joined(subject, [text for _, text in files])
    for name, text in files:
        if not is_proto_text(text):
            raise _invalid(subject, f"file {name} is no .proto text")
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\0" in name:
            raise _invalid(subject, f"reference {name!r} is no relative path")
    with tempfile.TemporaryDirectory(prefix="groupsource-proto-") as directory:
        for name, text in [*_KNOWN.items(), *files]:
            path = Path(directory, _IMPORTS, name)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
            except (OSError, ValueError) as error:
                # a full disk is no fault of the schema
                if isinstance(error, OSError) and error.errno not in _INVALID_NAMES:
                    raise
                # also half of a surrogate pair
                raise _invalid(subject, f"file {name[:100]!r} cannot be written: {type(error).__name__}") from None
        return b64encode(_compiled(subject, directory)).decode()


def _compiled(subject: str, directory: str) -> bytes:
    if importlib.util.find_spec("grpc_tools") is None:
        raise ConfigurationError(
            f"Compiling the Protobuf schema of {subject} failed: grpcio-tools is not installed. Run: "
            "pip install 'spark-groupsource[protobuf]' on the driver and the workers, or give a descriptor set without "
            "a registry."
        )
    arguments = [f"-I{_IMPORTS}", "--include_imports", f"--descriptor_set_out={_OUTPUT}", _MAIN]
    command = [sys.executable, "-m", "grpc_tools.protoc", *arguments]
    # the modules of this process, also those that Spark added
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(
            f"Compiling the Protobuf schema of {subject} failed: {str(error)[:200]}. Check the installation of "
            "grpcio-tools."
        ) from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().replace(f"{_IMPORTS}/", "").splitlines()
        errors = [line.replace(_MAIN, "line").rstrip(".") for line in lines if not _LOG_LINE.match(line)]
        found = "; ".join(errors[:3])
        raise _invalid(subject, found[:400] or f"protoc ended with status {done.returncode}")
    return Path(directory, _OUTPUT).read_bytes()


def _joined(subject: str, files: list[str]) -> str:
    """Returns the descriptor set of FileDescriptorProtos in base64, with the imported files that every protoc has."""
    found = bytearray()
    names, imported = set(), set()
    for text in files:
        try:
            data = b64decode(text, validate=True)
            fields = [(number, value) for number, _, value in read_fields(data) if isinstance(value, bytes)]
        except (ValueError, IndexError, DamagedValueError):
            raise _invalid(subject, "it is neither the text of a .proto file nor a descriptor in base64") from None
        names |= {value for number, value in fields if number == 1}
        imported |= {value for number, value in fields if number == 3}
        # field 1 of FileDescriptorSet
        found += b"\x0a" + varint(len(data)) + data
    missing = "".join(f'import "{name.decode(errors="replace")}";\n' for name in sorted(imported - names))
    others = b64decode(descriptor_set(subject, f'syntax = "proto3";\n{missing}')) if missing else b""
    return b64encode(others + found).decode()


def _invalid(subject: str, fact: str) -> InvalidProtoError:
    return InvalidProtoError(
        f"Compiling the Protobuf schema of {subject} failed: {fact}. Correct the schema and its references."
    )
