"""Hashes and checksums as RocketMQ computes them."""

import zlib


def java_hash(text: str) -> int:
    """Return ``text.hashCode()``: 31-fold over UTF-16 units, as a signed 32-bit number.

    >>> java_hash("TagA"), java_hash("order-created")
    (2598919, -392709271)
    """
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + (high << 8 | low)) & 0xFFFFFFFF
    return value - ((value & 0x80000000) << 1)


def tags_code(tags: str | None) -> int:
    """Return the tags code of a message with this TAGS property: its Java hash, 0 without one."""
    return java_hash(tags) if tags else 0


def key_hash(topic: str, key: str) -> int:
    """Return the hash under which an index file keeps a key of a message in ``topic``.

    >>> key_hash("TopicTest", "k1"), key_hash("TopicTest", "C0A80101000118B4AAC200000001")
    (2746024, 306615950)
    """
    value = abs(java_hash(f"{topic}#{key}"))
    return value if value < 0x80000000 else 0


def body_crc(data: bytes | memoryview) -> int:
    """Return the CRC that a record keeps of its stored body: CRC-32 without the top bit."""
    return zlib.crc32(data) & 0x7FFFFFFF
