"""Sending and sending back, held against what recorded brokers of 5.3.3 answered and stored."""

from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.broker.settings import BrokerSettings
from mqtool.formats.bodies import MessageQueue, QueueLocks
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.peer import Peer
from mqtool.formats.properties import build_properties, parse_properties
from mqtool.formats.remoting import ONEWAY, RESPONSE, RemotingCommand
from mqtool.formats.stored_message import StoredMessage, parse_stored
from mqtool.formats.topics import SCHEDULE_TOPIC
from tests.builders import batch_element
from tests.engine.broker.asking import Asking, broker_at_work
from tests.engine.store.live import NOW
from tests.golden import golden_store, manifest
from tests.traces import exchanges

SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def make_group(asking: Asking, **members: Any) -> None:
    asking.broker.groups.update({"groupName": "GID_retry", **members}, NOW)


def stored(asking: Asking, offset: int) -> StoredMessage:
    return parse_stored(asking.store.log.record(offset))


def send(asking: Asking, topic: str = "T", body: bytes = b"body", **given: Any) -> RemotingCommand:
    fields = {
        "producerGroup": "P",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": NOW,
        "flag": 0,
        "properties": "",
    }
    return asking.ask(RequestCode.SEND_MESSAGE, body, **{**fields, **given})


def _positions(ids: str) -> list[tuple[str, int]]:
    """Return the broker's address and the position of each message by its id."""
    return [(one[:16], int(one[16:], 16)) for one in ids.split(",")]


@pytest.mark.parametrize(
    "name", ["java-4.9.7-producer", "java-5.3.3-producer", "java-4.9.7-batch", "java-5.3.3-batch", "go-send_batch"]
)
def test_recorded_sends_are_answered_alike_and_take_the_same_room(name: str, tmp_path: Path) -> None:
    sends = exchanges(name, *SENDS)
    positions: list[tuple[tuple[str, int], tuple[str, int]]] = []  # in the recorded broker, and in ours
    with broker_at_work(tmp_path) as asking:
        asking.broker.listens_at("127.0.0.1:30911")
        for exchange in sends:
            answer, recorded = asking.replay(exchange), exchange.answer
            if recorded is None:
                assert exchange.request.command.flag & ONEWAY
                continue
            fields = recorded.command.ext_fields
            assert answer.code == recorded.command.code == 0
            assert {**answer.ext_fields, "msgId": "", "queueOffset": ""} == {**fields, "msgId": "", "queueOffset": ""}
            positions += zip(_positions(fields["msgId"]), _positions(answer.ext_fields["msgId"]), strict=True)

    theirs, ours = zip(*positions, strict=True)
    assert {broker for broker, _ in (*theirs, *ours)} == {"7F000001000078BF"}  # the recorded broker's address
    assert [at - ours[0][1] for _, at in ours] == [at - theirs[0][1] for _, at in theirs]


def test_a_message_is_stored_with_what_its_request_says(tmp_path: Path) -> None:
    [first, *_] = exchanges("java-5.3.3-producer", *SENDS)
    fields = first.request.command.ext_fields
    with broker_at_work(tmp_path) as asking:
        asking.replay(first)
        message, _, queue_offset, _, store_timestamp = stored(asking, 0)
        assert asking.store.queue(fields["b"], 0)

    assert (message.topic, message.queue_id, queue_offset) == (fields["b"], int(fields["e"]), 0)
    assert (message.body, message.flag, message.sys_flag) == (b"sync", 0, 0)
    assert (message.born_timestamp, store_timestamp) == (int(fields["g"]), NOW)
    assert (message.born_host, message.store_host) == (((bytes([192, 0, 2, 1])), 4000), (bytes([127, 0, 0, 1]), 10911))
    assert parse_properties(message.properties) == {
        **parse_properties(fields["i"].encode()),
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }


def test_marks_of_an_earlier_broker_are_replaced_and_a_missing_unique_key_is_added(tmp_path: Path) -> None:
    given = {"MSG_REGION": "elsewhere", "TRACE_ON": "false", "CLUSTER": "C", "POP_CK": "x", "a": "b"}
    with broker_at_work(tmp_path) as asking:
        answers = [send(asking, properties=build_properties(given).decode()) for _ in range(2)]
        messages = [parse_properties(stored(asking, at).message.properties) for at in _all(asking)]

    assert [one.pop("UNIQ_KEY") for one in messages] == [one.ext_fields["transactionId"] for one in answers]
    assert answers[0].ext_fields["transactionId"] != answers[1].ext_fields["transactionId"]
    kept = {"a": "b", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    assert messages == [kept, kept]


def _all(asking: Asking) -> list[int]:
    found, at = [], 0
    while at < asking.store.log.end_offset:
        found.append(at)
        at += stored(asking, at).size
    return found


def test_a_topic_comes_about_by_sending_to_it(tmp_path: Path) -> None:
    told: list[TopicConfig] = []
    with broker_at_work(tmp_path) as asking:
        topics = asking.broker.topics
        topics.on_change.append(told.extend)

        counts = {}
        for wanted in (4, 16, 1):
            send(asking, f"T{wanted}", defaultTopicQueueNums=wanted)
            counts[wanted] = topics.configs[f"T{wanted}"]
        send(asking, "T4")

        assert {wanted: config.write_queue_count for wanted, config in counts.items()} == {4: 4, 16: 8, 1: 1}
        assert {(one.perm, one.read_queue_count == one.write_queue_count) for one in counts.values()} == {(6, True)}
        assert [one.topic for one in told] == ["T4", "T16", "T1"]


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"topic": "new", "defaultTopic": "none"}, ResponseCode.TOPIC_NOT_EXIST, "topic[new] not exist"),
        ({"topic": "new", "defaultTopic": "SELF_TEST_TOPIC"}, ResponseCode.TOPIC_NOT_EXIST, "topic[new] not exist"),
        ({"topic": " "}, ResponseCode.INVALID_PARAMETER, "blank"),
        ({"topic": "a.b"}, ResponseCode.INVALID_PARAMETER, "illegal characters"),
        ({"topic": "t" * 128}, ResponseCode.INVALID_PARAMETER, "max length 127"),
        ({"topic": SCHEDULE_TOPIC}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION, "forbidden"),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal"),
        ({"body": bytes((4 << 20) + 1)}, ResponseCode.MESSAGE_ILLEGAL, "too long"),
        ({"properties": "a\1" + "b" * 32767}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
        ({"batch": "true", "body": b"no batch"}, ResponseCode.MESSAGE_ILLEGAL, "batch"),
        ({"batch": "true", "body": batch_element(b"") * 16_385}, ResponseCode.MESSAGE_ILLEGAL, "batch is too large"),
        (
            {"batch": "true", "body": batch_element(b"x") * 600, "properties": "a\1" + "b" * 30_000},
            ResponseCode.MESSAGE_ILLEGAL,
            "batch is too large",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused_with_the_code_of_the_protocol(
    given: dict[str, Any], code: ResponseCode, said: str, tmp_path: Path
) -> None:
    with broker_at_work(tmp_path) as asking:
        answer = send(asking, **given)

        assert (answer.code, asking.store.log.end_offset) == (code, 0)
        assert said in (answer.remark or "")
        assert answer.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        (BrokerSettings(perm=4), {"topic": "ordered"}),
        (BrokerSettings(refuse_transactions=True), {"properties": "TRAN_MSG\1true\2"}),
    ],
)
def test_settings_forbid(settings: BrokerSettings, given: dict[str, Any], tmp_path: Path) -> None:
    ordered = TopicConfig("ordered", 1, 1, 6, True, "SINGLE_TAG", 0, {})
    with broker_at_work(tmp_path) as asking:
        asking.broker.topics.put([ordered], NOW)
        asking.broker.configure(settings)

        assert send(asking, **given).code == ResponseCode.NO_PERMISSION
        assert send(asking).code == ResponseCode.SUCCESS


def test_without_auto_create_a_topic_must_be_there(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        asking.broker.configure(BrokerSettings(auto_create_topics=False))

        assert send(asking).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_broker_chooses_the_queue_where_the_producer_leaves_it_to_it(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        chosen = {send(asking, queueId=-1).ext_fields["queueId"] for _ in range(8)}

    assert chosen == {"0", "1", "2", "3"}


def test_an_answer_waits_until_the_message_is_on_the_disk(tmp_path: Path) -> None:
    with broker_at_work(tmp_path, flushDiskType="SYNC_FLUSH") as asking:
        broker, wanted = asking.broker, []
        broker.group_commit.on_wanted = lambda: wanted.append(asking.now)
        [request, other, *_] = [exchange.request.command for exchange in exchanges("java-5.3.3-producer", *SENDS)]
        for command in (request, other):
            assert [*asking.door.handle(command, asking.client, NOW)] == []
        assert [*asking.door.tick(NOW)] == []
        assert wanted == [NOW]

        asking.store.flush()
        assert asking.door.next_tick(NOW) == NOW
        sent = [*asking.door.tick(NOW)]

        assert [(peer, answer.code, answer.opaque) for peer, answer in sent] == [
            (asking.client, 0, request.opaque),
            (asking.client, 0, other.opaque),
        ]
        assert not broker.group_commit.is_any


def test_who_waits_too_long_for_the_disk_is_told_so_and_where_the_message_is(tmp_path: Path) -> None:
    with broker_at_work(tmp_path, flushDiskType="SYNC_FLUSH") as asking:
        [request, *_] = exchanges("java-5.3.3-producer", *SENDS)
        assert [*asking.door.handle(request.request.command, asking.client, NOW)] == []

        assert [*asking.door.tick(NOW + 4999)] == []
        [(_, answer)] = asking.door.tick(NOW + 5000)

    assert (answer.code, answer.ext_fields["queueOffset"]) == (ResponseCode.FLUSH_DISK_TIMEOUT, "0")


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_an_answer_waits_until_others_have_the_message_too_where_they_have_to(tmp_path: Path, flush: str) -> None:
    with broker_at_work(tmp_path, flushDiskType=flush) as asking:
        log = asking.store.log
        log.confirmed_offset = 0
        [request, other, *_] = [exchange.request.command for exchange in exchanges("java-5.3.3-producer", *SENDS)]
        ends = []
        for command in (request, other):
            assert [*asking.door.handle(command, asking.client, NOW)] == []
            ends.append(log.end_offset)
        if flush == "SYNC_FLUSH":
            log.confirmed_offset = ends[0]
            assert asking.broker.group_commit.wants_flush
            assert [*asking.door.tick(NOW)] == []
        asking.store.flush()
        assert not asking.broker.group_commit.wants_flush

        log.confirmed_offset = ends[0]
        assert asking.door.next_tick(NOW) == NOW
        assert [(answer.code, answer.opaque) for _, answer in asking.door.tick(NOW)] == [(0, request.opaque)]
        log.confirmed_offset = ends[1] - 1
        assert [*asking.door.tick(NOW + 2999)] == []
        [(_, late)] = asking.door.tick(NOW + 3000)

        assert (late.opaque, late.code) == (other.opaque, ResponseCode.FLUSH_SLAVE_TIMEOUT)


# Sending back


def recorded_message(name: str, listed: dict[str, Any]) -> bytes:
    log = (golden_store(name) / "commitlog" / f"{0:020}").read_bytes()
    return log[listed["phy"] : listed["phy"] + listed["size"]]


def _send_back(asking: Asking, offset: int, version: int = 479, **given: Any) -> RemotingCommand:
    texts = {name: str(value) for name, value in {"offset": offset, "group": "GID_retry", **given}.items()}
    command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, 0, 12, texts, version=version)
    [(_, answer)] = asking.door.handle(command, asking.client, asking.now)
    return answer


def test_what_is_sent_back_is_stored_as_a_recorded_broker_did(tmp_path: Path) -> None:
    messages = manifest("retry-533-clean")["messages"]
    waiting = [one for one in messages if one["topic"] == SCHEDULE_TOPIC and one["reconsume_times"] == 1]
    [theirs] = [one for one in waiting if one["properties"].get("KEYS") == "retry3"][:1]
    origin = int(theirs["properties"]["ORIGIN_MESSAGE_ID"][16:], 16)
    with broker_at_work(tmp_path) as asking:
        assert theirs["properties"]["REAL_TOPIC"] == "%RETRY%GID_retry"
        make_group(asking)
        [original] = [one for one in messages if one["phy"] == origin]
        asking.broker.listens_at(original["store_host"])
        for topic in ("Filler", original["topic"]):
            asking.broker.topics.of_group(topic, 8, False, NOW)
        asking.append_recorded(recorded_message("retry-533-clean", original))
        asking.now = theirs["store_timestamp"]
        at = asking.store.log.end_offset

        answer = _send_back(asking, origin, delayLevel=0, group="GID_retry")

        assert (answer.code, answer.ext_fields) == (0, {})
        ours = stored(asking, at)
        [unit] = asking.store.queue(SCHEDULE_TOPIC, 2).units(0, 1)  # type: ignore[union-attr]
    assert (ours.message.topic, ours.message.queue_id) == (theirs["topic"], theirs["queue_id"])
    assert parse_properties(ours.message.properties) == theirs["properties"]
    assert (ours.message.reconsume_times, ours.message.born_timestamp) == (1, theirs["born_timestamp"])
    assert unit.tags_code == theirs["tags_code"]


@pytest.mark.parametrize(
    ("times", "given", "goes_to"),
    [
        (0, {"delayLevel": 0}, (SCHEDULE_TOPIC, 2)),
        (4, {"delayLevel": 0}, (SCHEDULE_TOPIC, 6)),
        (15, {"delayLevel": 0}, (SCHEDULE_TOPIC, 17)),
        (0, {"delayLevel": 5}, (SCHEDULE_TOPIC, 4)),
        (0, {"delayLevel": 99}, (SCHEDULE_TOPIC, 17)),
        (16, {"delayLevel": 0}, ("%DLQ%GID_retry", 0)),
        (0, {"delayLevel": -1}, ("%DLQ%GID_retry", 0)),
        (2, {"delayLevel": 0, "maxReconsumeTimes": 2}, ("%DLQ%GID_retry", 0)),
        (2, {"delayLevel": 0, "maxReconsumeTimes": 2, "version": 100}, (SCHEDULE_TOPIC, 4)),
    ],
)
def test_a_message_comes_again_later_each_time_and_in_the_end_is_a_dead_letter(
    times: int, given: dict[str, Any], goes_to: tuple[str, int], tmp_path: Path
) -> None:
    with broker_at_work(tmp_path) as asking:
        make_group(asking)
        send(asking, reconsumeTimes=times)
        at = asking.store.log.end_offset

        assert _send_back(asking, 0, **given).code == 0

        message = stored(asking, at).message
        assert (message.topic, message.queue_id) == goes_to
        assert message.reconsume_times == times + 1
        config = asking.broker.topics.configs["%RETRY%GID_retry"]
        assert (config.read_queue_count, config.write_queue_count, config.perm) == (1, 1, 6)


@pytest.mark.parametrize(
    ("group", "given", "code"),
    [
        ({}, {"group": "no.name"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({}, {"offset": 7}, ResponseCode.SYSTEM_ERROR),
        ({"retryQueueNums": 0}, {}, ResponseCode.SUCCESS),
    ],
)
def test_nothing_is_stored_of_what_cannot_be_sent_back(
    group: dict[str, Any], given: dict[str, Any], code: ResponseCode, tmp_path: Path
) -> None:
    with broker_at_work(tmp_path) as asking:
        make_group(asking, **group)
        send(asking)
        end = asking.store.log.end_offset

        answer = _send_back(asking, given.pop("offset", 0), delayLevel=0, **given)

        assert (answer.code, asking.store.log.end_offset) == (code, end)


@pytest.mark.parametrize(("times", "topic"), [(16, "%RETRY%GID_retry"), (17, "%DLQ%GID_retry")])
def test_a_retry_that_a_client_sends_itself_counts_too(times: int, topic: str, tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        make_group(asking)

        answer = send(asking, "%RETRY%GID_retry", defaultTopic="none", reconsumeTimes=times)

        assert answer.code == 0
        assert stored(asking, 0).message.topic == topic
        assert send(asking, "%RETRY%").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_retry_of_a_group_that_consumes_in_order_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        make_group(asking)
        queue = MessageQueue("T", "broker-a", 0)
        asking.broker.locks.lock(QueueLocks("GID_retry", "C", (queue,)), NOW)

        assert send(asking, "%RETRY%GID_retry").code == 0
        asking.now += 3_600_000  # the lock has ended
        assert send(asking, "%RETRY%GID_retry").code == 0

        topics = [stored(asking, at).message.topic for at in _all(asking)]
    assert topics == ["%DLQ%GID_retry", "%RETRY%GID_retry"]


# Replies


def test_a_recorded_reply_is_pushed_to_who_asked_kept_and_answered(tmp_path: Path) -> None:
    name = "java-4.9.7-request_reply"
    [reply, *_] = exchanges(name, RequestCode.SEND_REPLY_MESSAGE_V2)
    [theirs, *_] = exchanges(name, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    asks = Peer(2, "192.0.2.2", 4001)
    with broker_at_work(tmp_path) as asking:
        broker = asking.broker
        broker.listens_at("127.0.0.1:30911")
        broker.clients.register_producer("G", asking.client_of(asks, "192.0.2.2@asking", "JAVA", 400))

        [(to, push)] = asking.door.handle(reply.request.command, asking.client, NOW)
        received = RemotingCommand(0, RESPONSE, push.opaque)
        [(back, answer)] = asking.door.handle(received, asks, NOW + 1)

        assert (to, push.code, push.body) == (asks, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"answer")
        ours, recorded = dict(push.ext_fields), dict(theirs.request.command.ext_fields)
        for changing in ("storeTimestamp", "bornHost"):
            assert ours.pop(changing)
            assert recorded.pop(changing)
        properties, expected = (parse_properties(one.pop("properties").encode()) for one in (ours, recorded))
        assert ours == recorded
        assert properties.pop("PUSH_REPLY_TIME") == str(NOW)
        assert expected.pop("PUSH_REPLY_TIME")
        assert properties.pop("CLUSTER") == "DefaultCluster"  # in excess of what was recorded
        assert properties == expected
        assert (back, answer.code, answer.opaque) == (asking.client, 0, reply.request.command.opaque)
        assert reply.answer is not None
        assert answer.ext_fields.keys() == reply.answer.command.ext_fields.keys()
        assert stored(asking, 0).message.topic == "DefaultCluster_REPLY_TOPIC"


@pytest.mark.parametrize("is_there", [False, True])
def test_a_reply_that_nobody_takes_is_an_error_for_who_replies(is_there: bool, tmp_path: Path) -> None:
    [reply, *_] = exchanges("java-4.9.7-request_reply", RequestCode.SEND_REPLY_MESSAGE_V2)
    with broker_at_work(tmp_path) as asking:
        broker = asking.broker
        if is_there:
            asks = Peer(2, "192.0.2.2", 4001)
            broker.clients.register_producer("G", asking.client_of(asks, "192.0.2.2@asking", "JAVA", 400))
            [_] = asking.door.handle(reply.request.command, asking.client, NOW)
            [(to, answer)] = [one for one in asking.door.tick(NOW + 10_000) if one[0] is asking.client]
        else:
            [(to, answer)] = asking.door.handle(reply.request.command, asking.client, NOW)

    assert (to, answer.code) == (asking.client, ResponseCode.SYSTEM_ERROR)
    assert "192.0.2.2@asking" in (answer.remark or "")
