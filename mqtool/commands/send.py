"""``mqtool send``."""

import itertools
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._options import output_option
from mqtool.commands._output import Output
from mqtool.errors import (
    BadDataError,
    MqtoolError,
    NotFoundError,
    NotPermittedError,
    Status,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    from mqtool.engine.remoting.client import RemotingClient
    from mqtool.formats.bodies import MessageQueue
    from mqtool.formats.remoting import RemotingCommand

_GROUP = "mqtool"
_DEFAULT_TOPIC = "TBW102"
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
@click.option(
    "-n",
    "--namesrv",
    envvar="NAMESRV_ADDR",
    required=True,
    metavar="HOST:PORT",
    help="Name servers, with ; between. Default: NAMESRV_ADDR.",
)
@output_option
def command(
    bodies: tuple[str, ...],
    topic: str,
    queue_id: int | None,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    delay_level: int | None,
    namesrv: str,
    output: Output,
) -> int:
    """Send messages, one for each BODY, or without any for each line of standard input.

    \b
      mqtool send -n localhost:9876 --topic Orders --tag new '{"price": 5}'
      mqtool send -n localhost:9876 --topic Orders < lines.txt

    A row for each tells where it is stored. A topic that there is not yet comes about where the broker allows that.
    """  # noqa: D301
    from mqtool.engine.cluster import run
    from mqtool.engine.remoting.client import RemotingClient, split_addresses

    pairs = _pairs(properties)
    if tag:
        pairs["TAGS"] = tag
    if keys:
        pairs["KEYS"] = " ".join(keys)
    if delay_level:
        pairs["DELAY"] = str(delay_level)
    addresses = split_addresses(namesrv)
    if not addresses:
        raise UsageError("-n names no name server")
    texts = (body.encode("utf-8", "surrogateescape") for body in bodies) if bodies else _lines()

    async def send_all() -> None:
        sender = _Sender(RemotingClient(addresses), topic, queue_id)
        try:
            for body in texts:
                output.row(await sender.send(body, pairs))
        finally:
            await sender.close()

    run(send_all())
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

    def __init__(self, name_server: "RemotingClient", topic: str, queue_id: int | None) -> None:
        self._name_server = name_server
        self._topic = topic
        self._queue_id = queue_id
        self._queues: Iterator[MessageQueue] | None = None
        self._addresses: dict[str, str] = {}  # by broker name
        self._clients: dict[str, RemotingClient] = {}
        self._maker = secrets.randbits(32)
        self._counter = itertools.count()

    async def send(self, body: bytes, pairs: Mapping[str, str]) -> dict[str, Any]:
        """Send a message and return the row that tells where it is stored.

        Raises:
            MqtoolError: nobody can be reached, or the broker refuses the message.
        """
        from mqtool.engine.remoting.client import RemotingClient
        from mqtool.formats.codes import RequestCode
        from mqtool.formats.headers import Send, build_header
        from mqtool.formats.properties import build_properties
        from mqtool.formats.remoting import RemotingCommand
        from mqtool.formats.unique_key import build_unique_key

        queue = next(self._queues or await self._find_queues())
        now = time.time_ns() // 1_000_000
        key = build_unique_key(_ADDRESS, os.getpid(), self._maker, now, next(self._counter))
        properties = build_properties({**pairs, "UNIQ_KEY": key, "WAIT": "true"}).decode()
        header = Send(_GROUP, self._topic, _DEFAULT_TOPIC, _DEFAULT_QUEUES, queue.queue_id, 0, now, 0, properties)
        address = self._addresses[queue.broker_name]
        client = self._clients.setdefault(address, RemotingClient([address]))
        fields = build_header(header, short=True)
        answer = await client.invoke(RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=body))
        _check(answer, address)
        return {
            "topic": self._topic,
            "broker_name": queue.broker_name,
            "queue_id": int(answer.ext_fields["queueId"]),
            "queue_offset": int(answer.ext_fields["queueOffset"]),
            "unique_key": key,
            "message_id": answer.ext_fields["msgId"],
        }

    async def close(self) -> None:
        """End all connections."""
        for client in (self._name_server, *self._clients.values()):
            await client.close()

    async def _find_queues(self) -> "Iterator[MessageQueue]":
        from mqtool.formats.bodies import MessageQueue, parse_route
        from mqtool.formats.codes import Perm, ResponseCode

        answer = await self._ask_route(self._topic)
        most = None
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            answer, most = await self._ask_route(_DEFAULT_TOPIC), _DEFAULT_QUEUES
        if answer.code:
            raise NotFoundError(f"there is no topic {self._topic}, and sending to it makes none: {answer.remark}")
        route = parse_route(answer.body)
        self._addresses = {broker.broker_name: broker.addresses[0] for broker in route.brokers if 0 in broker.addresses}
        queues = [
            MessageQueue(self._topic, data.broker_name, queue_id)
            for data in route.queues
            if data.perm & Perm.WRITE and data.broker_name in self._addresses
            for queue_id in range(data.write_queue_count if most is None else min(most, data.write_queue_count))
        ]
        if self._queue_id is not None:
            queues = [queue for queue in queues if queue.queue_id == self._queue_id]
        if not queues:
            which = "" if self._queue_id is None else f" {self._queue_id}"
            raise NotFoundError(f"the topic {self._topic} has no queue{which} that a broker lets be written to")
        self._queues = itertools.cycle(queues)
        return self._queues

    async def _ask_route(self, topic: str) -> "RemotingCommand":
        from mqtool.formats.codes import RequestCode
        from mqtool.formats.remoting import RemotingCommand

        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})
        return await self._name_server.invoke(command)


def _check(answer: "RemotingCommand", address: str) -> None:
    """Pass an answer that tells where a message is stored, be it not on the disk or with a slave yet.

    Raises:
        MqtoolError: the broker refuses the message.
    """
    from mqtool.formats.codes import ResponseCode

    if "msgId" in answer.ext_fields:
        return
    errors: dict[int, type[MqtoolError]] = {
        ResponseCode.MESSAGE_ILLEGAL: BadDataError,
        ResponseCode.INVALID_PARAMETER: UsageError,
        ResponseCode.NO_PERMISSION: NotPermittedError,
        ResponseCode.TOPIC_NOT_EXIST: NotFoundError,
    }
    raise errors.get(answer.code, UnavailableError)(f"{address} refuses the message: {answer.remark or answer.code}")
