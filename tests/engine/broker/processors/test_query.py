"""Questions about messages and queues, held against the answers of recorded brokers of 5.3.3."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.broker.waiting_room import PIECES
from mqtool.formats.codes import RequestCode, ResponseCode
from tests.engine.broker.asking import Asking, body_of, broker_at_work
from tests.engine.store.live import NOW, new_message
from tests.traces import Exchange, exchanges

QUESTIONS = (RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID)


@pytest.mark.parametrize("name", ["java-4.9.7-query", "java-5.3.3-query"])
def test_recorded_questions_for_a_message_are_answered_alike(name: str, tmp_path: Path) -> None:
    [by_key, by_id, by_unique_key] = exchanges(name, *QUESTIONS)
    with broker_at_work(tmp_path) as asking:
        asking.append_recorded(_answer(by_id).body)

        for exchange in (by_key, by_id, by_unique_key):
            answer, recorded = asking.replay(exchange), _answer(exchange)
            assert (answer.code, answer.ext_fields) == (recorded.code, recorded.ext_fields)
            assert body_of(answer) == recorded.body


def _answer(exchange: Exchange) -> Any:
    assert exchange.answer is not None
    return exchange.answer.command


@pytest.mark.parametrize("name", ["java-4.9.7-pull", "java-5.3.3-pull"])
def test_recorded_questions_for_offsets_are_answered_alike(name: str, tmp_path: Path) -> None:
    codes = (
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    )
    recorded = exchanges(name, *codes)
    [earliest] = [exchange for exchange in recorded if exchange.code == RequestCode.GET_EARLIEST_MSG_STORETIME]
    fields = earliest.request.command.ext_fields
    with broker_at_work(tmp_path) as asking:
        asking.now = int(_answer(earliest).ext_fields["timestamp"])
        for _ in range(3):
            asking.append(new_message(fields["topic"], queue_id=int(fields["queueId"])))

        for exchange in recorded:
            answer = asking.replay(exchange)
            assert (answer.code, answer.ext_fields) == (0, _answer(exchange).ext_fields)


def test_a_key_leads_to_the_messages_of_its_kind_in_the_order_of_arrival(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        as_key = asking.append(new_message(pairs={"KEYS": "a b", "UNIQ_KEY": "U1", "TAGS": "b"}))
        as_unique_key = asking.append(new_message(pairs={"KEYS": "c", "UNIQ_KEY": "b"}))
        asking.append(new_message("Other", pairs={"KEYS": "b"}))

        assert _found(asking, "b") == [as_key, as_unique_key]
        assert _found(asking, "b", indexType="K") == [as_key]
        assert _found(asking, "b", indexType="U") == [as_unique_key]
        assert _found(asking, "b", _UNIQUE_KEY_QUERY="true") == [as_unique_key]
        assert _found(asking, "a b") == []


def test_a_tag_leads_to_messages_where_the_index_has_tags(tmp_path: Path) -> None:
    (tmp_path / "rocksdbstore").mkdir()  # as brokers from 5.4 on, which index tags, make it
    with broker_at_work(tmp_path) as asking:
        tagged = asking.append(new_message(pairs={"TAGS": "b"}))
        asking.append(new_message(pairs={"KEYS": "T#b"}))

        assert _found(asking, "b", indexType="T") == [tagged]


def test_a_query_returns_the_newest_messages_and_no_more_than_it_asks_for(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        offsets = [asking.append(new_message(pairs={"KEYS": "k", "UNIQ_KEY": "u"})) for _ in range(70)]

        assert _found(asking, "k", maxNum=3) == offsets[-3:]
        assert _found(asking, "k", maxNum=1000) == offsets[-64:]
        assert _found(asking, "u", maxNum=1, _UNIQUE_KEY_QUERY="true") == offsets[-32:]


def _found(asking: Asking, key: str, **given: Any) -> list[int]:
    header = {"topic": "TopicTest", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
    answer = asking.ask(RequestCode.QUERY_MESSAGE, **{**header, **given})
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        assert answer.remark == "can not find message, maybe time range not correct"
    return [int.from_bytes(record[28:36], "big") for record in answer.parts]


def test_an_address_where_no_message_begins_is_told_so(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        first = asking.append(new_message())
        for offset in (-1, first + 1, asking.store.log.end_offset, 1 << 40):
            answer = asking.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
            assert (answer.code, answer.remark) == (
                ResponseCode.SYSTEM_ERROR,
                f"can not find message by the offset, {offset}",
            )


def test_a_queue_that_nobody_wrote_to_is_empty(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        queue: dict[str, Any] = {"topic": "TopicTest", "queueId": 7}

        assert asking.ask(RequestCode.GET_MAX_OFFSET, **queue).ext_fields == {"offset": "0"}
        assert asking.ask(RequestCode.GET_MIN_OFFSET, **queue).ext_fields == {"offset": "0"}
        assert asking.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=1, **queue).ext_fields == {"offset": "0"}
        assert asking.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue).ext_fields == {"timestamp": "-1"}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.data())
def test_a_time_leads_to_the_message_that_its_boundary_means(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], data: st.DataObject
) -> None:
    times = [NOW + sum(steps[: count + 1]) for count in range(len(steps))]
    timestamp = data.draw(st.integers(NOW - 1, times[-1] + 1))
    with broker_at_work(tmp_path_factory.mktemp("store")) as asking:
        for asking.now in times:
            asking.append(new_message())

        lower = asking.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic="TopicTest", queueId=0, timestamp=timestamp)
        upper = asking.ask(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            topic="TopicTest",
            queueId=0,
            timestamp=timestamp,
            boundaryType="UPPER",
        )

    # What remoting.md 3.2 says of code 29.
    assert lower.ext_fields["offset"] == str(sum(time < timestamp for time in times))
    assert upper.ext_fields["offset"] == str(max(0, sum(time <= timestamp for time in times) - 1))


def test_a_query_through_thousands_of_entries_is_answered_in_pieces_between_others(tmp_path: Path) -> None:
    with broker_at_work(tmp_path, maxIndexNum="100000") as asking:
        for _ in range(3):
            asking.append(new_message(pairs={"KEYS": " ".join(["k"] * 10_000)}))
        last = asking.append(new_message(pairs={"KEYS": "k other"}))
        before: dict[str, Any] = {"topic": "TopicTest", "beginTimestamp": 0, "endTimestamp": NOW - 1, "maxNum": 64}

        assert asking.handle(RequestCode.QUERY_MESSAGE, key="k", **before) == []
        others = 0
        while not (sent := [*asking.door.tick(asking.now)]):
            assert asking.ask(RequestCode.GET_MIN_OFFSET, topic="TopicTest", queueId=0).code == 0
            assert asking.door.next_tick(asking.now) == asking.now
            others += 1

        [(to, answer)] = sent
        assert (to, answer.opaque, answer.code) == (asking.client, 12, ResponseCode.QUERY_NOT_FOUND)
        assert others >= 20
        found = asking.ask(RequestCode.QUERY_MESSAGE, key="other", **{**before, "endTimestamp": NOW})
        assert body_of(found) == bytes(asking.store.log.record(last))


def test_a_query_at_work_ends_with_the_index_file_that_expires_and_with_its_client(tmp_path: Path) -> None:
    with broker_at_work(tmp_path, finds=["INDEX-MISSING"], maxIndexNum="3000") as asking:
        for _ in range(3):
            asking.append(new_message(pairs={"KEYS": " ".join(["k"] * 2500)}))
        fields: dict[str, Any] = {"topic": "TopicTest", "beginTimestamp": 0, "endTimestamp": NOW - 1, "maxNum": 64}
        assert asking.handle(RequestCode.QUERY_MESSAGE, key="k", **fields) == []
        asking.door.tick(asking.now)
        for remove in asking.store.index.remove_expired(asking.store.log.end_offset):
            remove()

        while not (sent := [*asking.door.tick(asking.now)]):
            pass
        assert sent[0][1].code == ResponseCode.QUERY_NOT_FOUND

        asking.append(new_message(pairs={"KEYS": " ".join(["k"] * 2500)}))
        assert asking.handle(RequestCode.QUERY_MESSAGE, key="k", **fields) == []
        asking.door.closed(asking.client, asking.now)
        assert [*asking.door.tick(asking.now)] == []
        assert asking.broker.room.count(PIECES) == 0
