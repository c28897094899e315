"""Requests of a broker to clients: their answers come once, in time, or not at all."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mqtool.engine.broker.processors.session import RemotingOutbox, RemotingSession
from mqtool.engine.broker.waiting_room import WaitingRoom
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import RESPONSE, RemotingCommand


class CallsOverTime(RuleBasedStateMachine):
    """Each call ends exactly once: by its answer, by its deadline, or with its connection."""

    def __init__(self) -> None:
        super().__init__()
        self.room = WaitingRoom()
        self.outbox = RemotingOutbox(self.room, lambda: "broker-a")
        self.now = 0
        self.sessions = [RemotingSession(Peer(number, "192.0.2.1", number), self.outbox) for number in (1, 2, 3)]
        self.waiting: dict[int, tuple[RemotingSession, int]] = {}  # by opaque
        self.ended: dict[int, list[bool]] = {}  # with an answer or without

    @rule(at=st.integers(0, 2), patience=st.integers(1, 2000))
    def call(self, at: int, patience: int) -> None:
        request = RemotingCommand(307)

        def then(answer: RemotingCommand | None, now: int) -> None:  # noqa: ARG001
            self.ended.setdefault(request.opaque, []).append(answer is not None)

        session = self.sessions[at]
        session.call(request, self.now + patience, then)
        [(to, sent)] = self.outbox.take()
        assert to is session.peer
        assert sent.opaque not in self.waiting
        assert not sent.is_oneway
        self.waiting[sent.opaque] = session, self.now + patience

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        opaque = data.draw(st.sampled_from([*self.waiting, 12345]))
        session = self.waiting.pop(opaque, (self.sessions[0], 0))[0]
        before = len(self.ended.get(opaque, []))
        session.answered(RemotingCommand(0, RESPONSE, opaque), self.now)
        if opaque != 12345:
            assert self.ended[opaque][before:] == [True]

    @rule(at=st.integers(0, 2))
    def close(self, at: int) -> None:
        self.room.closed(self.sessions[at], self.now)
        self._expect_without_answer([key for key, (to, _) in self.waiting.items() if to is self.sessions[at]])

    @rule(ms=st.integers(0, 3000))
    def wait(self, ms: int) -> None:
        end = self.now + ms
        while (due := self.room.next_tick(self.now)) is not None and due <= end:
            self.now = max(due, self.now + 1)
            self.room.tick(self.now)
        self.now = max(end, self.now)
        self._expect_without_answer([key for key, (_, due) in self.waiting.items() if due <= self.now])
        for key in [key for key in self.waiting if key in self.ended]:
            assert self.waiting.pop(key)[1] <= self.now
            assert self.ended[key] == [False]

    def _expect_without_answer(self, keys: list[int]) -> None:
        for key in keys:
            assert self.ended[key] == [False]
            del self.waiting[key]

    @invariant()
    def none_ends_twice(self) -> None:
        assert all(len(ends) == 1 for ends in self.ended.values())


TestCalls = CallsOverTime.TestCase
