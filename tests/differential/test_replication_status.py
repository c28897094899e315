"""What mqadmin of RocketMQ shows of a master of ours and of its slave."""

import asyncio
from pathlib import Path

import pytest

import mqtool
from mqtool.engine.broker.following import FollowingStatus
from tests.differential.java_broker import mqadmin
from tests.engine.test_slave import MASTER, SLAVE, following_of, log_of, send_all, until

pytestmark = pytest.mark.java


def rows(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


def test_status_figures_and_list_of_a_master_and_its_slave(tmp_path: Path) -> None:
    async def shown() -> None:
        settings = {**MASTER, "inSyncReplicas": 2}
        async with (
            asyncio.timeout(180),
            mqtool.Broker(tmp_path / "master", role="sync_master", settings=settings) as master,
            mqtool.Broker(
                tmp_path / "slave", role="slave", name_servers=[master.name_server_address], settings=SLAVE
            ) as slave,
        ):
            await until(lambda: following_of(slave).status is FollowingStatus.FOLLOWING, 60)
            await send_all(master, "one")
            end = str(len(log_of(tmp_path / "master")))
            async with mqadmin("5.3.3", tmp_path, master.name_server_address) as admin:
                of_master = rows(await admin.run("haStatus", "-b", master.address))
                of_slave = rows(await admin.run("haStatus", "-b", slave.address))
                listed = rows(await admin.run("clusterList"))
                figures = rows(await admin.run("brokerStatus", "-b", slave.address))
        assert ["#MasterAddr", master.address] in of_master
        assert ["#MasterCommitLogMaxOffset", end] in of_master
        assert ["#InSyncSlaveNum", "1"] in of_master
        assert [end, "0", "OK", end] in [[*one[1:3], *one[4:]] for one in of_master]
        assert ["#MasterAddr", ha_address_of(master.address)] in of_slave
        assert ["#CommitLogMaxOffset", end] in of_slave
        assert [["pair", "0", master.address], ["pair", "1", slave.address]] == [
            one[1:4] for one in listed if "pair" in one
        ]
        assert ["replicationStatus", ":", "following"] in figures
        assert ["commitLogMaxOffset", ":", end] in figures

    asyncio.run(shown())


def ha_address_of(broker: str) -> str:
    """Return where a broker serves its slaves."""
    host, _, port = broker.rpartition(":")
    return f"{host}:{int(port) + 1}"
