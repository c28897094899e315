"""Clients that take what a broker asks them and never answer: who waits for them waits no longer than it says."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import mqtool
from mqtool.engine.broker.operations.client_calls import CALL_MS
from mqtool.engine.broker.waiting_room import CALLS
from mqtool.formats.bodies import ConsumerData, Heartbeat, Subscription, build_heartbeat, parse_body
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.remoting import RemotingCommand
from tests.wire_client import PRODUCERS, WireClient

BOUND = CALL_MS / 1000
CONSUMER = ConsumerData("G", "CONSUME_PASSIVELY", "CLUSTERING", "", (Subscription("T", "*"),))

Start = Callable[..., Awaitable[WireClient]]


def with_clients(test: Callable[[mqtool.VirtualClock, Start], Awaitable[None]], **settings: Any) -> None:
    """Run a test with a clock and what gives clients: members of the group G and producers, if they get an id."""

    async def served() -> None:
        clock = mqtool.VirtualClock()
        clients: list[WireClient] = []
        async with asyncio.timeout(60), mqtool.Broker(clock=clock, settings=settings) as broker:

            async def start(client_id: str = "") -> WireClient:
                clients.append(WireClient(broker.address))
                await clients[-1].done(RequestCode.GET_BROKER_RUNTIME_INFO)  # now requests leave in their order
                if client_id:
                    beat = build_heartbeat(Heartbeat(client_id, (PRODUCERS,), (CONSUMER,)))
                    command = RemotingCommand(RequestCode.HEART_BEAT, body=beat, version=479)
                    assert (await clients[-1]._client.invoke(command)).code == 0
                return clients[-1]

            await test(clock, start)
            for one in clients:
                await one.close()

    asyncio.run(served())


async def answered_after(
    clock: mqtool.VirtualClock,
    asking: WireClient,
    honest: WireClient,
    seconds: float,
    *waiting: "asyncio.Future[RemotingCommand]",
) -> tuple[int, list[RemotingCommand]]:
    """Return how many answers come before so much time has gone by, and all; an honest client has its own."""
    await asking.send(b"behind the questions", 0, "T")  # when that is answered they have been read, too
    clock.advance(seconds - 0.6)
    await honest.send(b"honest", 0, "T")
    early = sum(one.done() for one in waiting)
    clock.advance(0.6)
    return early, [await one for one in waiting]


def test_a_consumer_that_hangs_is_given_up_after_ten_seconds() -> None:
    async def test(clock: mqtool.VirtualClock, start: Start) -> None:
        await start("hangs")
        honest = await start()
        sent = await honest.send(b"one", 0, "T")
        asking = await start()
        member: dict[str, Any] = {"consumerGroup": "G", "clientId": "hangs"}
        early, [info, direct, status] = await answered_after(
            clock,
            asking,
            honest,
            BOUND,
            asyncio.ensure_future(asking.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **member)),
            asyncio.ensure_future(asking.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **member, msgId=sent["msgId"])),
            asyncio.ensure_future(asking.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="G")),
        )
        assert early == 0
        assert (info.code, direct.code) == (ResponseCode.CONSUME_MSG_TIMEOUT,) * 2
        assert (status.code, parse_body(status.body)) == (0, {"consumerTable": {}})

    with_clients(test)


def test_all_members_of_a_group_are_asked_at_once_and_waited_for_once() -> None:
    async def test(clock: mqtool.VirtualClock, start: Start) -> None:
        for number in range(20):
            await start(f"hangs {number}")
        asking = await start()
        status = asyncio.ensure_future(
            asking.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="G")
        )
        early, [answer] = await answered_after(clock, asking, await start(), BOUND, status)
        assert early == 0
        assert (answer.code, parse_body(answer.body)) == (0, {"consumerTable": {}})

    with_clients(test)


def test_a_reply_to_a_client_that_hangs_fails_after_ten_seconds() -> None:
    async def test(clock: mqtool.VirtualClock, start: Start) -> None:
        await start("hangs")
        replying = await start()
        fields: dict[str, Any] = {"producerGroup": "P", "topic": "DefaultCluster_REPLY_TOPIC", "defaultTopic": "TBW102"}
        fields |= {"defaultTopicQueueNums": 1, "queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0}
        fields |= {"reconsumeTimes": 0, "properties": "REPLY_TO_CLIENT\x01hangs\x02"}
        reply = asyncio.ensure_future(replying.ask(RequestCode.SEND_REPLY_MESSAGE, b"reply", **fields))
        early, [answer] = await answered_after(clock, replying, await start(), BOUND, reply)
        assert early == 0
        assert (answer.code, answer.remark) == (1, "push reply message to <hangs> fail.")

    with_clients(test)


def test_nobody_waits_for_a_reset_or_for_the_check_of_a_transaction() -> None:
    async def test(clock: mqtool.VirtualClock, start: Start) -> None:
        await start("hangs")
        honest = await start()
        await honest.send(b"one", 0, "T")
        await honest.prepare(b"half")
        for queue in range(4):
            offset: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": queue, "commitOffset": 0}
            await honest.done(RequestCode.UPDATE_CONSUMER_OFFSET, **offset)
        clock.advance(60)  # checks go out again and again
        reset = await honest.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", group="G", timestamp=-1, isForce=True
        )
        assert reset.code == 0
        await honest.send(b"two", 0, "T")

    with_clients(test, useServerSideResetOffset=False)


def test_only_so_many_answers_of_one_client_are_waited_for() -> None:
    async def test(clock: mqtool.VirtualClock, start: Start) -> None:
        await start("hangs")
        asking, honest = await start(), await start()
        member: dict[str, Any] = {"consumerGroup": "G", "clientId": "hangs"}
        waiting = [
            asyncio.ensure_future(asking.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **member))
            for _ in range(CALLS.most_of_key + 5)
        ]
        refused = [(await one).remark or "" for one in waiting[CALLS.most_of_key :]]
        assert all("has 64 unanswered requests" in one for one in refused)
        early, answers = await answered_after(clock, asking, honest, BOUND, *waiting[: CALLS.most_of_key])
        assert early == 0
        assert {one.code for one in answers} == {ResponseCode.CONSUME_MSG_TIMEOUT}
        again = asyncio.ensure_future(asking.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **member))
        early, [answer] = await answered_after(clock, asking, honest, BOUND, again)
        assert early == 0
        assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT

    with_clients(test)
