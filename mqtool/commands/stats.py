"""``mqtool stats``."""

from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._options import (
    jobs_option,
    live_option,
    matching,
    output_option,
    packed_store_options,
    queue_filter,
    range_options,
    require_log,
    tag_filter,
    tell_holes,
    tell_may_be_live,
    time_options,
    topic_filter,
)
from mqtool.commands._output import Output, counted, iso_time, progress
from mqtool.commands._rows import topic_kind
from mqtool.errors import Status

if TYPE_CHECKING:
    from mqtool.engine.store.holes import LogHole
    from mqtool.engine.store.reader import StoreReader
    from mqtool.engine.store.stats import By, Count, Key, Selection, Stats

_COUNTS = ("message_count", "size", "body_size", "messages_per_second", "bytes_per_second")
_TIMES = ("first_store_time", "last_store_time", "record_count")
_COLUMNS = {
    "topic": ("topic", "kind"),
    "queue": ("topic", "queue_id", "kind"),
    "tag": ("topic", "tags", "kind"),
    "hour": ("hour_time",),
    "size": ("body_sizes",),
    "host": ("born_address",),
}
_LISTED_GAPS = 10
NOUNS = {
    "topics": "topic in this part of the log",
    "queues": "queue id in this part of the log",
    "tags": "tag of the chosen messages",
}
"""What the patterns of a selection are to match."""


@click.command(short_help="Count messages and bytes by topic, queue, tag, hour, size or producer.")
@click.option("--by", type=click.Choice(list(_COLUMNS)), default="topic", show_default=True, help="What to group by.")
@topic_filter
@queue_filter
@tag_filter
@range_options
@time_options
@jobs_option
@live_option
@packed_store_options
@output_option
def command(
    by: str,
    topics: tuple[str, ...],
    queues: tuple[str, ...],
    tags: tuple[str, ...],
    start: int | None,
    stop: int | None,
    since: int | None,
    until: int | None,
    jobs: int,
    store: "StoreReader",
    output: Output,
) -> int:
    """Count messages and bytes by topic, queue, tag, hour, size of body or host of the producer.

    \b
      mqtool stats --by queue --topic 'Order*'
      mqtool stats --by host --since 2h -o csv

    Counts come from the log, not from the queues, so every counted message exists. --from and --to are physical
    offsets. Rates are over the time from the first counted message to the last, by hour over the hour. A record
    that holds a batch counts as its messages; placeholders that a repair wrote for lost ones do not count. Topics that
    brokers create by themselves have a kind other than "user". Exits with status 3 if part of the log could
    not be read, 4 if only bytes after the last message are no record.
    """  # noqa: D301
    from mqtool.engine.store.stats import By, Selection, count_messages

    require_log(store)
    first, last = store.range_of_time(since, until)
    first, last = max(first, start or 0), last if stop is None else min(last, stop)
    total = sum(
        max(0, min(segment.end_offset, last) - max(segment.start_offset, first))
        for segment in store.commit_log.segments
    )
    output.tell_compiling(total)
    done = 0
    try:
        with progress(total, "stats") as advance:

            def told(now: int) -> None:
                nonlocal done
                done = now
                advance(now)

            selection = Selection(topics, queues, tags, since, until)
            stats = count_messages(store, By(by), selection, first, last, store.threads_at_most(jobs), told)
    except KeyboardInterrupt:
        output.remark(f"interrupted after {done:,} of {total:,} bytes of log")
        raise
    _check_patterns(stats, selection)
    _write(stats, output)
    _remark(store, stats, output)
    if stats.gaps or stats.holes or stats.tally.faulty:
        return Status.DAMAGE
    return Status.WARNINGS if stats.noise and not store.is_live else Status.OK


def _check_patterns(stats: "Stats", selection: "Selection") -> None:
    """Complain about a pattern that no message has."""
    for field, noun in NOUNS.items():
        matching(getattr(selection, field), getattr(stats.tally, field) - {""}, noun)


def _write(stats: "Stats", output: Output) -> None:
    from mqtool.engine.store.stats import HOUR_MS, By

    by, total = stats.tally.by, stats.tally.total()
    span = max(0, total.last_timestamp - total.first_timestamp)
    output.columns = columns_of(by)
    for key, count in sorted(stats.tally.groups.items(), key=lambda item: order_of(by, *item)):
        output.row(named(by, key) | counts_of(count, HOUR_MS if by is By.HOUR else span))
    if output.is_table and len(stats.tally.groups) > 1:
        row = dict.fromkeys(_COLUMNS[by]) | {_COLUMNS[by][0]: "total"}
        output.row(row | counts_of(total, span))


def columns_of(by: str) -> tuple[str, ...]:
    """Return what a table shows."""
    return (*_COLUMNS[by], *_COUNTS, *_TIMES)


def order_of(by: "By", key: "Key", count: "Count") -> tuple[Any, ...]:
    """Return what groups are sorted by."""
    from mqtool.engine.store.stats import By

    if by is By.TAG:
        return key[0], -count.messages, key[1] or ""
    return (-count.messages, key) if by in (By.TOPIC, By.HOST) else key


def named(by: "By", key: "Key") -> dict[str, Any]:
    """Return the fields that name a group."""
    from mqtool.engine.store.stats import KEYS, SIZE_CLASSES, By

    named: dict[str, Any] = dict(zip(KEYS[by], key, strict=True))
    if by is By.SIZE:
        number = SIZE_CLASSES.index(key[0])
        end = SIZE_CLASSES[number + 1] if number + 1 < len(SIZE_CLASSES) else None
        named = {"body_sizes": _size_class(key[0], end), **named, "body_size_to": end}
    if "topic" in named:
        named["kind"] = topic_kind(named["topic"])
    return named


def _size_class(start: int, end: int | None) -> str:
    return f"from {_short(start)}" if end is None else f"{_short(start)} to {_short(end)}"


def _short(size: int) -> str:
    for unit, text in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {text}"
    return f"{size} B"


def counts_of(count: "Count", span_ms: int) -> dict[str, Any]:
    """Return the fields that tell of a group, whose messages were stored in so many milliseconds."""
    rates = (round(number * 1000 / span_ms, 3) if span_ms else None for number in (count.messages, count.size))
    return {
        "message_count": count.messages,
        "record_count": count.records,
        "size": count.size,
        "body_size": count.body_size,
        **dict(zip(("messages_per_second", "bytes_per_second"), rates, strict=True)),
        "first_store_timestamp": count.first_timestamp if count.records else None,
        "last_store_timestamp": count.last_timestamp if count.records else None,
    }


def missing(hole: "LogHole") -> str:
    """Return the sentence for a hole of a log."""
    return f"{hole.size:,} bytes of the log are missing from offset {hole.start_offset:,} on"


def _remark(store: "StoreReader", stats: "Stats", output: Output) -> None:
    for gap in stats.gaps[:_LISTED_GAPS]:
        place = f"{store.paths.relative(gap.segment.path)}@{gap.start}"
        output.remark(f"{place}: {gap.end - gap.start:,} bytes hold no message that can be read")
    if len(stats.gaps) > _LISTED_GAPS:
        output.remark(f"{len(stats.gaps) - _LISTED_GAPS:,} more such gaps")
    tell_holes(map(missing, stats.holes), output)
    if stats.noise and not store.is_live:
        place = f"{store.paths.relative(stats.noise.segment.path)}@{stats.noise.start}"
        output.remark(f"{place}: after the last message are bytes that are not a message")
    if stats.noise or stats.gaps or stats.tally.faulty:
        tell_may_be_live(store, output)
    if stats.tally.faulty:
        output.remark(
            f"{counted(stats.tally.faulty, 'damaged record')} left out: sizes do not add up, or the topic is damaged"
        )
    if count := stats.tally.placeholders:
        text = "placeholder of a lost message is" if count == 1 else "placeholders of lost messages are"
        output.remark(f"{count:,} {text} not counted")
    for remark in store.remarks:
        output.remark(remark)
    total = stats.tally.total()
    sentence = f"{total.messages:,} messages in {total.size:,} bytes"
    if total.records:
        sentence += f", stored from {iso_time(total.first_timestamp)} to {iso_time(total.last_timestamp)}"
    output.remark(sentence)
