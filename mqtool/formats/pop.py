"""What a pop hands out, and how a broker keeps it: receipts, the names of retry topics, the bodies of the revive log.

A pop hides messages for a while. For each queue that it took some of, a check point goes into the revive log, and an
acknowledgement for each message that its consumer is done with; both wait there, as timer messages, until the time of
the pop is over. A receipt (``POP_CK``) says which check point a message belongs to: eight words separated by spaces.
(Rules: remoting.md 3.4; store.md 11.5. RocketMQ: ``ExtraInfoUtil``, ``KeyBuilder``, ``PopCheckPoint``, ``AckMsg``.)
"""

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mqtool.errors import FormatError
from mqtool.formats import json_library as orjson
from mqtool.formats.topics import RETRY_PREFIX

ORDER_QUEUE_ID = 999
"""The revive queue of a pop in order, which keeps no check points."""
CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"

_MAX_OFFSETS = 1 << 16
"""Bits that one acknowledgement of many messages may have."""


# Retry topics


def retry_topic(topic: str, group: str, *, is_v2: bool = False) -> str:
    """Return the topic of the messages that a group did not acknowledge.

    >>> retry_topic("T", "G"), retry_topic("T", "G", is_v2=True)
    ('%RETRY%G_T', '%RETRY%G+T')
    """
    return f"{RETRY_PREFIX}{group}{'+' if is_v2 else '_'}{topic}"


def normal_topic(topic: str, group: str) -> str:
    """Return the topic that a retry topic of a group belongs to, any other as it is.

    >>> normal_topic("%RETRY%G_T", "G"), normal_topic("%RETRY%G+T", "G"), normal_topic("T", "G")
    ('T', 'T', 'T')
    """
    own = RETRY_PREFIX + group
    return topic[len(own) + 1 :] if topic.startswith((f"{own}_", f"{own}+")) else topic


def topic_flag(topic: str) -> str:
    """Return how clients are told which kind of topic a message is in.

    >>> topic_flag("T"), topic_flag("%RETRY%G_T"), topic_flag("%RETRY%G+T")
    ('0', '1', '2')
    """
    if not topic.startswith(RETRY_PREFIX):
        return "0"
    return "2" if "+" in topic else "1"


def flagged_topic(topic: str, group: str, flag: str) -> str:
    """Return the topic that a flag means beside the name of the normal one."""
    return topic if flag == "0" else retry_topic(topic, group, is_v2=flag == "2")


# Receipts


class Receipt(NamedTuple):
    """Which pop gave out a message."""

    start_offset: int  # of the check point
    pop_time: int  # ms
    invisible_ms: int
    revive_queue_id: int
    broker_name: str

    @property
    def revive_time(self) -> int:
        """When the message can be seen again (ms)."""
        return self.pop_time + self.invisible_ms

    def acknowledgement(self, group: str, topic: str, queue_id: int, offset: int) -> "Acknowledgement":
        """Return what says that the message of a queue offset is done with."""
        return Acknowledgement(group, topic, queue_id, self.start_offset, self.pop_time, self.broker_name, (offset,))


def parse_receipt(text: str) -> Receipt:
    """Return what a receipt says.

    >>> parse_receipt("3 1795274267116 3000 1 0 broker-a 2 5")
    Receipt(start_offset=3, pop_time=1795274267116, invisible_ms=3000, revive_queue_id=1, broker_name='broker-a')

    Raises:
        FormatError: it is malformed.
    """
    words = text.split(" ")
    if len(words) < 6:
        raise FormatError(f"a receipt has 8 words, and this one has {len(words)}", offset=0)
    numbers = words[:4]
    if not all(word.isdecimal() and len(word) < 19 for word in numbers):
        raise FormatError("the first four words of a receipt must be numbers", offset=0)
    start_offset, pop_time, invisible_ms, revive_queue_id = map(int, numbers)
    return Receipt(start_offset, pop_time, invisible_ms, revive_queue_id, words[5])


def build_receipt(receipt: Receipt, flag: str, queue_id: int, queue_offset: int) -> str:
    """Return the receipt of one message; ``flag`` by ``topic_flag``."""
    start, pop_time, invisible_ms, revive_queue_id, broker_name = receipt
    return f"{start} {pop_time} {invisible_ms} {revive_queue_id} {flag} {broker_name} {queue_id} {queue_offset}"


# The revive log


@dataclass(slots=True)
class CheckPoint:
    """Messages of one queue that one pop gave out, and which of them are done with."""

    group: str
    topic: str
    queue_id: int
    start_offset: int
    distances: tuple[int, ...]  # of each message from ``start_offset``
    pop_time: int  # ms
    invisible_ms: int
    broker_name: str
    is_suspended: bool = False  # another delivery does not count as an attempt
    done: set[int] = field(default_factory=set)  # queue offsets

    @property
    def revive_time(self) -> int:
        """When its messages can be seen again (ms)."""
        return self.pop_time + self.invisible_ms

    @property
    def key(self) -> tuple[str, str, int, int, int, str]:
        """What its acknowledgements call it by."""
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_time, self.broker_name

    @property
    def offsets(self) -> list[int]:
        """The queue offsets of its messages."""
        return [self.start_offset + distance for distance in self.distances]

    def unique_key(self) -> str:
        """Return the unique key of its message."""
        return (
            f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}@{self.pop_time}@{self.broker_name}"
            f"@{CHECK_POINT_TAG}"
        )


class Acknowledgement(NamedTuple):
    """Messages of one check point that are done with."""

    group: str
    topic: str
    queue_id: int
    start_offset: int  # of the check point, as the next two
    pop_time: int
    broker_name: str
    offsets: tuple[int, ...]

    @property
    def key(self) -> tuple[str, str, int, int, int, str]:
        """What the check point calls itself."""
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_time, self.broker_name

    @property
    def tag(self) -> str:
        """The tag of its message."""
        return ACK_TAG if len(self.offsets) == 1 else BATCH_ACK_TAG

    def unique_key(self) -> str:
        """Return the unique key of its message; RocketMQ gives all those of several offsets the same one."""
        offsets = self.offsets[0] if len(self.offsets) == 1 else list(self.offsets)
        return f"{self.topic}@{self.queue_id}@{offsets}@{self.group}@{self.pop_time}@{self.broker_name}@{self.tag}"


def build_check_point(point: CheckPoint) -> bytes:
    """Return the body of a check point."""
    members: dict[str, Any] = {
        "bm": 0,
        "bn": point.broker_name,
        "c": point.group,
        "d": point.distances,
        "it": point.invisible_ms,
        "n": len(point.distances),
        "pt": point.pop_time,
        "q": point.queue_id,
        "reviveTime": point.revive_time,
        "ro": 0,
        "so": point.start_offset,
    }
    if point.is_suspended:
        members["sp"] = True
    return orjson.dumps({**members, "t": point.topic})


def parse_check_point(body: bytes) -> CheckPoint:
    """Return the check point of a body.

    Raises:
        FormatError: it is none.
    """
    members = _members(body)
    try:
        distances = tuple(map(_number, members.get("d") or range(min(_number(members["n"]), _MAX_OFFSETS))))
        bits = _number(members.get("bm") or 0)
        point = CheckPoint(
            _text(members["c"]),
            _text(members["t"]),
            _number(members["q"], 32),
            _number(members["so"]),
            distances,
            _number(members["pt"]),
            _number(members["it"]),
            _text(members.get("bn") or ""),
            members.get("sp") is True,
        )
        point.done.update(offset for place, offset in enumerate(point.offsets) if bits >> place & 1)
    except (KeyError, TypeError) as error:
        raise FormatError("the body is not a pop checkpoint", offset=0) from error
    return point


def build_ack(ack: Acknowledgement) -> bytes:
    """Return the body of an acknowledgement."""
    members: dict[str, Any] = {"ao": ack.offsets[0]}
    if len(ack.offsets) > 1:
        members = {"ao": -1, "aol": ack.offsets}
    rest = {"bn": ack.broker_name, "c": ack.group, "pt": ack.pop_time, "q": ack.queue_id, "so": ack.start_offset}
    return orjson.dumps({**members, **rest, "t": ack.topic})


def parse_ack(body: bytes) -> Acknowledgement:
    """Return the acknowledgement of a body, of one message or several.

    Raises:
        FormatError: it is none.
    """
    members = _members(body)
    try:
        offsets = tuple(map(_number, members.get("aol") or [members["ao"]]))
        place = _text(members["c"]), _text(members["t"]), _number(members["q"], 32)
        times = _number(members["so"]), _number(members["pt"])
        return Acknowledgement(*place, *times, _text(members.get("bn") or ""), offsets)
    except (KeyError, TypeError) as error:
        raise FormatError("the body is not a pop acknowledgement", offset=0) from error


def _members(body: bytes) -> dict[str, Any]:
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FormatError("a message of the revive log is not valid JSON", offset=0) from error
    if not isinstance(members, dict):
        raise FormatError("a message of the revive log is not an object", offset=0)
    return members


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: object, bits: int = 64) -> int:
    if type(value) is not int or not -1 << bits - 1 <= value < 1 << bits - 1:
        raise TypeError
    return value


# Sets of offsets


def parse_bits(text: str) -> list[int]:
    """Return the places of the bits that are set, of a set as clients write it.

    >>> parse_bits("BQI=")
    [0, 2, 9]

    Raises:
        FormatError: the text is not such a set, or has an absurd size.
    """
    try:
        bits = int.from_bytes(base64.b64decode(text, validate=True), "little")
    except (binascii.Error, ValueError) as error:
        raise FormatError("a set of offsets is not valid base64", offset=0) from error
    if bits.bit_length() > _MAX_OFFSETS:
        raise FormatError(f"a set of {bits.bit_length():,} offsets", offset=0)
    return [place for place in range(bits.bit_length()) if bits >> place & 1]
