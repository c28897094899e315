"""Clients of Pulsar that mean harm, or are broken, on a real socket: memory stays bounded, and others are served."""

import re
import select
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import lz4.block
import pytest
import zstandard

from mqtool.engine.pulsar.compression import LZ4, NONE, SNAPPY, ZLIB, ZSTD
from mqtool.engine.pulsar.frames import Payload, build_batch_body, build_frame, split_payload
from mqtool.engine.pulsar.session import words_of
from mqtool.engine.pulsar.subscription import MAX_UNACKED
from mqtool.engine.pulsar.wire import command, parse
from mqtool.engine.pulsar.wire_classes import MessageMetadata, SingleMetadata
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.reader import StoreReader
from tests.campaigns.fuzz import memory_of
from tests.commands.test_serve import started
from tests.pulsar_client import PulsarWireClient

_READY = re.compile(r".*pulsar ([\d.]+):(\d+).*\n")
ROOM = 96 << 20
"""Bytes that the broker may take more than at rest: what a connection may have unsent is 64 MiB."""


class Attacked(NamedTuple):
    """A broker in a process of its own."""

    host: str
    port: int
    process: int

    def client(self) -> PulsarWireClient:
        return PulsarWireClient(self.host, self.port)

    @property
    def memory(self) -> int:
        return memory_of(self.process)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    store = tmp_path_factory.mktemp("pulsar") / "store"
    with started("-s", store, "--port", "0", "--pulsar-port", "0") as (process, line):
        ready = _READY.fullmatch(line)
        assert ready
        yield Attacked(ready[1], int(ready[2]), process.pid)
        process.terminate()
        _, log = process.communicate()
    assert "Traceback" not in log
    assert max(map(len, log.splitlines()), default=0) < 1000
    assert [finding.code for finding in verify_store(StoreReader(store)) if finding.severity != Severity.NOTE] == []


@pytest.fixture(autouse=True)
def others_are_served(attacked: Attacked, request: pytest.FixtureRequest) -> Iterator[None]:
    """See that a client that means well is served as before, in all that others do."""
    memory = attacked.memory
    yield
    topic = re.sub(r"\W", "_", request.node.name)[:100]  # the bodies that tests have as parameters are part of it
    with attacked.client() as honest:
        honest.produce(topic)
        honest.subscribe(topic, 10)
        honest.send(b"still there")
        assert honest.bodies(1) == [b"still there"]
    assert attacked.memory < memory + ROOM


def varint(number: int) -> bytes:
    low = b""
    while number > 127:
        low += bytes([number & 127 | 128])
        number >>= 7
    return low + bytes([number])


def ack_of(messages: bytes) -> bytes:
    """Return the frame of an acknowledgement with any bytes as ids."""
    body = b"\x08\x00\x10\x00" + messages
    base = b"\x08\x0a\x52" + varint(len(body)) + body
    return struct.pack(">II", 4 + len(base), len(base)) + base


def test_a_command_of_millions_of_ids_that_are_none_ends_its_connection(attacked: Attacked) -> None:
    with attacked.client() as client:
        client.socket.sendall(ack_of(b"\x1a\x00" * 2_000_000))
        assert client.is_closed()


def test_acknowledgements_of_what_was_never_sent_and_of_other_generations_take_no_room(attacked: Attacked) -> None:
    with attacked.client() as client:
        client.produce("never")
        client.send(b"0")
        client.send(b"1")
        client.subscribe("never")
        client.ack(
            *((1, number, [number]) for number in range(2, 50_000)), (1, (1 << 63) - 1, []), (1, (1 << 64) - 1, [])
        )
        client.ack(*((generation, 0, []) for generation in (0, 2, (1 << 63) - 1, (1 << 64) - 1)))
        client.say("flow", consumer_id=0, messagePermits=10)

        assert client.bodies(2) == [b"0", b"1"]


def test_an_ack_set_of_any_length_means_the_messages_that_there_are(attacked: Attacked) -> None:
    with attacked.client() as client:
        client.produce("lengths")
        single = SingleMetadata(payload_size=1).SerializeToString()
        for _ in range(4):
            client.send(build_batch_body([Payload(single, b"x")] * 70), 70, num_messages_in_batch=70)
        client.subscribe("lengths")
        everything = (1 << 70) - 1
        client.ack(
            (1, 0, words_of(0b101)),  # words that are not there are 0, as Java leaves them out
            (1, 70, [-1] * 5000),  # what is behind the batch means nothing
            (1, 140, [0, 0, *words_of(everything)]),
            (1, 175, words_of(everything)),  # no entry begins there
        )
        client.say("flow", consumer_id=0, messagePermits=1000)
        came = [client.next("message").body for _ in range(3)]

    assert [(said.message_id.entryId, [*said.ack_set]) for said in came] == [(0, [0b101]), (70, []), (210, [])]


def test_a_seek_into_a_batch_with_a_set_of_nothing_or_too_much_loses_none_of_it(attacked: Attacked) -> None:
    single = SingleMetadata(payload_size=1).SerializeToString()
    with attacked.client() as client:
        client.produce("seek")
        client.send(build_batch_body([Payload(single, b"x")] * 3), 3, num_messages_in_batch=3)
        for words, expected in ([0], [6]), ([-1] * 100_000, [6]), ([2], [2]):
            client.subscribe("seek")
            place = {"ledgerId": 1, "entryId": 0, "ack_set": words}
            client.say("seek", consumer_id=0, request_id=3, message_id=place)
            client.next("success")
            client.subscribe("seek")
            client.ack((1, 0, [6]))
            client.say("flow", consumer_id=0, messagePermits=10)
            assert [*client.next("message").body.ack_set] == expected
            client.say("close_consumer", consumer_id=0, request_id=4)
            client.next("success")


BOMB = bytes(64 << 20)


@pytest.mark.parametrize(
    ("kind", "body", "size"),
    [
        (ZLIB, zlib.compress(BOMB), 4 << 20),
        (ZLIB, zlib.compress(BOMB), len(BOMB)),
        (ZLIB, zlib.compress(b"four"), 5),
        (LZ4, bytes(lz4.block.compress(BOMB, store_size=False)), 4 << 20),
        (LZ4, bytes(lz4.block.compress(b"four", store_size=False)), (1 << 32) - 1),
        (ZSTD, zstandard.ZstdCompressor().compress(BOMB), 4 << 20),
        (ZSTD, zstandard.ZstdCompressor().compress(b"four"), 3),
        (SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100), 100),
        (SNAPPY, b"", 0),
        (17, b"four", 4),
        (NONE, b"four", 4_000_000_000),
    ],
)
def test_a_body_that_is_not_what_it_says_comes_back_as_it_was_sent(
    kind: int, body: bytes, size: int, attacked: Attacked
) -> None:
    with attacked.client() as client:
        client.produce("bombs")
        client.subscribe("bombs", 100, subscription=f"of {kind} {len(body)} {size}", initialPosition=0)
        client.send(body, compression=kind, uncompressed_size=size)
        [came] = client.bodies(1)

    assert came == body


def test_what_clients_take_compressed_is_sent_so_if_it_is_too_long_for_them_otherwise(attacked: Attacked) -> None:
    with attacked.client() as client:
        longest = client.next("connected").body.max_message_size
        client.produce("long")
        client.subscribe("long", 100)
        plain = bytes(longest + 12_000)
        client.send(zlib.compress(plain), compression=ZLIB, uncompressed_size=len(plain))
        single = SingleMetadata(payload_size=len(plain) // 3).SerializeToString()
        batch = build_batch_body([Payload(single, bytes(len(plain) // 3))] * 3)
        client.send(zlib.compress(batch), 3, compression=ZLIB, uncompressed_size=len(batch), num_messages_in_batch=3)

        for expected in plain, batch:
            payload = client.next("message").payload
            assert payload is not None
            assert len(payload) <= longest
            raw, body = split_payload(payload)
            metadata = parse(MessageMetadata, raw)
            assert (zlib.decompress(body), metadata.uncompressed_size) == (expected, len(expected))


def test_a_consumer_that_never_reads_is_sent_only_so_much_and_others_get_all(attacked: Attacked) -> None:
    body = bytes(1 << 20)
    with attacked.client() as deaf, attacked.client() as client:
        client.produce("deaf")
        deaf.subscribe("deaf", 1 << 31, subscription="deaf")
        for _ in range(60):
            client.send(body)
        client.subscribe("deaf", 1 << 31, subscription="other")

        assert client.bodies(60) == [body] * 60


def test_a_consumer_that_never_acknowledges_holds_so_many_messages_and_no_more(attacked: Attacked) -> None:
    with attacked.client() as client, attacked.client() as other:
        client.produce("held")
        client.subscribe("held", 1 << 31)
        for _ in range(MAX_UNACKED // 1000 + 10):
            client.send(b"of a kind that is stored as it comes", 1000, num_messages_in_batch=1000, compression=17)
        other.subscribe("held", 1 << 31)
        client.ping()
        held = sum(said.name == "message" for said in client.told)
        came = other.bodies(10)

    assert held == MAX_UNACKED // 1000
    assert len(came) == 10


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_a_thousand_consumers_of_a_subscription_come_and_go(kind: int, attacked: Attacked) -> None:
    topic = f"crowd-{kind}"
    with attacked.client() as client:
        client.produce(topic)
        for number in range(1000):
            client.say("subscribe", topic=topic, subscription="s", subType=kind, consumer_id=number, request_id=number)
            client.say("flow", consumer_id=number, messagePermits=1)
        client.ping()
        client.send(b"for one of them")

        assert client.bodies(1) == [b"for one of them"]


def test_whoever_asks_again_and_again_for_the_place_of_another_gets_it_once(attacked: Attacked) -> None:
    with attacked.client() as holder, attacked.client() as asker:
        holder.subscribe("place", kind=0)
        holder.say("producer", topic="place", producer_id=0, request_id=1, producer_name="p")
        holder.next("producer_success")
        for number in range(500):
            place: dict[str, Any] = {"topic": "place", "request_id": number}
            asker.say("subscribe", **place, subscription="s", subType=0, consumer_id=number)
            asker.say("producer", **place, producer_id=number, producer_name="p")
            if number % 2:
                asker.say("close_consumer", consumer_id=number, request_id=number)
        asker.ping()
        holder.ping()  # it is there, and is not asked each time whether it is

        assert sum(said.name == "ping" for said in holder.told) <= 1
        answers = [asker.next("error").body.error for _ in range(750)]
        assert {*answers} == {5, 16}  # ConsumerBusy, ProducerBusy


def test_a_producer_that_waits_is_not_ready_however_often_it_asks(attacked: Attacked) -> None:
    wanted: dict[str, Any] = {"topic": "owned", "producer_id": 0, "producer_access_mode": 2}
    with attacked.client() as owner, attacked.client() as waiting:
        owner.say("producer", **wanted, request_id=1)
        assert owner.next("producer_success").body.producer_ready
        for number in range(3):
            waiting.say("producer", **wanted, request_id=number)
            assert not waiting.next("producer_success").body.producer_ready
        owner.say("close_producer", producer_id=0, request_id=2)

        assert waiting.next("producer_success").body.producer_ready


@pytest.mark.parametrize(
    "wanted", [{"start_message_rollback_duration_sec": (1 << 64) - 1}, {"start_message_rollback_duration_sec": 1 << 40}]
)
def test_a_subscription_may_begin_before_all_time(wanted: dict[str, int], attacked: Attacked) -> None:
    with attacked.client() as client:
        client.produce("old")
        client.send(b"first")
        client.subscribe("old", 10, subscription=f"s{[*wanted.values()]}"[:30], **wanted)

        assert client.bodies(1) == [b"first"]


def test_an_epoch_that_cannot_be_raised_ends_its_connection(attacked: Attacked) -> None:
    wanted: dict[str, Any] = {"topic": "epoch", "producer_id": 0, "request_id": 1, "producer_access_mode": 1}
    with attacked.client() as client:
        client.say("producer", **wanted, topic_epoch=(1 << 64) - 1)
        assert client.is_closed()
    with attacked.client() as client:
        client.say("producer", **wanted)
        assert client.next("producer_success").body.topic_epoch == 0


def test_a_pattern_of_topics_takes_no_time_however_often_it_could_match(attacked: Attacked) -> None:
    with attacked.client() as client:
        client.produce("a" * 120)
        pattern = "public/default/" + ".*a" * 40 + "b"
        for number in range(200):
            client.say("get_topics", namespace="public/default", request_id=number, topics_pattern=pattern)
        answers = [client.next("get_topics_response").body for _ in range(200)]

    assert all(said.filtered and not said.topics for said in answers)


def test_others_are_served_while_many_messages_are_acknowledged_that_were_never_sent(attacked: Attacked) -> None:
    with attacked.client() as client, attacked.client() as other:
        client.produce("many")
        singles = [Payload(SingleMetadata(payload_size=1).SerializeToString(), b"0")] * 1000
        for _ in range(10):
            client.send(build_batch_body(singles), 1000, num_messages_in_batch=1000)
        client.subscribe("many")
        base = command("ack", consumer_id=0, ack_type=0, request_id=9)
        for number in reversed(range(10_000)):
            base.ack.message_id.add(ledgerId=1, entryId=number)
        client.socket.sendall(build_frame(base))
        answers = 0
        while not select.select([client.socket], [], [], 0)[0]:  # until it has its answer
            other.ping()
            answers += 1

        client.next("ack_response")
        client.say("flow", consumer_id=0, messagePermits=10)
        client.ping()
        assert answers > 10
        assert [said.name for said in client.told if said.name == "message"] == []
