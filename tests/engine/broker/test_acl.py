"""Access control: signatures, permissions and white lists, by the tables of remoting.md 8."""

import base64
import hashlib
import hmac
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.broker.acl import AccessControl, is_from
from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.processors.authentication import access_fault, is_signed
from mqtool.engine.broker.remoting_door import RemotingDoor
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.formats.bodies import ConsumerData, Heartbeat, Subscription, build_heartbeat, parse_body
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.peer import Peer
from mqtool.formats.plain_acl import DENY, PUB, SUB, Account, parse_acl
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.signing import signature
from tests.engine.store.live import NOW, new_message, opened
from tests.formats.test_plain_acl import TEXT

PEER = Peer(1, "192.0.2.1", 4000)
SECRET = "12345678"
WAITING = {100: "topicA", 200: "topicC", 300: "%RETRY%groupB"}
"""Topics of the messages at these addresses."""


def signed(code: int, body: bytes = b"", secret: str = SECRET, key: str = "RocketMQ", **fields: Any) -> RemotingCommand:
    """Return a request as a client signs it."""
    texts = {**{name: str(value) for name, value in fields.items()}, "AccessKey": key}
    content = "".join(value for _, value in sorted(texts.items())).encode() + body
    texts["Signature"] = base64.b64encode(hmac.new(secret.encode(), content, hashlib.sha1).digest()).decode()
    return RemotingCommand(code, 0, 1, texts, body)


@pytest.fixture
def access(tmp_path: Path) -> AccessControl:
    path = tmp_path / "plain_acl.yml"
    path.write_text(TEXT)
    return AccessControl(path, NOW, WAITING.get)


def fault_of(access: AccessControl, command: RemotingCommand, peer: Peer) -> str | None:
    return access_fault(access, command, peer.host)


# Who


def test_the_signature_is_that_of_the_official_clients() -> None:
    fields = {"AccessKey": "ak", "queueId": "0", "topic": "TopicTest"}  # the vector of remoting.md 8.2

    assert signature(fields, b"body", "sk1234567") == "cakEezFqozw+75kZs1J4/BKjCfM="
    assert signature({**fields, "Signature": "x"}, b"body", "sk1234567") == "cakEezFqozw+75kZs1J4/BKjCfM="


@pytest.mark.parametrize("signs_mark", [True, False])
def test_a_query_is_signed_with_or_without_its_mark(signs_mark: bool) -> None:
    mark: dict[str, Any] = {"_UNIQUE_KEY_QUERY": "true"}
    request = signed(RequestCode.QUERY_MESSAGE, topic="topicC", **(mark if signs_mark else {}))
    request.ext_fields |= mark

    assert is_signed(request, SECRET)
    assert not is_signed(request, "another1")


@pytest.mark.parametrize(
    ("request_", "fault"),
    [
        (RemotingCommand(10), "No accessKey is configured"),
        (signed(10, key="nobody"), "No acl config for nobody"),
        (signed(10, secret="another1"), "Check signature failed for accessKey=RocketMQ"),
    ],
)
def test_who_is_not_known_is_refused(access: AccessControl, request_: RemotingCommand, fault: str) -> None:
    assert fault_of(access, request_, PEER) == fault
    assert fault_of(access, request_, Peer(2, "192.168.0.9", 1)) is None  # from where everybody may do everything


def test_a_request_that_was_changed_on_its_way_is_refused(access: AccessControl) -> None:
    request = signed(RequestCode.SEND_MESSAGE, b"body", topic="topicB")
    assert fault_of(access, request, PEER) is None

    request.body = b"b0dy"
    assert fault_of(access, request, PEER) == "Check signature failed for accessKey=RocketMQ"


def test_an_account_needs_no_signature_from_its_own_addresses(access: AccessControl) -> None:
    request = RemotingCommand(10, 0, 1, {"AccessKey": "rocketmq2"})

    assert fault_of(access, request, Peer(2, "192.168.1.77", 1)) is None
    assert fault_of(access, request, PEER) is not None


# What


@pytest.mark.parametrize(
    ("code", "fields", "lacks"),
    [
        (RequestCode.SEND_MESSAGE, {"topic": "topicB"}, None),
        (RequestCode.SEND_MESSAGE, {"topic": "topicC"}, "topicC"),
        (RequestCode.SEND_MESSAGE_V2, {"b": "topicA"}, "topicA"),
        (RequestCode.SEND_MESSAGE_V2, {"b": "other"}, "other"),
        (RequestCode.SEND_BATCH_MESSAGE, {"b": "topicB"}, None),
        (RequestCode.SEND_MESSAGE, {"topic": "%RETRY%other"}, None),
        (RequestCode.SEND_MESSAGE, {"topic": "%RETRY%groupA"}, "%RETRY%groupA"),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "groupA", "offset": 0, "delayLevel": 0}, "%RETRY%groupA"),
        (RequestCode.PULL_MESSAGE, {"topic": "topicC", "consumerGroup": "groupB"}, None),
        (RequestCode.PULL_MESSAGE, {"topic": "topicC", "consumerGroup": "groupA"}, "%RETRY%groupA"),
        (RequestCode.PULL_MESSAGE, {"topic": "topicA", "consumerGroup": "groupB"}, "topicA"),
        (RequestCode.QUERY_MESSAGE, {"topic": "topicA"}, "topicA"),
        (RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "groupA"}, None),
        (RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "groupA"}, "%RETRY%groupA"),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "groupA"}, "%RETRY%groupA"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "groupB", "topic": "topicA"}, "topicA"),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 200}, None),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 100}, "topicA"),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "groupB", "offset": 200, "delayLevel": 0}, None),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "groupB", "offset": 300, "delayLevel": 0}, None),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "groupB", "offset": 100, "delayLevel": 0}, "topicA"),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "groupB", "msgId": f"{100:032X}"}, "topicA"),
        (RequestCode.PEEK_MESSAGE, {"topic": "topicA", "consumerGroup": "groupB"}, "topicA"),
        (RequestCode.PEEK_MESSAGE, {"topic": "topicC", "consumerGroup": "groupA"}, "%RETRY%groupA"),
        (RequestCode.ACK_MESSAGE, {"topic": "topicA", "consumerGroup": "groupB"}, "topicA"),
        (RequestCode.ACK_MESSAGE, {"topic": "%RETRY%groupB_topicC", "consumerGroup": "groupB"}, None),
        (RequestCode.ACK_MESSAGE, {"topic": "%RETRY%groupB+topicA", "consumerGroup": "groupB"}, "topicA"),
        (RequestCode.ACK_MESSAGE, {"topic": "%RETRY%groupA", "consumerGroup": "groupB"}, "%RETRY%groupA"),
        (RequestCode.SEND_MESSAGE_V2, {"b": "topicB", "i": "TIMER_DEL_UNIQKEY\x01topicB+K\x02"}, None),
        (RequestCode.SEND_MESSAGE_V2, {"b": "topicB", "i": "TIMER_DEL_UNIQKEY\x01topicA+K\x02"}, "topicA"),
        (RequestCode.RECALL_MESSAGE, {"topic": "topicC"}, "topicC"),
        (RequestCode.SEND_REPLY_MESSAGE_V2, {"b": "DefaultCluster_REPLY_TOPIC"}, "DefaultCluster_REPLY_TOPIC"),
        (RequestCode.GET_TOPIC_CONFIG, {"topic": "topicC"}, None),
    ],
)
def test_a_request_needs_the_permissions_of_its_kind(
    access: AccessControl, code: int, fields: dict[str, Any], lacks: str | None
) -> None:
    fault = fault_of(access, signed(code, **fields), PEER)

    assert fault == (f"No default permission for {lacks}" if lacks else None)
    assert fault_of(access, signed(code, key="rocketmq2", **fields), PEER) is None


@pytest.mark.parametrize(("topic", "is_allowed"), [("topicC", True), ("topicA", False)])
def test_a_heartbeat_needs_all_that_it_subscribes_to(access: AccessControl, topic: str, is_allowed: bool) -> None:
    consumer = ConsumerData("groupB", "CONSUME_PASSIVELY", "CLUSTERING", "", (Subscription(topic, "*"),))
    request = signed(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", (), (consumer,))))

    assert (fault_of(access, request, PEER) is None) == is_allowed


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_a_default_permission_is_not_for_topics_in_which_messages_of_all_topics_wait(
    topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(TEXT.replace("defaultTopicPerm: DENY", "defaultTopicPerm: PUB|SUB"))
    access = AccessControl(path, NOW, WAITING.get)
    pull = signed(RequestCode.PULL_MESSAGE, topic=topic, consumerGroup="groupB")

    assert fault_of(access, pull, PEER) == f"No default permission for {topic}"
    path.write_text(path.read_text().replace("topicA=DENY", f"{topic}=SUB"))
    assert fault_of(AccessControl(path, NOW, WAITING.get), pull, PEER) is None


@pytest.mark.parametrize("code", [17, 25, 215, 200, 207])
def test_what_changes_the_broker_is_for_administrators(access: AccessControl, code: int) -> None:
    assert fault_of(access, signed(code), PEER) == (
        f"Need admin permission for request code={code}, but accessKey=RocketMQ is not"
    )
    assert fault_of(access, signed(code, key="rocketmq2"), PEER) is None


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*", ["1.2.3.4", "::1"], []),
        ("", [], ["1.2.3.4"]),
        ("1.2.3.4", ["1.2.3.4"], ["1.2.3.5"]),
        ("1.2.3.*", ["1.2.3.4"], ["1.2.4.4", "1.2.3"]),
        ("1.2.3-4.*", ["1.2.3.0", "1.2.4.255"], ["1.2.5.0", "1.2.2.9"]),
        ("1.2.3.{4,6}", ["1.2.3.4", "1.2.3.6"], ["1.2.3.5"]),
        ("1.2.3.4, 1.2.3.6", ["1.2.3.4", "1.2.3.6"], ["1.2.3.5"]),
        ("fe80:0:0:0:0:0:0:1-a", ["fe80:0:0:0:0:0:0:9"], ["fe80:0:0:0:0:0:0:b", "1.2.3.4"]),
        ("1.2.3.x", [], ["1.2.3.4"]),
    ],
)
def test_a_white_list_means_addresses(pattern: str, matching: list[str], others: list[str]) -> None:
    assert [host for host in (*matching, *others) if is_from(host, pattern)] == matching


# In a broker


def test_a_broker_refuses_as_rocketmq_does(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(TEXT)
    settings = BrokerSettings(acl_enabled=True, acl_file=str(path))
    with opened(tmp_path / "store") as store:
        broker = RemotingDoor(BrokerController(store, NOW, settings))

        [(_, refused)] = broker.handle(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO), PEER, NOW)
        [(_, served)] = broker.handle(signed(RequestCode.GET_BROKER_RUNTIME_INFO, key="rocketmq2"), PEER, NOW)

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark == "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
    assert served.code == 0


def test_a_changed_file_counts_from_the_next_look_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(TEXT)
    access = AccessControl(path, NOW, WAITING.get)
    request = signed(RequestCode.SEND_MESSAGE, topic="topicA")

    path.write_text(TEXT.replace("topicA=DENY", "topicA=PUB"))
    os.utime(path, ns=(1, 1))
    access.tick(NOW + 999)
    assert fault_of(access, request, PEER) is not None
    access.tick(NOW + 1000)
    assert fault_of(access, request, PEER) is None

    path.write_text("nonsense")
    os.utime(path, ns=(2, 2))
    access.tick(NOW + 2000)
    assert f"access control is unchanged: {path}: " in caplog.text
    assert fault_of(access, request, PEER) is None


# Accounts by request


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RemotingDoor]:
    """A broker with the accounts of ``TEXT``."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(TEXT)
    settings = BrokerSettings(acl_enabled=True, acl_file=str(path))
    with opened(tmp_path / "store") as store:
        yield RemotingDoor(BrokerController(store, NOW, settings))


def as_admin(broker: RemotingDoor, code: RequestCode, **fields: Any) -> RemotingCommand:
    [(_, answer)] = broker.handle(signed(code, key="rocketmq2", **fields), PEER, NOW)
    return answer


def test_an_account_is_made_changed_and_deleted_and_stays_so(guarded: RemotingDoor) -> None:
    created = {"accessKey": "newcomer", "secretKey": "87654321", "topicPerms": "T=PUB,U=SUB", "admin": "false"}
    assert as_admin(guarded, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, **created).code == 0
    changed = {"accessKey": "newcomer", "defaultTopicPerm": "SUB", "admin": "true"}
    assert as_admin(guarded, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, **changed).code == 0
    assert as_admin(guarded, RequestCode.DELETE_ACL_CONFIG, accessKey="RocketMQ").code == 0
    white = as_admin(guarded, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, globalWhiteAddrs="10.0.0.1, 10.0.0.2")
    assert white.code == 0

    expected = Account("newcomer", "87654321", "", True, SUB, DENY, {"T": PUB, "U": SUB})
    path = Path(guarded.broker.settings.acl_file)
    for acl in (parse_acl(path.read_text()), AccessControl(path, NOW, WAITING.get).acl):
        assert acl.accounts == {"rocketmq2": parse_acl(TEXT).accounts["rocketmq2"], "newcomer": expected}
        assert (acl.white_addresses, acl.version) == (("10.0.0.1", "10.0.0.2"), (4, NOW))
    told = parse_body(as_admin(guarded, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG).body)
    assert [one["accessKey"] for one in told["plainAccessConfigs"]] == ["rocketmq2", "newcomer"]
    version = as_admin(guarded, RequestCode.GET_BROKER_CLUSTER_ACL_INFO).ext_fields
    assert parse_body(version["version"].encode()) == {"counter": 4, "timestamp": NOW, "stateVersion": 0}


@pytest.mark.parametrize(
    ("code", "fields", "answer", "said"),
    [
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "newcomer"}, 209, "more than 6 characters"),
        (
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
            {"accessKey": "RocketMQ", "topicPerms": "T=ALL"},
            209,
            "not a permission",
        ),
        (RequestCode.DELETE_ACL_CONFIG, {"accessKey": "nobody-here"}, 210, "no account nobody-here"),
    ],
)
def test_a_change_that_makes_no_sense_changes_nothing(
    guarded: RemotingDoor, code: RequestCode, fields: dict[str, str], answer: int, said: str
) -> None:
    refused = as_admin(guarded, code, **fields)
    assert (refused.code, said in (refused.remark or "")) == (answer, True)
    assert Path(guarded.broker.settings.acl_file).read_text() == TEXT


def test_who_is_no_admin_changes_no_account(guarded: RemotingDoor) -> None:
    [(_, refused)] = guarded.handle(signed(RequestCode.DELETE_ACL_CONFIG, accessKey="RocketMQ"), PEER, NOW)
    assert "Need admin permission" in (refused.remark or "")
    assert Path(guarded.broker.settings.acl_file).read_text() == TEXT


def test_without_access_control_there_are_no_accounts(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        broker = RemotingDoor(BrokerController(store, NOW))
        for code in (RequestCode.DELETE_ACL_CONFIG, RequestCode.GET_BROKER_CLUSTER_ACL_INFO):
            [(_, refused)] = broker.handle(RemotingCommand(code, 0, 1, {"accessKey": "RocketMQ"}), PEER, NOW)
            assert refused.code != 0 and "aclEnable" in (refused.remark or "")


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION])
@pytest.mark.parametrize(
    ("change", "fields", "is_given"),
    [
        (RequestCode.DELETE_ACL_CONFIG, {"accessKey": "RocketMQ"}, False),
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "RocketMQ", "secretKey": "87654321"}, False),
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "RocketMQ", "topicPerms": "topicC=DENY"}, False),
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "newcomer", "secretKey": "87654321"}, True),
        (RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "10.0.0.1"}, True),
    ],
)
def test_who_waits_gets_nothing_any_more_without_permission(
    guarded: RemotingDoor, code: RequestCode, change: RequestCode, fields: dict[str, Any], is_given: bool
) -> None:
    broker = guarded.broker
    broker.topics.put([TopicConfig("topicC", 1, 1, 6, False, "SINGLE_TAG", 0, {})], NOW)
    asked: dict[str, Any] = {"consumerGroup": "groupB", "topic": "topicC", "queueId": 0, "queueOffset": 0}
    asked |= {"maxMsgNums": 1, "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 60_000, "subVersion": 0}
    asked |= {"subscription": "*", "expressionType": "TAG", "bornTime": NOW, "pollTime": 60_000, "initMode": 0}
    asked |= {"invisibleTime": 60_000, "order": "false"}
    assert [*guarded.handle(signed(code, **asked), PEER, NOW)] == []
    assert as_admin(guarded, change, **fields).code == 0

    broker.intake.put(new_message("topicC"), NOW)

    [(_, answer)] = [*guarded.tick(NOW)]
    assert (answer.code == 0) is is_given
    assert is_given or ("AclException" in (answer.remark or "") and not answer.parts)
    assert broker.pops.has_messages("topicC", "groupB", 0) is (code != RequestCode.POP_MESSAGE or not is_given)
