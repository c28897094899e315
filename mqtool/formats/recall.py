"""Recall handles: what a producer gets for a timer message, and returns to cancel its delivery.

(Rules: remoting.md 3.2, 4.8. RocketMQ: ``RecallMessageHandle``.)
"""

import base64
import binascii
from typing import NamedTuple

from mqtool.errors import FormatError

_VERSION = "v1"


class RecallHandle(NamedTuple):
    """Which message is meant."""

    topic: str
    broker_name: str
    timestamp: int  # by which it must be delivered (ms)
    unique_key: str


def build_handle(handle: RecallHandle) -> str:
    """Return the text of a handle.

    >>> build_handle(RecallHandle("PopOne", "broker-java", 1795274324001, "KEYR"))
    'djEgUG9wT25lIGJyb2tlci1qYXZhIDE3OTUyNzQzMjQwMDEgS0VZUg=='
    """
    text = f"{_VERSION} {handle.topic} {handle.broker_name} {handle.timestamp} {handle.unique_key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def parse_handle(text: str) -> RecallHandle:
    """Return the handle of a text.

    Raises:
        FormatError: it is malformed.
    """
    try:
        words = base64.urlsafe_b64decode(text.encode()).decode().split(" ")
        version, topic, broker_name, timestamp, unique_key = words
        if version != _VERSION:
            raise FormatError(f"unknown version {version[:8]} of a recall handle", offset=0)
        return RecallHandle(topic, broker_name, int(timestamp), unique_key)
    except (binascii.Error, ValueError) as error:
        raise FormatError("the text is not a recall handle", offset=0) from error
