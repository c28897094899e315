"""What official clients and a real Apache Pulsar 4.2.4 said to each other, replayed against the door."""

import base64
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.pulsar import compression
from mqtool.engine.pulsar.door import PulsarDoor
from mqtool.engine.pulsar.frames import Command, parse_frame, split_batch_body, split_payload
from mqtool.engine.pulsar.wire import parse
from mqtool.engine.pulsar.wire_classes import MessageMetadata
from mqtool.engine.store.message_store import MessageStore
from mqtool.formats.peer import Peer

Change = tuple[int, int] | None
FOLDER = Path(__file__).parents[3] / "fixtures" / "traces" / "pulsar"
START = 1_795_360_000_000
"""About when they were recorded: one seeks by time."""
OF_SERVER = {
    "connected": ("server_version", "max_message_size", "feature_flags"),
    "lookup_response": ("brokerServiceUrl",),
    "producer_success": ("producer_name",),
    "error": ("message",),
    "get_last_message_id_response": (),
}
"""What a server may say in its own way."""
_WHOSE = ("consumer_id", "producer_id", "request_id")


def changed(data: bytes, change: Change) -> bytes:
    """Return some bytes of which one is another, given by its place and its value; None changes nothing."""
    text = bytearray(data)
    if change is not None:
        text[change[0] % len(text)] = change[1]
    return bytes(text)


def read_by_protobuf(kind: Any, data: bytes) -> Any:
    """Return what protobuf itself reads, None if the bytes are not such a message, or not a whole one."""
    message = kind()
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError):
        return None
    return message if message.IsInitialized() else None


class RecordedFlow:
    """One recorded flow, and what the door says to the same clients."""

    def __init__(self, name: str, root: Path) -> None:
        lines = (FOLDER / f"{name}.jsonl").read_text().splitlines()
        self.events: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.expected: dict[int, dict[Any, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self.told: dict[int, dict[Any, list[Any]]] = defaultdict(lambda: defaultdict(list))
        self.root = root
        self._now = START

    def replay(self) -> None:
        """Give the door what the clients sent, at its time, and note what it answers."""
        start = START - self.events[0]["t"]
        store = MessageStore(self.root, now=START)
        try:
            broker = BrokerController(store, START)
            door = PulsarDoor(broker, START)
            door.port = 6650
            peers: dict[int, Peer] = {}
            for event in self.events:
                now = start + event["t"]
                self._until(door, now)
                number = event["conn"]
                peer = peers.setdefault(number, Peer(number, "127.0.0.1", 40_000 + number))
                if event.get("event") == "end":
                    door.closed(peer, now)
                elif "frame" in event:
                    command = parse_frame(base64.b64decode(event["frame"])[4:])
                    if event["dir"] == ">":
                        session = door.session(peer)
                        session.reached_host = "127.0.0.1"
                        door.take(self._as_ours(command), session, now)
                    else:
                        note(self.expected[number], command)
                self._tick(door, now)
            self._until(door, start + self.events[-1]["t"] + 3000)
            broker.stop(now)
        finally:
            store.close()

    def _until(self, door: PulsarDoor, now: int) -> None:
        """Do all that is due before a time."""
        while (due := door.next_tick(self._now)) < now:
            self._now = max(due, self._now)
            self._tick(door, self._now)
        self._now = now

    def _tick(self, door: PulsarDoor, now: int) -> None:
        for peer, frame in door.tick(now):
            note(self.told[peer.id], parse_frame(b"".join(frame)[4:]))

    def _as_ours(self, command: Command) -> Command:
        """Return a command with ids of the generation that a new topic has here."""
        ids = []
        if command.name == "ack":
            ids = [*command.body.message_id]
        elif command.name == "redeliver":
            ids = [*command.body.message_ids]
        elif command.name == "seek" and command.body.HasField("message_id"):
            ids = [command.body.message_id]
        for one in ids:
            if one.ledgerId < 1 << 62:
                one.ledgerId = 1
        return command


def note(told: dict[Any, list[Any]], command: Command) -> None:
    """Note what a server says: what is told of one consumer or producer, or answers one request, stays in order."""
    name, body, _ = command
    if name == "ping":  # the real one asks whether a consumer is there, even on the connection that has just spoken
        return
    of = next((getattr(body, field) for field in _WHOSE if hasattr(body, field)), None)
    said = plain(command)
    if name == "active_consumer_change" and told[name, of] and told[name, of][-1] == said:
        return  # how often depends on how long the real one took to answer
    told[name, of].append(said)


def plain(command: Command) -> Any:
    """Return what a server says, without what servers say in their own ways."""
    name, body, payload = command
    for field in OF_SERVER.get(name, ()):
        body.ClearField(field)
    for field in ("message_id", "last_message_id", "consumer_mark_delete_position"):
        if field in body.DESCRIPTOR.fields_by_name and body.HasField(field):
            place = getattr(body, field)
            if place.ledgerId < 1 << 62:
                place.ledgerId = 1
    return name, str(body), contents(payload) if payload is not None else None


def contents(payload: bytes) -> Any:
    """Return what consumers find in a payload."""
    raw, body = split_payload(payload)
    metadata = parse(MessageMetadata, raw)
    body = compression.decompress(body, metadata.compression, metadata.uncompressed_size, 1 << 22)
    metadata.ClearField("compression")
    metadata.ClearField("uncompressed_size")
    if metadata.HasField("num_messages_in_batch"):
        return str(metadata), split_batch_body(body, metadata.num_messages_in_batch)
    return str(metadata), body
