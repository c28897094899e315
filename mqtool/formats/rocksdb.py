"""RocksDB databases of a store: keys and values of the consume queues and of the tables under ``config/``.

All integers are big-endian, so the units of a queue are together and in queue order. A single byte 1 separates the
parts of a key. (RocketMQ: ``RocksDBConsumeQueueTable``, ``RocksDBConsumeQueueOffsetTable``, ``ConfigStorage``.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from construct import (
    Bytes,
    Const,
    Construct,
    ConstructError,
    FixedSized,
    GreedyBytes,
    GreedyString,
    Int8ub,
    Int16ub,
    Int32sb,
    Int64sb,
    PascalString,
    Rebuild,
    Struct,
    Terminated,
    this,
)

from mqtool.errors import FormatError
from mqtool.formats.config_tables import Table, by_number, parse_table
from mqtool.formats.layout import I32, I64, Layout, parse
from mqtool.formats.topics import CHECKPOINT_TOPIC
from mqtool.late import np, npt

Pair = tuple[bytes, bytes]
"""Key and value."""
Families = Mapping[str, Iterable[Pair]]
"""The column families of a database by name, each in the order of its keys."""

_SEPARATOR = Const(b"\x01")
_TOPIC = (
    "topic_size" / Rebuild(Int32sb, lambda key: len(key.topic.encode())),
    _SEPARATOR,
    "topic" / FixedSized(this.topic_size, GreedyString("utf-8")),
    _SEPARATOR,
)

# Consume queues: units in the family "default", the ends of the queues in "offset".

UNIT_KEY = Struct(
    *_TOPIC,
    "queue_id" / Int32sb,
    _SEPARATOR,
    "queue_offset" / Int64sb,
    Terminated,
)
UNIT_VALUE = Layout(
    physical_offset=I64,  # first byte of the message in the commit log
    size=I32,  # its whole length
    tags_code=I64,  # Java hash of its tag; the delivery time of a delayed message
    store_timestamp=I64,
)
UNIT = Layout(queue_offset=I64, **UNIT_VALUE.fields)  # the end of the key and the value, laid end to end
QUEUE_OFFSET_SIZE = Int64sb.sizeof()  # how much of a key differs within one queue

END_KEY = Struct(
    *_TOPIC,
    "end" / Bytes(3),  # b"min" or b"max"
    _SEPARATOR,
    "queue_id" / Int32sb,
    Terminated,
)
END_VALUE = Struct(
    "physical_offset" / Int64sb,
    "queue_offset" / Int64sb,  # of the first unit, of the last unit
    Terminated,
)
CHECKPOINT_VALUE = Struct("reput_offset" / Int64sb, Terminated)  # the "max" of CHECKPOINT_TOPIC

# All tables in one database, config/rdb ("v2").

RDB_KEY = Struct(
    _SEPARATOR,
    "table" / Int16ub,
    "record" / Int8ub,
    "name" / GreedyBytes,
)
RDB_VERSION = 1  # the record is the table's version, its name "data_version"
RDB_DATA = 2
RDB_VERSION_VALUE = Struct(
    "stateVersion" / Int64sb,
    "timestamp" / Int64sb,
    "counter" / Int64sb,
    Terminated,
)
RDB_NAME = Struct("name" / PascalString(Int16ub, "utf-8"), Terminated)  # of a topic or group
RDB_OFFSET_NAME = Struct(
    "group" / PascalString(Int16ub, "utf-8"),
    _SEPARATOR,
    "topic" / PascalString(Int16ub, "utf-8"),
    _SEPARATOR,
    "queue_id" / Int32sb,
    Terminated,
)
RDB_OFFSET_VALUE = Struct("consumer_offset" / Int64sb, Terminated)
RDB_JSON_VALUE = Struct(Const(b"\x01"), "json" / GreedyBytes)  # the byte names the serialization


class StoredQueueEnds(NamedTuple):
    """First queue offset kept, and one past the last."""

    min_offset: int
    max_offset: int


class OffsetFamily(NamedTuple):
    """What the family "offset" says: the ends of each queue, and where dispatch continues (None: unknown)."""

    queues: dict[tuple[str, int], StoredQueueEnds]
    reput_offset: int | None


def unit_key(topic: str, queue_id: int, queue_offset: int) -> bytes:
    """Return the key of a unit."""
    return bytes(UNIT_KEY.build({"topic": topic, "queue_id": queue_id, "queue_offset": queue_offset}))


def end_keys(topic: str, queue_id: int) -> list[bytes]:
    """Return the keys of the two ends of a queue, none for a name that no key can hold."""
    try:
        return [END_KEY.build({"topic": topic, "end": end, "queue_id": queue_id}) for end in (b"min", b"max")]
    except (ConstructError, UnicodeEncodeError):
        return []


def parse_queue(key: bytes) -> tuple[str, int]:
    """Return topic and queue id of a unit's key.

    Raises:
        FormatError: it is not such a key.
    """
    unit = _parse(UNIT_KEY, key, "key of a unit", key)
    return unit.topic, unit.queue_id


def scan_units(pairs: Sequence[Pair]) -> npt.NDArray[np.void]:
    """Return the units of one queue as an array with the fields of ``UNIT``, in native byte order.

    Raises:
        FormatError: a value has not the size of a unit.
    """
    for key, value in pairs:
        if len(value) != UNIT_VALUE.size:
            raise FormatError(f"the unit with key {key.hex()} has {len(value)} bytes", offset=0)
    records = b"".join(key[-QUEUE_OFFSET_SIZE:] + value for key, value in pairs)
    return np.frombuffer(records, UNIT.dtype).astype(UNIT.dtype.newbyteorder("="))


def parse_ends(pairs: Iterable[Pair]) -> OffsetFamily:
    """Return the ends of all queues in a family "offset".

    A broker writes a minimum only when it has looked for one, and no maximum for an empty queue: what is missing is 0.

    Raises:
        FormatError: a key or value does not fit its layout.
    """
    ends_of: dict[tuple[str, int], dict[bytes, int]] = {}
    reput_offset = None
    for key, value in pairs:
        head = _parse(END_KEY, key, "key of a queue's end", key)
        if head.topic == CHECKPOINT_TOPIC:
            reput_offset = _parse(CHECKPOINT_VALUE, value, "checkpoint", key).reput_offset
        else:
            end = _parse(END_VALUE, value, "end of a queue", key)
            ends_of.setdefault((head.topic, head.queue_id), {})[head.end] = end.queue_offset
    queues = {queue: StoredQueueEnds(ends.get(b"min", 0), ends.get(b"max", -1) + 1) for queue, ends in ends_of.items()}
    return OffsetFamily(queues, reput_offset)


class _ConfigTable(NamedTuple):
    file: str  # the JSON file with the same content
    member: str
    database: str  # its own database, families "default" and "kvDataVersion"
    family: str  # its family in the database of all tables, the other one is this + "Version"


_CONFIG_TABLES = (
    _ConfigTable("topics.json", "topicConfigTable", "topics", "topic"),
    _ConfigTable("subscriptionGroup.json", "subscriptionGroupTable", "subscriptionGroups", "subscriptionGroup"),
    _ConfigTable("consumerOffset.json", "offsetTable", "consumerOffsets", "consumerOffset"),
)


def parse_config(database: str, families: Families) -> dict[str, Table]:
    """Return the tables in a config database, each under the name of the JSON file that it replaces.

    ``database`` is the name of its folder: ``topics``, ``subscriptionGroups``, ``consumerOffsets`` (5.2), ``metadata``
    (5.3.4, all three) or ``rdb`` (version 2 of these databases, all three).

    Raises:
        FormatError: a key or value does not fit its layout, or its JSON cannot be parsed.
    """
    if database == "rdb":
        return _parse_rdb(families.get("default", ()))
    if database == "metadata":
        return {
            table.file: _parse_families(table, families, table.family, f"{table.family}Version")
            for table in _CONFIG_TABLES
            if table.family in families  # made when first written to
        }
    return {
        table.file: _parse_families(table, families, "default", "kvDataVersion")
        for table in _CONFIG_TABLES
        if table.database == database
    }


def _parse_families(table: _ConfigTable, families: Families, data: str, version: str) -> Table:
    contents: Table = {}
    for key, value in families.get(version, ()):
        contents["dataVersion"] = _parse_json(value, key)
    if table.file == "subscriptionGroup.json":
        contents["forbiddenTable"] = {
            _text(key): _parse_json(value, key) for key, value in families.get("forbidden", ())
        }
    rows = {_text(key): _parse_json(value, key) for key, value in families.get(data, ())}
    if table.file == "consumerOffset.json":  # its writer quotes integer keys
        rows = {name: by_number(row.get("offsetTable"), f"{name}: offsetTable") for name, row in rows.items()}
    contents[table.member] = rows
    return contents


_RDB_TABLES = {
    1: ("consumerOffset.json", "offsetTable"),
    2: ("consumerOffset.json", "pullOffsetTable"),
    3: ("topics.json", "topicConfigTable"),
    4: ("subscriptionGroup.json", "subscriptionGroupTable"),
}


def _parse_rdb(pairs: Iterable[Pair]) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for key, value in pairs:
        head = _parse(RDB_KEY, key, "key of a table", key)
        if head.table not in _RDB_TABLES:
            continue
        file, member = _RDB_TABLES[head.table]
        rows = tables.setdefault(file, {}).setdefault(member, {})
        if head.record == RDB_VERSION and member != "pullOffsetTable":
            version = _parse(RDB_VERSION_VALUE, value, "version of a table", key)
            tables[file]["dataVersion"] = {name: version[name] for name in ("counter", "stateVersion", "timestamp")}
        elif head.record == RDB_DATA and file == "consumerOffset.json":
            name = _parse(RDB_OFFSET_NAME, head.name, "key of a consumer offset", key)
            offset = _parse(RDB_OFFSET_VALUE, value, "consumer offset", key).consumer_offset
            rows.setdefault(f"{name.topic}@{name.group}", {})[name.queue_id] = offset
        elif head.record == RDB_DATA:
            name = _parse(RDB_NAME, head.name, "key of a topic or group", key).name
            rows[name] = _parse_json(_parse(RDB_JSON_VALUE, value, "topic or group", key).json, key)
    return tables


def _parse(schema: Construct, data: bytes, layout_name: str, key: bytes) -> Any:
    return parse(schema, data, f"{layout_name} (key {key.hex()})")


def _parse_json(data: bytes, key: bytes) -> Table:
    try:
        return parse_table(data)
    except FormatError as error:
        raise FormatError(f"the value of key {key.hex()}: {error.reason}", error.offset) from error


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"the key {key.hex()} is not UTF-8 text", offset=0) from error
