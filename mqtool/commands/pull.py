"""``mqtool pull``."""

from typing import TYPE_CHECKING, NamedTuple

import click

from mqtool.commands._brokers import Brokers
from mqtool.commands._completion import TOPIC_NAME
from mqtool.commands._options import TIME, limit_option, matching, message_options, output_option
from mqtool.commands._output import Output
from mqtool.commands._rows import message_row
from mqtool.commands._wire import source_options
from mqtool.errors import MqtoolError, NotFoundError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.client.calls import PulledRecords
    from mqtool.engine.client_runtime.wire import Wire
    from mqtool.engine.store.pull import MessageFilter, StorePullResult, StoreStatus, UnreadableUnit
    from mqtool.engine.store.queue_view import QueueView
    from mqtool.engine.store.reader import StoreReader
    from mqtool.formats.bodies import MessageQueue, TopicRoute
    from mqtool.formats.message import Message

_PAGE = 256
_LISTED_FAULTS = 10
_COLUMNS = (
    "queue_offset", "store_time", "tags", "body", "keys", "size", "physical_offset", "unique_key", "born_host",
    "reconsume_times", "message_id",
)  # fmt: skip


@click.command(short_help="Read messages of one queue as a consumer would.")
@click.option("--topic", required=True, type=TOPIC_NAME, metavar="NAME", help="The topic.")
@click.option(
    "--queue", "queue_id", type=click.IntRange(0), metavar="ID", help="The queue. Default: the only one of the topic."
)
@click.option("--offset", type=click.IntRange(0), metavar="N", help="Queue offset to start at. Default: the first one.")
@click.option("--since", type=TIME, help="Start at the offset that a broker finds for this time.")
@click.option(
    "--as-broker",
    "version",
    metavar="VERSION",
    default="5",
    show_default=True,
    help="How to find a time in a store: 4.x uses file times and the nearest message, 5.x the first message at that "
    "time or later.",
)
@click.option("--broker", "broker_name", metavar="NAME", help="The broker, if several have the queue.")
@limit_option
@click.option(
    "--tag", "tags", multiple=True, metavar="NAME", help="Only messages with this tag; repeatable, matches any."
)
@click.option("--filter", "expression", metavar="TAGS", help="A consumer's tag expression: 'TagA || TagB'.")
@click.option("--sql", metavar="SQL92", help="Only messages whose properties match: \"a > 5 AND color = 'red'\".")
@message_options
@source_options
@output_option
def command(
    topic: str,
    queue_id: int | None,
    offset: int | None,
    since: int | None,
    version: str,
    broker_name: str | None,
    limit: int | None,
    tags: tuple[str, ...],
    expression: str | None,
    sql: str | None,
    body: str,
    source: "Brokers | StoreReader",
    output: Output,
) -> int:
    """Read messages of one queue in order, as a consumer would get them.

    \b
      mqtool pull --topic Orders --queue 0 --limit 10
      mqtool pull --topic Orders --queue 0 --since 2h --filter 'TagA || TagB'
      mqtool pull --topic Orders --queue 0 --sql "price > 5 AND color = 'red'"
      mqtool pull -n localhost:9876 --topic Orders --queue 0 --offset 17

    A final remark gives the status a client would see (FOUND, NO_NEW_MSG, NO_MATCHED_MSG or OFFSET_ILLEGAL), and
    the offset to continue at. Tags are matched as a broker and its client match them, SQL92 filters as RocketMQ
    parses them. Without --limit all messages up to the end of the queue are read. Exits with status 3 if a
    message could not be read.
    """  # noqa: D301
    start = _Start(offset, since, version)
    start.check()
    subscription = _subscription(tags, expression, sql, output)
    output.columns, output.always = _COLUMNS, ("body", "keys")
    if isinstance(source, Brokers):
        name = (topic, queue_id, broker_name)
        return source.run(lambda wire: _pull_from_broker(wire, name, start, limit, subscription, body, output))
    if broker_name is not None:
        raise UsageError("--broker selects one of several brokers, but a store belongs to only one: leave it out")
    return _pull_from_store(source, topic, queue_id, start, limit, subscription, body, output)


class _Start(NamedTuple):
    """Where to start: at the first offset there is unless one of them says otherwise."""

    offset: int | None
    since: int | None
    version: str  # of the broker whose way to find a time is meant

    def check(self) -> None:
        """Refuse what cannot be meant; raises ``UsageError``."""
        if self.offset is not None and self.since is not None:
            raise UsageError("--offset and --since are mutually exclusive: both say where to start")
        if self.major not in ("4", "5"):
            raise UsageError(f"--as-broker {self.version}: give a RocketMQ version, 4.x or 5.x")

    @property
    def major(self) -> str:
        """The first part of the version."""
        return self.version.partition(".")[0]


# From a store


def _pull_from_store(
    store: "StoreReader",
    topic: str,
    queue_id: int | None,
    start: _Start,
    limit: int | None,
    subscription: "MessageFilter",
    body: str,
    output: Output,
) -> int:
    from mqtool.engine.store.pull import pull
    from mqtool.engine.store.queue_view import BatchQueueView, open_queue
    from mqtool.formats.codes import PullStatus

    if store.paths.is_part:
        where = store.paths.single or store.root
        raise NotFoundError(f"{where} holds no queues: give the store that it belongs to")
    topic, queue_id = _queue(store, topic, queue_id)
    queue = open_queue(store, topic, queue_id)
    at = _start(queue, start)
    if subscription.tags and subscription.tags.codes and isinstance(queue, BatchQueueView):
        output.remark("a broker does not know the tags of messages in an inner batch: it skips all of them")
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


def _subscription(tags: tuple[str, ...], expression: str | None, sql: str | None, output: Output) -> "MessageFilter":
    from mqtool.engine.store.pull import MessageFilter
    from mqtool.formats.filters import compile_sql92, parse_tags

    if sql is not None and (tags or expression is not None):
        raise UsageError("a subscription has tags or an SQL92 filter, not both: leave out --sql, or --tag and --filter")
    if sql is not None:
        compiled = compile_sql92(sql)
        ignored = compiled.ignored.strip()
        if ignored:
            output.remark(f"RocketMQ ignores the end of this filter, and so does mqtool: {ignored}")
        return MessageFilter(sql92=compiled)
    if tags or expression is not None:
        return MessageFilter(tags=parse_tags("||".join((*tags, *([expression] if expression is not None else ())))))
    return MessageFilter()


def _queue(store: "StoreReader", topic: str, queue_id: int | None) -> tuple[str, int]:
    """Return topic and queue id, those of a queue never written to included."""
    from mqtool.engine.store.queue_view import queue_keys

    keys = queue_keys(store)
    counts = _configured(store)
    matches = matching((topic,), {name for name, _ in keys} | counts.keys(), "topic")
    if len(matches) > 1:
        raise UsageError(f"{topic} matches {len(matches):,} topics: pull reads only one")
    topic = matches.pop()
    ids = sorted({number for name, number in keys if name == topic} | set(range(counts.get(topic, 0))))
    return topic, _queue_id(topic, ids, queue_id)


def _queue_id(topic: str, ids: list[int], queue_id: int | None) -> int:
    """Return the queue that is meant: the only one where none is named."""
    listed = ", ".join(map(str, ids[:20])) + (", .." if len(ids) > 20 else "")
    if queue_id is None:
        if len(ids) != 1:
            raise UsageError(f"{topic} has {len(ids):,} queues ({listed}): choose one with --queue")
        return ids[0]
    if queue_id not in ids:
        raise NotFoundError(f"{topic} has no queue {queue_id}; it has {listed or 'none'}")
    return queue_id


def _configured(store: "StoreReader") -> dict[str, int]:
    """Return how many queues each topic may be read from, as far as the store's config tells."""
    from mqtool.formats.config_tables import topics

    try:
        table = store.config_table("topics.json")
        return {name: topic_config.read_queue_count for name, topic_config in topics(table).items()} if table else {}
    except MqtoolError:
        return {}


def _start(queue: "QueueView | None", start: _Start) -> int:
    from mqtool.engine.store.queue_view import FileQueueView

    if start.offset is not None or queue is None:
        return start.offset or 0
    if start.since is None:
        return queue.min_offset
    if start.major == "4" and isinstance(queue, FileQueueView):
        return queue.offset_at_4(start.since)
    return queue.offset_at(start.since)


def _fault(fault: "UnreadableUnit") -> str:
    outcome = "shown anyway" if fault.shown else "no message can be read" if fault.lost else "read anyway"
    return f"queue offset {fault.queue_offset:,}: {fault.reason}; {outcome}"


def _summary(result: "StorePullResult", count: int) -> str:
    from mqtool.formats.codes import PullStatus

    status = PullStatus.FOUND if count else result.status
    sentence = f"{status}: {count:,} message{'s' if count != 1 else ''}"
    if status is PullStatus.OFFSET_ILLEGAL:
        sentence = f"{status} ({result.store_status}): no message at offset {result.offset:,}"
    return f"{sentence}, next offset {result.next_offset:,}, min {result.min_offset:,}, max {result.max_offset:,}"


# From a broker


async def _pull_from_broker(
    wire: "Wire",
    name: tuple[str, int | None, str | None],
    start: _Start,
    limit: int | None,
    subscription: "MessageFilter",
    body: str,
    output: Output,
) -> int:
    from mqtool.engine.client import calls
    from mqtool.engine.client.routes import broker_to_read
    from mqtool.formats.codes import PullStatus

    topic, route = await _route(wire, name[0])
    queue = _queue_of_route(route, topic, *name[1:])
    broker = broker_to_read(route, queue.broker_name)
    assert broker, "a queue of the route has a broker there"
    _, address = broker
    if start.offset is not None:
        at = start.offset
    elif start.since is not None:
        at = await wire.request(address, calls.offset_at(topic, queue.queue_id, start.since))
    else:
        at = await wire.request(address, calls.min_offset(topic, queue.queue_id))
    count = 0
    while True:
        room = _PAGE if limit is None else min(_PAGE, limit - count)
        call = calls.pull(topic, queue.queue_id, at, max(room, 1), *_expression(subscription))
        result = _result(await wire.request(address, call), at, room, subscription)
        for message in result.messages:
            output.row(message_row(message, body))
        count += len(result.messages)
        is_over = result.status not in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG)
        if is_over or count == limit or result.next_offset >= result.max_offset:
            break
        at = result.next_offset
    output.remark(_summary(result, count))
    return Status.OK


async def _route(wire: "Wire", pattern: str) -> tuple[str, "TopicRoute"]:
    """Return the topic that a name or a pattern means, and its route."""
    from mqtool.engine.client import calls

    route = await wire.request_name_server(calls.route(pattern))
    if route is not None:
        return pattern, route
    names = await wire.request_name_server(calls.topic_names())
    matches = matching((pattern,), names, "topic")
    if len(matches) > 1:
        raise UsageError(f"{pattern} matches {len(matches):,} topics: pull reads only one")
    topic = matches.pop()
    route = await wire.request_name_server(calls.route(topic))
    if route is None:  # it has gone in the meantime
        raise NotFoundError(f"no broker has the topic {topic}")
    return topic, route


def _queue_of_route(route: "TopicRoute", topic: str, queue_id: int | None, broker_name: str | None) -> "MessageQueue":
    from mqtool.engine.client.routes import readable_queues

    queues = readable_queues(route, topic)
    names = sorted({queue.broker_name for queue in queues})
    if broker_name is not None:
        if broker_name not in names:
            raise NotFoundError(
                f"{topic} has no queue to read on {broker_name}; it has on {', '.join(names) or 'none'}"
            )
        queues = [queue for queue in queues if queue.broker_name == broker_name]
    queue_id = _queue_id(topic, sorted({queue.queue_id for queue in queues}), queue_id)
    matches = [queue for queue in queues if queue.queue_id == queue_id]
    if len(matches) > 1:
        raise UsageError(
            f"{len(matches):,} brokers have a queue {queue_id} ({', '.join(names)}): choose one with --broker"
        )
    return matches[0]


def _expression(subscription: "MessageFilter") -> tuple[str, str]:
    if subscription.sql92:
        return subscription.sql92.expression, "SQL92"
    return (subscription.tags.expression if subscription.tags else "*"), "TAG"


def _result(pulled: "PulledRecords", offset: int, room: int, subscription: "MessageFilter") -> "StorePullResult":
    """Return what a client makes of an answer: the messages that it keeps, ``room`` at most."""
    from mqtool.engine.store.pull import StorePullResult, StoreStatus
    from mqtool.formats.inner_batch import messages_of

    status, next_offset = _store_status(pulled), pulled.next_offset
    kept: list[Message] = []
    for message, _ in messages_of(pulled.records):
        if message.queue_offset < offset or not subscription.matches_message(message):
            continue
        if len(kept) == room:
            next_offset = min(next_offset, message.queue_offset)
            break
        kept.append(message)
    if status is StoreStatus.FOUND and not kept:
        status = StoreStatus.NO_MATCHED_MESSAGE
    return StorePullResult(status, offset, next_offset, pulled.min_offset, pulled.max_offset, kept)


def _store_status(pulled: "PulledRecords") -> "StoreStatus":
    """Return what the broker's store says: the remark, or where that is another word what the code stands for."""
    from mqtool.engine.store.pull import StoreStatus
    from mqtool.formats.codes import ResponseCode

    if pulled.status in StoreStatus.__members__:
        return StoreStatus[pulled.status]
    return {
        ResponseCode.PULL_NOT_FOUND: StoreStatus.OFFSET_OVERFLOW_ONE,
        ResponseCode.PULL_RETRY_IMMEDIATELY: StoreStatus.NO_MATCHED_MESSAGE,
        ResponseCode.PULL_OFFSET_MOVED: StoreStatus.OFFSET_OVERFLOW_BADLY,
    }.get(ResponseCode(pulled.code), StoreStatus.FOUND)
