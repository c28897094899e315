"""``mqtool send``."""

import asyncio
import base64
import dataclasses
import itertools
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._brokers import Brokers
from mqtool.commands._completion import TOPIC_NAME
from mqtool.commands._options import SPAN, output_option
from mqtool.commands._output import Output
from mqtool.commands._parent import end_with_parent
from mqtool.commands._streams import outlast_readers
from mqtool.commands._wire import wire_options
from mqtool.errors import FormatError, NotFoundError, Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.client.outgoing import ProducerMessage
    from mqtool.engine.client.sending import SendResult
    from mqtool.engine.client_runtime.producer import Producer
    from mqtool.engine.client_runtime.wire import Wire
    from mqtool.formats.bodies import MessageQueue

_GROUP = "mqtool"


@click.command(short_help="Send messages to a broker.")
@click.argument("bodies", nargs=-1, metavar="[BODY]...")
@click.option("--topic", required=True, type=TOPIC_NAME, metavar="NAME", help="The topic.")
@click.option("--queue", "queue_id", type=click.IntRange(0), metavar="ID", help="The queue. Default: each in turn.")
@click.option("--tag", metavar="NAME", help="The tag of the messages.")
@click.option("--key", "keys", multiple=True, metavar="TEXT", help="A key of the messages; repeatable.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; repeatable.")
@click.option("--delay-level", type=click.IntRange(1), metavar="N", help="Delay level: 1 is 1s, 18 is 2h.")
@click.option("--delay", type=SPAN, metavar="DURATION", help="Deliver after this delay: 90s. Brokers of 5.x only.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A file whose content is a message; repeatable.",
)
@click.option("--jsonl", is_flag=True, help="Each line of standard input is a row as written by dump and consume.")
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Messages per request.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Send at most this many messages per second."
)
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
    delay: int | None,
    files: tuple[Path, ...],
    jsonl: bool,
    batch: int | None,
    rate: float | None,
    brokers: Brokers,
    output: Output,
) -> int:
    """Send messages: one for each BODY and --file or, without these, one for each line of standard input.

    \b
      mqtool send -n localhost:9876 --topic Orders --tag new '{"price": 5}'
      mqtool send -n localhost:9876 --topic Orders < lines.txt
      mqtool consume --topic A --group G | mqtool send --topic B --jsonl

    A row for each message shows where it is stored. Empty lines are skipped, because a message needs a body.
    Unknown topics are created if the broker allows it.
    """  # noqa: D301
    from mqtool.engine.client.outgoing import ProducerMessage

    outlast_readers()
    end_with_parent()
    if jsonl and (bodies or files):
        raise UsageError("--jsonl reads standard input: leave out the bodies and --file")
    if batch and (delay or delay_level):
        raise UsageError("messages of a batch cannot be delayed: leave out --batch")
    each = ProducerMessage(topic, b"", tag or "", keys, delay_level or 0, delay or 0, properties=_pairs(properties))
    is_typed = not (bodies or files) and sys.stdin.isatty()
    messages = _messages(each, bodies, files, output, jsonl=jsonl)
    sent = 0

    async def send_all(_: "Wire") -> None:
        nonlocal sent
        if is_typed:
            output.remark("each line is a message; Ctrl-D ends the input")
            # An event loop answers Ctrl-C when it is back at work, which it is not while a line is read.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        from mqtool.engine.client_runtime.producer import Producer, ProducerOptions

        pace = Pace(rate)
        async with Producer(_GROUP, brokers.name_servers, ProducerOptions(**brokers.client_options())) as producer:
            queue = None if queue_id is None else await _queue(producer, topic, queue_id)
            for group in _in_groups(messages, batch or 1):
                await asyncio.sleep(pace.wait(len(group), time.monotonic()))
                rows = await _send(producer, group, queue)
                sent += len(rows)
                for row in rows:
                    output.row(row)
                if is_typed:
                    output.flush()

    try:
        brokers.run(send_all)
    except BaseException:
        if sent:  # rows tell it, but may not have been written
            output.remark(f"sent so far: {sent:,}")
        raise
    return Status.OK


# What to send


def _pairs(properties: Iterable[str]) -> dict[str, str]:
    from mqtool.formats.property_names import UNIQ_KEY

    pairs = {}
    for text in properties:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise UsageError(f"--property {text}: give it as NAME=VALUE")
        if name == UNIQ_KEY:
            raise UsageError(f"{name} cannot be set by an application: the producer sets it on each message")
        pairs[name] = value
    return pairs


def _messages(
    each: "ProducerMessage", bodies: Iterable[str], files: Iterable[Path], output: Output, *, jsonl: bool
) -> "Iterator[ProducerMessage]":
    from mqtool.engine.store.mapping import read_file

    if bodies or files:
        for body in bodies:
            yield dataclasses.replace(each, body=body.encode("utf-8", "surrogateescape"))
        for path in files:
            yield dataclasses.replace(each, body=read_file(path))
        return
    at = empty = 0
    for number, line in enumerate(sys.stdin.buffer, 1):
        text, place = line.rstrip(b"\r\n"), f"line {number:,} of standard input"
        if not text:
            empty += 1
        else:
            try:
                message = _of_row(each, text) if jsonl else dataclasses.replace(each, body=text)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise FormatError(f"{place} is not a row of a message", at) from error
            yield message
        at += len(line)
    if empty:
        lines = "1 empty line was" if empty == 1 else f"{empty:,} empty lines were"
        output.remark(f"{lines} skipped: a message needs a body")


def _of_row(each: "ProducerMessage", line: bytes) -> "ProducerMessage":
    """Return the message of a row: its body, tag, keys and properties, where the command line names no others."""
    import orjson

    from mqtool.formats.property_names import OF_ROCKETMQ

    row = orjson.loads(line)
    properties = row.get("properties") or {}
    own = {str(name): str(value) for name, value in properties.items() if name not in OF_ROCKETMQ}
    return dataclasses.replace(
        each,
        body=_body(row),
        tags=each.tags or row.get("tags") or "",
        keys=each.keys or row.get("keys") or (),
        properties={**own, **each.properties},
    )


def _body(row: dict[str, Any]) -> bytes:
    import orjson

    body, encoding = row["body"], row.get("body_encoding", "text")
    if encoding != "json" and not isinstance(body, str):
        raise TypeError("the body is not text")
    match encoding:
        case "hex":
            return bytes.fromhex(body)
        case "base64":
            return base64.b64decode(body, validate=True)
        case "json":
            return orjson.dumps(body)
    return bytes(body, "utf-8")


def _in_groups(messages: "Iterator[ProducerMessage]", most: int) -> "Iterator[list[ProducerMessage]]":
    while group := list(itertools.islice(messages, most)):
        yield group


# Where and when


class Pace:
    """Keeps to a rate; times are in seconds."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next = 0.0

    def wait(self, count: int, now: float) -> float:
        """Return how long to wait before so many messages are sent."""
        start = max(self._next, now)
        self._next = start + count / self._rate if self._rate else 0.0
        return start - now


async def _queue(producer: "Producer", topic: str, queue_id: int) -> "MessageQueue":
    for queue in await producer.queues(topic):
        if queue.queue_id == queue_id:
            return queue
    raise NotFoundError(f"the topic {topic} has no writable queue {queue_id}")


async def _send(
    producer: "Producer", messages: "list[ProducerMessage]", queue: "MessageQueue | None"
) -> list[dict[str, Any]]:
    """Send messages, in one request if their size allows, and return the rows that say where they are."""
    if len(messages) == 1:
        return _rows(await producer.send(messages[0], queue))
    return [row for result in await producer.send_batch(messages, queue) for row in _rows(result)]


def _rows(result: "SendResult") -> list[dict[str, Any]]:
    ids = zip(result.message_id.split(","), result.offset_message_id.split(","), strict=False)
    return [
        {
            "topic": result.queue.topic,
            "broker_name": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "queue_offset": result.queue_offset + place,
            "unique_key": unique_key,
            "message_id": message_id,
        }
        for place, (unique_key, message_id) in enumerate(ids)
    ]
