"""A slave becomes the master of its name: brokers in one process, asked as ``mqtool promote`` asks them."""

import asyncio
import contextlib
import functools
import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool import ProducerMessage
from mqtool.aio import PopConsumer, Producer, PushConsumer
from mqtool.engine import role_keeper
from mqtool.engine.broker.following import FollowingStatus
from mqtool.engine.broker.kept_role import KeptRole, read_role, with_kept_role, write_role
from mqtool.engine.broker.roles import role_of
from mqtool.engine.broker.settings import BrokerSettings, Role
from mqtool.engine.client import calls
from mqtool.engine.client.calls import Call
from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client_runtime import promotion
from mqtool.engine.client_runtime.admin_client import AdminClient
from mqtool.engine.client_runtime.admin_queries import MasterBroker
from mqtool.engine.client_runtime.consume_services import ConsumeContext
from mqtool.engine.client_runtime.promotion import plan_promotion, promote
from mqtool.engine.cluster import Cluster
from mqtool.engine.other_log import NotToldError, OtherLog
from mqtool.engine.server_configs import BrokerConfig, NameServerConfig
from mqtool.engine.streams.tls import TlsSettings
from mqtool.errors import (
    AccessDeniedError,
    BadDataError,
    MqtoolError,
    NotFoundError,
    Status,
    UnavailableError,
    UsageError,
)
from mqtool.formats.bodies import ConsumerData, Heartbeat, MessageQueue, build_heartbeat
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.plain_acl import Account, PlainAcl, build_acl
from tests.commands.running import run
from tests.commands.test_cluster_show import register_as_slave
from tests.engine.remoting.test_server import on_a_loop
from tests.engine.remoting.test_tls import settings, with_certificate
from tests.ports import free_port
from tests.wire_client import WireClient

SETTINGS: dict[str, str | int | bool] = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": 1 << 20,
    "haSendHeartbeatInterval": 500,
    "registerNameServerPeriod": 1000,
}
SLAVE = {**SETTINGS, "slaveReadEnable": True, "haCopyInterval": 300}


@contextlib.asynccontextmanager
async def names() -> AsyncIterator[str]:
    """Run a name server, by a broker of another name, and give its address."""
    async with asyncio.timeout(90), mqtool.Broker(settings={"brokerName": "other"}) as broker:
        yield broker.name_server_address


def master_of(folder: Path, name_server: str) -> mqtool.Broker:
    return mqtool.Broker(folder, role="master", name_servers=[name_server], settings=SETTINGS)


def slave_of(folder: Path, name_server: str, number: int = 1) -> mqtool.Broker:
    return mqtool.Broker(folder, role="slave", name_servers=[name_server], settings={**SLAVE, "brokerId": number})


async def stats(admin: AdminClient, broker_id: int) -> dict[str, str]:
    [told] = [
        one
        for one in await admin.broker_stats()
        if one.broker.broker_name == "broker-a" and one.broker.broker_id == broker_id
    ]
    return told.stats


async def until_it_follows(admin: AdminClient, broker_id: int = 1, end: str = "") -> None:
    """Wait until a slave follows its master, and has its log up to an end."""
    while True:
        with contextlib.suppress(ValueError, MqtoolError):
            told = await stats(admin, broker_id)
            if told.get("replicationStatus") == "following" and (not end or told["commitLogMaxOffset"] == end):
                return
        await asyncio.sleep(0.05)


async def until_tables_are_copied(admin: AdminClient) -> None:
    """Wait until a slave has begun to copy the tables of its master, and has ended."""
    for _ in range(2):
        last = (await stats(admin, 1))["replicationCopiedTimestamp"]
        while (await stats(admin, 1))["replicationCopiedTimestamp"] == last:
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[mqtool.Broker, mqtool.Broker, AdminClient]]:
    """Run a name server, a master, and a slave that follows it; give the two, and a client for administrators."""
    async with (
        names() as name_server,
        master_of(folder / "a", name_server) as master,
        slave_of(folder / "b", name_server) as slave,
        AdminClient([name_server]) as admin,
    ):
        await until_it_follows(admin)
        yield master, slave, admin


async def until_it_follows_nobody(admin: AdminClient) -> None:
    """Wait until a slave is known to the name server."""
    while not any(place.broker_name == "broker-a" for place in await admin.brokers()):
        await asyncio.sleep(0.05)


async def bodies(broker: mqtool.Broker) -> list[bytes]:
    client = WireClient(broker.address)
    found = [one.body for one in await client.messages("Orders")]
    await client.close()
    return found


@on_a_loop
async def test_master_and_slave_swap_and_nothing_acknowledged_is_lost_while_a_producer_goes_on(tmp_path: Path) -> None:
    async with (
        names() as name_server,
        master_of(tmp_path / "a", name_server) as first,
        slave_of(tmp_path / "b", name_server) as second,
        AdminClient([name_server]) as admin,
    ):
        clients = [WireClient(first.address), WireClient(second.address)]
        acknowledged: list[bytes] = []
        is_over = asyncio.Event()

        async def produce() -> None:
            number = 0
            while not is_over.is_set():
                for client in clients:  # whichever is the master
                    number += 1
                    with contextlib.suppress(MqtoolError, AssertionError):
                        await client.send(b"%d" % number)
                        acknowledged.append(b"%d" % number)
                        break
                await asyncio.sleep(0.002)

        producing = asyncio.create_task(produce())
        await until_it_follows(admin)
        while len(acknowledged) < 15:
            await asyncio.sleep(0.01)
        fields: dict[str, Any] = {"consumerGroup": "G", "topic": "Orders", "queueId": 0}
        await clients[0].done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"G"}')
        await clients[0].done(RequestCode.UPDATE_CONSUMER_OFFSET, **fields, commitOffset=17)

        plan = await plan_promotion(admin, "broker-a")
        assert plan.master is not None
        assert (plan.slave.address, plan.master.address) == (second.address, first.address)
        assert (plan.role, plan.epoch) == ("ASYNC_MASTER", 1)
        said: list[str] = []
        await promote(admin, plan, said.append)
        assert said[-2:] == [f"{second.address} is now the master of broker-a", f"{first.address} is now its slave 1"]

        count = len(acknowledged)
        while len(acknowledged) < count + 15:
            await asyncio.sleep(0.01)
        is_over.set()
        await producing
        stored = await bodies(second)
        assert sorted({*stored} & {*acknowledged}) == sorted(acknowledged)
        assert len(stored) == len({*stored})
        offset = await clients[1].done(RequestCode.QUERY_CONSUMER_OFFSET, **fields)
        assert offset["offset"] == "17"
        await until_it_follows(admin, 1, (await stats(admin, 0))["commitLogMaxOffset"])
        end = int((await stats(admin, 0))["commitLogMaxOffset"])
        logs = [
            b"".join(one.read_bytes() for one in sorted((tmp_path / name / "commitlog").iterdir()))[:end]
            for name in "ab"
        ]
        assert logs[0] == logs[1]
        refused = await clients[0].ask(
            RequestCode.SEND_MESSAGE, b"x", producerGroup="P", topic="Orders", defaultTopic="TBW102",
            defaultTopicQueueNums=4, queueId=0, sysFlag=0, bornTimestamp=1, flag=0, batch=False, reconsumeTimes=0,
            properties="",
        )  # fmt: skip
        assert refused.code != ResponseCode.SUCCESS
        for client in clients:
            await client.close()
    assert read_role(tmp_path / "a") == KeptRole(Role.SLAVE, 1, 1, Role.ASYNC_MASTER, 0)
    assert read_role(tmp_path / "b") == KeptRole(Role.ASYNC_MASTER, 0, 1, Role.SLAVE, 1)


@on_a_loop
async def test_a_master_that_was_dead_meanwhile_is_not_the_master_any_more_and_may_come_back_as_slave(
    tmp_path: Path,
) -> None:
    async with (
        names() as name_server,
        slave_of(tmp_path / "b", name_server) as second,
        slave_of(tmp_path / "c", name_server, 2) as third,
        AdminClient([name_server]) as admin,
    ):
        async with master_of(tmp_path / "a", name_server) as first:
            client = WireClient(first.address)
            for number in range(10):
                await client.send(b"%d" % number)
            for group, offset in (("behind", 7), ("ahead", 10)):
                await client.done(
                    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"%s"}' % group.encode()
                )
                fields: dict[str, Any] = {"consumerGroup": group, "topic": "Orders", "queueId": 0}
                await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, **fields, commitOffset=offset)
            await client.close()
            slave = WireClient(second.address)
            while (await slave.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields)).ext_fields.get("offset") != "10":
                await asyncio.sleep(0.05)
            await slave.close()
            end = (await stats(admin, 0))["commitLogMaxOffset"]
            for number in (1, 2):
                await until_it_follows(admin, number, end)
        plan = await plan_promotion(admin, "broker-a", 1, clock=lambda: 1_700_000_000_999)
        assert (plan.master, plan.lag_bytes, plan.epoch) == (None, None, 1_700_000_000)
        assert any("how many is unknown" in one for one in plan.remarks)
        assert plan.repeats == {"behind": 3}
        assert "group behind repeats at most 3 messages" in plan.remarks
        await promote(admin, plan, lambda _: None)

        with pytest.raises(UnavailableError, match="broker-a has another master since epoch 1700000000"):
            async with master_of(tmp_path / "a", name_server):
                pass
        learned = KeptRole(Role.SLAVE, 2, 1_700_000_000, Role.SLAVE, 2)
        while read_role(tmp_path / "c") != learned:
            await asyncio.sleep(0.05)
        async with slave_of(tmp_path / "a", name_server, 3):
            client = WireClient(second.address)
            await client.send(b"10")
            await client.close()
            end = (await stats(admin, 0))["commitLogMaxOffset"]
            for number in (2, 3):
                await until_it_follows(admin, number, end)
        assert await bodies(second) == [b"%d" % number for number in range(11)]
        assert third.address


@pytest.mark.parametrize("is_dead", [False, True], ids=["of a working master", "of a dead master"])
@on_a_loop
async def test_clients_go_on_at_the_new_master_without_waiting_for_their_next_update_of_routes(
    tmp_path: Path, is_dead: bool
) -> None:
    seen: set[bytes] = set()
    popped: set[bytes] = set()

    async def listen(messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> None:
        seen.update(message.body for message in messages)

    async with (
        names() as name_server,
        slave_of(tmp_path / "b", name_server),
        AdminClient([name_server]) as admin,
        contextlib.AsyncExitStack() as life_of_master,
    ):
        master = await life_of_master.enter_async_context(master_of(tmp_path / "a", name_server))
        await until_it_follows(admin)
        client = WireClient(master.address)
        await client.send(b"0")
        await client.close()
        rarely = {"poll_name_server_interval_ms": 3_600_000}
        consumer = PushConsumer("G", listen, name_server, {**rarely, "consume_from_where": "FIRST_OFFSET"})
        consumer.subscribe("Orders")
        popper = PopConsumer("P", name_server, rarely)
        popper.subscribe("Orders")
        sent = {b"0"}
        async with Producer("S", name_server, rarely) as producer, consumer, popper:

            async def send(queue: MessageQueue | None = None) -> None:
                body = b"%d" % len(sent)
                while body not in sent:
                    with contextlib.suppress(MqtoolError):
                        await producer.send(ProducerMessage("Orders", body), queue=queue)
                        sent.add(body)
                    await asyncio.sleep(0.05)

            async def until_all_came() -> None:
                while seen != sent or popped != sent:
                    with contextlib.suppress(MqtoolError):
                        for message in await popper.pop(timeout_ms=200):
                            popped.add(message.body)
                            await popper.ack(message)

            await until_all_came()
            await until_it_follows(admin, end=(await stats(admin, 0))["commitLogMaxOffset"])
            await until_tables_are_copied(admin)
            if is_dead:
                await life_of_master.aclose()
            await promote(admin, await plan_promotion(admin, "broker-a"), lambda _: None)
            for queue in (None, MessageQueue("Orders", "broker-a", 1)):
                await send(queue)
            await until_all_came()


def slave_that_copies_rarely(folder: Path, name_server: str) -> mqtool.Broker:
    settings = {**SLAVE, "brokerId": 1, "haCopyInterval": 3_600_000}
    return mqtool.Broker(folder, role="slave", name_servers=[name_server], settings=settings)


@contextlib.asynccontextmanager
async def with_messages_of_a_new_topic(
    folder: Path, name_server: str, admin: AdminClient, count: int
) -> AsyncIterator[mqtool.Broker]:
    """Give a slave, in the folder b, that has messages of its master's, but not their topic."""
    async with (
        master_of(folder / "a", name_server) as first,
        slave_that_copies_rarely(folder / "b", name_server) as second,
    ):
        await until_it_follows(admin)
        client = WireClient(first.address)
        for number in range(count):
            await client.send(b"%d" % number)
        await client.close()
        await until_it_follows(admin, 1, (await stats(admin, 0))["commitLogMaxOffset"])
        yield second


@on_a_loop
async def test_messages_whose_topic_no_slave_has_copied_yet_can_be_consumed_from_the_new_master(tmp_path: Path) -> None:
    async with (
        names() as name_server,
        AdminClient([name_server]) as admin,
        with_messages_of_a_new_topic(tmp_path, name_server, admin, 3) as second,
    ):
        await promote(admin, await plan_promotion(admin, "broker-a"), lambda _: None)

        assert [master.address for master in await admin.masters("broker-a")] == [second.address]
        assert await bodies(second) == [b"0", b"1", b"2"]


@on_a_loop
async def test_a_slave_that_was_killed_while_it_became_the_master_has_the_topics_of_its_messages(
    tmp_path: Path,
) -> None:
    async with names() as name_server, AdminClient([name_server]) as admin:
        async with with_messages_of_a_new_topic(tmp_path, name_server, admin, 1):
            pass
        write_role(tmp_path / "b", KeptRole(Role.ASYNC_MASTER, 0, 1, Role.SLAVE, 1))
        async with slave_that_copies_rarely(tmp_path / "b", name_server) as second:
            assert await bodies(second) == [b"0"]


@on_a_loop
async def test_a_group_that_a_slave_came_to_know_by_itself_hides_no_topic_from_its_promotion(tmp_path: Path) -> None:
    async with (
        names() as name_server,
        AdminClient([name_server]) as admin,
        with_messages_of_a_new_topic(tmp_path, name_server, admin, 1) as second,
    ):
        slave = WireClient(second.address)
        group = ConsumerData("late", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET")
        beat = build_heartbeat(Heartbeat("one", consumers=(group,)))
        await slave.done(RequestCode.HEART_BEAT, beat)  # it makes %RETRY%late, after the message
        await slave.close()
        await promote(admin, await plan_promotion(admin, "broker-a"), lambda _: None)

        assert await bodies(second) == [b"0"]


@on_a_loop
async def test_a_master_of_which_an_earlier_promotion_knew_nothing_is_a_slave_again(tmp_path: Path) -> None:
    """Two slaves were promoted, each while nobody else answered: the later one is the master."""
    async with names() as name_server, AdminClient([name_server]) as admin:
        async with master_of(tmp_path / "a", name_server), slave_of(tmp_path / "b", name_server):
            await until_it_follows(admin)
        for folder, now in (("b", 1_700_000_000_000), ("a", 1_700_000_060_000)):
            async with slave_of(tmp_path / folder, name_server):
                plan = await plan_promotion(admin, "broker-a", clock=functools.partial(int, now))
                await promote(admin, plan, lambda _: None)
        async with slave_of(tmp_path / "a", name_server), slave_of(tmp_path / "b", name_server):
            roles = {folder: read_role(tmp_path / folder) for folder in "ab"}
        assert [(folder, role.role) for folder, role in roles.items() if role] == [
            ("a", Role.ASYNC_MASTER),
            ("b", Role.SLAVE),
        ]


@pytest.mark.parametrize("is_at_once", [False, True])
@on_a_loop
async def test_of_a_promoted_store_and_its_copy_one_is_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_at_once: bool
) -> None:
    """A new slave was started on a copy of the master's store, with the settings that the master has."""
    async with names() as name_server, AdminClient([name_server]) as admin:
        async with master_of(tmp_path / "a", name_server) as first, slave_of(tmp_path / "b", name_server):
            client = WireClient(first.address)
            await client.send(b"one")
            await client.close()
            await until_it_follows(admin, 1, (await stats(admin, 0))["commitLogMaxOffset"])
            await promote(admin, await plan_promotion(admin, "broker-a"), lambda _: None)
        shutil.copytree(tmp_path / "b", tmp_path / "c")
        if is_at_once:  # no name server knows either of them when they ask

            async def nobody(*_: Any) -> dict[int, str]:
                return {}

            monkeypatch.setattr(role_keeper, "members", nobody)
        async with slave_of(tmp_path / "b", name_server) as second, slave_of(tmp_path / "c", name_server) as third:
            while {role.role for folder in "bc" if (role := read_role(tmp_path / folder))} != {
                Role.ASYNC_MASTER,
                Role.SLAVE,
            }:
                await asyncio.sleep(0.05)
            await until_it_follows(admin)
            [master] = await admin.masters("broker-a")
            accepted = []
            for broker in (second, third):
                client = WireClient(broker.address)
                with contextlib.suppress(MqtoolError, AssertionError):
                    await client.send(b"two")
                    accepted.append(broker.address)
                await client.close()
            assert accepted == [master.address]
            if not is_at_once:
                assert accepted == [second.address]


@on_a_loop
async def test_a_broker_that_begins_while_its_name_server_is_away_registers_soon_after_that_is_back(
    tmp_path: Path,
) -> None:
    """It may have become the master in that moment: until it is registered there is none."""
    port = free_port()
    rarely: dict[str, str | int | bool] = {**SETTINGS, "registerNameServerPeriod": 3_600_000}
    address = f"127.0.0.1:{port}"
    async with (
        asyncio.timeout(60),
        mqtool.Broker(tmp_path, role="master", name_servers=[address], settings=rarely) as broker,
        Cluster(NameServerConfig(port=port)),
        AdminClient([address]) as admin,
    ):
        masters: list[MasterBroker] = []
        while not masters:
            with contextlib.suppress(MqtoolError):
                masters = await admin.masters("broker-a")
            await asyncio.sleep(0.05)
    assert [master.address for master in masters] == [broker.address]


@on_a_loop
async def test_a_promotion_after_which_another_has_followed_says_so_and_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (first, _, admin):
        plan = await plan_promotion(admin, "broker-a")
        masters = admin.masters

        async def masters_after_another(*names: str) -> Any:
            monkeypatch.setattr(admin, "masters", masters)
            another = None
            while another is None or another.slave.address != first.address:
                with contextlib.suppress(MqtoolError):  # the two are just changing their roles
                    another = await plan_promotion(admin, "broker-a")
                await asyncio.sleep(0.05)
            await promote(admin, another, lambda _: None)
            return await masters(*names)

        monkeypatch.setattr(admin, "masters", masters_after_another)
        with pytest.raises(UnavailableError, match="there has been another promotion since, to epoch 2"):
            async with asyncio.timeout(30):
                await promote(admin, plan, lambda _: None)
        assert [place.address for place in await masters("broker-a")] == [first.address]


@pytest.mark.parametrize("is_set_as_slave", [False, True])
@on_a_loop
async def test_a_master_that_was_replaced_while_no_name_server_told_it_steps_down_when_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_set_as_slave: bool
) -> None:
    """Name servers were away when it started, or had just started themselves and knew nobody yet."""
    (tmp_path / "a" / "config").mkdir(parents=True)
    if is_set_as_slave:  # and was promoted some time ago
        write_role(tmp_path / "a", KeptRole(Role.ASYNC_MASTER, 0, 1, Role.SLAVE, 2))

    async def nobody(*_: Any) -> dict[int, str]:
        return {}

    monkeypatch.setattr(role_keeper, "members", nobody)
    async with names() as name_server, AdminClient([name_server]) as admin, slave_of(tmp_path / "b", name_server):
        await until_it_follows_nobody(admin)
        await promote(admin, await plan_promotion(admin, "broker-a"), lambda _: None)
        made = functools.partial(slave_of, number=2) if is_set_as_slave else master_of
        async with made(tmp_path / "a", name_server) as old:
            client = WireClient(old.address)
            with contextlib.suppress(AssertionError, MqtoolError):  # refused, or it is just becoming a slave
                while True:
                    await client.send(b"x")
                    await asyncio.sleep(0.05)
            await client.close()
            if is_set_as_slave:
                while (role := read_role(tmp_path / "a")) is None or role.role is not Role.SLAVE:
                    await asyncio.sleep(0.05)
            else:
                assert "restart it with brokerRole=SLAVE and a brokerId above 0" in caplog.text
            for _ in range(3):  # it no longer takes turns in the routes with the master
                await asyncio.sleep(1)
                [master] = await admin.masters("broker-a")
            assert master.address != old.address


@on_a_loop
async def test_of_two_promotions_at_once_one_is_refused(tmp_path: Path) -> None:
    async with (
        names() as name_server,
        master_of(tmp_path / "a", name_server) as first,
        slave_of(tmp_path / "b", name_server) as second,
        slave_of(tmp_path / "c", name_server, 2) as third,
        AdminClient([name_server]) as admin,
    ):
        for number in (1, 2):
            await until_it_follows(admin, number)
        plans = [await plan_promotion(admin, "broker-a", number) for number in (1, 2)]
        assert plans[0].epoch == plans[1].epoch
        outcomes = await asyncio.gather(
            *(promote(admin, plan, lambda _: None) for plan in plans), return_exceptions=True
        )
        [refusal] = [outcome for outcome in outcomes if outcome is not None]
        number = 1 + outcomes.index(None)
        assert f"this broker has already stopped for slave {number} to become the master" in str(refusal)
        accepted = []
        for broker in (first, second, third):
            client = WireClient(broker.address)
            with contextlib.suppress(MqtoolError, AssertionError):
                await client.send(b"after")
                accepted.append(broker.address)
            await client.close()
        assert accepted == [plans[number - 1].slave.address]


@pytest.mark.parametrize("is_set_as_slave", [False, True])
@on_a_loop
async def test_a_master_steps_down_although_the_promotion_was_killed_before_it_told_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_set_as_slave: bool
) -> None:
    (tmp_path / "a" / "config").mkdir(parents=True)
    if is_set_as_slave:  # and was promoted some time ago
        write_role(tmp_path / "a", KeptRole(Role.ASYNC_MASTER, 0, 1, Role.SLAVE, 2))
    made = functools.partial(slave_of, number=2) if is_set_as_slave else master_of
    async with (
        names() as name_server,
        made(tmp_path / "a", name_server) as first,
        slave_of(tmp_path / "b", name_server) as second,
        AdminClient([name_server]) as admin,
    ):
        await until_it_follows(admin)
        await admin.request(first.address, calls.change_role("stop"))
        await admin.request(second.address, calls.change_role("become", "ASYNC_MASTER", 0, 2))

        if is_set_as_slave:
            while (role := read_role(tmp_path / "a")) is None or role.role is not Role.SLAVE:
                await asyncio.sleep(0.05)
        else:
            while "restart it with brokerRole=SLAVE and a brokerId above 0" not in caplog.text:
                await asyncio.sleep(0.05)
        while [master.address for master in await admin.masters("broker-a")] != [second.address]:
            await asyncio.sleep(0.05)


@on_a_loop
async def test_a_topic_that_was_deleted_is_not_made_again_by_a_promotion(tmp_path: Path) -> None:
    async with (
        names() as name_server,
        AdminClient([name_server]) as admin,
        master_of(tmp_path / "a", name_server) as first,
        slave_of(tmp_path / "b", name_server) as second,
    ):
        await until_it_follows(admin)
        client, slave = WireClient(first.address), WireClient(second.address)
        await client.send(b"gone")

        async def has_topic() -> bool:
            told = await slave.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
            return b'"Orders"' in told.body

        while not await has_topic():
            await asyncio.sleep(0.05)
        await client.done(RequestCode.DELETE_TOPIC_IN_BROKER, topic="Orders")
        while await has_topic():
            await asyncio.sleep(0.05)
        await client.close()
        await until_it_follows(admin, 1, (await stats(admin, 0))["commitLogMaxOffset"])
        await promote(admin, await plan_promotion(admin, "broker-a"), lambda _: None)

        assert [master.address for master in await admin.masters("broker-a")] == [second.address]
        assert not await has_topic()
        await slave.close()


@pytest.mark.parametrize("deleted", ["topic", "group"])
@on_a_loop
async def test_a_topic_or_group_that_was_deleted_and_made_again_skips_nothing_after_a_promotion(
    tmp_path: Path, deleted: str
) -> None:
    async with (
        names() as name_server,
        AdminClient([name_server]) as admin,
        master_of(tmp_path / "a", name_server) as first,
        slave_of(tmp_path / "b", name_server) as second,
    ):
        await until_it_follows(admin)
        client, slave = WireClient(first.address), WireClient(second.address)
        fields: dict[str, Any] = {"consumerGroup": "G", "topic": "Orders", "queueId": 0}

        async def offset_of_slave() -> str | None:
            return (await slave.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields)).ext_fields.get("offset")

        for number in range(5):
            await client.send(b"old %d" % number)
        await client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"G"}')
        await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, **fields, commitOffset=5)
        while await offset_of_slave() != "5":
            await asyncio.sleep(0.05)
        if deleted == "topic":
            await client.done(RequestCode.DELETE_TOPIC_IN_BROKER, topic="Orders")
        else:
            await client.done(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G", cleanOffset=True)
            await client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"G"}')
        for number in range(5):
            await client.send(b"new %d" % number)
        await until_it_follows(admin, 1, (await stats(admin, 0))["commitLogMaxOffset"])
        while await offset_of_slave() == "5":
            await asyncio.sleep(0.05)
        await promote(admin, await plan_promotion(admin, "broker-a"), lambda _: None)

        assert await offset_of_slave() in {None, "0"}
        for one in (client, slave):
            await one.close()


@pytest.mark.parametrize("replicas", [1, 2])
@on_a_loop
async def test_the_plan_says_where_a_slave_would_wait_for_other_slaves_than_its_master(
    tmp_path: Path, replicas: int
) -> None:
    waiting = {**SETTINGS, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
    slave = {**SLAVE, "brokerRole": "SLAVE", "brokerId": 1, "inSyncReplicas": replicas}
    async with (
        names() as name_server,
        mqtool.Broker(tmp_path / "b", name_servers=[name_server], settings=slave) as second,
        AdminClient([name_server]) as admin,
    ):
        async with mqtool.Broker(tmp_path / "a", name_servers=[name_server], settings=waiting) as first:
            await until_it_follows(admin)
            plan = await plan_promotion(admin, "broker-a")
        without_master = await plan_promotion(admin, "broker-a")
    differs = (
        f"{second.address} has inSyncReplicas=1, {first.address} has 2: sends may wait for another number of slaves "
        "than before"
    )
    assert plan.role == "SYNC_MASTER"
    alone = (
        "the new master is an ASYNC_MASTER: its sends wait for no slave, whatever inSyncReplicas=2 says, until it is "
        "restarted with brokerRole=SYNC_MASTER"
    )
    remarks = [remark for each in (plan, without_master) for remark in each.remarks if "inSyncReplicas" in remark]
    assert remarks == [differs if replicas == 1 else alone]


@on_a_loop
async def test_a_promoted_slave_stays_master_over_a_start_and_is_slave_again_after_another_was_promoted(
    tmp_path: Path,
) -> None:
    async with names() as name_server, AdminClient([name_server]) as admin:
        async with slave_of(tmp_path / "b", name_server):
            async with master_of(tmp_path / "a", name_server):
                await until_it_follows(admin)
            await promote(admin, await plan_promotion(admin, "broker-a", clock=lambda: 0), lambda _: None)
        async with slave_of(tmp_path / "b", name_server) as second, slave_of(tmp_path / "c", name_server, 2):
            [master] = await admin.masters("broker-a")
            assert master.address == second.address  # by its store, whatever its settings say
            await until_it_follows(admin, 2)
            await promote(admin, await plan_promotion(admin, "broker-a", 2), lambda _: None)
            assert (await stats(admin, 0))["replicationEpoch"] == "2"
        write_role(tmp_path / "b", KeptRole(Role.ASYNC_MASTER, 0, 1, Role.SLAVE, 1))  # as if it had been dead then
        async with slave_of(tmp_path / "c", name_server, 2), slave_of(tmp_path / "b", name_server):
            await until_it_follows(admin, 1)
        assert read_role(tmp_path / "b") == KeptRole(Role.SLAVE, 1, 2, Role.SLAVE, 1)


@on_a_loop
async def test_the_plan_without_a_master_says_what_other_slaves_have_or_may_have(tmp_path: Path) -> None:
    async with names() as name_server, AdminClient([name_server]) as admin:
        async with master_of(tmp_path / "a", name_server) as first, slave_of(tmp_path / "c", name_server, 2):
            client = WireClient(first.address)
            async with slave_of(tmp_path / "b", name_server):
                await client.send(b"one")
                end = (await stats(admin, 0))["commitLogMaxOffset"]
                for number in (1, 2):
                    await until_it_follows(admin, number, end)
            await client.send(b"two")
            await until_it_follows(admin, 2, (await stats(admin, 0))["commitLogMaxOffset"])
            await client.close()
        async with slave_of(tmp_path / "b", name_server), slave_of(tmp_path / "c", name_server, 2):
            silent = WireClient(name_server)
            await register_as_slave(silent, "127.0.0.1:1", broker_id=3)
            more = int((await stats(admin, 2))["commitLogMaxOffset"]) - int(end)
            plan = await plan_promotion(admin, "broker-a", 1)
            assert plan.remarks[:2] == [
                f"slave 2 has {more} bytes more: they are lost, and it will not follow until its log is cut; with "
                "--slave 2 they are kept",
                "slave 3 does not answer: if it has more than slave 1, that is lost, and it will not follow",
            ]
            plan = await plan_promotion(admin, "broker-a")
            assert plan.slave.broker_id == 2
            assert [said for said in plan.remarks if said.startswith("slave 1")] == []
            await silent.close()


@on_a_loop
async def test_of_slaves_with_as_long_a_log_one_that_can_be_promoted_is_chosen(tmp_path: Path) -> None:
    async with (
        names() as name_server,
        mqtool.Broker(tmp_path / "a") as other,  # reports nothing about replication, like a slave of RocketMQ
        slave_of(tmp_path / "b", name_server, 2),
        AdminClient([name_server]) as admin,
    ):
        await until_it_follows_nobody(admin)
        client = WireClient(name_server)
        await register_as_slave(client, other.address)

        plan = await plan_promotion(admin, "broker-a")

        assert plan.slave.broker_id == 2
        await client.close()


@on_a_loop
async def test_a_master_that_no_name_server_knows_but_its_slave_does_is_not_taken_for_dead(tmp_path: Path) -> None:
    """A name server was restarted, and the slave has registered before its master."""
    rarely: dict[str, str | int | bool] = {"registerNameServerPeriod": 60_000}
    async with (
        names() as name_server,
        mqtool.Broker(tmp_path / "a", role="master", name_servers=[name_server], settings=SETTINGS | rarely) as first,
        slave_of(tmp_path / "b", name_server),
        AdminClient([name_server]) as admin,
    ):
        client, at_names = WireClient(first.address), WireClient(name_server)
        await client.send(b"one")
        await until_it_follows(admin, 1, (await stats(admin, 0))["commitLogMaxOffset"])
        identity: dict[str, Any] = {
            "brokerName": "broker-a",
            "brokerAddr": first.address,
            "clusterName": "DefaultCluster",
        }
        await at_names.done(RequestCode.UNREGISTER_BROKER, **identity, brokerId=0)
        assert [place.broker_id for place in await admin.brokers() if place.broker_name == "broker-a"] == [1]

        plan = await plan_promotion(admin, "broker-a")

        assert plan.master is not None
        assert (plan.master.address, plan.epoch, plan.lag_bytes) == (first.address, 1, 0)
        assert plan.remarks[0] == f"no name server knows the master {first.address}, but a slave does, and it answers"
        await promote(admin, plan, lambda _: None)
        await until_it_follows(admin)
        for each in (client, at_names):
            await each.close()
    assert read_role(tmp_path / "a") == KeptRole(Role.SLAVE, 1, 1, Role.ASYNC_MASTER, 0)


@on_a_loop
async def test_a_master_that_refuses_to_answer_is_not_taken_for_dead(tmp_path: Path) -> None:
    (tmp_path / "acl.yml").write_text(build_acl(PlainAcl({}, ())))
    closed: dict[str, str | int | bool] = {"aclEnable": True, "rocketmq.acl.plain.file": str(tmp_path / "acl.yml")}
    async with (
        names() as name_server,
        mqtool.Broker(tmp_path / "a", role="master", name_servers=[name_server], settings=SETTINGS | closed) as first,
        slave_of(tmp_path / "b", name_server),
        AdminClient([name_server]) as admin,
    ):
        await until_it_follows(admin)
        with pytest.raises(AccessDeniedError, match="it may be the master, and no slave can replace it") as refusal:
            await plan_promotion(admin, "broker-a")
        assert refusal.value.address == first.address


@on_a_loop
async def test_topics_and_groups_that_a_slave_has_not_copied_yet_are_not_lost_in_a_swap(tmp_path: Path) -> None:
    rarely: dict[str, str | int | bool] = {"haCopyInterval": 4000, "brokerId": 1}
    async with (
        names() as name_server,
        master_of(tmp_path / "a", name_server) as first,
        mqtool.Broker(tmp_path / "b", role="slave", name_servers=[name_server], settings=SLAVE | rarely) as second,
        AdminClient([name_server]) as admin,
    ):
        client = WireClient(first.address)
        await client.make_topic("Changed")
        await client.make_topic("Deleted")
        while "Deleted" not in await admin.request(second.address, calls.topic_configs()):
            await asyncio.sleep(0.05)
        await until_it_follows(admin)
        await client.make_topic("Made")
        await client.make_topic("Changed", writeQueueNums=7, readQueueNums=7)
        await client.done(RequestCode.DELETE_TOPIC_IN_BROKER, topic="Deleted")
        await client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"G","retryMaxTimes":3}')
        await client.close()

        await promote(admin, await plan_promotion(admin, "broker-a"), lambda _: None)

        topics = await admin.request(second.address, calls.topic_configs())
        assert topics.keys() & {"Made", "Changed", "Deleted"} == {"Made", "Changed"}
        assert topics["Changed"].write_queue_count == 7
        assert (await admin.request(second.address, calls.groups()))["G"]["retryMaxTimes"] == 3


@on_a_loop
async def test_the_last_changes_of_topics_are_named_where_a_slave_does_not_copy_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promotion, "_COPY_SECONDS", 0.5)
    never: dict[str, str | int | bool] = {"haCopyInterval": 60_000, "brokerId": 1}
    async with (
        names() as name_server,
        master_of(tmp_path / "a", name_server) as first,
        mqtool.Broker(tmp_path / "b", role="slave", name_servers=[name_server], settings=SLAVE | never) as second,
        AdminClient([name_server]) as admin,
    ):
        await until_it_follows(admin)
        client = WireClient(first.address)
        await client.make_topic("Made")
        await client.close()
        said: list[str] = []
        await promote(admin, await plan_promotion(admin, "broker-a"), said.append)
        lost = f"{second.address} has not copied the last changes of these topics and groups, which are lost: Made"
        assert lost in said


@on_a_loop
async def test_of_two_masters_none_is_chosen_and_it_is_told_that_a_slave_follows_another_than_the_registered(
    tmp_path: Path,
) -> None:
    rarely: dict[str, str | int | bool] = {"registerNameServerPeriod": 60_000}
    async with (
        names() as name_server,
        mqtool.Broker(tmp_path / "a", role="master", name_servers=[name_server], settings=SETTINGS | rarely) as first,
        mqtool.Broker(
            tmp_path / "b", role="slave", name_servers=[name_server], settings=SLAVE | rarely | {"brokerId": 1}
        ) as second,
        AdminClient([name_server]) as admin,
    ):
        await until_it_follows(admin)
        async with mqtool.Broker(
            tmp_path / "c", role="master", name_servers=[name_server], settings=SETTINGS | rarely
        ) as third:
            with pytest.raises(UsageError, match="are both masters of broker-a") as refusal:
                await plan_promotion(admin, "broker-a")
            assert first.address in str(refusal.value) and third.address in str(refusal.value)
            shown = await asyncio.to_thread(
                run, "cluster", "show", "broker-a", "-n", name_server, "--max-lag", str(1 << 40)
            )
            assert shown.status == Status.WARNINGS
            assert (
                f"slave 1 of broker-a ({second.address}) does not follow its master: it follows {first.address}, but "
                f"name servers report {third.address} as the master"
            ) in shown.remarks


@on_a_loop
async def test_two_masters_of_one_name_that_were_never_replaced_both_say_so_one_at_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with names() as name_server, master_of(tmp_path / "a", name_server) as first:
        assert not caplog.records
        async with master_of(tmp_path / "b", name_server) as second:
            [error] = [record.message for record in caplog.records if record.levelname == "ERROR"]
            assert error.startswith(f"{first.address} is running as the master of broker-a too")
            while f"{second.address} is also registered as broker-a with id 0" not in caplog.text:
                await asyncio.sleep(0.05)
        caplog.clear()
        async with master_of(tmp_path / "c", name_server):  # after the end of the second, which was registered
            assert [record for record in caplog.records if second.address in record.message] == []


async def store_and_another(folder: Path, name_server: str) -> None:
    """Make two stores, in the folders a and c: the second has the first message of the other, and five of its own."""
    for name, texts in (("a", [b"both"]), ("c", [b"other %d" % number for number in range(5)])):
        async with master_of(folder / name, name_server) as broker:
            client = WireClient(broker.address)
            for text in texts:
                await client.send(text)
            await client.close()
        if name == "a":
            shutil.copytree(folder / "a", folder / "c")


@on_a_loop
async def test_a_slave_with_other_messages_than_its_master_is_not_chosen_because_its_log_is_longer(
    tmp_path: Path,
) -> None:
    async with names() as name_server, AdminClient([name_server]) as admin:
        await store_and_another(tmp_path, name_server)
        async with slave_of(tmp_path / "b", name_server), slave_of(tmp_path / "c", name_server, 2) as other:
            async with master_of(tmp_path / "a", name_server) as first:
                client = WireClient(first.address)
                await client.send(b"acknowledged")
                await client.close()
                await until_it_follows(admin, 1, (await stats(admin, 0))["commitLogMaxOffset"])
                while other.following is None or not other.following.misfit:
                    await asyncio.sleep(0.05)
                assert (await plan_promotion(admin, "broker-a")).slave.broker_id == 1
            differs = (
                "slave {} has other messages than slave {}: one of them is not a copy of their master, compare them "
                "before you choose one with --slave; slave {} will not follow"
            )
            plan = await plan_promotion(admin, "broker-a")
            assert (plan.slave.broker_id, plan.remarks[0]) == (1, differs.format(2, 1, 2))
            plan = await plan_promotion(admin, "broker-a", 2)
            assert plan.remarks[0].startswith(
                "slave 2 is not a copy of its master, whose messages are lost: it ends at"
            )
            assert plan.remarks[1] == differs.format(1, 2, 1)


@on_a_loop
async def test_a_slave_that_was_not_compared_and_has_other_messages_does_not_become_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with names() as name_server, AdminClient([name_server]) as admin:
        await store_and_another(tmp_path, name_server)

        async def refuse(*_: Any) -> None:
            raise NotToldError("it refused request 28")

        monkeypatch.setattr(OtherLog, "ask", refuse)
        async with master_of(tmp_path / "a", name_server) as first, slave_of(tmp_path / "c", name_server) as second:
            client = WireClient(first.address)
            await client.send(b"acknowledged")
            await until_it_follows(admin)
            plan = await plan_promotion(admin, "broker-a")
            assert plan.remarks[-1] == (
                f"the log of {second.address} was not compared with that of its master: it refused request 28"
            )
            with pytest.raises(UnavailableError, match=f"{second.address} has other messages than {first.address}"):
                await promote(admin, plan, lambda _: None)
            await client.send(b"later")
            assert await bodies(first) == [b"both", b"acknowledged", b"later"]
            await client.close()


@pytest.mark.parametrize("is_dead", [False, True])
@on_a_loop
async def test_the_plan_says_that_a_slave_does_not_have_the_beginning_of_the_log(tmp_path: Path, is_dead: bool) -> None:
    async with names() as name_server, AdminClient([name_server]) as admin, contextlib.AsyncExitStack() as running:
        master = await running.enter_async_context(master_of(tmp_path / "a", name_server))
        client = WireClient(master.address)
        for _ in range(20):
            await client.send(b"x" * 100_000)
        await client.close()
        end = (await stats(admin, 0))["commitLogMaxOffset"]
        if is_dead:
            shutil.copytree(tmp_path / "a", tmp_path / "c")
        async with slave_of(tmp_path / "b", name_server) as slave:
            await until_it_follows(admin, 1, end)
            said = (
                f"the log of {slave.address} begins 1,048,576 bytes after that of {master.address}: the messages "
                "before are lost to groups that have not consumed them yet, and not on the new master; a slave that "
                "starts on a copy of the master's store, or empty with haStartAtFirstByte=true, has them"
            )
            if is_dead:
                await running.aclose()
                await running.enter_async_context(slave_of(tmp_path / "c", name_server, 2))
                said = "slave 2 has 1,048,576 bytes of older messages: they are not on the new master"
            assert said in (await plan_promotion(admin, "broker-a", 1)).remarks


@on_a_loop
async def test_with_accounts_and_tls_logs_are_compared_and_a_master_that_was_replaced_does_not_start(
    tmp_path: Path,
) -> None:
    accounts = PlainAcl({"administrator": Account("administrator", "12345678", is_admin=True)}, ())
    (tmp_path / "acl.yml").write_text(build_acl(accounts))
    tls = settings(with_certificate(tmp_path), mode="enforcing")
    secured: dict[str, str | int | bool] = {
        **SLAVE,
        **tls,
        "tls.enable": True,
        "tls.client.trustCertPath": str(tmp_path / "cert.pem"),
        "aclEnable": True,
        "rocketmq.acl.plain.file": str(tmp_path / "acl.yml"),
        "innerClientAuthenticationCredentials": '{"accessKey":"administrator","secretKey":"12345678"}',
    }
    async with asyncio.timeout(60), Cluster(NameServerConfig(tls=TlsSettings.of(tls))) as names:
        where = [names.name_server_address]

        def master(folder: str) -> mqtool.Broker:
            return mqtool.Broker(tmp_path / folder, role="master", name_servers=where, settings=secured)

        def slave() -> mqtool.Broker:
            return mqtool.Broker(tmp_path / "b", role="slave", name_servers=where, settings=secured)

        async with master("a"), slave() as second:
            while second.following is None or not second.following.copied_timestamp:
                await asyncio.sleep(0.05)
            assert (second.following.status, second.following.unchecked) == (FollowingStatus.FOLLOWING, "")
        write_role(tmp_path / "b", KeptRole(Role.ASYNC_MASTER, 0, 1, Role.SLAVE, 1))
        async with slave():
            with pytest.raises(UnavailableError, match="broker-a has another master since epoch 1"):
                await master("a").__aenter__()


@on_a_loop
async def test_a_master_says_so_where_it_may_not_ask_whether_it_was_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "acl.yml").write_text(build_acl(PlainAcl({}, ())))
    closed: dict[str, str | int | bool] = {"aclEnable": True, "rocketmq.acl.plain.file": str(tmp_path / "acl.yml")}
    async with (
        names() as name_server,
        mqtool.Broker(tmp_path / "b", role="slave", name_servers=[name_server], settings=SLAVE | closed) as slave,
        master_of(tmp_path / "a", name_server),
    ):
        assert f"{slave.address} was not asked whether there is another master: it refused request 28" in caplog.text


@on_a_loop
async def test_where_the_slave_does_not_get_the_rest_the_master_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (first, _, admin):
        client = WireClient(first.address)
        await client.send(b"before")
        plan = await plan_promotion(admin, "broker-a")

        async def never(admin: AdminClient, address: str, end: int) -> None:  # noqa: ARG001
            with pytest.raises(AssertionError, match=r"code=14"):
                await client.send(b"meanwhile")
            raise UnavailableError("it still lacks 5 bytes")

        monkeypatch.setattr(promotion, "_until_it_has", never)
        with pytest.raises(UnavailableError, match="it still lacks 5 bytes"):
            await promote(admin, plan, lambda _: None)
        await client.send(b"after")
        assert await bodies(first) == [b"before", b"after"]
        again = await client.ask(RequestCode.CHANGE_ROLE, step="become", role="SLAVE", brokerId=1, epoch=0)
        assert again.remark == "epoch 0 is not above 0, the epoch of this broker"
        await client.close()
    assert read_role(tmp_path / "a") is None


@on_a_loop
@pytest.mark.parametrize("is_taken", [True, False], ids=["taken", "lost on its way"])
async def test_of_an_order_to_become_master_that_nobody_answers_there_is_one_master_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    async with pair(tmp_path) as (first, second, admin):
        clients = [WireClient(first.address), WireClient(second.address)]
        await clients[0].send(b"before")
        plan = await plan_promotion(admin, "broker-a")
        answered = admin.request

        async def unanswered(address: str, call: Call[Any], timeout_ms: int = 5000) -> Any:
            header = call.command.ext_fields
            if address == second.address and header.get("step") == "become":
                if is_taken:
                    await answered(address, call, timeout_ms)
                raise UnavailableError(f"{address} did not answer")
            return await answered(address, call, timeout_ms)

        monkeypatch.setattr(admin, "request", unanswered)
        if is_taken:
            await promote(admin, plan, lambda _: None)
        else:
            with pytest.raises(UnavailableError, match="did not answer"):
                await promote(admin, plan, lambda _: None)
        accepted = []
        for number, client in enumerate(clients):
            with contextlib.suppress(MqtoolError, AssertionError):
                await client.send(b"after")
                accepted.append(number)
        assert accepted == [int(is_taken)]
        assert await bodies((first, second)[accepted[0]]) == [b"before", b"after"]
        for client in clients:
            await client.close()


@on_a_loop
async def test_what_cannot_be_promoted_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        names() as name_server,
        master_of(tmp_path / "a", name_server),
        AdminClient([name_server]) as admin,
    ):
        with pytest.raises(NotFoundError, match="there is no broker broker-x"):
            await plan_promotion(admin, "broker-x")
        with pytest.raises(NotFoundError, match="broker-a has no slave"):
            await plan_promotion(admin, "broker-a")
        async with slave_of(tmp_path / "b", name_server):
            await until_it_follows(admin)
            with pytest.raises(NotFoundError, match="broker-a has no slave with the id 9"):
                await plan_promotion(admin, "broker-a", 9)
            with monkeypatch.context() as patch:
                patch.setattr(promotion, "_OUR_SETTING", "a setting that no broker of RocketMQ has")
                with pytest.raises(
                    UsageError, match="is a RocketMQ broker, which cannot be told to stop accepting messages"
                ):
                    await plan_promotion(admin, "broker-a")
                patch.setattr(promotion, "_STATUS", "what no slave of RocketMQ tells")
                with pytest.raises(UsageError, match=r"set brokerRole=ASYNC_MASTER and brokerId=0, and start it"):
                    await plan_promotion(admin, "broker-a")

            dry = await asyncio.to_thread(run, "promote", "-n", name_server, "--broker", "broker-a", "--dry-run")
            assert (dry.status, dry.rows[0]["epoch"], dry.rows[0]["lag_bytes"]) == (Status.DAMAGE, 1, 0)
            assert "nothing was changed" in dry.remarks
            done = await asyncio.to_thread(run, "promote", "-n", name_server, "--broker", "broker-a", "--yes")
            assert done.status == Status.OK
            assert "is now the master of broker-a" in done.remarks


def test_a_kept_role_counts_until_the_settings_say_something_else(tmp_path: Path) -> None:
    settings, _ = BrokerSettings().updated({"brokerRole": "SLAVE", "brokerId": "1"})
    assert read_role(tmp_path) is None
    assert with_kept_role(settings, None) == (settings, 0)
    kept = KeptRole(Role.SYNC_MASTER, 0, 7, Role.SLAVE, 1)
    write_role(tmp_path, kept)
    assert read_role(tmp_path) == kept
    now, epoch = with_kept_role(settings, kept)
    assert (role_of(now), now.broker_id, epoch) == (Role.SYNC_MASTER, 0, 7)
    changed, _ = settings.updated({"brokerId": "2"})
    assert with_kept_role(changed, kept) == (changed, 7)
    path = tmp_path / "config" / "mqtoolRole.json"
    for text in (
        "",
        "{",
        "[]",
        json.dumps({"role": "KING"}),
        json.dumps({**json.loads(path.read_text()), "epoch": "x"}),
    ):
        path.write_text(text)
        with pytest.raises(BadDataError, match=r"mqtoolRole\.json cannot be read"):
            read_role(tmp_path)


class Life:
    """A broker that is told how its start goes."""

    def __init__(self, config: BrokerConfig, said: list[str], faults: list[MqtoolError]) -> None:
        self.role, self.said, self.faults = config.settings.role, said, faults

    async def start(self) -> None:
        if self.faults:
            raise self.faults.pop()
        self.said.append(f"{self.role} begins")

    async def stop(self) -> None:
        self.said.append(f"{self.role} ends")


@pytest.mark.parametrize("can_start", [True, False])
@on_a_loop
async def test_a_change_that_is_asked_for_while_the_broker_starts_waits_for_that(
    can_start: bool, tmp_path: Path
) -> None:
    said: list[str] = []
    in_between, may_go_on = asyncio.Event(), asyncio.Event()

    class SlowLife(Life):
        async def start(self) -> None:
            in_between.set()
            await may_go_on.wait()
            await super().start()

    def make(config: BrokerConfig, _epoch: int, _changed: bool, _changes: role_keeper.RoleKeeper) -> SlowLife:
        return SlowLife(config, said, [] if can_start else [UnavailableError("the port is taken")])

    keeper = role_keeper.RoleKeeper(BrokerConfig(tmp_path), [], make)
    starting = asyncio.create_task(keeper.start())
    await in_between.wait()
    keeper.change(KeptRole(Role.SLAVE, 1, 1, Role.ASYNC_MASTER, 0))
    keeper.change(KeptRole(Role.SYNC_MASTER, 0, 2, Role.ASYNC_MASTER, 0))
    await asyncio.sleep(0)
    assert not said
    may_go_on.set()
    if can_start:
        await starting
        while said[-1] != "SYNC_MASTER begins":
            await asyncio.sleep(0)
    else:
        with pytest.raises(UnavailableError, match="the port is taken"):
            await starting
    await keeper.stop()

    runs = [f"{role} {what}" for role in ("ASYNC_MASTER", "SLAVE", "SYNC_MASTER") for what in ("begins", "ends")]
    assert said == (runs if can_start else [])


@on_a_loop
async def test_a_broker_that_cannot_begin_anew_tries_again_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_keeper, "_AGAIN_SECONDS", 0.01)
    for fault_count in (3, 1 << 20):
        said: list[str] = []
        faults: list[MqtoolError] = []
        change: list[Callable[[KeptRole], None]] = []

        def make(
            config: BrokerConfig,
            _epoch: int,
            _changed: bool,
            changes: role_keeper.RoleKeeper,
            said: list[str] = said,
            faults: list[MqtoolError] = faults,
            change: list[Callable[[KeptRole], None]] = change,
        ) -> Life:
            change.append(changes.change)
            return Life(config, said, faults)

        keeper = role_keeper.RoleKeeper(BrokerConfig(tmp_path), [], make)
        await keeper.start()
        faults += [UnavailableError("the port is taken")] * fault_count
        change[0](KeptRole(Role.SLAVE, 1, 1, Role.ASYNC_MASTER, 0))
        if fault_count == 3:
            while len(said) < 3:
                await asyncio.sleep(0.005)
        await keeper.stop()
        begun = ["SLAVE begins", "SLAVE ends"] if fault_count == 3 else []
        assert said == ["ASYNC_MASTER begins", "ASYNC_MASTER ends", *begun]
