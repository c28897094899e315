"""Messages with one unique key, as a producer sends that sends one message several times: none stands for another."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.formats.bodies import Heartbeat, build_heartbeat
from mqtool.formats.codes import RequestCode
from mqtool.formats.recall import RecallHandle, build_handle
from mqtool.formats.topics import HALF_TOPIC
from tests.wire_client import PRODUCERS, WireClient

KEY = "7F00000100002A139A556A5C3E9A0000"
SECOND = 1_700_000_010_000
"""When the messages of a test are due, 10 s after it begins."""


class SharedKeyRun:
    """A broker that is stopped or killed and started anew on what it left, by a clock that goes on."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.clock = mqtool.VirtualClock(now=SECOND - 10_000)

    @asynccontextmanager
    async def broker(self, **settings: Any) -> AsyncIterator[WireClient]:
        """Give a client of the broker, which is stopped at the end of the block."""
        store = self._root / "store"
        given = {"mappedFileSizeCommitLog": 1 << 20, "recallMessageEnable": True, **settings}
        async with mqtool.Broker(store, clock=self.clock, settings=given) as broker:
            client = WireClient(broker.address)
            yield client
            await client.close()

    @asynccontextmanager
    async def killed_broker(self, **settings: Any) -> AsyncIterator[WireClient]:
        """As ``broker``, but what it leaves are its files as they were before it was stopped."""
        async with self.broker(**settings) as client:
            yield client
            shutil.copytree(self._root / "store", self._root / "left")
        shutil.rmtree(self._root / "store")
        (self._root / "left").rename(self._root / "store")


def on(root: Path, test: Callable[[SharedKeyRun], Awaitable[None]]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(60):
            await test(SharedKeyRun(root))

    asyncio.run(timed())


async def send(client: WireClient, body: str, topic: str = "A", at: int = SECOND, **pairs: str) -> dict[str, str]:
    """Send a message that is to be delivered at ``at``."""
    properties = {"UNIQ_KEY": KEY, "TIMER_DELIVER_MS": str(at), **pairs}
    return await client.send(body.encode(), 0, topic, pairs=properties)


async def bodies(client: WireClient, topic: str = "A") -> list[str]:
    return [one.body.decode() for one in await client.messages(topic)]


ways_to_end = pytest.mark.parametrize("way", ["stopped", "killed"])


@ways_to_end
def test_each_timer_message_is_delivered_however_many_share_its_key(way: str, tmp_path: Path) -> None:
    async def test(run: SharedKeyRun) -> None:
        async with (run.broker if way == "stopped" else run.killed_broker)() as client:
            for number in range(5):
                await send(client, str(number), "AB"[number % 2], SECOND + number // 4 * 1000)
        async with (run.broker if way == "stopped" else run.killed_broker)() as client:
            run.clock.advance(10)
            assert (await bodies(client, "A"), await bodies(client, "B")) == (["0", "2"], ["1", "3"])
        async with run.broker() as client:
            run.clock.advance(5)
            assert (await bodies(client, "A"), await bodies(client, "B")) == (["0", "2", "4"], ["1", "3"])

    on(tmp_path, test)


@ways_to_end
def test_messages_that_are_the_same_in_all_are_each_delivered(way: str, tmp_path: Path) -> None:
    async def test(run: SharedKeyRun) -> None:
        async with (run.broker if way == "stopped" else run.killed_broker)() as client:
            for _ in range(3):
                await client.send(b"same", 0, "A", pairs=pairs, bornTimestamp=1)
            run.clock.advance(10)
            assert await bodies(client) == ["same"] * 3
        async with run.broker() as client:
            run.clock.advance(5)
            assert await bodies(client) == ["same"] * 3

    pairs = {"UNIQ_KEY": KEY, "TIMER_DELIVER_MS": str(SECOND)}
    on(tmp_path, test)


@ways_to_end
def test_a_recall_removes_all_with_its_key_of_its_topic_and_second_sent_before_it_or_after(
    way: str, tmp_path: Path
) -> None:
    async def test(run: SharedKeyRun) -> None:
        async with (run.broker if way == "stopped" else run.killed_broker)() as client:
            sent = [await send(client, f"recalled {number}", at=SECOND - number) for number in range(3)]
            await send(client, "of another topic", "B")
            await send(client, "of another second", at=SECOND + 1000)
            await send(client, "of another key", UNIQ_KEY="another")
            handle = sent[0]["recallHandle"]
            await client.done(RequestCode.RECALL_MESSAGE, producerGroup=PRODUCERS, topic="A", recallHandle=handle)
        async with (run.broker if way == "stopped" else run.killed_broker)() as client:
            await send(client, "sent after it")
        async with run.broker() as client:
            run.clock.advance(15)
            assert await bodies(client) == ["of another key", "of another second"]
            assert await bodies(client, "B") == ["of another topic"]

    on(tmp_path, test)


def test_a_recall_that_names_a_second_with_no_message_of_its_key_removes_nothing(tmp_path: Path) -> None:
    async def test(run: SharedKeyRun) -> None:
        async with run.broker() as client:
            await send(client, "one")
            handle = build_handle(RecallHandle("A", "broker-a", SECOND + 1000, KEY))
            await client.done(RequestCode.RECALL_MESSAGE, producerGroup=PRODUCERS, topic="A", recallHandle=handle)
            run.clock.advance(15)
            assert await bodies(client) == ["one"]

    on(tmp_path, test)


def test_a_recall_as_5_5_stores_it_removes_what_has_its_key_in_any_topic(tmp_path: Path) -> None:
    async def test(run: SharedKeyRun) -> None:
        async with run.broker() as client:
            for topic in "AB":
                await send(client, "recalled", topic)
            await send(client, "recall", UNIQ_KEY="another", TIMER_DEL_UNIQKEY=KEY)
        async with run.broker() as client:
            run.clock.advance(15)
            assert (await bodies(client, "A"), await bodies(client, "B")) == ([], [])

    on(tmp_path, test)


def test_a_timer_message_that_a_consumer_sends_on_is_no_copy_of_another(tmp_path: Path) -> None:
    async def test(run: SharedKeyRun) -> None:
        async with run.broker() as client:
            await client.send(b"one", 0, "A", pairs=pairs, bornTimestamp=1)
            await client.send(b"one", 0, "A", pairs={**pairs, "TIMER_ROLL_TIMES": "1"}, bornTimestamp=1)
        async with run.broker() as client:
            run.clock.advance(15)
            assert await bodies(client) == ["one", "one"]

    pairs = {"UNIQ_KEY": KEY, "TIMER_DELIVER_MS": str(SECOND)}
    on(tmp_path, test)


@ways_to_end
def test_half_messages_that_share_a_key_are_each_asked_for_and_ended(way: str, tmp_path: Path) -> None:
    quick = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}

    async def test(run: SharedKeyRun) -> None:
        async with (run.broker if way == "stopped" else run.killed_broker)(**quick) as client:
            pairs = {"UNIQ_KEY": KEY, "TRAN_MSG": "true", "PGROUP": PRODUCERS}
            halves = [
                await client.send(b"half", 0, topic, pairs=pairs, sysFlag=4, bornTimestamp=SECOND - 10_000)
                for topic in "AABB"
            ]
            run.clock.advance(3)  # all are checked, and so stored as copies
            assert len(await client.messages(HALF_TOPIC)) == 8
        async with (run.broker if way == "stopped" else run.killed_broker)(**quick) as client:
            for half in (halves[0], halves[2]):
                await client.end(
                    {
                        "producerGroup": PRODUCERS,
                        "tranStateTableOffset": half["queueOffset"],
                        "commitLogOffset": str(int(half["msgId"][-16:], 16)),
                        "msgId": KEY,
                        "transactionId": KEY,
                    },
                    8,
                )
        async with run.broker(**quick) as client:
            copies = (await client.messages(HALF_TOPIC))[4:8]
            assert Counter(one.properties["REAL_TOPIC"] for one in copies) == {"A": 2, "B": 2}
            for copy in copies:
                place = {"tranStateTableOffset": str(copy.queue_offset), "commitLogOffset": str(copy.physical_offset)}
                whole = {"producerGroup": PRODUCERS, "msgId": KEY, "transactionId": KEY, **place}
                await client.end(whole, 8, is_checked=True)
            assert (await bodies(client, "A"), await bodies(client, "B")) == (["half"] * 2, ["half"] * 2)

    on(tmp_path, test)


def test_a_kill_between_a_copy_and_its_mark_closes_no_other_half_message_of_its_key(tmp_path: Path) -> None:
    quick = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
    pairs = {"UNIQ_KEY": KEY, "TRAN_MSG": "true", "PGROUP": PRODUCERS}

    async def test(run: SharedKeyRun) -> None:
        async with run.killed_broker(**quick) as client:
            more = {"sysFlag": 4, "bornTimestamp": SECOND - 10_000}
            first = await client.send(b"half", 0, "A", pairs={**pairs, "CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}, **more)
            await client.send(b"half", 0, "B", pairs=pairs, **more)
            run.clock.advance(3)  # the second is checked, the first is too young
            *_, copy = await client.messages(HALF_TOPIC)
            assert copy.properties["REAL_TOPIC"] == "B"
        [segment] = (tmp_path / "store" / "commitlog").iterdir()
        with segment.open("r+b") as file:  # the kill came a moment before the mark
            file.seek(copy.physical_offset + copy.size)
            file.write(bytes(segment.stat().st_size - file.tell()))
        async with run.broker(**quick) as client:
            for queue_offset, address in (
                (first["queueOffset"], int(first["msgId"][-16:], 16)),
                (copy.queue_offset, copy.physical_offset),
            ):
                place = {"tranStateTableOffset": str(queue_offset), "commitLogOffset": str(address)}
                await client.end({"producerGroup": PRODUCERS, "msgId": KEY, "transactionId": KEY, **place}, 8)
            run.clock.advance(100)
            assert (await bodies(client, "A"), await bodies(client, "B")) == (["half"], ["half"])

    on(tmp_path, test)


def test_a_committed_message_that_went_with_the_power_is_asked_for_though_another_has_its_key(tmp_path: Path) -> None:
    pairs = {"UNIQ_KEY": KEY, "TRAN_MSG": "true", "PGROUP": PRODUCERS}

    async def test(run: SharedKeyRun) -> None:
        async with run.killed_broker() as client:
            for topic in "AB":
                more = {"sysFlag": 4, "bornTimestamp": SECOND - 10_000}
                half = await client.send(b"half", 0, topic, pairs=pairs, **more)
                address = int(half["msgId"][-16:], 16)
                place = {"tranStateTableOffset": half["queueOffset"], "commitLogOffset": str(address)}
                await client.end({"producerGroup": PRODUCERS, "msgId": KEY, "transactionId": KEY, **place}, 8)
            [lost] = await client.messages("A")
        [segment] = (tmp_path / "store" / "commitlog").iterdir()
        with segment.open("r+b") as file:
            file.seek(lost.physical_offset)
            file.write(bytes(lost.size))
        async with run.broker(transactionTimeOut=1000, transactionCheckInterval=1000) as client:
            await client.done(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c1", (PRODUCERS,))))
            run.clock.advance(100)
            asked = await client.checks.get()
            place = {name: asked.ext_fields[name] for name in ("tranStateTableOffset", "commitLogOffset")}
            await client.end({"producerGroup": PRODUCERS, "msgId": KEY, "transactionId": KEY, **place}, 8)
            assert (await bodies(client, "A"), await bodies(client, "B")) == (["half"], ["half"])

    on(tmp_path, test)
