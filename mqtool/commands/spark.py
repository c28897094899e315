"""``mqtool spark JOB``: the questions of other commands to stores that are too large for one machine."""

import collections
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._options import (
    body_option,
    output_option,
    queue_filter,
    range_options,
    require_a_log,
    require_log,
    tag_filter,
    tell_left_over,
    time_options,
    topic_filter,
)
from mqtool.commands._output import counted
from mqtool.commands._query import topics_of
from mqtool.commands._rows import message_columns, message_row
from mqtool.commands._spark import Into, Job, SharedPath, into_options, job_options
from mqtool.commands._streams import outlast_readers
from mqtool.commands.find import query_of, query_options
from mqtool.commands.rebuild import tell_built
from mqtool.commands.stats import NOUNS, columns_of, counts_of, missing, named, order_of
from mqtool.commands.verify import AHEAD, STYLES, sentence, status_of, summary
from mqtool.errors import NotFoundError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.store.stats import Selection

_MAX_SHOWN = 1000
_limit_option = click.option(
    "--limit", metavar="N", type=click.IntRange(0), default=_MAX_SHOWN, show_default=True,
    help="Show at most this many; --into writes all.",
)  # fmt: skip


@click.group(short_help="Process stores too large for one machine, on Spark.")
def command() -> None:
    """Process stores too large for one machine, on Spark: locally, or on a cluster.

    \b
      mqtool spark verify -s '/brokers/*/store'
      mqtool spark stats -s /mnt/store --by hour --master spark://host:7077

    Every executor must see the files of a store under the same path. Each job can also be run with spark-submit.
    """  # noqa: D301


@command.command("verify", short_help="Check stores and list what is wrong.")
@click.option(
    "--level", type=click.Choice(["quick", "full"]), default="full", show_default=True,
    help="quick: all files, but contents only of the last two segments.",
)  # fmt: skip
@into_options
@output_option
@job_options
def verify(level: str, job: Job) -> int:
    """Check every file of stores and list what is wrong, as `mqtool verify` does."""
    from mqtool.engine.repair.verify.store import Level
    from mqtool.spark.verify import finding_of, findings

    counts: collections.Counter[str] = collections.Counter()
    with job.session() as spark:
        frame = findings(spark, job.stores, Level(level), job.size_to_count(spark))
        if job.into is not None:
            frame = frame.persist()
            job.write(frame)
            counts.update({row["severity"]: row["count"] for row in frame.groupBy("severity").count().collect()})
        rows = [] if job.into is not None else frame.collect()  # no more than 100 of one code and store
    for row in sorted(rows, key=lambda row: row["store"]):
        finding = finding_of(row.asDict())
        counts[finding.severity] += 1
        values = job.named({"store": row["store"], **dataclasses.asdict(finding)})
        place = f"{row['store']}: " if "store" in values else ""
        job.output.line(values, place + sentence(finding), STYLES[finding.severity])
    job.tell_inferred()
    if any(store.open().is_packed for store in job.stores):
        job.output.remark("only the log of compressed copies is checked: unpack them to check queues and index")
    if counts["error"] or counts["warning"]:
        job.tell_may_be_live({row["store"] for row in rows if row["code"] in AHEAD})
    job.tell(summary(counts))
    return status_of(counts)


def _check_matched(matched: set[str], selection: "Selection") -> None:
    """Complain about a pattern that no message has, as `mqtool stats` does."""
    from mqtool.spark.stats import pattern_names

    for name, (field, pattern) in pattern_names(selection).items():
        if name not in matched:
            raise NotFoundError(f"no {NOUNS[field]} matches {pattern}")


def _topics_of(job: Job, patterns: tuple[str, ...]) -> list[frozenset[str] | None]:
    """Return for each store the topics that patterns select, None without a pattern.

    Raises:
        NotFoundError: a pattern selects none in any store.
    """
    chosen: list[frozenset[str]] = [frozenset()] * len(job.stores)
    for pattern in patterns:
        errors = []
        for number, store in enumerate(job.stores):
            try:
                chosen[number] |= topics_of(store.open(), (pattern,)) or frozenset()
            except NotFoundError as error:
                errors.append(error)
        if len(errors) == len(job.stores):
            raise errors[0]
    return [*chosen] if patterns else [None] * len(job.stores)


def _require_logs(job: Job) -> None:
    for store in job.stores:
        require_log(store.open())


@command.command("find", short_help="Find messages by key, trace id, tag, property, text or time.")
@query_options
@_limit_option
@click.option("--scan", is_flag=True, help="Search the log itself, without the index files.")
@body_option
@into_options
@output_option
@job_options
def find(
    limit: int,
    scan: bool,
    body: str,
    job: Job,
    **conditions: Any,
) -> int:
    """Find the messages that match every condition, as `mqtool find` does.

    A message is found by its keys and by its unique key, which is the id by which traces refer to it.
    """
    from mqtool.formats.message import message_of
    from mqtool.spark.find import messages, plan

    query = query_of(**conditions)
    _require_logs(job)
    queries = [
        (store, dataclasses.replace(query, topics=topics))
        for store, topics in zip(job.stores, _topics_of(job, conditions["topics"]), strict=True)
        if topics is None or topics
    ]
    planned = plan(queries, job.partition_size, not scan)
    job.total = planned.scan_size
    rows = []
    with job.session() as spark:
        frame, observed = messages(spark, planned.items)
        if not job.write(frame.drop("record", "position")):
            # Of limit(0) Spark makes a plan that reads nothing, and counts nothing.
            ordered = frame.select("store", "position", "record").orderBy("store", "position")
            rows = ordered.limit(max(1, limit)).collect()[:limit]
        count, unread, astray = (observed.get[name] or 0 for name in ("found", "unread", "astray"))
    job.output.columns = message_columns(job.output.width, body)
    for row in rows:
        message = message_of(bytes(row["record"]), row["position"])
        job.output.row(job.named({"store": row["store"], **message_row(message, body)}))
    for remark in planned.remarks:
        job.output.remark(remark)
    if astray:
        entries = "an index entry refers to a place" if astray == 1 else f"{astray:,} index entries refer to places"
        job.output.remark(f"{entries} without a sound message")
    if unread:
        places = "a place" if unread == 1 else f"{unread:,} places"
        job.output.remark(f"{places} of the log could not be read: see `mqtool spark verify`")
        job.tell_may_be_live()
    job.tell_holes(planned.holes)
    shown = f", {len(rows):,} shown: --limit is reached" if job.into is None and len(rows) < count else ""
    job.tell(f"{count:,} message{'s' * (count != 1)} found{shown}")
    return Status.DAMAGE if unread or astray or planned.holes else Status.OK


@command.command("stats", short_help="Count messages and bytes by topic, queue, tag, hour, size or producer.")
@click.option(
    "--by", type=click.Choice(["topic", "queue", "tag", "hour", "size", "host"]), default="topic", show_default=True,
    help="What to group by.",
)  # fmt: skip
@topic_filter
@queue_filter
@tag_filter
@time_options
@into_options
@output_option
@job_options
def stats(
    by: str,
    topics: tuple[str, ...],
    queues: tuple[str, ...],
    tags: tuple[str, ...],
    since: int | None,
    until: int | None,
    job: Job,
) -> int:
    """Count messages and bytes as `mqtool stats` does.

    By queue it also shows how many queue offsets are missing between the first and the last, and how many
    messages repeat the queue offset of another message in their queue.
    """
    from mqtool.engine.store.stats import HOUR_MS, KEYS, By, Count, Selection
    from mqtool.spark.stats import UNREAD, counts

    way = By(by)
    _require_logs(job)
    with job.session() as spark:
        selection = Selection(topics, queues, tags, since, until)
        frame = counts(spark, job.stores, way, selection, job.size_to_count(spark))
        if job.into is not None:
            frame = frame.persist()
        is_group = f"{KEYS[way][0]} is not null"
        rows = (frame if job.into is None else frame.where(f"not ({is_group})")).collect()
        _check_matched({name for row in rows for name in row["matched"] or ()}, selection)
        job.write(frame.where(is_group).drop(*UNREAD, "matched"))
    groups = {}
    unread: collections.Counter[str] = collections.Counter()
    total = Count()
    for row in rows:
        unread.update({name: row[name] or 0 for name in ("lost", "faulty", "noise")})
        if row["records"]:
            key = tuple(row[name] for name in KEYS[way])
            groups[key] = row, Count(*(row[field.name] for field in dataclasses.fields(Count)))
            total.add(groups[key][1])
    span = max(0, total.last_timestamp - total.first_timestamp)
    offsets = ("min_offset", "max_offset", "missing", "repeated") if way is By.QUEUE else ()
    job.output.columns = (*columns_of(by)[:3], *offsets, *columns_of(by)[3:])
    for key, (row, count) in sorted(groups.items(), key=lambda item: order_of(way, item[0], item[1][1])):
        more = {name: row[name] for name in offsets}
        job.output.row(named(way, key) | counts_of(count, HOUR_MS if way is By.HOUR else span) | more)
    for name, text in (
        ("lost", "places of the log hold no message that can be read"),
        ("faulty", "damaged records are left out"),
    ):
        if unread[name]:
            job.output.remark(f"{unread[name]:,} {text}")
    if unread["noise"]:
        job.output.remark("after the last message are bytes that are not a message")
    holes = job.holes(since, until)
    job.tell_holes(holes, missing)
    if any(unread.values()):
        job.tell_may_be_live()
    job.tell(f"{total.messages:,} messages counted" if job.into is None else "counted")
    if unread["lost"] or unread["faulty"] or holes:
        return Status.DAMAGE
    return Status.WARNINGS if unread["noise"] else Status.OK


@command.command("export", short_help="Write messages to Parquet by topic and date.")
@topic_filter
@range_options
@time_options
@click.option(
    "--into", type=Into(), metavar="DIR", required=True,
    help="The new folder to create, which all executors see, or a URL that Spark writes to.",
)  # fmt: skip
@output_option
@job_options
def export(
    topics: tuple[str, ...], start: int | None, stop: int | None, since: int | None, until: int | None, job: Job
) -> int:
    """Write messages to compressed Parquet files, in folders by topic and by store date (UTC).

    Files have the columns of `mqtool export`, and can be read by `mqtool import`. Damaged messages are left out.
    """
    from mqtool.spark.export import ExportSelection, run

    _require_logs(job)
    chosen = frozenset().union(*(names or () for names in _topics_of(job, topics))) if topics else None
    assert job.into is not None
    with job.session() as spark:
        done = run(spark, job.stores, job.into, ExportSelection(chosen, since, until, start, stop), job.partition_size)
    holes = job.holes(since, until, start=start or 0, stop=stop)
    job.tell_holes(holes)
    if done.damaged > len(holes):
        job.output.remark(f"{done.damaged - len(holes):,} damaged records and places are left out")
        job.tell_may_be_live()
    job.tell(f"{done.messages:,} messages of {done.size:,} bytes exported")
    return Status.DAMAGE if done.damaged else Status.OK


@command.command("offsets", short_help="Show the progress of consumer groups, from files and log.")
@_limit_option
@into_options
@output_option
@job_options
def offsets(limit: int, job: Job) -> int:
    """Show the progress of consumer groups in each queue: the saved offsets, and what the log shows.

    The log shows messages that were sent back, that went to the dead letters, that pop consumers took or
    acknowledged, and ended transactions. That is a lower bound: what was consumed at the first attempt leaves no
    trace. Where no offset is saved, consumer_offset is that bound. Exits with status 3 if saved offsets cannot be
    read.
    """
    from mqtool.spark.offsets import progress

    rows = []
    with job.session() as spark:
        frame, observed = progress(spark, job.stores, job.partition_size)
        if not job.write(frame):
            rows = frame.orderBy("store", "group", "topic", "queue_id").limit(limit + 1).collect()
        unread, left_out = observed.get["unread"], observed.get["left_out"]
    is_limited, rows = len(rows) > limit, rows[:limit]
    job.output.columns = (
        "group", "topic", "queue_id", "consumer_offset", "lag", "saved", "at_least", "min_offset", "max_offset",
    )  # fmt: skip
    for row in rows:
        job.output.row(job.named(row.asDict()))
    if without := sum(row["lag"] is None for row in rows):
        job.output.remark(
            f"{without:,} have no lag: their queue is missing or cannot be read (RocksDB: with mqtool[rocksdb])"
        )
    if left_out:
        job.output.remark(f"left out: the saved offsets of {counted(left_out, 'name')} without a topic or a group")
    if unread:
        tables = "a table of saved offsets" if unread == 1 else f"{unread:,} tables of saved offsets"
        job.output.remark(f"{tables} cannot be read: for its groups only what the log shows is listed")
    job.tell(f"{len(rows):,} groups and queues" + ("; --limit is reached" if is_limited else ""))
    return Status.DAMAGE if unread else Status.OK


@command.command("compare", short_help="List messages that are in only one of two stores.")
@click.option(
    "--with", "other", required=True, metavar="DIR", help="The other store: for example a slave's.",
)  # fmt: skip
@click.option(
    "--by", type=click.Choice(["key", "offset"]), default="key", show_default=True,
    help="What identifies a message; offset: for a master and its slave, byte for byte.",
)  # fmt: skip
@_limit_option
@into_options
@output_option
@job_options
def compare(other: str, by: str, limit: int, job: Job) -> int:
    """List messages that are in only one of two stores: a master and its slave, before and after a move.

    By key, as `mqtool compare --by key` does: messages are counted, so one that is twice in one store and once in
    the other is listed too. Exits with status 3 if there are any, 4 if unreadable parts were not compared.
    """
    from mqtool.spark.compare import by_key, by_offset

    others = job.finder.find((other,))
    if len(job.stores) != 1 or len(others) != 1:
        raise UsageError("two stores are compared: give one with -s and the other with --with")
    stores = job.stores[0], others[0]
    require_a_log([store.open() for store in stores])
    job.total += others[0].open().commit_log.total_size
    seen: dict[str, int] = {}
    rows = []
    with job.session() as spark:
        if by == "key":
            frame, observed = by_key(spark, *stores, job.partition_size)
        else:
            frame, observed = by_offset(spark, *stores, job.size_to_count(spark))
        if not job.write(frame):
            rows = frame.orderBy("side", "physical_offset").limit(max(1, limit)).collect()[:limit]
        for observation in observed:
            seen |= {name: count or 0 for name, count in observation.get.items()}
    numbers = ("left_count", "right_count") if by == "key" else ()
    job.output.columns = (
        "side", *numbers, "physical_offset", "topic", "queue_id", "queue_offset", "store_time", "unique_key",
    )  # fmt: skip
    for row in rows:
        job.output.row(row.asDict())
    for side in ("left", "right"):
        if unread := seen[f"{side}_unread"]:
            places = "a place" if unread == 1 else f"{unread:,} places"
            job.output.remark(f"{side}: {places} of the log cannot be read and were not compared")
    differences = {"differ": seen["differs"], "only left": seen["only_left"], "only right": seen["only_right"]}
    parts = [f"{count:,} {noun}" for noun, count in differences.items() if count]
    is_unread = bool(seen["left_unread"] or seen["right_unread"])
    same = "both stores hold the same messages" if not is_unread else "what can be read is the same in both stores"
    if by == "key":
        same = f"left has {seen['left']:,} messages, right {seen['right']:,}: the same messages, equally often"
    job.tell(", ".join(parts) or same)
    if parts:
        return Status.DAMAGE
    return Status.WARNINGS if is_unread else Status.OK


@command.command("rebuild", short_help="Rebuild queues and index from the commit log.")
@click.argument("target", type=click.Choice(["queues", "index", "all"]))
@topic_filter
@click.option(
    "--into", type=SharedPath(), metavar="DIR", required=True,
    help="The new folder to create, which all executors see, or a URL in object storage or HDFS.",
)  # fmt: skip
@click.option(
    "--for", "version", type=click.Choice(["4.9", "5.3", "5.5"]),
    help="The broker that will use the index: from 5.4 on it has entries by tag. Default: determined from the store.",
)  # fmt: skip
@output_option
@job_options
def rebuild(target: str, topics: tuple[str, ...], version: str | None, job: Job) -> int:
    """Rebuild queues and index from the commit log, byte for byte what `mqtool rebuild --into` writes."""
    from mqtool.engine.repair.rebuild.plan import losses_of, refuse_log
    from mqtool.engine.repair.salvage.new_store import refuse_used
    from mqtool.spark.rebuild import run

    outlast_readers()
    if len(job.stores) != 1:
        raise UsageError("one store is rebuilt at a time: give one with -s")
    if topics and target != "queues":
        raise UsageError("--topic applies to `rebuild queues` only: everything else covers the whole store")
    (store,) = job.stores
    chosen = topics_of(store.open(), topics)
    assert job.into is not None
    if isinstance(job.into, Path):
        refuse_used(job.into)
    refuse_log(store.open())
    if isinstance(job.into, Path):
        tell_left_over(job.into, job.output)
    with job.session() as spark:
        built = run(
            spark, store, job.into, queues=target != "index", index=target != "queues",
            topics=None if chosen is None else sorted(chosen), version=version, partition_size=job.partition_size,
        )  # fmt: skip
    losses = losses_of(store.open(), built, chosen) if target != "index" else []
    return tell_built(built, job.into, job.output, losses)
