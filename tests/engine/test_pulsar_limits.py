"""What clients of Pulsar can make a broker keep, or work at while all others wait, has a limit: through a socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest

import mqtool
from mqtool.engine.broker.saves import Saves
from mqtool.engine.pulsar.catalogue import Catalogue, KnownTopic
from mqtool.engine.pulsar.schemas import Schema
from mqtool.engine.pulsar.wire import command
from mqtool.formats.codes import RequestCode
from tests.engine.broker.test_limits import lowered
from tests.pulsar_wire import PulsarWire, connected
from tests.wire_client import WireClient

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)


def on_broker(test: Callable[[mqtool.Broker, PulsarWire], Awaitable[None]], **options: Any) -> None:
    async def served() -> None:
        async with (
            asyncio.timeout(60),
            mqtool.Broker(pulsar=True, **options) as broker,
            connected(broker.pulsar_url) as client,
        ):
            await test(broker, client)

    asyncio.run(served())


def subscription(topic: str, consumer_id: int, kind: int = SHARED, name: str = "s", **more: Any) -> dict[str, Any]:
    return {"topic": topic, "subscription": name, "subType": kind, "consumer_id": consumer_id, **more}


@contextlib.asynccontextmanager
async def administrator(broker: mqtool.Broker) -> AsyncIterator[WireClient]:
    client = WireClient(broker.address)
    yield client
    await client.close()


async def make_topic(broker: mqtool.Broker, name: str, queues: int) -> None:
    async with administrator(broker) as client:
        fields: dict[str, Any] = {"topic": name, "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG"}
        fields |= {"readQueueNums": queues, "writeQueueNums": queues, "order": False}
        await client.done(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)


def test_a_list_of_topics_is_only_so_long_and_who_asks_for_fewer_gets_them() -> None:
    async def test(broker: mqtool.Broker, client: PulsarWire) -> None:
        await make_topic(broker, "wide", 4096)
        await make_topic(broker, "narrow", 2)
        with lowered(MAX_NAMES=4097):
            assert "at most 4,097 topics" in await client.outcome("get_topics", namespace="public/default")
            wanted = {"namespace": "public/default", "topics_pattern": "persistent://public/default/n.*w"}
            listed = (await client.ask("get_topics", **wanted)).body.topics
            assert [*listed] == [f"persistent://public/default/narrow-partition-{number}" for number in (0, 1)]

    on_broker(test)


def test_who_watches_topics_is_told_which_come_and_go_until_they_are_too_many() -> None:
    pattern = {"namespace": "public/default", "topics_pattern": "public/default/a.*"}

    async def test(broker: mqtool.Broker, client: PulsarWire) -> None:
        await make_topic(broker, "a0", 1)
        answer = await client.ask("watch_topics", watcher_id=1, **pattern)
        assert [*answer.body.topic] == ["persistent://public/default/a0-partition-0"]
        await make_topic(broker, "b", 1)
        await make_topic(broker, "a1", 2)
        told = await client.next("watch_topics_update")
        assert [*told.new_topics] == [f"persistent://public/default/a1-partition-{number}" for number in (0, 1)]
        async with administrator(broker) as admin:
            await admin.done(RequestCode.DELETE_TOPIC_IN_BROKER, topic="a1")
        told = await client.next("watch_topics_update")
        assert [*told.deleted_topics] == [f"persistent://public/default/a1-partition-{number}" for number in (0, 1)]
        with lowered(MAX_WATCHED=1):
            assert "list the topics instead" in await client.outcome("watch_topics", watcher_id=2, **pattern)
            await client.ask("watch_topics", watcher_id=1, **pattern)  # in the place of the one before
        too_long = pattern | {"namespace": "x" * 600}
        assert "list the topics instead" in await client.outcome("watch_topics", watcher_id=3, **too_long)

    on_broker(test)


def test_producers_and_consumers_are_only_so_many_and_make_room_when_they_go() -> None:
    async def test(broker: mqtool.Broker, client: PulsarWire) -> None:
        with lowered(MAX_CLIENTS=3, MAX_OF_SUBSCRIPTION=2):
            async with connected(broker.pulsar_url) as other:
                assert await other.outcome("producer", topic="t", producer_id=0) == ""
                assert await other.outcome("subscribe", **subscription("t", 0)) == ""
                assert await client.outcome("subscribe", **subscription("t", 1)) == ""
                assert "already 3 producers and" in await client.outcome("producer", topic="t", producer_id=0)
                assert "already 3 producers and" in await client.outcome("subscribe", **subscription("t", 2, name="s2"))
                await other.ask("close_producer", producer_id=0)
                assert "at most 2 consumers" in await client.outcome("subscribe", **subscription("t", 2))
                assert await client.outcome("subscribe", **subscription("t", 2, name="s2")) == ""
            while await client.outcome("producer", topic="t", producer_id=0):  # until the end of the other is seen
                pass
        with lowered(MAX_OF_SUBSCRIPTION=1):  # the first has the topic, and one waits for it
            fields: dict[str, Any] = {"topic": "u", "producer_access_mode": 2}
            outcomes = [await client.outcome("producer", producer_id=number, **fields) for number in (1, 2, 3)]
            assert outcomes == ["", "", "At most 1 producers wait for a topic"]

    on_broker(test)


def test_ranges_and_filters_of_consumers_are_only_so_long() -> None:
    def with_ranges(topic: str, consumer_id: int, count: int) -> dict[str, Any]:
        meta = command("subscribe", **subscription(topic, 0), request_id=0).subscribe.keySharedMeta
        meta.keySharedMode = 1
        for number in range(count):
            meta.hashRanges.add(start=number, end=number)
        return subscription(topic, consumer_id, KEY_SHARED, keySharedMeta=meta)

    async def test(_: mqtool.Broker, client: PulsarWire) -> None:
        assert "at most 1,000 ranges" in await client.outcome("subscribe", **with_ranges("t", 1, 1001))
        assert await client.outcome("subscribe", **with_ranges("t", 1, 1000)) == ""
        with lowered(MAX_OF_WISHES=64 * 1001):
            assert "more than 64,064 characters" in await client.outcome("subscribe", **with_ranges("u", 2, 2))
            assert await client.outcome("subscribe", **with_ranges("u", 2, 1)) == ""
            await client.ask("close_consumer", consumer_id=1)
            assert await client.outcome("subscribe", **with_ranges("v", 3, 1000)) == ""

    on_broker(test)


def test_requests_that_wait_for_a_client_that_hangs_are_only_so_many() -> None:
    async def test(broker: mqtool.Broker, client: PulsarWire) -> None:
        assert await client.outcome("subscribe", **subscription("t", 0, EXCLUSIVE)) == ""
        async with connected(broker.pulsar_url) as other, connected(broker.pulsar_url) as third:
            with lowered(MAX_WAITING=1):
                other.say("subscribe", request_id=9, **subscription("t", 1, EXCLUSIVE))
                await client.next("ping")
                assert "Too many requests wait" in await third.outcome("subscribe", **subscription("t", 1, EXCLUSIVE))
            client.say("pong")
            assert "already connected" in (await other.next("error")).message

    on_broker(test)


def test_names_and_schemas_are_only_so_long_with_all_that_belongs_to_them() -> None:
    def schema(client: PulsarWire, number: int, size: int) -> Any:
        base = command("get_or_create_schema", topic="t", request_id=number)
        base.get_or_create_schema.schema.name, base.get_or_create_schema.schema.type = "n", 1
        base.get_or_create_schema.schema.schema_data = b"%d" % number
        base.get_or_create_schema.schema.properties.add(key=b"k", value=b"v" * size)
        return client.ask_with(base)

    async def test(broker: mqtool.Broker, client: PulsarWire) -> None:
        assert not (await schema(client, 1, 1000)).body.HasField("error_code")
        assert "A schema may have at most" in (await schema(client, 2, 1 << 19)).body.error_message
        with lowered(MAX_OF_SCHEMAS=3000):
            assert not (await schema(client, 3, 1000)).body.HasField("error_code")
            assert "more than 3,000 bytes" in (await schema(client, 4, 1000)).body.error_message
        async with connected(broker.pulsar_url) as other:
            assert "at most 2,000 characters" in await other.outcome("producer", topic="t" * 2001, producer_id=0)
            long = "s" * 256
            name = {"topic": "t", "producer_id": 0, "initial_subscription_name": long}
            assert "at most 255 characters" in await other.outcome("producer", **name)

    on_broker(test)


def test_a_catalogue_is_written_in_pieces_of_a_schema_each_and_read_again(tmp_path: Path) -> None:
    saves = Saves()
    saves.on_wanted = lambda: None
    catalogue = Catalogue(tmp_path, saves)
    for number in range(300):
        catalogue.put(f"t{number}", KnownTopic(1, True, "a.b" if number % 2 else ""))
    for topic in ("t0", "t1"):
        for data in (b"1", b"\xff2"):
            catalogue.add_schema(topic, Schema(1, data, ((b"k", b"v" * 1000),)))
    taken = saves.take()
    assert taken
    [save] = taken.saves
    pieces = [*save.pieces()]
    save.write(save.path, b"".join(pieces))

    assert len(pieces) > 4
    assert max(map(len, pieces)) < 20_000
    again = Catalogue(tmp_path, Saves())
    assert all(again.get(f"t{number}") == catalogue.get(f"t{number}") for number in range(301))


def test_queues_in_use_are_only_so_many() -> None:
    async def test(broker: mqtool.Broker, client: PulsarWire) -> None:
        await make_topic(broker, "wide", 3)
        with lowered(MAX_QUEUES_IN_ALL=2):
            outcomes = [
                await client.outcome("producer", topic=f"wide-partition-{number}", producer_id=number)
                for number in (0, 1, 2)
            ]
            assert outcomes[:2] == ["", ""]
            assert "the maximum is 2" in outcomes[2]
            assert await client.outcome("subscribe", **subscription("wide-partition-0", 0)) == ""

    on_broker(test)


async def received(client: PulsarWire, count: int) -> list[Any]:
    """Return the ids of the next messages."""
    return [(await client.next("message")).message_id for _ in range(count)]


async def send_all(client: PulsarWire, count: int) -> None:
    assert await client.outcome("producer", topic="t", producer_id=0) == ""
    for number in range(count):
        client.send(number, b"%d" % number)
    for _ in range(count):
        await client.next("send_receipt")


def test_gaps_of_a_subscription_are_only_so_many_and_what_lies_behind_them_comes_again() -> None:
    async def test(broker: mqtool.Broker, client: PulsarWire) -> None:
        await send_all(client, 8)
        async with connected(broker.pulsar_url) as reader:
            assert await reader.outcome("subscribe", **subscription("t", 0, initialPosition=1)) == ""
            reader.say("flow", consumer_id=0, messagePermits=100)
            ids = await received(reader, 8)
            with lowered(MAX_GAPS=2):
                for number in (1, 3, 5, 4):  # 5 would be a third gap, 4 widens the second
                    await reader.ask("ack", consumer_id=0, ack_type=0, message_id=[ids[number]])
        async with connected(broker.pulsar_url) as reader:
            await reader.ask("subscribe", **subscription("t", 0))
            reader.say("flow", consumer_id=0, messagePermits=100)
            assert [one.entryId for one in await received(reader, 5)] == [0, 2, 5, 6, 7]

    on_broker(test)


def test_what_all_subscriptions_hold_is_bounded_and_they_go_on_when_there_is_room() -> None:
    clock = mqtool.VirtualClock()

    async def test(broker: mqtool.Broker, client: PulsarWire) -> None:
        await send_all(client, 20)
        with lowered(MAX_HELD=10):
            async with connected(broker.pulsar_url) as other:
                for one, name in ((client, "s0"), (other, "s1")):
                    assert await one.outcome("subscribe", **subscription("t", 0, name=name, initialPosition=1)) == ""
                client.say("flow", consumer_id=0, messagePermits=15)
                ids = await received(client, 15)
                clock.advance(1)
                other.say("flow", consumer_id=0, messagePermits=100)
                await other.outcome("get_topics", namespace="public/default")  # nothing comes before this is answered
                assert other.told.empty()
                await client.ask("ack", consumer_id=0, ack_type=0, message_id=[ids[0]])
                for id_ in ids[1:]:
                    await client.ask("ack", consumer_id=0, ack_type=0, message_id=[id_])
                clock.advance(3)
                assert [one.entryId for one in await received(other, 20)] == [*range(20)]

    on_broker(test, clock=clock)


def test_a_first_subscription_that_a_producer_brings_needs_the_permissions_of_a_consumer(tmp_path: Path) -> None:
    key = "secret" * 8
    accounts = (
        "accounts:\n- {accessKey: sending, secretKey: sender-secret, topicPerms: [t=PUB], groupPerms: [mine=SUB]}\n"
    )
    accounts += "- {accessKey: both-of-them, secretKey: both-secret, topicPerms: [t=PUB|SUB], groupPerms: [mine=SUB]}\n"
    (tmp_path / "plain_acl.yml").write_text(accounts)
    (tmp_path / "key").write_text(key)
    options: dict[str, Any] = {"aclEnable": True, "rocketmq.acl.plain.file": str(tmp_path / "plain_acl.yml")}
    options["tokenSecretKey"] = f"file://{tmp_path / 'key'}"

    async def served() -> None:
        async with asyncio.timeout(60), mqtool.Broker(pulsar=True, settings=options) as broker:
            for account, name, is_refused in (
                ("sending", "mine", True),
                ("sending", "other", True),
                ("both-of-them", "other", True),
                ("both-of-them", "mine", False),
            ):
                token = jwt.encode({"sub": account}, key, "HS256")
                async with connected(broker.pulsar_url, token) as client:
                    asked = {"topic": "t", "producer_id": 0, "initial_subscription_name": name}
                    assert ("may not do this" in await client.outcome("producer", **asked)) == is_refused

    asyncio.run(served())


async def page_of(broker: mqtool.Broker, method: str, path: str) -> bytes:
    host, _, _ = broker.pulsar_admin_url.removeprefix("http://").partition("/")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    path = f"/admin/v2/persistent/public/default/{path}"
    writer.write(f"{method} {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


def test_administrators_make_no_subscriptions_with_endless_names() -> None:
    async def test(broker: mqtool.Broker, _: PulsarWire) -> None:
        for size, status in ((256, b"412"), (255, b"204")):
            answer = await page_of(broker, "PUT", f"t/subscription/{'s' * size}")
            assert answer.split()[1] == status

    on_broker(test)


@pytest.mark.parametrize("way", ["states", "page"])
def test_a_subscription_that_nobody_has_joined_is_told_where_its_group_was_moved(way: str, tmp_path: Path) -> None:
    async def test(broker: mqtool.Broker, client: PulsarWire) -> None:
        await send_all(client, 4)
        await client.ask("subscribe", **subscription("t", 0, initialPosition=1))
        await client.ask("close_consumer", consumer_id=0)
        fields: dict[str, Any] = {"consumerGroup": "s", "topic": "t", "queueId": 0, "commitOffset": 3}
        async with administrator(broker) as admin:
            await admin.done(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
            if way == "states":
                answer = await admin.ask(RequestCode.GET_PULSAR_SUBSCRIPTIONS)
                assert b'"consumer_offset":3' in answer.body
            else:
                assert b'"msgBacklog":1' in await page_of(broker, "GET", "t/stats")

    on_broker(test, store=tmp_path / "store")
