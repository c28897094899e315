"""Messages on their way out: what no broker would take, batches by size, and to which queue they go."""

import collections
import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.client.fault_latency import FaultLatency
from mqtool.engine.client.names import check_group, with_namespace, without_namespace
from mqtool.engine.client.outgoing import (
    Packed,
    ProducerMessage,
    check_batch,
    check_message,
    element_of,
    join_batch,
    pack,
    split_by_size,
)
from mqtool.engine.client.queue_choice import InTurn, select_by_hash
from mqtool.errors import UsageError
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.codes import SysFlag
from mqtool.formats.compression import Compression, decompress
from mqtool.formats.new_message import NewMessage, split_batch
from mqtool.formats.properties import parse_properties
from mqtool.formats.property_names import UNIQ_KEY


def pack_batch(messages: Sequence[ProducerMessage], topic: str, unique_key: str) -> Packed:
    """Return the request that a batch becomes, of what its messages become."""
    elements = [element_of(one, topic) for one in messages]
    return join_batch(elements, topic, unique_key, wait_store_ok=messages[0].wait_store_ok)


GOOD = ProducerMessage("T", b"body", tags="a", keys=["k1", "k2"], properties={"own": "1"}, unique_key="K")

bodies = st.binary(min_size=1, max_size=400)
properties = st.dictionaries(
    st.text("abc", min_size=1, max_size=5), st.text("xyz", min_size=1, max_size=30), max_size=3
)
messages = st.builds(ProducerMessage, st.just("T"), bodies, properties=properties, unique_key=st.just("K"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topic": ""}, "no name"),
        ({"topic": "a b"}, "letters, digits"),
        ({"topic": "t" * 128}, "128 characters"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "belongs to the brokers"),
        ({"body": b""}, "no body"),
        ({"body": bytes(101)}, "101 bytes; the maximum is 100"),
        ({"delay_level": 1, "delay_ms": 1}, "mutually exclusive"),
        ({"delay_ms": -1}, "before it is sent"),
        ({"properties": {"TAGS": "x"}}, "TAGS cannot be set as a property"),
        ({"properties": {"x": ""}}, "a name and a value"),
        ({"properties": {"x": "a\x02b"}}, "characters 1 and 2"),
        ({"tags": "a\x01b"}, "characters 1 and 2"),
        ({"topic": ["T"]}, "topic of a message must be a string, not list"),
        ({"body": None}, "the body of a message must be bytes, or a string .* not NoneType"),
        ({"body": ["x"]}, "the body of a message must be bytes, or a string .* not list"),
        ({"body": "\ud800"}, "the body of a message cannot be encoded as UTF-8"),
        ({"tags": 1}, "tags of a message must be a string, not int"),
        ({"tags": b"a"}, "tags of a message must be a string, not bytes"),
        ({"tags": "\ud800"}, "cannot be encoded as UTF-8"),
        ({"keys": [1]}, "the keys of a message must be strings, not int"),
        ({"keys": 7}, "the keys of a message must be strings, not int"),
        ({"shard_key": 7}, "shard_key of a message must be a string, not int"),
        ({"properties": {"x": 1}}, "properties of a message must be strings"),
        ({"properties": [("x", "1")]}, "a dict, not list"),
        ({"delay_ms": 1.5}, "delay_ms of a message must be a whole number, not float"),
        ({"delay_level": "3"}, "delay_level of a message must be a whole number, not str"),
        ({"deliver_at": 1 << 63}, "deliver_at=9223372036854775808 of a message is out of range"),
        ({"flag": True}, "flag of a message must be a whole number, not bool"),
        ({"flag": 1 << 31}, "flag=2147483648 of a message is out of range"),
    ],
)
def test_what_no_broker_would_take_is_refused_with_a_reason(change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_message(dataclasses.replace(GOOD, **change), max_message_size=100)  # type: ignore[arg-type]


@pytest.mark.parametrize("body", ["größer", bytearray(b"gr"), memoryview(b"xgrx")[1:3]])
def test_a_body_may_be_text_or_any_bytes_and_tags_and_keys_may_be_none(
    body: str | bytearray | memoryview,
) -> None:
    message = ProducerMessage("T", body, tags=None, keys=None, unique_key="K")
    check_message(message)
    packed = pack(message, "T")
    assert packed.body == (body.encode() if isinstance(body, str) else bytes(body))
    assert parse_properties(packed.properties.encode()) == {"UNIQ_KEY": "K", "WAIT": "true"}
    [found] = split_batch(NewMessage("T", 0, pack_batch([message], "T", "B").body))
    assert found.body == packed.body


def test_what_was_received_is_sent_again_without_what_was_noted_of_its_way() -> None:
    received = {
        "own": "1", "TAGS": "a", "KEYS": "k l", "__SHARDINGKEY": "s", UNIQ_KEY: "old", "DELAY": "3", "WAIT": "false",
        "RETRY_TOPIC": "T", "REAL_TOPIC": "%DLQ%G", "ORIGIN_MESSAGE_ID": "0A", "TRAN_MSG": "true",
        "RECONSUME_TIME": "7",
    }  # fmt: skip
    message = dataclasses.replace(GOOD, tags=None, keys=[], properties=received, unique_key="new")
    check_message(message)
    packed = pack(message, "%RETRY%G")
    kept = {"own": "1", "TAGS": "a", "KEYS": "k l", "__SHARDINGKEY": "s", "WAIT": "true", UNIQ_KEY: "new"}
    assert parse_properties(packed.properties.encode()) == kept
    assert (packed.reconsume_times, packed.sys_flag) == (0, 0)
    other = dataclasses.replace(message, tags="b", keys=["m"], shard_key="t").pairs()
    assert (other["TAGS"], other["KEYS"], other["__SHARDINGKEY"]) == ("b", "m", "t")


def test_properties_beyond_two_bytes_of_size_are_refused() -> None:
    large = dataclasses.replace(GOOD, properties={"own": "x" * 40_000})
    with pytest.raises(UsageError, match=r"the maximum is 32,767"):
        pack(large, "T")


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ([], "at least one message"),
        ([GOOD, dataclasses.replace(GOOD, topic="U")], "same topic"),
        ([GOOD, dataclasses.replace(GOOD, delay_level=1)], "delayed messages"),
        ([GOOD, dataclasses.replace(GOOD, wait_store_ok=False)], "same wait_store_ok"),
        ([dataclasses.replace(GOOD, topic="%RETRY%G")], "retry topic"),
    ],
)
def test_messages_that_do_not_go_together_are_no_batch(batch: list[ProducerMessage], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_batch(batch)


@given(st.lists(messages, min_size=1, max_size=20), st.integers(100, 1500))
def test_batches_keep_the_order_and_the_size(given_messages: list[ProducerMessage], most: int) -> None:
    sizes_of_each = [len(element_of(one, "T").data) for one in given_messages]
    batches = [given_messages[part] for part in split_by_size(sizes_of_each, most)]
    assert [one for batch in batches for one in batch] == given_messages
    sizes = [len(pack_batch(batch, "T", "B").body) for batch in batches]
    assert all(size <= most or len(batch) == 1 for size, batch in zip(sizes, batches, strict=True))
    for before, size, after in zip(batches, sizes, batches[1:], strict=False):
        assert size + len(pack_batch(after[:1], "T", "B").body) > most, f"{len(before)} and one more have room"


@given(st.lists(messages, min_size=1, max_size=5))
def test_a_broker_takes_a_batch_apart_into_what_was_given(given_messages: list[ProducerMessage]) -> None:
    packed = pack_batch(given_messages, "T", "B")
    found = split_batch(NewMessage("T", 0, packed.body))
    assert [(one.body, parse_properties(one.properties)) for one in found] == [
        (one.body, one.pairs()) for one in given_messages
    ]


@pytest.mark.parametrize("compression", Compression)
@given(st.binary(min_size=1, max_size=5000) | st.integers(1, 5000).map(bytes))
def test_large_bodies_are_compressed_and_come_back(compression: Compression, body: bytes) -> None:
    packed = pack(dataclasses.replace(GOOD, body=body), "T", compress_over=1000, compression=compression)
    assert bool(packed.sys_flag & SysFlag.COMPRESSED) == (len(packed.body) < len(body))
    assert len(packed.body) <= len(body)
    assert decompress(packed.body, packed.sys_flag) == body


# Queues


def queues(brokers: dict[str, int]) -> list[MessageQueue]:
    return [MessageQueue("T", name, queue_id) for name, count in sorted(brokers.items()) for queue_id in range(count)]


some_brokers = st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1)


@given(some_brokers, st.integers(0, 100), st.integers(1, 3))
def test_queues_take_turns(brokers: dict[str, int], start: int, rounds: int) -> None:
    turns, found = InTurn(start), queues(brokers)
    taken = collections.Counter(turns.choose(found, None, 0) for _ in range(rounds * len(found)))
    assert taken == dict.fromkeys(found, rounds)


@given(some_brokers, st.integers(0, 100))
def test_a_broker_that_failed_is_passed_where_there_is_another(brokers: dict[str, int], start: int) -> None:
    turns, found = InTurn(start), queues(brokers)
    failed = turns.choose(found, None, 0).broker_name
    chosen = turns.choose(found, failed, 0).broker_name
    assert (chosen != failed) == (len(brokers) > 1)


def test_a_slow_broker_is_avoided_for_as_long_as_java_does() -> None:
    faults = FaultLatency()
    turns, found = InTurn(0, faults), queues({"a": 1, "b": 1})
    faults.took("a", 600, now=1000)  # from 550 ms on: for 2 s
    assert {turns.choose(found, None, now).broker_name for now in (1000, 1001, 2998, 2999)} == {"b"}
    assert {turns.choose(found, None, now).broker_name for now in (3000, 3001)} == {"a", "b"}
    faults.failed("a", now=4000)  # as if it had taken 10 s: for 10 s
    assert {turns.choose(found, None, now).broker_name for now in (4000, 4001, 13_998, 13_999)} == {"b"}
    faults.took("b", 60, now=5000)  # no reason to avoid it
    assert turns.choose(found, None, 5001).broker_name == "b"


def test_of_brokers_that_are_all_avoided_the_quickest_is_taken() -> None:
    faults = FaultLatency()
    faults.failed("a", now=0)
    faults.took("b", 700, now=0)
    turns, found = InTurn(0, faults), queues({"a": 2, "b": 2})
    assert {turns.choose(found, None, 1).broker_name for _ in found} == {"b"}


@pytest.mark.parametrize(
    ("key", "code"),  # what Java's hashCode() gives
    [("order-1", -1207111310), (7, 7), (-7, -7), (1 << 32, 1), (-1, -1), (-(1 << 31) - 1, -2147483648)],
)
def test_a_key_chooses_the_queue_that_java_chooses(key: object, code: int) -> None:
    found = queues({"a": 4, "b": 3})
    assert select_by_hash(found, GOOD, key) == found[abs(code) % 7]


# Names


@given(st.sampled_from(["", "%RETRY%", "%DLQ%"]), st.text("abc", min_size=1), st.text("xyz", min_size=1))
def test_a_namespace_goes_in_front_once_and_off_again(prefix: str, name: str, namespace: str) -> None:
    inside = with_namespace(prefix + name, namespace)
    assert inside == f"{prefix}{namespace}%{name}" == with_namespace(inside, namespace)
    assert without_namespace(inside, namespace) == prefix + name
    assert with_namespace(prefix + name, "") == prefix + name


@pytest.mark.parametrize("group", ["", "DEFAULT_PRODUCER", "a b", "g" * 256])
def test_a_group_needs_a_name_of_its_own(group: str) -> None:
    with pytest.raises(UsageError):
        check_group(group, "DEFAULT_PRODUCER")
