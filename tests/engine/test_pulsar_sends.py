"""Messages that arrive together are answered and stored as if each had come alone."""

import tracemalloc
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.pulsar.compression import ZLIB
from mqtool.engine.pulsar.frames import Command, Payload, PulsarFrameDecoder, build_batch_body, build_payload
from mqtool.engine.pulsar.wire import command
from mqtool.engine.pulsar.wire_classes import MessageMetadata, SingleMetadata
from mqtool.engine.store.disk import DiskFullError
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import FormatError
from tests.engine.test_pulsar_deduplication import NOW, DoorAtWork

DEDUPLICATED, PLAIN, UNKNOWN = 0, 1, 7


class MessageOnItsWay(NamedTuple):
    """A message of a client."""

    producer: int
    sequence_id: int
    kind: str

    def command(self) -> Command:
        metadata = MessageMetadata(producer_name=f"p{self.producer}", sequence_id=self.sequence_id, publish_time=5)
        body = f"{self.producer} {self.sequence_id}".encode()
        if self.kind == "keyed":
            metadata.partition_key = b"key"
        elif self.kind == "batch":
            metadata.num_messages_in_batch = 2
            single = SingleMetadata(payload_size=len(body)).SerializeToString()
            body = build_batch_body([Payload(single, body)] * 2)
        elif self.kind == "long":
            body *= 1000
        payload = build_payload(metadata.SerializeToString(), body)
        if self.kind == "wrong":
            payload = payload[:-1] + b"!"
        fields: dict[str, Any] = {"producer_id": self.producer, "sequence_id": self.sequence_id}
        return Command("send", command("send", **fields).send, payload)


class ClientOfTwoTopics(DoorAtWork):
    """A client with a producer of a topic that drops repeated messages, and one of another topic."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        for producer, topic in ((DEDUPLICATED, "t"), (PLAIN, "u")):
            self.say("producer", topic=topic, producer_id=producer, request_id=1, producer_name=f"p{producer}")
        self.door.topics.deduplicate("t", True)

    def send_together(self, messages: list[MessageOnItsWay]) -> str:
        """Send messages that arrive in one piece, and return why the connection ends, if it does."""
        first, *more = [message.command() for message in messages]
        try:
            self.door.take(first, self.door.session(self.peer), NOW, more)
        except FormatError as error:
            return str(error)
        return ""

    def answers(self) -> list[Command]:
        decoder = PulsarFrameDecoder(1 << 20)
        decoder.receive(b"".join(b"".join(frame) for _, frame in self.door.tick(NOW)))
        return [*decoder.commands()]


def bodies(root: Path) -> list[bytes]:
    return [message.body for message in StoreReader(root).messages()]


sent = st.builds(
    MessageOnItsWay,
    st.sampled_from([DEDUPLICATED, PLAIN, PLAIN, PLAIN, UNKNOWN]),
    st.integers(0, 9),
    st.sampled_from(["plain", "plain", "plain", "keyed", "batch", "long", "wrong"]),
)


@given(st.lists(st.lists(sent, min_size=1, max_size=8), max_size=5))
@settings(max_examples=60, deadline=None)
def test_messages_that_arrive_together_are_answered_and_stored_as_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[list[MessageOnItsWay]]
) -> None:
    root = tmp_path_factory.mktemp("stores")
    together, apart = ClientOfTwoTopics(root / "together"), ClientOfTwoTopics(root / "apart")
    for piece in pieces:
        fault = together.send_together(piece)
        faults = []
        for message in piece:
            faults.append(apart.send_together([message]))
            if faults[-1]:  # the connection ends
                break
        assert fault == faults[-1]
        assert together.answers() == apart.answers()
    for client in (together, apart):
        client.close()
    assert bodies(root / "together") == bodies(root / "apart")


def test_messages_that_arrive_together_are_written_at_once_and_none_if_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ClientOfTwoTopics(tmp_path)
    written: list[int] = []
    write = client.store.log.write

    def noted(records: bytes, last_start: int, timestamp: int) -> None:
        if not written:
            written.append(0)
            raise DiskFullError("no space left")
        written.append(len(records))
        write(records, last_start, timestamp)

    client.send_together([MessageOnItsWay(PLAIN, 0, "plain")])
    client.answers()
    monkeypatch.setattr(client.store.log, "write", noted)

    assert client.send_together([MessageOnItsWay(PLAIN, number, "plain") for number in range(1, 6)]) == ""
    assert [one.name for one in client.answers()] == ["close_producer"]
    client.store.tick(NOW + 1000)
    client.say("producer", topic="u", producer_id=PLAIN, request_id=2, producer_name="p1")
    assert client.send_together([MessageOnItsWay(PLAIN, number, "plain") for number in range(1, 6)]) == ""

    receipts = client.answers()
    assert [(one.name, one.body.sequence_id, one.body.message_id.entryId) for one in receipts] == [
        ("send_receipt", number, number) for number in range(1, 6)
    ]
    assert len(written) == 2
    client.close()
    assert bodies(tmp_path) == [b"1 %d" % number for number in range(6)]


def test_messages_that_are_long_once_decompressed_are_not_in_memory_together(tmp_path: Path) -> None:
    client, size = ClientOfTwoTopics(tmp_path), 3 << 20
    metadata = MessageMetadata(producer_name="p1", publish_time=5, compression=ZLIB, uncompressed_size=size)
    commands = []
    for number in range(32):
        metadata.sequence_id = number
        payload = build_payload(metadata.SerializeToString(), zlib.compress(bytes(size)))
        commands.append(Command("send", command("send", producer_id=PLAIN, sequence_id=number).send, payload))

    tracemalloc.start()
    try:
        client.door.take(commands[0], client.door.session(client.peer), NOW, commands[1:])
        assert tracemalloc.get_traced_memory()[1] < 6 * size
    finally:
        tracemalloc.stop()

    assert len(client.answers()) == len(commands)
    client.close()
