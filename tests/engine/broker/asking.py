"""A broker without sockets for tests: its store on a disk, its time in the hand of the test."""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.clients import ClientChannelInfo
from mqtool.engine.broker.remoting_door import RemotingDoor
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.formats.new_message import NewMessage, record_size, topic_field
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import Outgoing, RemotingCommand
from mqtool.formats.stored_message import parse_stored
from tests.engine.store.live import NOW, half_full, new_message, of_record
from tests.traces import Exchange

SETTINGS = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "1000",
}


class Asking:
    """A broker and a client of it; time stands still until a test moves it."""

    def __init__(self, broker: BrokerController, now: int) -> None:
        self.broker = broker
        self.door = RemotingDoor(broker)
        self.store = broker.store
        self.now = now
        self.client = Peer(1, "192.0.2.1", 4000)

    def handle(self, code: int, body: bytes = b"", peer: Peer | None = None, **ext_fields: Any) -> list[Outgoing]:
        """Return what the broker sends for a request."""
        texts = {name: str(value) for name, value in ext_fields.items()}
        return [*self.door.handle(RemotingCommand(code, 0, 12, texts, body), peer or self.client, self.now)]

    def ask(self, code: int, body: bytes = b"", peer: Peer | None = None, **ext_fields: Any) -> RemotingCommand:
        """Return the answer to a request that is answered with nothing else."""
        [(to, answer)] = self.handle(code, body, peer, **ext_fields)
        assert to is (peer or self.client)
        assert (answer.is_response, answer.opaque) == (True, 12)
        return answer

    def replay(self, exchange: Exchange) -> RemotingCommand:
        """Return the answer to a recorded request."""
        command = exchange.request.command
        [(_, answer)] = self.door.handle(command, self.client, self.now)
        assert answer.opaque == command.opaque
        return answer

    def client_of(self, peer: Peer, client_id: str, language: str = "JAVA", version: int = 409) -> ClientChannelInfo:
        """Return a client as its heartbeat would make it known."""
        session = self.door.session(peer)
        session.language, session.version = language, version
        return ClientChannelInfo(session, client_id, self.now)

    def append(self, message: NewMessage) -> int:
        """Store a message and return where."""
        result = self.store.append(message, self.now)
        assert result.status == "PUT_OK"
        return result.physical_offsets[0]

    def fill(self, end_offset: int) -> None:
        """Store other messages until the next one comes to an address."""
        topic = topic_field("Filler")
        head = record_size(new_message("Filler", b""), topic, 0)
        while (room := end_offset - self.store.log.end_offset) > 0:
            size = room if room <= 1000 else 500
            self.append(new_message("Filler", bytes(size - head)))
        assert self.store.log.end_offset == end_offset

    def append_recorded(self, record: bytes) -> None:
        """Store the message of a recorded record so that its own record is the same again."""
        message, self.now = of_record(record)
        recorded = parse_stored(record)
        for _ in range(recorded.queue_offset):
            self.append(new_message(message.topic, queue_id=message.queue_id))
        self.fill(recorded.physical_offset)
        self.append(message)


def body_of(answer: RemotingCommand) -> bytes:
    """Return the body of an answer, in one piece."""
    return b"".join(answer.parts) or answer.body


@contextlib.contextmanager
def broker_at_work(
    root: Path, now: int = NOW, finds: Collection[str] = (), may_find: Collection[str] = (), **settings: str
) -> Iterator[Asking]:
    """Give a broker on a store; in the end the store is closed and must be sound, but for what ``finds`` names.

    What ``may_find`` names is not looked at.
    """
    config = StoreConfig({**SETTINGS, **settings})
    store = MessageStore(root, config, now=now, usage=half_full)
    with contextlib.closing(store):
        yield Asking(BrokerController(store, now), now)
    found = {finding.code for finding in verify_store(StoreReader(root, config)) if finding.severity != Severity.NOTE}
    assert found - set(may_find) == set(finds)
