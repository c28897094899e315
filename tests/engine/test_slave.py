"""A slave through its sockets: it finds its master, compares, follows, copies the tables, and stops where it must."""

import asyncio
import contextlib
import logging
import shutil
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.aio import PushConsumer
from mqtool.engine import role_keeper
from mqtool.engine import slave as slave_module
from mqtool.engine.broker.following import Following, FollowingStatus
from mqtool.engine.broker.kept_role import KeptRole, write_role
from mqtool.engine.broker.settings import Role
from mqtool.engine.client.consuming import ConsumeFrom, ConsumeStatus
from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client_runtime.consume_services import ConsumeContext, PushConsumerOptions
from mqtool.engine.cluster import Cluster
from mqtool.engine.other_log import OtherLog
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.remoting.clock import wall_clock
from mqtool.engine.repair.journal import journals, undo
from mqtool.engine.repair.plan import carry_out, plan_repair
from mqtool.engine.server_configs import NameServerConfig
from mqtool.engine.store import message_store
from mqtool.engine.store.disk import Disk, DiskFullError, OpenFile
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import AnswerTimeoutError, Status, UnavailableError
from mqtool.formats.bodies import parse_body
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.plain_acl import Account, PlainAcl, build_acl
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.signing import Credentials
from tests.commands.running import run
from tests.commands.test_serve import send
from tests.engine.broker.processors.test_pull import bodies
from tests.engine.remoting.test_server import on_a_loop
from tests.engine.test_embedded import SMALL, pull, worst
from tests.ports import free_port

MASTER: dict[str, str | int | bool] = {**SMALL, "brokerName": "pair"}
SLAVE: dict[str, str | int | bool] = {
    **MASTER,
    "haCopyInterval": 200,
    "haSendHeartbeatInterval": 300,
    "slaveReadEnable": True,
}


def slave_of(master: mqtool.Broker, folder: Path, **settings: str | int | bool) -> mqtool.Broker:
    """Return a slave, not started, with these settings beside those of ``SLAVE``."""
    return mqtool.Broker(
        folder, role="slave", name_servers=[master.name_server_address], settings={**SLAVE, **settings}
    )


class HandMaster:
    """The HA port of a master, played by hand: what it sends is the log that lies in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[list[int]] = []  # of each connection
        self.sends = True
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    def drop(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def write(self, at: int, body: bytes = b"") -> None:
        self._writers[-1].write(struct.pack(">qi", at, len(body)) + body)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: list[int] = []
        self.reports.append(mine)
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            mine += struct.unpack(">q", await reader.readexactly(8))
            sending = asyncio.create_task(self._send(writer, mine[0]))
            try:
                while True:
                    mine += struct.unpack(">q", await reader.readexactly(8))
            finally:
                sending.cancel()

    async def _send(self, writer: asyncio.StreamWriter, at: int) -> None:
        while True:
            log = log_of(self.folder)
            if self.sends:
                for start in range(at, len(log), 5000):
                    writer.write(struct.pack(">qi", start, len(log[start : start + 5000])) + log[start : start + 5000])
                at = max(at, len(log))
                writer.write(struct.pack(">qi", at, 0))
            await asyncio.sleep(0.02)


def log_of(store: Path) -> bytes:
    """Return the log of a store up to its last message."""
    files = sorted((store / "commitlog").glob("*"))
    data = b"".join(file.read_bytes() for file in files)
    end = StoreReader(store, StoreConfig({})).commit_log
    return data.rstrip(b"\0") if end else b""


async def until(told: Callable[[], Any] | Callable[[], Awaitable[Any]], seconds: float = 60) -> Any:
    """Wait until something is so, and return it."""
    async with asyncio.timeout(seconds):
        while True:
            value = told()
            value = await value if asyncio.iscoroutine(value) else value
            if value:
                return value
            await asyncio.sleep(0.02)


async def has_messages(client: RemotingClient, count: int) -> bool:
    """Tell whether a pull gives so many messages: the topic may have to be copied first."""
    found = await client.invoke(pull())
    return found.code == ResponseCode.SUCCESS and len(bodies(found)) == count


def port_of(broker: mqtool.Broker) -> int:
    return int(broker.address.rpartition(":")[2])


def following_of(broker: mqtool.Broker) -> Following:
    assert broker.following is not None
    return broker.following


@contextlib.asynccontextmanager
async def by_hand(folder: Path) -> AsyncIterator[tuple[HandMaster, str]]:
    hand = HandMaster(folder)
    address = await hand.start()
    try:
        yield hand, address
    finally:
        await hand.stop()


@on_a_loop
async def test_a_slave_has_log_queues_and_tables_of_its_master_and_serves_reads(tmp_path: Path) -> None:
    async with mqtool.Broker(tmp_path / "master", settings=MASTER) as master:
        client = RemotingClient([master.address])
        for number in range(50):
            await client.invoke(send(f"m{number}"))
        async with (
            by_hand(tmp_path / "master") as (hand, address),
            slave_of(master, tmp_path / "slave", haMasterAddress=address) as slave,
        ):
            at_slave = RemotingClient([slave.address])
            await until(lambda: has_messages(at_slave, 32))
            await until(lambda: hand.reports[-1][-1] == len(log_of(tmp_path / "master")))
            assert following_of(slave).status is FollowingStatus.FOLLOWING
            refused = await at_slave.invoke(send("no"))
            assert (refused.code, refused.remark) == (
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, start flow control for a while",
            )
            beyond = await at_slave.invoke(pull(queueOffset=60))
            assert (beyond.code, beyond.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "60")
            await at_slave.close()
        await client.close()
    assert log_of(tmp_path / "slave") == log_of(tmp_path / "master")
    for kind in ("consumequeue", "index"):
        theirs = [file.read_bytes() for file in sorted((tmp_path / "master" / kind).rglob("*")) if file.is_file()]
        ours = [file.read_bytes() for file in sorted((tmp_path / "slave" / kind).rglob("*")) if file.is_file()]
        assert ours == theirs
    assert worst(tmp_path / "slave") <= worst(tmp_path / "master")


@on_a_loop
async def test_a_slave_goes_on_where_it_was_when_its_connection_breaks_or_it_was_stopped(tmp_path: Path) -> None:
    async with (
        mqtool.Broker(tmp_path / "master", settings=MASTER) as master,
        by_hand(tmp_path / "master") as (hand, at),
    ):
        client = RemotingClient([master.address])
        settings = {**SLAVE, "haMasterAddress": at}

        async def send_some(first: int) -> None:
            for number in range(first, first + 20):
                await client.invoke(send(f"m{number}" * 200))

        def is_equal() -> bool:
            return hand.reports[-1][-1:] == [len(log_of(tmp_path / "master"))]

        await send_some(0)
        for first in (20, 40):
            async with mqtool.Broker(
                tmp_path / "slave", role="slave", name_servers=[master.name_server_address], settings=settings
            ) as slave:
                await until(lambda: following_of(slave).status is FollowingStatus.FOLLOWING)
                await until(is_equal)
                hand.drop()
                await send_some(first)
                await until(is_equal)
        await client.close()
    assert log_of(tmp_path / "slave") == log_of(tmp_path / "master")
    assert worst(tmp_path / "slave") <= worst(tmp_path / "master")


@on_a_loop
async def test_a_slave_hangs_up_on_a_gap_and_an_overlap_and_comes_back(tmp_path: Path) -> None:
    async with (
        mqtool.Broker(tmp_path / "master", settings=MASTER) as master,
        by_hand(tmp_path / "master") as (hand, at),
    ):
        hand.sends = False
        client = RemotingClient([master.address])
        for number in range(10):
            await client.invoke(send(f"m{number}"))
        await client.close()
        log = log_of(tmp_path / "master")
        half = len(log) // 2
        async with slave_of(master, tmp_path / "slave", haMasterAddress=at):
            await until(lambda: hand.reports)
            hand.write(0, log[:half])
            await until(lambda: hand.reports[-1][-1:] == [half])
            for wrong in (half + 100, half - 10):
                count = len(hand.reports)
                hand.write(wrong, log[wrong : wrong + 50])
                await until(lambda: len(hand.reports) > count and hand.reports[-1][-1:] == [half])  # noqa: B023
            hand.write(half, log[half:])
            await until(lambda: hand.reports[-1][-1:] == [len(log)])
    assert log_of(tmp_path / "slave") == log


@pytest.mark.parametrize("other", ["longer", "different", "segments"])
@on_a_loop
async def test_a_slave_whose_log_does_not_fit_reports_nothing_changes_nothing_and_says_why(
    tmp_path: Path, other: str
) -> None:
    """A log that is longer than the master's, has another message in it, or larger segments."""
    segments = {"mappedFileSizeCommitLog": 131_072} if other == "segments" else {}
    for name, texts in (("master", ["same", "a", "a", "a", "a"]), ("slave", ["same", "a", "b"])):
        async with mqtool.Broker(
            tmp_path / name, settings={**MASTER, **(segments if name == "slave" else {})}
        ) as broker:
            client = RemotingClient([broker.address])
            if name == "slave" and other == "longer":
                texts = ["same", "a", "a", "a", "a", "a"]
            for text in texts:
                await client.invoke(send(text))
            await client.close()
    before = log_of(tmp_path / "slave")
    async with (
        mqtool.Broker(tmp_path / "master", settings=MASTER) as master,
        by_hand(tmp_path / "master") as (hand, at),
    ):
        async with slave_of(master, tmp_path / "slave", haMasterAddress=at, **segments) as slave:
            await until(lambda: following_of(slave).status is FollowingStatus.STOPPED)
            reason = following_of(slave).reason
            client = RemotingClient([slave.address])
            info = await client.invoke(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
            found = await client.invoke(pull())
            await client.close()
        assert not any(hand.reports)
    expected = {
        "longer": "after the end of the master's log",
        "different": "it has a different message than the master",
        "segments": "its segments have 131,072 bytes, those of the master have 65,536",
    }
    assert expected[other] in reason
    log = log_of(tmp_path / "master")
    if other != "segments":
        same = next((at for at, (ours, its) in enumerate(zip(before, log, strict=False)) if ours != its), len(log))
        fork = int(reason.split("; up to ")[1].split(" ")[0].replace(",", ""))
        reader = StoreReader(tmp_path / "slave", StoreConfig({"mappedFileSizeCommitLog": "65536"}))
        starts = [one.physical_offset for one in reader.messages()]
        assert fork == max(at for at in (*starts, len(log)) if at <= same)
    assert reason in info.body.decode()
    assert found.code == 0
    assert log_of(tmp_path / "slave") == before


async def store_apart(folder: Path, masters: list[str], slaves: list[str]) -> None:
    """Store messages in a master and in its slave-to-be, each by itself."""
    for name, texts in (("master", masters), ("slave", slaves)):
        async with mqtool.Broker(folder / name, settings=MASTER) as broker:
            await send_all(broker, *texts)


@contextlib.asynccontextmanager
async def with_log_by_hand(folder: Path) -> AsyncIterator[tuple[HandMaster, mqtool.Broker]]:
    """Run a master and its slave, whose log is sent by hand."""
    async with (
        mqtool.Broker(folder / "master", settings=MASTER) as master,
        by_hand(folder / "master") as (hand, at),
        slave_of(master, folder / "slave", haMasterAddress=at) as slave,
    ):
        yield hand, slave


@on_a_loop
async def test_a_slave_asks_a_master_that_does_not_answer_in_time_again_before_it_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "_AGAIN_SECONDS", (0.1,))
    await store_apart(tmp_path, ["same", "a", "a"], ["same", "b"])
    before, asked = log_of(tmp_path / "slave"), 0
    records = OtherLog.record

    async def record(self: OtherLog, at: int) -> bytes | None:
        nonlocal asked
        asked += 1
        if asked <= 4:
            raise AnswerTimeoutError("it did not answer within 3,000 ms")
        return await records(self, at)

    monkeypatch.setattr(OtherLog, "record", record)
    async with with_log_by_hand(tmp_path) as (hand, slave):
        await until(lambda: following_of(slave).status is FollowingStatus.STOPPED)
        assert "it has a different message than the master" in following_of(slave).reason
        assert not any(hand.reports)
    assert log_of(tmp_path / "slave") == before


@on_a_loop
async def test_a_slave_that_could_not_reach_its_master_to_compare_the_logs_does_so_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_apart(tmp_path, ["same", "a"], ["same", "b", "b"])
    before, unreachable = log_of(tmp_path / "slave"), [True]
    ask = OtherLog.ask

    async def ask_if_it_can_be_reached(self: OtherLog, code: int) -> RemotingCommand:
        if unreachable:
            unreachable.pop()
            raise UnavailableError("cannot connect (Connection refused)")
        return await ask(self, code)

    monkeypatch.setattr(OtherLog, "ask", ask_if_it_can_be_reached)
    async with with_log_by_hand(tmp_path) as (hand, slave):
        await until(lambda: following_of(slave).status is FollowingStatus.STOPPED)
        assert "after the end of the master's log" in following_of(slave).reason
        assert not unreachable
        assert [report for report in hand.reports if report]  # it has followed before, and was sent nothing
    assert log_of(tmp_path / "slave") == before


@on_a_loop
async def test_a_pair_in_one_process_has_equal_logs_and_the_slave_serves_what_the_master_was_sent(
    tmp_path: Path,
) -> None:
    settings = {**MASTER, "inSyncReplicas": 2}
    async with (
        mqtool.Broker(tmp_path / "master", role="sync_master", settings=settings) as master,
        slave_of(master, tmp_path / "slave") as slave,
    ):
        await until(lambda: following_of(slave).status is FollowingStatus.FOLLOWING)
        client, at_slave = RemotingClient([master.address]), RemotingClient([slave.address])
        for number in range(20):
            sent = await client.invoke(send(f"m{number}"))
            # Acknowledged: the slave has it.
            assert sent.code == ResponseCode.SUCCESS
            assert log_of(tmp_path / "slave") == log_of(tmp_path / "master")
        await until(lambda: has_messages(at_slave, 20))
        await client.close()
        await at_slave.close()
    assert worst(tmp_path / "slave") <= worst(tmp_path / "master")


@on_a_loop
async def test_stores_of_a_pair_that_no_consumer_has_used_do_not_differ(tmp_path: Path) -> None:
    async with (
        mqtool.Broker(tmp_path / "master", role="sync_master", settings={**MASTER, "inSyncReplicas": 2}) as master,
        slave_of(master, tmp_path / "slave") as slave,
    ):
        client = RemotingClient([master.address])
        await until(lambda: following_of(slave).status is FollowingStatus.FOLLOWING)
        assert (await client.invoke(send("m"))).code == ResponseCode.SUCCESS
        sent_at = wall_clock()
        await until(lambda: following_of(slave).tables_timestamp > sent_at)
        await client.close()

    compared = await asyncio.to_thread(run, "compare", tmp_path / "master", tmp_path / "slave")

    assert (compared.output, compared.status) == ("", Status.OK)


@pytest.mark.parametrize("is_shorter", [True, False])
@on_a_loop
async def test_the_beginning_of_a_message_that_the_master_has_lost_is_cut_off_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shorter: bool
) -> None:
    """Nobody was told that such a message is stored; frames may end within one, and a slave reports what it has."""
    monkeypatch.setattr(slave_module, "_AGAIN_SECONDS", (0.1,))
    async with (
        mqtool.Broker(tmp_path / "master", role="master", settings=MASTER) as master,
        by_hand(tmp_path / "master") as (hand, at),
    ):
        await send_all(master, "first")
        shutil.copytree(tmp_path / "master", tmp_path / "other")
        there = len(log_of(tmp_path / "master"))
        async with mqtool.Broker(tmp_path / "other", role="master", settings=MASTER) as other:
            await send_all(other, "lost")
        lost = log_of(tmp_path / "other")[there:]
        async with slave_of(master, tmp_path / "slave", haMasterAddress=at):
            for size in (40, len(lost) - 1):
                await until(lambda end=there: hand.reports and hand.reports[-1][-1:] == [end])
                hand.sends = False
                hand.write(there, lost[:size])
                await until(lambda end=there + size: hand.reports[-1][-1:] == [end])
                if not is_shorter:
                    await send_all(master, f"another {size}")
                connections = len(hand.reports)
                hand.drop()
                await until(lambda count=connections, end=there: [own[:1] for own in hand.reports[count:]] == [[end]])
                hand.sends = True
                await until(lambda: log_of(tmp_path / "slave") == log_of(tmp_path / "master"))
                there = len(log_of(tmp_path / "master"))
    assert worst(tmp_path / "slave") <= worst(tmp_path / "master")


@on_a_loop
async def test_the_unused_end_of_a_segment_where_the_master_has_messages_is_cut_off_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that crashes just after it has begun a segment may go on at the end of the one before."""
    monkeypatch.setattr(slave_module, "_AGAIN_SECONDS", (0.1,))
    size = int(MASTER["mappedFileSizeCommitLog"])
    async with (
        mqtool.Broker(tmp_path / "master", role="master", settings=MASTER) as master,
        by_hand(tmp_path / "master") as (hand, at),
    ):
        await send_all(master, *("first" * (size // 20) for _ in range(3)))
        shutil.copytree(tmp_path / "master", tmp_path / "other")
        there = len(log_of(tmp_path / "master"))
        async with mqtool.Broker(tmp_path / "other", role="master", settings=MASTER) as other:
            await send_all(other, "lost" * (size // 10))
        lost = log_of(tmp_path / "other")
        async with slave_of(master, tmp_path / "slave", haMasterAddress=at):
            await until(lambda: hand.reports and hand.reports[-1][-1:] == [there])
            hand.sends = False
            hand.write(there, lost[there:size])
            await until(lambda: hand.reports[-1][-1:] == [size])
            await send_all(master, "short", "long" * (size // 10))
            connections = len(hand.reports)
            hand.drop()
            await until(lambda: [own[:1] for own in hand.reports[connections:]] == [[there]])
            hand.sends = True
            await until(lambda: log_of(tmp_path / "slave") == log_of(tmp_path / "master"))
    assert worst(tmp_path / "slave") <= worst(tmp_path / "master")


@pytest.mark.parametrize("is_whole", [True, False])
@on_a_loop
async def test_an_empty_slave_begins_at_the_last_segment_or_where_it_is_set_at_the_first_byte(
    tmp_path: Path, is_whole: bool
) -> None:
    async with mqtool.Broker(tmp_path / "master", role="master", settings=MASTER) as master:
        client = RemotingClient([master.address])
        for number in range(25):
            await client.invoke(send(f"m{number:02}" * 2000))
        await client.close()
        log = log_of(tmp_path / "master")
        async with slave_of(master, tmp_path / "slave", haStartAtFirstByte=is_whole):
            begin = 0 if is_whole else len(log) // 65_536 * 65_536
            await until(lambda: log_of(tmp_path / "slave") == log[begin:])
    first = min((tmp_path / "slave" / "commitlog").iterdir())
    assert int(first.name) == begin > (-1 if is_whole else 65_536)
    assert worst(tmp_path / "slave") <= worst(tmp_path / "master")


@on_a_loop
async def test_a_slave_that_is_to_have_all_begins_where_the_log_of_its_master_does_and_not_where_that_is_not_known(
    tmp_path: Path,
) -> None:
    whole = {**SLAVE, "haStartAtFirstByte": True}
    async with mqtool.Broker(tmp_path / "master", role="master", settings=MASTER) as master:
        await send_all(master, *(f"m{number:02}" * 2000 for number in range(25)))
    (tmp_path / "master" / "commitlog" / f"{0:020}").unlink()  # as retention removes it
    async with mqtool.Broker(tmp_path / "master", role="master", settings=MASTER) as master:
        where = [master.name_server_address]
        async with mqtool.Broker(tmp_path / "slave", role="slave", name_servers=where, settings=whole) as slave:
            await until(lambda: log_of(tmp_path / "slave") == log_of(tmp_path / "master"))
        alone = {**whole, "brokerName": "nobody", "haMasterAddress": f"127.0.0.1:{port_of(master) + 1}"}
        async with mqtool.Broker(tmp_path / "other", role="slave", name_servers=where, settings=alone) as slave:
            await until(lambda: "haStartAtFirstByte" in following_of(slave).reason)
            assert following_of(slave).status is FollowingStatus.SEARCHING
            assert log_of(tmp_path / "other") == b""
    assert min(path.name for path in (tmp_path / "slave" / "commitlog").iterdir()) == f"{65_536:020}"
    assert worst(tmp_path / "slave") <= worst(tmp_path / "master")


@on_a_loop
async def test_a_slave_that_is_told_to_follow_itself_says_so(tmp_path: Path) -> None:
    port = free_port()
    settings = {**SLAVE, "haListenPort": port, "haMasterAddress": f"localhost:{port}"}
    async with mqtool.Broker(tmp_path, role="slave", settings=settings) as slave:
        reason = await until(lambda: following_of(slave).reason.startswith("it is") and following_of(slave).reason)
    assert reason == "it is the HA port of this slave itself: see haMasterAddress"
    assert log_of(tmp_path) == b""


@on_a_loop
async def test_what_is_no_master_is_named_once_however_often_it_accepts_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slave_module, "_AGAIN_SECONDS", (0.01, 0.01, 0.01))
    connections = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    web = await asyncio.start_server(answer, "127.0.0.1", 0)
    at = f"127.0.0.1:{web.sockets[0].getsockname()[1]}"
    with caplog.at_level(logging.INFO, logger=slave_module.__name__):
        async with web, mqtool.Broker(tmp_path, role="slave", settings={**SLAVE, "haMasterAddress": at}):
            await until(lambda: len(connections) >= 5)
    of_log = [record.getMessage() for record in caplog.records if at in record.getMessage()]
    assert len(of_log) == 1
    assert of_log[0].startswith(f"not following the log of {at}: the master sent something that is not a frame")


@on_a_loop
async def test_a_connected_slave_says_that_its_master_has_removed_what_it_needs_next(tmp_path: Path) -> None:
    """Its master goes on with heartbeats, as if nothing were to be sent."""
    removes = {**MASTER, "fileReservedTime": 0, "cleanResourceInterval": 100}
    async with (
        asyncio.timeout(60),
        mqtool.Broker(tmp_path / "master", settings=removes) as master,
        by_hand(tmp_path / "master") as (hand, at),
    ):
        client = RemotingClient([master.address])
        await client.invoke(send("first"))
        names = [master.name_server_address]
        settings = {**SLAVE, "haMasterAddress": at}
        async with mqtool.Broker(tmp_path / "slave", role="slave", name_servers=names, settings=settings) as slave:
            end = len(log_of(tmp_path / "master"))
            await until(lambda: hand.reports and hand.reports[-1][-1:] == [end])
            hand.sends = False
            for _ in range(60):
                await client.invoke(send("x" * 4000))
            await client.invoke(RemotingCommand(RequestCode.DELETE_EXPIRED_COMMITLOG))

            while following_of(slave).status is not FollowingStatus.STOPPED:
                hand.write(end)
                await asyncio.sleep(0.05)

            expected = f"it ends at {end:,}, before the start of the master's log at "
            assert following_of(slave).reason.startswith(expected)
        await client.close()
    assert len(log_of(tmp_path / "slave")) == end


@on_a_loop
async def test_two_slaves_with_one_id_both_have_the_log_and_say_that_they_take_turns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**SLAVE, "registerNameServerPeriod": 300}
    async with mqtool.Broker(tmp_path / "master", role="master", settings=MASTER) as master:
        where = [master.name_server_address]
        async with (
            mqtool.Broker(tmp_path / "slave-1", role="slave", name_servers=where, settings=settings) as first,
            mqtool.Broker(tmp_path / "slave-2", role="slave", name_servers=where, settings=settings) as second,
        ):
            await send_all(master, "one", "two")
            for folder in ("slave-1", "slave-2"):
                await until(lambda name=folder: log_of(tmp_path / name) == log_of(tmp_path / "master"))
            for address in (first.address, second.address):
                sentence = f"{address} is also registered as pair with id 1, and the two take turns"
                await until(lambda text=sentence: text in caplog.text)
        assert f"{master.address} is also" not in caplog.text
    for folder in ("slave-1", "slave-2"):
        assert worst(tmp_path / folder) <= worst(tmp_path / "master")


@on_a_loop
async def test_a_slave_can_be_started_on_a_copy_of_its_masters_store(tmp_path: Path) -> None:
    async with mqtool.Broker(tmp_path / "master", role="master", settings=MASTER) as master:
        client = RemotingClient([master.address])
        for number in range(10):
            await client.invoke(send(f"m{number}"))
        await client.close()
    shutil.copytree(tmp_path / "master", tmp_path / "slave")
    async with mqtool.Broker(tmp_path / "master", role="master", settings=MASTER) as master:
        client = RemotingClient([master.address])
        await client.invoke(send("later"))
        await client.close()
        async with slave_of(master, tmp_path / "slave") as slave:
            await until(lambda: log_of(tmp_path / "slave") == log_of(tmp_path / "master"))
            assert following_of(slave).unchecked == ""
    assert worst(tmp_path / "slave") <= worst(tmp_path / "master")


class SmallDisk(Disk):
    """A disk on which the log of one store has no room beyond an address, in a segment, or its checkpoint has none."""

    room = 1 << 40
    full_segment = ""
    has_room_for_checkpoint = True

    def write(self, path: Path, at: int, data: bytes) -> None:
        if "slave" in path.parts and path.name == "checkpoint" and not self.has_room_for_checkpoint:
            raise DiskFullError(f"no space left for {path}")
        super().write(path, at, data)

    def open(self, path: Path) -> OpenFile:
        file = super().open(path)
        write = file.write

        def refuse(at: int, data: bytes | bytearray) -> None:
            is_full = at + len(data) > self.room or path.name == self.full_segment
            if "slave" in path.parts and path.parent.name == "commitlog" and any(data) and is_full:
                raise DiskFullError(f"no space left for {path}")
            write(at, data)

        file.write = refuse  # type: ignore[method-assign]
        return file


@on_a_loop
async def test_a_slave_without_room_stops_acknowledging_says_so_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_store, "Disk", SmallDisk)
    monkeypatch.setattr(slave_module, "_LOOK_AGAIN_SECONDS", 0.2)
    async with (
        mqtool.Broker(tmp_path / "master", settings=MASTER) as master,
        by_hand(tmp_path / "master") as (hand, at),
    ):
        client = RemotingClient([master.address])
        async with slave_of(master, tmp_path / "slave", haMasterAddress=at) as slave:
            await client.invoke(send("first"))
            await until(lambda: hand.reports and hand.reports[-1][-1:] == [len(log_of(tmp_path / "master"))])
            there = len(log_of(tmp_path / "slave"))
            monkeypatch.setattr(SmallDisk, "room", there + 100)
            await client.invoke(send("second"))
            await until(lambda: following_of(slave).status is FollowingStatus.STOPPED)
            assert "no space left" in following_of(slave).reason
            assert log_of(tmp_path / "slave") == log_of(tmp_path / "master")[:there]
            assert max(max(one, default=0) for one in hand.reports) == there
            monkeypatch.setattr(SmallDisk, "room", 1 << 40)
            await until(lambda: hand.reports[-1][-1:] == [len(log_of(tmp_path / "master"))])
        await client.close()
    assert log_of(tmp_path / "slave") == log_of(tmp_path / "master")


@pytest.mark.parametrize("full", ["the next segment", "the checkpoint"])
@on_a_loop
async def test_a_slave_goes_on_without_a_new_start_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, full: str
) -> None:
    monkeypatch.setattr(message_store, "Disk", SmallDisk)
    monkeypatch.setattr(slave_module, "_LOOK_AGAIN_SECONDS", 0.2)
    if full == "the next segment":  # what is received ends with the unused end of a segment
        monkeypatch.setattr(SmallDisk, "full_segment", f"{65_536:020}")
    else:
        monkeypatch.setattr(SmallDisk, "has_room_for_checkpoint", False)
    async with (
        mqtool.Broker(tmp_path / "master", role="master", settings=MASTER) as master,
        slave_of(master, tmp_path / "slave") as slave,
    ):
        await until(lambda: following_of(slave).status is FollowingStatus.FOLLOWING)
        await send_all(master, *["x" * 3000] * 30)
        await until(lambda: f"no space left for {tmp_path / 'slave'}" in caplog.text)
        monkeypatch.setattr(SmallDisk, "full_segment", "")
        monkeypatch.setattr(SmallDisk, "has_room_for_checkpoint", True)
        await send_all(master, "later")
        await until(lambda: log_of(tmp_path / "slave") == log_of(tmp_path / "master"))
    assert "this broker is now" not in caplog.text
    assert "no longer accepts messages" not in caplog.text
    assert worst(tmp_path / "slave") <= worst(tmp_path / "master")


@pytest.mark.parametrize("known_by", ["account", "address", "nothing"])
@on_a_loop
async def test_under_acl_a_slave_signs_or_comes_from_a_white_listed_address_else_it_follows_unchecked(
    tmp_path: Path, known_by: str
) -> None:
    """Slaves of 4.9 sign nothing: they are known by their address alone."""
    white = ("127.0.0.1",) if known_by == "address" else ()
    accounts = PlainAcl({"administrator": Account("administrator", "12345678", is_admin=True)}, white)
    (tmp_path / "acl.yml").write_text(build_acl(accounts))
    acl: dict[str, str | int | bool] = {"aclEnable": True, "rocketmq.acl.plain.file": str(tmp_path / "acl.yml")}
    signed = {"innerClientAuthenticationCredentials": '{"accessKey":"administrator","secretKey":"12345678"}'}
    async with mqtool.Broker(tmp_path / "master", role="master", settings={**MASTER, **acl}) as master:
        client = RemotingClient([master.address], credentials=Credentials("administrator", "12345678"))
        sent = await client.invoke(send("one"))
        assert sent.code == ResponseCode.SUCCESS
        async with slave_of(master, tmp_path / "slave", **(signed if known_by == "account" else {})) as slave:
            await until(lambda: log_of(tmp_path / "slave") == log_of(tmp_path / "master"))
            at_slave = RemotingClient([slave.address])
            if known_by != "nothing":
                await until(lambda: has_messages(at_slave, 1))
                await until(lambda: following_of(slave).copied_timestamp)
            else:
                await asyncio.sleep(0.7)  # three times the interval
                assert not following_of(slave).copied_timestamp
            assert bool(following_of(slave).unchecked) is (known_by == "nothing")
            shown = await asyncio.to_thread(
                run, "cluster", "show", "-n", master.name_server_address, "--max-lag", "0",
                "--access-key", "administrator", "--secret-key", "12345678",
            )  # fmt: skip
            if known_by == "nothing":
                assert shown.status == Status.WARNINGS
                assert "does not copy all tables of its master: topics, " in shown.remarks
                assert "consumer offsets, " in following_of(slave).tables_reason
                assert not following_of(slave).tables_timestamp
            else:
                assert (shown.status, following_of(slave).tables_reason) == (Status.OK, "")
                assert following_of(slave).tables_timestamp
            config = await at_slave.invoke(RemotingCommand(RequestCode.GET_BROKER_CONFIG))
            assert b"12345678" not in config.body
            await at_slave.close()
        await client.close()


@on_a_loop
async def test_a_consumer_goes_on_at_the_slave_when_its_master_is_gone_and_comes_back_to_it(tmp_path: Path) -> None:
    async with Cluster(NameServerConfig()) as names:
        where = [names.name_server_address]
        settings, port = {**SLAVE, "brokerPermission": 6}, free_port()
        seen: list[str] = []

        async def listen(messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> ConsumeStatus:
            seen.extend(one.body.decode() for one in messages)
            return ConsumeStatus.SUCCESS

        async with mqtool.Broker(tmp_path / "slave", role="slave", name_servers=where, settings=settings) as slave:
            async with mqtool.Broker(tmp_path / "master", port=port, name_servers=where, settings=MASTER) as master:
                client = RemotingClient([master.address])
                for number in range(5):
                    await client.invoke(send(f"m{number}"))
                at_slave = RemotingClient([slave.address])
                await until(lambda: has_messages(at_slave, 5))
                await at_slave.close()
                await client.close()
            options = PushConsumerOptions(consume_from_where=ConsumeFrom.FIRST_OFFSET)
            consumer = PushConsumer("G", listen, where, options)
            consumer.subscribe("Orders", "*")
            async with consumer:
                await until(lambda: sorted(seen) == [f"m{number}" for number in range(5)])
                async with mqtool.Broker(tmp_path / "master", port=port, name_servers=where, settings=MASTER) as master:
                    client = RemotingClient([master.address])
                    await client.invoke(send("m5"))
                    await client.close()
                    await until(lambda: "m5" in seen)
    assert len(seen) == len({*seen})


async def offset_of(client: RemotingClient, group: str) -> str | None:
    """Return what a group reads next of the queue, None where a broker does not know it."""
    fields = {"consumerGroup": group, "topic": "Orders", "queueId": "0", "setZeroIfNotFound": "false"}
    answer = await client.invoke(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=fields))
    return answer.ext_fields["offset"] if answer.code == ResponseCode.SUCCESS else None


async def knows_group(client: RemotingClient, group: str) -> bool:
    answer = await client.invoke(RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    return group in parse_body(answer.body)["subscriptionGroupTable"]


async def commit(client: RemotingClient, group: str, offset: int) -> None:
    await client.invoke(
        RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"%s"}' % group.encode())
    )
    fields = {"consumerGroup": group, "topic": "Orders", "queueId": "0", "commitOffset": str(offset)}
    answer = await client.invoke(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields))
    assert answer.code == ResponseCode.SUCCESS


@pytest.mark.parametrize("later", [0, 8], ids=["that stays short", "that grows past it"])
@on_a_loop
async def test_offsets_that_wait_for_messages_of_a_master_are_not_taken_from_its_shorter_successor(
    tmp_path: Path, later: int
) -> None:
    """The master lost its end, with messages that a group had consumed; others have come to their addresses."""
    async with Cluster(NameServerConfig()) as names, by_hand(tmp_path / "master") as (hand, at):
        where = [names.name_server_address]
        hand.sends = False
        async with mqtool.Broker(tmp_path / "master", name_servers=where, settings=MASTER) as master:
            client = RemotingClient([master.address])
            for number in range(5):
                await client.invoke(send(f"m{number}"))
            await client.close()
        shutil.copytree(tmp_path / "master", tmp_path / "shorter")
        half = len(log_of(tmp_path / "shorter"))
        port = free_port()
        before = contextlib.AsyncExitStack()
        master = await before.enter_async_context(
            mqtool.Broker(tmp_path / "master", port=port, name_servers=where, settings=MASTER)
        )
        client = RemotingClient([master.address])
        for number in range(5, 10):
            await client.invoke(send(f"m{number}"))
        await commit(client, "G", 10)
        await client.close()
        async with mqtool.Broker(
            tmp_path / "slave", role="slave", name_servers=where, settings={**SLAVE, "haMasterAddress": at}
        ) as slave:
            at_slave = RemotingClient([slave.address])
            await until(lambda: hand.reports)
            hand.write(0, log_of(tmp_path / "master")[:half])
            await until(lambda: hand.reports[-1][-1:] == [half])
            await until(lambda: knows_group(at_slave, "G"))  # which is asked for after the offsets
            assert await offset_of(at_slave, "G") is None
            await before.aclose()
            async with mqtool.Broker(tmp_path / "shorter", port=port, name_servers=where, settings=MASTER) as master:
                client = RemotingClient([master.address])
                for number in range(later):
                    await client.invoke(send(f"n{number}"))
                await commit(client, "other", 3)
                await client.close()
                hand.folder, hand.sends = tmp_path / "shorter", True
                hand.drop()
                await until(lambda: log_of(tmp_path / "slave") == log_of(tmp_path / "shorter"))

                async def is_copied() -> bool:
                    return await offset_of(at_slave, "other") == "3"

                await until(is_copied)
                assert await offset_of(at_slave, "G") is None
            await at_slave.close()


@on_a_loop
async def test_a_slave_leaves_its_master_for_another_that_the_name_server_names(tmp_path: Path) -> None:
    async with Cluster(NameServerConfig()) as names:
        where = [names.name_server_address]
        async with mqtool.Broker(tmp_path / "master", name_servers=where, settings=MASTER) as master:
            client = RemotingClient([master.address])
            await client.invoke(send("both"))
            await client.close()
        shutil.copytree(tmp_path / "master", tmp_path / "other")
        settings = {**SLAVE, "registerNameServerPeriod": 500}
        async with (
            mqtool.Broker(tmp_path / "master", role="master", name_servers=where, settings=MASTER),
            mqtool.Broker(tmp_path / "slave", role="slave", name_servers=where, settings=settings) as slave,
        ):
            await until(lambda: log_of(tmp_path / "slave") == log_of(tmp_path / "master"))
            async with mqtool.Broker(tmp_path / "other", role="master", name_servers=where, settings=MASTER) as other:
                client = RemotingClient([other.address])
                await client.invoke(send("new"))
                await client.close()
                await until(lambda: log_of(tmp_path / "slave") == log_of(tmp_path / "other"))
                assert following_of(slave).master_address == other.address


@on_a_loop
async def test_a_slave_does_not_follow_a_master_that_another_has_replaced(tmp_path: Path) -> None:
    write_role(tmp_path / "slave", KeptRole(Role.SLAVE, 1, 2, Role.SLAVE, 1))
    async with (
        mqtool.Broker(tmp_path / "master", role="master", settings=MASTER) as master,
        slave_of(master, tmp_path / "slave") as slave,
    ):
        client = RemotingClient([master.address])
        await client.invoke(send("not for it"))
        await client.close()
        await until(lambda: following_of(slave).status is FollowingStatus.STOPPED)
        assert "its master is at epoch 0, this slave at epoch 2" in following_of(slave).reason
    assert log_of(tmp_path / "slave") == b""


async def send_all(broker: mqtool.Broker, *texts: str) -> None:
    client = RemotingClient([broker.address])
    for text in texts:
        assert (await client.invoke(send(text))).code == ResponseCode.SUCCESS
    await client.close()


@on_a_loop
async def test_the_end_of_an_old_master_that_nobody_has_is_set_aside_and_it_follows_the_new_one(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with Cluster(NameServerConfig()) as names:
        where = [names.name_server_address]
        async with mqtool.Broker(old, role="master", name_servers=where, settings=MASTER) as master:
            async with mqtool.Broker(new, role="slave", name_servers=where, settings=SLAVE):
                await send_all(master, "both 1", "both 2")
                await until(lambda: log_of(new) == log_of(old))
            both = len(log_of(old))
            await send_all(master, "old 1", "old 2", "old 3")
            client = RemotingClient([master.address])
            await commit(client, "G", 5)
            await client.close()
        before = log_of(old)
        async with (
            mqtool.Broker(new, role="master", name_servers=where, settings=MASTER) as master,
            mqtool.Broker(old, role="slave", name_servers=where, settings=SLAVE) as slave,
        ):
            await send_all(master, "new 1")
            await until(lambda: log_of(old) == log_of(new) and following_of(slave).status is FollowingStatus.FOLLOWING)
            client = RemotingClient([slave.address])
            assert int(await offset_of(client, "G") or 0) <= 3
            await client.close()
            await send_all(master, "new 2")
            await until(lambda: log_of(old) == log_of(new))
    assert worst(old) <= worst(new)
    # What was cut: on a copy of both folders, as the store has gone on.
    shutil.copytree(old, tmp_path / "copy" / "old")
    shutil.copytree(tmp_path / "old.mqtool", tmp_path / "copy" / "old.mqtool")
    [journal] = journals(tmp_path / "copy" / "old")
    undo(tmp_path / "copy" / "old", Disk(), journal.name, force=True)
    assert log_of(tmp_path / "copy" / "old") == before
    assert before[:both] == log_of(new)[:both]


@on_a_loop
async def test_an_end_that_could_not_be_set_aside_is_set_aside_when_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_keeper, "_CUT_AGAIN_SECONDS", 1.0)
    monkeypatch.setattr(slave_module, "_LOOK_AGAIN_SECONDS", 0.2)
    old, new, journal = tmp_path / "old", tmp_path / "new", tmp_path / "old.mqtool"
    async with Cluster(NameServerConfig()) as names:
        where = [names.name_server_address]
        async with mqtool.Broker(old, role="master", name_servers=where, settings=MASTER) as master:
            async with mqtool.Broker(new, role="slave", name_servers=where, settings=SLAVE):
                await send_all(master, "both")
                await until(lambda: log_of(new) == log_of(old))
            await send_all(master, "old")
        before = log_of(old)
        journal.write_text("no folder, as if there were no room for one")
        async with (
            mqtool.Broker(new, role="master", name_servers=where, settings=MASTER) as master,
            mqtool.Broker(old, role="slave", name_servers=where, settings=SLAVE) as slave,
        ):
            await send_all(master, "new")
            await until(lambda: following_of(slave).status is FollowingStatus.STOPPED)
            assert following_of(slave).reason.endswith(
                f"the end of its log cannot be cut: cannot change {journal}: Not a directory"
            )
            assert log_of(old) == before
            journal.unlink()
            await until(lambda: log_of(old) == log_of(new) and following_of(slave).status is FollowingStatus.FOLLOWING)
            assert [one.command for one in journals(old)] == ["recover"]
    assert worst(old) <= worst(new)


@on_a_loop
async def test_bytes_that_a_slave_has_acknowledged_are_cut_only_by_hand(tmp_path: Path) -> None:
    """The master comes back with an older store, and goes on with other messages."""
    old, new = tmp_path / "slave", tmp_path / "master"
    settings = {"mappedFileSizeCommitLog": "65536"}
    async with Cluster(NameServerConfig()) as names:
        where = [names.name_server_address]
        async with mqtool.Broker(new, role="master", name_servers=where, settings=MASTER) as master:
            await send_all(master, "both")
        shutil.copytree(new, tmp_path / "lost")
        async with (
            mqtool.Broker(tmp_path / "lost", role="master", name_servers=where, settings=MASTER) as master,
            mqtool.Broker(old, role="slave", name_servers=where, settings=SLAVE),
        ):
            await send_all(master, "acknowledged")
            await until(lambda: log_of(old) == log_of(tmp_path / "lost"))
        before = log_of(old)
        async with mqtool.Broker(new, role="master", name_servers=where, settings=MASTER) as master:
            at = len(log_of(new))
            await send_all(master, "other 1", "other 2")
            async with mqtool.Broker(old, role="slave", name_servers=where, settings=SLAVE) as slave:
                await until(lambda: following_of(slave).status is FollowingStatus.STOPPED)
                reason = following_of(slave).reason
            assert log_of(old) == before
            assert f"`mqtool recover -s {old} --cut-at {at}`" in reason
            carry_out(
                old, StoreConfig(settings), plan_repair(old, StoreConfig(settings), "recover", {"cut_at": at}), Disk()
            )
            async with mqtool.Broker(old, role="slave", name_servers=where, settings=SLAVE) as slave:
                await until(lambda: log_of(old) == log_of(new))
    assert worst(old) <= worst(new)


@on_a_loop
async def test_a_slave_keeps_how_far_its_master_has_delivered_timer_messages(tmp_path: Path) -> None:
    async with mqtool.Broker(tmp_path / "master", role="master", settings=MASTER) as master:
        client = RemotingClient([master.address])
        sent = send("timed")
        sent.ext_fields["i"] = "TIMER_DELAY_MS\x011000\x02"  # without a unique key nothing else tells of it
        assert (await client.invoke(sent)).code == ResponseCode.SUCCESS
        async with slave_of(master, tmp_path / "slave"):
            file = tmp_path / "slave" / "config" / "timercheck"

            async def is_copied() -> bool:
                told = (await client.invoke(RemotingCommand(RequestCode.GET_TIMER_CHECK_POINT))).body
                is_over = int.from_bytes(told[:8], "big") > 0
                return is_over and file.exists() and file.read_bytes()[: len(told)] == told

            await until(is_copied)
        await client.close()
    # Promoted, it does not deliver the message again.
    async with mqtool.Broker(tmp_path / "slave", role="master", settings=MASTER) as promoted:
        client = RemotingClient([promoted.address])
        await client.invoke(send("later"))
        assert bodies(await client.invoke(pull())) == [b"timed", b"later"]
        await client.close()
