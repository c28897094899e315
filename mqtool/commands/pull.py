"""``mqtool pull``."""

from typing import TYPE_CHECKING

import click

from mqtool.commands._options import TIME, body_option, limit_option, matching, output_option, store_options
from mqtool.commands._output import Output
from mqtool.commands._rows import message_row
from mqtool.errors import MqtoolError, NotFoundError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.store.pull import Fault, PullResult, Subscription
    from mqtool.engine.store.queue_view import QueueView
    from mqtool.engine.store.reader import StoreReader

_PAGE = 256
_LISTED_FAULTS = 10
_COLUMNS = (
    "queue_offset", "store_time", "tags", "body", "keys", "size", "physical_offset", "unique_key", "born_host",
    "reconsume_times", "message_id",
)  # fmt: skip


@click.command(short_help="Read messages of one queue as a consumer would.")
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@click.option(
    "--queue", "queue_id", type=click.IntRange(0), metavar="ID", help="The queue. Default: the only one of the topic."
)
@click.option(
    "--offset", type=click.IntRange(0), metavar="N", help="Queue offset to start at. Default: the first there is."
)
@click.option("--since", type=TIME, help="Start at the offset that a broker finds for this time.")
@click.option(
    "--as-broker",
    "version",
    metavar="VERSION",
    default="5",
    show_default=True,
    help="Whose way to find a time: 4.x takes file times and the nearest message, 5.x the first at the time or later.",
)
@limit_option
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="Only messages with this tag; repeats: any of them.")
@click.option("--filter", "expression", metavar="TAGS", help="A consumer's tag expression: 'TagA || TagB'.")
@click.option("--sql", metavar="SQL92", help="Only messages whose properties match: \"a > 5 AND color = 'red'\".")
@body_option
@store_options
@output_option
def command(
    topic: str,
    queue_id: int | None,
    offset: int | None,
    since: int | None,
    version: str,
    limit: int | None,
    tags: tuple[str, ...],
    expression: str | None,
    sql: str | None,
    body: str,
    store: "StoreReader",
    output: Output,
) -> int:
    """Read messages of one queue in order, as a consumer would get them.

    \b
      mqtool pull --topic Orders --queue 0 --limit 10
      mqtool pull --topic Orders --queue 0 --since 2h --filter 'TagA || TagB'
      mqtool pull --topic Orders --queue 0 --sql "price > 5 AND color = 'red'"

    A last remark tells the status a client would see (FOUND, NO_NEW_MSG, NO_MATCHED_MSG or OFFSET_ILLEGAL), and the
    offset to go on at. Tags are matched as a broker and its client do, SQL92 filters as RocketMQ reads them. Without
    --limit all messages up to the end of the queue are read. Ends with status 3 when a message could not be read.
    """  # noqa: D301
    from mqtool.engine.store.pull import PullStatus, pull
    from mqtool.engine.store.queue_view import BatchQueueView, open_queue

    if store.paths.single:
        raise NotFoundError(f"{store.paths.single} holds no queues: give the store that it belongs to")
    subscription = _subscription(tags, expression, sql, output)
    topic, queue_id = _queue(store, topic, queue_id)
    queue = open_queue(store, topic, queue_id)
    at = _start(queue, offset, since, version)
    if subscription.tags and subscription.tags.codes and isinstance(queue, BatchQueueView):
        output.remark("a broker knows no tags of messages in an inner batch: it passes over all of them")
    output.columns = _COLUMNS
    count, lost, faults = 0, 0, 0
    while True:
        room = _PAGE if limit is None else min(_PAGE, limit - count)
        result = pull(queue, store, at, room, subscription)
        for message in result.messages:
            output.row(message_row(message, body))
        for fault in result.faults:
            faults += 1
            lost += fault.lost
            if faults <= _LISTED_FAULTS:
                output.remark(_fault(fault))
        count += len(result.messages)
        is_over = result.status not in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG)
        if is_over or count == limit or result.next_offset >= result.max_offset:
            break
        at = result.next_offset
    if faults > _LISTED_FAULTS:
        output.remark(f"{faults - _LISTED_FAULTS:,} more units like this; `mqtool verify` lists them")
    for remark in store.remarks:
        output.remark(remark)
    output.remark(_summary(result, count))
    return Status.DAMAGE if lost else Status.OK


def _subscription(tags: tuple[str, ...], expression: str | None, sql: str | None, output: Output) -> "Subscription":
    from mqtool.engine.store.pull import Subscription
    from mqtool.formats.filters import compile_sql92, parse_tags

    if sql is not None and (tags or expression is not None):
        raise UsageError("a subscription has tags or an SQL92 filter, not both: leave out --sql, or --tag and --filter")
    if sql is not None:
        compiled = compile_sql92(sql)
        ignored = compiled.ignored.strip()
        if ignored:
            output.remark(f"RocketMQ leaves the end of this filter unread, and so does mqtool: {ignored}")
        return Subscription(sql92=compiled)
    if tags or expression is not None:
        return Subscription(tags=parse_tags("||".join((*tags, *([expression] if expression is not None else ())))))
    return Subscription()


def _queue(store: "StoreReader", topic: str, queue_id: int | None) -> tuple[str, int]:
    """Return topic and queue id, those of a queue never written to included."""
    from mqtool.engine.store.queue_view import queue_keys

    keys = queue_keys(store)
    counts = _configured(store)
    found = matching((topic,), {name for name, _ in keys} | counts.keys(), "topic")
    if len(found) > 1:
        raise UsageError(f"{topic} names {len(found):,} topics: pull reads one")
    topic = found.pop()
    ids = sorted({number for name, number in keys if name == topic} | set(range(counts.get(topic, 0))))
    listed = ", ".join(map(str, ids[:20])) + (", .." if len(ids) > 20 else "")
    if queue_id is None:
        if len(ids) != 1:
            raise UsageError(f"{topic} has {len(ids):,} queues ({listed}): name one with --queue")
        return topic, ids[0]
    if queue_id not in ids:
        raise NotFoundError(f"{topic} has no queue {queue_id}; it has {listed or 'none'}")
    return topic, queue_id


def _configured(store: "StoreReader") -> dict[str, int]:
    """Return how many queues each topic may be read from, as far as the store's config tells."""
    from mqtool.formats.config_tables import topics

    try:
        table = store.config_table("topics.json")
        return {name: one.read_queue_count for name, one in topics(table).items()} if table else {}
    except MqtoolError:
        return {}


def _start(queue: "QueueView | None", offset: int | None, since: int | None, version: str) -> int:
    from mqtool.engine.store.queue_view import FileQueueView

    if offset is not None and since is not None:
        raise UsageError("--offset and --since both say where to start: give one")
    major = version.partition(".")[0]
    if major not in ("4", "5"):
        raise UsageError(f"--as-broker {version}: give a version of RocketMQ, 4.x or 5.x")
    if offset is not None or queue is None:
        return offset or 0
    if since is None:
        return queue.min_offset
    if major == "4" and isinstance(queue, FileQueueView):
        return queue.offset_at_4(since)
    return queue.offset_at(since)


def _fault(fault: "Fault") -> str:
    what = "no message can be read" if fault.lost else "read all the same"
    return f"queue offset {fault.queue_offset:,}: {fault.reason}; {what}"


def _summary(result: "PullResult", count: int) -> str:
    from mqtool.engine.store.pull import PullStatus

    status = PullStatus.FOUND if count else result.status
    said = f"{status}: {count:,} message{'s' if count != 1 else ''}"
    if status is PullStatus.OFFSET_ILLEGAL:
        said = f"{status} ({result.store_status}): no message at offset {result.offset:,}"
    return f"{said}, next offset {result.next_offset:,}, min {result.min_offset:,}, max {result.max_offset:,}"
