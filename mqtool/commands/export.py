"""``mqtool export``."""

import contextlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqtool.commands._options import (
    NewPath,
    key_filter,
    limit_option,
    live_option,
    queue_filter,
    range_options,
    require_log,
    store_options,
    tag_filter,
    tell_holes,
    tell_may_be_live,
    time_options,
    topic_filter,
)
from mqtool.commands._output import Output, progress
from mqtool.commands._query import topics_of
from mqtool.errors import MqtoolError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.repair.salvage.transfer import ExportResult, RowSink
    from mqtool.engine.store.reader import StoreReader
    from mqtool.engine.store.search import Search

_LISTED = 10


@click.command(short_help="Write messages to JSON lines or Parquet.")
@click.option(
    "--into", type=NewPath(), metavar="FILE",
    help="The file to create. Default: standard output, for JSON lines.",
)  # fmt: skip
@click.option(
    "-o", "--output", "form", type=click.Choice(["jsonl", "parquet"]),
    help="Default: by the extension of FILE, else jsonl.",
)  # fmt: skip
@topic_filter
@queue_filter
@tag_filter
@key_filter
@range_options
@time_options
@limit_option
@live_option
@store_options
def command(
    into: Path | None,
    form: str | None,
    topics: tuple[str, ...],
    queues: tuple[str, ...],
    tags: tuple[str, ...],
    keys: tuple[str, ...],
    start: int | None,
    stop: int | None,
    since: int | None,
    until: int | None,
    limit: int | None,
    store: "StoreReader",
) -> int:
    """Write messages with everything that `mqtool import` needs to store them again, in the order of the log.

    \b
      mqtool export --topic 'Order*' --since 2d --into orders.parquet

    Each row has all fields of the record, the body as stored and the raw properties (in JSON both in base64).
    Messages whose checks fail are left out, and the exit status is 3; `mqtool salvage` recovers more messages from
    a damaged store.
    """  # noqa: D301
    from mqtool.engine.repair.salvage.transfer import export, format_of
    from mqtool.engine.store.search import Query, Search

    require_log(store)
    if into and not store.paths.single and into.resolve().is_relative_to(store.root.resolve()):
        raise UsageError(f"{into} is inside the store, which is only read: choose another folder")
    form = format_of(form, into)
    output = Output("jsonl")
    query = Query(
        keys=keys,
        tags=tags,
        topics=topics_of(store, topics),
        queues=queues,
        since=since,
        until=until,
        start_offset=start or 0,
        stop_offset=stop,
        rolled_back=True,
    )
    search = Search(store, query, use_index=False)
    output.tell_compiling(search.scan_size)
    with _opened(form, into) as sink, progress(search.scan_size, "export") as advance:
        done = export(itertools.islice(search.messages(advance), limit), sink, store.record_at)
    lost_at_end = _lost_at_end(store, search) if limit is None else None
    return _tell(store, search, done, lost_at_end, output)


def _lost_at_end(store: "StoreReader", search: "Search") -> int | None:
    """Return the last address beyond the end of the log that a queue leads to, None if there is none."""
    from mqtool.engine.store.queue_view import open_queue, queue_keys

    if store.paths.is_part or store.is_live or search.query.stop_offset is not None or search.query.until is not None:
        return None
    newest = -1
    for key in queue_keys(store):
        with contextlib.suppress(MqtoolError):
            queue = open_queue(store, *key)
            newest = max(newest, (queue.newest() if queue else None) or -1)
    return newest if newest >= store.commit_log.end_offset else None


@contextlib.contextmanager
def _opened(form: str, into: Path | None) -> "Iterator[RowSink]":
    from mqtool.engine.repair.salvage.transfer import JsonLines, Parquet, writing_file
    from mqtool.engine.store.disk import Disk

    if into is None:
        yield JsonLines(sys.stdout.buffer.write)
        return
    with writing_file(Disk(), into) as file:
        yield Parquet(file) if form == "parquet" else JsonLines(file.write)


def _tell(store: "StoreReader", search: "Search", done: "ExportResult", lost_at_end: int | None, output: Output) -> int:
    for remark in store.remarks:
        output.remark(remark)
    for address in done.damaged[:_LISTED]:
        output.remark(f"the message at {address:,} is left out: its checks fail")
    if len(done.damaged) > _LISTED:
        output.remark(f"{len(done.damaged) - _LISTED:,} more are left out")
    for address in done.doubtful[:_LISTED]:
        output.remark(
            f"the message at {address:,} contradicts its CRC property while body and topic are right: it is exported, "
            "but times, hosts, keys or tags may be damaged"
        )
    if len(done.doubtful) > _LISTED:
        output.remark(f"{len(done.doubtful) - _LISTED:,} more like this")
    if search.faulty_count:
        output.remark(
            f"{search.faulty_count:,} records are left out: their sizes do not add up, or their topic is damaged"
        )
    for gap in search.gaps[:_LISTED]:
        output.remark(f"{gap.end - gap.start:,} bytes at {gap.start_offset:,} are skipped: no record is there")
    tell_holes(map(str, search.holes), output)
    if lost_at_end is not None:
        output.remark(
            f"queues lead up to {lost_at_end:,}, beyond the end of the log: messages are lost; `mqtool verify` lists "
            "the places"
        )
    if done.damaged or search.faulty_count or search.gaps:
        tell_may_be_live(store, output)
    output.remark(f"{done.messages:,} messages exported")
    is_damaged = (
        done.damaged or done.doubtful or search.faulty_count or search.gaps or search.holes or lost_at_end is not None
    )
    return Status.DAMAGE if is_damaged else Status.OK
