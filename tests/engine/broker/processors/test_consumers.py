"""Clients that come and go, their locks and offsets, and what a broker passes on to them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from mqtool.engine.broker.clients import LOOK_INTERVAL_MS, SILENCE_MS
from mqtool.engine.broker.operations.client_calls import CALL_MS
from mqtool.engine.broker.queue_locks import LIFE_MS
from mqtool.formats.bodies import ConsumerData, Heartbeat, MessageQueue, Subscription, build_body, build_heartbeat
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import TopicConfig, parse_table
from mqtool.formats.message import message_of
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import ONEWAY, RESPONSE, Outgoing, RemotingCommand
from tests.engine.broker.asking import Asking, broker_at_work
from tests.engine.store.live import new_message

GROUP, TOPIC = "G", "T"
FIRST, SECOND = Peer(11, "192.0.2.11", 4000), Peer(12, "192.0.2.12", 4000)


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    with broker_at_work(tmp_path) as found:
        found.broker.topics.put([TopicConfig(TOPIC, 2, 2, 6, False, "SINGLE_TAG", 0, {})], found.now)
        yield found


def beat(
    asking: Asking,
    peer: Peer,
    *topics: str,
    model: str = "CLUSTERING",
    language: str = "JAVA",
    version: int = 409,
    group: str = GROUP,
) -> list[Outgoing]:
    """Send the heartbeat of a consumer, named by the number of its peer; return the notes."""
    subscriptions = tuple(Subscription(topic, "*", version=1) for topic in topics or (TOPIC,))
    data = ConsumerData(group, "CONSUME_PASSIVELY", model, "CONSUME_FROM_FIRST_OFFSET", subscriptions)
    body = build_heartbeat(Heartbeat(f"c{peer.id}", (), (data,)))
    command = RemotingCommand(RequestCode.HEART_BEAT, 0, 1, {}, body, version=version, language=language)
    *notes, (to, answer) = asking.door.handle(command, peer, asking.now)
    assert (to, answer.code, answer.is_response) == (peer, 0, True)
    return notes


def noted(outgoing: list[Outgoing]) -> list[Peer | RemotingCommand]:
    """Return who is told that the members of the group have changed; whatever else is sent stands for itself."""
    note = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ONEWAY, {"consumerGroup": GROUP}
    return [peer if (command.code, command.flag, command.ext_fields) == note else command for peer, command in outgoing]


def members(asking: Asking, group: str = GROUP) -> list[str]:
    answer = asking.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
    if answer.code:
        assert (answer.code, answer.remark) == (1, f"no consumer for this group, {group}")
        return []
    found: list[str] = orjson.loads(answer.body)["consumerIdList"]
    return found


# Coming and going


def test_a_heartbeat_of_many_groups_changes_each_table_once(asking: Asking, tmp_path: Path) -> None:
    before = asking.broker.groups.version.counter, asking.broker.topics.version.counter
    groups = [ConsumerData(f"G{i}", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET") for i in range(50)]
    asking.handle(RequestCode.HEART_BEAT, build_heartbeat(Heartbeat("c", (), tuple(groups))))
    after = asking.broker.groups.version.counter, asking.broker.topics.version.counter
    assert after == (before[0] + 1, before[1] + 1)
    kept = parse_table((tmp_path / "config" / "topics.json").read_bytes())
    assert {f"%RETRY%G{i}" for i in range(50)} <= {*kept["topicConfigTable"]}


def test_members_are_told_when_one_comes_or_goes_and_when_topics_change(asking: Asking) -> None:
    assert members(asking) == []
    assert noted(beat(asking, FIRST)) == [FIRST]
    assert noted(beat(asking, FIRST)) == []
    assert noted(beat(asking, SECOND)) == [FIRST, SECOND]
    assert members(asking) == ["c11", "c12"]
    assert noted(beat(asking, SECOND, TOPIC, "U")) == [FIRST, SECOND]

    outgoing = asking.handle(RequestCode.UNREGISTER_CLIENT, peer=SECOND, clientID="c12", consumerGroup=GROUP)
    assert outgoing[-1][1].code == 0
    assert noted(outgoing[:-1]) == [FIRST]
    assert members(asking) == ["c11"]
    assert asking.broker.topics.get(f"%RETRY%{GROUP}") is not None


def test_the_end_of_a_connection_is_a_good_bye(asking: Asking) -> None:
    beat(asking, FIRST)
    beat(asking, SECOND)
    assert noted([*asking.door.closed(FIRST, asking.now)]) == [SECOND]
    assert [*asking.door.closed(FIRST, asking.now)] == []
    assert members(asking) == ["c12"]
    assert noted([*asking.door.closed(SECOND, asking.now)]) == []
    assert members(asking) == []


def test_whoever_is_silent_for_two_minutes_is_forgotten(asking: Asking) -> None:
    beat(asking, FIRST)
    asking.now += SILENCE_MS
    beat(asking, SECOND)
    assert [*asking.door.tick(asking.now)] == []
    asking.now += LOOK_INTERVAL_MS
    assert noted([*asking.door.tick(asking.now)]) == [SECOND]
    assert members(asking) == ["c12"]


def test_nobody_is_told_in_a_broadcast_or_where_a_group_does_not_want_it(asking: Asking) -> None:
    assert beat(asking, FIRST, model="BROADCASTING") == []
    asking.broker.groups.update({"groupName": "Quiet", "notifyConsumerIdsChangedEnable": False}, asking.now)
    assert beat(asking, FIRST, group="Quiet") == []


def test_a_group_that_may_not_be_made_stays_unknown(asking: Asking) -> None:
    asking.broker.groups.creates = False
    assert beat(asking, FIRST) == []
    assert members(asking) == []


def test_producers_come_and_go(asking: Asking) -> None:
    body = build_heartbeat(Heartbeat("p1", ("P",), ()))
    asking.ask(RequestCode.HEART_BEAT, body, FIRST)
    answer = asking.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="P")
    assert orjson.loads(answer.body) == {
        "connectionSet": [
            {"clientAddr": "192.0.2.11:4000", "clientId": "p1", "language": "PYTHON", "version": 409},
        ]
    }
    found = asking.broker.clients.producer("p1")
    assert found is not None
    assert found.session is asking.door.session(FIRST)
    everyone = orjson.loads(asking.ask(RequestCode.GET_ALL_PRODUCER_INFO).body)["data"]
    assert [one["clientId"] for one in everyone["P"]] == ["p1"]

    asking.ask(RequestCode.UNREGISTER_CLIENT, peer=FIRST, clientID="p1", producerGroup="P", consumerGroup="")

    assert asking.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="P").code == 1
    assert asking.broker.clients.producer("p1") is None


def test_the_connections_of_a_group_are_told_with_what_it_wants(asking: Asking) -> None:
    answer = asking.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=GROUP)
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    beat(asking, FIRST, language="GO", version=317)
    table = orjson.loads(asking.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=GROUP).body)
    assert table["connectionSet"] == [
        {"clientAddr": "192.0.2.11:4000", "clientId": "c11", "language": "GO", "version": 317}
    ]
    assert (table["consumeType"], table["messageModel"], table["consumeFromWhere"]) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    assert table["subscriptionTable"][TOPIC]["subString"] == "*"


@pytest.mark.parametrize(
    ("kind", "expression", "code"),
    [("TAG", "A", 0), ("SQL92", "a > 3", 0), ("SQL92", "a >", 23), ("XPATH", "a", 23)],
)
def test_a_filter_is_checked_when_a_consumer_starts(asking: Asking, kind: str, expression: str, code: int) -> None:
    subscription = {"topic": TOPIC, "subString": expression, "expressionType": kind}
    body = build_body({"clientId": "c", "group": GROUP, "subscriptionData": subscription})
    assert asking.ask(RequestCode.CHECK_CLIENT_CONFIG, body).code == code


# Locks


def locks(asking: Asking, client_id: str, *queue_ids: int, code: int = RequestCode.LOCK_BATCH_MQ) -> list[int]:
    queues = [MessageQueue(TOPIC, "broker-a", queue_id) for queue_id in queue_ids]
    members = [{"topic": one.topic, "brokerName": one.broker_name, "queueId": one.queue_id} for one in queues]
    answer = asking.ask(code, build_body({"consumerGroup": GROUP, "clientId": client_id, "mqSet": members}))
    return [one["queueId"] for one in orjson.loads(answer.body or b"{}").get("lockOKMQSet", [])]


def test_a_queue_is_locked_by_one_until_it_lets_go_or_stays_away(asking: Asking) -> None:
    assert locks(asking, "c1") == []
    assert not asking.broker.locks._locks  # a group without locks takes no room
    assert locks(asking, "c1", 0, 1) == [0, 1]
    assert locks(asking, "c2", 0, 1) == []
    assert asking.broker.locks.is_any_held(GROUP, asking.now)
    locks(asking, "c2", 0, code=RequestCode.UNLOCK_BATCH_MQ)
    assert locks(asking, "c2", 0) == []
    locks(asking, "c1", 0, code=RequestCode.UNLOCK_BATCH_MQ)
    assert locks(asking, "c2", 0, 1) == [0]
    asking.now += LIFE_MS
    assert locks(asking, "c1", 1) == [1]
    assert locks(asking, "c1", 0) == []
    asking.now += 1
    assert locks(asking, "c1", 0) == [0]
    asking.now += LIFE_MS + 1
    assert not asking.broker.locks.is_any_held(GROUP, asking.now)


def test_what_an_orderly_group_sends_to_its_retry_topic_is_a_dead_letter(asking: Asking) -> None:
    def retry() -> int:
        header = {"a": "P", "b": f"%RETRY%{GROUP}", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": asking.now, "h": 0}
        given: dict[str, Any] = {**header, "i": "", "j": 1}
        assert asking.ask(RequestCode.SEND_MESSAGE_V2, b"x", **given).code == 0
        dead = asking.store.queue(f"%DLQ%{GROUP}", 0)
        return dead.next_offset if dead else 0

    beat(asking, FIRST)
    assert retry() == 0
    locks(asking, "c11", 0)
    assert retry() == 1
    asking.now += LIFE_MS + 1
    assert retry() == 1


# Offsets


def test_a_group_without_an_offset_begins_at_the_start_of_a_young_queue(asking: Asking) -> None:
    def query(**given: Any) -> tuple[int, str | None]:
        fields: dict[str, Any] = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, **given}
        answer = asking.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields)
        return answer.code, answer.ext_fields.get("offset")

    assert query() == (ResponseCode.QUERY_NOT_FOUND, None)
    asking.append(new_message(TOPIC))
    assert query() == (0, "0")
    assert query(setZeroIfNotFound="false") == (ResponseCode.QUERY_NOT_FOUND, None)
    update: dict[str, Any] = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
    assert asking.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **update).code == 26
    asking.broker.groups.find(GROUP, asking.now)
    assert asking.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=-1, **update).code == 0
    assert query(setZeroIfNotFound="false") == (ResponseCode.QUERY_NOT_FOUND, None)
    asking.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **update)
    assert query() == (0, "1")
    assert asking.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **{**update, "topic": "No"}).code == 17
    for made_up in (-2, 2, 1 << 30):
        answer = asking.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=1, **{**update, "queueId": made_up})
        assert (answer.code, answer.remark) == (29, f"Topic {TOPIC} has no queue {made_up}")
    assert {*asking.broker.offsets.of(GROUP, TOPIC)} <= {0, 1}


def test_offsets_of_queues_that_a_topic_had_before_are_still_taken(asking: Asking) -> None:
    asking.broker.groups.find(GROUP, asking.now)
    commit: dict[str, Any] = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1, "commitOffset": 5}
    asking.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **commit)
    asking.broker.topics.put([TopicConfig(TOPIC, 1, 1, 6, False, "SINGLE_TAG", 0, {})], asking.now)
    assert asking.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **{**commit, "commitOffset": 7}).code == 0
    assert asking.broker.offsets.get(GROUP, TOPIC, 1) == 7


# Resets


def reset(asking: Asking, **given: Any) -> list[Outgoing]:
    fields: dict[str, Any] = {"topic": TOPIC, "group": GROUP, "timestamp": -1, "isForce": "true", **given}
    return asking.handle(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)


def test_a_reset_by_time_goes_to_the_first_message_from_then_on(asking: Asking) -> None:
    asking.broker.groups.find(GROUP, asking.now)
    times = []
    for _ in range(3):
        times.append(asking.now)
        asking.append(new_message(TOPIC))
        asking.now += 10
    for timestamp, expected in ((times[0], 0), (times[1], 1), (times[1] + 1, 2), (asking.now, 3), (-1, 3)):
        [(_, answer)] = reset(asking, timestamp=timestamp, queueId=0)
        assert answer.code == 0
        assert asking.broker.offsets.get(GROUP, TOPIC, 0) == expected
    [(_, answer)] = reset(asking, timestamp=times[2])
    assert [asking.broker.offsets.get(GROUP, TOPIC, queue_id) for queue_id in (0, 1)] == [2, 0]


def test_resets_that_cannot_be_are_refused(asking: Asking) -> None:
    asking.append(new_message(TOPIC))
    codes = [asking_code for [(_, answer)] in [reset(asking)] for asking_code in [answer.code]]
    asking.broker.groups.find(GROUP, asking.now)
    for given in ({"topic": "No"}, {"queueId": 2}, {"queueId": 0, "offset": 3}, {"queueId": 0, "offset": 2}):
        [(_, answer)] = reset(asking, **given)
        codes.append(answer.code)
    assert codes == [26, 17, 1, 1, 0]


def test_consumers_reset_themselves_where_the_broker_is_set_to_that(asking: Asking) -> None:
    asking.broker.configure(asking.broker.settings.updated({"useServerSideResetOffset": "false"})[0])
    beat(asking, FIRST)
    beat(asking, SECOND, language="CPP", version=333)
    asking.append(new_message(TOPIC))
    [(_, answer)] = reset(asking)
    assert (answer.code, answer.remark) == (1, f"THe consumer group <{GROUP}> not exist")
    for queue_id in (0, 1):
        asking.broker.offsets.commit(GROUP, TOPIC, queue_id, 0)

    (java, pushed), (cpp, list_form), (to, answer) = reset(asking)

    assert (java, cpp, to) == (FIRST, SECOND, asking.client)
    assert (pushed.code, pushed.flag) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ONEWAY)
    assert pushed.ext_fields["group"] == GROUP
    first = '{"brokerName":"broker-a","queueId":0,"topic":"T"}:1'
    second = '{"brokerName":"broker-a","queueId":1,"topic":"T"}:0'
    assert pushed.body == answer.body == f'{{"offsetTable":{{{first},{second}}}}}'.encode()
    assert orjson.loads(list_form.body)["offsetTable"][0] == {
        "brokerName": "broker-a",
        "offset": 1,
        "queueId": 0,
        "topic": "T",
    }
    assert asking.broker.offsets.get(GROUP, TOPIC, 0) == 0


# Questions that are passed on


def test_a_consumer_is_asked_for_its_running_info_and_its_answer_comes_back(asking: Asking) -> None:
    beat(asking, FIRST)
    fields: dict[str, Any] = {"consumerGroup": GROUP, "clientId": "c11", "jstackEnable": "false"}
    [(to, call)] = asking.handle(RequestCode.GET_CONSUMER_RUNNING_INFO, **fields)
    assert (to, call.code, call.flag) == (FIRST, RequestCode.GET_CONSUMER_RUNNING_INFO, 0)
    assert call.ext_fields == fields

    reply = RemotingCommand(0, RESPONSE, call.opaque, {}, b'{"properties":{}}')
    [(back, answer)] = asking.door.handle(reply, FIRST, asking.now)

    assert (back, answer.code, answer.opaque, answer.body) == (asking.client, 0, 12, b'{"properties":{}}')
    assert [*asking.door.handle(reply, FIRST, asking.now)] == []


def test_who_asks_is_told_when_the_consumer_is_away_old_or_silent(asking: Asking) -> None:
    fields: dict[str, Any] = {"consumerGroup": GROUP, "clientId": "c11", "jstackEnable": "false"}
    assert asking.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **fields).code == 1
    beat(asking, FIRST, version=61)
    assert asking.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **fields).code == 1
    beat(asking, FIRST)
    for pass_time in (True, False):
        assert len(asking.handle(RequestCode.GET_CONSUMER_RUNNING_INFO, **fields)) == 1
        if pass_time:
            asking.now += CALL_MS
            [(_, answer)] = asking.door.tick(asking.now)
        else:
            [(_, answer)] = asking.door.closed(FIRST, asking.now)
        assert (answer.code, answer.opaque) == (ResponseCode.CONSUME_MSG_TIMEOUT, 12)


def test_one_message_is_consumed_on_demand(asking: Asking) -> None:
    beat(asking, FIRST)
    result = asking.store.append(new_message(TOPIC, b"again"), asking.now)
    fields: dict[str, Any] = {"consumerGroup": GROUP, "clientId": "c11", "msgId": result.message_id}

    [(to, call)] = asking.handle(RequestCode.CONSUME_MESSAGE_DIRECTLY, **fields)

    assert (to, call.code) == (FIRST, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    assert message_of(call.body, 0).body == b"again"
    unknown: dict[str, Any] = {**fields, "msgId": result.message_id[:-4] + "7FFF"}
    assert asking.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, **unknown).code == 1


def test_the_state_of_all_consumers_of_a_group_is_gathered(asking: Asking) -> None:
    fields: dict[str, Any] = {"topic": TOPIC, "group": GROUP}
    assert asking.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **fields).code == 1
    beat(asking, FIRST)
    beat(asking, SECOND)
    asked = asking.handle(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **fields)
    assert [(peer, one.code) for peer, one in asked] == [(FIRST, 221), (SECOND, 221)]

    table = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:7}}'
    first = RemotingCommand(0, RESPONSE, asked[0][1].opaque, {}, table)
    assert [*asking.door.handle(first, FIRST, asking.now)] == []
    [(to, answer)] = asking.door.closed(SECOND, asking.now)[:1]  # type: ignore[index]

    assert (to, answer.opaque) == (asking.client, 12)
    assert answer.body == b'{"consumerTable":{"c11":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:7}}}'


def test_a_consumer_that_answers_nonsense_is_left_out_of_the_state_of_its_group(asking: Asking) -> None:
    beat(asking, FIRST)
    [(_, call)] = asking.handle(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic=TOPIC, group=GROUP)

    nonsense = RemotingCommand(0, RESPONSE, call.opaque, {}, b'{"messageQueueTable":{"no queue":7}}')
    [(to, answer)] = asking.door.handle(nonsense, FIRST, asking.now)

    assert (to, answer.opaque, answer.body) == (asking.client, 12, b'{"consumerTable":{}}')


# Groups


def test_groups_are_made_listed_and_deleted(asking: Asking) -> None:
    def make(name: str, **given: Any) -> int:
        body = build_body({"groupName": name, **given})
        return asking.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body).code

    assert [make("New", retryMaxTimes=2), make(""), make("a b"), make("x" * 121)] == [0, 29, 29, 29]
    answer = asking.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    table = orjson.loads(answer.body)
    assert table["subscriptionGroupTable"]["New"]["retryMaxTimes"] == 2
    assert int(answer.ext_fields["totalGroupNum"]) == len(table["subscriptionGroupTable"])
    assert orjson.loads(asking.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="New").body)["groupName"] == "New"
    assert asking.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="No").code == 26
    forbidden = asking.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, group="New", topic=TOPIC, readable="false")
    assert orjson.loads(forbidden.body) == {"group": "New", "readable": False, "topic": TOPIC}

    asking.broker.offsets.commit("New", TOPIC, 0, 3)
    asking.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="New", cleanOffset="true")

    assert asking.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="New").code == 26
    assert asking.broker.offsets.topics_of("New") == []

    both = build_body({"groupConfigList": [{"groupName": "A"}, {"groupName": "B"}]})
    assert asking.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, both).code == 0
    assert asking.broker.groups.get("B") is not None
