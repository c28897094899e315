"""``mqtool get``."""

import dataclasses
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._brokers import Brokers
from mqtool.commands._message_page import hex_lines, hex_rows, message_page, messages_in
from mqtool.commands._options import matching, message_options, output_option, require_log
from mqtool.commands._output import Output, progress
from mqtool.commands._rows import message_columns, message_row
from mqtool.commands._wire import source_options
from mqtool.errors import BadDataError, FormatError, MqtoolError, NotFoundError, Status, UsageError
from mqtool.formats import commit_log
from mqtool.formats import kernels as plain
from mqtool.formats.annotate import Field, annotate
from mqtool.formats.hashing import body_crc
from mqtool.formats.hosts import host_of_message_id, parse_message_id
from mqtool.formats.inner_batch import inner_messages, is_inner_batch
from mqtool.formats.message import Message, message_of
from mqtool.formats.properties import CRC_SIZE, are_readable, crc_digits
from mqtool.formats.property_names import CRC32, INNER_MULTI_DISPATCH
from mqtool.formats.record_head import physical_offset, read_start
from mqtool.formats.topics import is_possible

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.browser import Browsed
    from mqtool.engine.store.queue_view import QueueView
    from mqtool.engine.store.reader import StoreReader
    from mqtool.engine.store.search import Query

_ID_SIZES = (32, 56)
_LOOK_BACK = (1 << 16, 1 << 20, 1 << 24)
_LOOK_AHEAD = 1 << 24
_SHOWN_OF_DAMAGE = 256
_LISTED_QUEUES = 20
_LISTED_MESSAGES = 1000
_MAX_DIGITS = 18


@dataclasses.dataclass
class LocatedRecord:
    """What is at an address; ``message`` is None where its bytes make no sense, and ``wrong`` says why."""

    offset: int
    record: bytes
    message: Message | None
    wrong: list[str]
    inner: Message | None = None
    """The one in a batch that was asked for."""


@click.command(short_help="Show one message.")
@click.argument("ids", metavar="ID | TOPIC QUEUE OFFSET", nargs=-1, required=True)
@click.option("--hex", "as_hex", is_flag=True, help="Show the bytes of each field, whatever the state of the record.")
@click.option("--broker", "broker_name", metavar="NAME", help="The broker, if several have this queue or address.")
@message_options
@source_options
@output_option
def command(
    ids: tuple[str, ...],
    as_hex: bool,
    broker_name: str | None,
    body: str,
    source: "Brokers | StoreReader",
    output: Output,
) -> int:
    """Show one message.

    \b
    ID is one of
      an offset message id   32 or 56 hexadecimal digits, as brokers return it
      a unique key           what clients call the message id
      a physical offset      decimal, or hexadecimal with 0x
      a key                  one of its KEYS
    or give its TOPIC, QUEUE and queue OFFSET.

    \b
      mqtool get order-4106
      mqtool get 7F000001000051AF0000000000000000 --hex
      mqtool get Orders 0 17
      mqtool get -n localhost:9876 order-4106

    Keys are looked up in the index files, then in the log; on brokers in their indexes, topic by topic. If
    several messages have the key, they are listed: choose one by physical offset. Exits with status 65 if the
    bytes are damaged; --hex shows them anyway.
    """  # noqa: D301 (what click takes for a mark is one character, not two)
    if isinstance(source, Brokers):
        source.remark(output)
        records = source.admin(lambda admin: _locate_on_brokers(admin, broker_name, ids, output))
        return _show_all(None, records, as_hex, body, output)
    if broker_name is not None:
        raise UsageError("--broker selects one of several brokers, but a store belongs to only one: leave it out")
    require_log(source)
    status = _show_all(source, _locate(source, ids, output), as_hex, body, output)
    for remark in source.remarks:
        output.remark(remark)
    return status


def _show_all(
    store: "StoreReader | None", records: list[LocatedRecord], as_hex: bool, body: str, output: Output
) -> int:
    """Show what was found, of a store or of brokers; return the status."""
    if as_hex:
        for located in records:
            _show_hex(located, output)
    elif len(records) == 1:
        _show(store, records[0], body, output)
    else:
        output.columns = message_columns(output.width, body)
        for located in records:
            if located.message:
                output.row(message_row(located.inner or located.message, body))
        first = "the first " if len(records) == _LISTED_MESSAGES else ""
        how = "PHYSICAL_OFFSET" if store else "TOPIC QUEUE OFFSET"
        output.remark(f"{first}{len(records):,} messages have this key: choose one with `mqtool get {how}`")
    wrong = [sentence for located in records for sentence in located.wrong]
    for sentence in wrong:
        output.remark(sentence)
    return Status.BAD_DATA if wrong else Status.OK


# Finding it.


def _locate(store: "StoreReader", ids: tuple[str, ...], output: Output) -> list[LocatedRecord]:
    if len(ids) == 3:
        return [_in_queue(store, *ids, output)]
    if len(ids) != 1:
        raise UsageError(f"{len(ids)} arguments do not identify a message: give one ID, or TOPIC QUEUE OFFSET")
    name = ids[0]
    address, position = _address_in(name), _position_in(name)
    if address is not None:
        # A key may be a number too, but the index must know it: nobody waits for a scan of the log here.
        try:
            return [_at_address(store, address)]
        except MqtoolError as error:
            records = _indexed(store, name)
            if not records:
                raise
            output.remark(f"{error}; treating it as a key")
            return records
    if position is not None:
        try:
            located = _at_address(store, position)
        except MqtoolError:
            located = None
        if located and located.message and located.message.message_id == name.upper():
            return [located]
    return _by_key(store, name, position, output)


async def _locate_on_brokers(
    admin: "AdminClient", broker_name: str | None, ids: tuple[str, ...], output: Output
) -> list[LocatedRecord]:
    from mqtool.engine.client_runtime.browser import Browser

    browser = Browser(admin, broker_name)
    if len(ids) == 3:
        topic, queue, offset = ids
        return [_browsed(await browser.in_queue(topic, _number(queue, "QUEUE"), _number(offset, "OFFSET")))]
    if len(ids) != 1:
        raise UsageError(f"{len(ids)} arguments do not identify a message: give one ID, or TOPIC QUEUE OFFSET")
    name = ids[0]
    address, position = _address_in(name), _position_in(name)
    if address is not None:
        try:
            return [_browsed(await browser.at_address(address))]
        except (NotFoundError, UsageError) as error:
            hits = await browser.by_key(name)
            if not hits:
                raise
            output.remark(f"{error}; treating it as a key")
    else:
        if position is not None and (of_id := await browser.by_message_id(name, position)):
            return [_browsed(of_id)]
        hits = await browser.by_key(name)
        if not hits and position is not None and name != name.upper():
            hits = await browser.by_key(name.upper())  # as clients write their ids
    for remark in browser.remarks:
        output.remark(remark)
    if hits:
        return [_browsed(hit) for hit in hits[:_LISTED_MESSAGES]]
    masters = await browser.masters()
    raise NotFoundError(_nowhere(name, position, [master.address for master in masters]))


def _nowhere(name: str, position: int | None, addresses: list[str]) -> str:
    """Return the sentence for an id that no broker knows; an offset message id names the broker that gave it."""
    asked = f"no message has the id or key {name}: it is not in the indexes of {', '.join(addresses)}"
    host = host_of_message_id(name) if position is not None else None
    if host is None or host in addresses or int(host.rpartition(":")[2]) > 65_535:
        return asked
    return f"{asked}; as an offset message id it refers to {host}, which is not a master of this cluster"


def _browsed(hit: "Browsed") -> LocatedRecord:
    """Return a message of a broker as one of a store: the record, and which of a batch was meant."""
    message = message_of(hit.record, hit.message.position)
    inner = hit.message if is_inner_batch(message) else None
    return LocatedRecord(hit.message.position, hit.record, message, list(_wrong_in(message, hit.record)), inner)


def _address_in(name: str) -> int | None:
    """Return the physical offset that a name is, None for what is none."""
    if re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", name):
        return int(name, 16)
    digits = name.replace(",", "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < _ID_SIZES[0] else None


def _position_in(name: str) -> int | None:
    """Return the address in an offset message id, None for what cannot be one."""
    if len(name) not in _ID_SIZES:
        return None
    try:
        return parse_message_id(name)
    except FormatError:
        return None


def _query(name: str) -> "Query":
    from mqtool.engine.store.search import Query

    keys = [name]
    if _position_in(name) is not None and name != name.upper():
        keys.append(name.upper())  # as clients write their ids
    return Query(keys=tuple(keys), rolled_back=True)


def _indexed(store: "StoreReader", name: str) -> list[LocatedRecord]:
    from mqtool.engine.store.search import Search

    return _first(store, Search(store, _query(name)).indexed())


def _first(store: "StoreReader", messages: Iterable[Message]) -> list[LocatedRecord]:
    return [_found(store, message.position) for message in itertools.islice(messages, _LISTED_MESSAGES)]


def _by_key(store: "StoreReader", name: str, position: int | None, output: Output) -> list[LocatedRecord]:
    from mqtool.engine.store.search import Search, is_glob

    if is_glob(name):
        raise UsageError(f"{name} is a pattern: use `mqtool find --key`")
    search = Search(store, _query(name))
    several = _first(store, search.indexed())
    if not several:
        output.tell_compiling(search.scan_size)
        with progress(search.scan_size, "get") as advance:
            several = _first(store, search.messages(advance))
    if several:
        return several
    log = store.commit_log
    if position is not None and log.min_offset <= position < log.end_offset:
        try:
            located = _at_address(store, position)
        except NotFoundError:
            located = None
        if located and located.message:
            raise NotFoundError(f"the message at {position:,} has another id: {located.message.message_id}")
        if located:
            return [located]  # damage where the message of this id should be
    if search.unread_count:
        raise BadDataError(f"the message with the id or key {name} is lost or damaged: {search.remarks[-1]}")
    place = f"the log covers {log.min_offset:,} to {search.end_offset:,}"
    if search.gaps or search.holes or search.faulty_count:
        place += ", but parts of it cannot be read (see `mqtool verify`)"
    if not search.index_files_used or search.scanned_size == search.total_size:
        raise NotFoundError(f"no message has the id or key {name}: the whole log was scanned; {place}")
    raise NotFoundError(
        f"no message has the id or key {name}: it is not in the index files; {place}; `mqtool find "
        f"-s {shlex.quote(str(store.root))} --scan --key {shlex.quote(name)}` searches the whole log"
    )


def _at_address(store: "StoreReader", offset: int) -> LocatedRecord:
    """Return what is at an address.

    Raises:
        NotFoundError: no message begins there, and none should.
    """
    log = store.commit_log
    if log.segment_at(offset) is not None:
        try:
            return _found(store, offset)
        except FormatError as error:
            _explain_place(store, offset)
            return _damaged(store, offset, error)
    if log.min_offset <= offset < log.end_offset:
        raise BadDataError(f"the commit log segment that held {offset:,} does not exist")
    if not log.segments:
        raise NotFoundError("the store has no commit log")
    raise NotFoundError(f"the commit log covers {log.min_offset:,} to {log.end_offset:,}: {offset:,} is outside")


def _found(store: "StoreReader", offset: int) -> LocatedRecord:
    record = store.record_at(offset)
    message = message_of(record, offset)
    return LocatedRecord(offset, record, message, list(_wrong_in(message, record)))


def _wrong_in(message: Message, record: bytes) -> Iterator[str]:
    if message.physical_offset != message.position:
        yield f"the record at {message.position:,} says that it is at {message.physical_offset:,}"
    actual = body_crc(message.body)
    if not is_possible(message.topic.encode()):
        yield "the topic is damaged: no broker accepts such a name"
    if not are_readable(message.raw_properties):
        yield "the properties are damaged: only those that Java would read are shown"
    if message.body and actual != message.body_crc:
        yield f"the body is damaged: its CRC is {actual}, the record says {message.body_crc}"
    digits = message.properties.get(CRC32)
    if digits is not None and record[-CRC_SIZE:].startswith(CRC32.encode()):
        should_be = crc_digits(body_crc(record[:-CRC_SIZE])).decode()
        if digits != should_be:
            yield f"the record is damaged: its CRC property is {digits}, it should be {should_be}"


def _damaged(store: "StoreReader", offset: int, error: FormatError) -> LocatedRecord:
    """Return the bytes at an address where a message should be: up to the next one where they resemble a record."""
    from mqtool.formats import scan

    log = store.commit_log
    segment = log.segment_at(offset)
    assert segment is not None
    at = offset - segment.start_offset
    buffer, _ = log.buffer_of(segment, plain, at, at + _LOOK_AHEAD)
    next_one = scan.resync(buffer, segment.start_offset, at + 1, at + _LOOK_AHEAD, log.envelope)
    until = segment.end_offset if next_one is None else segment.start_offset + next_one
    size = until - offset
    if next_one is None or not _resembles_record(log.read(offset, commit_log.MIN_SIZE), offset):
        size = min(size, _SHOWN_OF_DAMAGE)
    follows = f"; the next message starts at {until:,}" if next_one is not None else ""
    return LocatedRecord(offset, log.read(offset, size), None, [f"damage: {error}{follows}"])


def _resembles_record(record: bytes, offset: int) -> bool:
    """Tell whether bytes that are not sound record were one: they have its magic code, or know where they lie."""
    if len(record) < commit_log.MIN_SIZE:
        return False
    return read_start(record)[1] in commit_log.MESSAGE_MAGICS or physical_offset(record) == offset


def _explain_place(store: "StoreReader", offset: int) -> None:
    """Raise ``NotFoundError`` where an address is not a place for a message, though nothing is wrong."""
    from mqtool.formats import scan

    log = store.commit_log
    segment = log.segment_at(offset)
    assert segment is not None
    buffer = log.buffer(segment, plain)
    at = offset - segment.start_offset
    for back in _LOOK_BACK:
        start = max(0, at - back)
        first = scan.resync(buffer, segment.start_offset, start, at + 1, log.envelope) if start else 0
        if first is not None:
            break
    else:
        return
    walk = scan.scan(buffer, segment.start_offset, first, at, log.envelope, plain)
    if walk.end > at:
        if len(walk.table) and walk.table.faults[-1] == 0:
            inside = walk.table.column("position")[-1]
            raise NotFoundError(
                f"no message starts at {offset:,}: it is inside the one at {inside:,} "
                f"({int(walk.table.column('size')[-1]):,} bytes)"
            )
        return
    end = segment.start_offset + walk.end
    blank = walk.stop is scan.Stop.BLANK or _is_blank(store, offset)
    if blank and log.is_blank(segment, walk.end):
        raise NotFoundError(
            f"no message is at {offset:,}: {end:,} to {segment.end_offset:,}, where its segment ends, is filler"
        )
    rest = segment.bytes[walk.end : min(segment.size, at + _SHOWN_OF_DAMAGE)]
    later = [segment for segment in log.segments if segment.start_offset > offset and any(segment.read(0, 8))]
    if not later and not rest.any() and scan.resync(buffer, segment.start_offset, at, None, log.envelope) is None:
        raise NotFoundError(f"nothing was ever written at {offset:,}: the log covers {log.min_offset:,} to {end:,}")


def _is_blank(store: "StoreReader", offset: int) -> bool:
    return read_start(store.commit_log.read(offset, commit_log.BLANK_SIZE))[1] == commit_log.MAGIC_BLANK


def _in_queue(store: "StoreReader", topic: str, queue: str, offset: str, output: Output) -> LocatedRecord:
    from mqtool.engine.store.queue_view import open_queue, queue_keys

    queue_id, queue_offset = _number(queue, "QUEUE"), _number(offset, "OFFSET")
    view = open_queue(store, topic, queue_id)
    if view is None:
        keys = queue_keys(store)
        located = None if keys else _in_log(store, topic, queue_id, queue_offset, (0, None))
        if located is None:
            raise _no_queue(keys, topic, queue_id)
        output.remark("the store has no queues: the message was found in the log")
        return located
    units = view.units(queue_offset, 1)
    if len(units) and units.queue_offset[0] <= queue_offset < units.next_offset[0] and units.size[0] > 0:
        return _of_unit(store, (topic, queue_id, queue_offset), int(units.physical_offset[0]))
    located = _beside_units(store, view, queue_offset)
    if located is None:
        empty = view.min_offset >= view.max_offset
        reaches = "is empty" if empty else f"holds {view.min_offset:,} to {view.max_offset - 1:,}"
        raise NotFoundError(f"queue {queue_id} of {topic} {reaches}: no message has the queue offset {queue_offset:,}")
    output.remark(f"the queue has no unit for queue offset {queue_offset:,}: the message was found in the log")
    return located


def _no_queue(keys: set[tuple[str, int]], topic: str, queue_id: int) -> NotFoundError:
    ids = sorted(number for name, number in keys if name == topic)
    if not keys:
        return NotFoundError(
            f"the store has no queues, and its log has no message with that queue and offset in {topic}"
        )
    if not ids:
        matching((topic,), {name for name, _ in keys}, "topic")
        return NotFoundError(f"{topic} is a pattern: give the whole name of the topic")
    listed = ", ".join(map(str, ids[:_LISTED_QUEUES])) + (", .." if len(ids) > _LISTED_QUEUES else "")
    return NotFoundError(f"{topic} has no queue {queue_id}; it has {listed}")


def _number(text: str, noun: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise UsageError(f"{text} is not a valid {noun}: give TOPIC QUEUE OFFSET, the last two as whole numbers")
    return int(text)


def _of_unit(store: "StoreReader", key: tuple[str, int, int], offset: int) -> LocatedRecord:
    """Return the message that a unit names, or the one in its batch."""
    topic, queue_id, queue_offset = key
    log = store.commit_log
    expired = f"the message was at {offset:,}, and the log starts at {{:,}}: it has expired"
    if offset < log.min_offset:
        raise NotFoundError(expired.format(log.min_offset))
    try:
        located = _at_address(store, offset)
    except NotFoundError as error:
        if offset < log.min_offset:  # retention took it just now
            raise NotFoundError(expired.format(log.min_offset)) from error
        raise BadDataError(f"the unit of queue offset {queue_offset:,} is wrong: {error}") from error
    message = located.message
    if message is None:
        return located
    queues = {(message.topic, message.queue_id)}
    light = message.properties.get(INNER_MULTI_DISPATCH, "").split(",")
    if topic in light:
        return located
    if (topic, queue_id) not in queues:
        located.wrong.append(f"the unit points to a message of {message.topic}, queue {message.queue_id}")
        return located
    if is_inner_batch(message):
        try:
            inner = [element for element in inner_messages(message) if element.queue_offset == queue_offset]
        except FormatError as error:
            located.wrong.append(f"the batch cannot be read: {error}")
            return located
        if inner:
            located.inner = inner[0]
            return located
    if message.queue_offset != queue_offset and not _is_transaction(message):
        located.wrong.append(f"the unit points to a message whose queue offset is {message.queue_offset:,}")
    return located


def _is_transaction(message: Message) -> bool:
    return message.sys_flag & commit_log.TRANSACTION_MASK in (
        commit_log.TRANSACTION_PREPARED,
        commit_log.TRANSACTION_ROLLBACK,
    )


def _beside_units(store: "StoreReader", view: "QueueView", queue_offset: int) -> LocatedRecord | None:
    """Look for a message that its queue does not know, between those that it knows: the queue may lag or be damaged."""
    if queue_offset < view.min_offset:
        return None
    before = view.units(max(view.min_offset, min(queue_offset, view.max_offset) - 1), 1)
    after = view.units(queue_offset, 1)
    is_before = len(before) and before.queue_offset[0] < queue_offset  # or else no file has the unit before
    start = int(before.physical_offset[0]) if is_before else 0
    stop = int(after.physical_offset[0]) if len(after) and after.size[0] > 0 else None
    return _in_log(store, view.topic, view.queue_id, queue_offset, (start, stop))


def _in_log(
    store: "StoreReader", topic: str, queue_id: int, queue_offset: int, addresses: tuple[int, int | None]
) -> LocatedRecord | None:
    from mqtool.engine.store.search import Query, Search

    query = Query(
        topics=frozenset([topic]),
        queues=(str(queue_id),),
        queue_offset=queue_offset,
        start_offset=addresses[0],
        stop_offset=addresses[1],
    )
    search = Search(store, query)
    with progress(search.scan_size, "get") as advance:
        for message in search.messages(advance):
            return _found(store, message.position)
    return None


# Showing it.


def _show(store: "StoreReader | None", located: LocatedRecord, body: str, output: Output) -> None:
    message = located.inner or located.message
    if message is None:
        output.text(f"{len(located.record):,} damaged bytes at {located.offset:,}: --hex shows them")
    elif output.is_table:
        _print(output, message_page(store, message, body, output.width, whole=located.inner is None))
    else:
        row = message_row(message, body)
        if located.inner is None and is_inner_batch(message):
            row["messages"] = [_inner_row(element, body) for element in messages_in(message)]
        output.row(row)


def _inner_row(message: Message, body: str) -> dict[str, Any]:
    row = message_row(message, body)
    own = ("queue_offset", "flag", "body_size", "body", "body_encoding", "properties", "tags", "keys", "unique_key")
    return {name: row[name] for name in own if name in row}


def _show_hex(located: LocatedRecord, output: Output) -> None:
    fields, stop = [Field(located.offset, located.record, "rest", None)], None
    if located.message or _resembles_record(located.record, located.offset):
        fields, stop = annotate(located.record, located.offset)
    if stop:
        located.wrong.append(stop)
    if output.is_table:
        _print(output, hex_lines(fields, output.width))
    else:
        for row in hex_rows(fields):
            output.row(row)


def _print(output: Output, lines: Iterable[str]) -> None:
    for line in lines:
        output.text(line)
