"""The identity of messages, against what Java read in golden stores and against a twin that takes one at a time."""

import collections
import json
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.formats import commit_log, identity, record_schemas, scan
from mqtool.formats import kernels as plain
from mqtool.formats.commit_log import TRANSACTION_COMMIT
from mqtool.formats.identity import (
    Delivered,
    delivered_identity,
    first_key,
    not_seen,
    record_identities,
)
from mqtool.formats.properties import CRC_SIZE, NAME_SEPARATOR
from mqtool.formats.property_names import CRC32
from mqtool.formats.stored_message import parse_stored
from tests import builders
from tests.formats.golden_bytes import records
from tests.golden import GOLDEN_NAMES

_MASK = (1 << 64) - 1
KEY, BATCH_KEY = "7F000001000718B4AAC247B760000003", "7F000001000718B4AAC247B760000017"


def table_of(whole: Iterable[bytes], kernels: Any = plain) -> scan.MessageTable:
    """Return the table of records, wherever they say they lie."""
    whole = list(whole)
    sizes = [len(one) for one in whole]
    data = np.frombuffer(b"".join(whole), np.uint8)
    return scan.gather(
        memoryview(data) if kernels is plain else data, 0, np.cumsum(sizes, dtype=np.int64) - sizes, kernels
    )


def identities(whole: Iterable[bytes], kernels: Any = plain) -> list[tuple[int, int]]:
    """Return the identities of records."""
    return [(first, second) for first, second in record_identities(table_of(whole, kernels)).tolist()]


def without_crc(properties: bytes) -> bytes:
    """Return properties without the one that 5.x writes over the others, last of all."""
    head = f"{CRC32}{NAME_SEPARATOR}".encode()
    has_crc = len(properties) >= CRC_SIZE and properties[-CRC_SIZE:].startswith(head)
    return properties[:-CRC_SIZE] if has_crc else properties


def one_by_one(record: bytes) -> tuple[int, int]:
    """Return the identity of one record, of fields that the schema reads."""
    parsed = record_schemas.MESSAGE.parse(record)
    key = first_key(parsed.properties)
    is_whole = parsed.topic.startswith(identity._OF_BROKERS) or not key
    room = identity._KEY_WORDS * identity._WORD
    padded = (key if len(key) <= room else identity._digest(key)).ljust(room, b"\0")
    words = [
        *identity._halves(parsed.topic),
        (parsed.sys_flag & commit_log.TRANSACTION_MASK) << 32 | parsed.reconsume_times & 0xFFFFFFFF,
        (parsed.body_size & 0xFFFFFFFF) << 32 | parsed.body_crc & 0xFFFFFFFF,
        parsed.born_timestamp & _MASK if is_whole else 0,
        zlib.crc32(without_crc(parsed.properties)) & 0x7FFFFFFF if is_whole else 0,
        len(key),
        *(int.from_bytes(padded[at : at + 8], "little") for at in range(0, room, 8)),
    ]
    lanes = list(identity._LANES)
    for word in words:
        for number, factor in enumerate(identity._FACTORS):
            mixed = (lanes[number] ^ word) * factor & _MASK
            lanes[number] = mixed ^ mixed >> 32
    return lanes[0], lanes[1]


# Records.


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_record_of_a_golden_store_has_an_identity_of_its_own_where_java_reads_another_message(name: str) -> None:
    by_identity: dict[tuple[int, int], set[str]] = collections.defaultdict(set)
    by_message: dict[str, set[tuple[int, int]]] = collections.defaultdict(set)
    told, whole = zip(*records(name), strict=True)

    for message, found in zip(told, identities(whole), strict=True):
        # All that Java tells but where and when the broker stored it.
        rest = {key: message[key] for key in ("topic", "sys_flag", "reconsume_times", "born_timestamp", "body_crc")}
        said = json.dumps([rest, message["body_len"], message["properties"]], sort_keys=True)
        by_identity[found].add(said)
        by_message[said].add(found)

    assert {len(one) for one in by_identity.values()} == {1}
    assert len(by_identity) == len(told)  # Java's keys alone tell 44 of 90 apart in one of these stores
    assert len(by_message) == len(told)


texts = st.lists(
    st.tuples(
        st.sampled_from(["UNIQ_KEY", "TAGS", "UNIQ", "UNIQ_KEY2", "__CRC32#"]), builders.values | st.just("k" * 70)
    ),
    max_size=5,
).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode())


@pytest.mark.parametrize("kernels", ["plain", "compiled"])
@given(
    drawn=st.lists(
        st.one_of(
            builders.message_fields,
            st.builds(builders.fields, topic=st.sampled_from(["T", "%RETRY%G"]), properties=texts),
        ),
        max_size=6,
    )
)
def test_many_at_once_get_the_identities_that_each_gets_alone(kernels: str, drawn: list[Any]) -> None:
    whole = [bytes(record_schemas.MESSAGE.build(fields)) for fields in drawn]

    found = identities(whole, plain if kernels == "plain" else scan.compiled_kernels())

    assert found == [one_by_one(record) for record in whole]


@pytest.mark.parametrize("build", [builders.record, builders.with_crc_property])
@pytest.mark.parametrize("pairs", [{"UNIQ_KEY": KEY, "TAGS": "a"}, {"TAGS": "a"}, {}])
@pytest.mark.parametrize("topic", ["Orders", "SCHEDULE_TOPIC_XXXX", "%RETRY%G"])
def test_a_copy_at_another_address_in_another_queue_is_the_same_message(
    build: Callable[..., bytes], pairs: dict[str, str], topic: str
) -> None:
    text = builders.properties(pairs)
    original = build(100, topic=topic, body=b"x", properties=text, queue_id=1, queue_offset=7)
    copy = build(4096, topic=topic, body=b"x", properties=text, queue_id=2, queue_offset=0, store_host="10.0.0.9:10911")

    assert len(set(identities([original, copy]))) == 1


def test_a_mirrored_message_is_the_same_though_its_broker_said_more_about_it() -> None:
    original = builders.record(properties=builders.properties({"UNIQ_KEY": KEY, "CLUSTER": "a"}), body=b"x")
    mirrored = builders.record(
        9000,
        properties=builders.properties({"UNIQ_KEY": KEY, "CLUSTER": "b", "MSG_REGION": "r"}),
        body=b"x",
        born_host="10.1.1.1:50000",
        store_host="10.0.0.9:10911",
        store_timestamp=builders.STORED + 5000,
    )

    assert len(set(identities([original, mirrored]))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "Other"},
        {"body": b"y"},
        {"sys_flag": commit_log.TRANSACTION_COMMIT},
        {"reconsume_times": 1},
        {"properties": builders.properties({"UNIQ_KEY": BATCH_KEY})},
        {"properties": b""},
    ],
)
def test_another_message_has_another_identity(change: dict[str, Any]) -> None:
    same: dict[str, Any] = {"topic": "Orders", "body": b"x", "properties": builders.properties({"UNIQ_KEY": KEY})}

    assert len(set(identities([builders.record(**same), builders.record(**(same | change))]))) == 2


def test_rounds_and_groups_of_one_message_differ_in_the_topics_of_the_broker() -> None:
    def waiting(group: str, times: int) -> bytes:
        pairs = {"UNIQ_KEY": KEY, "REAL_TOPIC": f"%RETRY%{group}"}
        return builders.record(
            topic="SCHEDULE_TOPIC_XXXX", body=b"x", properties=builders.properties(pairs), reconsume_times=times
        )

    assert len(set(identities([waiting("a", 1), waiting("a", 2), waiting("b", 1)]))) == 3


def test_members_of_a_batch_are_told_apart_by_the_key_before_that_of_the_batch() -> None:
    members = [
        builders.record(body=b"x", properties=f"UNIQ_KEY\x01{number:032X}\x02UNIQ_KEY\x01{BATCH_KEY}\x02".encode())
        for number in range(20)
    ]

    assert len(set(identities(members))) == 20
    assert first_key(parse_stored(members[3]).message.properties) == b"%032X" % 3


# Delivered messages.


class MemoryModel:
    """What a consumer has done."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def takes(self, one: Delivered) -> bool:
        """Tell whether a message is new, and have it done."""
        seen = not_seen(one, self.names.__contains__)
        self.names.update(seen.names)
        return seen.is_new


def message(
    offset: int,
    *,
    keys: Iterable[str] = (KEY,),
    body: str = "x",
    topic: str = "Orders",
    queue: str = "broker-a:0",
    time: int = 1000,
    times: int = 0,
    origin: str = "",
    sys_flag: int = 0,
) -> Delivered:
    pairs = [("ORIGIN_MESSAGE_ID", origin)] * bool(origin) + [("UNIQ_KEY", key) for key in keys]
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    return delivered_identity(topic, text, len(body), ord(body), f"{queue}@{offset}", queue, time, times, sys_flag)


def members(first: int, count: int, **given: Any) -> list[Delivered]:
    return [message(first + number, **given) for number in range(count)]


def test_members_of_a_batch_are_as_many_as_there_are_even_with_one_key_and_one_body() -> None:
    memory = MemoryModel()

    assert [memory.takes(one) for one in members(100, 20)] == [True] * 20


def test_a_batch_that_comes_again_is_known_from_any_member_on() -> None:
    memory = MemoryModel()
    batch = members(100, 20)
    for one in batch[:12]:
        memory.takes(one)

    assert [memory.takes(one) for one in batch[7:]] == [False] * 5 + [True] * 8


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("keys", [(KEY,), (KEY, BATCH_KEY)])
def test_what_a_producer_stored_twice_is_consumed_once(count: int, keys: tuple[str, ...]) -> None:
    memory = MemoryModel()
    for one in members(100, count, keys=keys):
        memory.takes(one)

    again = members(500, count, keys=keys, queue="broker-b:3", time=4000)
    assert not any(memory.takes(one) for one in again)
    assert not any(memory.takes(one) for one in again)


def test_of_a_batch_stored_twice_each_member_is_consumed_once_whichever_copy_comes_first() -> None:
    memory = MemoryModel()
    first, second = members(100, 20), members(500, 20, time=4000)

    taken = [memory.takes(one) for one in [*first[:10], *second, *first[10:]]]

    assert sum(taken) == 20


@pytest.mark.parametrize("time", [1000, 1001])
def test_a_transaction_that_was_committed_twice_is_consumed_once_also_within_one_millisecond(time: int) -> None:
    memory = MemoryModel()
    first = message(100, sys_flag=TRANSACTION_COMMIT)
    second = message(101, sys_flag=TRANSACTION_COMMIT, time=time)
    retry = message(900, times=1, time=2000, origin="broker-a:0@101", sys_flag=TRANSACTION_COMMIT)

    assert [memory.takes(one) for one in (first, second, second, retry, first)] == [True, *[False] * 4]


def test_one_key_for_another_topic_or_body_is_another_message() -> None:
    memory = MemoryModel()

    assert all(memory.takes(one) for one in (message(1), message(2, topic="B", time=1001), message(3, body="y")))


def test_a_retry_is_known_by_the_place_that_it_names() -> None:
    memory = MemoryModel()
    first, second = members(100, 2)
    memory.takes(first)
    retries = [
        message(900 + number, times=1, time=2000 + number, origin=f"broker-a:0@{100 + number}") for number in (0, 1)
    ]

    assert [memory.takes(one) for one in retries] == [False, True]
    assert not memory.takes(second)


def test_what_was_consumed_as_a_retry_is_known_when_its_producer_stored_it_twice() -> None:
    memory = MemoryModel()
    memory.takes(message(900, times=1, time=2000, origin="broker-a:0@100"))

    assert not memory.takes(message(500, time=4000))


def test_an_origin_that_is_the_key_names_no_place() -> None:
    memory = MemoryModel()
    batch = [message(900 + number, times=1, time=2000, origin=KEY) for number in range(5)]

    assert all(memory.takes(one) for one in batch)


def test_a_popped_message_is_known_when_it_is_revived() -> None:
    memory = MemoryModel()
    memory.takes(message(100))

    assert not memory.takes(message(900, times=1, time=2000))
    assert not memory.takes(message(901, times=2, time=3000))


@pytest.mark.parametrize("consumed", [0, 2, 12])
def test_no_revived_member_of_a_batch_is_taken_for_another(consumed: int) -> None:
    memory = MemoryModel()
    for one in members(100, 20)[:consumed]:
        memory.takes(one)

    revived = [message(900 + number, times=1, time=2000 + number) for number in range(consumed, 20)]

    assert all(memory.takes(one) for one in revived)
    assert not any(memory.takes(one) for one in revived)


def test_a_message_without_a_key_is_known_by_its_place_alone() -> None:
    memory = MemoryModel()

    assert [memory.takes(message(offset, keys=())) for offset in (1, 2, 1)] == [True, True, False]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 2), st.sampled_from(["", KEY])), max_size=12
    ),
    st.data(),
)
def test_nothing_is_left_out_that_no_producer_stored_twice(drawn: list[Any], data: st.DataObject) -> None:
    """Every append has keys of its own here, so all copies are deliveries of one place."""
    memory = MemoryModel()
    stored: list[Delivered] = []
    for append, (count, body, queue, key) in enumerate(drawn):
        keys = [f"{append:032X}", key][: 1 + bool(key)]
        stored += [
            message(100 * append + number, keys=keys, body=body, queue=f"b:{queue}", time=append)
            for number in range(count)
        ]
    order = data.draw(st.permutations(stored * 2)) if stored else []

    taken = collections.Counter(one.place for one in order if memory.takes(one))

    assert taken == collections.Counter({one.place: 1 for one in stored})
