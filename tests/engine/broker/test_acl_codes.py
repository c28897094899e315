"""Every request code where access is controlled, through a socket: nothing is open that has no row."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

import mqtool
from mqtool.engine.broker.processors.needs import NEEDS
from mqtool.engine.remoting.clock import wall_clock
from mqtool.formats.bodies import ConsumerData, Heartbeat, Subscription, build_body, build_heartbeat
from mqtool.formats.codes import RequestCode
from mqtool.formats.properties import build_properties
from mqtool.formats.recall import build_handle, parse_handle
from mqtool.formats.signing import Credentials
from tests.engine.broker.code_table import served
from tests.wire_client import PRODUCERS, WireClient

ACCOUNTS = """\
accounts:
  - {accessKey: administrator, secretKey: "12345678", admin: true}
  - {accessKey: nothing, secretKey: "12345678"}
  - {accessKey: everything, secretKey: "12345678", defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
  - {accessKey: subscriber, secretKey: "12345678", topicPerms: [T=SUB], defaultGroupPerm: SUB}
  - {accessKey: publisher, secretKey: "12345678", topicPerms: [T=PUB]}
  - {accessKey: another, secretKey: "12345678", topicPerms: [U=PUB|SUB], defaultGroupPerm: SUB}
"""
REFUSED = "org.apache.rocketmq.acl.common.AclException: "
QUEUE = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
CONSUMER = ConsumerData("G", "CONSUME_PASSIVELY", "CLUSTERING", "", (Subscription("T", "*"),))
BODIES: dict[int, bytes] = {
    RequestCode.HEART_BEAT: build_heartbeat(Heartbeat("c", (), (CONSUMER,))),
    RequestCode.LOCK_BATCH_MQ: build_body({"consumerGroup": "G", "clientId": "c", "mqSet": [QUEUE]}),
    RequestCode.UNLOCK_BATCH_MQ: build_body({"consumerGroup": "G", "clientId": "c", "mqSet": [QUEUE]}),
    RequestCode.CHECK_CLIENT_CONFIG: build_body({"clientId": "c", "group": "G", "subscriptionData": {"topic": "T"}}),
    RequestCode.QUERY_ASSIGNMENT: build_body({"topic": "T", "consumerGroup": "G", "clientId": "c"}),
    RequestCode.BATCH_ACK_MESSAGE: orjson.dumps({"acks": [{"c": "G", "t": "T"}]}),
}
"""Of requests that say there what they are about."""
_SENT = {"defaultTopic": "TBW102", "defaultTopicQueueNums": 1, "sysFlag": 0, "bornTimestamp": 0, "flag": 0}
TELL_NOTHING = {RequestCode.END_TRANSACTION}
"""Requests that a broker need not answer."""


def on_guarded_broker(
    folder: Path, test: Callable[[Callable[[str], WireClient]], Awaitable[None]], clock: Callable[[], int] = wall_clock
) -> None:
    """Run a test with a broker that has these accounts, and what makes a client of an account."""
    path = folder / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    settings: dict[str, str | int | bool] = {"aclEnable": True, "rocketmq.acl.plain.file": str(path)}
    settings |= {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "recallMessageEnable": True}

    async def guarded() -> None:
        async with asyncio.timeout(60), mqtool.Broker(folder / "store", settings=settings, clock=clock) as broker:
            clients: list[WireClient] = []

            def client(key: str) -> WireClient:
                clients.append(WireClient(broker.address, Credentials(key, "12345678")))
                return clients[-1]

            await test(client)
            for one in clients:
                await one.close()

    asyncio.run(guarded())


async def fields_of_everything(client: WireClient) -> dict[str, Any]:
    """Return fields by which each request is about the topic T, the group G, and a message that is there."""
    await client.make_topic("T")
    sent = await client.send(b"secret", topic="T")
    half = await client.prepare(b"half")
    fields: dict[str, Any] = {"topic": "T", "b": "T", "consumerGroup": "G", "group": "G", "offset": 0, "key": "k"}
    fields |= {"msgId": sent["msgId"], "delayLevel": 0, "clientID": "c", "clientId": "c", "queueId": 0, **half}
    return {**fields, "msgId": sent["msgId"], "commitOrRollback": 8}


def test_every_request_that_is_served_has_a_row() -> None:
    _, by_broker = served()
    assert NEEDS.keys() == by_broker


def test_an_account_that_may_do_nothing_is_refused_whatever_it_asks_and_changes_nothing(tmp_path: Path) -> None:
    async def test(client: Callable[[str], WireClient]) -> None:
        admin, nothing = client("administrator"), client("nothing")
        fields = await fields_of_everything(admin)
        before = [(await admin.ask(code)).body for code in (21, 201, 43, 26)]
        for code in (*RequestCode, 9999):
            answer = await nothing.ask(code, BODIES.get(code, b""), **fields)
            assert answer.code == 1, code
            assert (answer.remark or "").startswith(REFUSED), (code, answer)
            assert not answer.body
        assert [(await admin.ask(code)).body for code in (21, 201, 43, 26)] == before

    on_guarded_broker(tmp_path, test, mqtool.VirtualClock())  # no half message is checked meanwhile


def test_an_administrator_is_refused_nothing(tmp_path: Path) -> None:
    async def test(client: Callable[[str], WireClient]) -> None:
        admin = client("administrator")
        fields = await fields_of_everything(admin)
        for code in {*RequestCode, 9999} - TELL_NOTHING:
            answer = await admin.ask(code, BODIES.get(code, b""), **fields)
            assert REFUSED not in (answer.remark or ""), (code, answer)

    on_guarded_broker(tmp_path, test)


def test_who_may_read_and_write_all_topics_is_still_no_administrator(tmp_path: Path) -> None:
    async def test(client: Callable[[str], WireClient]) -> None:
        fields = await fields_of_everything(client("administrator"))
        everything = client("everything")
        refused = set()
        for code in {*NEEDS} - TELL_NOTHING:
            answer = await everything.ask(code, BODIES.get(code, b""), **fields)
            if REFUSED in (answer.remark or ""):
                assert "Need admin permission" in (answer.remark or "")
                refused.add(code)
        assert refused >= {18, 5002, 225, 5003, 353, 314, 316, 329, 26, 21, 43, 201}
        assert not refused & {10, 310, 320, 11, 361, 12, 33, 36, 14, 15, 34, 35, 38, 41, 42, 200050, 200051, 200052}

    on_guarded_broker(tmp_path, test)


def test_who_may_not_send_to_a_topic_recalls_none_of_its_messages_however_a_recall_is_written(tmp_path: Path) -> None:
    clock = mqtool.VirtualClock(now=1_700_000_000_000)

    async def test(client: Callable[[str], WireClient]) -> None:
        admin, another = client("administrator"), client("another")
        for topic in ("T", "U"):
            await admin.make_topic(topic)
        deliver = clock() + 9500
        pairs = {"TIMER_DELIVER_MS": str(deliver), "UNIQ_KEY": "K"}
        await admin.send(b"plain", 0, "T")
        handle = parse_handle((await admin.send(b"secret", 0, "T", pairs=pairs))["recallHandle"])
        recall = "TIMER_DEL_UNIQKEY\x01T+K\x02"
        for name in ("TIMER_DEL_UNIQKEY", "TIMER_DEL\0_UNIQKEY", "\0TIMER_DEL_UNIQKEY", f"a\x01b\x02{recall}c"):
            properties = build_properties({name: "T+K", "TIMER_DELIVER_MS": str(deliver), "UNIQ_KEY": "L"}).decode()
            fields: dict[str, Any] = {"topic": "U", "queueId": 0, "producerGroup": PRODUCERS, "properties": properties}
            await another.ask(RequestCode.SEND_MESSAGE, b"0", **_SENT, **fields)
        for first, last in (("T", "U"), ("U", "T")):  # one that was consumed before: its properties are written again
            properties = f"POP_CK\x01c\x02TIMER_DEL_UNIQKEY\x01{first}+K\x02\0TIMER_DEL_UNIQKEY\x01{last}+K\x02"
            properties += build_properties({"TIMER_DELIVER_MS": str(deliver), "UNIQ_KEY": "L"}).decode()
            fields = {"topic": "U", "queueId": 0, "producerGroup": PRODUCERS, "properties": properties}
            await another.ask(RequestCode.SEND_MESSAGE, b"0", **_SENT, **fields)
        handle = handle._replace(topic="U")
        for key, group in (
            (f"x\x02{recall}", "P"),
            ("x", f"P\x02{recall}"),
            ("x", f"P\x02{recall}".replace("_", "\0_")),
        ):
            fields = {
                "topic": "U",
                "recallHandle": build_handle(handle._replace(unique_key=key)),
                "producerGroup": group,
            }
            await another.ask(RequestCode.RECALL_MESSAGE, **fields)
        # In a batch no message asks for anything, until one is sent again.
        text = build_properties({"TIMER_DEL_UNIQKEY": "T+K", "TIMER_DELIVER_MS": str(deliver), "UNIQ_KEY": "L"})
        head = struct.pack(">5i", 22 + len(text), 0, 0, 0, 0) + struct.pack(">h", len(text))
        sent = await another.send(head + text, 0, "U", batch=True)
        back: dict[str, Any] = {
            "group": "G",
            "offset": int(sent["msgId"][-16:], 16),
            "originTopic": "U",
            "unitMode": False,
        }
        await another.done(RequestCode.CONSUMER_SEND_MSG_BACK, **back, delayLevel=-1, originMsgId=sent["msgId"])
        reader = client("subscriber")
        for group, name in ((f"G\x02{recall}", "b"), ("G", f"b\x02{recall}")):
            receipt = f"0 {deliver - 10_000} 10000 0 0 {name} 0 0"
            fields = {"consumerGroup": group, "topic": "T", "queueId": 0, "extraInfo": receipt, "offset": 0}
            await reader.ask(RequestCode.ACK_MESSAGE, **fields)
            await reader.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields, invisibleTime=2000)
        clock.advance(20)
        found = await admin.messages("T")
        assert [one.body for one in found] == [b"plain", b"secret"]

    on_guarded_broker(tmp_path, test, clock)


def test_only_a_producer_that_may_publish_to_the_topic_is_asked_for_its_half_messages(tmp_path: Path) -> None:
    async def test(client: Callable[[str], WireClient]) -> None:
        await client("administrator").make_topic("T")
        publisher, another = client("publisher"), client("another")
        for one in (another, publisher):
            await one.done(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", (PRODUCERS,))))
        pairs = {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
        for _ in range(4):
            await publisher.send(b"secret", 0, "T", sysFlag=4, pairs=pairs)
        for _ in range(4):
            await publisher.checks.get()
        assert another.checks.empty()

    on_guarded_broker(tmp_path, test)
