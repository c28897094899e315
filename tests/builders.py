"""Made-up messages, queue units, index files and whole stores: one at a time, or as hypothesis draws them.

Builders take what matters to a test and choose the rest; the strategies draw everything, as odd as the format allows.
``write_store`` lays messages out as a broker would, with queues, index and checkpoint, by rules written down here once
more in plain Python: what it writes is a twin of what ``dispatch`` derives, and ``verify_store`` finds nothing in it.
"""

import dataclasses
import ipaddress
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from mqtool.formats import (
    batch_consume_queue,
    checkpoint,
    commit_log,
    consume_queue,
    dledger,
    index_file,
    record_schemas,
    timer,
)
from mqtool.formats.layout import Layout

BORN_HOST = "192.168.1.10:40000"
STORE_HOST = "10.0.0.1:10911"
BORN = 1_700_000_000_000
STORED = 1_700_000_000_123
DELAYS = [1000, 5000, 10_000, 30_000]
"""The first delay levels of a broker, in ms."""

# Messages.


def host(text: str) -> tuple[bytes, int]:
    """Return address and port of ``address:port``, an IPv6 address in brackets."""
    address, _, port = text.rpartition(":")
    return ipaddress.ip_address(address.strip("[]")).packed, int(port)


def properties(pairs: Mapping[str, str], trailing: bool = True) -> bytes:
    """Return a properties text; releases differ in whether a separator ends it."""
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs.items())
    return (text + "\x02" if trailing and pairs else text).encode()


def fields(
    physical_offset: int = 0,
    *,
    topic: str | bytes = "TopicTest",
    body: bytes = b"",
    properties: bytes = b"",
    version: int = 1,
    sys_flag: int = 0,
    born_host: str | tuple[bytes, int] = BORN_HOST,
    store_host: str | tuple[bytes, int] = STORE_HOST,
    **others: int,
) -> dict[str, Any]:
    """Return the fields of a message record; sizes, CRC and host bits are made to fit unless ``others`` gives them."""
    born, stored = (one if isinstance(one, tuple) else host(one) for one in (born_host, store_host))
    sys_flag &= ~(commit_log.BORN_HOST_V6 | commit_log.STORE_HOST_V6)
    sys_flag |= commit_log.BORN_HOST_V6 if len(born[0]) == 16 else 0
    sys_flag |= commit_log.STORE_HOST_V6 if len(stored[0]) == 16 else 0
    raw_topic = topic.encode() if isinstance(topic, str) else topic
    head = 72 + len(born[0]) + 4 + len(stored[0]) + 4
    return {
        "size": head + len(body) + version + len(raw_topic) + 2 + len(properties),
        "magic_code": commit_log.MAGIC_V1 if version == 1 else commit_log.MAGIC_V2,
        "body_crc": zlib.crc32(body) & 0x7FFFFFFF,
        "queue_id": 0,
        "flag": 0,
        "queue_offset": 0,
        "physical_offset": physical_offset,
        "sys_flag": sys_flag,
        "born_timestamp": BORN,
        "born_address": born[0],
        "born_port": born[1],
        "store_timestamp": STORED,
        "store_address": stored[0],
        "store_port": stored[1],
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body_size": len(body),
        "body": body,
        "topic_size": len(raw_topic),
        "topic": raw_topic,
        "properties_size": len(properties),
        "properties": properties,
        **others,
    }


def record(physical_offset: int = 0, **given: Any) -> bytes:
    """Return a message record; arguments are those of ``fields``."""
    return bytes(record_schemas.MESSAGE.build(fields(physical_offset, **given)))


def with_crc_property(physical_offset: int = 0, **given: Any) -> bytes:
    """Return a message record that ends in its CRC property, as ``enabledAppendPropCRC`` makes a broker write."""
    text = given.pop("properties", b"")
    if text and not text.endswith(b"\x02"):
        text += b"\x02"
    whole = record(physical_offset, properties=text + b"__CRC32#\x010000000000\x02", **given)
    crc = zlib.crc32(whole[:-20]) & 0x7FFFFFFF
    return whole[:-11] + f"{crc:010}"[::-1].encode() + b"\x02"


def blank(size: int) -> bytes:
    """Return a blank record that fills ``size`` bytes; what follows its head is undefined, here zeros."""
    return bytes(commit_log.BLANK.schema.build({"size": size, "magic_code": commit_log.MAGIC_BLANK})).ljust(size, b"\0")


def batch_element(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    """Return one message of a batch body."""
    return struct.pack(
        f">iiiii{len(body)}sh{len(properties)}s",
        *(22 + len(body) + len(properties), 0, 0, flag, len(body), body, len(properties), properties),
    )


def dledger_entry(whole: bytes, position: int, index: int = 0, term: int = 1) -> bytes:
    """Return a message record inside the entry of a DLedger log; the entry, not the record, lies at ``position``."""
    head = dledger.ENTRY_HEAD.schema.build(
        {
            "magic_code": dledger.MAGIC,
            "size": dledger.ENTRY_HEAD_SIZE + len(whole),
            "index": index,
            "term": term,
            "position": position,
            "channel": 0,
            "chain_crc": 0,
            "body_crc": 0,
            "body_size": len(whole),
        }
    )
    return bytes(head) + whole


# Strategies: numbers and texts.

i8 = st.integers(-(1 << 7), (1 << 7) - 1)
i16 = st.integers(-(1 << 15), (1 << 15) - 1)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
odd_sizes = st.sampled_from([0, 1, 2, 3, 90, 91, 127, 128, 255, 256, 32_767, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32])
"""Sizes at the edges of the format, to be written as they are or negated."""


def filled(size: int) -> st.SearchStrategy[bytes]:
    """Draw so many bytes, zeros behind the first ones."""
    return st.binary(max_size=min(size, 100)).map(lambda raw: raw.ljust(size, b"\0"))


hosts = st.tuples(
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
    st.sampled_from([10911, 0, -1, 65_535]) | i32,
)
letters = st.characters(codec="utf-8", exclude_characters="\0\x01\x02")
names = st.sampled_from(
    ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "INNER_NUM", "INNER_BASE", "TAG", "TAGSX", "WAIT", "__CRC32", "K", "名"]
) | st.text(letters, min_size=1, max_size=12)
values = st.text(letters | st.just("\x01"), min_size=1, max_size=20)
topics = st.sampled_from(["TopicTest", "%RETRY%G", "SCHEDULE_TOPIC_XXXX", "订单"]) | st.text(letters, max_size=30)
pairs = st.dictionaries(names, values, max_size=6)
properties_texts = st.builds(properties, pairs, st.booleans())
"""Texts that a broker may have written."""
odd_properties = st.binary(max_size=60) | st.lists(
    st.sampled_from([b"\0", b"\x01", b"\x02", b"TAGS", b"KEYS", b"UNIQ_KEY", b"a", b" ", b"0123456789abcdef", b"\xff"])
).map(b"".join)
"""Texts full of separators in the wrong places."""


# Strategies: message records.


@st.composite
def _fields(draw: st.DrawFn, texts: st.SearchStrategy[bytes]) -> dict[str, Any]:
    version = draw(st.sampled_from([1, 2]))
    topic = draw(topics).encode()[: 127 if version == 1 else 300]
    return fields(
        draw(i64),
        topic=topic,
        body=draw(st.binary(max_size=200)),
        properties=draw(texts),
        version=version,
        born_host=draw(hosts),
        store_host=draw(hosts),
        sys_flag=draw(i32),
        **{
            name: draw(i64 if name.endswith(("_offset", "_timestamp")) else i32)
            for name in (
                *("body_crc", "queue_id", "flag", "queue_offset", "born_timestamp", "store_timestamp"),
                *("reconsume_times", "prepared_transaction_offset"),
            )
        },
    )


message_fields = _fields(properties_texts | odd_properties)
messages = message_fields.map(record_schemas.MESSAGE.build)
"""Whole records: either version, all forms of hosts, any numbers; each says that it lies anywhere."""


def at_home(drawn: Iterable[dict[str, Any]], base: int = 0, head: int = 0) -> list[bytes]:
    """Build records that lie one behind the other from ``base`` on, ``head`` bytes before each."""
    built = []
    at = base
    for one in drawn:
        built.append(bytes(record_schemas.MESSAGE.build(one | {"physical_offset": at + head})))
        at += head + len(built[-1])
    return built


def logs(base: int = 0, min_size: int = 1, max_size: int = 8) -> st.SearchStrategy[list[bytes]]:
    """Draw records that lie where they say, one behind the other from ``base`` on."""
    return st.lists(message_fields, min_size=min_size, max_size=max_size).map(lambda drawn: at_home(drawn, base))


dledger_logs = st.lists(message_fields, min_size=1, max_size=6).map(
    lambda drawn: [
        dledger_entry(whole, int.from_bytes(whole[28:36], "big") - dledger.ENTRY_HEAD_SIZE, index)
        for index, whole in enumerate(at_home(drawn, head=dledger.ENTRY_HEAD_SIZE))
    ]
)
"""Entries of a DLedger log, each with a record that lies where it says."""

batch_elements = st.lists(
    st.tuples(st.binary(max_size=40), properties_texts, i32).map(lambda parts: batch_element(*parts)), max_size=5
)
"""The messages of a batch, to be joined into its body."""


# Strategies: everything else that has a schema.


def _struct(layout: Layout, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Draw the bytes of a record whose fields are all numbers, but for what is ``given``."""
    widths = {2: i16, 4: i32, 8: i64}
    drawn = {name: given[name] if name in given else widths[layout.size_of(name)] for name in layout.names}
    return st.fixed_dictionaries(drawn).map(layout.schema.build)


units = _struct(consume_queue.UNIT)
batch_units = _struct(batch_consume_queue.UNIT)
index_entries = _struct(index_file.ENTRY)
index_headers = _struct(index_file.HEADER)
checkpoints = _struct(checkpoint.CHECKPOINT, rest=filled(4048))
wheel_slots = _struct(timer.SLOT)
timer_units = _struct(timer.LOG_UNIT)
timer_checks = _struct(timer.TIMER_CHECK, rest=filled(4040))
dledger_heads = _struct(dledger.ENTRY_HEAD)
dledger_units = _struct(dledger.INDEX_UNIT)
ext_units = st.tuples(i16, i64, i64, st.binary(max_size=40)).map(
    lambda parts: bytes(
        record_schemas.EXT_UNIT.build(
            {
                "size": parts[0],
                "tags_code": parts[1],
                "store_timestamp": parts[2],
                "bit_map_size": len(parts[3]),
                "bit_map": parts[3],
            }
        )
    )
)


# What a broker derives from messages, in plain Python.


@dataclasses.dataclass(frozen=True)
class Draft:
    """A message that is to be stored; where it lies and its queue offset are found when it is."""

    topic: str = "TopicTest"
    queue_id: int = 0
    body: bytes = b"body"
    pairs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sys_flag: int = 0
    born_host: str = BORN_HOST
    store_host: str = STORE_HOST
    trailing: bool = True  # whether a separator ends its properties
    store_timestamp: int | None = None  # by default each is stored a millisecond after the one before

    @property
    def transaction(self) -> int:
        """The transaction bits."""
        return self.sys_flag & commit_log.TRANSACTION_MASK

    @property
    def has_unit(self) -> bool:
        """Whether a queue has a unit for it: prepared and rolled back transactions have none."""
        return self.transaction in (0, commit_log.TRANSACTION_COMMIT)


@dataclasses.dataclass(frozen=True)
class Stored:
    """A draft where it lies in the log."""

    draft: Draft
    physical_offset: int
    queue_offset: int
    store_timestamp: int
    record: bytes

    def tags_code(self) -> int:
        """Return what its unit carries: the hash of its tag, the delivery time of a delayed message."""
        level = self.draft.pairs.get("DELAY")
        if self.draft.topic == "SCHEDULE_TOPIC_XXXX" and level:
            return self.store_timestamp + DELAYS[min(int(level), len(DELAYS)) - 1]
        return java_hash(self.draft.pairs.get("TAGS", ""))

    def index_keys(self, tags_in_index: bool) -> list[str]:
        """Return the texts under which an index file keeps it, in order."""
        if self.draft.transaction == commit_log.TRANSACTION_ROLLBACK:
            return []
        pairs, topic = self.draft.pairs, self.draft.topic
        keys = [pairs["UNIQ_KEY"]] if "UNIQ_KEY" in pairs else []
        keys += [key for key in pairs.get("KEYS", "").split(" ") if key]
        keys += [f"T#{pairs['TAGS']}"] if tags_in_index and "TAGS" in pairs else []
        return [f"{topic}#{key}" for key in keys]


def java_hash(text: str) -> int:
    """Return Java's ``hashCode``, by its definition."""
    value = 0
    for character in text:
        raw = character.encode("utf-16-be", "surrogatepass")
        for unit in struct.unpack(f">{len(raw) // 2}H", raw):
            value = (31 * value + unit) % (1 << 32)
    return value - (1 << 32) if value >= 1 << 31 else value


def key_hash(text: str) -> int:
    """Return the hash of an index entry: the absolute value, except that there is none for the lowest number."""
    value = abs(java_hash(text))
    return 0 if value == 1 << 31 else value


def lay_out(drafts: Iterable[Draft], segment_size: int, start_offset: int = 0) -> Iterator[Stored | tuple[int, bytes]]:
    """Yield the messages where a log would keep them, and between them position and bytes of each blank record."""
    at = start_offset
    ends: dict[tuple[str, int], int] = {}
    for number, draft in enumerate(drafts):
        queue = draft.topic, draft.queue_id
        given: dict[str, Any] = {
            "topic": draft.topic,
            "version": 2 if len(draft.topic.encode()) > 127 else 1,
            "body": draft.body,
            "properties": properties(draft.pairs, draft.trailing),
            "queue_id": draft.queue_id,
            "queue_offset": ends.get(queue, 0) if draft.has_unit else 0,
            "sys_flag": draft.sys_flag,
            "born_host": draft.born_host,
            "store_host": draft.store_host,
            "store_timestamp": STORED + number if draft.store_timestamp is None else draft.store_timestamp,
        }
        left = segment_size - at % segment_size
        if len(record(at, **given)) + commit_log.BLANK_SIZE > left:
            yield at, blank(left)
            at += left
        whole = record(at, **given)
        if len(whole) + commit_log.BLANK_SIZE > segment_size:
            raise ValueError(f"a message of {len(whole):,} bytes does not fit into a segment of {segment_size:,}")
        yield Stored(draft, at, given["queue_offset"], given["store_timestamp"], whole)
        at += len(whole)
        ends[queue] = ends.get(queue, 0) + draft.has_unit


@dataclasses.dataclass
class BuiltIndex:
    """Puts keys into index files, rolling to the next when one is full, as a broker does."""

    slots: int
    entries: int
    files: list[bytearray] = dataclasses.field(default_factory=list)
    ends: list[int] = dataclasses.field(default_factory=list)  # store time of the last entry of each file

    def put(self, text: str, physical_offset: int, timestamp: int) -> None:
        """Add one entry."""
        if not self.files or self._header()["entry_count"] >= self.entries:
            begin = self._header() if self.files else {}
            self.files.append(bytearray(40 + 4 * self.slots + 20 * self.entries))
            # The first entry of a file that follows another counts its seconds from the end of that.
            self._write(index_file.HEADER, 0, begin | {"slot_count": 0, "entry_count": 1} if begin else None)
        header = self._header()
        number = max(1, header["entry_count"])
        hashed = key_hash(text)
        slot_at = 40 + 4 * (hashed % self.slots)
        (before,) = struct.unpack_from(">i", self.files[-1], slot_at)
        since = header["end_timestamp"] if number == 1 else header["begin_timestamp"]
        entry = {
            "key_hash": hashed,
            "physical_offset": physical_offset,
            "seconds_since_begin": max(0, timestamp - since) // 1000 if since > 0 else 0,
            "previous_entry": before,
        }
        self._write(index_file.ENTRY, 40 + 4 * self.slots + 20 * number, entry)
        struct.pack_into(">i", self.files[-1], slot_at, number)
        if number == 1:
            header |= {"begin_timestamp": timestamp, "begin_physical_offset": physical_offset}
        header |= {"end_timestamp": timestamp, "end_physical_offset": physical_offset, "entry_count": number + 1}
        self._write(index_file.HEADER, 0, header | {"slot_count": header["slot_count"] + (not before)})

    def _header(self) -> dict[str, int]:
        parsed = index_file.HEADER.schema.parse(bytes(self.files[-1][:40]))
        return {name: parsed[name] for name in index_file.HEADER.names}

    def _write(self, layout: Layout, at: int, values: Mapping[str, int] | None) -> None:
        if values:
            raw = layout.schema.build(values)
            self.files[-1][at : at + len(raw)] = raw


def index_bytes(puts: Iterable[tuple[str, int, int]], slots: int, entries: int) -> list[bytes]:
    """Return the index files that keys, physical offsets and store timestamps make."""
    builder = BuiltIndex(slots, entries)
    for put in puts:
        builder.put(*put)
    return [bytes(file) for file in builder.files]


def key_with_hash(topic: str, value: int) -> str:
    """Return a key under which an index would keep a message of ``topic`` with this Java hash."""
    count = 7  # letters, of 31 kinds each: more than there are hashes
    left = (value - java_hash(f"{topic}#" + "0" * count)) % (1 << 32)
    letters = [ord("0") + left // 31 ** (count - 1 - i) % 31 for i in range(count)]
    return "".join(map(chr, letters))


# Whole stores.


@dataclasses.dataclass(frozen=True)
class StoreSizes:
    """What stands nowhere in a store: the sizes of its files."""

    segment: int = 4096
    queue_file: int = 100
    slots: int = 10
    entries: int = 20

    @property
    def settings(self) -> dict[str, str]:
        """As a broker's configuration spells them."""
        return {
            "mappedFileSizeCommitLog": str(self.segment),
            "mappedFileSizeConsumeQueue": str(self.queue_file),
            "maxHashSlotNum": str(self.slots),
            "maxIndexNum": str(self.entries),
        }


def write_files(folder: Path, data: bytes, file_size: int, start_offset: int = 0) -> None:
    """Write bytes as segments of one size, the last filled up with zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(0, len(data), file_size):
        (folder / f"{start_offset + at:020}").write_bytes(data[at : at + file_size].ljust(file_size, b"\0"))


def write_store(
    root: Path,
    drafts: Sequence[Draft],
    sizes: StoreSizes = StoreSizes(),
    start_offset: int = 0,
    tags_in_index: bool = False,
) -> list[Stored]:
    """Write the store of a broker that stopped cleanly after these messages, and return them where they lie."""
    log = bytearray()
    stored: list[Stored] = []
    queues: dict[tuple[str, int], list[bytes]] = {}
    index = BuiltIndex(sizes.slots, sizes.entries)
    for piece in lay_out(drafts, sizes.segment, start_offset):
        if isinstance(piece, tuple):
            log += piece[1]
            continue
        stored.append(piece)
        log += piece.record
        if piece.draft.has_unit:
            unit = consume_queue.UNIT.schema.build(
                {
                    "physical_offset": piece.physical_offset,
                    "size": len(piece.record),
                    "tags_code": piece.tags_code(),
                }
            )
            queues.setdefault((piece.draft.topic, piece.draft.queue_id), []).append(unit)
        for key in piece.index_keys(tags_in_index):
            index.put(key, piece.physical_offset, piece.store_timestamp)

    write_files(root / "commitlog", bytes(log), sizes.segment, start_offset)
    for (topic, queue_id), queue in queues.items():
        write_files(root / "consumequeue" / topic / str(queue_id), b"".join(queue), sizes.queue_file)
    (root / "index").mkdir()
    for number, file in enumerate(index.files):
        (root / "index" / f"20231114221320{123 + number:03}").write_bytes(file)
    if tags_in_index:
        (root / "rocksdbstore").mkdir()  # 5.4 and later make it in any case
    _write_checkpoint(root, stored, index)
    _write_tables(root, queues)
    return stored


def _write_checkpoint(root: Path, stored: list[Stored], index: BuiltIndex) -> None:
    full = [index_file.HEADER.schema.parse(bytes(file[:40])) for file in index.files[:-1]]
    last = stored[-1] if stored else None
    values = {
        "physical_timestamp": last.store_timestamp if last else 0,
        "logics_timestamp": last.store_timestamp if last else 0,
        "index_timestamp": full[-1].end_timestamp if full else 0,
        "master_flushed_offset": 0,
        "confirm_physical_offset": last.physical_offset if last else 0,
        "logics_physical_offset": 0,
        "rest": bytes(checkpoint.CHECKPOINT_SIZE - 48),
    }
    (root / "checkpoint").write_bytes(checkpoint.CHECKPOINT.schema.build(values))
    (root / "lock").write_bytes(b"lock")


def _write_tables(root: Path, queues: Iterable[tuple[str, int]]) -> None:
    (root / "config").mkdir()
    counts: dict[str, int] = {}
    for topic, queue_id in queues:
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    table = {
        topic: {
            "attributes": {},
            "order": False,
            "perm": 6,
            "readQueueNums": count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }
        for topic, count in sorted(counts.items())
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": BORN}
    content = {"dataVersion": version, "topicConfigTable": table}
    (root / "config" / "topics.json").write_text(json.dumps(content, indent="\t", ensure_ascii=False))


_KEYS = st.text("ab1-", min_size=1, max_size=4)
_ADDRESSES = st.sampled_from([BORN_HOST, "127.0.0.1:1", "[2001:db8::1]:40000", "[::1]:65535"])


@st.composite
def _pairs(draw: st.DrawFn) -> dict[str, str]:
    drawn: dict[str, str] = {}
    if draw(st.booleans()):
        drawn["UNIQ_KEY"] = f"{draw(st.integers(0, 1 << 32)):032X}"
    if draw(st.booleans()):
        drawn["KEYS"] = draw(st.lists(_KEYS, min_size=1, max_size=3).map(" ".join))
    if draw(st.booleans()):
        drawn["TAGS"] = draw(st.sampled_from(["TagA", "TagB", "polygenelubricants", "标签", "😀"]))
    return drawn


drafts = st.lists(
    st.builds(
        Draft,
        topic=st.sampled_from(["TopicTest", "OrderEvents", "%RETRY%" + "g" * 130]),
        queue_id=st.integers(0, 2),
        body=st.binary(max_size=300),
        pairs=_pairs(),
        sys_flag=st.sampled_from([0, 0, 0, 0x4, 0x8, 0xC]),
        born_host=_ADDRESSES,
        store_host=st.sampled_from([STORE_HOST, "[2001:db8::2]:10911"]),
        trailing=st.booleans(),
    ),
    max_size=40,
)
"""Messages for a small store: ordinary ones and transactions, with and without keys, in a few queues."""
