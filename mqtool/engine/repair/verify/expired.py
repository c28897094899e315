"""Whether the beginning of the log was deleted by retention, or by accident.

Cost: linear in the number of files.
"""

from collections.abc import Iterator

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import consume_queue


def check_start(reader: StoreReader) -> Iterator[Finding]:
    """Check a log that does not begin at 0: retention also deletes files of queues and index.

    The last file of each queue and of the index, which a broker keeps longer, shows nothing.
    """
    log = reader.commit_log
    start = log.min_offset
    if not log.segments or not start or reader.is_live:
        return
    queues = 0
    for queue in reader.consume_queues.values():
        if len(queue.hold().segments) > 1:
            segment = queue.segments[0]
            size = consume_queue.UNIT_SIZE
            raw = segment.read(segment.size - size, size) if segment.size >= size else bytes(size)
            unit = consume_queue.UNIT.schema.parse(raw)
            queues += 0 < unit.size < consume_queue.PRE_BLANK_SIZE and unit.physical_offset < start
    headers = [file.header for file in reader.index_files[:-1]]
    files = sum(header.entry_count > 1 and header.end_physical_offset < start for header in headers)
    if queues or files:
        text = f"the log starts at {start:,}; files of {queues:,} queues and {files:,} of the index are older"
        yield finding(
            "LOG-START",
            f"{text}: retention would have deleted them",
            file=reader.paths.relative(log.segments[0].path),
            offset=0,
            physical_offset=start,
        )
