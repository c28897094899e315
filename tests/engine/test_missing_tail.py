"""A master that has lost its end gets it back from its slaves before it takes messages."""

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

import mqtool
from mqtool.engine import missing_tail
from mqtool.engine.broker.following import FollowingStatus
from mqtool.engine.cluster import Cluster
from mqtool.engine.server_configs import NameServerConfig
from mqtool.formats.bodies import ConsumerData, Heartbeat, build_heartbeat
from mqtool.formats.codes import RequestCode
from tests.commands.test_cluster_show import register_as_slave
from tests.engine.remoting.test_server import on_a_loop
from tests.engine.test_embedded import worst
from tests.engine.test_slave import MASTER, SLAVE, following_of, log_of, send_all, until
from tests.ports import free_port
from tests.wire_client import WireClient


def lose_end(store: Path, before: Path, *, by_power: bool) -> None:
    """Have a store be what it was before, as after a kill, or a stop of the machine."""
    shutil.rmtree(store)
    before.rename(store)
    assert (store / "abort").exists()
    if by_power:
        note = store / "config" / "mqtoolAcknowledged.json"
        note.write_text(note.read_text().replace('"bootId": "', '"bootId": "before'))


@pytest.mark.parametrize("size", [10, 9000], ids=["within a segment", "over segments"])
@on_a_loop
async def test_a_master_takes_what_it_has_lost_from_its_slave_and_the_slave_goes_on_with_it(
    tmp_path: Path, size: int
) -> None:
    old, new, settings = tmp_path / "master", tmp_path / "slave", {**SLAVE, "haStartAtFirstByte": True}
    async with Cluster(NameServerConfig()) as names:
        where = [names.name_server_address]
        async with mqtool.Broker(new, role="slave", name_servers=where, settings=settings) as slave:
            async with mqtool.Broker(old, role="master", name_servers=where, settings=MASTER) as master:
                await send_all(master, *(f"m{number}" * size for number in range(5)))
                await until(lambda: log_of(new) == log_of(old))
                shutil.copytree(old, tmp_path / "before")
                await send_all(master, *(f"m{number}" * size for number in range(5, 10)))
                await until(lambda: log_of(new) == log_of(old))
                there = log_of(old)
            lose_end(old, tmp_path / "before", by_power=False)
            assert len(log_of(old)) < len(there)
            async with mqtool.Broker(old, role="master", name_servers=where, settings=MASTER) as master:
                assert log_of(old) == there
                await send_all(master, "later")
                await until(lambda: log_of(new) == log_of(old))
                assert following_of(slave).status is FollowingStatus.FOLLOWING
    assert worst(new) <= worst(old)


@on_a_loop
async def test_a_master_has_the_topics_of_what_it_takes_from_its_slave_also_if_its_table_is_newer(
    tmp_path: Path,
) -> None:
    """Its machine stops twice; in between it does not reach its slave, and comes to know a group."""
    old, new = tmp_path / "master", tmp_path / "slave"
    async with Cluster(NameServerConfig()) as names:
        where = [names.name_server_address]
        async with mqtool.Broker(new, role="slave", name_servers=where, settings=SLAVE):
            async with mqtool.Broker(old, role="master", name_servers=where, settings=MASTER) as master:
                client = WireClient(master.address)
                await client.send(b"first", topic="First")
                await until(lambda: log_of(new) == log_of(old))
                shutil.copytree(old, tmp_path / "before")
                await client.send(b"lost", topic="Lost", queue=1)
                await client.close()
                await until(lambda: log_of(new) == log_of(old))
                there = log_of(old)
            lose_end(old, tmp_path / "before", by_power=False)
            async with mqtool.Broker(old, role="master", settings=MASTER) as master:
                client = WireClient(master.address)
                group = ConsumerData("late", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET")
                await client.done(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("one", consumers=(group,))))
                await client.close()
                await until(lambda: b"%RETRY%late" in (old / "config" / "topics.json").read_bytes())
                shutil.copytree(old, tmp_path / "before")
            lose_end(old, tmp_path / "before", by_power=False)
            async with mqtool.Broker(old, role="master", name_servers=where, settings=MASTER) as master:
                assert log_of(old) == there
                client = WireClient(master.address)
                assert [message.body for message in await client.messages("Lost", queue=1)] == [b"lost"]
                await client.close()


@on_a_loop
async def test_after_a_stop_of_the_machine_a_master_waits_until_its_slave_finds_it(tmp_path: Path) -> None:
    """The name server went with the master, so that it knows of no slave at first."""
    old, new, port = tmp_path / "master", tmp_path / "slave", free_port()
    where = [f"127.0.0.1:{port}"]
    async with (
        mqtool.Broker(old, role="master", name_server_port=port, settings=MASTER) as master,
        mqtool.Broker(new, role="slave", name_servers=where, settings=SLAVE),
    ):
        await send_all(master, "first")
        await until(lambda: log_of(new) == log_of(old))
        shutil.copytree(old, tmp_path / "before")
        await send_all(master, "second")
        await until(lambda: log_of(new) == log_of(old))
    there = log_of(old)
    lose_end(old, tmp_path / "before", by_power=True)
    async with (
        mqtool.Broker(new, role="slave", name_servers=where, settings=SLAVE),
        mqtool.Broker(old, role="master", name_server_port=port, settings=MASTER),
    ):
        assert log_of(old) == there


@on_a_loop
async def test_a_master_waits_for_each_slave_that_is_known_as_one_may_have_more_than_another(tmp_path: Path) -> None:
    old, stores, port = tmp_path / "master", [tmp_path / "slave-1", tmp_path / "slave-2"], free_port()
    async with Cluster(NameServerConfig()) as names:
        where = [names.name_server_address]

        def slave(number: int, port: int = 0) -> mqtool.Broker:
            return mqtool.Broker(
                stores[number - 1], role="slave", port=port, name_servers=where, settings={**SLAVE, "brokerId": number}
            )

        async with mqtool.Broker(old, role="master", name_servers=where, settings=MASTER) as master:
            async with slave(1), slave(2, port):
                await send_all(master, "first")
                await until(lambda: log_of(stores[0]) == log_of(stores[1]) == log_of(old))
                shutil.copytree(old, tmp_path / "before")
            async with slave(2):
                await send_all(master, "second")
                await until(lambda: log_of(stores[1]) == log_of(old))
        there = log_of(old)
        lose_end(old, tmp_path / "before", by_power=True)
        async with slave(1):
            client = WireClient(where[0])
            await register_as_slave(client, f"127.0.0.1:{port}", "pair", 2)  # as before its machine stopped, too
            asked = asyncio.Semaphore(0)

            def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                asked.release()
                writer.close()

            async def start_when_it_was_asked() -> None:
                async with await asyncio.start_server(refuse, "127.0.0.1", port):
                    await asked.acquire()  # whether there is another master
                    await asked.acquire()
                async with slave(2, port):
                    await until(lambda: log_of(stores[0]) == log_of(stores[1]) == there)

            starting = asyncio.create_task(start_when_it_was_asked())
            async with mqtool.Broker(old, role="master", name_servers=where, settings=MASTER):
                assert log_of(old) == there
                await starting
            await client.close()


@pytest.mark.parametrize("has_slave", [True, False], ids=["with another message", "away"])
@on_a_loop
async def test_it_is_said_what_may_be_lost_where_no_slave_has_it(
    tmp_path: Path, has_slave: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(missing_tail, "_WAIT_SECONDS", 1.0)
    old, new = tmp_path / "master", tmp_path / "slave"
    async with Cluster(NameServerConfig()) as names:
        where = [names.name_server_address]
        async with (
            mqtool.Broker(new, role="slave", name_servers=where, settings=SLAVE),
            mqtool.Broker(old, role="master", name_servers=where, settings=MASTER) as master,
        ):
            await send_all(master, "first")
            await until(lambda: log_of(new) == log_of(old))
            shutil.copytree(old, tmp_path / "before")
            await send_all(master, "second", "third")
            await until(lambda: log_of(new) == log_of(old))
        if has_slave:
            shutil.copytree(tmp_path / "before", tmp_path / "other")
            async with mqtool.Broker(tmp_path / "other", role="master", settings=MASTER) as other:
                await send_all(other, "another")
                shutil.copytree(tmp_path / "other", tmp_path / "left")
        lose_end(old, tmp_path / ("left" if has_slave else "before"), by_power=True)
        before = log_of(old)
        with caplog.at_level(logging.WARNING):
            if has_slave:
                async with (
                    mqtool.Broker(new, role="slave", name_servers=where, settings=SLAVE),
                    mqtool.Broker(old, role="master", name_servers=where, settings=MASTER),
                ):
                    pass
                assert "it has a different message; messages that only it has are lost" in caplog.text
            else:
                async with mqtool.Broker(old, role="master", name_servers=where, settings=MASTER):
                    pass
                assert "no slave has answered within 1 s" in caplog.text
        assert log_of(old) == before
