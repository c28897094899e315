"""A broker that was killed, or whose machine lost power, at any call of its disk: every message once, in order.

Plain, delayed and timed messages, transactions and messages that are sent back, with all tables below ``config``.
"""

import contextlib
import dataclasses
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.clients import ClientChannelInfo
from mqtool.engine.broker.remoting_door import RemotingDoor
from mqtool.engine.repair.plan import carry_out, plan_repair
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import RecoveryNeededError
from mqtool.formats.codes import RequestCode
from mqtool.formats.headers import CheckTransaction, Send, build_header, parse_header
from mqtool.formats.peer import Peer
from mqtool.formats.placeholder import LOST
from mqtool.formats.properties import parse_properties
from mqtool.formats.remoting import Outgoing, RemotingCommand
from mqtool.formats.stored_message import StoredMessage, parse_stored
from mqtool.formats.topics import OP_TOPIC
from tests.crash import STEP, Chance, Left, RecordingDisk
from tests.engine.store.live import NOW, half_full

CONFIG = StoreConfig(
    {
        "flushDiskType": "SYNC_FLUSH",
        "mappedFileSizeCommitLog": "16384",
        "mappedFileSizeConsumeQueue": "400",
        "maxHashSlotNum": "50",
        "maxIndexNum": "100",
        "messageDelayLevel": "1s 3s",
    }
)
COMMIT, ROLLBACK = 8, 12
PRODUCER, CONSUMER = Peer(7, "192.0.2.7", 4007), Peer(8, "192.0.2.8", 4008)
STEP_MS = 200
LONG_AFTER_MS = 200_000


class WatchingDisk(RecordingDisk):
    """A disk that also remembers what the tables below ``config`` were at each call."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.tables: list[tuple[int, dict[str, bytes]]] = []  # number of calls, files by name

    def call(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Carry out one call."""
        self.look()
        super().call(name, arguments)

    def look(self) -> None:
        """Take note of the tables."""
        folder = self.base / "store" / "config"
        names = sorted(folder.iterdir()) if folder.exists() else []
        found = {path.name: path.read_bytes() for path in names if path.suffix != ".tmp"}
        if not self.tables or self.tables[-1][1] != found:
            self.tables.append((len(self.calls), found))

    def leave_tables(self, cut: int, older: int, into: Path) -> None:
        """Make the tables as they were after ``cut`` calls; ``timercheck``, whose name is not synced, may be older."""
        known = [found for calls, found in self.tables if calls <= cut]
        if known:
            into.mkdir(exist_ok=True)
            last = known[-1]
            checks = dict.fromkeys(found["timercheck"] for found in known if "timercheck" in found)
            if checks:
                last = {**last, "timercheck": [*checks][max(0, len(checks) - 1 - older)]}
            for name, data in last.items():
                (into / name).write_bytes(data)


@dataclasses.dataclass
class SentMessage:
    """A message that a client has sent."""

    body: str
    acknowledged_at: int | None = None  # calls of the disk; None: not yet
    is_wanted: bool = True  # False: its producer rolls it back
    half: tuple[int, int] | None = None  # address and queue offset of a half message


class CrashClients:
    """A producer and a consumer of one broker, and what they know."""

    def __init__(self, broker: BrokerController, now: int, sent: dict[str, SentMessage]) -> None:
        self.broker = broker
        self.door = RemotingDoor(broker)
        self.store = broker.store
        self.now = now
        self.sent = sent
        self._asked: dict[int, str] = {}  # bodies by opaque
        self._opaque = 0
        self.unflushed: list[SentMessage] = []
        broker.clients.register_producer("PG", ClientChannelInfo(self.door.session(PRODUCER), "p", now))

    def ask(self, code: int, name: str, body: bytes = b"", **ext_fields: Any) -> None:
        """Send a request; its answer may come later."""
        self._opaque += 1
        self._asked[self._opaque] = name
        texts = {key: str(value) for key, value in ext_fields.items()}
        self.take(self.door.handle(RemotingCommand(code, 0, self._opaque, texts, body), PRODUCER, self.now))

    def take(self, outgoing: Any, calls: int | None = None) -> None:
        """Take what the broker sends: answers, and questions for transactions.

        What is answered without ``calls`` counts from the next flush on: as RocketMQ's, it waits for none.
        """
        sent: list[Outgoing] = list(outgoing)
        for _, command in sent:
            if command.is_response:
                one = self.sent.get(self._asked.pop(command.opaque))
                if one is not None:
                    assert command.code == 0, command
                    one.acknowledged_at = calls
                    if calls is None:
                        self.unflushed.append(one)
                    if "msgId" in command.ext_fields:
                        fields = command.ext_fields
                        one.half = int(fields["msgId"][-16:], 16), int(fields["queueOffset"])
            elif command.code == RequestCode.CHECK_TRANSACTION_STATE:
                header = parse_header(CheckTransaction, command.ext_fields)
                one = self.sent[parse_stored(command.body).message.body.decode()]
                self.end(one, (header.commit_log_offset, header.tran_state_table_offset))

    def send(self, topic: str, queue_id: int, is_wanted: bool = True, **pairs: Any) -> SentMessage:
        """Send a message with a body of its own."""
        name = f"{topic} {queue_id} {len(self.sent)}"
        self.sent[name] = SentMessage(name, is_wanted=is_wanted)
        text = "".join(f"{key}\x01{value}\x02" for key, value in {"UNIQ_KEY": name.replace(" ", "-"), **pairs}.items())
        header = Send("PG", topic, "TBW102", 4, queue_id, 0, self.now, 0, text)
        self.ask(RequestCode.SEND_MESSAGE, name, name.encode(), **build_header(header))
        return self.sent[name]

    def end(self, one: SentMessage, half: tuple[int, int]) -> None:
        """End a transaction as its producer means to."""
        decision = COMMIT if one.is_wanted else ROLLBACK
        fields: dict[str, Any] = {
            "producerGroup": "PG",
            "tranStateTableOffset": half[1],
            "commitLogOffset": half[0],
            "msgId": "",
        }
        self.ask(RequestCode.END_TRANSACTION, "", **fields, commitOrRollback=decision)

    def stored(self) -> list[StoredMessage]:
        """Return the messages of all topics but those of the broker's own."""
        found = []
        for topic, queue_id in self.store.queues():
            queue = self.store.queue(topic, queue_id)
            assert queue is not None
            if topic.split()[0] in ("Plain", "Later", "Timed", "Orders", "%RETRY%G"):
                for offset in range(queue.next_offset):
                    [unit] = queue.units(offset, 1)
                    one = parse_stored(self.store.log.record(unit.physical_offset))
                    assert (one.message.topic, one.message.queue_id, one.queue_offset) == (topic, queue_id, offset)
                    if LOST not in parse_properties(one.message.properties):
                        found.append(one)
        return found


def worked(base: Path, disk: WatchingDisk, seed: int) -> dict[str, SentMessage]:
    """Let clients work with a broker, and return what they know."""
    chance = random.Random(seed)
    store = MessageStore(base / "store", CONFIG, now=NOW, disk=disk, usage=half_full)
    clients = CrashClients(BrokerController(store, NOW), NOW, {})
    begun: list[SentMessage] = []
    backs: list[str] = []
    for step in range(90):
        clients.now += STEP_MS
        clients.take(clients.door.tick(clients.now), len(disk.calls))
        if step < 60:
            for _ in range(chance.randrange(1, 3)):
                clients.send("Plain", chance.randrange(2), KEYS="k")
            kind = chance.randrange(5)
            if kind == 0:
                clients.send("Later", 0, DELAY=chance.choice([1, 2]))
            elif kind == 1:
                clients.send("Timed", 0, TIMER_DELAY_MS=chance.randrange(1, 3000))
            elif kind == 2:
                begun.append(clients.send("Orders", 0, chance.random() < 0.7, TRAN_MSG="true", PGROUP="PG"))
            elif kind == 3 and begun and begun[0].half:
                clients.end(begun[0], begun[0].half)
                del begun[0]
            elif kind == 4:
                queue = store.queue("Plain", 0)
                if queue is not None and len(backs) < queue.next_offset:
                    [unit] = queue.units(len(backs), 1)
                    original = parse_stored(store.log.record(unit.physical_offset))
                    name = f"{original.message.body.decode()} again"
                    clients.sent[name] = SentMessage(name)
                    backs.append(name)
                    fields: dict[str, Any] = {
                        "offset": unit.physical_offset,
                        "group": "G",
                        "delayLevel": 1,
                        "originMsgId": "",
                    }
                    extra: dict[str, Any] = {"originTopic": "Plain", "unitMode": "false", "maxReconsumeTimes": 16}
                    clients.ask(RequestCode.CONSUMER_SEND_MSG_BACK, name, **fields, **extra)
                    clients.broker.offsets.commit("G", "Plain", 0, len(backs))
        store.flush()
        for one in clients.unflushed:
            one.acknowledged_at = len(disk.calls)
        clients.unflushed.clear()
        clients.take(clients.door.tick(clients.now), len(disk.calls))
        if step % 5 == 4:
            store.flush_queues()
    clients.broker.stop(clients.now)
    disk.look()
    store.close()
    return clients.sent


def reopened(root: Path) -> tuple[MessageStore, bool]:
    """Open a store as ``serve`` does, and tell whether something had to recover it before."""
    with contextlib.suppress(RecoveryNeededError):
        return MessageStore(root, CONFIG, now=NOW, usage=half_full), False
    plan = plan_repair(root, CONFIG, "recover", {})
    carry_out(root, CONFIG, plan, Disk())
    store = MessageStore(root, CONFIG, now=NOW, usage=half_full)
    store.was_recovered = store.was_repaired = True
    return store, True


class EndOfBroker(NamedTuple):
    """What another broker finds that starts on what one has left."""

    known: int
    """How many messages had been acknowledged."""
    was_repaired: bool
    """Whether the store had to be recovered before."""
    faults: list[str]
    """What is wrong with messages and store, each with the call of the disk after which the first broker ended."""


def aftermath(root: Path, sent: dict[str, SentMessage], cut: int, is_exact: bool) -> EndOfBroker:
    """Start a broker on what is left, let all come to its end, and hold what there is against what clients know."""
    store, was_repaired = reopened(root)
    faults = []
    known = {
        name: SentMessage(name, one.acknowledged_at, one.is_wanted)
        for name, one in sent.items()
        if one.acknowledged_at is not None and one.acknowledged_at <= cut
    }
    with contextlib.closing(store):
        start = max(NOW, store.log.last_timestamp)
        clients = CrashClients(
            BrokerController(store, start),
            start,
            {name: SentMessage(name, is_wanted=one.is_wanted) for name, one in sent.items()},
        )
        for (topic, _group), queues in clients.broker.offsets._offsets.items():
            for queue_id, offset in queues.items():
                queue = store.queue(topic, queue_id)
                if queue is not None and offset > queue.next_offset:
                    faults.append(f"{cut}: offset {offset} is behind the end of queue {queue_id} of {topic}")
        while clients.now < start + LONG_AFTER_MS:
            clients.now += 1000
            store.flush()
            clients.take(clients.door.tick(clients.now))
        found = clients.stored()
        again = "%RETRY%G"
        bodies = Counter(one.message.body.decode() + (" again" if one.message.topic == again else "") for one in found)
        faults += [f"{cut}: {name} is lost" for name, one in known.items() if one.is_wanted and not bodies[name]]
        faults += [
            f"{cut}: {name} is not rolled back" for name, one in sent.items() if not one.is_wanted and bodies[name]
        ]
        if is_exact or not was_repaired:
            faults += [f"{cut}: {name} is there {count} times" for name, count in bodies.items() if count > 1]
        numbers: dict[tuple[str, int], list[int]] = {}
        for one in found:
            if one.message.topic == "Plain":
                numbers.setdefault(("Plain", one.message.queue_id), []).append(int(one.message.body.split()[-1]))
        faults += [f"{cut}: {place} is out of order" for place, listed in numbers.items() if listed != sorted(listed)]
        clients.broker.stop(clients.now)
    findings = verify_store(StoreReader(root, CONFIG))
    # The wheel of timers, which holds nothing here, is written beside the disk and not replayed.
    faults += [f"{cut}: {one}" for one in findings if one.severity != "note" and one.code != "TIMER-MISSING"]
    return EndOfBroker(len(known), was_repaired, faults)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> tuple[WatchingDisk, dict[str, SentMessage]]:
    base = tmp_path_factory.mktemp("work")
    disk = WatchingDisk(base)
    return disk, worked(base, disk, seed=1)


@pytest.mark.parametrize(("sample", "chance"), [*enumerate([*Left, random.Random(1)])])
def test_every_message_is_delivered_once_whenever_the_broker_ends(
    sample: int, chance: Chance, work: tuple[WatchingDisk, dict[str, SentMessage]], tmp_path: Path
) -> None:
    disk, sent = work

    ends = [try_one(disk, sent, cut, chance, tmp_path) for cut in trial_cuts(disk, sample)]

    assert [fault for end in ends for fault in end.faults] == []
    assert max(end.known for end in ends) > 100
    if chance is Left.EVERYTHING:  # a kill: nothing has to be recovered
        assert not any(end.was_repaired for end in ends)


def test_a_transaction_of_which_the_disk_has_the_end_and_not_the_message_is_asked_for_again(
    work: tuple[WatchingDisk, dict[str, SentMessage]], tmp_path: Path
) -> None:
    disk, sent = work
    of_the_end = next(at for at, (_, arguments, _) in enumerate(disk.calls) if OP_TOPIC.encode() in _written(arguments))

    end = try_one(disk, sent, of_the_end + 1, Left.LATEST, tmp_path)  # nothing of the writes before it

    assert end.faults == []
    assert end.known > 0
    assert end.was_repaired


def _written(arguments: tuple[Any, ...]) -> bytes:
    return bytes(arguments[2]) if len(arguments) > 2 else b""


def trial_cuts(disk: WatchingDisk, sample: int, step: int = STEP * STEP) -> list[int]:
    """Return after how many calls to cut: not before the store is there."""
    first = next(
        number
        for number, (name, arguments, _) in enumerate(disk.calls)
        if "abort" in str(arguments[0]) and name == "sync"
    )
    return [*range(first + 2 + sample, len(disk.calls), step), len(disk.calls) - 4]


def _is_closed(disk: WatchingDisk, cut: int) -> bool:
    """Tell whether the mark of a broker at work was gone, before which everything is synced."""
    return any(name == "remove" and "abort" in str(arguments[0]) for name, arguments, _ in disk.calls[:cut])


def try_one(disk: WatchingDisk, sent: dict[str, SentMessage], cut: int, chance: Chance, place: Path) -> EndOfBroker:
    """Leave what a broker leaves that ends after ``cut`` calls, and return what becomes of it."""
    left = place / "left"
    disk.leave(cut, chance, left)
    older = 0
    if chance is not Left.EVERYTHING and not _is_closed(disk, cut):
        older = chance.randrange(2) if isinstance(chance, random.Random) else 1
    disk.leave_tables(cut, older, left / "store" / "config")
    end = aftermath(left / "store", sent, cut, is_exact=chance is Left.EVERYTHING)
    shutil.rmtree(left)
    return end
