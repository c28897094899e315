"""A record field by field, as its schema reads it: which bytes are which field."""

import io
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from construct import Computed, Construct, ConstructError, Struct

from mqtool.formats import commit_log, record_schemas
from mqtool.formats.properties import NAME_SEPARATOR, PAIR_SEPARATOR


class Field(NamedTuple):
    """Some bytes and what they are; ``value`` is None if only the bytes say it."""

    offset: int
    data: bytes
    name: str
    value: int | str | bytes | None


class _UnreadableFieldError(Exception):
    """The next field cannot be where the ones before say."""


def annotate(record: bytes, offset: int) -> tuple[list[Field], str | None]:
    """Return the fields of a message record, and where it stops making sense: a sentence, None for a sound record.

    Laid end to end the bytes of the fields are the record: bytes that no field explains are called ``rest``.

    >>> from mqtool.formats.commit_log import MAGIC_V1
    >>> fields, stop = annotate((91).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big", signed=True) + bytes(2), 100)
    >>> [(field.offset, field.name, field.value) for field in fields]
    [(100, 'size', 91), (104, 'magic_code', -626843481), (108, 'rest', None)]
    >>> stop
    'body_crc does not fit: 2 bytes are left at 108'
    """
    fields: list[Field] = []
    problem: str | None = None
    try:
        for field in _message_fields(record, offset):
            fields.append(field)  # noqa: PERF402 (what comes before an error is kept)
    except _UnreadableFieldError as error:
        problem = str(error)
    end = sum(len(field.data) for field in fields)
    if end < len(record):
        problem = problem or f"{len(record) - end:,} bytes more than the sum of its parts, from {offset + end:,} on"
        fields.append(Field(offset + end, record[end:], "rest", None))
    return fields, problem


def _message_fields(record: bytes, offset: int) -> Iterator[Field]:
    sys_flag = 0
    for field in _walk(record_schemas.MESSAGE, record, offset):
        if field.name == "sys_flag" and isinstance(field.value, int):
            sys_flag = field.value
        whole_batch = sys_flag & commit_log.INNER_BATCH and not sys_flag & commit_log.COMPRESSED
        if field.name == "body" and whole_batch:
            yield from _batch_fields(field) or [field]
        elif field.name == "properties":
            yield from _property_fields(field, "")
        else:
            yield field


def _walk(schema: Struct, data: bytes, offset: int) -> Iterator[Field]:
    """Yield the fields of ``schema`` up to the first that is missing."""
    stream = io.BytesIO(data)
    values: dict[str, Any] = {}
    for subcon in schema.subcons:
        if isinstance(subcon.subcon, Computed):
            continue
        start = stream.tell()
        value = _parse(subcon, stream, values)
        end = stream.tell()
        if value is None:
            size = values.get(f"{subcon.name}_size")
            reason = "does not fit" if size is None else f"needs {size:,} bytes"
            left = f"{len(data) - start:,} bytes are left at {offset + start:,}"
            raise _UnreadableFieldError(f"{subcon.name} {reason}: {left}")
        values[subcon.name] = value
        if end > start:
            yield Field(offset + start, data[start:end], subcon.name, value)


def _parse(subcon: Construct, stream: io.BytesIO, values: dict[str, Any]) -> Any:
    try:
        return subcon.parse_stream(stream, **values)
    except (ConstructError, ValueError, OverflowError):
        return None


def _batch_fields(body: Field) -> list[Field]:
    """Return the fields of the messages in a batch, none if the body is not a batch."""
    fields: list[Field] = []
    at = 0
    try:
        for number in itertools.count():
            if at == len(body.data):
                return fields
            prefix = f"messages[{number}]."
            for field in _walk(record_schemas.CLIENT_BATCH_ELEMENT, body.data[at:], body.offset + at):
                named = field._replace(name=prefix + field.name)
                fields += _property_fields(named, prefix) if field.name == "properties" else [named]
                at = field.offset + len(field.data) - body.offset
    except _UnreadableFieldError:
        pass
    return []


def _property_fields(field: Field, prefix: str) -> list[Field]:
    """Cut properties into names, values and separators."""
    fields: list[Field] = []
    at = field.offset

    def take(data: bytes, name: str, value: str) -> None:
        nonlocal at
        if data:
            fields.append(Field(at, data, f"{prefix}{name}", value))
            at += len(data)

    pair_separator, name_separator = PAIR_SEPARATOR.encode(), NAME_SEPARATOR.encode()
    chunks = field.data.split(pair_separator)
    for number, chunk in enumerate(chunks):
        name, separator, value = chunk.partition(name_separator)
        take(name, "property_name", name.decode("utf-8", "replace"))
        take(separator, "name_separator", NAME_SEPARATOR)
        take(value, "property_value", value.decode("utf-8", "replace"))
        if number < len(chunks) - 1:
            take(pair_separator, "pair_separator", PAIR_SEPARATOR)
    return fields
