"""The result of an attempt to store a message."""

import enum
import struct
from typing import NamedTuple

from mqtool.formats.new_message import Host

_PORT_AND_OFFSET = struct.Struct(">iq")


class PutStatus(enum.StrEnum):
    """Why a message is stored or not, by RocketMQ's names (``PutMessageStatus``)."""

    PUT_OK = "PUT_OK"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    WHEEL_TIMER_FLOW_CONTROL = "WHEEL_TIMER_FLOW_CONTROL"  # too many timer messages wait


class AppendResult(NamedTuple):
    """Where a message, or each message of a batch, is stored; only a status if it is not."""

    status: PutStatus
    physical_offsets: tuple[int, ...] = ()
    end_offset: int = 0
    """One past the last byte: durable once the log is flushed up to here."""
    queue_offset: int = 0
    """Of the first message."""
    store_timestamp: int = 0
    store_host: Host = (b"", 0)
    flush_offset: int = 0
    """How far the log must be safe before the producer gets its answer; 0 for a message that does not wait."""

    @property
    def message_id(self) -> str:
        """The offset message id; for a batch all of them, separated by commas."""
        address, port = self.store_host
        if len(self.physical_offsets) == 1:
            return (address + _PORT_AND_OFFSET.pack(port, self.physical_offsets[0])).hex().upper()
        return ",".join([(address + _PORT_AND_OFFSET.pack(port, at)).hex().upper() for at in self.physical_offsets])
