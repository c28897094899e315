"""Checks of the extensions of consume queues: whether a broker can walk over their units from the first to the last.

Cost: linear in the units of the extensions.
"""

from collections.abc import Iterator

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding
from mqtool.engine.store.consume_queue import ConsumeQueueExt
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import consume_queue_ext
from mqtool.formats.kernels import int16

_BIT_MAP_AT = consume_queue_ext.HEAD.offset_of("bit_map_size")


def check_walks(reader: StoreReader) -> Iterator[Finding]:
    """Walk over the units of each extension like a starting broker, which drops what follows a wrong size."""
    for ext in reader.consume_queue_exts.values():
        for segment in ext.hold().segments:
            yield from _walk(reader, ext, segment, segment is ext.segments[-1])


def _walk(reader: StoreReader, ext: ConsumeQueueExt, segment: MappedFile, is_last: bool) -> Iterator[Finding]:
    place = {"file": reader.paths.relative(segment.path), "topic": ext.topic, "queue_id": ext.queue_id}
    data, at = memoryview(segment.bytes), 0
    head = consume_queue_ext.MIN_SIZE
    while at + head + consume_queue_ext.END_SIZE <= segment.size and (size := int16(data, at)) != consume_queue_ext.END:
        if size == 0 and is_last and not segment.bytes[at : at + head].any():
            return
        bits = int16(data, at + _BIT_MAP_AT)
        if size < head or at + size + consume_queue_ext.END_SIZE > segment.size or size != head + bits:
            text = "a unit of the extension with an impossible size: a broker drops it and everything after it"
            yield finding("QUEUE-EXT", text, offset=at, expected=head + max(0, bits), found=size, **place)
            return
        at += size
    mark = int16(data, at) if at + 2 <= segment.size else None
    if mark == consume_queue_ext.END and segment.bytes[at + 2 :].any():
        text = "the end-of-file mark is followed by other bytes, which a broker drops"
        yield finding("QUEUE-EXT", text, offset=at, **place)
    elif mark != consume_queue_ext.END and is_last and segment.bytes[at:].any():
        text = "a unit of the extension that was not written completely: a broker drops it"
        yield finding("QUEUE-EXT", text, offset=at, found=mark, **place)
    elif mark != consume_queue_ext.END and not is_last:
        text = "neither a unit nor the end-of-file mark"
        yield finding("QUEUE-EXT", text, offset=at, expected=consume_queue_ext.END, found=mark, **place)
