"""Inner batch (5.x): one record whose body holds several messages with consecutive queue offsets."""

import dataclasses
from collections.abc import Iterator

from mqtool.formats import commit_log
from mqtool.formats.message import Message, message_of, records_of

_ELEMENT_SIZE = 22
"""Bytes of an element without body and properties."""
_OF_THE_BODY = commit_log.COMPRESSED | commit_log.COMPRESSION_MASK


def is_inner_batch(message: Message) -> bool:
    """Return whether a record contains several messages."""
    return bool(message.sys_flag & commit_log.INNER_BATCH)


def inner_messages(message: Message) -> list[Message]:
    """Return the messages of an inner batch as a consumer gets them; what they do not say themselves is the record's.

    Raises:
        FormatError: the body is not a batch.
    """
    from mqtool.formats.record_schemas import parse_client_batch

    return [
        dataclasses.replace(
            message,
            queue_offset=message.queue_offset + number,
            flag=element.flag,
            sys_flag=message.sys_flag & ~_OF_THE_BODY,
            body_crc=element.body_crc,
            body_size=element.body_size,
            body=element.body,
            raw_properties=element.properties,
        )
        for number, element in enumerate(parse_client_batch(message.plain_body()))
    ]


def count_elements(body: bytes) -> int:
    """Return how many messages the body of an inner batch contains, 0 if it is not one; elements are not examined."""
    at = count = 0
    while at + _ELEMENT_SIZE <= len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        if size < _ELEMENT_SIZE:
            return 0
        at, count = at + size, count + 1
    return count if at == len(body) else 0


def messages_of(records: bytes) -> Iterator[tuple[Message, bytes]]:
    """Yield the messages of an answer of a broker, those in an inner batch one by one, each with its record.

    Raises:
        FormatError: a record is cut off, or its parts do not add up.
    """
    for record, physical_offset in records_of(records):
        message = message_of(record, physical_offset)
        for single in inner_messages(message) if is_inner_batch(message) else (message,):
            yield single, record
