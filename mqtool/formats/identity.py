"""Which message a record is: what distinguishes copies, and members of a batch.

UNIQ_KEY does not. A client gives it to what it sends, and brokers keep it in everything that they make of that: the
delayed message and its delivered copy, the half message, each check of it and the committed one, the retries for each
group and the dead letter. A batch hands its own to all of its members, and an application that sends the same object
twice sends one key twice.

What a copy keeps, and what changes:

| field | slave | salvaged, imported | mirrored | stored again by its producer | member of the batch |
|---|---|---|---|---|---|
| topic, body, first UNIQ_KEY | same | same | same | same | key, body may be the same |
| transaction type, reconsume times | same | same | same | same | same |
| born time and host | same | same | may change | changes | same |
| other properties | same | same | may change | same | may be the same |
| queue, queue offset | same | may change | changes | changes | the offset differs |
| address, CRC property, store time and host | same | address, CRC | changes | changes | the address differs |

*First* UNIQ_KEY: a broker appends the properties of a batch to those of each member, so clients that give each member a
key of its own (Java, mqtool) leave two in its text. Java's readers see the last, which is the batch's; the first is the
member's. It is lost where a broker writes the properties again as a map: in retries and dead letters of a member.

So a **record** of a store is known by topic, transaction type, reconsume times, first key, body size and body CRC
(``record_identities``). In topics of the broker's own, where copies of one message are side by side for several
groups, levels and rounds, and without any key, all its properties and its time of birth count as well: no mirror copies
such topics. Records that are equal in all of this are counted: 20 members with one key and one body are one identity
20 times.

A **delivered** message (``delivered_identity``, ``not_seen``) must be known when it comes again: from the same place,
by a retry, or because its producer stored it twice. Its place is where it was stored first, which a retry names.
Without that, the n-th message with this topic, first key and body of one append (one queue, one store time) is taken
for the n-th of any other append: a batch that was stored twice is one batch, with as many members as it has. A
transaction has one message, so what it commits is an append by itself, also where its producer ended it twice within
a millisecond. What is revived after a pop names no place; if several are equal and nothing shows which of them it is,
it is new.

Bodies count as they are stored, and by size and CRC. Cost of ``record_identities``: linear, some 0.2 µs a message.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mqtool.formats import commit_log
from mqtool.formats import kernels as plain
from mqtool.formats.properties import CRC_SIZE, NAME_SEPARATOR, PAIR_SEPARATOR, find_property, probe_of
from mqtool.formats.property_names import CRC32, ORIGIN_MESSAGE_ID, UNIQ_KEY
from mqtool.formats.scan import Ints, MessageTable
from mqtool.formats.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX, SYSTEM_PREFIXES

Words = npt.NDArray[np.uint64]

_PROBE, _ORIGIN = probe_of(UNIQ_KEY), probe_of(ORIGIN_MESSAGE_ID)
_NAME_SIZE = len(UNIQ_KEY) + len(NAME_SEPARATOR)
_CRC_HEAD = f"{CRC32}{NAME_SEPARATOR}".encode()
_OF_BROKERS = tuple(prefix.encode() for prefix in (*SYSTEM_PREFIXES, RETRY_PREFIX, DEAD_LETTER_PREFIX))

_WORD = 8
_KEY_WORDS = 8
_LANES = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)  # what a hash begins with, and by what each of its halves multiplies
_FACTORS = (0xD6E8FEB86659FD93, 0xA0761D6478BD642F)
_LOW_BYTES = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)


# Records of stores


def record_identities(table: MessageTable) -> Words:
    """Return the identity of each record: 128 bits in two columns, the same on every machine.

    Args:
        table: of records whose parts add up.
    """
    ids, names = table.topics()
    topics = np.array([_halves(name) for name in names], np.uint64).reshape(-1, 2)
    whole = np.array([name.startswith(_OF_BROKERS) for name in names], np.bool_)
    at, sizes = _first_keys(table)
    whole = whole[ids] | (sizes == 0)
    transaction = table.column("sys_flag") & commit_log.TRANSACTION_MASK
    properties = np.where(whole, _property_crcs(table, whole), 0)
    words = [
        topics[ids, 0],
        topics[ids, 1],
        _pair(transaction, table.column("reconsume_times")),
        _pair(table.column("body_size"), table.column("body_crc")),
        np.where(whole, table.column("born_timestamp"), 0).astype(np.uint64),
        properties.astype(np.uint64),
        sizes.astype(np.uint64),
        *_key_words(table, at, sizes),
    ]
    lanes = np.empty((2, len(table)), np.uint64)
    for lane, start, factor in zip(lanes, _LANES, _FACTORS, strict=True):
        lane[:] = start
        for word in words:
            lane ^= word
            lane *= np.uint64(factor)
            lane ^= lane >> np.uint64(32)
    return np.ascontiguousarray(lanes.T)


def first_key(properties: bytes) -> bytes:
    r"""Return the key that a message had before its batch got one, empty without any.

    >>> first_key(b"UNIQ_KEY\x01A1\x02TAGS\x01t\x02UNIQ_KEY\x01B2\x02")
    b'A1'
    """
    for pair in properties.split(PAIR_SEPARATOR.encode()):
        if pair.startswith(_PROBE[1:]) and len(pair) > _NAME_SIZE:
            return pair[_NAME_SIZE:]
    return b""


def _halves(data: bytes) -> tuple[int, int]:
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=_KEY_WORDS * _WORD).digest()


def _pair(high: npt.NDArray[np.int32], low: npt.NDArray[np.int32]) -> Words:
    return high.astype(np.uint32).astype(np.uint64) << np.uint64(32) | low.astype(np.uint32)


def _first_keys(table: MessageTable) -> tuple[Ints, Ints]:
    """Return position and size of each record's first key; the size is 0 without one."""
    columns = table.properties([UNIQ_KEY])
    at, sizes = columns[0][0], columns[1][0]
    rows = np.flatnonzero(sizes)
    while len(rows):  # what stands before the last key may have one too
        part = table.where(rows)
        starts = part.offsets(plain.PROPERTIES)
        part.extents[2 * plain.PROPERTIES + 1] = np.maximum(at[rows] - _NAME_SIZE - starts, 0)
        earlier = part.properties([UNIQ_KEY])
        has_one = earlier[1][0] > 0
        rows = rows[has_one]
        at[rows], sizes[rows] = earlier[0][0][has_one], earlier[1][0][has_one]
    return at, sizes


def _key_words(table: MessageTable, at: Ints, sizes: Ints) -> list[Words]:
    """Return the first 64 bytes of some keys, a word a column, filled up with zeros; a digest of longer ones."""
    count = len(at)
    data = np.frombuffer(table.buffer, np.uint8)
    words = [np.zeros(count, np.uint64) for _ in range(_KEY_WORDS)]
    if not count:
        return words
    windows = np.lib.stride_tricks.sliding_window_view(data, _WORD)
    last = len(windows) - 1
    for number, word in enumerate(words):
        left = np.clip(sizes - number * _WORD, 0, _WORD)
        if not left.any():
            break
        start = at + number * _WORD
        safe = np.minimum(start, last)  # at the end of the buffer
        shift = np.clip((start - safe) * 8, 0, 63).astype(np.uint64)
        word[:] = windows[safe].view("<u8")[:, 0].astype(np.uint64) >> shift & _LOW_BYTES[left]
    for row in np.flatnonzero(sizes > _KEY_WORDS * _WORD).tolist():
        digest = _digest(data[at[row] : at[row] + sizes[row]].tobytes())
        for number, word in enumerate(words):
            word[row] = int.from_bytes(digest[number * _WORD : (number + 1) * _WORD], "little")
    return words


def _property_crcs(table: MessageTable, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return a CRC of all properties but the CRC itself, of the chosen records; 0 of others."""
    crcs = np.zeros(len(table), np.int64)
    rows = np.flatnonzero(chosen)
    if len(rows):
        part = table.where(rows)
        offsets, sizes = part.offsets(plain.PROPERTIES), part.sizes(plain.PROPERTIES).copy()
        data = np.frombuffer(table.buffer, np.uint8)
        long = np.flatnonzero(sizes >= CRC_SIZE)
        tails = data[(offsets + sizes)[long, None] + np.arange(-CRC_SIZE, -CRC_SIZE + len(_CRC_HEAD))]
        sizes[long[(tails == np.frombuffer(_CRC_HEAD, np.uint8)).all(1)]] -= CRC_SIZE
        crcs[rows] = part.crcs(offsets, sizes)
    return crcs


# Delivered messages


class Delivered(NamedTuple):
    """What a delivered message is known by: names that differ where the things do."""

    place: str
    """Where it was stored first; the same for all deliveries and retries of one record."""
    message: str
    """What its producer sent; the same however often it was stored. Empty if only the place distinguishes it."""
    append: str
    """With which others it was stored at once; empty for a retry that names its place."""
    is_revived: bool
    """It was stored again by itself, without a word about where it was before, as pops do."""


def delivered_identity(
    topic: str,
    properties: bytes,
    body_size: int,
    body_crc: int,
    place: str,
    queue: str,
    store_timestamp: int,
    reconsume_times: int,
    sys_flag: int,
) -> Delivered:
    """Return what a delivered message is known by.

    Args:
        topic: that it was sent to, also where it comes by a retry topic.
        properties: the text as it was stored.
        body_size: of its body, always stored or always plain.
        body_crc: of the same.
        place: the id that its broker made of address and offset.
        queue: a name of broker and queue.
        store_timestamp: in ms.
        reconsume_times: how often it was sent back.
        sys_flag: as it was stored; its transaction type counts.
    """
    key = first_key(properties)
    last_key = find_property(properties, _PROBE)
    origin = find_property(properties, _ORIGIN)
    if origin == last_key:  # a client that sends a retry itself names the key
        origin = b""
    body = f"{body_size}:{body_crc}"
    where = _name("place", origin.decode("utf-8", "replace") or place, body)
    if not key:
        return Delivered(where, "", "", False)
    message = _name("message", topic, key.decode("utf-8", "replace"), body)
    if origin:
        return Delivered(where, message, "", False)
    if reconsume_times:
        return Delivered(where, message, _name("round", message, str(reconsume_times)), True)
    is_alone = sys_flag & commit_log.TRANSACTION_MASK == commit_log.TRANSACTION_COMMIT
    append = (where,) if is_alone else (queue, str(store_timestamp))
    return Delivered(where, message, _name("append", message, *append), False)


class Seen(NamedTuple):
    """What to make of a delivered message."""

    is_new: bool
    names: tuple[str, ...]
    """To be known from now on: of a new one when it is done with, of a copy at once."""


def not_seen(delivered: Delivered, is_known: Callable[[str], bool]) -> Seen:
    """Return whether a delivered message is new.

    Args:
        delivered: its identity.
        is_known: returns whether a name is among those that earlier messages left.

    Cost: a look-up for each equal member of its batch that came before it.
    """
    if is_known(delivered.place):
        return Seen(False, ())
    if not delivered.message:
        return Seen(True, (delivered.place,))
    if not delivered.append:
        return Seen(True, (delivered.place, _next(delivered.message, is_known)))
    in_append = _next(delivered.append, is_known)
    names = delivered.place, in_append
    in_all = delivered.message + in_append.removeprefix(delivered.append)
    if not is_known(in_all):
        return Seen(True, (*names, in_all))
    if delivered.is_revived and is_known(
        f"{delivered.message}#1"
    ):  # there are several, and nothing says which this one is
        return Seen(True, (*names, _next(delivered.message, is_known)))
    return Seen(False, names)


def _next(name: str, is_known: Callable[[str], bool]) -> str:
    """Return the first of the names that a counter makes of one which is not known."""
    number = 0
    while is_known(f"{name}#{number}"):
        number += 1
    return f"{name}#{number}"


def _name(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
