"""A message to be sent by a producer, and the request built from it.

(Rules: remoting.md 1.6, 1.7, 1.9, 4. RocketMQ: ``Message``, ``MessageBatch``, ``DefaultMQProducerImpl``.)
"""

import dataclasses
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mqtool.engine.client.names import check_topic_to_send
from mqtool.errors import UsageError
from mqtool.formats.client_batch import build_element, parse_element
from mqtool.formats.codes import SysFlag
from mqtool.formats.compression import Compression, compress
from mqtool.formats.properties import KEY_SEPARATOR, NAME_SEPARATOR, PAIR_SEPARATOR, build_properties, join_properties
from mqtool.formats.property_names import (
    DELAY,
    KEYS,
    MAX_RECONSUME_TIMES,
    OF_ROCKETMQ,
    RECONSUME_TIME,
    SHARDING_KEY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    WAIT,
)
from mqtool.formats.topics import RETRY_PREFIX

MAX_MESSAGE_SIZE = 4 << 20
_MAX_INT, _MAX_LONG = (1 << 31) - 1, (1 << 63) - 1
_MAX_PROPERTIES = 32_767  # bytes, as their size is a signed number of two bytes
_CARRIED = frozenset((TAGS, KEYS, SHARDING_KEY))
_OURS = frozenset((TAGS, KEYS, WAIT, DELAY, TIMER_DELAY_MS, TIMER_DELIVER_MS, UNIQ_KEY, SHARDING_KEY))


@dataclass(slots=True)
class ProducerMessage:
    """A message as an application passes it to a producer.

    Times are in ms. At most one of the three delays can be set: ``delay_level`` (1 to 18, of the broker's table),
    ``delay_ms``, and ``deliver_at`` (since 1970); the latter two need a broker of 5.x. ``properties`` are the
    application's own. ``unique_key`` is set by the producer when it sends the message.

    To resend a received message, pass its ``properties`` as they are: the application's own are sent, and so are
    its tag, keys and shard key if the fields for these are empty; what clients and brokers recorded about its
    delivery (unique key, delays, attempts, transaction) is left out.

    A ``body`` is bytes, or a string, which is sent as UTF-8; or whatever the ``serializer`` of the producer
    takes. ``tags`` and ``keys`` may be None for none. RocketMQ separates keys by spaces: a key with a space
    becomes several.
    """

    topic: str
    body: Any
    tags: str | None = ""
    keys: str | Sequence[str] | None = ()
    delay_level: int = 0
    delay_ms: int = 0
    deliver_at: int = 0
    shard_key: str = ""
    flag: int = 0
    wait_store_ok: bool = True
    properties: dict[str, str] = field(default_factory=dict)
    unique_key: str = ""

    @property
    def is_delayed(self) -> bool:
        """Whether it is delivered later."""
        return bool(self.delay_level or self.delay_ms or self.deliver_at)

    @property
    def may_be_batched(self) -> bool:
        """Whether it can be batched with others."""
        return not self.is_delayed and not self.topic.startswith(RETRY_PREFIX)

    @property
    def encoded_body(self) -> bytes:
        """The body in the form in which it is sent."""
        body = self.body
        if isinstance(body, bytes):
            return body
        return _encoded(body, "the body") if isinstance(body, str) else bytes(body)

    def pairs(self) -> dict[str, str]:
        """Return all properties that are sent with the message."""
        pairs = {**self.properties}
        if UNIQ_KEY in pairs:  # those of a message that was received
            pairs = {name: pairs[name] for name in pairs if name in _CARRIED or name not in OF_ROCKETMQ}
        if self.tags:
            pairs[TAGS] = self.tags
        if keys := self.keys if isinstance(self.keys, str) else KEY_SEPARATOR.join(self.keys or ()):
            pairs[KEYS] = keys
        if self.is_delayed:
            delays = {DELAY: self.delay_level, TIMER_DELAY_MS: self.delay_ms, TIMER_DELIVER_MS: self.deliver_at}
            pairs |= {name: str(delay) for name, delay in delays.items() if delay}
        if self.shard_key:
            pairs[SHARDING_KEY] = self.shard_key
        if self.unique_key:
            pairs[UNIQ_KEY] = self.unique_key
        pairs[WAIT] = "true" if self.wait_store_ok else "false"
        return pairs


_FIELDS = operator.attrgetter(
    "topic", "body", "tags", "shard_key", "keys", "properties", "delay_level", "delay_ms", "deliver_at", "flag"
)
_USUAL = frozenset((str, bytes, str, str, keys, dict, int, int, int, int) for keys in (str, list, tuple))
"""Types of these fields that need no further check, which saves most of its time."""


def check_is_message(message: object) -> None:
    """Raise UsageError for what is not a message."""
    if not isinstance(message, ProducerMessage):
        raise UsageError(f"send takes a ProducerMessage, not {_kind(message)}")


def check_message(
    message: ProducerMessage, max_message_size: int = MAX_MESSAGE_SIZE, *, may_be_empty: bool = False
) -> None:
    """Raise UsageError for a message that RocketMQ producers would not send, or with a field of a wrong type.

    Wrong types would otherwise fail in the event loop, together with messages of other senders.
    """
    check_is_message(message)
    fields = _FIELDS(message)
    if tuple(map(type, fields)) not in _USUAL:
        _check_types(message)
    topic, body, tags, shard_key, keys, properties, *numbers = fields
    if any(numbers):
        _check_numbers(message)
    check_topic_to_send(topic)
    if not isinstance(body, bytes):
        body = message.encoded_body
    if not body and not may_be_empty:
        raise UsageError(f"a message to {topic} has no body")
    if len(body) > max_message_size:
        size = f"{len(body):,} bytes"
        raise UsageError(f"the body of a message to {topic} has {size}; the maximum is {max_message_size:,}")
    texts = tags + shard_key if tags else shard_key
    if keys:
        texts += keys if isinstance(keys, str) else _joined_keys(keys)
    if properties:
        texts += _joined_properties(properties)
    if not texts.isascii():
        _encoded(texts, "a tag, key or property")
    if NAME_SEPARATOR in texts or PAIR_SEPARATOR in texts:
        name = next(
            name for name, value in message.pairs().items() if {NAME_SEPARATOR, PAIR_SEPARATOR} & {*name, *value}
        )
        raise UsageError(f"the characters 1 and 2 separate properties: {name!r} cannot contain them")


def _joined_keys(keys: Sequence[str]) -> str:
    for key in keys:
        if not isinstance(key, str):
            raise UsageError(f"the keys of a message must be strings, not {_kind(key)}")
    return "".join(keys)


def _joined_properties(properties: dict[str, str]) -> str:
    was_received = UNIQ_KEY in properties
    for name, value in properties.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise UsageError(f"the properties of a message must be strings, not {name!r}: {value!r}")
        if name in _OURS and not was_received:
            raise UsageError(f"{name} cannot be set as a property: the message has a field for it")
        if not name or not value:
            raise UsageError("a property needs a name and a value")
    return "".join((*properties, *properties.values()))


def _check_numbers(message: ProducerMessage) -> None:
    for name, number, most in (
        ("flag", message.flag, _MAX_INT),
        ("delay_level", message.delay_level, _MAX_INT),
        ("delay_ms", message.delay_ms, _MAX_LONG),
        ("deliver_at", message.deliver_at, _MAX_LONG),
    ):
        if not -most - 1 <= number <= most:
            raise UsageError(f"{name}={number} of a message is out of range")
    delays = (message.delay_level, message.delay_ms, message.deliver_at)
    if sum(map(bool, delays)) > 1:
        raise UsageError("delay_level, delay_ms and deliver_at are mutually exclusive")
    if min(delays) < 0:
        raise UsageError("a message cannot be delivered before it is sent")


def _check_types(message: ProducerMessage) -> None:
    if not isinstance(message.body, bytes | bytearray | memoryview | str):
        raise UsageError(f"the body of a message must be bytes, or a string for UTF-8, not {_kind(message.body)}")
    for name, text in (("topic", message.topic), ("tags", message.tags or ""), ("shard_key", message.shard_key)):
        if not isinstance(text, str):
            raise UsageError(f"{name} of a message must be a string, not {_kind(text)}")
    if message.keys is not None and not isinstance(message.keys, Sequence):
        raise UsageError(f"the keys of a message must be strings, not {_kind(message.keys)}")
    if not isinstance(message.properties, dict):
        raise UsageError(f"the properties of a message must be a dict, not {_kind(message.properties)}")
    for name in ("delay_level", "delay_ms", "deliver_at", "flag"):
        if not isinstance(getattr(message, name), int) or isinstance(getattr(message, name), bool):
            raise UsageError(f"{name} of a message must be a whole number, not {_kind(getattr(message, name))}")


def _encoded(text: str, noun: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{noun} of a message cannot be encoded as UTF-8: {error.reason} ({text!r:.40})") from error


def _kind(value: object) -> str:
    return f"{type(value).__name__} ({value!r:.40})"


class Packed(NamedTuple):
    """The part of a request that does not depend on its queue."""

    topic: str
    body: bytes
    properties: str
    sys_flag: int = 0
    flag: int = 0
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    is_batch: bool = False
    unique_key: str = ""  # of all messages of a batch, separated by commas
    is_reply: bool = False


def pack(
    message: ProducerMessage,
    topic: str,
    *,
    more: dict[str, str] | None = None,
    compress_over: int = 4096,
    compression: Compression = Compression.ZLIB,
    level: int = 5,
) -> Packed:
    """Return the request for a message.

    Args:
        message: checked, and with its unique key.
        topic: its topic as brokers know it.
        more: additional properties.
        compress_over: a body of at least this many bytes is compressed, if that makes it smaller.
        compression: the codec.
        level: from 1, fast, to 9, small.

    Raises:
        UsageError: it has too many properties.
    """
    pairs = message.pairs()
    if more:
        pairs |= more
    body, sys_flag = _compressed(message.encoded_body, compress_over, compression, level)
    if pairs.get(TRAN_MSG) == "true":
        sys_flag |= SysFlag.TRANSACTION_PREPARED
    times, most = 0, None
    if topic.startswith(RETRY_PREFIX):
        times = int(pairs.pop(RECONSUME_TIME, 0))
        most = int(pairs.pop(MAX_RECONSUME_TIMES, 0)) or None
    properties = _text(topic, pairs)
    return Packed(topic, body, properties, int(sys_flag), message.flag, times, most, False, message.unique_key)


def _compressed(body: bytes, over: int, compression: Compression, level: int) -> tuple[bytes, int]:
    """Return a body, compressed if worthwhile, and the bits of ``sys_flag`` for that."""
    if len(body) >= over:
        small, sys_flag = compress(body, compression, level)
        if len(small) < len(body):  # a larger one might exceed the limit of brokers
            return small, sys_flag
    return body, 0


class Element(NamedTuple):
    """A message in the form of a batch element, independent of later changes of the message."""

    data: bytes
    unique_key: str


def element_of(message: ProducerMessage, topic: str) -> Element:
    """Return the batch element of a checked message with its unique key.

    Raises:
        UsageError: it has too many properties.
    """
    data = build_element(message.flag, message.encoded_body, _text(topic, message.pairs()).encode())
    return Element(data, message.unique_key)


def join_batch(elements: Sequence[Element], topic: str, unique_key: str, *, wait_store_ok: bool) -> Packed:
    """Return the request for a batch."""
    body = b"".join(element.data for element in elements)
    properties = build_properties({UNIQ_KEY: unique_key, WAIT: "true" if wait_store_ok else "false"}).decode()
    return Packed(
        topic, body, properties, is_batch=True, unique_key=",".join(element.unique_key for element in elements)
    )


def pack_element(
    element: Element,
    topic: str,
    *,
    compress_over: int = 4096,
    compression: Compression = Compression.ZLIB,
    level: int = 5,
) -> Packed:
    """Return the request for a message that is alone in its batch; the arguments are those of ``pack``."""
    flag, body, properties = parse_element(element.data)
    body, sys_flag = _compressed(body, compress_over, compression, level)
    return Packed(topic, body, properties.decode(), sys_flag, flag, unique_key=element.unique_key)


def kept(message: ProducerMessage) -> ProducerMessage:
    """Return a copy of a message, as the program may change or resend the original before it is sent."""
    return dataclasses.replace(message, properties={**message.properties})


def check_batch(messages: Sequence[ProducerMessage], max_message_size: int = MAX_MESSAGE_SIZE) -> None:
    """Raise UsageError for messages that cannot be in one batch, regardless of their total size."""
    if not messages:
        raise UsageError("a batch needs at least one message")
    for message in messages:
        check_message(message, max_message_size)
        if message.is_delayed:
            raise UsageError("a batch cannot contain delayed messages: send them one by one")
    if messages[0].topic.startswith(RETRY_PREFIX):
        raise UsageError("a batch cannot be sent to a retry topic")
    if len({message.topic for message in messages}) > 1:
        raise UsageError("all messages of a batch must have the same topic")
    if len({message.wait_store_ok for message in messages}) > 1:
        raise UsageError("all messages of a batch must have the same wait_store_ok")


def split_by_size(sizes: Sequence[int], max_message_size: int = MAX_MESSAGE_SIZE) -> Iterator[slice]:
    """Yield slices of messages for one batch each: within ``max_message_size`` in total; a large one alone."""
    start, room = 0, max_message_size
    for index, size in enumerate(sizes):
        if index > start and size > room:
            yield slice(start, index)
            start, room = index, max_message_size
        room -= size
    if start < len(sizes):
        yield slice(start, len(sizes))


def _text(topic: str, pairs: dict[str, str]) -> str:
    properties = join_properties(pairs)
    size = len(properties) if properties.isascii() else len(properties.encode())
    if size > _MAX_PROPERTIES:
        raise UsageError(
            f"the properties of a message to {topic} take {size:,} bytes; the maximum is {_MAX_PROPERTIES:,}"
        )
    return properties
