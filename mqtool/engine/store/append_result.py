"""What comes of an attempt to store a message."""

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
    """Where a message, or each message of a batch, is stored; nothing but a status where it is not."""

    status: PutStatus
    physical_offsets: tuple[int, ...] = ()
    end_offset: int = 0
    """One past the last byte: stored for good once so much of the log is flushed."""
    queue_offset: int = 0
    """Of the first message."""
    store_timestamp: int = 0
    store_host: Host = (b"", 0)
    flush_offset: int = 0
    """So much of the log must be safe before the producer may be told; 0 for a message that does not wait."""

    @property
    def message_id(self) -> str:
        """The offset message id; of a batch all of them, with commas between."""
        address, port = self.store_host
        if len(self.physical_offsets) == 1:
            return (address + _PORT_AND_OFFSET.pack(port, self.physical_offsets[0])).hex().upper()
        return ",".join([(address + _PORT_AND_OFFSET.pack(port, at)).hex().upper() for at in self.physical_offsets])
