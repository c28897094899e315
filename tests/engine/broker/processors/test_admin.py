"""What administrators ask, held against the answers of recorded brokers, and what they have a broker do."""

from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.broker.settings import AT_START
from mqtool.errors import FormatError
from mqtool.formats.bodies import ConsumerData, MessageQueue, Subscription, by_queue, parse_body
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.peer import Peer
from mqtool.formats.settings import parse_settings
from tests.engine.broker.asking import Asking, broker_at_work
from tests.engine.store.live import NOW, new_message
from tests.traces import exchanges

MQADMIN = ["mqadmin-4.9.7", "mqadmin-5.3.3"]


def make_topic(asking: Asking, topic: str, queue_count: int = 2, order: bool = False) -> None:
    """Make a topic."""
    config = TopicConfig(topic, queue_count, queue_count, 6, order, "SINGLE_TAG", 0, {})
    asking.broker.topics.put([config], asking.now)


def table(asking: Asking, code: int, **fields: Any) -> dict[Any, Any]:
    """Return the body of an answer."""
    answer = asking.ask(code, **fields)
    assert (answer.code, answer.remark) == (0, None)
    return parse_body(answer.body)


def by_place(body: dict[Any, Any]) -> dict[MessageQueue, Any]:
    """Return the offsets that a body tells, by queue."""
    return by_queue(body["offsetTable"], "offsetTable")


# Held against recorded answers


@pytest.mark.parametrize("name", MQADMIN)
def test_a_broker_tells_of_itself_all_that_a_recorded_one_tells(name: str, tmp_path: Path) -> None:
    [recorded, *_] = exchanges(name, RequestCode.GET_BROKER_RUNTIME_INFO)
    assert recorded.answer is not None
    theirs = parse_body(recorded.answer.body)["table"]
    with broker_at_work(tmp_path) as asking:
        asking.broker.intake.put(new_message(pairs={"DELAY": "1"}), NOW)
        asking.now += 2000
        ours = table(asking, RequestCode.GET_BROKER_RUNTIME_INFO)["table"]

    # The one with a path is told for each folder, and by 5.x only.
    assert {key for key in theirs if "/" not in key} <= ours.keys()
    assert "getTransferedTps" in ours  # what clusterList of 4.9 looks for
    assert ours["runtime"] == "[ 0 days, 0 hours, 0 minutes, 2 seconds ]"
    assert ours["msgPutTotalTodayNow"] == "1"
    assert ours["scheduleMessageOffset_1"] == "0,1"
    assert all(isinstance(value, str) for value in ours.values())


@pytest.mark.parametrize("name", MQADMIN)
def test_recorded_statistics_of_a_topic_and_a_group_are_answered_alike(name: str, tmp_path: Path) -> None:
    [of_topic] = exchanges(name, RequestCode.GET_TOPIC_STATS_INFO)
    [of_group] = exchanges(name, RequestCode.GET_CONSUME_STATS)
    assert of_topic.answer is not None
    assert of_group.answer is not None
    theirs = by_place(parse_body(of_topic.answer.body))
    consumed = by_place(parse_body(of_group.answer.body))
    group = of_group.request.command.ext_fields["consumerGroup"]
    with broker_at_work(tmp_path) as asking:
        asking.now = NOW
        for queue, stats in theirs.items():
            make_topic(asking, queue.topic)
            for _ in range(stats["maxOffset"]):
                asking.store.append(new_message(queue.topic, queue_id=queue.queue_id), stats["lastUpdateTimestamp"])
        for queue, stats in consumed.items():
            asking.broker.offsets.commit(group, queue.topic, queue.queue_id, stats["consumerOffset"])

        assert by_place(parse_body(asking.replay(of_topic).body)) == theirs
        assert by_place(parse_body(asking.replay(of_group).body)) == consumed


# Settings


def test_settings_change_while_the_broker_runs(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        answer = asking.ask(RequestCode.UPDATE_BROKER_CONFIG, b"transactionCheckMax=3\nbrokerPermission = 4")
        assert answer.code == 0

        told = parse_settings(asking.ask(RequestCode.GET_BROKER_CONFIG).body.decode())
        assert (told["transactionCheckMax"], told["brokerPermission"]) == ("3", "4")
        assert told["mappedFileSizeCommitLog"] == "1048576"
        assert asking.broker.settings.transaction_check_max == 3


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"storePathRootDir=/etc", ResponseCode.NO_PERMISSION),
        (b"brokerPermission=4\nbrokerConfigPath=/etc/passwd", ResponseCode.NO_PERMISSION),
        (b"brokerPermission=many", ResponseCode.INVALID_PARAMETER),
        (b"brokerPermission=4\nnobodyKnows=1", ResponseCode.INVALID_PARAMETER),
        (b"fileReservedTime=48\ndeleteWhen=25", ResponseCode.INVALID_PARAMETER),
        (b"brokerPermission=4\nmaxMessageSize=much", ResponseCode.INVALID_PARAMETER),
        (b"maxMessageSize=100\nbrokerPermission=9\nbrokerName=other", ResponseCode.INVALID_PARAMETER),
        (b"maxMessageSize=100\nmappedFileSizeCommitLog=4096", ResponseCode.INVALID_PARAMETER),
    ],
)
def test_a_change_that_cannot_be_is_refused_as_a_whole(text: bytes, code: int, tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        before = asking.broker.settings, asking.store.config

        assert asking.ask(RequestCode.UPDATE_BROKER_CONFIG, text).code == code
        assert (asking.broker.settings, asking.store.config) == before
        assert asking.store.append(new_message("T", bytes(200)), NOW).status == "PUT_OK"


def test_settings_of_store_and_groups_take_effect_at_once(tmp_path: Path) -> None:
    def change(text: bytes) -> None:
        assert asking.ask(RequestCode.UPDATE_BROKER_CONFIG, text).code == 0

    with broker_at_work(tmp_path, mappedFileSizeCommitLog="4096", deleteWhen="") as asking:
        change(b"autoCreateSubscriptionGroup=false")
        assert asking.broker.groups.find("New", NOW) is None
        change(b"autoCreateSubscriptionGroup=true")
        assert asking.broker.groups.find("New", NOW) is not None

        for _ in range(10):
            asking.append(new_message("T", bytes(700)))
        change(b"maxMessageSize=100")
        assert asking.store.append(new_message("T", bytes(101)), NOW).status == "MESSAGE_ILLEGAL"
        assert asking.store.append(new_message("T", bytes(100)), NOW).status == "PUT_OK"

        asking.store.flush()
        asking.now += 3_600_000 * 24 * 365 * 100  # the files are as old as the test
        list(asking.door.tick(asking.now))
        assert asking.store.log.min_offset == 0
        every_hour = ";".join(map(str, range(24)))
        change(f"deleteWhen={every_hour}\nfileReservedTime=1".encode())
        asking.now += 20_000
        list(asking.door.tick(asking.now))
        assert asking.store.log.min_offset > 0

        assert not asking.store.is_sync
        change(b"flushDiskType=SYNC_FLUSH\nbrokerName=broker-a")  # which it has anyway
        assert asking.store.is_sync


def test_every_setting_of_a_broker_is_either_changeable_or_taken_at_the_start(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        present = asking.broker.settings.texts()
        for name, value in present.items():
            others = {"true": "false", "false": "true", "0": "10"}
            other = others.get(value, f"{value}1" if len(value) < 9 else f"{value[:-1]}1")
            answer = asking.ask(RequestCode.UPDATE_BROKER_CONFIG, f"{name}={other}".encode())
            all_told = parse_settings(asking.ask(RequestCode.GET_BROKER_CONFIG).body.decode())
            if name == "innerClientAuthenticationCredentials":  # a secret
                assert (answer.code, name in all_told) == (29, False)
                continue
            told = all_told[name]
            assert (answer.code, told) == ((29, value) if name in AT_START else (0, other))


# Groups and topics


def _some_progress(asking: Asking) -> None:
    make_topic(asking, "T")
    make_topic(asking, "Ordered", 1, order=True)
    for number in range(5):
        asking.store.append(new_message("T"), NOW + number)
    asking.store.append(new_message("Ordered"), NOW)
    asking.broker.groups.find("G", NOW)
    asking.broker.offsets.commit("G", "T", 0, 3)
    asking.broker.offsets.commit("G", "Ordered", 0, 0)
    asking.broker.offsets.note_pull("G", "T", 0, 4)


def _subscribe(asking: Asking, group: str, topic: str) -> None:
    data = ConsumerData(
        group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", (Subscription(topic, "A"),)
    )
    client = asking.client_of(Peer(9, "192.0.2.9", 1), "c")
    asking.broker.clients.register_consumer(data, client)
    asking.door.outgoing()  # it is told of its group


def test_who_reads_a_topic_and_what_a_group_reads(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        _some_progress(asking)
        _subscribe(asking, "Online", "T")

        assert table(asking, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T") == {"groupList": ["G", "Online"]}
        assert table(asking, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="G") == {"topicList": ["T", "Ordered"]}
        told = table(asking, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="Online", topic="T")
        assert (told["group"], told["topic"], told["subscriptionData"]["subString"]) == ("Online", "T", "A")
        assert "subscriptionData" not in table(asking, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="G", topic="T")


def test_a_group_that_is_online_is_judged_by_what_it_has_subscribed_to(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        _some_progress(asking)
        _subscribe(asking, "G", "T")

        of_subscribed = by_place(table(asking, RequestCode.GET_CONSUME_STATS, consumerGroup="G"))
        of_named = by_place(table(asking, RequestCode.GET_CONSUME_STATS, consumerGroup="G", topic="Ordered"))

    first = MessageQueue("T", "broker-a", 0)
    assert of_subscribed.keys() == {first, first._replace(queue_id=1)}
    assert of_subscribed[first] == {
        "brokerOffset": 5,
        "consumerOffset": 3,
        "lastTimestamp": NOW + 2,
        "pullOffset": 4,
    }
    assert {queue.topic for queue in of_named} == {"Ordered"}


def test_how_far_all_groups_are_behind(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        _some_progress(asking)

        every = table(asking, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
        ordered = table(asking, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true")

    assert (every["totalDiff"], every["totalInflightDiff"], ordered["totalDiff"]) == (3, 1, 1)
    [stats] = [one["G"] for one in every["consumeStatsList"] if "G" in one]
    assert len(stats) == 2


def test_the_time_span_of_a_queue_and_of_what_was_consumed_of_it(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        _some_progress(asking)
        asking.now = NOW + 100

        told = table(asking, RequestCode.QUERY_CONSUME_TIME_SPAN, group="G", topic="T")["consumeTimeSpanSet"]

    assert told[0] == {
        "consumeTimeStamp": NOW + 2,
        "delayTime": 97,
        "maxTimeStamp": NOW + 4,
        "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "T"},
        "minTimeStamp": NOW,
    }
    assert (told[1]["minTimeStamp"], told[1]["delayTime"]) == (-1, 0)


@pytest.mark.parametrize("fields", [{}, {"topic": "T"}])
def test_a_group_takes_over_the_offsets_of_another(fields: dict[str, Any], tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        _some_progress(asking)

        asking.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="G", destGroup="Copy", **fields)

        assert asking.broker.offsets.get("Copy", "T", 0) == 3
        assert ("Ordered" in asking.broker.offsets.topics_of("Copy")) == (not fields)


def test_units_of_a_queue_are_listed(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        _some_progress(asking)
        fields: dict[str, Any] = {"topic": "T", "queueId": 0, "index": 1, "count": 2}

        told = table(asking, RequestCode.QUERY_CONSUME_QUEUE, **fields)
        missing = asking.ask(RequestCode.QUERY_CONSUME_QUEUE, **{**fields, "queueId": 9})

        queue = asking.store.queue("T", 0)
        assert queue is not None
        assert (told["minQueueIndex"], told["maxQueueIndex"]) == (0, 5)
        assert [one["physicOffset"] for one in told["queueData"]] == [one.physical_offset for one in queue.units(1, 2)]
        assert missing.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("code", [RequestCode.GET_TOPIC_STATS_INFO, RequestCode.QUERY_CONSUME_TIME_SPAN])
def test_a_topic_that_is_not_there_is_told_so(code: int, tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        assert asking.ask(code, topic="T", group="G").code == ResponseCode.TOPIC_NOT_EXIST


def test_queues_of_topics_that_are_not_there_are_deleted(tmp_path: Path) -> None:
    with broker_at_work(tmp_path, finds={"QUEUE-MISSING"}) as asking:
        _some_progress(asking)
        asking.append(new_message("Gone"))
        asking.append(new_message("SELF_TEST_TOPIC"))
        asking.broker.intake.put(new_message("T", pairs={"DELAY": "3"}), asking.now)

        assert asking.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0

        left = {topic for topic, _ in asking.store.queues()}
        assert left == {"T", "Ordered", "SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX"}


def test_rates_are_those_of_the_last_seconds(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        for _ in range(12):
            for _ in range(20):
                asking.append(new_message())
            asking.now += 10_000
            list(asking.door.tick(asking.now))
        asking.now += 10_000
        list(asking.door.tick(asking.now))

        told = table(asking, RequestCode.GET_BROKER_RUNTIME_INFO)["table"]["putTps"].split(" ")

    assert [float(rate) for rate in told] == [0.0, 100 / 60, 240 / 130]


def test_days_are_told_apart(tmp_path: Path) -> None:
    day = 86_400_000
    with broker_at_work(tmp_path) as asking:
        for count in (3, 2, 1):
            for _ in range(count):
                asking.append(new_message())
            asking.now += day
            list(asking.door.tick(asking.now))
        asking.append(new_message())
        told = table(asking, RequestCode.GET_BROKER_RUNTIME_INFO)["table"]

    begun = told["msgPutTotalYesterdayMorning"], told["msgPutTotalTodayMorning"], told["msgPutTotalTodayNow"]
    assert begun == ("5", "6", "7")


def test_what_a_consumer_was_given_is_counted(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        _some_progress(asking)
        _subscribe(asking, "G", "T")
        pull: dict[str, Any] = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": 0,
            "queueOffset": 1,
            "maxMsgNums": 32,
            "sysFlag": 4,
        }
        asking.ask(
            RequestCode.PULL_MESSAGE,
            **pull,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subVersion=0,
            subscription="*",
        )

        assert table(asking, RequestCode.GET_BROKER_RUNTIME_INFO)["table"]["msgGetTotalTodayNow"] == "4"
        asking.now += 60_000
        list(asking.door.tick(asking.now))
        of_group = table(asking, RequestCode.GET_CONSUME_STATS, consumerGroup="G")
        of_topic = table(asking, RequestCode.GET_TOPIC_STATS_INFO, topic="T")
        assert (of_group["consumeTps"], of_topic["topicPutTps"]) == (4 / 60, 5 / 60)


def _stats(asking: Asking, name: str, key: str) -> list[float]:
    """Return how many came in the last minute, and how many a second."""
    told = table(asking, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)["statsMinute"]
    return [told["sum"], told["tps"]]


def test_messages_are_counted_by_topic_and_by_group(tmp_path: Path) -> None:
    with broker_at_work(tmp_path, finds={"QUEUE-MISSING"}) as asking:
        unknown = asking.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T")
        assert (unknown.code, unknown.remark) == (1, "The stats <TOPIC_PUT_NUMS> <T> not exist")

        _some_progress(asking)
        for topic in "T", "Ordered":
            asking.now += 10_000
            list(asking.door.tick(asking.now))
            asking.append(new_message(topic))
        assert _stats(asking, "TOPIC_PUT_NUMS", "T") == [6, 6 / 20]
        assert _stats(asking, "TOPIC_PUT_NUMS", "Ordered") == [2, 2 / 20]
        for _ in range(10):
            asking.now += 10_000
            list(asking.door.tick(asking.now))
        assert _stats(asking, "TOPIC_PUT_NUMS", "T") == [0, 0.0]
        day = table(asking, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T")["statsDay"]
        assert day["sum"] == 6

        asking.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        gone = asking.ask(RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T")
        assert gone.code == 1


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"compareGroup": "A"}, {"0": 3, "1": 1}),
        ({"compareGroup": "B"}, {"0": 3, "1": 1}),
        ({"compareGroup": "C", "filterGroups": "B"}, {"0": 4}),
        ({"compareGroup": "A", "filterGroups": "A,B,C"}, {}),
        ({"compareGroup": "B", "filterGroups": "B"}, {"0": (1 << 63) - 1}),
    ],
)
def test_how_far_all_groups_have_come_is_told_as_5_3_3_does(
    fields: dict[str, str], told: dict[str, int], tmp_path: Path
) -> None:
    """The last is what 5.3.3 means to tell: its own groups lose their offsets when they are left out."""
    with broker_at_work(tmp_path) as asking:
        make_topic(asking, "T")
        for group, offsets in {"A": {0: 5}, "B": {0: 3, 1: 1}, "C": {0: 4}}.items():
            for queue_id, offset in offsets.items():
                asking.broker.offsets.commit(group, "T", queue_id, offset)

        found = table(asking, RequestCode.QUERY_CORRECTION_OFFSET, topic="T", **fields)["correctionOffsets"]
        assert {str(queue_id): offset for queue_id, offset in found.items()} == told
        assert asking.broker.offsets.get("B", "T", 0) == 3


def test_a_master_without_slaves_says_so_as_5_3_3_does(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        asking.append(new_message())
        assert table(asking, RequestCode.GET_BROKER_HA_STATUS) == {
            "haClientRuntimeInfo": {
                "lastReadTimestamp": 0,
                "lastWriteTimestamp": 0,
                "masterFlushOffset": 0,
                "maxOffset": 0,
                "transferredByteInSecond": 0,
            },
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": asking.store.log.end_offset,
        }
        assert asking.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, masterFlushOffset=0).code == 0


def test_several_topics_and_groups_are_deleted_at_once_or_none(tmp_path: Path) -> None:
    with broker_at_work(tmp_path, finds={"QUEUE-MISSING"}) as asking:
        _some_progress(asking)

        code = RequestCode.DELETE_TOPIC_IN_BROKER_LIST
        assert asking.ask(code, b'{"topicList":["T","SELF_TEST_TOPIC"]}').code == ResponseCode.INVALID_PARAMETER
        assert asking.broker.topics.get("T") is not None
        assert asking.ask(code, b'{"topicList":["T","Ordered"]}').code == 0
        assert asking.broker.topics.get("T") is asking.broker.topics.get("Ordered") is None
        with pytest.raises(FormatError):
            asking.ask(code, b'{"topicList":"T"}')

        asking.broker.groups.find("H", NOW)
        asking.broker.offsets.commit("H", "T", 0, 1)
        code = RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST
        assert asking.ask(code, b'{"cleanOffset":true,"groupNameList":["G","H"]}').code == 0
        assert asking.broker.groups.get("G") is asking.broker.groups.get("H") is None
        assert asking.broker.offsets.topics_of("H") == []


def test_what_is_old_enough_is_deleted_when_an_administrator_asks(tmp_path: Path) -> None:
    with broker_at_work(tmp_path, fileReservedTime="0", mappedFileSizeCommitLog="4096", deleteWhen="") as asking:
        for _ in range(40):
            asking.append(new_message("T", bytes(700)))
        asking.store.flush()
        asking.now += 3_600_000 * 24 * 365 * 100  # the files are as old as the test
        list(asking.door.tick(asking.now))
        assert asking.store.log.min_offset == 0

        assert asking.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0
        for _ in range(3):
            asking.now += 10_000
            list(asking.door.tick(asking.now))
        assert asking.store.log.min_offset >= 4096


@pytest.mark.parametrize(
    ("code", "fields", "listed"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Wide"}, "offsetTable"),
        (RequestCode.GET_CONSUME_STATS, {"topic": "Wide", "consumerGroup": "G"}, "offsetTable"),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Wide", "group": "G"}, "consumeTimeSpanSet"),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}, "consumeStatsList"),
        (
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "Wide", "group": "G", "timestamp": "-1", "isForce": "true"},
            "offsetTable",
        ),
    ],
)
def test_what_is_told_of_many_queues_is_found_in_pieces_between_others(
    code: int, fields: dict[str, Any], listed: str, tmp_path: Path
) -> None:
    with broker_at_work(tmp_path) as asking:
        make_topic(asking, "Wide", 300)
        asking.broker.groups.find("G", NOW)
        asking.broker.offsets.commit("G", "Wide", 299, 0)

        handled = [asking.handle(code, **fields) for _ in range(17)]
        pieces = 0
        answers: list[Any] = []
        while len(answers) < 16:
            answers += asking.door.tick(asking.now)
            pieces += 1

    assert handled[:16] == [[]] * 16
    [(_, refused)] = handled[16]
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "192.0.2.1:4000 already waits for 16 answers that take long: retry later",
    )
    assert pieces >= 6
    for _, answer in answers:
        told = parse_body(answer.body)[listed]
        if listed == "consumeStatsList":
            [told] = [one["G"][0]["offsetTable"] for one in told if "G" in one]
        assert (answer.code, len(told)) == (0, 300)
