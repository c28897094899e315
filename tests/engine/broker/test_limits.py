"""What one client can make a broker or a name server keep, or work at while all others wait, has a limit."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import mqtool
from mqtool.engine.broker.processors.clients import MOST_GROUPS, MOST_SUBSCRIPTIONS
from mqtool.engine.broker.processors.pull import MOST_OF_FILTER
from mqtool.engine.name_server.name_server import MOST_KV, MOST_OF_KV
from mqtool.engine.remoting.client import RemotingClient
from mqtool.formats.bodies import ConsumerData, Heartbeat, Subscription, build_heartbeat
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.remoting import RemotingCommand
from tests.wire_client import Client


def on_broker(test: Callable[[Client], Awaitable[None]]) -> None:
    async def served() -> None:
        async with asyncio.timeout(60), mqtool.Broker() as broker:
            client = Client(broker.address)
            await test(client)
            await client.close()

    asyncio.run(served())


def consumer(group: str, *subscriptions: Subscription) -> ConsumerData:
    return ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", "", subscriptions)


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_a_filter_of_a_pull_or_a_pop_is_only_so_long(kind: str) -> None:
    async def test(client: Client) -> None:
        await client.send(b"one", 0, "T", pairs={"TAGS": "t"})
        short = " || ".join(["t", *("x" * 100 for _ in range(100))]) if kind == "TAG" else "TAGS = 't'"
        long = short + (" || " if kind == "TAG" else " OR ") + "x" * MOST_OF_FILTER
        pull: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
        pull |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "expressionType": kind}
        pop: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0, "maxMsgNums": 1, "invisibleTime": 9000}
        pop |= {"pollTime": 0, "bornTime": time.time_ns() // 1_000_000, "initMode": 0, "expType": kind}
        for code, fields, name in (
            (RequestCode.PULL_MESSAGE, pull, "subscription"),
            (RequestCode.POP_MESSAGE, pop, "exp"),
        ):
            answers = [await client.ask(code, **(fields | {name: one})) for one in (long, short)]
            assert [one.code for one in answers] == [ResponseCode.SUBSCRIPTION_PARSE_FAILED, 0]

    on_broker(test)


@pytest.mark.parametrize(
    ("beat", "said"),
    [
        (
            Heartbeat("c", (), tuple(consumer(f"G{number}") for number in range(MOST_GROUPS + 1))),
            "at most 256 groups",
        ),
        (Heartbeat("c", tuple(f"P{number}" for number in range(MOST_GROUPS + 1))), "at most 256 groups"),
        (
            Heartbeat(
                "c",
                (),
                (consumer("G", *(Subscription(f"T{number}", "*") for number in range(MOST_SUBSCRIPTIONS + 1))),),
            ),
            "at most 4,096 subscriptions",
        ),
        (
            Heartbeat("c", (), (consumer("G", Subscription("T", "x" * (MOST_OF_FILTER + 1))),)),
            "the filter for the topic [T] is longer than 16,384 characters",
        ),
    ],
)
def test_a_heartbeat_with_too_much_is_refused_and_nothing_of_it_is_taken(beat: Heartbeat, said: str) -> None:
    async def test(client: Client) -> None:
        before = await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        answer = await client.ask(RequestCode.HEART_BEAT, build_heartbeat(beat))
        assert (answer.code, said in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
        assert (await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body == before.body
        assert (await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")).code != 0

    on_broker(test)


def test_many_heartbeats_of_one_client_make_no_more_groups_than_one() -> None:
    async def test(client: Client) -> None:
        for first in range(0, MOST_GROUPS, 64):
            consumers = tuple(consumer(f"G{number}") for number in range(first, first + 64))
            await client.done(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", (), consumers)))
        answer = await client.ask(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", (), (consumer("one more"),))))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        await client.done(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", (), (consumer("G1"),))))

    on_broker(test)


def test_a_name_server_keeps_only_so_many_kv_configs() -> None:
    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker() as broker:
            client = RemotingClient([broker.name_server_address])

            async def put(namespace: str, key: str, value: str) -> int:
                fields = {"namespace": namespace, "key": key, "value": value}
                return (await client.invoke(RemotingCommand(RequestCode.PUT_KV_CONFIG, ext_fields=fields))).code

            assert await put("N", "k", "x" * (MOST_OF_KV + 1)) == ResponseCode.INVALID_PARAMETER
            codes = await asyncio.gather(*(put("N", f"k{number}", "v") for number in range(MOST_KV - 1)))
            assert {*codes} == {0}
            assert await put("N", "one more", "v") == ResponseCode.INVALID_PARAMETER
            assert await put("another", "one more", "v") == ResponseCode.INVALID_PARAMETER
            assert await put("N", "k1", "changed") == 0
            await client.close()

    asyncio.run(test())
