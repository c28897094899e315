"""A store goes from our broker to RocketMQ's and back, with all that is under way in it, and nothing is lost.

The same is done over the wire to whichever broker is first: all kinds of sends, delays, transactions, messages sent
back, dead letters, offsets, pops. Whoever is second must serve all of that, deliver what becomes due, give out again
what was popped and not acknowledged, and ask how the open transaction ended. In the end ``verify`` finds nothing.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

import mqtool
from mqtool.engine.cluster import Cluster
from mqtool.engine.repair.findings import Severity
from mqtool.engine.server_configs import NameServerConfig
from mqtool.formats.bodies import Heartbeat, build_heartbeat
from mqtool.formats.codes import RequestCode
from mqtool.formats.topics import OP_TOPIC
from tests.differential.conftest import jars
from tests.differential.java_broker import POM, running_broker, within
from tests.differential.java_store import each_version
from tests.ports import free_port
from tests.wire_client import PRODUCERS, WireClient, batch

pytestmark = pytest.mark.java

PATIENCE = 180
SETTINGS: dict[str, str | int] = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "brokerName": "broker-java",
}
QUICK: dict[str, str | int] = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
"""For the second: the first is not to ask yet how a transaction ended, which some brokers forget for a while."""
ORDERS, BATCHED, POPPED, IN_ORDER, GROUP = "Orders", "Batched", "Popped", "InOrder", "G"
SOON, FAR = 3, 18  # delay levels: 10 s, 2 h


Served = dict[tuple[str, int], list[tuple[Any, ...]]]
"""What each queue has, message by message: queue offset, body, properties, times, and how often it was consumed."""


async def can_be_read(client: WireClient, topic: str, count: int) -> None:
    """Return when so many messages are in their queue: RocketMQ takes a while, on a busy machine, after its answer."""
    while len(await client.messages(topic)) < count:
        await asyncio.sleep(0.1)


async def fill(client: WireClient, *, is_five: bool) -> dict[str, str]:
    """Do something of everything, and return the half message that is left open."""
    await client.make_topic(ORDERS)
    group = {"groupName": GROUP, "retryQueueNums": 1, "retryMaxTimes": 16, "consumeEnable": True}
    await client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, orjson.dumps(group))
    for number in range(30):
        pairs = {"TAGS": f"t{number % 3}", "KEYS": f"k{number} all"}
        await client.send(b"single %d" % number, number % 2, pairs=pairs)
    await client.send(bytes(200_000), 1)
    await client.send(batch(b"b0", b"b1", b"b2"), 1, batch=True)
    if is_five:
        await client.make_topic(BATCHED, attributes="+queue.type=BatchCQ")
        for _ in range(3):
            await client.send(batch(b"i0", b"i1"), topic=BATCHED, batch=True)
        await client.send(b"alone", topic=BATCHED)
        later = time.time_ns() // 1_000_000 + 10_000
        await client.send(b"timer", pairs={"TIMER_DELIVER_MS": str(later)})
        await client.send(b"timer, far", pairs={"TIMER_DELIVER_MS": str(later + 3_600_000)})
        await client.make_topic(POPPED)
        for body in (b"p0", b"p1", b"p2", b"p3"):
            await client.send(body, topic=POPPED)
        await can_be_read(client, POPPED, 4)
        taken = await client.pop(POPPED, GROUP, 3, 10_000)
        assert [body for body, _ in taken] == [b"p0", b"p1", b"p2"]
        await client.done(RequestCode.ACK_MESSAGE, **taken[1][1])
        await client.make_topic(IN_ORDER)
        for body in (b"o0", b"o1", b"o2"):
            await client.send(body, topic=IN_ORDER)
        await can_be_read(client, IN_ORDER, 3)
        taken = await client.pop(IN_ORDER, GROUP, 2, 10_000, in_order=True)
        assert [body for body, _ in taken] == [b"o0", b"o1"]
        await client.done(RequestCode.ACK_MESSAGE, **taken[0][1])
    for level, body in ((SOON, b"delayed"), (FAR, b"delayed, far")):
        await client.send(body, pairs={"DELAY": str(level)})
    halves = [await client.prepare(body) for body in (b"committed", b"rolled back", b"open")]
    await client.end(halves[0], 8)
    await client.end(halves[1], 12)
    while is_five and sum(len(re.findall(rb"[0-9]+", one.body)) for one in await client.messages(OP_TOPIC)) < 2:
        await asyncio.sleep(0.1)  # brokers of 5.x keep for some seconds in memory which ones have ended
    [first, second, *_] = await client.messages(ORDERS)
    for one, level in ((first, SOON), (second, -1)):
        fields: dict[str, Any] = {"offset": one.physical_offset, "group": GROUP, "delayLevel": level}
        fields |= {"originMsgId": one.unique_key, "originTopic": ORDERS, "maxReconsumeTimes": 16, "unitMode": False}
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, **fields)
    await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=GROUP, topic=ORDERS, queueId=1, commitOffset=7)
    return halves[2]


PLACES = ((ORDERS, 0), (ORDERS, 1), (BATCHED, 0), (f"%DLQ%{GROUP}", 0), (f"%RETRY%{GROUP}", 0))


async def all_messages(client: WireClient) -> Served:
    return {
        place: [
            (one.queue_offset, one.body, one.properties, one.born_timestamp, one.store_timestamp, one.reconsume_times)
            for one in await client.messages(*place)
        ]
        for place in PLACES
    }


async def until(client: WireClient, body: bytes, topic: str) -> None:
    """Return when a topic has a message."""
    while body not in {one.body for one in await client.messages(topic)}:
        await asyncio.sleep(0.1)


async def popped(client: WireClient, topic: str, count: int, *, in_order: bool = False) -> list[bytes]:
    """Pop and acknowledge until this many messages have come, and once more; return them."""
    bodies: list[bytes] = []
    is_last = False
    while not is_last:
        is_last = len(bodies) >= count
        for body, ack in await client.pop(topic, GROUP, 32, 60_000, in_order=in_order):
            await client.done(RequestCode.ACK_MESSAGE, **ack)
            bodies.append(body)
        await asyncio.sleep(0.1)
    return bodies


class Use(NamedTuple):
    """What a broker makes of the store of another."""

    at_first: Served
    offset: str
    """Of the group, in the second queue."""
    found: bytes
    """The messages of a key that all have."""
    asked: dict[str, str]
    """What it asks of the open transaction."""
    popped: list[bytes]
    popped_in_order: list[bytes]
    at_last: Served


async def use(client: WireClient, half: dict[str, str], *, is_five: bool) -> Use:
    """Read what a broker has, end the open transaction, and wait for all that becomes due."""
    at_first = await all_messages(client)
    offset = await client.done(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=GROUP, topic=ORDERS, queueId=1)
    found = await client.ask(
        RequestCode.QUERY_MESSAGE, topic=ORDERS, key="all", maxNum=64, beginTimestamp=0, endTimestamp=1 << 62
    )
    await client.done(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c1", (PRODUCERS,))))
    asked = dict((await client.checks.get()).ext_fields)
    copy = {name: asked[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    await client.end({**half, **copy}, 8, is_checked=True)
    for body, topic in ((b"open", ORDERS), (b"delayed", ORDERS), (b"single 0", f"%RETRY%{GROUP}")):
        await until(client, body, topic)
    in_any_order, in_order = [], []
    if is_five:
        await until(client, b"timer", ORDERS)
        in_any_order = await popped(client, POPPED, 3)
        in_order = await popped(client, IN_ORDER, 2, in_order=True)
    await client.send(b"the last", 1)
    at_last = await all_messages(client)
    return Use(at_first, offset["offset"], found.body, asked, in_any_order, in_order, at_last)


@contextlib.asynccontextmanager
async def ours(store: Path, **more: str | int) -> AsyncIterator[WireClient]:
    async with mqtool.Broker(store, settings={**SETTINGS, **more}) as broker:
        client = WireClient(broker.address)
        yield client
        await client.close()


@contextlib.asynccontextmanager
async def theirs(version: str, store: Path, **more: str | int) -> AsyncIterator[WireClient]:
    lines = "".join(f"{name}={value}\n" for name, value in more.items())
    folder = store.parent / f"java-{time.monotonic_ns()}"
    async with (
        Cluster(NameServerConfig()) as names,
        running_broker(version, folder, names.name_server_address, free_port(), store, lines) as address,
    ):
        client = WireClient(address)
        yield client
        await client.close()


def in_time(version: str, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    jars(version, POM)
    within(PATIENCE, test())


def faults(store: Path) -> list[str]:
    settings = {name: str(value) for name, value in SETTINGS.items()}
    findings = mqtool.verify_store(mqtool.open_store(store, settings))
    return [f"{one.code} {one.file} {one.message}" for one in findings if one.severity != Severity.NOTE]


@pytest.mark.parametrize("is_ours_first", [True, False], ids=["ours first", "theirs first"])
@each_version
def test_a_broker_goes_on_with_a_store_of_the_other_kind(version: str, is_ours_first: bool, tmp_path: Path) -> None:
    store, is_five = tmp_path / "store", not version.startswith("4")
    brokers = partial(ours, store), partial(theirs, version, store)
    first, second = brokers if is_ours_first else brokers[::-1]

    async def handed_over() -> None:
        async with first() as client:
            half = await fill(client, is_five=is_five)
            before = await all_messages(client)
        if is_ours_first:
            assert faults(store) == []
        async with second(**QUICK) as client:
            used = await use(client, half, is_five=is_five)

        for place, messages in before.items():
            assert used.at_first[place][: len(messages)] == used.at_last[place][: len(messages)] == messages, place
            assert [one[0] for one in used.at_last[place]] == list(range(len(used.at_last[place]))), place
        assert used.offset == "7"
        assert used.found.count(b"single ") == 30
        assert used.asked["transactionId"] == half["transactionId"]
        bodies = [one[1] for messages in used.at_last.values() for one in messages]
        times = {body: bodies.count(body) for body in (b"committed", b"open", b"delayed", b"single 0", b"single 2")}
        assert times == {b"committed": 1, b"open": 1, b"delayed": 1, b"single 0": 2, b"single 2": 2}
        assert not {b"rolled back", b"delayed, far", b"timer, far"} & {*bodies}
        assert used.at_last[ORDERS, 1][-1][1] == b"the last"
        if is_five:
            assert sorted(used.popped) == [b"p0", b"p2", b"p3"]
            assert used.popped_in_order == [b"o1", b"o2"]
            assert [one[1] for one in used.at_last[BATCHED, 0]] == [b"i0", b"i1"] * 3 + [b"alone"]
            assert bodies.count(b"timer") == 1

    in_time(version, handed_over)
    assert faults(store) == []
