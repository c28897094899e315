"""mqadmin with mqtool and with RocketMQ, and our broker with a real name server."""

import asyncio
import re
from pathlib import Path

import pytest

from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.cluster import Cluster
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.server_configs import BrokerConfig, NameServerConfig
from mqtool.engine.streams.tls import TlsSettings
from mqtool.formats.bodies import QueueData, parse_route
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.plain_acl import ANY, parse_acl
from mqtool.formats.remoting import RemotingCommand
from tests.differential.conftest import jars
from tests.differential.java_broker import (
    NAME_SERVER_POM,
    POM,
    mqadmin,
    registered,
    running_name_server,
    within,
)
from tests.differential.mqadmin_table import BROKER_NAME, COMMANDS, NOTES, SAME, VERSION, compare
from tests.engine.remoting.test_tls import settings, with_certificate
from tests.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "reports" / "mqadmin.md"
_PATIENCE = 600.0

QUICK = """
updateTopic -b {broker} -t Table -r 4 -w 4
updateTopic -b {broker} -t Bad.Name
updateSubGroup -b {broker} -g TableGroup -r 3 -q 1
clients Table TableGroup
topicRoute -t Table
topicRoute -t Nowhere
topicStatus -t Table
topicClusterList -t Table
producerConnection -g TableGroupProducer -t Table
consumerConnection -g TableGroup
consumerConnection -g Nobody
consumerProgress -g TableGroup
queryMsgByKey -t Table -k key3
queryCq -t Table -q 0 -i 0 -c 2 -b {broker}
resetOffsetByTime -g TableGroup -t Table -s -1
updateBrokerConfig -b {broker} -k fileReservedTime -v 48
updateOrderConf -m put -t Table -v {name}:4
updateOrderConf -m get -t Table
deleteTopic -t Table -c DefaultCluster
"""
"""What prints the same for both at any moment; the page has all commands."""


@pytest.mark.java
def test_what_mqadmin_prints_is_what_it_prints_for_rocketmq(tmp_path_factory: pytest.TempPathFactory) -> None:
    jars(VERSION, POM)
    jars(VERSION, NAME_SERVER_POM)

    async def compared() -> set[str]:
        differing = await compare(tmp_path_factory.mktemp("pair"), QUICK)
        assert len(differing) == QUICK.strip().count("\n")  # all but "clients", which is no command
        return {line for line, differs in differing.items() if differs}

    async def always_different() -> set[str]:
        found = await compared()  # of a consumer that has just begun it may also be what it had not yet done
        return found & await compared() if found else found

    assert within(_PATIENCE, always_different()) == set()


def test_the_page_tells_of_each_command_whether_or_how_it_differs() -> None:
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    names = [line.split()[0] for line in COMMANDS.strip().splitlines()]
    assert {(name, int(count)) for name, count, _ in rows} == {
        (name, names.count(name)) for name in names if name != "clients"
    }
    for name, _, verdict in rows:
        assert verdict in (SAME, NOTES.get(name)), name


def test_the_readme_tells_what_the_page_does() -> None:
    told = re.search(r"^In all: (.+)\.$", PAGE.read_text(), re.MULTILINE)
    assert told
    assert told[1] in (PAGE.parents[2] / "README.md").read_text()


@pytest.mark.java
def test_a_broker_of_ours_is_one_of_a_real_name_server(tmp_path: Path) -> None:
    jars(VERSION, POM)
    jars(VERSION, NAME_SERVER_POM)

    async def administered() -> None:
        config = BrokerConfig(tmp_path / "store", settings=BrokerSettings(broker_name=BROKER_NAME))
        async with running_name_server(VERSION, tmp_path / "name-server", free_port()) as name_server:
            client = RemotingClient([name_server])

            async def asked(code: RequestCode, **ext_fields: str) -> RemotingCommand:
                return await client.invoke(RemotingCommand(code, ext_fields=ext_fields))

            async with (
                Cluster(None, [config], [name_server]) as cluster,
                mqadmin(VERSION, tmp_path / "admin", name_server) as admin,
            ):
                [broker] = cluster.broker_addresses
                await registered(name_server, broker)
                listed = (await admin.run("clusterList")).splitlines()
                row = next(line.split() for line in listed if BROKER_NAME in line)
                assert row[:4] == ["DefaultCluster", BROKER_NAME, "0", broker]

                # A topic is made on the broker, and routes to it are found by all.
                assert "success" in await admin.run("updateTopic", "-b", broker, "-t", "Made", "-r", "3", "-w", "2")
                while (answer := await asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="Made")).code:
                    await asyncio.sleep(0.1)
                assert parse_route(answer.body).queues == [QueueData(BROKER_NAME, 3, 2, 6)]
                sent = await admin.run("sendMessage", "-t", "Made", "-p", "text")
                assert "SEND_OK" in sent, sent

            # It says goodbye.
            gone = await asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="Made")
            assert gone.code == ResponseCode.TOPIC_NOT_EXIST
            await client.close()

    within(_PATIENCE, administered())


_ACCOUNTS = """
accounts:
- accessKey: administrator
  secretKey: 12345678
  admin: true
- accessKey: somebody
  secretKey: 12345678
  defaultTopicPerm: DENY
  topicPerms:
  - Made=PUB
"""


@pytest.mark.java
def test_mqadmin_comes_in_by_tls_and_is_let_do_what_its_keys_are_for(tmp_path: Path) -> None:
    jars(VERSION, POM)

    async def administered() -> None:
        tls = TlsSettings.of(settings(with_certificate(tmp_path), mode="enforcing"))
        accounts = tmp_path / "plain_acl.yml"
        accounts.write_text(_ACCOUNTS)
        guarded = BrokerSettings(acl_enabled=True, acl_file=str(accounts))
        config = BrokerConfig(tmp_path / "store", settings=guarded, tls=tls)
        async with Cluster(NameServerConfig(tls=tls), [config]) as cluster:
            [broker] = cluster.broker_addresses
            make = "updateTopic", "-b", broker, "-t", "Made", "-r", "2", "-w", "2"
            printed = {}
            for key in "administrator", "somebody":
                home = tmp_path / key
                (home / "conf").mkdir(parents=True)
                (home / "conf" / "tools.yml").write_text(f"accessKey: {key}\nsecretKey: 12345678\n")
                async with mqadmin(VERSION, home, cluster.name_server_address, "-Dtls.enable=true") as admin:
                    printed[key] = await admin.run(*make), await admin.run("sendMessage", "-t", "Made", "-p", "text")
            async with mqadmin(VERSION, tmp_path / "nobody", cluster.name_server_address, "-Dtls.enable=true") as admin:
                printed["nobody"] = await admin.run(*make), await admin.run("sendMessage", "-t", "Made", "-p", "text")

        made, sent = zip(*printed.values(), strict=True)
        assert "create topic to" in made[0]
        assert "Need admin permission for request code=17, but accessKey=somebody is not" in made[1]
        assert "No accessKey is configured" in made[2]
        assert ["SEND_OK" in one for one in sent] == [True, True, False]

    within(_PATIENCE, administered())


@pytest.mark.java
def test_clients_with_a_vip_channel_find_it(tmp_path: Path) -> None:
    """They ask two below the port that routes tell, and nowhere else."""
    jars("4.9.7", POM)

    async def administered() -> None:
        channel = "-Dcom.rocketmq.sendMessageWithVIPChannel=true"
        async with (
            Cluster(NameServerConfig(), [BrokerConfig(tmp_path / "store")]) as cluster,
            mqadmin("4.9.7", tmp_path / "admin", cluster.name_server_address, channel) as admin,
        ):
            [broker] = cluster.broker_addresses
            made = await admin.run("updateTopic", "-b", broker, "-t", "Made", "-r", "2", "-w", "2")
            sent = await admin.run("sendMessage", "-t", "Made", "-p", "text")
        assert f"create topic to {broker} success" in made
        assert "SEND_OK" in sent

    within(_PATIENCE, administered())


@pytest.mark.java
def test_mqadmin_of_4_x_shows_and_changes_accounts(tmp_path: Path) -> None:
    jars("4.9.7", POM)

    async def administered() -> None:
        accounts = tmp_path / "plain_acl.yml"
        accounts.write_text(_ACCOUNTS)
        (tmp_path / "admin" / "conf").mkdir(parents=True)
        (tmp_path / "admin" / "conf" / "tools.yml").write_text("accessKey: administrator\nsecretKey: 12345678\n")
        config = BrokerConfig(tmp_path / "store", settings=BrokerSettings(acl_enabled=True, acl_file=str(accounts)))
        async with Cluster(NameServerConfig(), [config]) as cluster:
            [broker] = cluster.broker_addresses
            async with mqadmin("4.9.7", tmp_path / "admin", cluster.name_server_address) as admin:
                put = await admin.run(
                    *(
                        "updateAclConfig",
                        "-b",
                        broker,
                        "-a",
                        "newcomer",
                        "-s",
                        "87654321",
                        "-t",
                        "T=PUB|SUB",
                        "-m",
                        "false",
                    )
                )
                deleted = await admin.run("deleteAccessConfig", "-b", broker, "-a", "somebody")
                white = await admin.run("updateGlobalWhiteAddr", "-b", broker, "-g", "10.0.0.1")
                version = await admin.run("clusterAclConfigVersion", "-b", broker)
                refused = await admin.run("updateAclConfig", "-b", broker, "-a", "short", "-s", "87654321")

        assert "success" in put and "success" in deleted and "success" in white, (put, deleted, white)
        assert broker in version and "3" in version, version
        assert "more than 6 characters" in refused, refused
        acl = parse_acl(accounts.read_text())
        assert [*acl.accounts] == ["administrator", "newcomer"]
        assert (acl.white_addresses, acl.version[0], dict(acl.accounts["newcomer"].topic_perms)) == (
            ("10.0.0.1",),
            3,
            {"T": ANY},
        )

    within(_PATIENCE, administered())
