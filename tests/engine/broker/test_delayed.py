"""Delay levels: on time, never early, in order, and across restarts."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mqtool
from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.formats.codes import RequestCode
from mqtool.formats.config_tables import delay_offsets, parse_table
from mqtool.formats.properties import parse_properties
from mqtool.formats.stored_message import StoredMessage, parse_stored
from mqtool.formats.topics import SCHEDULE_TOPIC
from tests.builders import Draft, write_store
from tests.engine.broker.asking import SETTINGS, broker_at_work
from tests.engine.store.live import NOW, half_full, new_message
from tests.golden import manifest
from tests.wire_client import WireClient

LEVELS = {1: 1000, 2: 5000, 3: 10_000, 4: 30_000, 18: 7_200_000, 40: 7_200_000}


def put(broker: BrokerController, level: int, now: int, **given: Any) -> None:
    message = new_message(pairs={"DELAY": str(level), "TAGS": "a", **given.pop("pairs", {})}, **given)
    assert broker.intake.put(message, now).status == "PUT_OK"


def delivered(store: MessageStore, topic: str = "TopicTest", queue_id: int = 0) -> list[StoredMessage]:
    queue = store.queue(topic, queue_id)
    units = [queue.units(offset, 1)[0] for offset in range(queue.next_offset)] if queue else []
    return [parse_stored(store.log.read(unit.physical_offset, unit.size)) for unit in units]


@contextlib.contextmanager
def running(root: Path, now: int) -> Iterator[BrokerController]:
    store = MessageStore(root, StoreConfig(SETTINGS), now=now, usage=half_full)
    with contextlib.closing(store):
        yield BrokerController(store, now)


@pytest.mark.parametrize(("level", "delay"), LEVELS.items())
def test_a_message_is_there_when_its_delay_is_over_and_not_before(level: int, delay: int, tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        broker = asking.broker
        put(broker, level, NOW, queue_id=3)

        broker.tick(NOW + delay - 1)
        assert delivered(broker.store, queue_id=3) == []
        assert broker.delayed.next_tick(NOW + delay - 1) in (NOW + delay, NOW + 10_000)
        broker.tick(NOW + delay)

        [one] = delivered(broker.store, queue_id=3)
        assert (one.store_timestamp, one.message.body) == (NOW + delay, b"body")
        assert broker.delayed.offsets == {min(level, 18): 1}


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 4000)), min_size=1, max_size=20), st.data())
def test_each_message_comes_once_at_the_first_tick_after_its_time(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, int]], data: Any
) -> None:
    due: dict[bytes, int] = {}
    now = NOW
    with broker_at_work(tmp_path_factory.mktemp("store")) as asking:
        broker = asking.broker
        for number, (level, pause) in enumerate(puts):
            body = f"{number}".encode()
            put(broker, level, now, body=body)
            due[body] = now + LEVELS[level]
            now += pause
            broker.tick(now)
        while (seen := len(delivered(broker.store))) < len(puts):
            at = broker.delayed.next_tick(now)
            assert at is not None
            now = max(now + 1, at + data.draw(st.integers(0, 500)))
            broker.tick(now)
            assert len(delivered(broker.store)) >= seen

        messages = delivered(broker.store)
        assert sorted(_bodies(broker)) == sorted(due)
        assert all(one.store_timestamp >= due[one.message.body] for one in messages)
        for level in (1, 2, 3):
            of_level = [f"{number}".encode() for number, (each, _) in enumerate(puts) if each == level]
            assert [body for body in _bodies(broker) if body in of_level] == of_level


def _bodies(broker: BrokerController) -> list[bytes]:
    return [one.message.body for one in delivered(broker.store)]


def test_it_is_stored_as_a_recorded_broker_did_while_it_waits_and_after_that(tmp_path: Path) -> None:
    messages = manifest("txn-533-clean")["messages"]
    [waiting, arrived] = [one for one in messages if one["properties"].get("KEYS") == "delay1"]
    pairs = {name: value for name, value in waiting["properties"].items() if not name.startswith("REAL_")}
    with broker_at_work(tmp_path) as asking:
        broker = asking.broker
        queue_id = int(waiting["properties"]["REAL_QID"])
        put(broker, 2, waiting["store_timestamp"], topic=arrived["topic"], queue_id=queue_id, pairs=pairs)
        [ours] = delivered(broker.store, SCHEDULE_TOPIC, waiting["queue_id"])
        broker.tick(waiting["store_timestamp"] + 5000)
        [late] = delivered(broker.store, arrived["topic"], arrived["queue_id"])
        [unit] = broker.store.queue(SCHEDULE_TOPIC, 1).units(0, 1)  # type: ignore[union-attr]

    assert parse_properties(ours.message.properties) == waiting["properties"]
    assert parse_properties(late.message.properties) == arrived["properties"]
    assert unit.tags_code == waiting["tags_code"]


def test_a_level_counts_more_than_a_time_and_what_is_no_level_counts_nothing(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        put(asking.broker, 1, NOW, pairs={"TIMER_DELAY_SEC": "7"})
        for text in ("0", "-1", "x", "99999999999"):
            message = new_message("Now", pairs={"DELAY": text})
            assert asking.broker.intake.put(message, NOW).status == "PUT_OK"

        [waiting] = delivered(asking.store, SCHEDULE_TOPIC)
        assert "TIMER_DELAY_SEC" not in parse_properties(waiting.message.properties)
        assert len(delivered(asking.store, "Now")) == 4


def test_a_clock_that_was_set_back_holds_nothing_for_longer_than_its_level(tmp_path: Path) -> None:
    with running(tmp_path, NOW) as broker:
        put(broker, 2, NOW)

    back = NOW - 86_400_000
    with running(tmp_path, back) as broker:
        broker.tick(back)
        assert len(delivered(broker.store)) == 1


def test_a_restart_goes_on_where_the_last_run_ended(tmp_path: Path) -> None:
    with running(tmp_path, NOW) as broker:
        put(broker, 1, NOW, body=b"one")
        put(broker, 1, NOW + 2000, body=b"two")
        broker.tick(NOW + 2000)
        assert _bodies(broker) == [b"one"]
        broker.stop(NOW + 2000)

    assert delay_offsets(parse_table((tmp_path / "config" / "delayOffset.json").read_bytes())) == {1: 1}
    with running(tmp_path, NOW + 2500) as broker:
        broker.tick(NOW + 2999)
        assert _bodies(broker) == [b"one"]
        broker.tick(NOW + 3000)
        assert _bodies(broker) == [b"one", b"two"]


def test_how_far_it_is_is_kept_every_ten_seconds_if_that_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "config" / "delayOffset.json"
    with broker_at_work(tmp_path) as asking:
        asking.door.tick(NOW + 60_000)
        assert not path.exists()
        put(asking.broker, 1, NOW + 60_000)
        asking.door.tick(NOW + 61_000)
        assert not path.exists()
        asking.door.tick(NOW + 70_000)
        assert not path.exists()  # what was delivered is not on the disk yet
        asking.store.flush()
        asking.door.tick(NOW + 70_100)

        kept = parse_table(path.read_bytes())
        assert delay_offsets(kept) == {1: 1}
        assert kept["dataVersion"]["counter"] == 1


def test_delayed_messages_that_cannot_be_read_hold_up_nothing_else_and_come_when_they_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        clock = mqtool.VirtualClock()
        async with asyncio.timeout(60), mqtool.Broker(tmp_path / "store", clock=clock) as broker:
            client, consumer = WireClient(broker.address), WireClient(broker.address)
            await client.send(b"one", 0, "T")
            await client.send(b"delayed", 0, "T", pairs={"DELAY": "1"})
            clock.advance(0.5)
            folder = tmp_path / "store" / "consumequeue" / SCHEDULE_TOPIC / "0"
            while not any(folder.glob("*")):
                await asyncio.sleep(0.01)
                clock.advance(0.1)
            [file] = folder.glob("*")
            data = file.read_bytes()
            with file.open("r+b") as opened:
                opened.truncate(0)
            for _ in range(3):  # it is tried again and again
                clock.advance(1)
            pull: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 1}
            pull |= {"maxMsgNums": 32, "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 15_000}
            pull |= {"subVersion": 0, "subscription": "*"}
            waiting = asyncio.ensure_future(consumer.ask(RequestCode.PULL_MESSAGE, **pull))
            await consumer.done(RequestCode.GET_BROKER_RUNTIME_INFO)
            await client.send(b"two", 0, "T")
            async with asyncio.timeout(10):
                assert (await waiting).code == 0
            with file.open("r+b") as opened:
                opened.write(data)
            clock.advance(2)
            assert [one.body for one in await client.messages("T")] == [b"one", b"two", b"delayed"]
            await client.close()
            await consumer.close()

    asyncio.run(test())
    lines = [one.getMessage() for one in caplog.records if one.levelname in ("WARNING", "ERROR")]
    assert lines == [f"due work is postponed until this works again: {lines[0].split(': ', 1)[1]}"]
    assert "was truncated" in lines[0]


def test_messages_of_a_level_that_is_no_longer_set_come_when_their_time_is_over(tmp_path: Path) -> None:
    async def test() -> None:
        clock, store = mqtool.VirtualClock(), tmp_path / "store"
        for levels in ("1s 5s 30s", "2s"):
            settings: dict[str, str | int | bool] = {"messageDelayLevel": levels}
            async with asyncio.timeout(60), mqtool.Broker(store, clock=clock, settings=settings) as broker:
                client = WireClient(broker.address)
                if levels == "2s":
                    clock.advance(20)
                    assert await client.messages("T") == []
                    clock.advance(11)
                    assert [one.body for one in await client.messages("T")] == [b"one"]
                else:
                    await client.send(b"one", topic="T", pairs={"DELAY": "3"})
                await client.close()

    asyncio.run(test())


def test_what_waits_and_cannot_be_stored_in_its_topic_is_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        clock = mqtool.VirtualClock()
        settings: dict[str, str | int | bool] = {"enableLmq": True, "enableMultiDispatch": True}
        async with asyncio.timeout(60), mqtool.Broker(tmp_path / "s", clock=clock, settings=settings) as broker:
            client = WireClient(broker.address)
            light, size = ",".join(f"%LMQ%{number}" for number in range(100)), 32_767
            send: dict[str, Any] = {"producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "queueId": 0}
            send |= {"defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "reconsumeTimes": 0}
            for wait in ("TIMER_DELAY_SEC\x015", "DELAY\x011"):
                while True:
                    text = f"UNIQ_KEY\x01u\x02{wait}\x02INNER_MULTI_DISPATCH\x01{light}\x02k\x01{'x' * size}\x02"
                    if not (await client.ask(RequestCode.SEND_MESSAGE, b"one", **send, properties=text)).code:
                        break
                    size -= 1
            await client.send(b"two", topic="T", pairs={"DELAY": "1"})
            clock.advance(7)
            assert [one.body for one in await client.messages("T")] == [b"two"]
            await client.close()

    asyncio.run(test())
    said = [record.getMessage() for record in caplog.records if "is not delivered to the topic 'T'" in record.message]
    assert len(said) == 2
    assert all("PROPERTIES_SIZE_EXCEEDED; it is in the log at" in text for text in said)


def test_a_message_of_a_level_that_names_no_queue_is_passed_over(tmp_path: Path) -> None:
    draft = Draft(SCHEDULE_TOPIC, 0, b"sent there directly", {"DELAY": "1", "REAL_TOPIC": "T"}, store_timestamp=NOW)
    write_store(tmp_path / "store", [draft])

    async def test() -> None:
        clock = mqtool.VirtualClock(NOW + 10_000)
        async with asyncio.timeout(60), mqtool.Broker(tmp_path / "store", clock=clock) as broker:
            client = WireClient(broker.address)
            await client.send(b"two", topic="T", pairs={"DELAY": "1"})
            clock.advance(2)
            assert [one.body for one in await client.messages("T")] == [b"two"]
            await client.close()

    asyncio.run(test())
