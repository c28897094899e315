"""One message as a person reads it: a page of its fields, or its bytes field by field."""

import ipaddress
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._output import iso_time, printable, to_json
from mqtool.commands._rows import shown_body
from mqtool.errors import FormatError
from mqtool.formats import commit_log
from mqtool.formats.annotate import Field
from mqtool.formats.hashing import body_crc, tags_code
from mqtool.formats.inner_batch import inner_messages, is_inner_batch
from mqtool.formats.message import Message
from mqtool.formats.property_names import (
    DELAY,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    ORIGIN_MESSAGE_ID,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TAGS,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    TRANSACTION_CHECK_TIMES,
)
from mqtool.formats.topics import (
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)

if TYPE_CHECKING:
    from mqtool.engine.store.reader import StoreReader

_NAME_WIDTH = len("physical_offset:") + 1
_PROPERTY_WIDTH = 24  # of a name: the values behind longer ones stand further right
_TEXT_LINES = 24
_DUMP_LINES = 8
_ODD_SHARE = 20  # more than one odd character in so many, and a body is not a text

_MAGICS = {commit_log.MAGIC_V1: "v1", commit_log.MAGIC_V2: "v2", commit_log.MAGIC_BLANK: "blank"}
_FLAGS = {
    commit_log.COMPRESSED: "compressed",
    commit_log.MULTI_TAGS: "multi tags",
    commit_log.BORN_HOST_V6: "IPv6 born host",
    commit_log.STORE_HOST_V6: "IPv6 store host",
    0x40: "to unwrap",
    commit_log.INNER_BATCH: "inner batch",
}
_TRANSACTIONS = {
    commit_log.TRANSACTION_PREPARED: "prepared",
    commit_log.TRANSACTION_COMMIT: "committed",
    commit_log.TRANSACTION_ROLLBACK: "rolled back",
}
_CODECS = {0: "zlib", 1: "LZ4", 2: "zstd", 3: "zlib"}


def _flag_words(sys_flag: int) -> str:
    words = [word for bit, word in _FLAGS.items() if sys_flag & bit]
    transaction = _TRANSACTIONS.get(sys_flag & commit_log.TRANSACTION_MASK)
    if transaction:
        words.append(transaction)
    if sys_flag & commit_log.COMPRESSED:
        words.append(_codec(sys_flag))
    return ", ".join(words)


def _codec(sys_flag: int) -> str:
    number = (sys_flag & commit_log.COMPRESSION_MASK) >> 8
    return _CODECS.get(number, f"unknown compression {number}")


# A page of fields.


def message_page(
    store: "StoreReader | None", message: Message, body: str, width: int, whole: bool = True
) -> Iterator[str]:
    """Yield the lines of a page about a message.

    Args:
        store: that has it, None where a broker gave it.
        message: the record, or one of the messages in it.
        body: the mode of ``--body``.
        width: columns.
        whole: whether a batch is shown with all that is in it.
    """
    for name, value, note in _fields(store, message):
        if value is not None:
            yield from _field_lines(name, value, note, width)
    yield _heading("properties", "" if message.properties else "none")
    yield from _property_lines(message, width, 2)
    if not whole:
        text = (
            f"one of the messages in the inner batch at {message.position:,}: give that offset to see the whole batch"
        )
        yield from _hanging(click.style("note: ", fg="yellow"), text, width, 6)
    for note in annotations(store, message):
        yield from _hanging(click.style("note: ", fg="yellow"), printable(note), width, 6)
    if body != "none":
        yield from _body(message, body, width, whole)


def _property_lines(message: Message, width: int, indent: int) -> Iterator[str]:
    longest = min(max(map(len, message.properties), default=0), _PROPERTY_WIDTH)
    for name, value in message.properties.items():
        yield from _hanging(f"{'':{indent}}{printable(name):<{longest}}  ", printable(value), width)


def _fields(store: "StoreReader | None", message: Message) -> Iterator[tuple[str, Any, str]]:
    segment = store.commit_log.segment_at(message.position) if store else None
    delayed = message.topic == SCHEDULE_TOPIC and DELAY in message.properties
    code = "" if delayed else f"tags code {tags_code(message.tags)}"
    yield "topic", message.topic, ""
    yield "queue_id", message.queue_id, ""
    yield "queue_offset", message.queue_offset, ""
    yield "tags", message.tags, code
    yield "keys", message.keys, ""
    yield "unique_key", message.unique_key, ""
    yield "message_id", message.message_id, ""
    yield "store_time", iso_time(message.store_timestamp) or "no date", str(message.store_timestamp)
    yield "born_time", iso_time(message.born_timestamp) or "no date", str(message.born_timestamp)
    yield "store_host", message.store_host, ""
    yield "born_host", message.born_host, ""
    yield "physical_offset", message.physical_offset, f"{message.physical_offset:#x}"
    if store and segment:
        yield "file", store.paths.relative(segment.path), f"byte {message.position - segment.start_offset}"
    yield "size", message.size, ""
    yield "magic_code", message.magic_code, _MAGICS.get(message.magic_code, "unknown")
    yield "flag", message.flag, ""
    yield "sys_flag", message.sys_flag, _flag_words(message.sys_flag)
    yield "reconsume_times", message.reconsume_times, ""
    if message.prepared_transaction_offset:
        yield "prepared_transaction_offset", message.prepared_transaction_offset, ""
    right = body_crc(message.body) == message.body_crc if message.body_crc else None
    yield "body_crc", message.body_crc, "" if right is None else "right" if right else "wrong"
    yield "body_size", message.body_size, ""


def _heading(name: str, value: str) -> str:
    return click.style(_label(name), fg="cyan") + value


def _label(name: str) -> str:
    return f"{name}: ".ljust(_NAME_WIDTH)


def _field_lines(name: str, value: Any, note: str, width: int) -> Iterator[str]:
    text = printable(str(value))
    label = click.style(_label(name), fg="cyan")
    room = max(width - _NAME_WIDTH, 20)
    if note and len(text) + len(note) + 4 <= room:
        yield label + text + click.style(f"  ({printable(note)})", dim=True)
        return
    yield from _hanging(label, text, width, max(len(_label(name)), _NAME_WIDTH))
    if note:
        for piece in _chopped(f"({printable(note)})", room):
            yield " " * _NAME_WIDTH + click.style(piece, dim=True)


def _hanging(label: str, text: str, width: int, indent: int | None = None) -> Iterator[str]:
    """Yield a label and a text behind it, in as many lines as it takes."""
    indent = len(label) if indent is None else indent
    for number, piece in enumerate(_chopped(text, max(width - indent, 20)) or [""]):
        yield (" " * indent if number else label) + piece


def _chopped(text: str, width: int) -> list[str]:
    """Cut a printable text into pieces that fit a width, at blanks where that leaves no short line."""
    pieces = []
    while _cells(text) > width:
        # No character is wider than two cells, and few are wider than one.
        end = width
        while _cells(text[:end]) > width:
            end -= 1
        blank = text.rfind(" ", end // 2, end + 1)
        end = end if blank < 0 else blank
        pieces.append(text[:end])
        text = text[end:] if blank < 0 else text[end + 1 :]
    return [*pieces, text] if text or not pieces else pieces


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


# What is special about it.


def annotations(store: "StoreReader | None", message: Message) -> Iterator[str]:
    """Yield what a broker means by a message that no producer sent like this."""
    properties, topic = message.properties, message.topic
    real = f"{properties.get(REAL_TOPIC)}, queue {properties.get(REAL_QID)}"
    kind = message.sys_flag & commit_log.TRANSACTION_MASK
    level = _number(properties, DELAY)
    if topic == SCHEDULE_TOPIC and level > 0:
        yield _delay_note(store, message, level, real)
    elif topic == TIMER_TOPIC:
        due = iso_time(_number(properties, TIMER_OUT_MS))
        when = f" at {due}" if due and TIMER_OUT_MS in properties else ""
        yield f"waits in the timer to be delivered to {real}{when}"
        if TIMER_DEL_UNIQKEY in properties:
            yield f"cancels the timer message {properties[TIMER_DEL_UNIQKEY]}"
    elif topic == HALF_TOPIC:
        checks = properties.get(TRANSACTION_CHECK_TIMES)
        yield (
            f"half message: its transaction would deliver it to {real}"
            + (f", checked back {checks} times" if checks else "")
            + f"; decided when an op message in {OP_TOPIC} lists its queue offset {message.queue_offset:,}"
        )
    elif topic == OP_TOPIC and properties.get(TAGS) == "d":
        decided = message.body.decode("utf-8", "replace").strip(",").replace(",", ", ")
        yield f"op message: the half messages with queue offset {decided} in queue {message.queue_id} are decided"
    elif topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        yield _retry_note(message)
    elif kind == commit_log.TRANSACTION_COMMIT:
        yield f"a committed transaction; its half message is at {message.prepared_transaction_offset:,}"
    elif level > 0 and REAL_TOPIC in properties:
        yield f"delivered after delay level {level}"
    elif TIMER_OUT_MS in properties:
        yield "delivered by the timer"
    if kind in (commit_log.TRANSACTION_PREPARED, commit_log.TRANSACTION_ROLLBACK):
        yield f"a {_TRANSACTIONS[kind]} transaction: no queue has a unit for it, so its queue offset is meaningless"
    names = properties.get(INNER_MULTI_DISPATCH, "").split(",")
    offsets = properties.get(INNER_MULTI_QUEUE_OFFSET, "").split(",")
    light = [f"{name} at {offset}" for name, offset in zip(names, offsets, strict=False) if name]
    if light:
        yield f"also in the queues {', '.join(light)}"


def _number(properties: dict[str, str], name: str) -> int:
    """Return a property that is a number, 0 for what is none."""
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _delay_note(store: "StoreReader | None", message: Message, level: int, real: str) -> str:
    delays = store.delay_levels if store else ()
    if not delays:
        return f"waits to be delivered to {real}"
    delay = delays[min(level, len(delays)) - 1]
    due = message.store_timestamp + delay
    capped = f", capped at {len(delays)}" if level > len(delays) else ""
    return (
        f"waits to be delivered to {real} at {iso_time(due)}: delay level {level}{capped} is {_span(delay)}; "
        f"the tags code in its queue holds that time, {due}"
    )


def _retry_note(message: Message) -> str:
    properties = message.properties
    prefix = RETRY_PREFIX if message.topic.startswith(RETRY_PREFIX) else DEAD_LETTER_PREFIX
    group = message.topic.removeprefix(prefix)
    origin = properties.get(ORIGIN_MESSAGE_ID)
    relation = "a retry for" if prefix == RETRY_PREFIX else "a dead letter of"
    of = f" of a message from {properties[RETRY_TOPIC]}" if RETRY_TOPIC in properties else ""
    first = f", first stored as {origin}" if origin else ""
    return f"{relation} the group {group}{of}, consumed {message.reconsume_times} times without success{first}"


def _span(ms: int) -> str:
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms >= size and not ms % size:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


# Its body.


def _body(message: Message, mode: str, width: int, whole: bool) -> Iterator[str]:
    size_text = f"{message.body_size:,} bytes"
    if message.sys_flag & commit_log.COMPRESSED:
        stored = f"{message.body_size:,} bytes of {_codec(message.sys_flag)}"
        try:
            size_text = f"{len(message.plain_body()):,} bytes, stored as {stored}"
        except FormatError as error:
            size_text = f"{stored} that cannot be read: {error.reason}"
    inner = messages_in(message) if whole else []
    if inner:
        yield _heading("body", f"{size_text}, {len(inner)} messages")
        for number, inner_message in enumerate(inner):
            about = f"message {number} at queue offset {inner_message.queue_offset}, {inner_message.body_size:,} bytes"
            yield click.style(f"  {about}", bold=True)
            yield from _property_lines(inner_message, width, 4)
            yield from (f"    {line}" for line in _body_lines(inner_message, mode, width - 4))
        return
    yield _heading("body", size_text)
    yield from (f"  {line}" for line in _body_lines(message, mode, width - 2))


def messages_in(message: Message) -> list[Message]:
    """Return the messages of a batch, none for what is not a batch."""
    if is_inner_batch(message):
        try:
            return inner_messages(message)
        except FormatError:
            pass
    return []


def _body_lines(message: Message, mode: str, width: int) -> Iterator[str]:
    try:
        data = message.plain_body()
    except FormatError:
        data, mode = message.body, "hex" if mode == "hex" else "auto"
    if mode == "json":
        shown = shown_body(message, "json")
        if shown["body_encoding"] == "json":
            pretty = to_json(shown["body"], indent=True).decode()
            yield from _text_lines(pretty, width, None)
            return
    if mode in ("text", "base64"):
        yield from _text_lines(shown_body(message, mode)["body"], width, None)
    elif mode != "hex" and (text := _as_text(data)) is not None:
        yield from _text_lines(text, width, _TEXT_LINES)
    else:
        end = len(data) if mode == "hex" else _DUMP_LINES * 16
        yield from hex_dump(data[:end], 0, 16 if width >= 76 else 8)
        if end < len(data):
            yield _more(len(data) - end, "bytes", "hex")


def _as_text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    odd = sum(not (char.isprintable() or char in "\n\r\t") for char in text[:4096])
    return text if odd * _ODD_SHARE <= len(text) else None


def _text_lines(text: str, width: int, most: int | None) -> Iterator[str]:
    """Yield a text line by line, no more than ``most`` lines of it."""
    count = line_at = 0
    for line in text.splitlines(keepends=True):
        bare = printable(line.rstrip("\r\n").expandtabs(4))
        at = line_at
        for piece in _chopped(bare if most is None else bare[: (most + 1) * width], width):
            if count == most:
                yield _more(len(text) - at, "characters", "text")
                return
            yield piece
            count += 1
            at += len(piece)
        line_at += len(line)


def _more(count: int, noun: str, mode: str) -> str:
    return click.style(f"… {count:,} more {noun}: --body {mode} shows all", dim=True)


# Its bytes.


def hex_rows(fields: Iterable[Field]) -> Iterator[dict[str, Any]]:
    """Yield a row for each field: where it lies, its name, its value and its bytes."""
    for field in fields:
        value = _value(field)
        yield {
            "offset": field.offset,
            "size": len(field.data),
            "field": field.name,
            "value": value,
            "hex": field.data.hex(),
        }


def hex_lines(fields: list[Field], width: int) -> Iterator[str]:
    """Yield the bytes of each field with its name and value beside them."""
    if not fields:
        return
    number_width = len(str(fields[-1].offset + len(fields[-1].data)))
    per_line = 16 if width >= 120 else 8
    hex_width = 3 * per_line - 1
    aside = number_width + hex_width + per_line + 6
    for field in fields:
        if _last(field.name) in ("body", "rest"):
            yield f"{'':{number_width}}  {click.style(field.name, fg='cyan')}, {len(field.data):,} bytes:"
            wide = 16 if number_width + 2 + 47 + 2 + 16 <= width else 8
            yield from hex_dump(field.data, field.offset, wide, number_width)
            continue
        left = list(hex_dump(field.data, field.offset, per_line, number_width, _last(field.name) in _NUMBERS))
        right = list(_described(field, max(width - aside, 20)))
        for number in range(max(len(left), len(right))):
            plain = left[number] if number < len(left) else ""
            beside = right[number] if number < len(right) else ""
            gap = " " * (aside - len(click.unstyle(plain))) if beside else ""
            yield f"{plain}{gap}{beside}"


_NUMBERS = {*commit_log.HEADS[0].names} | {"topic_size", "properties_size"}


def _last(name: str) -> str:
    """Return the name of a field without that of the message in a batch that it belongs to."""
    return name.rpartition(".")[2]


def hex_dump(data: bytes, start: int, per_line: int, number_width: int = 0, bare: bool = False) -> Iterator[str]:
    """Yield bytes in hexadecimal, their addresses in front, and behind them, unless ``bare``, as ASCII."""
    number_width = number_width or len(str(start + len(data)))
    for at in range(0, len(data), per_line):
        chunk = data[at : at + per_line]
        line = f"{click.style(f'{start + at:>{number_width}}', dim=True)}  {chunk.hex(' ')}"
        if bare:
            yield line
            continue
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in chunk)
        yield f"{line}{' ' * (3 * (per_line - len(chunk)))}  {text}"


def _described(field: Field, width: int) -> Iterator[str]:
    """Yield name, value and meaning of a field, in as many lines as that takes."""
    value = _value(field)
    text = printable(str(value)) if value is not None else ""
    meaning = _meaning(field)
    name = click.style(field.name, fg="cyan")
    if len(field.name) + 1 + _cells(text) <= width:
        if meaning and len(field.name) + len(text) + len(meaning) + 3 <= width:
            yield f"{name} {text}  {click.style(meaning, dim=True)}"
            return
        yield f"{name} {text}"
    else:
        yield name
        yield from _chopped(text, width)
    if meaning:
        yield from (click.style(piece, dim=True) for piece in _chopped(meaning, width))


def _value(field: Field) -> int | str | None:
    if not isinstance(field.value, bytes):
        return field.value
    if field.name.endswith("_address"):
        return str(ipaddress.ip_address(field.value))
    try:
        return field.value.decode()
    except UnicodeDecodeError:
        return None


def _meaning(field: Field) -> str:
    name = _last(field.name)
    if not isinstance(field.value, int):
        return ""
    if name.endswith("_timestamp"):
        return iso_time(field.value) or "no date"
    if name == "magic_code":
        return _MAGICS.get(field.value, "" if "." in field.name else "unknown")
    if name == "sys_flag":
        return _flag_words(field.value)
    if name == "physical_offset":
        return f"{field.value:#x}"
    return ""
