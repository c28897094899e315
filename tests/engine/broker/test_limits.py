"""What one client can make a broker or a name server keep, or work at while all others wait, has a limit."""

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import mqtool
from mqtool.engine.broker import waiting_room
from mqtool.engine.broker.operations.clients import MAX_GROUPS, MAX_SUBSCRIPTIONS
from mqtool.engine.broker.operations.filters import MAX_OF_FILTER, MAX_OF_SQL92
from mqtool.engine.broker.operations.statistics import Statistics
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.cluster import Cluster
from mqtool.engine.name_server.kv_configs import MAX_KV, MAX_OF_KV
from mqtool.engine.name_server.remoting_door import MAX_OF_REGISTRATION
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.server_configs import BrokerConfig, NameServerConfig
from mqtool.errors import MqtoolError
from mqtool.formats.bodies import (
    Heartbeat,
    Subscription,
    build_body,
    build_heartbeat,
    parse_body,
    parse_cluster_info,
)
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.remoting import MAX_HEADER, RemotingCommand
from tests.wire_client import WireClient, consumer, messages_in, registration

PULL: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
PULL |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}


def on_broker(test: Callable[[WireClient], Awaitable[None]]) -> None:
    async def served() -> None:
        async with asyncio.timeout(60), mqtool.Broker() as broker:
            client = WireClient(broker.address)
            await test(client)
            await client.close()

    asyncio.run(served())


@pytest.mark.parametrize(("kind", "most"), [("TAG", MAX_OF_FILTER), ("SQL92", MAX_OF_SQL92)])
def test_a_filter_of_a_pull_or_a_pop_is_only_so_long(kind: str, most: int) -> None:
    async def test(client: WireClient) -> None:
        await client.send(b"one", 0, "T", pairs={"TAGS": "t"})
        short = " || ".join(["t", *("x" * 100 for _ in range(100))]) if kind == "TAG" else "TAGS = 't'"
        long = short + (" || " if kind == "TAG" else " OR ") + "x" * most
        pull: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1}
        pull |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "expressionType": kind}
        pop: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0, "maxMsgNums": 1, "invisibleTime": 9000}
        pop |= {"pollTime": 60_000, "bornTime": time.time_ns() // 1_000_000, "initMode": 0, "expType": kind}
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
            Heartbeat("c", (), tuple(consumer(f"G{number}") for number in range(MAX_GROUPS + 1))),
            "at most 256 groups",
        ),
        (Heartbeat("c", tuple(f"P{number}" for number in range(MAX_GROUPS + 1))), "at most 256 groups"),
        (
            Heartbeat(
                "c",
                (),
                (consumer("G", *(Subscription(f"T{number}", "*") for number in range(MAX_SUBSCRIPTIONS + 1))),),
            ),
            "at most 4,096 subscriptions",
        ),
        (
            Heartbeat("c", (), (consumer("G", Subscription("T", "x" * (MAX_OF_FILTER + 1))),)),
            "the filter for the topic [T] is longer than 16,384 characters",
        ),
    ],
)
def test_a_heartbeat_with_too_much_is_refused_and_nothing_of_it_is_taken(beat: Heartbeat, said: str) -> None:
    async def test(client: WireClient) -> None:
        before = await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        answer = await client.ask(RequestCode.HEART_BEAT, build_heartbeat(beat))
        assert (answer.code, said in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
        assert (await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body == before.body
        assert (await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")).code != 0

    on_broker(test)


def test_many_heartbeats_of_one_client_make_no_more_groups_than_one() -> None:
    async def test(client: WireClient) -> None:
        for first in range(0, MAX_GROUPS, 64):
            consumers = tuple(consumer(f"G{number}") for number in range(first, first + 64))
            await client.done(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", (), consumers)))
        answer = await client.ask(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", (), (consumer("one more"),))))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        await client.done(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", (), (consumer("G1"),))))

    on_broker(test)


def test_a_heartbeat_with_twenty_thousand_groups_makes_none() -> None:
    async def test(client: WireClient) -> None:
        await client.send(b"one", topic="T")
        before = await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        consumers = tuple(consumer(f"G{number}") for number in range(20_000))
        answer = await client.ask(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", (), consumers)))
        assert (answer.code, answer.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "a request without messages has a body of at most 1,048,576 bytes",
        )
        assert (await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body == before.body

    on_broker(test)


def lowered(**limits: Any) -> contextlib.ExitStack:
    """Have limits that take long to reach be lower, wherever they are looked at."""
    stack = contextlib.ExitStack()
    for name, value in limits.items():
        modules = [one for one in [*sys.modules.values()] if one.__name__.startswith("mqtool.") and hasattr(one, name)]
        assert modules, name
        for module in modules:
            stack.enter_context(mock.patch.object(module, name, value))
    return stack


@pytest.mark.parametrize("way", ["made", "sent to", "retry", "heartbeat"])
def test_so_many_topics_are_kept_and_no_more(way: str) -> None:
    async def test(client: WireClient) -> None:
        await client.send(b"first", topic="T0")
        there = int((await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).ext_fields["totalTopicNum"])

        async def make(number: int) -> RemotingCommand:
            name = f"T{number}"
            fields: dict[str, Any] = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2}
            fields |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "order": False}
            send: dict[str, Any] = {"producerGroup": "P", "topic": name, "defaultTopic": "TBW102", "queueId": 0}
            send |= {"defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "reconsumeTimes": 0}
            if way == "made":
                return await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
            if way == "heartbeat":
                beat = Heartbeat("c", (), (consumer(name),))
                return await client.ask(RequestCode.HEART_BEAT, build_heartbeat(beat))
            more = {"topic": f"%RETRY%{name}"} if way == "retry" else {}
            return await client.ask(RequestCode.SEND_MESSAGE, b"body", **(send | more))

        with lowered(MAX_TOPICS=there + 3):
            answers = [await make(number) for number in range(1, 6)]
            again = await make(1)
        assert [one.code == 0 for one in answers] == [True, True, True, False, False]
        assert f"the maximum is {there + 3}" in (answers[-1].remark or "")
        assert again.code == 0
        await client.send(b"still", topic="T0")

    on_broker(test)


def test_so_many_groups_modes_locks_and_offsets_are_kept_and_no_more() -> None:
    async def test(client: WireClient) -> None:
        await client.send(b"first", topic="T")
        for one in ("G", "H"):
            await client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, build_body({"groupName": one}))

        async def group(name: str) -> RemotingCommand:
            return await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, build_body({"groupName": name}))

        async def mode(name: str) -> RemotingCommand:
            body = {"topic": "T", "consumerGroup": name, "mode": "POP", "popShareQueueNum": 0}
            return await client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, build_body(body))

        async def lock(*queues: int) -> RemotingCommand:
            mq_set = [{"topic": "T", "brokerName": "b", "queueId": queue} for queue in queues]
            body = build_body({"consumerGroup": "G", "clientId": "c", "mqSet": mq_set})
            return await client.ask(RequestCode.LOCK_BATCH_MQ, body)

        async def commit(name: str, queue: int) -> RemotingCommand:
            fields: dict[str, Any] = {"consumerGroup": name, "topic": "T", "queueId": queue, "commitOffset": 1}
            return await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)

        with lowered(MAX_GROUPS_IN_ALL=12, MAX_MODES=1, MAX_LOCKS=2, MAX_OFFSETS=2):
            codes = [
                [(await group(f"new{number}")).code for number in range(12)][-2:],
                [(await mode("G")).code, (await mode("H")).code, (await mode("G")).code],
                [(await lock(0, 1)).code, (await lock(2)).code, (await lock(0)).code],
                [(await commit("G", 0)).code, (await commit("G", 1)).code, (await commit("H", 0)).code],
                [(await commit("G", 1)).code],
            ]
            assert codes == [[1, 1], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0]]
        await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="H", topic="T", queueId=0, commitOffset=1)

    on_broker(test)


def test_a_reset_and_pops_of_all_queues_keep_within_the_limit_of_offsets_too() -> None:
    async def test(client: WireClient) -> None:
        await client.make_topic("T", readQueueNums=4, writeQueueNums=4)
        await client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, build_body({"groupName": "G"}))
        for queue in range(4):
            await client.send(b"one", queue, "T")
        await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=0)
        reset: dict[str, Any] = {"group": "G", "topic": "T", "timestamp": 0, "isForce": True}
        pop: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "maxMsgNums": 32, "invisibleTime": 60_000}
        pop |= {"pollTime": 0, "initMode": 0, "order": False, "expType": "TAG", "exp": "*"}

        async def popped(queue: int) -> RemotingCommand:
            now = time.time_ns() // 1_000_000
            return await client.ask(RequestCode.POP_MESSAGE, **pop, queueId=queue, bornTime=now)

        with lowered(MAX_OFFSETS=2):
            refused = await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
            assert (refused.code, "the maximum is 2" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
            assert len([*messages_in((await popped(-1)).body)]) == 2
            refused = await popped(3)
            assert (refused.code, "the maximum is 2" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        assert len([*messages_in((await popped(-1)).body)]) == 2  # those that waited are not lost
        await client.done(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)

    on_broker(test)


def test_members_that_fall_silent_together_are_one_change_of_their_group() -> None:
    async def test() -> None:
        now = 1_700_000_000_000
        async with asyncio.timeout(60), mqtool.Broker(clock=lambda: now) as broker:
            told: list[RemotingCommand] = []
            members = [RemotingClient([broker.address], on_request=told.append) for _ in range(5)]

            async def beat(member: int) -> None:
                body = build_heartbeat(Heartbeat(f"c{member}", (), (consumer("G"),)))
                assert (await members[member].invoke(RemotingCommand(RequestCode.HEART_BEAT, body=body))).code == 0

            for member in range(5):
                await beat(member)
            for one in members:  # an answer comes after what was sent before it
                await one.invoke(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
            told.clear()
            for _ in range(3):
                now += 60_000
                await beat(0)
            for one in members:
                await one.invoke(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
            assert [command.code for command in told] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
            for one in members:
                await one.close()

    asyncio.run(test())


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_a_message_whose_time_is_no_number_or_beyond_all_is_refused_not_delivered_at_once(name: str) -> None:
    async def test(client: WireClient) -> None:
        send: dict[str, Any] = {"producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "queueId": 0}
        send |= {"defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "reconsumeTimes": 0}
        for text in ("soon", "1_0", "9" * 18, "9" * 19, "9" * 30):
            answer = await client.ask(RequestCode.SEND_MESSAGE, b"one", **send, properties=f"{name}\x01{text}\x02")
            said = "its delivery time is not a number or too far ahead" in (answer.remark or "")
            assert (answer.code, said) == (ResponseCode.MESSAGE_ILLEGAL, True)
        await client.send(b"now", 0, "T", pairs={name: "-1"})
        assert [one.body for one in await client.messages("T")] == [b"now"]

    on_broker(test)


async def send_longest(client: WireClient, send: dict[str, Any], properties: str) -> None:
    """Send a message whose properties are as long as the broker accepts."""
    size = 32_767
    while True:
        text = f"{properties}k\x01{'x' * size}\x02"
        if not (await client.ask(RequestCode.SEND_MESSAGE, b"one", **send, properties=text)).code:
            return
        size -= 1


@pytest.mark.parametrize("wait", ["TIMER_DELAY_SEC\x015\x02", "DELAY\x011\x02"], ids=["time", "level"])
def test_what_was_acknowledged_and_waits_is_delivered_however_long_it_is(wait: str) -> None:
    async def test() -> None:
        clock = mqtool.VirtualClock()
        async with asyncio.timeout(60), mqtool.Broker(clock=clock) as broker:
            client = WireClient(broker.address)
            send: dict[str, Any] = {"producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "queueId": 0}
            send |= {"defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "reconsumeTimes": 0}
            sent = []
            for size in range(32_500, 32_768):
                body = b"x" * 2000 + b"%d" % size
                properties = f"UNIQ_KEY\x01{size}\x02{wait}k\x01{'x' * size}\x02"
                answer = await client.ask(RequestCode.SEND_MESSAGE, body, **send, properties=properties)
                if answer.code:
                    assert (answer.code, "32767 bytes" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
                    break
                sent.append(body)
            await client.done(RequestCode.UPDATE_BROKER_CONFIG, b"maxMessageSize=1000\n")
            refused = await client.ask(RequestCode.SEND_MESSAGE, sent[0], **send, properties="")
            assert refused.code == ResponseCode.MESSAGE_ILLEGAL
            for _ in range(len(sent)):  # some are delivered in each turn
                clock.advance(6)
            assert [one.body for one in await client.messages("T")] == sent
            await client.close()

    asyncio.run(test())


def test_the_producer_of_a_half_message_with_the_longest_properties_is_asked_for_it() -> None:
    async def test() -> None:
        clock = mqtool.VirtualClock()
        settings: dict[str, str | int | bool] = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
        async with asyncio.timeout(60), mqtool.Broker(clock=clock, settings=settings) as broker:
            client = WireClient(broker.address)
            await client.done(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", ("P",))))
            send: dict[str, Any] = {"producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "queueId": 0}
            send |= {"defaultTopicQueueNums": 4, "sysFlag": 4, "bornTimestamp": clock(), "flag": 0, "reconsumeTimes": 0}
            await send_longest(client, send, "UNIQ_KEY\x01u\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02")
            for _ in range(2):
                clock.advance(5)
                check = await client.checks.get()
            half = {"producerGroup": "P", "msgId": "u", "transactionId": "u"}
            half |= {name: check.ext_fields[name] for name in ("tranStateTableOffset", "commitLogOffset")}
            await client.end(half, 8)
            assert [one.body for one in await client.messages("T")] == [b"one"]
            await client.close()

    asyncio.run(test())


def test_a_message_that_is_popped_again_may_have_the_longest_properties() -> None:
    async def test() -> None:
        clock = mqtool.VirtualClock()
        async with asyncio.timeout(60), mqtool.Broker(clock=clock) as broker:
            client = WireClient(broker.address)
            send: dict[str, Any] = {"producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "queueId": 0}
            send |= {"defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "reconsumeTimes": 0}
            await send_longest(client, send, "UNIQ_KEY\x01u\x02")
            for _ in range(3):
                clock.advance(5)
                fields: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 32}
                fields |= {"invisibleTime": 2000, "pollTime": 0, "bornTime": clock(), "initMode": 0, "order": False}
                answer = await client.ask(RequestCode.POP_MESSAGE, **fields, expType="TAG", exp="*")
                assert [one.body for one in messages_in(answer.body)] == [b"one"]
            await client.close()

    asyncio.run(test())


def test_what_clients_say_of_themselves_is_only_so_long() -> None:
    async def test(client: WireClient) -> None:
        long = "x" * 300
        for beat in (
            Heartbeat(long),
            Heartbeat("c", (long,)),
            Heartbeat("c", (), (consumer("G", Subscription(long, "*")),)),
        ):
            answer = await client.ask(RequestCode.HEART_BEAT, build_heartbeat(beat))
            assert (answer.code, "longer than 255" in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
        lock = {"consumerGroup": long, "clientId": "c", "mqSet": [{"topic": "T", "brokerName": "b", "queueId": 0}]}
        assert (await client.ask(RequestCode.LOCK_BATCH_MQ, build_body(lock))).code == 1
        settings = {"groupName": "G", "whatever": "x" * 20_000}
        assert (await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, build_body(settings))).code == 1
        with lowered(MAX_MEMBERS=2, MAX_OF_SUBSCRIPTIONS=100):
            beats = [
                Heartbeat("c", ("P1", "P2")),
                Heartbeat("c", ("P1", "P2", "P3")),
                Heartbeat("c", ("P1",)),
            ]
            codes = [(await client.ask(RequestCode.HEART_BEAT, build_heartbeat(one))).code for one in beats]
            assert codes == [0, ResponseCode.INVALID_PARAMETER, 0]
        with lowered(MAX_OF_SUBSCRIPTIONS=100):
            beats = [Heartbeat("c", (), (consumer("G", Subscription("T", size * "x")),)) for size in (90, 110, 90)]
            codes = [(await client.ask(RequestCode.HEART_BEAT, build_heartbeat(one))).code for one in beats]
            assert codes == [0, ResponseCode.INVALID_PARAMETER, 0]

    on_broker(test)


def test_the_text_of_an_access_key_is_kept_only_where_it_means_something(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text("globalWhiteRemoteAddresses: [127.0.0.1]\naccounts: []\n")
    guarded = BrokerSettings(acl_enabled=True, acl_file=str(tmp_path / "plain_acl.yml"))
    body = build_heartbeat(Heartbeat("c", ("P",)))

    async def served(settings: BrokerSettings) -> tuple[int, set[str]]:
        config = BrokerConfig(tmp_path / "store", settings=settings)
        async with asyncio.timeout(60), Cluster(NameServerConfig(), [config]) as cluster:
            [rules] = cluster.brokers
            client = WireClient(rules.address)
            code = (await client.ask(RequestCode.HEART_BEAT, body, AccessKey="x" * 300)).code
            identities = {one.session.identity for one in rules.clients.producers("P")}
            await client.close()
        return code, identities

    assert asyncio.run(served(BrokerSettings())) == (0, {""})
    assert asyncio.run(served(guarded)) == (1, set())


def test_so_many_timer_messages_and_open_transactions_wait_and_no_more() -> None:
    async def test(client: WireClient) -> None:
        for limit, pairs in (
            ({"MAX_TIMERS": 2}, {"TIMER_DELAY_SEC": "100"}),
            ({"MAX_OPEN": 2}, {"TRAN_MSG": "true", "PGROUP": "P"}),
        ):
            with lowered(**limit):
                for _ in range(2):
                    await client.send(b"waits", topic="T", pairs=pairs)
                with pytest.raises(AssertionError):
                    await client.send(b"one more", topic="T", pairs=pairs)
                await client.send(b"plain", topic="T")

    on_broker(test)


def test_so_many_queues_forbidden_topics_and_figures_are_kept_and_no_more() -> None:
    async def test(client: WireClient) -> None:
        await client.make_topic("T", readQueueNums=4, writeQueueNums=4)
        await client.make_topic("U")
        await client.send(b"one", 0, "T")

        async def send(queue: int) -> RemotingCommand:
            fields: dict[str, Any] = {"producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "queueId": queue}
            fields |= {"defaultTopicQueueNums": 4, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "reconsumeTimes": 0}
            return await client.ask(RequestCode.SEND_MESSAGE, b"body", **fields)

        async def forbid(topic: str) -> RemotingCommand:
            fields: dict[str, Any] = {"group": "G", "topic": topic, "readable": False}
            return await client.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, **fields)

        async def count(group: str) -> RemotingCommand:
            await client.ask(RequestCode.PULL_MESSAGE, **{**PULL, "consumerGroup": group})
            names: dict[str, Any] = {"statsName": "GROUP_GET_NUMS", "statsKey": f"T@{group}"}
            return await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, **names)

        with lowered(MAX_QUEUES_IN_ALL=2, MAX_FORBIDDEN=1, MAX_COUNTED=1):
            assert [(await send(queue)).code for queue in (0, 1, 2, 1)] == [0, 0, 1, 0]
            assert [(await forbid(topic)).code for topic in ("T", "U", "T")] == [0, 1, 0]
            assert [(await count(group)).code for group in ("R", "S", "R")] == [0, 1, 0]
        assert (await send(2)).code == 0

    on_broker(test)


def test_what_is_counted_of_pulls_and_of_messages_sent_back_is_limited_too() -> None:
    async def test(client: WireClient) -> None:
        await client.make_topic("T", readQueueNums=2, writeQueueNums=2)
        with lowered(MAX_OFFSETS=1):
            for queue in (0, 1, 0):
                await client.send(b"one", queue, "T")
                pull = {**PULL, "queueId": queue, "maxMsgNums": 32}
                assert (await client.ask(RequestCode.PULL_MESSAGE, **pull)).code == 0
        told = (await client.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="G", topic="T")).body.decode()
        assert sorted(re.findall(r'"pullOffset":(\d+)', told)) == ["0", "2"]

        for topic, code in (("R" * 255, 0), ("R" * 256, 1)):  # the topic is a property of the message
            sent = await client.send(b"one", 0, "T", pairs={"RETRY_TOPIC": topic})
            back: dict[str, Any] = {"group": "G", "offset": int(sent["msgId"][-16:], 16), "delayLevel": 0}
            await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, **back, originMsgId="", originTopic="T")
            names: dict[str, Any] = {"statsName": "SNDBCK_PUT_NUMS", "statsKey": f"{topic}@G"}
            assert (await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, **names)).code == code

    on_broker(test)


def test_so_many_pulls_and_pops_wait_and_others_are_answered_at_once() -> None:
    async def test(client: WireClient) -> None:
        await client.make_topic("T")
        pull = {**PULL, "sysFlag": 6, "suspendTimeoutMillis": 30_000}
        pop: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0, "maxMsgNums": 1, "invisibleTime": 9000}
        pop |= {"pollTime": 15_000, "bornTime": time.time_ns() // 1_000_000, "initMode": 0, "expType": "TAG"}
        kinds = {"PULLS": waiting_room.PULLS._replace(most=2), "POPS": waiting_room.POPS._replace(most_of_key=2)}
        with lowered(**kinds):
            for code, fields, said in (
                (RequestCode.PULL_MESSAGE, pull, ResponseCode.PULL_NOT_FOUND),
                (RequestCode.POP_MESSAGE, {**pop, "exp": "*"}, ResponseCode.POLLING_FULL),
            ):
                asked = [asyncio.ensure_future(client.ask(code, **fields)) for _ in range(3)]
                assert (await asked[2]).code == said
                assert not any(one.done() for one in asked[:2])
                for _ in range(2):
                    await client.send(b"one", topic="T")
                assert [(await one).code for one in asked[:2]] == [0, 0]
                await client.done(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
                await client.make_topic("T")

    on_broker(test)


def test_a_question_for_a_key_is_answered_with_so_many_messages() -> None:
    async def test(client: WireClient) -> None:
        for _ in range(70):
            await client.send(b"one", topic="T", pairs={"UNIQ_KEY": "same", "KEYS": "k"})
        fields: dict[str, Any] = {"topic": "T", "maxNum": 1000, "beginTimestamp": 0, "endTimestamp": 1 << 62}
        found = await client.ask(RequestCode.QUERY_MESSAGE, **fields, key="k")
        assert len([*messages_in(found.body)]) == 64
        found = await client.ask(RequestCode.QUERY_MESSAGE, **fields, key="same", _UNIQUE_KEY_QUERY=True)
        assert len([*messages_in(found.body)]) == 32

    on_broker(test)


def test_what_a_question_names_many_times_is_told_once_and_of_so_many_queues_at_most() -> None:
    async def test(client: WireClient) -> None:
        await client.make_topic("T", readQueueNums=4, writeQueueNums=4)
        await client.make_topic("U", readQueueNums=3, writeQueueNums=3)
        for topic in "TU":
            await client.ask(RequestCode.PULL_MESSAGE, **{**PULL, "topic": topic})
            commit: dict[str, Any] = {"consumerGroup": "G", "topic": topic, "queueId": 0, "commitOffset": 0}
            await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, **commit)
        names = ";".join(["T"] * (MAX_HEADER // 2 - 500))  # of a longer header nothing is read
        with mock.patch.object(Statistics, "_progress", autospec=True, side_effect=Statistics._progress) as progress:
            answer = await client.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="G", topicList=names)
            assert [len(call.args[2]) for call in progress.call_args_list] == [1]
        assert (answer.code, answer.body.count(b'"brokerOffset"')) == (0, 4)

        async def code(**fields: Any) -> int:
            return (await client.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="G", **fields)).code

        async def code_of_all() -> int:
            return (await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False)).code

        with lowered(MAX_QUEUES_OF_ANSWER=6):
            assert (await code(topicList="T;T"), await code(topicList="T;U"), await code(), await code_of_all()) == (
                0,
                ResponseCode.SYSTEM_ERROR,
                ResponseCode.SYSTEM_ERROR,
                ResponseCode.SYSTEM_ERROR,
            )
        assert (await code(topicList="T;U"), await code(), await code_of_all()) == (0, 0, 0)

    on_broker(test)


def test_a_list_to_delete_is_looked_up_once_however_long_it_is() -> None:
    async def test(client: WireClient) -> None:
        names = [f"T{number}" for number in range(2000)]
        more: list[dict[str, Any]] = [
            {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            for name in (*names, "Kept", "%RETRY%G_T1", "%RETRY%G_Kept", "%RETRY%T1", "%RETRY%_T1")
        ]
        topics = build_body({"topicConfigList": more})
        groups = build_body({"groupConfigList": [{"groupName": name} for name in (*names, "Kept")]})
        await client.done(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, topics)
        await client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, groups)
        for group, topic in (("Kept", "Kept"), ("T1", "Kept"), ("Kept", "T1")):
            commit: dict[str, Any] = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": 0}
            await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, **commit)
        await client.send(b"one", 0, "T1")

        gone = [*(f"unknown{number}" for number in range(10_000)), *(["again"] * 10_000), *names]
        started = time.process_time()
        await client.done(RequestCode.DELETE_TOPIC_IN_BROKER_LIST, build_body({"topicList": gone}))
        await client.done(
            RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST, build_body({"groupNameList": gone, "cleanOffset": True})
        )
        assert time.process_time() - started < 10  # half a minute if each is looked up in each table
        table = parse_body((await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body)["topicConfigTable"]
        left = {name for name in table if name.startswith(("T", "Kept", "%RETRY%")) and name != "TBW102"}
        assert left == {"Kept", "%RETRY%G_Kept", "%RETRY%T1", "%RETRY%_T1"}
        table = parse_body((await client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)
        assert table["subscriptionGroupTable"].keys() & {"Kept", *names} == {"Kept"}
        offsets = parse_body((await client.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)["offsetTable"]
        assert offsets.keys() == {"Kept@Kept"}

    on_broker(test)


def test_what_is_too_long_for_a_setting_a_topic_or_a_header_is_refused() -> None:
    async def test(client: WireClient) -> None:
        answer = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"regionId=" + b"x" * 300)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        with pytest.raises(AssertionError, match="take more than 16,384 characters"):
            await client.make_topic("T", attributes=f"+message.type={'x' * 20_000}")
        with pytest.raises(MqtoolError):  # the connection is closed
            await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO, long="x" * MAX_HEADER)
        await client.make_topic("T")

    on_broker(test)


def test_a_name_server_keeps_only_so_many_brokers_and_topics() -> None:
    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker() as broker:
            client = RemotingClient([broker.name_server_address])

            async def register(name: str, address: str, *topics: str, servers: int = 0) -> int:
                command = registration(name, address, topics, [f"s{one}" for one in range(servers)])
                return (await client.invoke(command)).code

            assert await register("a", "h:1", "T1", "T2") == 0
            assert await register("a" * 300, "h:1", "T1", "T2") == 1
            assert await register("b", "h:1", "T1" * 200, "T2") == 1
            assert await register("b", "h:1", "T1", "T2", servers=65) == 1
            long = registration("b", "h:2", ())
            long.body = bytes(MAX_OF_REGISTRATION + 1)
            assert (await client.invoke(long)).code == ResponseCode.INVALID_PARAMETER
            with lowered(MAX_BROKERS=3):
                assert await register("b", "h:2", "T1", "T2") == 0
                assert await register("c", "h:3", "T1", "T2") == 1
                assert await register("c", "h:1", "T1", "T2") == 1
                assert await register("b", "h:2", "T1", "T3") == 0
            with lowered(MAX_ENTRIES=4):
                assert await register("a", "h:1", *(f"T{one}" for one in range(50))) == 1
                producer = WireClient(broker.address)
                await producer.send(b"one", topic="Own")  # its own broker has room
                await producer.close()
            answer = await client.invoke(
                RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "Own"})
            )
            assert answer.code == 0
            await client.close()

    asyncio.run(test())


def test_what_a_name_server_keeps_of_a_broker_goes_with_its_connection_wherever_that_broker_has_moved() -> None:
    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker() as broker:
            with lowered(MAX_BROKERS=4):
                for number in range(4):
                    client = RemotingClient([broker.name_server_address])
                    moves = [("a", f"h:{number}", "C"), ("a", f"h:{number}0", "C"), ("a", f"h:{number}0", f"C{number}")]
                    for name, address, cluster in moves:
                        command = registration(name, address, ["T1", "T2"])
                        command.ext_fields["clusterName"] = cluster
                        answer = await client.invoke(command)
                        assert (answer.code, answer.remark) == (0, None), (number, address, cluster)
                    await client.close()

            client = RemotingClient([broker.name_server_address])
            # An address is that of a broker as long as one is there; what is left of it is no other's.
            for name in ("a", "b"):
                await client.invoke(registration(name, "h:1", [f"{name}1", f"{name}2"]))
            fields = {"brokerName": "a", "brokerAddr": "h:1", "clusterName": "C", "brokerId": "0"}
            await client.invoke(RemotingCommand(RequestCode.UNREGISTER_BROKER, ext_fields=fields))
            await client.close()
            client = RemotingClient([broker.name_server_address])
            told = await client.invoke(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
            assert parse_cluster_info(told.body).clusters == {"DefaultCluster": ["broker-a"]}
            for topic in ("T1", "a1", "b1"):
                ask = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})
                assert (await client.invoke(ask)).code == ResponseCode.TOPIC_NOT_EXIST
            await client.close()

    asyncio.run(test())


def test_a_name_server_keeps_only_so_many_kv_configs() -> None:
    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker() as broker:
            client = RemotingClient([broker.name_server_address])

            async def put(namespace: str, key: str, value: str) -> int:
                fields = {"namespace": namespace, "key": key, "value": value}
                command = RemotingCommand(RequestCode.PUT_KV_CONFIG, ext_fields=fields)
                return (await client.invoke(command, timeout_ms=60_000)).code

            assert await put("N", "k", "x" * (MAX_OF_KV + 1)) == ResponseCode.INVALID_PARAMETER
            codes = await asyncio.gather(*(put("N", f"k{number}", "v") for number in range(MAX_KV - 1)))
            assert {*codes} == {0}
            assert await put("N", "one more", "v") == ResponseCode.INVALID_PARAMETER
            assert await put("another", "one more", "v") == ResponseCode.INVALID_PARAMETER
            assert await put("N", "k1", "changed") == 0
            await client.close()

    asyncio.run(test())


@pytest.mark.parametrize("in_order", [False, True])
def test_nobody_hides_messages_for_longer_than_a_timer_may_wait(in_order: bool) -> None:
    async def test(client: WireClient) -> None:
        for _ in range(2):
            await client.send(b"one", topic="T")
        longest = 259_200_000
        pop: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0, "maxMsgNums": 1, "pollTime": 0}
        pop |= {"bornTime": int(time.time() * 1000), "initMode": 0, "order": in_order, "expType": "TAG", "exp": "*"}
        for hidden in (longest + 1, 1 << 62):
            refused = await client.ask(RequestCode.POP_MESSAGE, **pop, invisibleTime=hidden)
            said = f"{hidden} ms is longer than timerMaxDelaySec" in (refused.remark or "")
            assert (refused.code, said) == (ResponseCode.INVALID_PARAMETER, True)
        [(_, given)] = await client.pop("T", "G", 1, longest, in_order=in_order)
        change = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        refused = await client.ask(change, **given, invisibleTime=longest + 1)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        await client.done(change, **given, invisibleTime=longest)

    on_broker(test)


def test_half_messages_are_put_aside_also_where_there_are_as_many_topics_as_may_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        clock = mqtool.VirtualClock()
        settings: dict[str, str | int | bool] = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
        settings |= {"transactionCheckMax": 1}
        async with asyncio.timeout(60), mqtool.Broker(clock=clock, settings=settings) as broker:
            client = WireClient(broker.address)
            await client.send(b"one", topic="T", pairs={"TRAN_MSG": "true", "PGROUP": "P"}, bornTimestamp=clock())
            with lowered(MAX_TOPICS=1):
                for _ in range(3):
                    clock.advance(5)
            assert [one.body for one in await client.messages("TRANS_CHECK_MAX_TIME_TOPIC")] == [b"one"]
            await client.close()

    asyncio.run(test())
    assert not caplog.records


def test_topics_with_fewer_than_no_queues_and_rights_that_are_none_are_refused() -> None:
    async def test(client: WireClient) -> None:
        fields: dict[str, Any] = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2}
        fields |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "order": False}
        for wrong in ({"readQueueNums": -1}, {"writeQueueNums": -1}, {"perm": -1}, {"perm": 999}):
            refused = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **(fields | wrong))
            said = "fewer than 0 queues, or a perm that is not in 0..15" in (refused.remark or "")
            assert (refused.code, said) == (ResponseCode.INVALID_PARAMETER, True)
        for right in ({"readQueueNums": 0, "writeQueueNums": 0}, {"perm": 0}, {"perm": 7}):
            await client.done(RequestCode.UPDATE_AND_CREATE_TOPIC, **(fields | right))

    on_broker(test)


def test_what_is_sent_back_goes_to_a_queue_that_its_group_reads() -> None:
    async def test() -> None:
        clock = mqtool.VirtualClock()
        async with asyncio.timeout(60), mqtool.Broker(clock=clock) as broker:
            client = WireClient(broker.address)
            sent = [await client.send(b"%d" % number, topic="T") for number in range(4)]
            for count in (1, 5):  # the topic was made when there was one
                group = build_body({"groupName": "G", "retryQueueNums": count})
                await client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
                await client.done(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", (), (consumer("G"),))))
            for one in sent:
                at = int(one["msgId"][-16:], 16)
                await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, offset=at, group="G", delayLevel=1)
            clock.advance(2)
            assert [one.body for one in await client.messages("%RETRY%G")] == [b"0", b"1", b"2", b"3"]
            await client.close()

    asyncio.run(test())
