"""``mqtool send``."""

import itertools
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._options import output_option
from mqtool.commands._output import Output
from mqtool.commands._wire import Brokers, wire_options
from mqtool.errors import NotFoundError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.client_runtime import Wire
    from mqtool.formats.bodies import MessageQueue

_GROUP = "mqtool"
_DEFAULT_QUEUES = 4  # of a topic that comes about by sending to it, as clients ask for
_ADDRESS = bytes((127, 0, 0, 1))


@click.command(short_help="Send messages to a broker.")
@click.argument("bodies", nargs=-1, metavar="[BODY]...")
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@click.option(
    "--queue", "queue_id", type=click.IntRange(0), metavar="ID", help="The queue. Default: each of them in turn."
)
@click.option("--tag", metavar="NAME", help="The tag of the messages.")
@click.option("--key", "keys", multiple=True, metavar="TEXT", help="A key of the messages; repeats.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; repeats.")
@click.option("--delay-level", type=click.IntRange(1), metavar="N", help="Deliver them later: 1 is 1s, 18 is 2h.")
@wire_options
@output_option
def command(
    bodies: tuple[str, ...],
    topic: str,
    queue_id: int | None,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    delay_level: int | None,
    brokers: Brokers,
    output: Output,
) -> int:
    """Send messages, one for each BODY, or without any for each line of standard input.

    \b
      mqtool send -n localhost:9876 --topic Orders --tag new '{"price": 5}'
      mqtool send -n localhost:9876 --topic Orders < lines.txt

    A row for each tells where it is stored. A topic that there is not yet comes about where the broker allows that.
    """  # noqa: D301
    pairs = _pairs(properties)
    if tag:
        pairs["TAGS"] = tag
    if keys:
        pairs["KEYS"] = " ".join(keys)
    if delay_level:
        pairs["DELAY"] = str(delay_level)
    is_typed = not bodies and sys.stdin.isatty()
    texts = (body.encode("utf-8", "surrogateescape") for body in bodies) if bodies else _lines()

    async def send_all(wire: "Wire") -> None:
        sender = _Sender(wire, topic, queue_id)
        if is_typed:
            output.remark("each line is a message; Ctrl-D ends")
            # An event loop answers Ctrl-C when it is back at work, which it is not while a line is read.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for body in texts:
            output.row(await sender.send(body, pairs))
            if is_typed:
                output.flush()

    brokers.run(send_all)
    return Status.OK


def _pairs(properties: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for text in properties:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise UsageError(f"--property {text}: give it as NAME=VALUE")
        if {"\x01", "\x02"} & {*text}:
            raise UsageError(f"--property {name}: the characters 1 and 2 separate properties and cannot be in one")
        pairs[name] = value
    return pairs


def _lines() -> Iterator[bytes]:
    return (line.rstrip(b"\r\n") for line in sys.stdin.buffer)


class _Sender:
    """Sends to the queues of one topic in turn; finds them when it first sends."""

    def __init__(self, wire: "Wire", topic: str, queue_id: int | None) -> None:
        self._wire = wire
        self._topic = topic
        self._queue_id = queue_id
        self._queues: Iterator[MessageQueue] | None = None
        self._addresses: Mapping[str, str] = {}  # by broker name
        self._maker = secrets.randbits(32)
        self._counter = itertools.count()

    async def send(self, body: bytes, pairs: Mapping[str, str]) -> dict[str, Any]:
        """Send a message and return the row that tells where it is stored.

        Raises:
            MqtoolError: nobody can be reached, or the broker refuses the message.
        """
        from mqtool.engine.client import questions
        from mqtool.formats.headers import Send
        from mqtool.formats.properties import build_properties
        from mqtool.formats.unique_key import build_unique_key

        queue = next(self._queues or await self._find_queues())
        now = time.time_ns() // 1_000_000
        key = build_unique_key(_ADDRESS, os.getpid(), self._maker, now, next(self._counter))
        properties = build_properties({**pairs, "UNIQ_KEY": key, "WAIT": "true"}).decode()
        header = Send(
            _GROUP, self._topic, questions.DEFAULT_TOPIC, _DEFAULT_QUEUES, queue.queue_id, 0, now, 0, properties
        )
        stored = await self._wire.ask(self._addresses[queue.broker_name], questions.send(header, body))
        return {
            "topic": self._topic,
            "broker_name": queue.broker_name,
            "queue_id": stored.queue_id,
            "queue_offset": stored.queue_offset,
            "unique_key": key,
            "message_id": stored.msg_id,
        }

    async def _find_queues(self) -> "Iterator[MessageQueue]":
        from mqtool.engine.client import questions
        from mqtool.engine.client.routes import masters, writable_queues

        route, most = await self._wire.ask_name_server(questions.route(self._topic)), None
        if route is None:
            route, most = await self._wire.ask_name_server(questions.route(questions.DEFAULT_TOPIC)), _DEFAULT_QUEUES
        if route is None:
            raise NotFoundError(f"there is no topic {self._topic}, and sending to it makes none")
        self._addresses = masters(route)
        queues = writable_queues(route, self._topic, most)
        if self._queue_id is not None:
            queues = [queue for queue in queues if queue.queue_id == self._queue_id]
        if not queues:
            which = "" if self._queue_id is None else f" {self._queue_id}"
            raise NotFoundError(f"the topic {self._topic} has no queue{which} that a broker lets be written to")
        self._queues = itertools.cycle(queues)
        return self._queues
