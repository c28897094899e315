"""What no honest client of Pulsar sends: it ends a connection, or is answered, and others are served as before.

``tests/campaigns/fuzz_pulsar.py`` sends a million frames to a process.
"""

import itertools
import logging
import random
import re
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.pulsar.door import PulsarDoor, pattern_of
from mqtool.engine.pulsar.frames import Command, PulsarFrameDecoder, build_payload, parse_frame, split_payload
from mqtool.engine.pulsar.wire import command
from mqtool.engine.pulsar.wire_classes import MessageMetadata
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import FormatError
from mqtool.formats.peer import Peer
from tests import pulsar_bad_input

START = 1_800_000_000_000
HONEST = Peer(1, "127.0.0.1", 4001)
LONGEST = 1 << 22


class Errors(logging.Handler):
    """Keeps what is logged of faults."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


class Disturbed(RuleBasedStateMachine):
    """A broker with one client that keeps to the protocol, and others that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.errors = Errors()
        logging.getLogger("mqtool").addHandler(self.errors)
        self.now = START
        self.numbers = itertools.count()
        self.peers: list[Peer] = []
        self.told: list[Command] = []  # to the honest client
        self.begin()

    def begin(self) -> None:
        self.store = MessageStore(Path(self.folder.name), now=self.now)
        self.broker = BrokerController(self.store, self.now)
        self.door = PulsarDoor(self.broker, self.now)
        self.door.hang_up = lambda peer, _: self.end(peer)
        self.say("connect", client_version="honest", protocol_version=21)
        topic = "persistent://public/default/honest"
        self.say("producer", topic=topic, producer_id=0, request_id=1)
        self.say("subscribe", topic=topic, subscription="s", subType=1, consumer_id=0, request_id=2)
        self.say("flow", consumer_id=0, messagePermits=1000)

    def say(self, name: str, data: bytes | None = None, **fields: Any) -> None:
        self.door.take(Command(name, getattr(command(name, **fields), name), data), self.door.session(HONEST), self.now)
        self.tick()

    def tick(self) -> None:
        for peer, frame in self.door.tick(self.now):
            said = parse_frame(b"".join(frame)[4:])
            if peer == HONEST:
                self.told.append(said)

    def end(self, peer: Peer) -> None:
        if peer in self.peers:
            self.peers.remove(peer)
            self.door.closed(peer, self.now)

    @initialize()
    def join(self) -> None:
        self.come(0)

    @rule(seed=st.integers(0, 2**32))
    def come(self, seed: int) -> None:
        peer = Peer(2 + next(self.numbers), "127.0.0.1", 5000)
        self.peers.append(peer)
        self.feed(peer, pulsar_bad_input.opening(random.Random(seed)))

    @rule(seed=st.integers(0, 2**32), count=st.integers(1, 20))
    def disturb(self, seed: int, count: int) -> None:
        chance = random.Random(seed)
        for _ in range(count):
            if not self.peers:
                self.come(seed)
            self.feed(chance.choice(self.peers), pulsar_bad_input.frame(chance))

    def feed(self, peer: Peer, data: bytes) -> None:
        decoder = PulsarFrameDecoder(LONGEST)
        decoder.receive(data)
        try:
            for received in decoder.commands():
                self.door.take(received, self.door.session(peer), self.now)
        except FormatError as error:
            assert len(str(error)) < 10_000
            self.end(peer)
        self.tick()

    @rule(seed=st.integers(0, 2**32))
    def go(self, seed: int) -> None:
        if self.peers:
            self.end(random.Random(seed).choice(self.peers))

    @rule(is_backed_up=st.booleans(), seed=st.integers(0, 2**32))
    def read(self, is_backed_up: bool, seed: int) -> None:
        if self.peers:
            self.door.backed_up(self.door.session(random.Random(seed).choice(self.peers)), is_backed_up)

    @rule(milliseconds=st.sampled_from([1, 1000, 7000, 40_000]))
    def pass_time(self, milliseconds: int) -> None:
        for _ in range(5):
            self.now += milliseconds // 5
            self.say("pong")
        assert self.door.next_tick(self.now) > START

    @rule()
    def restart(self) -> None:
        for peer in [*self.peers]:
            self.end(peer)
        self.broker.stop(self.now)
        self.store.close()
        self.begin()

    @invariant()
    def others_are_served(self) -> None:
        number, self.told[:] = next(self.numbers), []
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        self.say("send", build_payload(metadata.SerializeToString(), b"%d" % number), producer_id=0, sequence_id=number)
        received = [said for said in self.told if said.name == "message"]
        assert [split_payload(said.payload or b"").body for said in received] == [b"%d" % number]
        assert [said.body.sequence_id for said in self.told if said.name == "send_receipt"] == [number]
        made = command("ack", consumer_id=0, ack_type=0, request_id=7)
        made.ack.message_id.append(received[0].body.message_id)
        self.door.take(Command("ack", made.ack, None), self.door.session(HONEST), self.now)
        self.say("flow", consumer_id=0, messagePermits=1)
        assert self.errors.texts == []

    def teardown(self) -> None:
        self.broker.stop(self.now)
        self.store.close()
        logging.getLogger("mqtool").removeHandler(self.errors)
        findings = verify_store(StoreReader(Path(self.folder.name)))
        assert [finding.code for finding in findings if finding.severity != Severity.NOTE] == []
        self.folder.cleanup()


TestDisturbed = Disturbed.TestCase
TestDisturbed.settings = settings(max_examples=10, stateful_step_count=12, deadline=None)


@given(st.lists(st.sampled_from([".*", ".", r"\.", "a", "b", "ab"]), max_size=8), st.text("ab.", max_size=12))
@settings(max_examples=300)
def test_a_pattern_means_what_an_ordinary_one_of_python_means(pieces: list[str], name: str) -> None:
    text = "".join(pieces)
    compiled = pattern_of(text)

    if compiled is None:
        assert not text or r"\.*" in text
    else:
        assert (compiled.fullmatch(name) is None) == (re.fullmatch(text, name) is None)
