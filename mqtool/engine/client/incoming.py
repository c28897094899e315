"""A message as a consumer, or a producer that is asked after a transaction, gets it.

(RocketMQ: ``MessageExt``, ``MessageClientExt``.)
"""

from dataclasses import dataclass

from mqtool.formats.compression import decompress
from mqtool.formats.headers import PushReply, parse_header
from mqtool.formats.hosts import host_text, offset_message_id
from mqtool.formats.properties import parse_properties
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.stored_message import parse_stored


@dataclass(slots=True)  # frozen, it would take four times as long to make
class ConsumerMessage:
    """A message that a broker has stored; times are in ms since 1970, ``body`` is as the producer gave it."""

    topic: str
    body: bytes
    properties: dict[str, str]
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

    @property
    def tags(self) -> str | None:
        """The tag that the producer gave."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> str | None:
        """The keys that the producer gave, with spaces."""
        return self.properties.get("KEYS")

    @property
    def message_id(self) -> str:
        """Its unique key; where the producer gave none, the id that the broker makes."""
        return self.properties.get("UNIQ_KEY") or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The id that the broker makes of its address and the place of the message."""
        return offset_message_id(self.store_host, self.physical_offset)


def parse_message(record: bytes | memoryview, broker_name: str = "") -> ConsumerMessage:
    """Return the message of a record as brokers send it.

    Raises:
        FormatError: the bytes are none, or its body cannot be decompressed.
    """
    stored = parse_stored(record)
    message = stored.message
    return ConsumerMessage(
        message.topic,
        decompress(message.body, message.sys_flag),
        parse_properties(message.properties),
        broker_name,
        message.queue_id,
        stored.queue_offset,
        stored.physical_offset,
        message.flag,
        message.sys_flag,
        message.reconsume_times,
        message.born_timestamp,
        host_text(*message.born_host),
        stored.store_timestamp,
        host_text(*message.store_host),
    )


def parse_reply(command: RemotingCommand) -> ConsumerMessage:
    """Return the message with which a consumer replies to a request, as a broker passes it on.

    Raises:
        HeaderError: the request does not say what it must.
        FormatError: its body cannot be decompressed.
    """
    header = parse_header(PushReply, command.ext_fields)
    return ConsumerMessage(
        header.topic,
        decompress(command.body, header.sys_flag),
        parse_properties((header.properties or "").encode()),
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
