"""The rules of a name server, held against what recorded ones of 4.9.7 and 5.3.3 answered."""

import asyncio
import json
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.cluster import Cluster
from mqtool.engine.name_server.name_server import NameServer
from mqtool.engine.name_server.remoting_door import PROCESSORS, NameServerDoor
from mqtool.engine.name_server.settings import NameServerSettings
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.server_configs import NameServerConfig
from mqtool.errors import FormatError, HeaderError, UsageError
from mqtool.formats.bodies import (
    QueueData,
    Registration,
    TopicRoute,
    build_registration,
    build_route,
    parse_body,
    parse_cluster_info,
    parse_route,
)
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import DataVersion, TopicConfig, parse_table
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import RESPONSE, Outgoing, RemotingCommand
from mqtool.formats.settings import build_settings, parse_settings
from tests.cost import counted
from tests.traces import exchanges

START = 1_700_000_000_000
VERSION = DataVersion(0, START, 1)


class Asked:
    """A name server and the peers that ask it; time stands still until a test moves it."""

    def __init__(self, **settings: Any) -> None:
        self.server = NameServerDoor(NameServer(NameServerSettings(**settings), START))
        self.now = START
        self.client = Peer(1, "192.0.2.1", 4000)

    def ask(
        self, code: int, ext_fields: dict[str, str] | None = None, body: bytes = b"", peer: Peer | None = None
    ) -> RemotingCommand:
        request = RemotingCommand(code, 0, 12, ext_fields or {}, body)
        [(to, answer)] = self.server.handle(request, peer or self.client, self.now)
        assert to is (peer or self.client)
        assert (answer.is_response, answer.opaque) == (True, 12)
        return answer

    def register(
        self,
        *topics: TopicConfig,
        name: str = "broker-a",
        broker_id: int = 0,
        address: str = "10.0.0.1:10911",
        cluster: str = "C",
        version: DataVersion = VERSION,
        peer: Peer | None = None,
        filter_servers: list[str] | None = None,
        **more: str,
    ) -> RemotingCommand:
        table = {topic.topic: topic for topic in (*topics, topic_of("Filler"))}
        body = build_registration(Registration(version, table, filter_servers or []))
        return self.ask(
            RequestCode.REGISTER_BROKER,
            identity(name, broker_id, address, cluster) | {"haServerAddr": f"{address}2"} | more,
            body,
            peer,
        )

    def route(self, topic: str) -> TopicRoute | None:
        answer = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert answer.code == 0
        return parse_route(answer.body)

    def topic_list(self, code: RequestCode, **ext_fields: str) -> set[str]:
        return {*orjson.loads(self.ask(code, ext_fields).body)["topicList"]}

    def wait(self, ms: int) -> list[Outgoing]:
        """Let time pass, with the ticks that the server wants; return what it sends meanwhile."""
        end = self.now + ms
        sent: list[Outgoing] = []
        while (due := self.server.next_tick(self.now)) <= end:
            self.now = max(due, self.now)
            sent += self.server.tick(self.now)
        self.now = end
        return sent


def identity(
    name: str = "broker-a", broker_id: int = 0, address: str = "10.0.0.1:10911", cluster: str = "C"
) -> dict[str, str]:
    return {"brokerName": name, "brokerId": str(broker_id), "brokerAddr": address, "clusterName": cluster}


def topic_of(name: str, queues: int = 4, perm: int = 6, sys_flag: int = 0) -> TopicConfig:
    return TopicConfig(name, queues, queues, perm, False, "SINGLE_TAG", sys_flag, {})


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_recorded_life_of_a_broker_is_answered_as_its_name_server_did(version: str) -> None:
    asked = Asked()
    seen = set()
    for exchange in exchanges(f"broker_registration-{version}"):
        [(_, answer)] = asked.server.handle(exchange.request.command, asked.client, asked.now)
        if exchange.answer is None:
            continue
        recorded = exchange.answer.command

        assert (answer.code, answer.opaque, answer.flag) == (recorded.code, recorded.opaque, recorded.flag)
        assert answer.ext_fields == recorded.ext_fields
        assert answer.body == recorded.body.replace(b"{0:", b'{"0":')
        seen.add(exchange.code)
    assert seen >= {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER}


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_recorded_registrations_give_routes_to_every_topic_in_them(version: str) -> None:
    asked = Asked()
    registrations = exchanges(f"broker_registration-{version}", RequestCode.REGISTER_BROKER)
    for exchange in registrations:
        [*asked.server.handle(exchange.request.command, asked.client, asked.now)]

    told = orjson.loads(registrations[-1].request.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert asked.topic_list(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {*told}
    for name, members in told.items():
        route = asked.route(name)
        assert route is not None
        numbers = (members["readQueueNums"], members["writeQueueNums"], members["perm"], members["topicSysFlag"])
        assert route.queues == [QueueData("broker-a", *numbers)]


def test_the_route_that_recorded_clients_got_is_given_byte_for_byte() -> None:
    asked = Asked()
    [first, *_] = exchanges("broker_registration-5.3.3", RequestCode.REGISTER_BROKER)
    asked.server.handle(first.request.command, asked.client, asked.now)
    [request, *_] = [
        exchange
        for exchange in exchanges("mqadmin-4.9.7", RequestCode.GET_ROUTEINFO_BY_TOPIC)
        if exchange.request.fields["extFields"]["topic"] == "TBW102"
    ]

    [(_, answer)] = asked.server.handle(request.request.command, asked.client, asked.now)

    assert request.answer is not None
    assert answer.body == request.answer.body


def test_a_recorded_question_for_an_unknown_topic_is_answered_alike() -> None:
    missing = [
        exchange
        for exchange in exchanges("mqadmin-5.3.3", RequestCode.GET_ROUTEINFO_BY_TOPIC)
        if exchange.answer and exchange.answer.fields["code"] == ResponseCode.TOPIC_NOT_EXIST
    ]
    assert missing
    for exchange in missing:
        [(_, answer)] = Asked().server.handle(exchange.request.command, Peer(1, "h", 1), START)

        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert exchange.answer is not None
        assert exchange.answer.fields["remark"].startswith(answer.remark)


def test_a_registration_of_one_topic_leaves_the_others() -> None:
    asked = Asked()
    asked.register(topic_of("Old"))
    one = build_registration(Registration(VERSION._replace(counter=5), {"New": topic_of("New")}))

    asked.ask(RequestCode.REGISTER_BROKER, identity() | {"haServerAddr": ""}, one)

    assert asked.route("Old")
    assert asked.route("New")


def test_a_first_registration_of_one_topic_waits_for_the_whole_list() -> None:
    asked = Asked()
    one = build_registration(Registration(VERSION, {"New": topic_of("New")}))

    answer = asked.ask(RequestCode.REGISTER_BROKER, identity() | {"haServerAddr": ""}, one)

    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "register broker failed")
    assert parse_cluster_info(asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body).brokers == {}


def test_a_wrong_checksum_is_refused() -> None:
    asked = Asked()

    answer = asked.register(topic_of("T"), bodyCrc32="12345")

    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    assert asked.route("T") is None


def test_topics_missing_in_a_registration_go_only_where_the_setting_says_so() -> None:
    for setting, kept in ((False, True), (True, False)):
        asked = Asked(delete_topic_with_registration=setting)
        asked.register(topic_of("Old"), topic_of("Stays"))

        asked.register(topic_of("Stays"), version=VERSION._replace(counter=2))

        assert (asked.route("Old") is not None) is kept
        assert asked.route("Stays")


def test_a_registration_without_changes_is_not_read_again() -> None:
    asked = Asked()
    topics = [topic_of(f"T{number}") for number in range(500)]

    def steps(**changes: Any) -> int:
        with counted() as counting:
            assert asked.register(*topics, **changes).code == 0
        return counting.total

    with counted() as building:  # of the request
        build_registration(Registration(VERSION, {topic.topic: topic for topic in topics}))
    first = steps()
    again = steps()
    changed = steps(version=VERSION._replace(counter=2))

    assert first - building.total > 500
    assert again - building.total < 500
    assert changed - building.total > 500


CHANGES: dict[str, Callable[[Asked], object]] = {
    "nothing": lambda asked: asked.now,
    "a topic is deleted": lambda asked: asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}),
    "a topic is deleted in its cluster": lambda asked: asked.ask(
        RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T", "clusterName": "C"}
    ),
    "a topic is added": lambda asked: asked.ask(
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        {"topic": "Added"},
        build_route(TopicRoute([QueueData("broker-a", 1, 1, 6, 0)], [])),
    ),
    "writing is forbidden": lambda asked: asked.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}),
    "another broker takes its place": lambda asked: asked.register(
        topic_of("T", queues=9), address="10.0.0.9:10911", version=VERSION._replace(counter=9)
    ),
    "it takes another name": lambda asked: asked.register(topic_of("T"), name="broker-b"),
    "it becomes a slave": lambda asked: asked.register(topic_of("T"), broker_id=1),
    "a slave registers": lambda asked: asked.register(topic_of("T"), broker_id=1, address="10.0.0.2:10911"),
    "a slave that may act as master registers": lambda asked: asked.register(
        topic_of("T"), broker_id=1, address="10.0.0.2:10911", enableActingMaster="true"
    ),
    "it moves to another cluster": lambda asked: asked.register(topic_of("T"), cluster="D"),
    "it unregisters": lambda asked: asked.ask(RequestCode.UNREGISTER_BROKER, identity()),
    "its connection ends": lambda asked: asked.server.closed(asked.client, asked.now),
    "it is silent": lambda asked: asked.wait(300_000),
    "another broker serves the topic": lambda asked: asked.register(
        topic_of("T"), name="broker-b", address="10.0.0.5:10911"
    ),
    "it registers one more topic": lambda asked: asked.ask(
        RequestCode.REGISTER_BROKER,
        identity() | {"haServerAddr": ""},
        build_registration(Registration(VERSION._replace(counter=5), {"New": topic_of("New")})),
    ),
}


@pytest.mark.parametrize("deletes", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_registration_by_the_same_request_has_the_effect_of_one_that_is_read(change: str, deletes: bool) -> None:
    def state(*, is_read: bool) -> list[object]:
        asked = Asked(delete_topic_with_registration=deletes)
        asked.register(topic_of("T"))
        asked.now += 1000
        CHANGES[change](asked)
        if is_read:
            asked.server.rules.routes._digests.clear()
        asked.now += 1000
        answer = asked.register(topic_of("T"))
        names = ("T", "Filler", "Added", "New")
        now = [answer.code, answer.ext_fields, *map(asked.route, names), cluster_of(asked)]
        asked.wait(119_000)
        return [*now, cluster_of(asked)]

    assert state(is_read=False) == state(is_read=True)


def cluster_of(asked: Asked) -> object:
    return parse_cluster_info(asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)


def test_a_slave_learns_where_its_master_is_and_brings_no_topics() -> None:
    asked = Asked()
    asked.register(topic_of("T"))

    answer = asked.register(topic_of("Other"), broker_id=1, address="10.0.0.2:10911")

    assert answer.ext_fields == {"haServerAddr": "10.0.0.1:109112", "masterAddr": "10.0.0.1:10911"}
    route = asked.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert asked.route("Other") is None


def test_an_address_that_registers_under_another_id_has_the_new_one_only() -> None:
    asked = Asked()
    asked.register(topic_of("T"))
    asked.register(topic_of("T"), broker_id=1, address="10.0.0.2:10911")

    asked.register(topic_of("T"), broker_id=0, address="10.0.0.2:10911")

    route = asked.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {0: "10.0.0.2:10911"}


def test_a_rival_with_older_tables_is_turned_away() -> None:
    asked = Asked()
    asked.register(topic_of("T"), version=DataVersion(7, START, 1))

    answer = asked.register(topic_of("T"), address="10.0.0.9:10911", version=DataVersion(6, START, 9))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    route = asked.route("T")
    assert route is not None
    assert route.brokers[0].addresses == {0: "10.0.0.1:10911"}


def test_brokers_of_one_topic_come_in_order_of_name() -> None:
    asked = Asked()
    asked.register(topic_of("T", 8), name="b2", address="10.0.0.2:1", filter_servers=["10.0.0.3:7"])
    asked.register(topic_of("T", 4), name="b1", address="10.0.0.1:1")

    route = asked.route("T")

    assert route is not None
    assert [(queue.broker_name, queue.read_queue_count) for queue in route.queues] == [("b1", 4), ("b2", 8)]
    assert [broker.broker_name for broker in route.brokers] == ["b1", "b2"]
    assert route.filter_servers == {"10.0.0.2:1": ["10.0.0.3:7"]}


def test_a_silent_broker_is_forgotten_after_two_minutes() -> None:
    asked = Asked()
    asked.register(topic_of("T"))

    assert asked.wait(120_000) == []
    assert asked.route("T")
    assert asked.wait(5_001) == []
    assert asked.route("T") is None
    assert parse_cluster_info(asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body).clusters == {}


@pytest.mark.parametrize("code", [RequestCode.BROKER_HEARTBEAT, RequestCode.QUERY_DATA_VERSION])
def test_a_sign_of_life_keeps_a_broker(code: RequestCode) -> None:
    asked = Asked()
    asked.register(topic_of("T"))
    version = {"counter": VERSION.counter, "stateVersion": 0, "timestamp": VERSION.timestamp}
    for _ in range(4):
        assert asked.wait(100_000) == []
        asked.ask(code, identity(), json.dumps(dict(version)).encode())

    assert asked.route("T")


def test_a_broker_may_set_the_time_of_its_silence_itself() -> None:
    asked = Asked()
    asked.register(topic_of("T"), heartbeatTimeoutMillis="10000")

    assert asked.wait(15_001) == []

    assert asked.route("T") is None


def test_a_broker_goes_with_its_connection() -> None:
    asked = Asked()
    peers = Peer(5, "10.0.0.1", 9), Peer(6, "10.0.0.2", 9)
    asked.register(topic_of("T"), peer=peers[0])
    asked.register(topic_of("T"), name="broker-b", address="10.0.0.2:10911", peer=peers[1])

    asked.server.closed(peers[0], asked.now)

    route = asked.route("T")
    assert route is not None
    assert [broker.broker_name for broker in route.brokers] == ["broker-b"]


def test_the_end_of_a_connection_that_a_broker_has_left_behind_changes_nothing() -> None:
    asked = Asked()
    old, new = Peer(5, "10.0.0.1", 9), Peer(6, "10.0.0.1", 10)
    asked.register(topic_of("T"), peer=old)
    asked.register(topic_of("T"), peer=new)

    asked.server.closed(old, asked.now)

    assert asked.route("T")


def test_data_versions_tell_a_broker_whether_to_register() -> None:
    asked = Asked()
    call = {"counter": VERSION.counter, "stateVersion": VERSION.state_version, "timestamp": VERSION.timestamp}

    def ask(**changed: int) -> RemotingCommand:
        return asked.ask(RequestCode.QUERY_DATA_VERSION, identity(), orjson.dumps(call | changed))

    unknown = ask()
    asked.register(topic_of("T"))

    assert (unknown.ext_fields, unknown.body) == ({"changed": "true"}, b"")
    assert (ask().ext_fields, orjson.loads(ask().body)) == ({"changed": "false"}, call)
    assert ask(counter=9).ext_fields == {"changed": "true"}


def test_wiped_permissions_hold_until_the_tables_of_the_broker_change() -> None:
    asked = Asked()
    asked.register(topic_of("T"))

    def perm() -> int:
        route = asked.route("T")
        assert route is not None
        return route.queues[0].perm

    wiped = asked.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert (wiped.ext_fields, perm()) == ({"wipeTopicCount": "2"}, 4)
    asked.register(topic_of("T"))
    assert perm() == 4
    added = asked.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert (added.ext_fields, perm()) == ({"addTopicCount": "2"}, 6)
    asked.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    asked.register(topic_of("T"), version=VERSION._replace(counter=2))
    assert perm() == 6


def test_topics_are_listed_by_cluster_kind_and_system() -> None:
    asked = Asked()
    asked.register(topic_of("Unit", sys_flag=1), topic_of("Both", sys_flag=3), topic_of("Sub", sys_flag=2))
    asked.register(topic_of("Else"), name="broker-b", address="10.0.0.2:1", cluster="D")

    assert asked.topic_list(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="C") == {"Unit", "Both", "Sub", "Filler"}
    assert asked.topic_list(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="Nowhere") == set()
    assert asked.topic_list(RequestCode.GET_UNIT_TOPIC_LIST) == {"Unit", "Both"}
    assert asked.topic_list(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"Both", "Sub"}
    assert asked.topic_list(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"Sub"}
    system = orjson.loads(asked.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body)
    assert {*system["topicList"]} == {"C", "D", "broker-a", "broker-b"}
    assert system["brokerAddr"] in ("10.0.0.1:10911", "10.0.0.2:1")


def test_lists_that_are_switched_off_are_refused() -> None:
    asked = Asked(topic_list_enabled=False, all_topic_list_enabled=False)

    for code in (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_UNIT_TOPIC_LIST):
        assert (asked.ask(code).code, asked.ask(code).remark) == (ResponseCode.SYSTEM_ERROR, "disable")


def test_a_topic_is_deleted_everywhere_or_from_one_cluster() -> None:
    asked = Asked()
    asked.register(topic_of("T"))
    asked.register(topic_of("T"), name="broker-b", address="10.0.0.2:1", cluster="D")

    asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T", "clusterName": "D"})
    route = asked.route("T")
    assert route is not None
    assert [queue.broker_name for queue in route.queues] == ["broker-a"]
    asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
    assert asked.route("T") is None
    assert asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "Never"}).code == 0


def test_a_topic_may_be_registered_alone_by_brokers_that_are_known() -> None:
    asked = Asked()
    asked.register(topic_of("Other"))
    queues = [QueueData("broker-a", 3, 2, 6), QueueData("stranger", 1, 1, 6)]

    asked.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T"}, build_route(TopicRoute(queues, [])))

    route = asked.route("T")
    assert route is not None
    assert route.queues == queues[:1]


def test_members_of_a_broker_name_are_told() -> None:
    asked = Asked()
    asked.register(topic_of("T"))

    answer = asked.ask(RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": "C", "brokerName": "broker-a"})

    assert orjson.loads(answer.body) == {
        "brokerMemberGroup": {"brokerAddrs": {"0": "10.0.0.1:10911"}, "brokerName": "broker-a", "cluster": "C"}
    }


def test_kv_config_is_put_told_listed_and_deleted() -> None:
    asked = Asked()
    key = {"namespace": "N", "key": "k"}

    missing = asked.ask(RequestCode.GET_KV_CONFIG, key)
    assert (missing.code, missing.remark) == (
        ResponseCode.QUERY_NOT_FOUND,
        "No config item, Namespace: N Key: k",
    )
    assert asked.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}).code == ResponseCode.QUERY_NOT_FOUND
    asked.ask(RequestCode.PUT_KV_CONFIG, key | {"value": "v"})
    assert asked.ask(RequestCode.GET_KV_CONFIG, key).ext_fields == {"value": "v"}
    listed = asked.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
    assert parse_body(listed.body) == {"table": {"k": "v"}}
    asked.ask(RequestCode.DELETE_KV_CONFIG, key)
    assert asked.ask(RequestCode.GET_KV_CONFIG, key).code == ResponseCode.QUERY_NOT_FOUND


def test_kv_configs_that_were_deleted_leave_room_and_nothing_behind(tmp_path: Path) -> None:
    asked = Asked(kv_config_path=str(tmp_path / "kvConfig.json"))
    with mock.patch("mqtool.engine.name_server.kv_configs.MAX_KV", 4):
        for number in range(20):
            key = {"namespace": f"N{number}", "key": "k"}
            assert asked.ask(RequestCode.PUT_KV_CONFIG, key | {"value": "v"}).code == 0
            asked.ask(RequestCode.DELETE_KV_CONFIG, key)

    assert parse_body((tmp_path / "kvConfig.json").read_bytes()) == {"configTable": {}}


def test_order_config_reaches_brokers_always_and_clients_where_it_is_enabled() -> None:
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
    for enabled in (False, True):
        asked = Asked(order_message_enabled=enabled)
        asked.ask(RequestCode.PUT_KV_CONFIG, order)

        registered = asked.register(topic_of("T"))

        assert parse_body(registered.body) == {"table": {"T": "broker-a:4"}}
        route = asked.route("T")
        assert route is not None
        assert route.order_config == ("broker-a:4" if enabled else None)


def test_kv_config_outlives_the_server_where_it_has_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "namesrv" / "kvConfig.json")
    Asked(kv_config_path=path).ask(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": "k", "value": "ü"})

    again = Asked(kv_config_path=path)

    assert again.ask(RequestCode.GET_KV_CONFIG, {"namespace": "N", "key": "k"}).ext_fields == {"value": "ü"}
    assert [file.name for file in (tmp_path / "namesrv").iterdir()] == ["kvConfig.json"]


def test_nobody_waits_for_the_file_of_kv_config_but_who_has_changed_it(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    reached, let_go = threading.Event(), threading.Event()
    real = Path.replace

    def held(source: Path, target: Path) -> Path:
        if target == path:
            reached.set()
            assert let_go.wait(10), "nobody was served meanwhile"
        return real(source, target)

    async def test() -> None:
        config = NameServerConfig(settings=NameServerSettings(kv_config_path=str(path)))
        async with asyncio.timeout(60), Cluster(config) as cluster:
            changing, honest = (RemotingClient([cluster.name_server_address]) for _ in range(2))
            fields = {"namespace": "N", "key": "k", "value": "v"}
            change = asyncio.ensure_future(
                changing.invoke(RemotingCommand(RequestCode.PUT_KV_CONFIG, ext_fields=fields), timeout_ms=20_000)
            )
            await asyncio.to_thread(reached.wait, 10)
            answer = await honest.invoke(RemotingCommand(RequestCode.GET_KV_CONFIG, ext_fields=fields))
            assert (answer.code, answer.ext_fields["value"]) == (0, "v")
            assert not change.done()
            let_go.set()
            assert (await change).code == 0
            assert parse_table(path.read_bytes()) == {"configTable": {"N": {"k": "v"}}}
            path.unlink()
            path.mkdir()  # a file cannot take its place
            answer = await changing.invoke(RemotingCommand(RequestCode.DELETE_KV_CONFIG, ext_fields=fields))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert str(path) in (answer.remark or "")
            await changing.close()
            await honest.close()

    with mock.patch.object(Path, "replace", held):
        asyncio.run(test())


def test_what_a_client_is_told_is_kept_is_on_the_disk_before_the_file_has_its_name(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.touch()  # as a broker of RocketMQ may leave it that lost its power
    synced: list[tuple[bytes, bytes]] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        real(descriptor)
        synced.append((Path(f"/proc/self/fd/{descriptor}").read_bytes(), path.read_bytes()))

    async def test() -> None:
        config = NameServerConfig(settings=NameServerSettings(kv_config_path=str(path)))
        async with asyncio.timeout(60), Cluster(config) as cluster:
            client = RemotingClient([cluster.name_server_address])
            fields = {"namespace": "N", "key": "k", "value": "v"}
            with mock.patch.object(os, "fsync", noted):
                answer = await client.invoke(RemotingCommand(RequestCode.PUT_KV_CONFIG, ext_fields=fields))
            assert (answer.code, synced) == (0, [(path.read_bytes(), b"")])
            await client.close()

    asyncio.run(test())


def test_a_file_that_is_no_kv_config_is_said(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"N":5}}')

    with pytest.raises(FormatError, match="is not a kv config"):
        Asked(kv_config_path=str(path))


def test_settings_are_told_and_changed_but_no_path_among_them() -> None:
    asked = Asked()

    asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=build_settings({"orderMessageEnable": "true"}).encode())
    forbidden = asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=/etc/passwd\nenableTopicList=false")
    wrong = asked.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableTopicList=perhaps")

    told = parse_settings(asked.ask(RequestCode.GET_NAMESRV_CONFIG).body.decode())
    assert forbidden.code == ResponseCode.NO_PERMISSION
    assert wrong.code == ResponseCode.SYSTEM_ERROR
    assert (told["orderMessageEnable"], told["kvConfigPath"], told["enableTopicList"]) == ("true", "", "true")


def test_settings_that_have_no_effect_are_named_and_bad_ones_refused() -> None:
    settings, unused = NameServerSettings().updated({"scanNotActiveBrokerInterval": "700", "productEnvName": "x"})

    assert (settings.scan_interval_ms, unused) == (700, ["productEnvName"])
    for text in ("0", "-1", "x", "99999999999"):
        with pytest.raises(UsageError):
            NameServerSettings().updated({"scanNotActiveBrokerInterval": text})


def test_a_server_that_waits_for_service_gives_no_routes_at_first() -> None:
    asked = Asked(wait_for_service=True, wait_seconds=45)
    asked.register(topic_of("T"))

    assert asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).remark == "name server not ready"
    assert asked.wait(45_000) == []
    assert asked.route("T")


KNOWN = {*PROCESSORS}


@given(
    code=st.sampled_from(sorted(KNOWN)) | st.integers(-(1 << 31), (1 << 31) - 1),
    ext_fields=st.dictionaries(
        st.sampled_from(["topic", "namespace", "key", "value", "brokerName", "brokerAddr", "clusterName", "brokerId"])
        | st.sampled_from(["haServerAddr", "compressed", "cluster"]),
        st.sampled_from(["", "0", "1", "true", "x", "-7", "99999999999999999999"]),
    ),
    body=st.binary(max_size=50)
    | st.sampled_from([b"{}", b"[]", b"{:}", b'{"topicConfigSerializeWrapper":[]}', zlib.compress(bytes(8))]),
)
def test_every_request_is_answered_or_refused_by_name(code: int, ext_fields: dict[str, str], body: bytes) -> None:
    server = NameServerDoor(NameServer(NameServerSettings(), START))
    try:
        answers = [*server.handle(RemotingCommand(code, 0, 3, ext_fields, body), Peer(1, "h", 1), START)]
    except (HeaderError, FormatError):
        return  # which the wire turns into an answer with code 1
    [(_, answer)] = answers
    assert (answer.opaque, answer.is_response) == (3, True)
    if code not in KNOWN:
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


def test_answers_of_clients_are_not_answered() -> None:
    assert [
        *NameServerDoor(NameServer(NameServerSettings(), START)).handle(
            RemotingCommand(105, RESPONSE), Peer(1, "h", 1), START
        )
    ] == []
