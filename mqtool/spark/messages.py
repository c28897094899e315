"""Messages as Arrow columns: a ``MessageTable`` in, a record batch out, column by column.

Each column is a function of a table. Numbers are used unchanged; bodies, topics and properties are copied from the
log by the scanner's kernels. Only rare cases are handled row by row: compressed bodies, IPv6 addresses, text that is
not UTF-8.

Cost: linear in the messages of a table and in the bytes of the columns.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from mqtool.errors import BadDataError, FormatError
from mqtool.formats import commit_log, scan
from mqtool.formats import kernels as plain
from mqtool.formats.compression import decompress
from mqtool.formats.hosts import host_text, offset_message_id
from mqtool.formats.properties import parse_properties
from mqtool.formats.property_names import KEYS, TAGS, UNIQ_KEY
from mqtool.formats.scan import Ints, MessageTable

Mask = npt.NDArray[np.bool_]

CORRUPT = "_corrupt_record"
CORRUPT_TYPE = "struct<file:string,position:bigint,code:string,hex:string>"
MAX_HEX = 256
"""Bytes of a damaged record that its row shows."""

FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999: a time outside of them is not a timestamp."""
_PROPERTIES = (KEYS, TAGS, UNIQ_KEY)
_OF_PROPERTIES = frozenset((
    "properties", "tags", "keys", "unique_key", "raw_properties", "key_bytes", "headers", "json_properties",
))  # fmt: skip
"""Columns for which properties are read."""
_CODES = ("", "LOG-SIZES", "LOG-POSITION", "LOG-CRC", "LOG-PROPERTY-TEXT", "LOG-TOPIC")
_MEANINGS = {
    "LOG-SIZES": "the sizes in this record do not add up to its total size",
    "LOG-POSITION": "this record says that it is at another address",
    "LOG-CRC": "the body does not match its CRC",
    "LOG-PROPERTY-TEXT": "its properties are damaged",
    "LOG-TOPIC": "no broker can have a topic of this name",
    "LOG-MAGIC": "no record starts here",
    "LOG-BLANK": "a blank record that does not fill its segment",
    "LOG-TORN": "a record that was not written completely",
    "LOG-NOISE": "bytes that are not a record",
    "LOG-GAP": "bytes of the log are missing",
}
_NOT_ASCII = np.uint64(0x8080808080808080)
_LOG_APPEND_TIME = 1  # of Kafka's types of a timestamp
_HEX = np.frombuffer(b"".join(b"%02X" % number for number in range(256)), np.uint16)


@dataclasses.dataclass(frozen=True)
class RowSelection:
    """Which rows and which of their contents are asked for."""

    columns: tuple[str, ...]
    """By the names of ``BUILDERS``."""
    store: str
    broker_name: str | None = None
    plain_bodies: bool = True
    """Bodies as the producer gave them, not as they are stored."""
    by_topic: bool = False
    """Whether messages are selected by their topics, so that these are checked whichever columns are asked for."""

    @property
    def checked_columns(self) -> tuple[str, ...]:
        """The columns whose damage is reported."""
        return (*self.columns, "topic") if self.by_topic else self.columns


class MessageRows:
    """Some messages of one table; what several columns need is made once."""

    def __init__(self, table: MessageTable, wanted: RowSelection, file: str, codes: npt.NDArray[np.int8]) -> None:
        self.table = table
        self.wanted = wanted
        self.file = file
        self.codes = codes

    def __len__(self) -> int:
        return len(self.table)

    @functools.cached_property
    def known(self) -> tuple[Ints, Ints]:
        """Where the values of ``_PROPERTIES`` are."""
        return self.table.properties(_PROPERTIES)

    @functools.cached_property
    def pairs(self) -> "Pairs":
        """All properties."""
        return Pairs(self.table)

    @functools.cached_property
    def forms(self) -> npt.NDArray[np.int32]:
        """Which form the head of each has, by the width of its hosts."""
        flags: npt.NDArray[np.int32] = self.table.column("sys_flag")
        return flags >> 4 & 3

    def has_long(self, host: int) -> bool:
        """Return whether an address does not have four bytes."""
        return bool((self.forms >> host & 1).any())

    @functools.cached_property
    def store_addresses(self) -> Ints:
        """The addresses of ``store_host``, where all have four bytes, as numbers."""
        return self.addresses(1)

    def addresses(self, host: int) -> Ints:
        """Return addresses of four bytes as numbers."""
        at = self.table.starts + scan.address_positions()[self.forms, host]
        raw = np.frombuffer(self.table.buffer, np.uint8)
        numbers: Ints = raw[at[:, None] + np.arange(4)].view(">u4")[:, 0].astype(np.int64)
        return numbers


class Pairs:
    """The properties of the messages of a table, end to end."""

    def __init__(self, table: MessageTable) -> None:
        self.table = table
        self.ends = np.zeros(len(table) + 1, np.int32)
        room = 16 * len(table)
        while True:
            outputs = [np.empty(room, np.int64) for _ in range(4)]
            offsets, sizes = table.offsets(plain.PROPERTIES), table.sizes(plain.PROPERTIES)
            count = table.kernels.list_properties(
                table.buffer, np.ascontiguousarray(offsets), np.ascontiguousarray(sizes), self.ends[1:], *outputs
            )
            if count <= room:
                break
            room = count
        self.names, self.values = ((outputs[n][:count], outputs[n + 1][:count]) for n in (0, 2))

    def array(self, kind: Any) -> Any:
        """Return the pairs as a map or a list of structs."""
        item = kind.value_type if pa.types.is_list(kind) else pa.struct([kind.key_field, kind.item_field])
        try:
            children = [
                texts(self.table, *place, item.field(number).type)
                for number, place in enumerate((self.names, self.values))
            ]
        except UnicodeDecodeError:
            rows = [
                parse_properties(self.table.bytes_of(plain.PROPERTIES, row)).items() for row in range(len(self.table))
            ]
            is_binary = pa.types.is_binary(item.field(1).type)
            typed_rows = [[(name, value.encode() if is_binary else value) for name, value in row] for row in rows]
            if pa.types.is_list(kind):
                names = item.field(0).name, item.field(1).name
                return pa.array([[dict(zip(names, pair, strict=True)) for pair in row] for row in typed_rows], kind)
            return pa.array(typed_rows, kind)
        inner = pa.StructArray.from_buffers(item, len(self.names[0]), [None], children=children)
        return pa.Array.from_buffers(kind, len(self.table), [None, pa.py_buffer(self.ends)], children=[inner])


def texts(table: MessageTable, offsets: Ints, sizes: Ints, kind: Any, valid: Mask | None = None) -> Any:
    """Return byte strings of the log as a column of texts or of bytes.

    Raises:
        UnicodeDecodeError: one is not UTF-8, and they should be strings.
    """
    ends = np.zeros(len(offsets) + 1, np.int32)
    size = int(sizes.sum())
    words = np.zeros(-(-size // 8), np.uint64)
    out = words.view(np.uint8)[:size]
    table.kernels.pack(table.buffer, np.ascontiguousarray(offsets), np.ascontiguousarray(sizes), ends[1:], out)
    bitmap = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    array = pa.Array.from_buffers(kind, len(offsets), [bitmap, pa.py_buffer(ends), pa.py_buffer(out)])
    if pa.types.is_string(kind) and np.bitwise_or.reduce(words, initial=0) & _NOT_ASCII:
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise UnicodeDecodeError("utf-8", b"", 0, 0, str(error)) from error
    return array


def _text_column(table: MessageTable, offsets: Ints, sizes: Ints, kind: Any) -> Any:
    """Return texts, null where they are empty."""
    valid = sizes > 0
    try:
        return texts(table, offsets, sizes, kind, valid)
    except UnicodeDecodeError:
        raw = texts(table, offsets, sizes, pa.binary(), valid).to_pylist()
        return pa.array([None if value is None else value.decode("utf-8", "replace") for value in raw], kind)


# Columns


def _number(name: str) -> Callable[[MessageRows, Any], Any]:
    return lambda rows, kind: pa.array(rows.table.column(name), kind)


def _time(name: str) -> Callable[[MessageRows, Any], Any]:
    return lambda rows, kind: timestamps(rows.table.column(name), kind)


def timestamps(milliseconds: Any, kind: Any) -> Any:
    """Return milliseconds since 1970 as timestamps, null for what no calendar holds."""
    milliseconds = milliseconds.astype(np.int64)
    valid = (milliseconds >= FIRST_MS) & (milliseconds <= LAST_MS)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(milliseconds), [bitmap, pa.py_buffer(milliseconds * 1000)])


def _topic(rows: MessageRows, kind: Any) -> Any:
    ids, names = rows.table.topics()
    return pa.array([name.decode("utf-8", "replace") for name in names], kind).take(pa.array(ids))


def _host(host: int) -> Callable[[MessageRows, Any], Any]:
    port_name = f"{scan.HOSTS[host]}_port"

    def column(rows: MessageRows, kind: Any) -> Any:
        ports = rows.table.column(port_name)
        if rows.has_long(host):
            pairs = enumerate(ports.tolist())
            return pa.array([host_text(rows.table.address(host, row), port) for row, port in pairs], kind)
        numbers = rows.store_addresses if host else rows.addresses(host)
        both = pc.dictionary_encode(pa.array(numbers << 32 | ports.astype(np.uint32)))
        names = []
        for number in both.dictionary.to_pylist():
            port = np.int64(number & 0xFFFFFFFF).astype(np.int32)
            names.append(host_text((number >> 32 & 0xFFFFFFFF).to_bytes(4, "big"), int(port)))
        return pa.array(names, kind).take(both.indices)

    return column


def _message_id(rows: MessageRows, kind: Any) -> Any:
    table = rows.table
    ports, positions = table.column("store_port"), table.column("position")
    if rows.has_long(1):
        hosts = _host(1)(rows, pa.string()).to_pylist()
        pairs = zip(hosts, positions.tolist(), strict=True)
        return pa.array([offset_message_id(host, position) for host, position in pairs], kind)
    raw = np.empty((len(rows), 16), np.uint8)
    raw[:, :4] = rows.store_addresses.astype(">u4").view(np.uint8).reshape(-1, 4)
    raw[:, 4:8] = ports.astype(">i4").view(np.uint8).reshape(-1, 4)
    raw[:, 8:] = positions.astype(">i8").view(np.uint8).reshape(-1, 8)
    ends = np.arange(0, 32 * len(rows) + 1, 32, dtype=np.int32)
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(ends), pa.py_buffer(_HEX[raw])])


def _property(name: str) -> Callable[[MessageRows, Any], Any]:
    number = _PROPERTIES.index(name)

    def column(rows: MessageRows, kind: Any) -> Any:
        offsets, sizes = rows.known
        return _text_column(rows.table, offsets[number], sizes[number], kind)

    return column


def _body(rows: MessageRows, kind: Any) -> Any:
    table = rows.table
    sizes = table.sizes(plain.BODY)
    stored = texts(table, table.offsets(plain.BODY), sizes, kind)
    flags = table.column("sys_flag")
    packed = (flags & commit_log.COMPRESSED != 0) & (sizes > 0)
    if not rows.wanted.plain_bodies or not packed.any():
        return stored
    bodies = []
    for row in np.flatnonzero(packed).tolist():
        body = table.bytes_of(plain.BODY, row)
        try:
            bodies.append(decompress(body, int(flags[row])))
        except FormatError:
            bodies.append(body)
    return pc.replace_with_mask(stored, pa.array(packed), pa.array(bodies, kind))


def _raw_properties(rows: MessageRows, kind: Any) -> Any:
    return texts(rows.table, rows.table.offsets(plain.PROPERTIES), rows.table.sizes(plain.PROPERTIES), kind)


def _json_properties(rows: MessageRows, kind: Any) -> Any:
    raw = (rows.table.bytes_of(plain.PROPERTIES, row) for row in range(len(rows)))
    return pa.array([orjson.dumps(parse_properties(text)).decode() for text in raw], kind)


def _corrupt(rows: MessageRows, kind: Any) -> Any:
    bad = np.flatnonzero(rows.codes)
    if not len(bad):
        return pa.nulls(len(rows), kind)
    values: list[dict[str, Any] | None] = [None] * len(rows)
    positions = rows.table.column("position") - rows.table.base
    for row in bad.tolist():
        values[row] = {
            "file": rows.file,
            "position": int(positions[row]),
            "code": _CODES[rows.codes[row]],
            "hex": rows.table.record(row)[:MAX_HEX].hex(),
        }
    return pa.array(values, kind)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its type as Spark spells it, and what makes it."""

    type: str
    build: Callable[[MessageRows, Any], Any]


BUILDERS: dict[str, Column] = {
    "physical_offset": Column("bigint", _number("physical_offset")),
    "size": Column("int", _number("size")),
    "magic_code": Column("int", _number("magic_code")),
    "topic": Column("string", _topic),
    "queue_id": Column("int", _number("queue_id")),
    "queue_offset": Column("bigint", _number("queue_offset")),
    "flag": Column("int", _number("flag")),
    "sys_flag": Column("int", _number("sys_flag")),
    "born_timestamp": Column("bigint", _number("born_timestamp")),
    "born_time": Column("timestamp", _time("born_timestamp")),
    "born_host": Column("string", _host(0)),
    "store_timestamp": Column("bigint", _number("store_timestamp")),
    "store_time": Column("timestamp", _time("store_timestamp")),
    "store_host": Column("string", _host(1)),
    "reconsume_times": Column("int", _number("reconsume_times")),
    "prepared_transaction_offset": Column("bigint", _number("prepared_transaction_offset")),
    "body_crc": Column("int", _number("body_crc")),
    "body_size": Column("int", _number("body_size")),
    "body": Column("binary", _body),
    "properties": Column("map<string,string>", lambda rows, kind: rows.pairs.array(kind)),
    "tags": Column("string", _property(TAGS)),
    "keys": Column("string", _property(KEYS)),
    "unique_key": Column("string", _property(UNIQ_KEY)),
    "message_id": Column("string", _message_id),
    "store": Column("string", lambda rows, kind: pa.repeat(pa.scalar(rows.wanted.store, kind), len(rows))),
    CORRUPT: Column(CORRUPT_TYPE, _corrupt),
}
"""The table ``messages``, in order."""

EXTRAS: dict[str, Column] = {
    "raw_properties": Column("binary", _raw_properties),
    "key_bytes": Column("binary", _property(KEYS)),
    "append_type": Column("int", lambda rows, kind: pa.repeat(pa.scalar(_LOG_APPEND_TIME, kind), len(rows))),
    "headers": Column("array<struct<key:string,value:binary>>", lambda rows, kind: rows.pairs.array(kind)),
    "json_properties": Column("string", _json_properties),
    "broker_name": Column("string", lambda rows, kind: pa.repeat(pa.scalar(rows.wanted.broker_name, kind), len(rows))),
}
"""What only layouts have, and ``raw_properties`` for those who want to write messages back byte for byte."""

LAYOUTS: dict[str, dict[str, str]] = {
    "heads": {name: name for name in BUILDERS if name not in ("body", "properties")},
    "all": {name: name for name in BUILDERS},
    # (Spark's documentation, "Structured Streaming + Kafka Integration Guide".)
    "kafka": {
        "key": "key_bytes",
        "value": "body",
        "topic": "topic",
        "partition": "queue_id",
        "offset": "queue_offset",
        "timestamp": "store_time",
        "timestampType": "append_type",
        "headers": "headers",
        CORRUPT: CORRUPT,
    },
    # (apache/rocketmq-externals, rocketmq-spark: the schema of its source.)
    "rocketmq-spark": {
        "topic": "topic",
        "flag": "flag",
        "body": "body",
        "properties": "json_properties",
        "brokerName": "broker_name",
        "queueId": "queue_id",
        "queueOffset": "queue_offset",
        "bornTimestamp": "born_time",
        "storeTimestamp": "store_time",
        CORRUPT: CORRUPT,
    },
}
"""The columns of each layout: its name, and that of what it holds."""

COLUMNS = BUILDERS | EXTRAS


def damage_codes(table: MessageTable, columns: Collection[str]) -> npt.NDArray[np.int8]:
    """Return for each message what is wrong with it, as a number of ``_CODES``.

    Of bodies, topics and properties where they are read.
    """
    codes = np.zeros(len(table), np.int8)
    if "topic" in columns:
        codes[table.nameless()] = 5
    if not _OF_PROPERTIES.isdisjoint(columns):
        codes[table.checked_properties(())[2]] = 4
    if "body" in columns:
        codes[table.body_crcs() != table.column("body_crc")] = 3
    codes[table.column("position") != table.column("physical_offset")] = 2
    codes[table.faults != 0] = 1
    return codes


def meaning(code: str, file: str, position: int) -> str:
    """Return the sentence for something damaged."""
    return f"{code} {file}@{position}: {_MEANINGS[code]}"


@dataclasses.dataclass(frozen=True)
class Batches:
    """Makes record batches of tables.

    ``mode`` is Spark's: what happens to what is damaged.
    """

    wanted: RowSelection
    schema: Any  # pyarrow.Schema, its fields in the order of ``wanted.columns``
    mode: str

    def of_table(self, table: MessageTable, file: str) -> Iterator[Any]:
        """Yield the batch of some messages.

        Raises:
            BadDataError: one is damaged, in mode FAILFAST.
        """
        codes = damage_codes(table, self.wanted.checked_columns)
        if codes.any() and self.mode != "PERMISSIVE":
            if self.mode == "FAILFAST":
                row = int(np.flatnonzero(codes)[0])
                position = int(table.column("position")[row]) - table.base
                raise BadDataError(meaning(_CODES[codes[row]], file, position))
            table, codes = table.where(codes == 0), codes[codes == 0]
        if not len(table):
            return
        rows = MessageRows(table, self.wanted, file, codes)
        arrays = [
            COLUMNS[name].build(rows, field.type) for name, field in zip(self.wanted.columns, self.schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def of_damage(self, file: str, position: int, code: str, data: bytes | None) -> Iterator[Any]:
        """Yield the row of a place without a message, if rows report damage.

        Raises:
            BadDataError: in mode FAILFAST.
        """
        if self.mode == "FAILFAST":
            raise BadDataError(meaning(code, file, position))
        if self.mode != "PERMISSIVE" or CORRUPT not in self.wanted.columns:
            return
        known: dict[str, Any] = {
            "store": self.wanted.store,
            CORRUPT: {"file": file, "position": position, "code": code, "hex": None if data is None else data.hex()},
        }
        arrays = [
            pa.array([known.get(name)], field.type)
            for name, field in zip(self.wanted.columns, self.schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
