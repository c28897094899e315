"""What ``mqtool cluster show`` tells of replication."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.engine.replication.frames import build_report
from mqtool.errors import Status
from mqtool.formats.codes import RequestCode
from tests.commands.running import Ran, run
from tests.wire_client import WireClient

REGISTRATION = (
    b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":{}},'
    b'"filterServerList":[]}'
)


async def register_as_slave(client: WireClient, address: str, name: str = "broker-a", broker_id: int = 1) -> None:
    fields = {"brokerName": name, "brokerAddr": address, "clusterName": "DefaultCluster", "brokerId": broker_id}
    await client.done(RequestCode.REGISTER_BROKER, REGISTRATION, **fields, haServerAddr=address)


async def show(name_server: str, *arguments: str) -> Ran:
    return await asyncio.to_thread(run, "cluster", "show", "-n", name_server, *arguments)


def stats(ran: Ran) -> dict[int, dict[str, Any]]:
    """Return the figures of each broker by its id."""
    told: dict[int, dict[str, Any]] = {}
    for row in ran.rows:
        told.setdefault(row["broker_id"], {})[row["name"]] = row["value"]
    return told


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_role_lag_and_replicas_are_shown_and_a_slave_too_far_behind_is_a_status_of_its_own(
    tmp_path: Path, role: str
) -> None:
    async def test() -> None:
        settings = {"brokerRole": role}
        # What stands in for a slave is a broker with another log, for which a connection has reported.
        async with (
            asyncio.timeout(60),
            mqtool.Broker(tmp_path / "master", settings=settings) as master,
            mqtool.Broker(tmp_path / "slave") as slave,
        ):
            at_master, at_slave = WireClient(master.address), WireClient(slave.address)
            await at_slave.send(b"x")
            for _ in range(5):
                await at_master.send(b"x" * 100)
            name_server = master.name_server_address
            at_names = WireClient(name_server)
            assert "lag_bytes" not in stats(await show(name_server))[0]
            await register_as_slave(at_names, slave.address)
            told = stats(await show(name_server))
            ends = [int(one["commitLogMaxOffset"]) for one in told.values()]
            lag = ends[0] - ends[1]
            assert (told[0]["role"], told[0]["in_sync_count"]) == (role, "1")
            assert told[1]["lag_bytes"] == str(lag)
            assert "lag_seconds" not in told[1]  # nobody is connected

            host, port = master.address.split(":")
            _, writer = await asyncio.open_connection(host, int(port) + 1)
            writer.write(build_report(ends[1]))
            while "lag_seconds" not in (told := stats(await show(name_server)))[1]:
                pass
            assert 0 <= float(told[1]["lag_seconds"]) < 60
            assert told[0]["in_sync_count"] == "2"

            assert (await show(name_server, "--max-lag", str(lag))).status == Status.OK
            late = await show(name_server, "--max-lag", str(lag - 1))
            assert late.status == Status.WARNINGS
            assert f"slave 1 of broker-a ({slave.address}) is {lag:,} bytes behind its master" in late.remarks

            await register_as_slave(at_names, slave.address, "orphan")
            alone = await show(name_server, "orphan", "--max-lag", str(1 << 40))
            assert alone.status == Status.WARNINGS
            assert "its lag is unknown" in alone.remarks
            writer.close()
            await register_as_slave(at_names, "127.0.0.1:1", "orphan")
            assert (await show(name_server, "orphan", "--max-lag", "1")).status == Status.UNAVAILABLE
            for client in (at_master, at_slave, at_names):
                await client.close()

    asyncio.run(test())
