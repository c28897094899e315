"""Our name server with real brokers and the real mqadmin of three versions."""

from pathlib import Path

import pytest

from mqtool.engine.cluster import Cluster
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.server_configs import NameServerConfig
from mqtool.formats.bodies import QueueData, TopicRoute, parse_body, parse_cluster_info, parse_route
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import topics
from mqtool.formats.remoting import RemotingCommand
from tests.differential.conftest import jars
from tests.differential.java_broker import POM, mqadmin, running_broker, within
from tests.differential.java_store import each_version
from tests.ports import free_port

pytestmark = pytest.mark.java

_PATIENCE = 300.0


async def route(client: RemotingClient, topic: str) -> TopicRoute | None:
    answer = await client.invoke(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic}))
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    assert answer.code == 0
    return parse_route(answer.body)


@each_version
def test_a_real_broker_and_mqadmin_are_served(version: str, tmp_path: Path) -> None:
    jars(version, POM)

    async def served() -> None:
        async with Cluster(NameServerConfig()) as cluster:
            name_server = cluster.name_server_address
            client = RemotingClient([name_server])
            async with (
                running_broker(version, tmp_path / "broker", name_server, free_port()) as broker,
                mqadmin(version, tmp_path / "admin", name_server) as admin,
            ):
                # What the broker has registered, as we tell it and as mqadmin reads it.
                info = parse_cluster_info(
                    (await client.invoke(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))).body
                )
                assert info.clusters == {"DefaultCluster": ["broker-java"]}
                assert info.brokers["broker-java"].addresses == {0: broker}
                default = await route(client, "TBW102")
                assert default is not None
                assert default.queues == [QueueData("broker-java", 8, 8, 7)]

                listed = (await admin.run("clusterList")).splitlines()
                row = next(line.split() for line in listed if "broker-java" in line)
                assert row[:4] == ["DefaultCluster", "broker-java", "0", broker]

                # Our client and a real broker understand each other as well.
                asked = RemotingClient([broker])
                running = await asked.invoke(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
                assert f"V{version.replace('.', '_')}" in parse_body(running.body)["table"]["brokerVersionDesc"]
                topic_table = topics(
                    parse_body((await asked.invoke(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG))).body)
                )
                assert topic_table["TBW102"].read_queue_count == 8
                await asked.close()

                # A topic made on the broker reaches clients through us, and the other topics stay.
                made = await admin.run("updateTopic", "-b", broker, "-t", "Made", "-r", "3", "-w", "2")
                assert "success" in made
                told = await admin.run("topicRoute", "-t", "Made")
                assert all(word in told for word in ('"readQueueNums":3', '"writeQueueNums":2', broker))
                names = (await admin.run("topicList")).split()
                assert {"Made", "TBW102", "BenchmarkTest", "DefaultCluster"} <= {*names}

                # Permissions.
                assert "wipe write perm" in (await admin.run("wipeWritePerm", "-b", "broker-java"))
                wiped = await route(client, "Made")
                assert wiped is not None
                assert wiped.queues == [QueueData("broker-java", 3, 2, 4)]
                assert "add write perm" in (await admin.run("addWritePerm", "-b", "broker-java"))
                writable = await route(client, "Made")
                assert writable is not None
                assert writable.queues == [QueueData("broker-java", 3, 2, 6)]

                # Kv config and settings.
                assert "success" in await admin.run("updateKvConfig", "-s", "N", "-k", "key", "-v", "value")
                kept = await client.invoke(
                    RemotingCommand(RequestCode.GET_KV_CONFIG, ext_fields={"namespace": "N", "key": "key"})
                )
                assert kept.ext_fields == {"value": "value"}
                assert "success" in await admin.run("deleteKvConfig", "-s", "N", "-k", "key")
                order = await admin.run("updateOrderConf", "-m", "put", "-t", "Made", "-v", "broker-java:2")
                assert "success" in order
                assert "broker-java:2" in await admin.run("updateOrderConf", "-m", "get", "-t", "Made")
                assert "success" in await admin.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
                config = await admin.run("getNamesrvConfig")
                assert any(line.split() == ["orderMessageEnable", "=", "true"] for line in config.splitlines()), config
                ordered = await route(client, "Made")
                assert ordered is not None
                assert ordered.order_config == "broker-java:2"

                # A topic that is deleted has no route.
                deleted = await admin.run("deleteTopic", "-c", "DefaultCluster", "-t", "Made")
                assert "success" in deleted, deleted
                assert await route(client, "Made") is None
                assert await route(client, "TBW102")

            # The broker has said goodbye, or its connection has ended.
            assert await route(client, "TBW102") is None
            await client.close()

    within(_PATIENCE, served())
