"""Messages as rows: the fields of ``message`` in every output."""

import base64
import json
import re
from typing import Any

import orjson

from mqtool.errors import FormatError
from mqtool.formats.message import Message
from mqtool.formats.topics import DEAD_LETTER_PREFIX, LIGHT_QUEUE_PREFIX, RETRY_PREFIX, is_system_topic

MESSAGE_COLUMNS = (
    "physical_offset", "size", "topic", "queue_id", "queue_offset", "store_time", "tags", "keys", "body",
    "unique_key", "born_host", "reconsume_times", "sys_flag", "message_id",
)  # fmt: skip

_LONG_NUMBER = re.compile(rb"\d{19}")


def message_columns(width: int, body: str = "auto") -> tuple[str, ...]:
    """Return the columns of a table of messages that is ``width`` wide: a narrow one keeps what tells most."""
    place = ("physical_offset", "topic", "queue_id", "queue_offset")
    if width < 105:
        return (*place, "store_time" if body == "none" else "body")
    if width < 150:
        return (*place, "store_time", "tags" if body == "none" else "body")
    return tuple(name for name in MESSAGE_COLUMNS if name != "body" or body != "none")


def shown_body(message: Message, mode: str) -> dict[str, Any]:
    """Return ``body`` and how it is written: the body as the producer gave it, or, unreadable, as it is stored."""
    if mode == "none":
        return {}
    try:
        return body_fields(message.plain_body(), mode)
    except FormatError:
        if mode == "raw":  # what is written there must be the body
            raise
        return body_fields(message.body, "base64")


def body_fields(body: bytes, mode: str) -> dict[str, Any]:
    """Return ``body`` and how it is written."""
    encoding = mode
    if encoding == "none":
        return {}
    if encoding == "raw":
        return {"body": body, "body_encoding": "raw"}
    if encoding == "json":
        try:
            return {"body": _parsed(body), "body_encoding": "json"}
        except (ValueError, RecursionError):
            encoding = "auto"
    if encoding == "auto":
        try:
            return {"body": body.decode(), "body_encoding": "text"}
        except UnicodeDecodeError:
            encoding = "base64"
    if encoding == "text":
        return {"body": body.decode("utf-8", "replace"), "body_encoding": "text"}
    return {
        "body": body.hex() if encoding == "hex" else base64.b64encode(body).decode(),
        "body_encoding": encoding,
    }


def _parsed(body: bytes) -> Any:
    value = orjson.loads(body)
    # What 64 bits do not hold, orjson makes a rounded number of.
    return json.loads(body) if _LONG_NUMBER.search(body) else value


def message_row(message: Message, body: str = "auto") -> dict[str, Any]:
    """Return the fields of a message; ``body`` is the mode of ``--body``."""
    return {
        "physical_offset": message.physical_offset,
        "size": message.size,
        "magic_code": message.magic_code,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp": message.born_timestamp,
        "born_host": message.born_host,
        "store_timestamp": message.store_timestamp,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
        "body_size": message.body_size,
        **shown_body(message, body),
        "properties": message.properties,
        "tags": message.tags,
        "keys": message.keys,
        "unique_key": message.unique_key,
        "message_id": message.message_id,
    }


def topic_kind(topic: str) -> str:
    """Return what a topic is for: the user's own, or one of those that a broker makes.

    >>> topic_kind("Orders"), topic_kind("%RETRY%billing"), topic_kind("SCHEDULE_TOPIC_XXXX")
    ('user', 'retry', 'system')
    """
    for prefix, kind in ((RETRY_PREFIX, "retry"), (DEAD_LETTER_PREFIX, "dead letter"), (LIGHT_QUEUE_PREFIX, "light")):
        if topic.startswith(prefix):
            return kind
    return "system" if is_system_topic(topic) else "user"
