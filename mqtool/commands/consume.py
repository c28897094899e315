"""``mqtool consume``."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mqtool.commands._admin import route_of
from mqtool.commands._brokers import Brokers
from mqtool.commands._completion import GROUP_NAME, TOPIC_NAME
from mqtool.commands._options import SPAN, WHERE, limit_option, message_options, output_option
from mqtool.commands._output import Output
from mqtool.commands._rows import body_fields
from mqtool.commands._wire import wire_options
from mqtool.errors import NotFoundError, Status, UsageError, WriteError
from mqtool.formats.property_names import KEYS
from mqtool.formats.topics import TOOLS_GROUP

if TYPE_CHECKING:
    from mqtool.engine.client.consuming import ConsumeStatus
    from mqtool.engine.client.incoming import ConsumerMessage
    from mqtool.engine.client_runtime.consume_services import ConsumeContext
    from mqtool.engine.client_runtime.consumer import Consumer
    from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumer
    from mqtool.engine.client_runtime.wire import Wire
    from mqtool.formats.bodies import MessageQueue

_POLL_S = 0.2
_LOOK_S = 0.1
_JOIN_S = 5.0
_AT_ONCE = 32
_COLUMNS = (
    "topic", "queue_id", "queue_offset", "store_time", "tags", "body", "keys", "reconsume_times", "unique_key",
    "broker_name",
)  # fmt: skip


class _ConsumeSelection(NamedTuple):
    """Which messages, and when to stop."""

    topics: tuple[str, ...]
    expression: str
    is_sql92: bool
    where: "str | int"
    limit: int | None
    idle_ms: int | None


@click.command(short_help="Consume messages as a member of a group.")
@click.option(
    "--topic", "topics", multiple=True, required=True, type=TOPIC_NAME, metavar="NAME", help="A topic; repeatable."
)
@click.option(
    "--group", type=GROUP_NAME, metavar="NAME", help="The consumer group: what it has consumed is not delivered again."
)
@click.option(
    "--begin",
    "where",
    type=WHERE,
    default="last",
    metavar="first|last|TIME",
    show_default=True,
    help="Where to start in a queue from which the group has consumed nothing yet.",
)
@click.option("--filter", "expression", metavar="TAGS", help="Only messages with these tags: 'TagA || TagB'.")
@click.option("--sql", metavar="SQL92", help="Only messages whose properties match: \"a > 5 AND color = 'red'\".")
@click.option(
    "--peek", is_flag=True, help="Show what would be delivered, without consuming it; works without a group, too."
)
@click.option("--orderly", is_flag=True, help="Lock queues, as orderly consumers do.")
@limit_option
@click.option("--idle", type=SPAN, metavar="DURATION", help="Stop when nothing has arrived for this long: 5s.")
@message_options
@wire_options
@output_option
def command(
    topics: tuple[str, ...],
    group: str | None,
    where: "str | int",
    expression: str | None,
    sql: str | None,
    peek: bool,
    orderly: bool,
    limit: int | None,
    idle: int | None,
    body: str,
    brokers: Brokers,
    output: Output,
) -> int:
    """Consume messages as a member of a group, until Ctrl-C, --limit or --idle.

    \b
      mqtool consume -n localhost:9876 --topic Orders --group billing
      mqtool consume -n localhost:9876 --topic Orders --peek --begin first

    A message counts as consumed once its row is written; messages that another member failed to consume are
    delivered here, too. --peek has no effect on the group, which continues where it is.
    """  # noqa: D301
    from mqtool.engine.client.names import DEFAULT_CONSUMER, check_group

    if sql is not None and expression is not None:
        raise UsageError(
            "--sql and --filter are mutually exclusive: a subscription has tags or an SQL92 filter, not both"
        )
    if peek and orderly:
        raise UsageError("--peek and --orderly are mutually exclusive: --peek locks nothing")
    if not peek and not group:
        raise UsageError("give the group with --group; or use --peek, which needs none")
    wanted = _ConsumeSelection(
        topics, sql if sql is not None else expression or "*", sql is not None, where, limit, idle
    )
    output.columns, output.always, output.comes_later = _COLUMNS, ("body", "keys"), True
    sink = _Sink(output, body, wanted, "shown" if peek else "consumed")

    if group:
        check_group(group, DEFAULT_CONSUMER)

    async def consume(wire: "Wire") -> None:
        for topic in topics:
            await route_of(wire, topic)
        if peek:
            await _peek(wire, brokers, group, wanted, sink)
        elif orderly:
            await _consume_in_order(brokers, group or "", wanted, sink)
        else:
            await _consume(brokers, group or "", wanted, sink)

    try:
        brokers.run(consume)
    except KeyboardInterrupt:
        sink.sum_up()
        raise
    except BrokenPipeError as error:
        if peek:
            raise
        raise WriteError("the output is no longer read: what could not be written was not consumed") from error
    sink.sum_up()
    return Status.OK


class _Sink:
    """Where messages go, and whether that is enough."""

    def __init__(self, output: Output, body: str, wanted: _ConsumeSelection, noun: str) -> None:
        self._output = output
        self._body = body
        self._wanted = wanted
        self._what = noun
        self.error: OSError | None = None
        """Why no more can be written."""
        self.restart()

    def restart(self) -> None:
        """Count from now on how long nothing has come."""
        self._last = time.monotonic()

    @property
    def room(self) -> int:
        """How many more are wanted, at most so many at a time."""
        limit = self._wanted.limit
        return _AT_ONCE if limit is None else min(_AT_ONCE, limit - self._output.count)

    @property
    def is_done(self) -> bool:
        """Whether there are enough, or none have come for long enough, or nobody takes them."""
        idle = self._wanted.idle_ms
        if self.error is not None or self.room <= 0:
            return True
        return idle is not None and (time.monotonic() - self._last) * 1000 >= idle

    def show(self, messages: "Sequence[ConsumerMessage]") -> None:
        """Write the rows of messages."""
        try:
            for message in messages:
                self._output.row(_row(message, self._body))
            self._output.flush()
        except OSError as error:
            self.error = error
            raise
        self.restart()

    def sum_up(self) -> None:
        """Say how many messages came."""
        count = self._output.count
        self._output.remark(f"{count:,} message{'s' * (count != 1)} {self._what}")


def _row(message: "ConsumerMessage", body: str) -> dict[str, Any]:
    if body == "raw" and message.body_error:  # what is written there must be the body
        raise message.body_error
    return {
        "physical_offset": message.physical_offset,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp": message.born_timestamp,
        "born_host": message.born_host,
        "store_timestamp": message.store_timestamp,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "body_size": len(message.body),
        **body_fields(message.body, body),
        "properties": message.properties,
        "tags": message.tags,
        "keys": message.properties.get(KEYS),
        "unique_key": message.unique_key,
        "message_id": message.offset_message_id,
        "broker_name": message.broker_name,
    }


# As a member of the group


def _begin(where: "str | int") -> dict[str, Any]:
    """Return the options that say where a new group begins."""
    from mqtool.engine.client.consuming import ConsumeFrom

    if isinstance(where, int):
        return {"consume_from_where": ConsumeFrom.TIMESTAMP, "consume_timestamp": where}
    return {"consume_from_where": ConsumeFrom.FIRST_OFFSET if where == "first" else ConsumeFrom.LAST_OFFSET}


async def _joined(consumer: "Consumer", sink: _Sink) -> None:
    """Wait until a consumer has queues, or the group has had time enough to give it some."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_JOIN_S):
            while not consumer.queues():
                await asyncio.sleep(_LOOK_S)
    sink.restart()


async def _taken(consumer: "LitePullConsumer", sink: _Sink) -> "AsyncIterator[Sequence[ConsumerMessage]]":
    """Yield messages, those of one queue at a time, for as long as more are wanted; others stay with the consumer."""
    await _joined(consumer, sink)
    while not sink.is_done:
        messages: list[ConsumerMessage] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):
                messages.append(await anext(consumer))
        while messages and len(messages) < sink.room and (message := consumer.next_at_hand()):
            messages.append(message)
        if messages:
            yield messages


async def _consume(brokers: Brokers, group: str, wanted: _ConsumeSelection, sink: _Sink) -> None:
    from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumer, LitePullConsumerOptions
    from mqtool.formats.topics import RETRY_PREFIX

    options = LitePullConsumerOptions(
        **brokers.client_options(), **_begin(wanted.where), pull_batch_size=_AT_ONCE, auto_commit=False
    )
    consumer = LitePullConsumer(group, brokers.name_servers, options)
    consumer.subscribe(RETRY_PREFIX + group)
    for topic in wanted.topics:
        consumer.subscribe(topic, wanted.expression, is_sql92=wanted.is_sql92)
    async with consumer:
        async for messages in _taken(consumer, sink):
            sink.show(messages)
            await consumer.commit()  # the consumer knows the queue, a message only that of its topic


async def _consume_in_order(brokers: Brokers, group: str, wanted: _ConsumeSelection, sink: _Sink) -> None:
    from mqtool.engine.client.consuming import ConsumeStatus
    from mqtool.engine.client_runtime.consume_services import PushConsumerOptions
    from mqtool.engine.client_runtime.push_consumer import PushConsumer

    async def listen(messages: "Sequence[ConsumerMessage]", _: "ConsumeContext") -> "ConsumeStatus":
        if sink.error or sink.room <= 0:
            return ConsumeStatus.LATER
        try:
            sink.show(messages)
        except OSError:  # which is raised below
            return ConsumeStatus.LATER
        return ConsumeStatus.SUCCESS

    options = PushConsumerOptions(**brokers.client_options(), **_begin(wanted.where), orderly=True)
    consumer = PushConsumer(group, listen, brokers.name_servers, options)
    for topic in wanted.topics:
        consumer.subscribe(topic, wanted.expression, is_sql92=wanted.is_sql92)
    async with consumer:
        await _joined(consumer, sink)
        while not sink.is_done:
            await asyncio.sleep(_LOOK_S)
    if sink.error:
        raise sink.error


# Without anybody's notice


async def _peek(wire: "Wire", brokers: Brokers, group: str | None, wanted: _ConsumeSelection, sink: _Sink) -> None:
    from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumer, LitePullConsumerOptions

    options = LitePullConsumerOptions(**brokers.client_options(), pull_batch_size=_AT_ONCE, auto_commit=False)
    async with LitePullConsumer(TOOLS_GROUP, brokers.name_servers, options) as consumer:
        queues = [queue for topic in wanted.topics for queue in await consumer.fetch_message_queues(topic)]
        consumer.assign(queues, wanted.expression, is_sql92=wanted.is_sql92)
        for queue in queues:
            await _go_to(wire, consumer, queue, group, wanted.where)
        async for messages in _taken(consumer, sink):
            sink.show(messages)


async def _go_to(
    wire: "Wire", consumer: "LitePullConsumer", queue: "MessageQueue", group: str | None, where: "str | int"
) -> None:
    """Have a queue be read from where a group is, or else from where one would begin."""
    from mqtool.engine.client import calls, fetching
    from mqtool.engine.client.routes import broker_to_read

    offset = None
    if group:
        route = await wire.request_name_server(calls.route(queue.topic))
        broker = broker_to_read(route, queue.broker_name) if route else None
        if broker is None:
            raise NotFoundError(f"the topic {queue.topic} no longer exists on {queue.broker_name}")
        offset = await wire.request(broker[1], fetching.committed_offset(group, queue))
    if offset is not None:
        try:
            await consumer.seek(queue, offset)
        except UsageError:  # the messages there are gone
            await consumer.seek_to_begin(queue)
    elif where == "first":
        await consumer.seek_to_begin(queue)
    elif where == "last":
        await consumer.seek_to_end(queue)
    else:
        await consumer.seek(queue, await consumer.offset_for_timestamp(queue, int(where)))
