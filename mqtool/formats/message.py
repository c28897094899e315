"""A message as a value: one row of a ``MessageTable``, with the views of it that people ask for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from mqtool.errors import FormatError
from mqtool.formats import commit_log, kernels
from mqtool.formats.compression import decompress
from mqtool.formats.hosts import host_text, offset_message_id
from mqtool.formats.properties import parse_properties
from mqtool.formats.property_names import KEYS, TAGS, UNIQ_KEY
from mqtool.formats.record_head import physical_offset, read_start
from mqtool.formats.scan import HOSTS, NARROW, WIDE, MessageTable, gather
from mqtool.formats.stored_message import record_ends
from mqtool.late import np


@dataclasses.dataclass(frozen=True)
class Message:
    """One message record.

    Numbers are those of the record under the names of its schema; ``body`` and ``raw_properties`` are its bytes.
    ``position`` is its address, ``physical_offset`` the address that it claims.
    """

    position: int
    physical_offset: int
    size: int
    magic_code: int
    topic: str
    queue_id: int
    queue_offset: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    body_size: int
    body: bytes
    raw_properties: bytes

    @functools.cached_property
    def properties(self) -> dict[str, str]:
        """Name to value."""
        return parse_properties(self.raw_properties)

    @property
    def tags(self) -> str | None:
        """The TAGS property."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> str | None:
        """The KEYS property: keys separated by spaces."""
        return self.properties.get(KEYS)

    @property
    def unique_key(self) -> str | None:
        """The id that the client created."""
        return self.properties.get(UNIQ_KEY)

    @property
    def message_id(self) -> str:
        """The offset message id: store host and position, in hexadecimal."""
        return offset_message_id(self.store_host, self.position)

    def plain_body(self) -> bytes:
        """Return the body as the producer sent it.

        Raises:
            FormatError: it is compressed and cannot be decompressed.
        """
        return decompress(self.body, self.sys_flag)


def message_at(table: MessageTable, row: int) -> Message:
    """Return one row of a table as a value."""
    narrow: dict[str, Any] = {name: int(table.narrow[i, row]) for i, name in enumerate(NARROW)}
    wide: dict[str, Any] = {name: int(table.wide[i, row]) for i, name in enumerate(WIDE)}
    hosts: dict[str, Any] = {
        f"{host}_host": host_text(table.address(i, row), narrow.pop(f"{host}_port")) for i, host in enumerate(HOSTS)
    }
    return Message(
        position=table.base + int(table.starts[row]),
        topic=table.bytes_of(kernels.TOPIC, row).decode("utf-8", "replace"),
        body=table.bytes_of(kernels.BODY, row),
        raw_properties=table.bytes_of(kernels.PROPERTIES, row),
        **narrow,
        **wide,
        **hosts,
    )


def records_of(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the consecutive records of an answer to a pull, and the address that each claims.

    Raises:
        FormatError: a record is cut off.
    """
    for at, end in record_ends(data):
        yield data[at:end], physical_offset(data, at)


def message_of(record: bytes, position: int) -> Message:
    """Return the message of one complete record at ``position``.

    Raises:
        FormatError: its parts do not add up.
    """
    if len(record) < commit_log.MIN_SIZE or read_start(record)[0] != len(record):
        raise FormatError("not a message record", offset=position)
    table = gather(memoryview(record), position, np.zeros(1, np.int64))
    if table.faults[0]:
        raise FormatError("a message record whose sizes do not add up", offset=position)
    return message_at(table, 0)
