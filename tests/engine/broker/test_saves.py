"""Tables are written beside the event loop, together, and an answer leaves once what it promises is on the disk."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import mqtool
from mqtool.engine.broker.config_files import load_table, save_data
from mqtool.engine.broker.saves import Round
from mqtool.engine.cluster import Cluster
from mqtool.engine.repair.findings import Severity
from mqtool.engine.server_configs import BrokerConfig
from mqtool.errors import MqtoolError, WriteError
from mqtool.formats.bodies import ConsumerData, Heartbeat, build_heartbeat, parse_body
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.remoting import Outgoing, RemotingCommand
from tests.engine.broker.asking import Asking, broker_at_work
from tests.wire_client import WireClient, consumer

_PATIENCE = 30.0


class SlowDisk:
    """Holds what is synced below a folder until it is let go, or for half a minute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self.is_let_go = threading.Event()
        self.is_reached = threading.Event()

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Have it stand in the place of the machine's."""
        real = os.fdatasync

        def held(descriptor: int) -> None:
            if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(self.folder):
                self.count += 1
                self.is_reached.set()
                self.is_let_go.wait(_PATIENCE)
            real(descriptor)

        with mock.patch.object(os, "fdatasync", held):
            yield
            self.is_let_go.set()


@contextlib.asynccontextmanager
async def served(folder: Path, count: int = 2, **settings: Any) -> AsyncIterator[tuple[SlowDisk, list[WireClient]]]:
    """Give clients of a broker that has the topics T and P, and whose tables are synced only when that is let go."""
    async with asyncio.timeout(60), mqtool.Broker(folder, settings=settings) as broker:
        clients = [WireClient(broker.address) for _ in range(count)]
        for one in clients:
            await one.send(b"first", topic="T")
        disk = SlowDisk(folder / "config")
        with disk.in_place():
            yield disk, clients
        for one in clients:
            await one.close()


def topic_fields(topic: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2}
    return fields | {"perm": 6, "topicFilterType": "SINGLE_TAG", "order": False}


@pytest.mark.parametrize("what", ["topic", "group", "group named by a heartbeat", "topic made by sending", "mode"])
def test_nobody_waits_for_a_table_but_who_has_changed_it(what: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as (disk, [changing, honest]):
            group = b'{"groupName":"New"}'
            beat = build_heartbeat(Heartbeat("c", (), (ConsumerData("New", "", "CLUSTERING", "", ()),)))
            mode = b'{"topic":"T","consumerGroup":"New","mode":"POP","popShareQueueNum":0}'
            change = asyncio.ensure_future(
                {
                    "topic": lambda: changing.done(RequestCode.UPDATE_AND_CREATE_TOPIC, **topic_fields("New")),
                    "group": lambda: changing.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group),
                    "group named by a heartbeat": lambda: changing.done(RequestCode.HEART_BEAT, beat),
                    "topic made by sending": lambda: changing.send(b"one", topic="New"),
                    "mode": lambda: changing.done(RequestCode.SET_MESSAGE_REQUEST_MODE, mode),
                }[what]()
            )
            await asyncio.to_thread(disk.is_reached.wait, _PATIENCE)
            assert not disk.is_let_go.is_set()
            await honest.send(b"meanwhile", topic="T")
            assert not change.done()
            disk.is_let_go.set()
            await change
            name = {"mode": "messageRequestMode.json"}.get(what, "topics.json")
            name = "subscriptionGroup.json" if "group" in what else name
            assert "New" in (tmp_path / "config" / name).read_text()

    asyncio.run(test())


def test_a_thousand_topics_made_at_once_cost_a_few_files(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path) as (disk, [changing, _]):
            changes = asyncio.gather(
                *(changing.done(RequestCode.UPDATE_AND_CREATE_TOPIC, **topic_fields(f"T{one}")) for one in range(1000))
            )
            await asyncio.to_thread(disk.is_reached.wait, _PATIENCE)
            disk.is_let_go.set()
            await changes
            assert disk.count < 100
            table = load_table(tmp_path / "config" / "topics.json", len)[0]["topicConfigTable"]
            assert {f"T{one}" for one in range(1000)} <= table.keys()

    asyncio.run(test())


def test_tables_that_may_be_written_in_any_order_are_written_together_and_others_after_them(tmp_path: Path) -> None:
    meeting, written = threading.Barrier(3), list[str]()

    def write(path: Path, _: bytes) -> None:
        if path.name in "abc":
            meeting.wait(_PATIENCE)
        written.append(path.name)

    async def test() -> None:
        async with asyncio.timeout(60), Cluster(brokers=[BrokerConfig(tmp_path)]) as cluster:
            saves, all_written = cluster.brokers[0].saves, threading.Event()
            for name in "1abc2":
                saves.want(tmp_path / name, lambda: (b"",), write, in_any_order=name in "abc")
            saves.want(tmp_path / "3", lambda: (b"",), lambda *_: all_written.set())
            assert await asyncio.to_thread(all_written.wait, _PATIENCE)
        assert written[0] == "1"
        assert sorted(written[1:4]) == ["a", "b", "c"]
        assert written[4] == "2"

    asyncio.run(test())


def test_a_broker_that_stops_writes_what_is_wanted_and_answers(tmp_path: Path) -> None:
    async def test() -> None:
        async with mqtool.Broker(tmp_path) as broker:
            client = WireClient(broker.address)
            await client.make_topic("One")
            await client.close()
        assert "One" in load_table(tmp_path / "config" / "topics.json", len)[0]["topicConfigTable"]

    asyncio.run(test())


def test_others_in_the_loop_go_on_while_a_broker_that_stops_writes_everything_down(tmp_path: Path) -> None:
    async def test() -> None:
        stops = mqtool.Broker(tmp_path / "stops")
        async with asyncio.timeout(60), mqtool.Broker(tmp_path / "stays") as stays:
            await stops.__aenter__()
            client, honest = WireClient(stops.address), WireClient(stays.address)
            await client.send(b"one", topic="T")
            group: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0}
            await client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName": "G"}')
            await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, **group, commitOffset=1)
            await client.close()
            await honest.send(b"before", topic="T")
            disk = SlowDisk(tmp_path / "stops" / "config")
            with disk.in_place():
                stopping = asyncio.ensure_future(stops.__aexit__(None, None, None))
                await asyncio.to_thread(disk.is_reached.wait, _PATIENCE)
                await honest.send(b"meanwhile", topic="T")
                assert not stopping.done()
            await stopping
            await honest.close()

    asyncio.run(test())


def test_nobody_waits_while_an_old_segment_is_removed(tmp_path: Path) -> None:
    reached, let_go = threading.Event(), threading.Event()
    real = Path.unlink

    def held(path: Path, *, missing_ok: bool = False) -> None:
        if path.is_relative_to(tmp_path / "commitlog"):
            reached.set()
            assert let_go.wait(_PATIENCE), "nobody was served meanwhile"
        real(path, missing_ok=missing_ok)

    async def test() -> None:
        hours = ";".join(f"{hour:02}" for hour in range(24))
        settings = {"mappedFileSizeCommitLog": "4096", "fileReservedTime": "0", "deleteWhen": hours}
        async with (
            asyncio.timeout(60),
            mqtool.Broker(tmp_path, settings=settings | {"flushDiskType": "SYNC_FLUSH"}) as broker,
        ):
            client = WireClient(broker.address)
            for _ in range(8):
                await client.send(bytes(1000), topic="T")
            await asyncio.to_thread(reached.wait, _PATIENCE)
            await client.send(b"meanwhile", topic="T")
            let_go.set()
            await client.close()
        assert "0" * 20 not in {path.name for path in (tmp_path / "commitlog").iterdir()}

    with mock.patch.object(Path, "unlink", held):
        asyncio.run(test())


@pytest.mark.parametrize("made", ["consumequeue/New/0", "index", f"commitlog/{4096:020}"])
def test_nobody_waits_while_a_file_is_made(made: str, tmp_path: Path) -> None:
    reached, let_go = threading.Event(), threading.Event()
    real = os.ftruncate

    def held(descriptor: int, size: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(tmp_path / made):
            reached.set()
            assert let_go.wait(_PATIENCE), "nobody was served meanwhile"
        real(descriptor, size)

    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker(tmp_path, settings={"mappedFileSizeCommitLog": "4096"}) as broker:
            client = WireClient(broker.address)
            await client.send(bytes(1000), topic="New")
            await client.send(bytes(1000), topic="T")
            await asyncio.to_thread(reached.wait, _PATIENCE)
            assert reached.is_set()
            await client.send(b"meanwhile", topic="New")
            assert len(await client.messages("New")) == 2
            let_go.set()
            for _ in range(8):
                await client.send(bytes(1000), topic="New")
            assert len(await client.messages("New")) == 10
            await client.close()
        assert [one for one in mqtool.verify_store(mqtool.open_store(tmp_path)) if one.severity != Severity.NOTE] == []

    with mock.patch.object(os, "ftruncate", held):
        asyncio.run(test())


@pytest.mark.parametrize("removed", ["Gone", "%RETRY%G_Gone"])
def test_nobody_waits_while_the_queues_of_a_deleted_topic_are_removed(removed: str, tmp_path: Path) -> None:
    reached, let_go = threading.Event(), threading.Event()
    real = Path.unlink

    def held(path: Path, *, missing_ok: bool = False) -> None:
        if path.is_relative_to(tmp_path / "consumequeue" / removed):
            reached.set()
            assert let_go.wait(_PATIENCE), "nobody was served meanwhile"
        real(path, missing_ok=missing_ok)

    async def test() -> None:
        clock = mqtool.VirtualClock()
        async with asyncio.timeout(60), mqtool.Broker(tmp_path, clock=clock) as broker:
            client, other = WireClient(broker.address), WireClient(broker.address)
            await client.send(b"one", topic="Gone")
            await client.send(b"again", topic="%RETRY%G_Gone")  # of pops, which make no group of this name
            await client.done(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G_Gone", cleanOffset=True)
            await client.send(b"one", topic="T")
            clock.advance(1)  # now its queue has a file
            deleted = asyncio.ensure_future(client.done(RequestCode.DELETE_TOPIC_IN_BROKER, topic="Gone"))
            await asyncio.to_thread(reached.wait, _PATIENCE)
            await other.send(b"meanwhile", topic="T")
            assert not deleted.done()
            let_go.set()
            await deleted
            assert [path.name for path in (tmp_path / "consumequeue").iterdir()] == ["T"]
            assert (await client.send(b"again", topic="Gone"))["queueOffset"] == "0"
            await client.close()
            await other.close()

    with mock.patch.object(Path, "unlink", held):
        asyncio.run(test())


# The rules alone


def wanting(asking: Asking) -> list[str]:
    """Have somebody take what is to be written; return what is told to do so."""
    told: list[str] = []
    asking.broker.saves.on_wanted = lambda: told.append("wanted")
    return told


def take(asking: Asking) -> Round:
    taken = asking.broker.saves.take()
    assert taken is not None
    return taken


def finish(asking: Asking, taken: Round, failed: dict[Path, MqtoolError] | None = None) -> list[Outgoing]:
    asking.broker.saves.finished(taken, failed or {}, asking.now)
    return [*asking.door.outgoing()]


def test_a_message_for_a_new_topic_waits_for_its_flush_and_for_the_table(tmp_path: Path) -> None:
    for table_first in (True, False):
        with broker_at_work(tmp_path / str(table_first), flushDiskType="SYNC_FLUSH") as asking:
            wanting(asking)
            assert send(asking, "New") == []
            taken = take(asking)
            if table_first:
                assert finish(asking, taken) == []
                asking.store.flush()
            else:
                asking.store.flush()
                assert [*asking.door.tick(asking.now)] == []
            given = [*asking.door.tick(asking.now)] if table_first else finish(asking, taken)
            assert [answer.code for _, answer in given] == [0]
            assert [answer for _, answer in send(asking, "New")] == []  # waits for its flush alone
            asking.store.flush()
            assert len([*asking.door.tick(asking.now)]) == 1


def send(asking: Asking, topic: str, **more: Any) -> list[Outgoing]:
    fields: dict[str, Any] = {"producerGroup": "P", "topic": topic, "defaultTopic": "TBW102", "queueId": 0}
    fields |= {"defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "reconsumeTimes": 0}
    return asking.handle(RequestCode.SEND_MESSAGE, b"body", **(fields | more))


def test_what_changes_while_a_table_is_written_is_written_after_it(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        told = wanting(asking)
        assert send(asking, "One") == []
        first = take(asking)
        assert asking.broker.saves.take() is None  # one at a time
        first_text = b"".join(first.saves[0].pieces())
        assert send(asking, "Two") == []
        save_data(first.saves[0].path, first_text)
        assert len(finish(asking, first)) == 1
        assert b'"One"' in first_text
        assert b'"Two"' not in first_text
        second = take(asking)
        for save in second.saves:
            save.run()
        assert len(finish(asking, second)) == 1
        assert asking.broker.saves.take() is None
        assert len(told) == 2
        assert b'"Two"' in first.saves[0].path.read_bytes()


def test_a_full_disk_is_told_who_waits_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with broker_at_work(tmp_path) as asking:
        told = wanting(asking)
        assert send(asking, "One") == []
        for _ in range(3):
            taken = take(asking)
            assert asking.broker.saves.take() is None  # one at a time
            given = finish(asking, taken, {taken.saves[0].path: WriteError("no space left for topics.json")})
            assert [(answer.code, answer.remark) for _, answer in given] in (
                [],
                [(ResponseCode.SYSTEM_ERROR, "no space left for topics.json")],
            )
            assert asking.broker.saves.take() is None
            assert asking.broker.saves.next_tick(asking.now) == asking.now + 1000
            asking.now += 1000
            asking.door.tick(asking.now)
        assert len(told) == 4
        assert len(caplog.records) == 1
        assert [answer.code for _, answer in send(asking, "One")] == [0]  # the topic is there
        asking.broker.stop(asking.now)
        assert '"One"' in taken.saves[0].path.read_text()


def test_who_waits_for_a_table_after_it_has_failed_is_not_told_that_it_is_on_the_disk(tmp_path: Path) -> None:
    with broker_at_work(tmp_path, flushDiskType="SYNC_FLUSH") as asking:
        wanting(asking)
        assert send(asking, "New") == []
        failing = take(asking)
        assert finish(asking, failing, {failing.saves[0].path: WriteError("no space left")}) == []
        asking.store.flush()
        asking.now += 1000

        assert [*asking.door.tick(asking.now)] == []  # stored, but there may be no such topic after a crash
        assert [answer.code for _, answer in finish(asking, take(asking))] == [0]


def test_who_wants_no_answer_gets_none(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        wanting(asking)
        beat = build_heartbeat(Heartbeat("c", (), (ConsumerData("New", "", "CLUSTERING", "", ()),)))
        command = RemotingCommand(RequestCode.HEART_BEAT, flag=2, opaque=12, body=beat)
        sent = asking.door.handle(command, asking.client, asking.now)
        assert not any(one.is_response for _, one in sent)
        assert finish(asking, take(asking)) == []


def test_a_clock_that_was_set_back_stops_nothing_that_is_done_at_intervals(tmp_path: Path) -> None:
    async def test() -> None:
        set_back = 0
        settings: dict[str, str | int | bool] = {"transactionTimeOut": 1, "transactionCheckInterval": 1}
        settings |= {"flushCommitLogThoroughInterval": 1}
        broker = mqtool.Broker(
            tmp_path / "store", clock=lambda: time.time_ns() // 1_000_000 - set_back, settings=settings
        )
        async with asyncio.timeout(20), broker:
            client = WireClient(broker.address)
            await client.done(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", ("P",), (consumer("G"),))))
            set_back = 3_600_000
            half = {"TRAN_MSG": "true", "PGROUP": "P", "CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}
            await client.send(b"one", topic="T", pairs=half)
            await client.send(b"two", topic="T")
            await client.done(
                RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=1
            )
            await client.checks.get()
            offsets = tmp_path / "store" / "config" / "consumerOffset.json"
            while not offsets.exists() or '"T@G"' not in offsets.read_text():
                await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
            while (
                parse_body((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"][
                    "remainHowManyDataToFlush"
                ]
                != "0 B"
            ):
                pass
            await client.close()

    asyncio.run(test())
