"""A hostile client beside an honest one: what each attack costs the honest one, and the memory of the server.

One row an attack: what it sends, again and again for some seconds, and the limit that it meets. Meanwhile a client in a
process of its own sends one message after the other and reads them; each must be taken. The first row is of a client
that does nothing. In the end the process stops as it should, has said nothing of a fault, and its store is sound. The
tests try all with less::

    python -m tests.campaigns.hostile --seconds 3

It prints a table: the honest client's sends, the slowest and the 99.9th of them, and the most memory that the
server had meanwhile.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import random
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from mqtool.engine.pulsar.wire import command as pulsar_command
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError
from mqtool.formats.bodies import (
    Heartbeat,
    Subscription,
    build_body,
    build_heartbeat,
)
from mqtool.formats.codes import RequestCode
from mqtool.formats.headers import BrokerIdentity, build_header
from mqtool.formats.properties import build_properties
from mqtool.formats.remoting import MAX_FRAME, ONEWAY, RESPONSE, RemotingCommand, build_frame
from tests.campaigns.kills import Served
from tests.ports import free_port
from tests.pulsar_wire import PulsarWire, connected
from tests.wire_client import WireClient, batch, consumer, registration

SETTINGS = {"mappedFileSizeCommitLog": str(1 << 26), "maxMessageSize": str(4 << 20)}
_ANSWER_SECONDS = 60.0
_AT_ONCE = 32
_ROOT = Path(__file__).parents[2]
_OF_DELETED = ("QUEUE-MISSING", "LOG-QUEUE-ORDER")
"""What verify finds of a topic that was deleted, and made again: its messages lie in the log without a queue, and its
queues count from 0 again."""
_PEAK_BEGINS = "5"
"""Written to ``clear_refs`` of a process, it has the system count its most memory from there on."""


class Attacker:
    """What attacks have at hand."""

    def __init__(self, served: Served, seconds: float) -> None:
        self.broker = served.broker
        self.name_server = served.name_server
        self.pulsar = ""
        self.client = WireClient(served.broker)
        self.names = RemotingClient([served.name_server])
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self.numbers = itertools.count()
        self.chance = random.Random(1)
        self.refused = 0

    def begin(self) -> None:
        """Have the time of an attack begin."""
        self._end = time.monotonic() + self._seconds
        self.refused = 0

    @property
    def goes_on(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self._end

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Give a connection to the broker that is cut in the end."""
        host, _, port = self.broker.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def throw(self, *data: bytes) -> None:
        """Send bytes on a connection of their own, and read until it is closed or nothing comes for a while."""
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with self.connected() as (reader, writer), asyncio.timeout(0.3):
                writer.writelines(data)
                await writer.drain()
                while await reader.read(1 << 16):
                    pass

    async def ask(self, code: int, body: bytes = b"", **fields: Any) -> None:
        """Ask the broker, whatever it answers."""
        with contextlib.suppress(MqtoolError):
            answer = await self.client.ask(code, body, **fields)
            self.refused += answer.code != 0

    async def ask_names(self, code: int, body: bytes = b"", **fields: Any) -> None:
        """Ask the name server, whatever it answers."""
        texts = {name: str(value) for name, value in fields.items()}
        with contextlib.suppress(MqtoolError):
            answer = await self.names.invoke(RemotingCommand(code, ext_fields=texts, body=body), timeout_ms=20_000)
            self.refused += answer.code != 0

    async def again(self, one: Callable[[int], Awaitable[None]]) -> None:
        """Do something with ever new numbers, many at a time, while there is time."""
        while self.goes_on:
            await asyncio.gather(*(one(next(self.numbers)) for _ in range(_AT_ONCE)))

    async def send(self, topic: str, body: bytes = b"body", queue: int = 0, **more: Any) -> None:
        """Send a message, whether it is taken or not."""
        pairs = {"UNIQ_KEY": f"{next(self.numbers):032X}", **more.pop("pairs", {})}
        fields: dict[str, Any] = {"producerGroup": "P", "topic": topic, "defaultTopic": "TBW102", "queueId": queue}
        fields |= {"defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "reconsumeTimes": 0}
        await self.ask(
            RequestCode.SEND_MESSAGE, body, **fields, **{"properties": build_properties(pairs).decode(), **more}
        )

    def pull_fields(self, **more: Any) -> dict[str, Any]:
        """Return the header of a pull of the honest client's topic that does not wait."""
        fields: dict[str, Any] = {"consumerGroup": "A", "topic": "Honest", "queueId": 0, "queueOffset": 0}
        fields |= {"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
        return {**fields, "subscription": "*", "expressionType": "TAG", **more}

    def pop_fields(self, **more: Any) -> dict[str, Any]:
        """Return the header of a pop."""
        fields: dict[str, Any] = {"consumerGroup": "A", "topic": "Honest", "queueId": -1, "maxMsgNums": 32}
        fields |= {"invisibleTime": 1000, "pollTime": 0, "bornTime": time.time_ns() // 1_000_000, "initMode": 0}
        return {**fields, "expType": "TAG", "exp": "*", **more}

    async def make_topic(self, name: str, queues: int = 2, **more: Any) -> None:
        """Make a topic, whether that is taken or not."""
        fields: dict[str, Any] = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": queues}
        fields |= {"writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG", "order": False}
        await self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **{**fields, **more})

    async def beat(self, beat: Heartbeat) -> None:
        """Send a heartbeat."""
        await self.ask(RequestCode.HEART_BEAT, build_heartbeat(beat))


@dataclasses.dataclass(frozen=True)
class Attack:
    """One row."""

    sends: str
    limit: str
    run: Callable[[Attacker], Awaitable[None]]


ATTACKS: list[Attack] = []


def attack(sends: str, limit: str) -> Callable[[Callable[[Attacker], Awaitable[None]]], None]:
    """Have a function be an attack."""
    return lambda run: ATTACKS.append(Attack(sends, limit, run))


def each(sends: str, limit: str) -> Callable[[Callable[[Attacker, int], Awaitable[None]]], None]:
    """Have a function be an attack that is done again and again, with ever new numbers."""

    def take(one: Callable[[Attacker, int], Awaitable[None]]) -> None:
        ATTACKS.append(Attack(sends, limit, lambda attacker: attacker.again(lambda number: one(attacker, number))))

    return take


@attack("nothing", "")
async def _nothing(attacker: Attacker) -> None:
    while attacker.goes_on:
        await asyncio.sleep(0.05)


# The wire


@each("frames that announce 2 GiB", "16 MiB: closed")
async def _long_frame(attacker: Attacker, _: int) -> None:
    await attacker.throw((1 << 31).to_bytes(4) + bytes(4))


@each("frames of 16 MiB that never end", "256 MiB in all, the worst are cut off")
async def _endless_frame(attacker: Attacker, _: int) -> None:
    await attacker.throw((MAX_FRAME - 4).to_bytes(4) + (100).to_bytes(4), bytes(1 << 20))


@each("headers of 2 MiB", "1 MiB: closed")
async def _long_header(attacker: Attacker, _: int) -> None:
    size = 2 << 20
    await attacker.throw((size + 4).to_bytes(4) + size.to_bytes(4), b'{"code":34,"remark":"', b"x" * (size - 23), b'"}')


@each("headers with 20,000 fields", "1 MiB of header")
async def _many_fields(attacker: Attacker, _: int) -> None:
    fields: dict[str, Any] = {f"f{number}": number for number in range(20_000)}
    await attacker.ask(RequestCode.GET_MAX_OFFSET, **fields)


@each("bytes by chance", "closed at the first that are no frame")
async def _noise(attacker: Attacker, _: int) -> None:
    await attacker.throw(attacker.chance.randbytes(4096))


@each("HTTP", "closed; a log line a minute")
async def _http(attacker: Attacker, _: int) -> None:
    await attacker.throw(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")


@each("connections that come and go", "as many as half of the files")
async def _come_and_go(attacker: Attacker, _: int) -> None:
    async with attacker.connected():
        pass


@attack("1,000 connections that say nothing", "closed after 120 s")
async def _say_nothing(attacker: Attacker) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(1000):
            if attacker.goes_on:
                await stack.enter_async_context(attacker.connected())
        while attacker.goes_on:
            await asyncio.sleep(0.05)


@attack("questions, and reads no answer", "1 MiB, then nothing is read; 64 MiB")
async def _never_read(attacker: Attacker) -> None:
    frames = build_frame(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG)) * 200
    while attacker.goes_on:
        with contextlib.suppress(OSError, TimeoutError):
            async with attacker.connected() as (_, writer), asyncio.timeout(1):
                while attacker.goes_on:
                    writer.write(frames)
                    await writer.drain()


@attack("100,000 requests in one go", "10 ms a turn")
async def _pipelined(attacker: Attacker) -> None:
    frames = build_frame(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)) * 1000
    while attacker.goes_on:
        with contextlib.suppress(OSError, TimeoutError):
            async with attacker.connected() as (reader, writer), asyncio.timeout(2):
                for _ in range(100):
                    writer.write(frames)
                while attacker.goes_on and await reader.read(1 << 20):
                    pass


@each("requests of unknown codes", "3 (`REQUEST_CODE_NOT_SUPPORTED`)")
async def _unknown(attacker: Attacker, number: int) -> None:
    await attacker.ask(100_000 + number)


@each("answers to questions that nobody asked", "dropped")
async def _answers(attacker: Attacker, number: int) -> None:
    await attacker.client._client.send_oneway(RemotingCommand(0, RESPONSE, number, body=bytes(1000)))
    await asyncio.sleep(0)


@each("requests that want no answer", "none is given")
async def _oneway(attacker: Attacker, number: int) -> None:
    fields = {"topic": f"Oneway{number}", "defaultTopic": "TBW102", "queueId": "0", "producerGroup": "P"}
    fields |= {"defaultTopicQueueNums": "1", "sysFlag": "0", "bornTimestamp": "1", "flag": "0"}
    await attacker.client._client.send_oneway(RemotingCommand(RequestCode.SEND_MESSAGE, ONEWAY, ext_fields=fields))
    await asyncio.sleep(0.001)


@each("bodies of 15 MiB of JSON", "1 MiB: 29")
async def _long_body(attacker: Attacker, _: int) -> None:
    if attacker.goes_on:
        await attacker.ask(RequestCode.HEART_BEAT, b'{"clientID":"' + b"x" * (15 << 20) + b'"}')


@each("JSON of half a million brackets", "64 deep")
async def _deep(attacker: Attacker, _: int) -> None:
    await attacker.ask(RequestCode.HEART_BEAT, b"[" * 500_000)


# Topics and groups


@each("topics, a thousand and more", "20,000: 1")
async def _topics(attacker: Attacker, number: int) -> None:
    await attacker.make_topic(f"Made{number}")


@each("messages for ever new topics", "20,000: 1")
async def _sent_topics(attacker: Attacker, number: int) -> None:
    await attacker.send(f"Sent{number}")


@each("messages for retry topics of no group", "20,000: 1")
async def _retry_topics(attacker: Attacker, number: int) -> None:
    await attacker.send(f"%RETRY%No{number}")


@each("topics of 65,536 queues", "4,096: 29")
async def _wide_topics(attacker: Attacker, number: int) -> None:
    await attacker.make_topic(f"Wide{number}", 1 << 16)


@each("messages for each queue of topics of 4,096", "100,000 queues: 1")
async def _queues(attacker: Attacker, number: int) -> None:
    name = f"Queues{number // 4096}"
    if number % 4096 == 0 or not attacker.refused:
        await attacker.make_topic(name, 4096)
    await attacker.send(name, queue=number % 4096)


@each("topics with settings of 100,000 characters", "16,384: 1")
async def _long_topics(attacker: Attacker, number: int) -> None:
    await attacker.make_topic(f"Long{number}", attributes=f"+a={'x' * 100_000}")


@each("names of 16 KiB, with paths and line ends", "127 or 255 characters of %|a-zA-Z0-9_-")
async def _names(attacker: Attacker, number: int) -> None:
    await attacker.send(("../../etc/\r\n", "x" * (16 << 10), "\x00\x1b[2J")[number % 3])


@each("topics made and deleted", "files go beside the loop")
async def _deleted(attacker: Attacker, number: int) -> None:
    await attacker.send(f"Gone{number % 8}")
    await attacker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=f"Gone{number % 8}")


@each("lists of 20,000 topics to delete", "1 MiB: 29")
async def _deleted_lists(attacker: Attacker, number: int) -> None:
    if attacker.goes_on:
        names = [f"No{number}-{one}" for one in range(20_000)]
        await attacker.ask(RequestCode.DELETE_TOPIC_IN_BROKER_LIST, build_body({"topicList": names}))


@each("heartbeats of 20,000 groups", "256 of a client, 1 MiB: 29")
async def _heartbeat(attacker: Attacker, number: int) -> None:
    if attacker.goes_on:
        groups = tuple(consumer(f"H{number}-{one}") for one in range(20_000 if number % 2 else 2000))
        await attacker.beat(Heartbeat("c", (), groups))


@each("heartbeats of ever new groups and clients", "20,000 groups: 29")
async def _groups(attacker: Attacker, number: int) -> None:
    client = WireClient(attacker.broker)
    with contextlib.suppress(MqtoolError):
        beat = Heartbeat(f"c{number}", (), tuple(consumer(f"New{number}-{one}") for one in range(16)))
        await client.ask(RequestCode.HEART_BEAT, build_heartbeat(beat))
    await client.close()


@each("groups with settings of 100,000 characters", "16,384: 1")
async def _long_groups(attacker: Attacker, number: int) -> None:
    body = build_body({"groupName": f"L{number}", "whatever": "x" * 100_000})
    await attacker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)


@each("request modes for ever new groups", "20,000: 1")
async def _modes(attacker: Attacker, number: int) -> None:
    body = {"topic": "Honest", "consumerGroup": f"M{number}", "mode": "POP", "popShareQueueNum": 0}
    await attacker.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, build_body(body))


@each("offsets of ever new groups", "500,000: 1")
async def _offsets(attacker: Attacker, number: int) -> None:
    fields = attacker.pull_fields(consumerGroup=f"O{number}", queueId=number % 4, sysFlag=5, commitOffset=1)
    await attacker.ask(RequestCode.PULL_MESSAGE, **fields)


@each("locks of 1,000 queues that there are not", "100,000: 1")
async def _locks(attacker: Attacker, number: int) -> None:
    queues = [{"topic": f"L{number}", "brokerName": "b", "queueId": one} for one in range(1000)]
    body = {"consumerGroup": f"L{number}", "clientId": "c", "mqSet": queues}
    await attacker.ask(RequestCode.LOCK_BATCH_MQ, build_body(body))


@each("locks of 15,000 queues at once", "100,000: 1; 1 MiB: 29")
async def _many_locks(attacker: Attacker, number: int) -> None:
    queues = [{"topic": "L", "brokerName": "b", "queueId": one} for one in range(15_000)]
    body = {"consumerGroup": f"L{number % 4}", "clientId": "c", "mqSet": queues}
    await attacker.ask(RequestCode.LOCK_BATCH_MQ, build_body(body))


@each("topics forbidden to groups that there are not", "20,000: 1")
async def _forbidden(attacker: Attacker, number: int) -> None:
    fields: dict[str, Any] = {"group": f"F{number}", "topic": f"F{number}", "readable": False}
    await attacker.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, **fields)


# Consumers


@each("members that come and go in a large group", "notices wait for nobody")
async def _members(attacker: Attacker, number: int) -> None:
    client = WireClient(attacker.broker)
    with contextlib.suppress(MqtoolError):
        beat = Heartbeat(f"c{number}", (), (consumer("Churn", Subscription("Honest", "*", version=number)),))
        await client.ask(RequestCode.HEART_BEAT, build_heartbeat(beat))
    await client.close()


@each("4,000 subscriptions a heartbeat", "4,096, 16 Mi characters in all: 29")
async def _subscriptions(attacker: Attacker, number: int) -> None:
    wanted = (Subscription(f"T{one}", "x" * 100, version=number) for one in range(4000))
    await attacker.beat(Heartbeat(f"s{number % 50}", (), (consumer(f"Sub{number % 50}", *wanted),)))


@each("pulls with filters of 500,000 characters", "16,384: 23")
async def _filters(attacker: Attacker, number: int) -> None:
    text = f"{number} || " + " || ".join(["x" * 10] * 35_000)
    await attacker.ask(RequestCode.PULL_MESSAGE, **attacker.pull_fields(subscription=text))


@each("pulls with filters by SQL of 16,000 characters", "2,048 characters: 23")
async def _sql(attacker: Attacker, number: int) -> None:
    text = " OR ".join(f"a{number % 7} = {one}" for one in range(1000))
    await attacker.ask(RequestCode.PULL_MESSAGE, **attacker.pull_fields(subscription=text, expressionType="SQL92"))


@each("filters by SQL with 8,000 parentheses", "23")
async def _parentheses(attacker: Attacker, _: int) -> None:
    text = "(" * 8000 + "a = 1" + ")" * 8000
    await attacker.ask(RequestCode.PULL_MESSAGE, **attacker.pull_fields(subscription=text, expressionType="SQL92"))


@attack("pulls that wait, thousands at once", "100,000: answered at once")
async def _waiting_pulls(attacker: Attacker) -> None:
    fields = attacker.pull_fields(queueOffset=1 << 40, sysFlag=6, suspendTimeoutMillis=1000)
    texts = {name: str(value) for name, value in fields.items()}
    frames = b"".join(
        build_frame(RemotingCommand(RequestCode.PULL_MESSAGE, 0, number, texts)) for number in range(1000)
    )
    while attacker.goes_on:
        with contextlib.suppress(OSError, TimeoutError):
            async with attacker.connected() as (reader, writer), asyncio.timeout(1):
                for _ in range(20):
                    writer.write(frames)
                while attacker.goes_on and await reader.read(1 << 20):
                    pass


@each("pops that wait", "1,024 for the same: 209")
async def _waiting_pops(attacker: Attacker, number: int) -> None:
    fields = attacker.pop_fields(consumerGroup=f"W{number % 20}", topic="Empty", pollTime=500)
    await attacker.ask(RequestCode.POP_MESSAGE, **fields)


@each("pops that acknowledge nothing", "32 messages each; given again after their time")
async def _pops(attacker: Attacker, number: int) -> None:
    await attacker.ask(RequestCode.POP_MESSAGE, **attacker.pop_fields(consumerGroup=f"Pop{number % 5}"))


@each("pops of all queues of a topic of 4,096", "4,096 queues a topic")
async def _wide_pops(attacker: Attacker, number: int) -> None:
    if number % 256 == 0:
        await attacker.make_topic("WidePop", 4096)
    await attacker.ask(RequestCode.POP_MESSAGE, **attacker.pop_fields(topic="WidePop"))


@each("pulls of 2^31 messages, from everywhere", "what an answer holds")
async def _odd_pulls(attacker: Attacker, number: int) -> None:
    offset = (-1, 1 << 62, 0)[number % 3]
    await attacker.ask(RequestCode.PULL_MESSAGE, **attacker.pull_fields(queueOffset=offset, maxMsgNums=(1 << 31) - 1))


# Messages


@each("messages of 4 MiB", "`maxMessageSize`: 13")
async def _large(attacker: Attacker, _: int) -> None:
    if attacker.goes_on:
        await attacker.send("Large", bytes((4 << 20) + 1))


@each("messages of 1 MiB", "the disk")
async def _medium(attacker: Attacker, number: int) -> None:
    if attacker.goes_on and number % 8 == 0:
        await attacker.send("Medium", bytes(1 << 20))


@each("batches of 5,000 messages", "`maxMessageSize`")
async def _batches(attacker: Attacker, _: int) -> None:
    if attacker.goes_on:
        await attacker.send("Batches", batch(*[b""] * 5000), batch=True)


@each("messages with properties of 32 KiB", "32,767 bytes: 13")
async def _properties(attacker: Attacker, number: int) -> None:
    await attacker.send("Properties", pairs={"a": "x" * (32_000 + number % 1000)})


@each("messages of 2,000 keys", "32,767 bytes of properties")
async def _keys(attacker: Attacker, number: int) -> None:
    await attacker.send("Keys", pairs={"KEYS": " ".join(f"{number}-{one}" for one in range(2000))})


@each("messages by timer, a day ahead", "1,000,000: 1")
async def _timers(attacker: Attacker, number: int) -> None:
    await attacker.send("Timers", pairs={"TIMER_DELAY_SEC": str(86_000 + number % 100)})


@each("messages by timer, all for the next second", "500 a turn")
async def _due(attacker: Attacker, _: int) -> None:
    await attacker.send("Due", pairs={"TIMER_DELAY_SEC": "1"})


@each("recalls of names of 20,000 characters", "1,024: 13")
async def _recalls(attacker: Attacker, _: int) -> None:
    await attacker.send("Recalls", pairs={"TIMER_DELAY_SEC": "100", "TIMER_DEL_UNIQKEY": "x" * 20_000})


@each("half messages whose transactions stay open", "1,000,000: 14")
async def _halves(attacker: Attacker, _: int) -> None:
    await attacker.send("Halves", pairs={"TRAN_MSG": "true", "PGROUP": "Nobody"})


@each("messages for topics of the broker", "16 (`NO_PERMISSION`)")
async def _forged(attacker: Attacker, _: int) -> None:
    await attacker.send("rmq_sys_wheel_timer")


@each("messages sent back, to the dead letters", "one a message")
async def _sent_back(attacker: Attacker, _: int) -> None:
    fields: dict[str, Any] = {"group": "A", "offset": 0, "delayLevel": -1, "originMsgId": "x", "originTopic": "Honest"}
    await attacker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **fields, maxReconsumeTimes=0, unitMode=False)


# Questions


@each("questions for a key that all messages have", "64 messages")
async def _queries(attacker: Attacker, number: int) -> None:
    if number % 64 == 0:
        await asyncio.gather(*(attacker.send("Common", pairs={"KEYS": "same"}) for _ in range(64)))
    fields: dict[str, Any] = {
        "topic": "Common",
        "key": "same",
        "maxNum": 1 << 30,
        "beginTimestamp": 0,
        "endTimestamp": 1 << 62,
    }
    await attacker.ask(RequestCode.QUERY_MESSAGE, **fields)


@each("statistics of a topic of 4,096 queues", "4,096 queues a topic")
async def _statistics(attacker: Attacker, number: int) -> None:
    if number % 256 == 0:
        await attacker.make_topic("WideStats", 4096)
    await attacker.ask(RequestCode.GET_TOPIC_STATS_INFO, topic="WideStats")


@each("the progress of a group in a topic of 4,096 queues, which is named a thousand times", "100,000 queues: 1")
async def _progress(attacker: Attacker, number: int) -> None:
    if number % 256 == 0:
        await attacker.make_topic("WideProgress", 4096)
    await attacker.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="A", topicList="WideProgress;" * 1000)


@each("acknowledgements of 8,000 pops at once", "1 MiB: 29")
async def _many_acks(attacker: Attacker, number: int) -> None:
    pop = {"c": "A", "t": "Honest", "so": 0, "pt": number, "q": 0, "rq": 0, "it": 1000, "b": "AQ==", "r": "0"}
    body = {"brokerName": "broker-a", "acks": [{**pop, "pt": number * 8000 + one} for one in range(8000)]}
    await attacker.ask(RequestCode.BATCH_ACK_MESSAGE, build_body(body))


@each("lists of all topics, groups and offsets", "20,000, 20,000, 500,000")
async def _lists(attacker: Attacker, number: int) -> None:
    codes = (
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
    )
    await attacker.ask(codes[number % 3])


@each("resets of all queues of a topic of 4,096", "4,096 queues a topic")
async def _resets(attacker: Attacker, number: int) -> None:
    if number % 256 == 0:
        await attacker.make_topic("WideReset", 4096)
    fields: dict[str, Any] = {"topic": "WideReset", "group": "A", "timestamp": -1, "isForce": True}
    await attacker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)


@each("questions to a member that never answers", "64 of a client: 1; 10.5 s")
async def _hangs(attacker: Attacker, number: int) -> None:
    if number % 256 == 0:
        await attacker.beat(Heartbeat("hangs", (), (consumer("Hangs", Subscription("Honest", "*")),)))
    fields: dict[str, Any] = {"consumerGroup": "Hangs", "clientId": "hangs"}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await attacker.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **fields)


@each("settings of 100,000 characters", "255 characters, and what is no setting: 29")
async def _settings(attacker: Attacker, number: int) -> None:
    name = "regionId" if number % 2 else f"whatever{number}"
    await attacker.ask(RequestCode.UPDATE_BROKER_CONFIG, f"traceOn=true\n{name}={'x' * 100_000}".encode())


# The port for Pulsar clients


def pulsar(sends: str, limit: str) -> Callable[[Callable[[Attacker, PulsarWire, int], Awaitable[None]]], None]:
    """Have a function be an attack by a client of Pulsar, which connects again after some hundred times."""

    def take(one: Callable[[Attacker, PulsarWire, int], Awaitable[None]]) -> None:
        async def run(attacker: Attacker) -> None:
            while attacker.goes_on:
                with contextlib.suppress(AssertionError, OSError):  # it was disconnected
                    async with connected(attacker.pulsar) as client:
                        for number in itertools.islice(attacker.numbers, 500):
                            if attacker.goes_on:
                                await one(attacker, client, number)

        ATTACKS.append(Attack(f"Pulsar: {sends}", limit, run))

    return take


def _subscription(consumer_id: int, kind: int, name: str) -> dict[str, Any]:
    return {"topic": "Pulsar", "subscription": name, "subType": kind, "consumer_id": consumer_id, "initialPosition": 1}


async def _refused(attacker: Attacker, client: PulsarWire, name: str, **fields: Any) -> None:
    attacker.refused += bool(await client.outcome(name, **fields))


@pulsar("consumers with 1,000 ranges of hashes each", "16 Mi characters in all, 64 a range: `NotAllowedError`")
async def _ranges(attacker: Attacker, client: PulsarWire, number: int) -> None:
    fields = _subscription(number, 3, f"ranges{number}")
    base = pulsar_command("subscribe", request_id=client.next_request, **fields)
    base.subscribe.keySharedMeta.keySharedMode = 1
    for start in range(1000):
        base.subscribe.keySharedMeta.hashRanges.add(start=start, end=start)
    attacker.refused += (await client.ask_with(base)).name == "error"


@pulsar("ever more consumers of one subscription", "1,000: `NotAllowedError`")
async def _failover(attacker: Attacker, client: PulsarWire, number: int) -> None:
    await _refused(attacker, client, "subscribe", **_subscription(number, 2, "failover"))


@pulsar("ever new subscriptions", "500,000 offsets, 20,000 groups: `NotAllowedError`")
async def _new_subscriptions(attacker: Attacker, client: PulsarWire, number: int) -> None:
    await _refused(attacker, client, "subscribe", **_subscription(number, 1, f"new{number}"))


@pulsar("messages, and consumers that acknowledge every second of them", "100,000 gaps, 1,000,000 messages in all")
async def _gaps(attacker: Attacker, client: PulsarWire, number: int) -> None:
    if number % 500 == 0 or not client.told.qsize():
        await _refused(attacker, client, "producer", topic="Pulsar", producer_id=1)
        await _refused(attacker, client, "subscribe", **_subscription(1, 1, f"gaps{number}"))
        client.say("flow", consumer_id=1, messagePermits=100_000)
    client.send(number, b"message", 1)
    await client.ask("get_last_message_id", consumer_id=1)
    while client.told.qsize():
        said = client.told.get_nowait()
        if said is not None and said.name == "message" and said.body.message_id.entryId % 2:
            client.say("ack", consumer_id=1, ack_type=0, message_id=[said.body.message_id])


@pulsar("lists of more than 100,000 topics", "100,000: `NotAllowedError`")
async def _topic_lists(attacker: Attacker, client: PulsarWire, number: int) -> None:
    if number % 10 == 0:
        await attacker.make_topic(f"Listed{number}", 4096)
    await _refused(attacker, client, "get_topics", namespace="public/default")


@pulsar("schemas of 400,000 bytes of properties", "512 KiB each, 16 MiB in all: `NotAllowedError`")
async def _schemas(attacker: Attacker, client: PulsarWire, number: int) -> None:
    base = pulsar_command("get_or_create_schema", topic="Pulsar", request_id=client.next_request)
    schema = base.get_or_create_schema.schema
    schema.name, schema.type, schema.schema_data = "s", 1, b"%d" % number
    schema.properties.add(key=b"k", value=bytes(400_000))
    attacker.refused += (await client.ask_with(base)).body.HasField("error_code")


@pulsar("producers that wait for a topic", "1,000: `NotAllowedError`")
async def _waiting_producers(attacker: Attacker, client: PulsarWire, number: int) -> None:
    await _refused(attacker, client, "producer", topic="Waited", producer_id=number, producer_access_mode=2)


# The name server


@each("registrations of ever new brokers", "1,000: 1")
async def _brokers(attacker: Attacker, number: int) -> None:
    await _register(attacker, f"b{number}", f"192.0.2.1:{number}", 2)


@each("registrations of 10,000 topics each", "200,000, 4 MiB: 1, 29")
async def _registered_topics(attacker: Attacker, number: int) -> None:
    if number % _AT_ONCE < 2:
        await _register(attacker, f"t{number}", f"192.0.2.2:{number}", 10_000)


async def _register(attacker: Attacker, name: str, address: str, count: int) -> None:
    command = registration(name, address, (f"{name}-{one}" for one in range(count)))
    await attacker.ask_names(command.code, command.body, **command.ext_fields)


@each("registrations that inflate to a gigabyte", "64 MiB")
async def _bombs(attacker: Attacker, number: int) -> None:
    if number % _AT_ONCE == 0:
        header: dict[str, Any] = {
            **build_header(BrokerIdentity("z", "192.0.2.3:1", "C", 0)),
            "haServerAddr": "",
            "compressed": "true",
        }
        await attacker.ask_names(RequestCode.REGISTER_BROKER, _BOMB, **header)


_BOMB = zlib.compress(bytes(1 << 30), 1)[: 1 << 22]


@each("kv configs", "10,000, 4 Mi characters: 29")
async def _kv(attacker: Attacker, number: int) -> None:
    fields: dict[str, Any] = {"namespace": f"N{number % 100}", "key": f"k{number}", "value": "x" * 10_000}
    await attacker.ask_names(RequestCode.PUT_KV_CONFIG, **fields)


@each("routes of topics that there are not", "17 (`TOPIC_NOT_EXIST`)")
async def _routes(attacker: Attacker, number: int) -> None:
    await attacker.ask_names(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=f"No{number}")


# The honest one


@dataclasses.dataclass(frozen=True)
class Honest:
    """What became of the honest client meanwhile."""

    count: int
    slowest: float  # seconds
    p999: float


async def _be_honest(broker: str) -> None:
    """Send and read, and tell of it whenever a line comes."""
    client = WireClient(broker)
    await client.make_topic("Honest", readQueueNums=4, writeQueueNums=4)
    await client.send(b"first", 0, "Honest")
    print("ready", flush=True)
    times: list[float] = []
    loop = asyncio.get_running_loop()
    asked = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)

    async def send_on() -> None:
        for number in itertools.count():
            begun = time.perf_counter()
            await client.send(b"honest %d" % number, number % 4, "Honest")
            times.append(time.perf_counter() - begun)
            await asyncio.sleep(0.002)

    sending = asyncio.create_task(send_on())
    while await asked.readline():
        some, times[:] = sorted(times), []
        if sending.done():
            sending.result()
        slowest, p999 = (some[-1], some[int(len(some) * 0.999)]) if some else (0.0, 0.0)
        print(json.dumps([len(some), slowest, p999]), flush=True)
    sending.cancel()


@dataclasses.dataclass(frozen=True)
class AttackRow:
    """What an attack came to."""

    attack: Attack
    honest: Honest
    memory: int  # bytes, the most there were meanwhile
    refused: int


async def run_hostile(
    folder: Path,
    seconds: float,
    attacks: Sequence[Attack] = ATTACKS,
    tell: Callable[[AttackRow], None] = lambda _: None,
) -> list[AttackRow]:
    """Carry out attacks, so long each, and tell of each when it is over.

    Raises:
        AssertionError: the honest client was not served, or the server or its store is not as it should be.
    """
    pulsar, rows = f"127.0.0.1:{free_port()}", []
    served = Served(folder, {**SETTINGS, "pulsarPort": pulsar.partition(":")[2]})
    async with served.running() as process:
        await served.until_ready(process)
        honest = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.campaigns.hostile", "--honest", served.broker),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )
        assert honest.stdin
        assert honest.stdout
        try:
            assert await honest.stdout.readline() == b"ready\n"
            for one in attacks:
                attacker = Attacker(served, seconds)
                attacker.pulsar = pulsar
                await attacker.make_topic("Empty")
                await _told(honest)
                Path(f"/proc/{process.pid}/clear_refs").write_text(_PEAK_BEGINS)
                attacker.begin()
                await one.run(attacker)
                while not (seen := await _told(honest)).count:  # it was not served once: it has to be
                    await asyncio.sleep(0.01)
                rows.append(AttackRow(one, seen, _most_memory(process.pid), attacker.refused))
                tell(rows[-1])
                await attacker.client.close()
                await attacker.names.close()
        finally:
            honest.stdin.close()
            await honest.wait()
        process.terminate()
        assert await process.wait() == 0, served.log.read_text()
    log = served.log.read_text()
    assert "Traceback" not in log, log
    wrong = [
        one
        for one in verify_store(StoreReader(served.store, StoreConfig(SETTINGS)))
        if one.severity != Severity.NOTE and not (one.code in _OF_DELETED and (one.topic or "").startswith("Gone"))
    ]
    assert not wrong, wrong
    return rows


def _most_memory(process: int) -> int:
    """Return the most bytes that a process had in memory since the peak began, but for those of files."""
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    kib = {words[0]: int(words[1]) for words in lines if words[0] in ("VmHWM:", "RssFile:")}
    return (kib["VmHWM:"] - kib["RssFile:"]) << 10


async def _told(honest: asyncio.subprocess.Process) -> Honest:
    assert honest.stdin
    assert honest.stdout
    honest.stdin.write(b"\n")
    async with asyncio.timeout(_ANSWER_SECONDS):
        return Honest(*json.loads(await honest.stdout.readline()))


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each attack goes on")
    parser.add_argument("--only", default="", metavar="TEXT", help="attacks of which the first column says this")
    parser.add_argument("--honest", metavar="BROKER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.honest:
        asyncio.run(_be_honest(given.honest))
        return
    print("| sent | its limit | refused | honest sends | slowest | 999 of 1,000 within | memory |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="mqtool-hostile-") as name:
        attacks = [one for one in ATTACKS if given.only in one.sends]
        asyncio.run(run_hostile(Path(name), given.seconds, attacks, _print))


def _print(row: AttackRow) -> None:
    honest = row.honest
    print(
        f"| {row.attack.sends} | {row.attack.limit} | {row.refused:,} | {honest.count:,} "
        f"| {honest.slowest * 1000:,.0f} ms | {honest.p999 * 1000:,.0f} ms | {row.memory / 2**20:,.0f} MiB |",
        flush=True,
    )


if __name__ == "__main__":
    main()
