"""Java clients that pop, on our broker. (Those that consume in order pull, whatever the broker says.)"""

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.cluster import Cluster
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.server_configs import BrokerConfig, NameServerConfig
from mqtool.formats.bodies import build_body
from mqtool.formats.codes import RequestCode
from mqtool.formats.headers import CreateTopic, build_header
from mqtool.formats.remoting import RemotingCommand
from tests.differential.conftest import jars
from tests.differential.java_broker import POM, pop_client, within

pytestmark = pytest.mark.java

_PATIENCE = 300.0

each_version = pytest.mark.parametrize(
    "version",
    [pytest.param(version, marks=pytest.mark.xdist_group(f"java-{version}")) for version in ("5.3.3", "5.5.0")],
)

Act = Callable[[Cluster], Awaitable[None]]


def on_our_broker(version: str, folder: Path, act: Act, **settings: str) -> None:
    """Run a name server and a broker, with a topic T of two queues that the group G is to consume by pops."""
    jars(version, POM)

    async def served() -> None:
        given, unknown = BrokerSettings().updated(settings)
        assert not unknown
        async with Cluster(NameServerConfig(), [BrokerConfig(folder / "store", settings=given)]) as cluster:
            client = RemotingClient(cluster.broker_addresses)
            topic = build_header(CreateTopic("T", "TBW102", 2, 2, 6, "SINGLE_TAG"))
            mode = build_body({"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0})
            for command in (
                RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=topic),
                RemotingCommand(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode),
            ):
                assert (await client.invoke(command)).code == 0
            await client.close()
            await act(cluster)

    within(_PATIENCE, served())


async def offsets(cluster: Cluster, topic: str, queue_count: int) -> list[int]:
    """Return what the group reads next of each queue."""
    client = RemotingClient([cluster.broker_addresses[0]])
    found = []
    for queue_id in range(queue_count):
        fields = {"consumerGroup": "G", "topic": topic, "queueId": str(queue_id)}
        answer = await client.invoke(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=fields))
        found.append(int(answer.ext_fields["offset"]))
    await client.close()
    return found


@each_version
def test_a_pop_consumer_gets_each_message_once_and_again_what_it_could_not_consume(
    version: str, tmp_path: Path
) -> None:
    async def act(cluster: Cluster) -> None:
        address = cluster.name_server_address
        async with pop_client(version, tmp_path / "client", address, "G", "T") as client:
            bodies = [*(f"message {number}" for number in range(20)), "again 1", "again 2"]
            for body in bodies:
                assert await client.ask(f"send {body}") == "SEND_OK"

            given = await client.delivered(len(bodies) + 2)
            assert Counter(body for body, *_ in given) == Counter([*bodies, "again 1", "again 2"])
            assert {(body, times) for body, times, _ in given if times != "0"} == {("again 1", "1"), ("again 2", "1")}
            assert {topic for *_, topic in given} == {"T"}
            await client.stop()
            assert len(client.deliveries) == len(bodies) + 2
        assert sum(await offsets(cluster, "T", 2)) == len(bodies)
        assert await offsets(cluster, "%RETRY%G_T", 1) == [2]

    on_our_broker(version, tmp_path, act)


def test_a_message_that_was_recalled_is_not_delivered(tmp_path: Path) -> None:
    async def act(cluster: Cluster) -> None:
        address = cluster.name_server_address
        async with pop_client("5.5.0", tmp_path / "client", address, "G", "T") as client:
            assert await client.ask("recall 4 never") == "recalled"
            assert await client.ask("send first") == "SEND_OK"
            await client.delivered(1)
            [broker] = cluster.broker_addresses
            asked = RemotingClient([broker])
            sent = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
            later = sent | {"i": "TIMER_DELAY_SEC\x016\x02", "j": "0", "k": "false", "m": "false"}
            await asked.invoke(RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=later, body=b"later"))
            await asked.close()

            assert [body for body, *_ in await client.delivered(2)] == ["first", "later"]
            await client.stop()

    on_our_broker("5.5.0", tmp_path, act, recallMessageEnable="true")
