"""What administrators forbid to read, and owners of a topic that were replaced: forbidden to Pulsar clients as well."""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest

import mqtool
from mqtool.formats.codes import RequestCode
from tests.pulsar_wire import PulsarWire, connected
from tests.wire_client import WireClient

pytest.importorskip("google.protobuf")
EXCLUSIVE, WAITING, FENCING = 1, 2, 3
AUTHORIZATION, SUBSCRIPTION_NOT_FOUND, FENCED = 4, 12, 25
WANTED: dict[str, Any] = {"topic": "t-partition-0", "subscription": "s", "subType": 1, "initialPosition": 1}


async def set_topic(broker: mqtool.Broker, perm: int) -> None:
    fields: dict[str, Any] = {"topic": "t", "defaultTopic": "TBW102", "perm": perm, "topicFilterType": "SINGLE_TAG"}
    fields |= {"readQueueNums": 1, "writeQueueNums": 1, "order": False}
    await administer(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)


async def set_group(broker: mqtool.Broker, consumes: bool) -> None:
    body = f'{{"groupName":"s","consumeEnable":{str(consumes).lower()}}}'.encode()
    await administer(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)


async def administer(broker: mqtool.Broker, code: RequestCode, body: bytes = b"", **fields: Any) -> None:
    admin = WireClient(broker.address)
    await admin.done(code, body, **fields)
    await admin.close()


def run(test: Callable[[mqtool.Broker], Awaitable[None]], **options: Any) -> None:
    async def served() -> None:
        async with asyncio.timeout(60), mqtool.Broker(pulsar=True, **options) as broker:
            await test(broker)

    asyncio.run(served())


async def refusal(client: PulsarWire, consumer_id: int, **fields: Any) -> int:
    """Return the error of a SUBSCRIBE, 0 if it succeeds."""
    answer = await client.ask("subscribe", **WANTED | fields, consumer_id=consumer_id)
    return int(answer.body.error) if answer.name == "error" else 0


def test_a_topic_without_permission_to_read_is_read_by_nobody_until_it_has_it_again() -> None:
    clock = mqtool.VirtualClock()

    async def test(broker: mqtool.Broker) -> None:
        await set_topic(broker, 6)
        async with connected(broker.pulsar_url) as client:
            assert await client.outcome("producer", topic="t-partition-0", producer_id=0) == ""
            assert await refusal(client, 0) == 0
            await set_topic(broker, 2)
            client.send(0, b"secret")
            clock.advance(2)
            assert (await client.next("close_consumer")).consumer_id == 0
            assert await refusal(client, 0) == AUTHORIZATION
            assert await refusal(client, 1, subscription="reader", durable=False) == AUTHORIZATION
            await set_topic(broker, 6)
            assert await refusal(client, 0) == 0
            client.say("flow", consumer_id=0, messagePermits=1)
            assert (await client.next("message")).message_id.entryId == 0

    run(test, clock=clock)


def test_a_group_that_may_not_consume_does_not_as_a_subscription() -> None:
    clock = mqtool.VirtualClock()

    async def test(broker: mqtool.Broker) -> None:
        await set_topic(broker, 6)
        async with connected(broker.pulsar_url) as client:
            assert await refusal(client, 0) == 0
            await set_group(broker, consumes=False)
            clock.advance(2)
            assert (await client.next("close_consumer")).consumer_id == 0
            assert await refusal(client, 0) == AUTHORIZATION
            assert await refusal(client, 0, subscription="other") == 0
            await set_group(broker, consumes=True)
            assert await refusal(client, 1) == 0

    run(test, clock=clock)


def test_a_broker_that_makes_no_groups_makes_no_subscriptions() -> None:
    async def test(broker: mqtool.Broker) -> None:
        await set_topic(broker, 6)
        async with connected(broker.pulsar_url) as client:
            assert await refusal(client, 0) == SUBSCRIPTION_NOT_FOUND
            assert await refusal(client, 0, durable=False, subscription="reader") == 0
            await set_group(broker, consumes=True)
            assert await refusal(client, 1) == 0

    run(test, settings={"autoCreateSubscriptionGroup": False})


def test_clients_lose_what_their_accounts_lose_while_they_are_connected(tmp_path: Path) -> None:
    clock = mqtool.VirtualClock()
    key = "secret" * 8
    (tmp_path / "key").write_text(key)
    accounts = tmp_path / "plain_acl.yml"
    modified = itertools.count(1_800_000_000)

    def allow(*rows: str) -> None:
        accounts.write_text("accounts:\n" + "".join(f"- {{secretKey: 12345678, {row}}}\n" for row in rows))
        os.utime(accounts, (now := next(modified), now))

    both = "topicPerms: [t=PUB|SUB], groupPerms: [s=SUB]"
    allow(f"accessKey: first-account, {both}", f"accessKey: second-account, {both}")

    async def test(broker: mqtool.Broker) -> None:
        tokens = [jwt.encode({"sub": f"{name}-account"}, key, "HS256") for name in ("first", "second")]
        url = broker.pulsar_url
        async with connected(url, tokens[0]) as first, connected(url, tokens[1]) as second:
            for client in (first, second):
                assert await client.outcome("producer", topic="t", producer_id=0) == ""
                assert await refusal(client, 0, topic="t") == 0
            allow("accessKey: first-account, topicPerms: [t=SUB], groupPerms: [s=SUB]")
            clock.advance(10)
            await second.closed()
            await first.next("close_producer")
            assert "may not do this" in await first.outcome("producer", topic="t", producer_id=0)
            allow("accessKey: first-account, topicPerms: [t=SUB]")
            clock.advance(10)
            assert (await first.next("close_consumer")).consumer_id == 0
            assert await refusal(first, 0, topic="t") == AUTHORIZATION

    options = {
        "aclEnable": True,
        "rocketmq.acl.plain.file": str(accounts),
        "tokenSecretKey": f"file://{tmp_path / 'key'}",
    }
    run(test, clock=clock, settings=options)


@pytest.mark.parametrize("second", [FENCING, WAITING])
def test_an_owner_of_a_topic_that_was_replaced_is_fenced_off_after_restarts_as_well(
    second: int, tmp_path: Path
) -> None:
    async def owner(client: PulsarWire, name: str, access: int, **fields: Any) -> Any:
        wanted = {"topic": "t", "producer_id": 0, "producer_name": name, "producer_access_mode": access, **fields}
        return (await client.ask("producer", **wanted)).body

    async def started(use: Callable[[PulsarWire, PulsarWire], Awaitable[None]]) -> None:
        async with (
            asyncio.timeout(60),
            mqtool.Broker(tmp_path / "store", pulsar=True) as broker,
            connected(broker.pulsar_url) as first,
            connected(broker.pulsar_url) as other,
        ):
            await use(first, other)

    async def old(first: PulsarWire, _: PulsarWire) -> None:
        assert (await owner(first, "old", EXCLUSIVE)).topic_epoch == 0

    async def new(first: PulsarWire, other: PulsarWire) -> None:
        assert (await owner(first, "between", EXCLUSIVE)).topic_epoch == 1
        told = await owner(other, "new", second)
        if second == WAITING:
            assert not told.producer_ready
            await other.ask("partitioned_metadata", topic="t")  # so that what comes later is not taken for an answer
            await first.ask("close_producer", producer_id=0)
            told = await other.next("producer_success")
        assert (told.producer_ready, told.topic_epoch) == (True, 2)

    async def old_again(first: PulsarWire, other: PulsarWire) -> None:
        assert (await owner(first, "old", FENCING, topic_epoch=1)).error == FENCED
        assert (await owner(other, "new", EXCLUSIVE, topic_epoch=2)).topic_epoch == 2

    for use in (old, new, old_again):
        asyncio.run(started(use))
