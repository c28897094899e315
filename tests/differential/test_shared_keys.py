"""Timer messages with one unique key: what removes which of them, held against brokers of RocketMQ.

A recall is what its broker stores for one: 5.3 names topic and key, 5.5 the key alone. Ours goes by both forms. What
RocketMQ put again, as it was far ahead, is delivered once by ours too.
"""

import asyncio
import time
from pathlib import Path

import pytest

from mqtool.formats.topics import TIMER_TOPIC
from tests.differential.conftest import jars
from tests.differential.java_broker import POM, within
from tests.differential.test_hand_over import PATIENCE, ours, theirs
from tests.wire_client import WireClient

pytestmark = pytest.mark.java

KEY = "7F00000100002A139A556A5C3E9A000"


async def delivered(client: WireClient, topic_of_a_recall: str) -> dict[str, list[bytes]]:
    """Have timer messages and recalls of them wait, and return what has come when all are due."""
    for topic in "AB":
        await client.make_topic(topic)
    due = (int(time.time()) + 5) * 1000 + 500

    async def send(body: bytes, number: int, topic: str = "A", later: int = 0, **pairs: str) -> None:
        properties = {"UNIQ_KEY": f"{KEY}{number}", "TIMER_DELIVER_MS": str(due + later), **pairs}
        await client.send(body, 0, topic, pairs=properties)

    async def recall(number: int, later: int = 0) -> None:
        await send(b"recall", 9, later=later, TIMER_DEL_UNIQKEY=f"{topic_of_a_recall}{KEY}{number}")

    for number in range(5):
        await send(b"not recalled %d" % number, 0, "AB"[number % 2], number // 4 * 1000)
    for number in range(3):
        await send(b"recalled %d" % number, 1, later=-number)
    await send(b"in another topic", 1, "B")
    await send(b"a second later", 1, later=1000)
    await recall(1)
    await send(b"sent after its recall", 1)
    await send(b"recalled for another second", 2)
    await recall(2, later=1000)
    await send(b"the last", 3, later=2000)
    found: dict[str, list[bytes]] = {"A": []}
    while not {b"a second later", b"the last"} <= {*found["A"]}:  # RocketMQ's threads deliver in any order
        await asyncio.sleep(0.1)
        found = {topic: sorted(one.body for one in await client.messages(topic)) for topic in "AB"}
    return found


async def put_again(client: WireClient) -> int:
    """Have four messages that are the same wait, two a topic, until each was put again; return when they are due."""
    before, due = len(await client.messages(TIMER_TOPIC)), (int(time.time()) + 12) * 1000 + 500
    for topic in "AABB":
        await client.send(b"same", 0, topic, pairs={"UNIQ_KEY": KEY, "TIMER_DELIVER_MS": str(due)}, bornTimestamp=1)
    while len(await client.messages(TIMER_TOPIC)) < before + 8:
        await asyncio.sleep(0.1)
    return due


@pytest.mark.parametrize(
    ("version", "topic_of_a_recall"),
    [
        pytest.param("5.3.3", "A+", marks=pytest.mark.xdist_group("java-5.3.3")),
        pytest.param("5.5.0", "", marks=pytest.mark.xdist_group("java-5.5.0")),
    ],
)
def test_what_a_recall_or_a_copy_removes_among_messages_of_one_key_is_what_rocketmq_removes(
    version: str, topic_of_a_recall: str, tmp_path: Path
) -> None:
    jars(version, POM)

    async def compared() -> None:
        async with (
            theirs(
                version, tmp_path / "theirs", timerRollWindowSlot=10
            ) as client,  # puts again, after 5 s, what is 12 s ahead
            ours(tmp_path / "ours") as our_client,
        ):
            found, wanted = await asyncio.gather(
                delivered(our_client, topic_of_a_recall), delivered(client, topic_of_a_recall)
            )
            due = await put_again(client)
        assert found == wanted
        assert (len(wanted["A"]), len(wanted["B"])) == (6, 3 if topic_of_a_recall else 2)
        async with ours(tmp_path / "theirs") as client:
            await client.send(b"end", 0, "A", pairs={"UNIQ_KEY": KEY, "TIMER_DELIVER_MS": str(due + 1000)})
            while b"end" not in (bodies := [one.body for one in await client.messages("A")]):
                await asyncio.sleep(0.1)
            assert bodies.count(b"same") == 2
            assert [one.body for one in await client.messages("B")].count(b"same") == 2

    within(PATIENCE, compared())
