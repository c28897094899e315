"""A second door for brokers, which is a row of ``doors.DOORS`` and what stands here: lines of text.

``send TOPIC BODY``, ``next TOPIC OFFSET`` and ``join GROUP NAME`` are answered by ``stored OFFSET``, the body, and
``joined``; members of a group are told ``changed GROUP``.
"""

from collections import deque

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.door import Door
from mqtool.engine.broker.group_commit import Safety
from mqtool.engine.broker.operations.pull import Filter, PullOutcome, PullPosition
from mqtool.engine.broker.operations.send import NewTopic
from mqtool.engine.broker.outbox import Outbox
from mqtool.engine.broker.sessions import ClientCall, ConsumersChanged, Notice, Session, ThenTold
from mqtool.engine.doors import DOORS, Clock, Entrance, joined
from mqtool.engine.streams.server import Limits, StreamServer
from mqtool.engine.streams.tls import TlsSettings
from mqtool.errors import MqtoolError
from mqtool.formats.bodies import ConsumerData, Heartbeat, Subscription
from mqtool.formats.new_message import NewMessage
from mqtool.formats.peer import Buffer, Peer
from mqtool.formats.stored_message import parse_stored
from tests.engine.store.live import new_message
from tests.engine.streams.test_server import Lines

WAIT_MS = 60_000


class LinesSession(Session):
    """A client that is told of its group and asked nothing."""

    def __init__(self, peer: Peer, outbox: Outbox[str]) -> None:
        super().__init__(peer.host, peer.address)
        self.peer = peer
        self._outbox = outbox

    def reply(self, text: str) -> None:
        self._outbox.put(self.peer, text)

    def notify(self, notice: Notice) -> None:
        if isinstance(notice, ConsumersChanged):
            self.reply(f"changed {notice.group}")

    def understands(self, call: ClientCall) -> bool:  # noqa: ARG002
        return False

    def ask(self, call: ClientCall, due: int, then: ThenTold) -> None:
        raise NotImplementedError


class LinesDoor(Door[str, LinesSession]):
    """A broker by lines."""

    def new_session(self, peer: Peer) -> LinesSession:
        return LinesSession(peer, self.outbox)

    def take(self, line: str, session: LinesSession, now: int) -> None:
        what, first, rest = line.split(" ", 2)
        if what == "send":
            self._send(session, first, rest.encode(), now)
        elif what == "next":
            place = PullPosition("Lines", first, 0, int(rest), 1)
            pulled = self.broker.pulls.pull(session, place, Filter("*", "TAG", 0), now, wait_ms=WAIT_MS)
            if isinstance(pulled, PullOutcome):
                session.reply(text_of(pulled))
            else:
                pulled.then = lambda pulled, now: session.reply(text_of(pulled))  # noqa: ARG005
        else:
            data = ConsumerData(first, "CONSUME_PASSIVELY", "CLUSTERING", "", (Subscription("T", "*"),))
            self.broker.client_requests.heartbeat(session, Heartbeat(rest, (), (data,)), now)
            session.reply("joined")

    def _send(self, session: LinesSession, topic: str, body: bytes, now: int) -> None:
        saves, flushes = self.broker.saves, self.broker.group_commit
        saves.begin_request()
        message = NewMessage(topic, 0, body, b"", born_timestamp=now, born_host=new_message().born_host)
        result = self.broker.sends.send(message, NewTopic("TBW102", 1, False), now).result
        changes = saves.changes_of_request

        def saved(failure: MqtoolError | None, now: int) -> None:  # noqa: ARG001
            session.reply(str(failure) if failure else f"stored {result.queue_offset}")

        def safe(safety: Safety, now: int) -> None:
            assert safety is Safety.SAFE
            saves.wait(changes, session, saved, now)

        if flushes.is_safe(result.flush_offset):
            safe(Safety.SAFE, now)
        else:
            flushes.wait(result.flush_offset, session, safe, now)


def text_of(pulled: PullOutcome) -> str:
    [record] = pulled.fetched.parts
    return parse_stored(record).message.body.decode()


class LinesServer(StreamServer[bytes, str]):
    """Serves lines."""

    rules: LinesDoor
    new_frames = staticmethod(Lines)

    def dispatch(self, commands: deque[bytes], peer: Peer, now: int) -> None:
        self.rules.take(commands.popleft().decode(), self.rules.session(peer), now)
        self.send(self.rules.outgoing())

    def encode(self, command: str) -> list[Buffer]:
        return [command.encode(), b"\n"]


def _open(broker: BrokerController, tls: TlsSettings, limits: Limits, clock: Clock) -> LinesServer:
    door = LinesDoor(broker)
    return joined(door, LinesServer(door, tls, limits, clock=clock))


ROW = Entrance("linesPort", _open)


def add_row() -> None:
    """Have brokers of this process know the door."""
    DOORS["lines"] = ROW
