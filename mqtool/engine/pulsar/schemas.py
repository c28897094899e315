"""The schemas of a topic, and whether another one is compatible with them.

A version is the position of a schema among those of its topic. A producer's schema must be able to read data written
with the latest one, and vice versa; a consumer's schema only has to read it. Of schemas that are not in Avro's notation
only the types are compared. (Rules: pulsar.md 9.)
"""

import json
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from mqtool.engine.pulsar.avro import can_read, parse_schema
from mqtool.engine.pulsar.refusal import PulsarError, PulsarRefusedError
from mqtool.errors import FormatError

_NONE, _AUTO_CONSUME = 0, 21
_TYPES = (  # noqa: SIM905
    "NONE STRING JSON PROTOBUF AVRO BOOLEAN INT8 INT16 INT32 INT64 FLOAT DOUBLE DATE TIME TIMESTAMP KEY_VALUE INSTANT "
    "LOCAL_DATE LOCAL_TIME LOCAL_DATE_TIME PROTOBUF_NATIVE AUTO_CONSUME EXTERNAL"
).split()
_PROTOBUF = _TYPES.index("PROTOBUF")
_IN_AVRO = frozenset((_TYPES.index("JSON"), _PROTOBUF, _TYPES.index("AVRO")))
_MAX_BYTES = 1 << 19
_MAX_VERSIONS = 1000
_VERSION = struct.Struct(">q")


class Schema(NamedTuple):
    """A schema, by Pulsar's numbers of types."""

    type: int
    data: bytes
    properties: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def type_name(self) -> str:
        """As Pulsar writes it."""
        return _TYPES[self.type] if 0 <= self.type < len(_TYPES) else str(self.type)


def schema_of(body: Any) -> Schema | None:
    """Return the schema of a command, None if it has none: bytes, or whatever the topic has."""
    if not body.HasField("schema") or body.schema.type in (_NONE, _AUTO_CONSUME):
        return None
    schema_data = body.schema
    return Schema(
        schema_data.type, schema_data.schema_data, tuple((pair.key, pair.value) for pair in schema_data.properties)
    )


def version_bytes(version: int) -> bytes:
    """Return a version as it appears in messages.

    >>> version_bytes(1).hex()
    '0000000000000001'
    """
    return _VERSION.pack(version)


def parse_version(data: bytes) -> int:
    """Return the version encoded in bytes, -1 if they are not a version."""
    return int(_VERSION.unpack(data)[0]) if len(data) == _VERSION.size else -1


def find(known: Sequence[Schema], schema: Schema) -> int | None:
    """Return the version of a schema among those of its topic, None for a new one."""
    text = _json_of(schema)
    for version, version_schema in enumerate(known):
        if version_schema.type == schema.type and (
            version_schema.data == schema.data or (text is not None and text == _json_of(version_schema))
        ):
            return version
    return None


def check_new(known: Sequence[Schema], schema: Schema) -> None:
    """Check that a schema may be added to those of its topic.

    Raises:
        PulsarRefusedError: it may not.
    """
    size = len(schema.data) + sum(len(name) + len(value) for name, value in schema.properties)
    if size > _MAX_BYTES or len(known) >= _MAX_VERSIONS:
        text = f"A schema may have at most {_MAX_BYTES:,} bytes, and a topic at most {_MAX_VERSIONS:,} of them"
        raise PulsarRefusedError(PulsarError.NOT_ALLOWED, text)
    if schema.type in _IN_AVRO:
        _parsed(schema)
    if known:
        _check(known[-1], schema, is_mutual=True)


def check_reader(known: Sequence[Schema], schema: Schema) -> None:
    """Check that a consumer with a schema can read data written with the latest schema of its topic.

    Raises:
        PulsarRefusedError: it cannot.
    """
    if known:
        _check(known[-1], schema, is_mutual=False)


def _check(latest: Schema, schema: Schema, *, is_mutual: bool) -> None:
    if latest.type != schema.type:
        text = f"Incompatible schema: exists schema type {latest.type_name}, new schema type {schema.type_name}"
        raise PulsarRefusedError(PulsarError.INCOMPATIBLE_SCHEMA, text)
    if schema.type not in _IN_AVRO or latest.data == schema.data:
        return
    new, old = _parsed(schema), _parsed(latest)
    if new is None or old is None:
        return
    try:
        fits = can_read(new, old) and (not is_mutual or can_read(old, new))
    except FormatError as error:
        raise PulsarRefusedError(PulsarError.INCOMPATIBLE_SCHEMA, str(error)) from None
    if not fits:
        problem = (
            "the latest schema of the topic and this one cannot read each other's data"
            if is_mutual
            else ("this schema cannot read data written with the latest one of the topic")
        )
        raise PulsarRefusedError(PulsarError.INCOMPATIBLE_SCHEMA, f"Incompatible {schema.type_name} schema: {problem}")


def _parsed(schema: Schema) -> Any:
    try:
        return parse_schema(schema.data)
    except FormatError as error:
        if schema.type == _PROTOBUF:  # some clients send its descriptor
            return None
        raise PulsarRefusedError(
            PulsarError.INCOMPATIBLE_SCHEMA, f"Invalid schema definition: {error.reason}"
        ) from None


def _json_of(schema: Schema) -> Any:
    """Return the parsed JSON of a schema, whatever its spacing; None if it is not JSON."""
    if schema.type not in _IN_AVRO:
        return None
    try:
        return json.loads(schema.data)
    except (ValueError, RecursionError):
        return None
