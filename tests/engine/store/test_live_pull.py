"""What a running broker reads for a pull, held against the pull that reads stores at rest, and against its limits."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqtool.engine.store.live_pull import MAX_UNITS, GetMessageResult, PullFilter, fetch
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.pull import MessageFilter, StoreStatus, pull
from mqtool.engine.store.queue_view import open_queue
from mqtool.engine.store.reader import StoreReader
from mqtool.formats.filters import compile_sql92, parse_tags
from mqtool.formats.message import Message, message_of
from tests.engine.store.live import NOW, append_all, half_full, new_message, opened
from tests.golden import copy_of, golden_store


def records(fetched: GetMessageResult) -> list[bytes]:
    """Return the records that a client cuts out of the body."""
    body, found = b"".join(fetched.parts), []
    while body:
        size = int.from_bytes(body[:4], "big")
        found.append(body[:size])
        body = body[size:]
    return found


def messages(fetched: GetMessageResult) -> list[Message]:
    return [message_of(record, 0) for record in records(fetched)]


@pytest.fixture(scope="module", params=["mixed-533-clean", "mixed-497-clean", "retry-533-clean"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[MessageStore, StoreReader]:
    """Open a store that a real broker wrote, for the two readers."""
    store = MessageStore(copy_of(request.param, tmp_path_factory.mktemp("live")), now=NOW, usage=half_full)
    request.addfinalizer(store.close)
    return store, StoreReader(golden_store(request.param))


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_live_pull_and_a_pull_of_the_store_at_rest_find_the_same(
    both: tuple[MessageStore, StoreReader], data: st.DataObject
) -> None:
    store, reader = both
    key = data.draw(st.sampled_from(sorted(store.queues())))
    queue, view = store.queue(*key), open_queue(reader, *key)
    assert queue is not None
    assert view is not None
    offset = data.draw(st.integers(queue.min_offset(store.log.min_offset) - 2, queue.next_offset + 2))
    count = data.draw(st.integers(1, 9))
    tags = data.draw(st.sampled_from(["*", "TagA", "TagB || TagC", "nothing"]))
    sql = data.draw(st.sampled_from([None, "TAGS = 'TagA'", "KEYS IS NULL", "a > 3"]))
    given_tags, compiled = parse_tags(tags), compile_sql92(sql) if sql else None
    codes = None if tags == "*" else given_tags.codes

    found = fetch(store, queue, offset, count, PullFilter(codes, compiled))
    expected = pull(view, reader, offset, count, MessageFilter(given_tags, compiled))

    assert (found.status, found.min_offset, found.max_offset) == (
        expected.store_status,
        expected.min_offset,
        expected.max_offset,
    )
    assert found.next_offset == expected.next_offset
    assert [message.queue_offset for message in messages(found)] == [one.queue_offset for one in expected.messages]
    assert [message.body for message in messages(found)] == [one.body for one in expected.messages]


def test_a_queue_that_is_not_there_is_one_without_messages(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert fetch(store, store.queue("T", 0), 7, 32) == GetMessageResult(StoreStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)


def test_a_pull_ends_at_32_messages_and_at_256_kib_but_has_at_least_one(tmp_path: Path) -> None:
    with opened(tmp_path, settings={"mappedFileSizeCommitLog": str(1 << 22)}) as store:
        append_all(store, [new_message("Small", b"x") for _ in range(40)])
        append_all(store, [new_message("Large", bytes(100_000)) for _ in range(4)])
        append_all(store, [new_message("Huge", bytes(300_000)) for _ in range(2)])

        counts = [
            [(found.message_count, found.next_offset), len(records(found))]
            for found in (fetch(store, store.queue(topic, 0), 0, 50) for topic in ("Small", "Large", "Huge"))
        ]

    assert counts == [[(32, 32), 32], [(2, 2), 2], [(1, 1), 1]]


def test_a_pull_looks_at_800_units_and_says_where_to_go_on(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append_all(store, [new_message(pairs={"TAGS": "A"}) for _ in range(1000)] + [new_message(pairs={"TAGS": "B"})])
        queue, only_b = store.queue("TopicTest", 0), PullFilter(parse_tags("B").codes)

        first = fetch(store, queue, 0, 32, only_b)
        second = fetch(store, queue, first.next_offset, 32, only_b)

        assert (first.status, first.next_offset) == (StoreStatus.NO_MATCHED_MESSAGE, MAX_UNITS)
        assert (second.status, second.next_offset) == (StoreStatus.FOUND, 1001)
        assert [message.tags for message in messages(second)] == ["B"]


def test_a_pull_for_more_messages_than_there_can_be_is_one_for_32(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append_all(store, [new_message() for _ in range(100)])
        queue = store.queue("TopicTest", 0)
        assert fetch(store, queue, 5, (1 << 31) - 1).next_offset == 5 + 32
        assert fetch(store, queue, 5, 0).next_offset == 5 + 1


def test_messages_that_lie_apart_come_end_to_end(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append_all(store, [new_message(f"T{number % 2}", str(number).encode()) for number in range(10)])
        append_all(store, [new_message("T1", str(number).encode()) for number in range(10, 13)])

        found = fetch(store, store.queue("T1", 0), 0, 32)

        assert [message.body for message in messages(found)] == [b"1", b"3", b"5", b"7", b"9", b"10", b"11", b"12"]
        assert len(found.parts) == 5


def test_a_message_that_the_log_has_no_longer_is_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        append_all(store, [new_message(body=bytes(1000)) for _ in range(200)])
        queue = store.queue("TopicTest", 0)
        assert queue is not None
        while store.log.first_segment():
            store.log.remove_first()()
        first = queue.min_offset(store.log.min_offset)

        assert first > 0
        assert fetch(store, queue, first - 1, 32).status is StoreStatus.OFFSET_TOO_SMALL
        assert messages(fetch(store, queue, first, 1))[0].queue_offset == first
