"""What a broker and a name server do not let clients do, through a socket."""

import asyncio
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.engine.broker.roles import check_roles
from mqtool.engine.broker.settings import BrokerSettings, Role
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.remoting.client import RemotingClient
from mqtool.errors import BadDataError, UsageError
from mqtool.formats.bodies import Heartbeat, build_heartbeat
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.recall import RecallHandle, build_handle
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.signing import Credentials
from tests.wire_client import WireClient

FIELDS: dict[str, Any] = {"producerGroup": "P", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0}
FIELDS |= {"sysFlag": 0, "bornTimestamp": 1, "flag": 0, "batch": False, "reconsumeTimes": 0}


def on_broker(test: Callable[[WireClient], Awaitable[None]], **settings: str | int | bool) -> None:
    async def served() -> None:
        async with asyncio.timeout(60), mqtool.Broker(settings=settings) as broker:
            client = WireClient(broker.address)
            await test(client)
            await client.close()

    asyncio.run(served())


@pytest.mark.parametrize(
    "topic",
    [
        "rmq_sys_wheel_timer",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
        "rmq_sys_REVIVE_LOG_another",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    ],
)
@pytest.mark.parametrize("batch", [False, True])
def test_nobody_writes_to_topics_that_the_broker_goes_by(topic: str, batch: bool) -> None:
    async def test(client: WireClient) -> None:
        fields = {**FIELDS, "topic": topic, "properties": "", "batch": batch}
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
            answer = await client.ask(code, b"forged", **fields)
            assert (answer.code, topic in (answer.remark or "")) == (ResponseCode.NO_PERMISSION, True)
        assert await client.messages(topic) == []

    on_broker(test)


def test_nothing_but_a_half_message_becomes_one_again_so_that_no_transaction_ends_in_a_topic_of_the_broker() -> None:
    async def test(client: WireClient) -> None:
        pairs = {"REAL_TOPIC": "rmq_sys_wheel_timer", "REAL_QID": "0", "TRAN_MSG": "", "PGROUP": "P"}
        sent = await client.send(b"forged", 0, "T", pairs=pairs)
        answer = await client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=sent["msgId"])
        assert (answer.code, "not a half message" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        assert await client.messages("RMQ_SYS_TRANS_HALF_TOPIC") == []

    on_broker(test)


@pytest.mark.parametrize(
    "topic",
    [
        "RMQ_SYS_TRACE_TOPIC",
        "TBW102",
        "BenchmarkTest",
        "%RETRY%G",
        "DefaultCluster_REPLY_TOPIC",
        "DefaultCluster",
        "broker-a",
        "Orders",
    ],
)
def test_clients_write_to_all_other_topics_of_the_broker(topic: str) -> None:
    async def test(client: WireClient) -> None:
        await client.send(b"one", 0, topic)
        assert [one.body for one in await client.messages(topic)] == [b"one"]

    on_broker(test, traceTopicEnable=True)


def test_nobody_recalls_what_pops_have_taken() -> None:
    async def test(client: WireClient) -> None:
        topic = "rmq_sys_REVIVE_LOG_DefaultCluster"
        at = int(time.time() + 60) * 1000
        handle = build_handle(RecallHandle(topic, "broker-a", at, "K"))
        answer = await client.ask(RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle, producerGroup="P")
        assert answer.code == ResponseCode.NO_PERMISSION

        await client.send(b"one", 0, "T")
        [(body, _)] = await client.pop("T", "G", 1, 3000)
        assert body == b"one"
        [point] = [one for one in await client.messages("rmq_sys_wheel_timer") if one.properties["REAL_TOPIC"] == topic]
        for name in (point.properties["UNIQ_KEY"], f"{topic}+{point.properties['UNIQ_KEY']}"):
            pairs = {"TIMER_DELIVER_MS": point.properties["TIMER_DELIVER_MS"], "TIMER_DEL_UNIQKEY": name}
            await client.send(b"recall", 0, "T", pairs=pairs)
        while not (again := await client.pop("T", "G", 1, 60_000)):
            await asyncio.sleep(0.05)
        assert [body for body, _ in again] == [b"one"]

    on_broker(test)


ACCOUNTS = """accounts:
- {accessKey: who-asks, secretKey: who-asks-secret, topicPerms: [Orders=PUB]}
- {accessKey: who-listens, secretKey: who-listens-secret, topicPerms: [Other=PUB]}
- {accessKey: who-replies, secretKey: who-replies-secret, topicPerms: [DefaultCluster_REPLY_TOPIC=PUB]}
"""


def test_a_reply_goes_to_no_other_account_that_takes_the_id_of_who_has_asked(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
        settings: dict[str, Any] = {"aclEnable": True, "rocketmq.acl.plain.file": str(tmp_path / "plain_acl.yml")}
        beat = RemotingCommand(RequestCode.HEART_BEAT, body=build_heartbeat(Heartbeat("an id", ("P",), ())))
        told: asyncio.Queue[str] = asyncio.Queue()

        async with asyncio.timeout(60), mqtool.Broker(settings=settings) as broker:

            def client(account: str, name: str) -> RemotingClient:
                credentials = Credentials(account, f"{account}-secret")
                return RemotingClient(
                    [broker.address], on_request=lambda _: told.put_nowait(name), credentials=credentials
                )

            asks, listens, replies = (
                client("who-asks", "asks"),
                client("who-listens", "listens"),
                client("who-replies", ""),
            )
            again = client("who-asks", "asks again")
            fields = {"topic": "DefaultCluster_REPLY_TOPIC", "properties": "REPLY_TO_CLIENT\x01an id\x02"}
            texts = {name: str(value).lower() for name, value in FIELDS.items()} | fields
            reply = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE, ext_fields=texts, body=b"reply")
            waiting: list[asyncio.Future[RemotingCommand]] = []
            for who, receiver in ((asks, "asks"), (listens, "asks"), (again, "asks again")):
                assert (await who.invoke(replace(beat))).code == 0
                waiting.append(asyncio.ensure_future(replies.invoke(replace(reply), timeout_ms=20_000)))
                assert await told.get() == receiver
            for one in (again, asks):
                await one.close()
            for answer in waiting:
                assert (await answer).code == ResponseCode.SYSTEM_ERROR  # they have gone without an answer
            assert (await listens.invoke(replace(beat))).code == 0  # by now the id is nobody's
            last = asyncio.ensure_future(replies.invoke(replace(reply), timeout_ms=20_000))
            assert await told.get() == "listens"
            await listens.close()
            assert (await last).code == ResponseCode.SYSTEM_ERROR
            await replies.close()

    asyncio.run(test())


def test_a_producer_that_takes_another_id_leaves_the_one_that_it_had(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)

    async def test() -> None:
        settings: dict[str, str | int | bool] = {"aclEnable": True, "rocketmq.acl.plain.file": str(path)}
        told: asyncio.Queue[str] = asyncio.Queue()
        async with asyncio.timeout(60), mqtool.Broker(settings=settings) as broker:

            def client(account: str) -> RemotingClient:
                credentials = Credentials(account, f"{account}-secret")
                return RemotingClient(
                    [broker.address], on_request=lambda _: told.put_nowait(account), credentials=credentials
                )

            async def beat(who: RemotingClient, client_id: str) -> None:
                body = build_heartbeat(Heartbeat(client_id, ("P", "Q"), ()))
                assert (await who.invoke(RemotingCommand(RequestCode.HEART_BEAT, body=body))).code == 0

            async def reply(client_id: str) -> RemotingCommand:
                fields = {"topic": "DefaultCluster_REPLY_TOPIC", "properties": f"REPLY_TO_CLIENT\x01{client_id}\x02"}
                texts = {name: str(value).lower() for name, value in FIELDS.items()} | fields
                command = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE, ext_fields=texts, body=b"reply")
                return await replies.invoke(command, timeout_ms=20_000)

            asks, listens, replies = client("who-asks"), client("who-listens"), client("who-replies")
            await beat(asks, "an id")
            await beat(asks, "another id")
            assert "channel of <an id> not found" in ((await reply("an id")).remark or "")
            await beat(listens, "an id")
            waiting = asyncio.ensure_future(reply("an id"))
            assert await told.get() == "who-listens"
            for one in (listens, asks):
                await one.close()
            assert (await waiting).code == ResponseCode.SYSTEM_ERROR  # it has gone without an answer
            assert "channel of <another id> not found" in ((await reply("another id")).remark or "")
            await replies.close()

    asyncio.run(test())


def test_a_file_of_accounts_that_was_cut_short_is_refused_at_the_start_and_changes_nothing_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        accounts = tmp_path / "plain_acl.yml"
        accounts.write_text("# nothing yet\n")
        settings: dict[str, Any] = {"aclEnable": True, "rocketmq.acl.plain.file": str(accounts)}
        with pytest.raises(BadDataError, match=r"plain_acl.yml: the file has no content"):
            async with mqtool.Broker(settings=settings):
                pass
        accounts.write_text(ACCOUNTS)
        clock = mqtool.VirtualClock()
        async with asyncio.timeout(60), mqtool.Broker(settings=settings, clock=clock) as broker:
            client = WireClient(broker.address, Credentials("who-asks", "who-asks-secret"))
            await client.send(b"one", topic="Orders")
            accounts.write_text("")
            clock.advance(60)
            await client.send(b"two", topic="Orders")
            await client.close()

    asyncio.run(test())
    assert "access control is unchanged" in caplog.text


@pytest.mark.parametrize(
    "text", ["accounts: \0\0\0", "accounts: \x1b[31m", "[" * 5000], ids=["zeros", "escape", "deep"]
)
def test_a_file_of_accounts_that_nobody_can_have_meant_is_refused_and_changes_nothing_later(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        accounts = tmp_path / "plain_acl.yml"
        accounts.write_text(text)
        settings: dict[str, Any] = {"aclEnable": True, "rocketmq.acl.plain.file": str(accounts)}
        with pytest.raises(BadDataError, match=r"plain_acl.yml: "):
            async with mqtool.Broker(settings=settings):
                pass
        accounts.write_text(ACCOUNTS)
        clock = mqtool.VirtualClock()
        async with asyncio.timeout(60), mqtool.Broker(settings=settings, clock=clock) as broker:
            client = WireClient(broker.address, Credentials("who-asks", "who-asks-secret"))
            accounts.write_text(text)
            clock.advance(60)
            await client.send(b"one", topic="Orders")
            await client.close()

    asyncio.run(test())
    assert "access control is unchanged" in caplog.text
    assert not {"\0", "\x1b"} & {*caplog.text}


def test_what_was_edited_in_a_file_of_accounts_is_read_whenever_it_can_be_and_survives_a_change_by_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    admin = "- {accessKey: administrator, secretKey: administrator-secret, admin: true}\n"
    now = 1_700_000_000_000

    async def test() -> None:
        nonlocal now
        accounts = tmp_path / "plain_acl.yml"
        accounts.write_text(ACCOUNTS + admin)
        settings: dict[str, Any] = {"aclEnable": True, "rocketmq.acl.plain.file": str(accounts)}
        async with asyncio.timeout(60), mqtool.Broker(settings=settings, clock=lambda: now) as broker:
            client = WireClient(broker.address, Credentials("who-asks", "who-asks-secret"))
            changes = WireClient(broker.address, Credentials("administrator", "administrator-secret"))

            async def look() -> None:
                nonlocal now
                for _ in range(2):  # the first answer may leave before the look
                    now += 1000
                    await changes.done(RequestCode.GET_BROKER_RUNTIME_INFO)

            # Another account is changed before anybody has looked at the file.
            await client.send(b"one", topic="Orders")
            accounts.write_text(ACCOUNTS.replace("Orders=PUB", "Orders=DENY") + admin)
            new: dict[str, Any] = {"accessKey": "newcomer", "secretKey": "newcomer-secret"}
            await changes.done(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, **new)
            assert "Orders=DENY" in accounts.read_text()
            assert (await client.ask(RequestCode.GET_TOPIC_CONFIG, topic="Orders")).code == ResponseCode.SYSTEM_ERROR

            # What cannot be read at first is read later, though its time is the same.
            text = accounts.read_text().replace("Orders=DENY", "Orders=PUB")
            accounts.unlink()
            accounts.mkdir()
            os.utime(accounts, ns=(1, 1))
            for _ in range(3):
                await look()
            accounts.rmdir()
            accounts.write_text(text)
            os.utime(accounts, ns=(1, 1))
            await look()
            await client.send(b"two", topic="Orders")
            for one in (client, changes):
                await one.close()

    asyncio.run(test())
    assert "access control is unchanged" in caplog.text


def test_a_broker_may_be_closed_to_all() -> None:
    async def test(client: WireClient) -> None:
        sent = await client.ask(RequestCode.SEND_MESSAGE, b"one", **FIELDS, topic="Orders", properties="")
        pull: dict[str, Any] = {
            "consumerGroup": "G",
            "topic": "TBW102",
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 1,
            "sysFlag": 4,
        }
        pull |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}
        pulled = await client.ask(RequestCode.PULL_MESSAGE, **pull)
        assert (sent.code, pulled.code) == (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION)

    on_broker(test, brokerPermission=0, autoCreateTopicEnable=False)


def test_a_slave_needs_an_id_of_its_own() -> None:
    with pytest.raises(UsageError, match="brokerRole=SLAVE needs a brokerId above 0"):
        mqtool.Broker(settings={"brokerRole": "SLAVE"})


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER", "async_master"])
def test_a_master_has_id_0_whatever_its_settings_say(role: str) -> None:
    settings, unknown = BrokerSettings().updated({"brokerRole": role, "brokerId": "7"})

    check_roles({"brokerRole": role}, settings)

    state = BrokerState(settings, "127.0.0.1:10911")
    assert (state.broker_id, state.role, unknown) == (0, Role(role.upper()), [])


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"enableControllerMode": "true"}, "enableControllerMode=true is not supported: a controller would choose"),
        (
            {"enableDLegerCommitLog": "TRUE"},
            "enableDLegerCommitLog=true is not supported: DLedger logs can be read here",
        ),
        ({"duplicationEnable": "true"}, "duplicationEnable=true is not supported: "),
        ({"enableSlaveActingMaster": " true "}, "enableSlaveActingMaster=true is not supported: "),
        ({"brokerRole": "MASTER"}, "brokerRole=MASTER is not one of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ({"haDialect": "3"}, "haDialect=3 is neither 4 nor 5"),
    ],
)
def test_other_ways_of_replication_are_refused_with_the_reason(given: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        mqtool.Broker(settings=given)

    off = {name: "false" for name in given if name.startswith(("enable", "dup"))}
    check_roles(off, BrokerSettings())


def test_what_a_setting_has_for_a_terminal_is_not_written_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test(client: WireClient) -> None:
        await client.done(RequestCode.UPDATE_BROKER_CONFIG, "regionId=\x1b[2J\x07ü\u202e".encode())

    caplog.set_level(logging.INFO, "mqtool.engine.broker")
    on_broker(test)
    [said] = [one.getMessage() for one in caplog.records if "changed" in one.getMessage()]
    assert said.endswith(r"changed regionId=\x1b[2J\x07ü\u202e")


@pytest.mark.parametrize(
    "body",
    [
        b"traceOn=false\nregionId=" + bytes(256).replace(b"\0", b"x"),
        b"traceOn=false\nregionId=a\x02KEYS\x01forged",
        rb"traceOn=false" + b"\n" + rb"regionId=a\u0002KEYS\u0001forged",
        b"traceOn=false\nflushDiskType=SYNC_FLSH",
    ],
)
def test_a_setting_that_would_harm_each_message_is_refused_and_nothing_beside_it_is_taken(body: bytes) -> None:
    async def test(client: WireClient) -> None:
        answer = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body)
        assert (answer.code, answer.remark or "") != (0, "")
        await client.send(b"one", topic="T")
        [message] = await client.messages("T")
        assert dict(message.properties).keys() >= {"MSG_REGION", "TRACE_ON"}
        assert {**dict(message.properties), "UNIQ_KEY": ""} == {
            "CLUSTER": "DefaultCluster",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "UNIQ_KEY": "",
            "WAIT": "true",
        }

    on_broker(test)


def test_settings_are_read_and_told_with_the_escapes_of_java() -> None:
    async def test(client: WireClient) -> None:
        changed = b"regionId=a\\:\\u00fc\\n\\ud83d\\ude00 \\\\ \\\n   end\n! traceOn=false\r\ntraceOn\\\n   =false"
        await client.done(RequestCode.UPDATE_BROKER_CONFIG, changed)
        await client.send(b"one", topic="T")
        [message] = await client.messages("T")
        properties = dict(message.properties)
        assert (properties["MSG_REGION"], properties["TRACE_ON"]) == ("a:\u00fc\n\U0001f600 \\ end", "false")
        told = (await client.ask(RequestCode.GET_BROKER_CONFIG)).body.decode()
        assert "regionId=a:\u00fc\\n\U0001f600 \\\\ end\n" in told
        await client.done(RequestCode.UPDATE_BROKER_CONFIG, b"regionId=\\ud83d")  # half of a character
        assert "regionId=\ufffd\n" in (await client.ask(RequestCode.GET_BROKER_CONFIG)).body.decode()

    on_broker(test)


def test_a_name_server_refuses_settings_that_it_does_not_know_and_changes_none() -> None:
    async def test() -> None:
        async with mqtool.Broker() as broker:
            client = RemotingClient([broker.name_server_address])
            body = b"orderMessageEnable=true\nnoSuchSetting=1\n"
            answer = await client.invoke(RemotingCommand(RequestCode.UPDATE_NAMESRV_CONFIG, body=body))
            told = await client.invoke(RemotingCommand(RequestCode.GET_NAMESRV_CONFIG))
            await client.close()
        assert answer.code != 0
        assert "without effect here: noSuchSetting" in (answer.remark or "")
        assert b"orderMessageEnable=false" in told.body

    asyncio.run(test())
