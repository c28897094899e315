"""A message as received by a consumer, or by a producer that checks a transaction.

(RocketMQ: ``MessageExt``, ``MessageClientExt``.)
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mqtool.errors import FormatError
from mqtool.formats.codes import SysFlag
from mqtool.formats.compression import decompress
from mqtool.formats.headers import PushReply, parse_header
from mqtool.formats.hosts import host_text, offset_message_id
from mqtool.formats.properties import parse_properties, split_keys
from mqtool.formats.property_names import KEYS, TAGS, UNIQ_KEY
from mqtool.formats.remoting import RemotingCommand

log = logging.getLogger(__name__)

_COMPRESSED = int(SysFlag.COMPRESSED)  # a plain number takes a tenth of the time, with every message


@dataclass(slots=True)  # frozen, it would take four times as long to make
class ConsumerMessage:
    """A message that a broker has stored; times are in ms since 1970, ``body`` is as the producer sent it.

    If a compressed body cannot be read, ``body`` is as stored, and ``body_error`` says why.
    """

    topic: str
    body: bytes
    raw_properties: bytes
    broker_name: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    reconsume_times: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    body_error: FormatError | None = None
    received_at: float = field(default=0.0, repr=False, compare=False)  # by time.perf_counter, if it is measured
    deserializer: "Callable[[bytes], Any] | None" = field(default=None, init=False, repr=False, compare=False)
    _value: Any = field(default=None, init=False, repr=False, compare=False)
    _is_read: bool = field(default=False, init=False, repr=False, compare=False)
    _properties: dict[str, str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def value(self) -> Any:
        """What the consumer's ``deserializer`` makes from the body, on first access; without one, the body.

        Raises:
            FormatError: the body cannot be decompressed.
            Exception: raised by the deserializer, each time.
        """
        if self.body_error:
            raise self.body_error
        if self.deserializer is None:
            return self.body
        if not self._is_read:
            self._value, self._is_read = self.deserializer(self.body), True
        return self._value

    @property
    def properties(self) -> dict[str, str]:
        """Its properties by name; parsed on first access, because many listeners never need them."""
        if self._properties is None:
            self._properties = parse_properties(self.raw_properties)
        return self._properties

    @property
    def tags(self) -> str | None:
        """The tag set by the producer."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys set by the producer."""
        return split_keys(self.properties.get(KEYS, ""))

    @property
    def unique_key(self) -> str | None:
        """The key that its producer set for it or for its batch; other messages may have the same one."""
        return self.properties.get(UNIQ_KEY)

    @property
    def message_id(self) -> str:
        """Its unique key; if the producer set none, the id made by the broker."""
        return self.unique_key or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id that the broker makes from its address and the physical offset of the message."""
        return offset_message_id(self.store_host, self.physical_offset)


def parse_message(record: bytes | memoryview, broker_name: str = "") -> ConsumerMessage:
    """Return the message of a record as brokers send it.

    Raises:
        FormatError: the bytes are not a record.
    """
    messages = parse_messages(bytes(record), broker_name)
    if len(messages) != 1:
        raise FormatError("not one message record", offset=0)
    return messages[0]


def parse_messages(records: bytes, broker_name: str) -> list[ConsumerMessage]:
    """Return the messages of an answer to a pull, which are concatenated; raises what ``parse_message`` does."""
    # Loads construct and numpy with the first messages; once per answer, as it takes a fourth of the time of a message.
    from mqtool.formats.stored_message import take_apart

    messages = []
    for (
        (
            _,
            _,
            _,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_address,
            born_port,
            store_timestamp,
            store_address,
            store_port,
            reconsume_times,
            _,
            _,
        ),
        body,
        topic,
        properties,
    ) in take_apart(records):
        error = None
        if sys_flag & _COMPRESSED:
            try:
                body = decompress(body, sys_flag)
            except FormatError as unreadable:
                error = unreadable
                log.error("%s %d %d of %s: %s", topic, queue_id, queue_offset, broker_name or "its broker", error)
        message = ConsumerMessage(
            topic,
            body,
            properties,
            broker_name,
            queue_id,
            queue_offset,
            physical_offset,
            flag,
            sys_flag,
            reconsume_times,
            born_timestamp,
            host_text(born_address, born_port),
            store_timestamp,
            host_text(store_address, store_port),
            error,
        )
        messages.append(message)
    return messages


def parse_reply(command: RemotingCommand) -> ConsumerMessage:
    """Return the reply of a consumer to a request, as a broker forwards it.

    Raises:
        HeaderError: the header lacks a mandatory field.
        FormatError: its body cannot be decompressed.
    """
    header = parse_header(PushReply, command.ext_fields)
    return ConsumerMessage(
        header.topic,
        decompress(command.body, header.sys_flag),
        (header.properties or "").encode(),
        "",
        header.queue_id,
        0,
        0,
        header.flag,
        header.sys_flag,
        header.reconsume_times or 0,
        header.born_timestamp,
        header.born_host,
        header.store_timestamp,
        header.store_host,
    )
