"""Requests of administrators about topics, held against recorded ones of mqadmin 4.9.7 and 5.3.3."""

import contextlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.formats.bodies import parse_body, topic_members
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import TopicConfig, topics
from tests.cost import counted
from tests.engine.broker.asking import SETTINGS, Asking, broker_at_work
from tests.engine.store.live import NOW, half_full, new_message
from tests.traces import exchanges

CODES = (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_TOPIC_CONFIG, RequestCode.DELETE_TOPIC_IN_BROKER)


@pytest.mark.parametrize("name", ["mqadmin-4.9.7", "mqadmin-5.3.3", "go-delay_level"])
def test_recorded_requests_are_answered_alike(name: str, tmp_path: Path) -> None:
    recorded = exchanges(name, *CODES)
    assert recorded
    with broker_at_work(tmp_path) as asking:
        asking.broker.topics.put([TopicConfig("Trace_push_r533", 2, 2, 6, False, "SINGLE_TAG", 0, {})], NOW)
        for exchange in recorded:
            answer = asking.replay(exchange)
            assert exchange.answer is not None
            theirs = exchange.answer.command
            assert (answer.code, answer.ext_fields, answer.body) == (theirs.code, theirs.ext_fields, theirs.body)


def test_the_cost_of_deleting_queues_does_not_grow_with_other_topics(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        queues = asking.store.dispatcher.queues

        def steps(count: int) -> int:
            for name in (*map(str, range(count)), "gone"):
                queues.make(name, 0, asking.store.dispatcher.reached)
            queues._new.clear()  # as if all were written
            with counted() as counting:
                asking.broker.delete_queues(["gone"])
            assert asking.store.queue("gone", 0) is None
            for topic, _ in asking.store.queues():
                queues.let_go(topic)
            return counting.total

        assert steps(1000) < steps(1) + 100


def test_a_topic_is_made_changed_listed_and_deleted_with_its_queues(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"topic": "T", "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG"}
    with broker_at_work(tmp_path) as asking:
        made: dict[str, Any] = {
            "readQueueNums": 2,
            "writeQueueNums": 2,
            "attributes": "+message.type=FIFO,+cleanup.policy=DELETE",
        }
        asking.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields, **made)
        changed: dict[str, Any] = {
            "readQueueNums": 3,
            "writeQueueNums": 5,
            "attributes": "-cleanup.policy",
            "order": "true",
        }
        asking.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields, **changed)

        listed = asking.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        expected = TopicConfig("T", 3, 5, 6, True, "SINGLE_TAG", 0, {"message.type": "FIFO"})
        assert topics(parse_body(listed.body))["T"] == expected
        assert parse_body(asking.ask(RequestCode.GET_TOPIC_CONFIG, topic="T").body) == topic_members(expected)


def test_a_deleted_topic_has_neither_settings_nor_queues(tmp_path: Path) -> None:
    # Its messages stay in the log, and verify misses queues for them: so this store is not verified in the end.
    with contextlib.closing(MessageStore(tmp_path, StoreConfig(SETTINGS), now=NOW, usage=half_full)) as store:
        asking = Asking(BrokerController(store, NOW), NOW)
        asking.broker.topics.put([TopicConfig("T", 1, 1, 6, False, "SINGLE_TAG", 0, {})], NOW)
        asking.append(new_message("T"))

        assert asking.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T").code == 0

        assert asking.store.queue("T", 0) is None
        assert asking.ask(RequestCode.GET_TOPIC_CONFIG, topic="T").code == ResponseCode.TOPIC_NOT_EXIST
        assert asking.append(new_message("T")) > 0
        assert asking.store.queue("T", 0)


@pytest.mark.parametrize("topic", ["TBW102", "DefaultCluster", "broker-a", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX", " "])
def test_the_brokers_own_topics_are_neither_made_nor_deleted(topic: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "defaultTopic": "",
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    with broker_at_work(tmp_path) as asking:
        before = dict(asking.broker.topics.configs)

        made = asking.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, **fields)
        deleted = asking.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)

        assert (made.code, deleted.code) == (ResponseCode.INVALID_PARAMETER, ResponseCode.INVALID_PARAMETER)
        assert asking.broker.topics.configs == before


def test_of_a_list_all_topics_are_made_or_none(tmp_path: Path) -> None:
    members = [topic_members(TopicConfig(name, 1, 1, 6, False, "SINGLE_TAG", 0, {})) for name in ("A", "B", "TBW102")]
    with broker_at_work(tmp_path) as asking:
        refused = asking.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, _body(members))
        assert (refused.code, asking.broker.topics.get("A")) == (ResponseCode.INVALID_PARAMETER, None)

        assert asking.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, _body(members[:2])).code == 0
        assert {"A", "B"} <= asking.broker.topics.configs.keys()


def _body(members: list[dict[str, object]]) -> bytes:
    return orjson.dumps({"topicConfigList": members})
