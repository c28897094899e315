"""The waiting room: whatever waits is told once, of what came, at its deadline or not at all, and leaves nothing."""

from collections.abc import Callable
from contextlib import ExitStack
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mqtool.engine.broker import waiting_room
from mqtool.engine.broker.sessions import Session
from mqtool.engine.broker.waiting_room import CALLS, FLUSHES, NOTIFICATIONS, POPS, PULLS, Waiting, WaitingRoom, WaitKind
from mqtool.engine.store.live_pull import PullFilter
from mqtool.errors import StoreChangedError

KINDS = (PULLS, POPS, NOTIFICATIONS, FLUSHES, CALLS)
FILTERS = (PullFilter(), PullFilter(frozenset({1})), PullFilter(frozenset({2})))
TOPIC, RETRY = "T", "%RETRY%G"


class One:
    """Something that waits, as the test knows it."""

    def __init__(
        self, kind: WaitKind, session: Session, deadline: int, wanted: PullFilter, queue_id: int, now: int
    ) -> None:
        self.kind = kind
        self.wanted = wanted
        self.queue_id = queue_id
        self.came = now
        self.has_something = False
        self.told: list[tuple[object, int]] = []
        key = {
            PULLS: (TOPIC, max(queue_id, 0)),
            POPS: ("pops", TOPIC, "G", queue_id),
            NOTIFICATIONS: ("notifications", TOPIC, "G", queue_id),
            FLUSHES: "flush",
            CALLS: ("call", session),
        }[kind]
        topics = (TOPIC, RETRY) if kind.is_in_turn else ()
        self.waiting = Waiting(
            kind,
            key,
            session,
            deadline,
            self.look,
            lambda result, now: self.told.append((result, now)),
            topics=topics,
            wanted=wanted,
            offset=now,
        )

    def look(self, is_due: bool, now: int) -> str | None:  # noqa: ARG002
        return "something" if self.has_something else "nothing" if is_due else None


class RoomOverTime(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.room = WaitingRoom()
        self.now = 1
        self.sessions = [Session("192.0.2.1", f"192.0.2.1:{port}") for port in (1, 2)]
        self.all: list[One] = []

    def here(self) -> list[One]:
        return [one for one in self.all if not one.told]

    @rule(
        kind=st.sampled_from(KINDS),
        session=st.integers(0, 1),
        patience=st.integers(0, 50),
        wanted=st.sampled_from(FILTERS),
        queue_id=st.sampled_from([-1, 0, 1]),
    )
    def come(self, kind: WaitKind, session: int, patience: int, wanted: PullFilter, queue_id: int) -> None:
        one = One(kind, self.sessions[session], self.now + patience, wanted, queue_id, self.now)
        assert self.room.has_room(kind, one.waiting.key)
        self.room.add(one.waiting)
        self.all.append(one)

    @rule(topic=st.sampled_from([TOPIC, RETRY]), queue_id=st.integers(0, 1), tags_code=st.integers(0, 2))
    def arrive(self, topic: str, queue_id: int, tags_code: int) -> None:
        """A message comes: all whom it concerns have something, and are told by the next ticks, at the same time."""
        concerned = [one for one in self.here() if self.is_concerned(one, topic, queue_id, tags_code)]
        for one in concerned:
            one.has_something = True
        self.room.arrived(topic, queue_id, self.now + 1, [tags_code], self.now)
        if concerned:
            assert self.room.next_tick(self.now) == self.now
        self.room.tick(self.now)
        while self.room.next_tick(self.now) == self.now:
            self.room.tick(self.now)
        assert [one.told for one in concerned] == [[("something", self.now)]] * len(concerned)

    @staticmethod
    def is_concerned(one: One, topic: str, queue_id: int, tags_code: int) -> bool:
        if not one.wanted.matches_code(tags_code):
            return False
        if one.kind is PULLS:
            return topic == TOPIC and max(one.queue_id, 0) == queue_id
        return one.kind.is_in_turn and (topic == RETRY or one.queue_id in (-1, queue_id))

    @rule(after=st.integers(0, 60))
    def flush(self, after: int) -> None:
        """All that were there before a time are told, in their order, and none of the others."""
        offset = self.now - after
        self.room.release("flush", offset, "flushed", self.now)
        for one in self.all:
            if one.kind is FLUSHES and one.came <= offset:
                assert one.told

    @rule(session=st.integers(0, 1))
    def close(self, session: int) -> None:
        ended = [one for one in self.here() if one.waiting.session is self.sessions[session]]
        self.room.closed(self.sessions[session], self.now)
        for one in ended:
            assert bool(one.told) == (one.kind is CALLS)
        self.all = [one for one in self.all if one not in ended]

    @rule(ms=st.integers(0, 40))
    def wait(self, ms: int) -> None:
        end = self.now + ms
        while (due := self.room.next_tick(self.now)) is not None and due <= end:
            self.now = max(due, self.now)
            self.room.tick(self.now)
        self.now = end
        for one in self.all:
            deadline = one.waiting.deadline
            assert deadline is not None
            assert one.told or deadline > self.now
            assert not one.told or one.told[0][0] != "nothing" or one.told[0][1] == deadline

    @invariant()
    def none_is_told_twice_and_all_are_counted(self) -> None:
        assert all(len(one.told) <= 1 for one in self.all)
        for kind in KINDS:
            assert self.room.count(kind) == sum(one.kind is kind for one in self.here())

    def teardown(self) -> None:
        for session in self.sessions:
            self.room.closed(session, self.now)
        left = {name: table for name, table in vars(self.room).items() if name.startswith("_by") and name != "_by_time"}
        assert not any(left.values()), left
        assert not any(self.room._by_time.values())
        assert not self.room._keys_of_topic
        assert self.room.next_tick(self.now) in (None, self.now)  # a key that was woken is looked at in vain


TestWaitingRoom = RoomOverTime.TestCase


class CrowdedRoomOverTime(RoomOverTime):
    """The same where two that wait are too many to be compared with an arrival at once."""

    def __init__(self) -> None:
        super().__init__()
        self.lowered = ExitStack()
        for name in ("_COMPARED_AT_ONCE", "_MANY_CODES"):
            self.lowered.enter_context(mock.patch.object(waiting_room, name, 1))

    @rule(tags_codes=st.lists(st.integers(0, 2), max_size=4))
    def arrive_together(self, tags_codes: list[int]) -> None:
        """Several messages come before a tick, and somebody may leave meanwhile."""
        concerned = [one for one in self.here() if any(self.is_concerned(one, TOPIC, 0, code) for code in tags_codes)]
        for one in concerned:
            one.has_something = True
        for code in tags_codes:
            self.room.arrived(TOPIC, 0, self.now + 1, [code], self.now)
        if concerned:
            self.room.tick(self.now)
            self.close(0)
        while self.room.next_tick(self.now) == self.now:
            self.room.tick(self.now)
        assert all(one.told for one in concerned if one in self.all)

    def teardown(self) -> None:
        while self.room.next_tick(self.now) == self.now:
            self.room.tick(self.now)
        super().teardown()
        self.lowered.close()


TestCrowdedRoom = CrowdedRoomOverTime.TestCase


@pytest.mark.parametrize("kind", [PULLS, POPS])
def test_a_message_that_thousands_wait_for_in_vain_is_compared_in_several_ticks(kind: WaitKind) -> None:
    compared = 0

    class CountedFilter(PullFilter):
        def matches_code(self, tags_code: int) -> bool:
            nonlocal compared
            compared += 1
            return super().matches_code(tags_code)

    room, session = WaitingRoom(), Session("192.0.2.1", "192.0.2.1:1")
    others = [One(kind, session, 1000, CountedFilter(frozenset({number})), 0, 0) for number in range(5000)]
    wants = One(kind, session, 1000, CountedFilter(frozenset({9999})), 0, 0)
    for one in (*others, wants):
        one.has_something = one is wants
        room.add(one.waiting)

    most = []
    for _ in range(50):
        before = compared
        room.arrived(TOPIC, 0, 1, [9999], 0)
        most.append(compared - before)
    while room.next_tick(0) == 0:
        before = compared
        room.tick(0)
        most.append(compared - before)

    assert max(most) < 300
    assert compared < 6000
    assert wants.told == [("something", 0)]
    assert not any(one.told for one in others)


def test_thousands_that_are_woken_at_once_are_looked_at_in_several_ticks() -> None:
    room, sessions = WaitingRoom(), [Session("192.0.2.1", f"192.0.2.1:{port}") for port in range(1, 2001)]
    pulls = [One(PULLS, session, 1000, FILTERS[0], 0, 0) for session in sessions]
    pops = [One(POPS, session, 1000, FILTERS[0], queue_id, 0) for queue_id, session in enumerate(sessions)]
    for one in (*pulls, *pops):
        room.add(one.waiting)
        one.has_something = True

    room.arrived(TOPIC, 0, 1, [0], 0)
    for one in pops:
        room.wake(one.waiting.key)
    told, most = 0, 0
    while room.next_tick(0) == 0:
        room.tick(0)
        before, told = told, sum(bool(one.told) for one in (*pulls, *pops))
        most = max(most, told - before)

    assert most < 50
    assert [one.told for one in (*pulls, *pops)] == [[("something", 0)]] * 4000


def test_a_thousand_that_wait_for_the_same_are_looked_at_in_several_ticks_and_all_learn_what_comes_meanwhile() -> None:
    room, session, looked = WaitingRoom(), Session("192.0.2.1", "192.0.2.1:1"), 0
    pops = [One(POPS, session, 1000, PullFilter(frozenset({number})), -1, 0) for number in range(1000)]

    def counted(one: One) -> Callable[[bool, int], str | None]:
        def look(is_due: bool, now: int) -> str | None:
            nonlocal looked
            looked += 1
            return one.look(is_due, now)

        return look

    for one in pops:
        one.waiting.look = counted(one)
        room.add(one.waiting)
    most = []
    for number in (999, 0):  # the first one is looked at before there is something for it
        pops[number].has_something = True
        room.arrived(TOPIC, 0, 1, [number], 0)
        for _ in range(10):
            before = looked
            room.tick(0)
            most.append(looked - before)
    while room.next_tick(0) == 0:
        before = looked
        room.tick(0)
        most.append(looked - before)

    assert max(most) <= 4
    assert [number for number, one in enumerate(pops) if one.told] == [0, 999]


def test_thousands_whose_time_is_up_are_told_in_several_ticks() -> None:
    room = WaitingRoom()
    pulls = [One(PULLS, Session("192.0.2.1", f"192.0.2.1:{port}"), 1000, FILTERS[0], 0, 0) for port in range(1, 2001)]
    for one in pulls:
        room.add(one.waiting)

    told, most = 0, 0
    while room.next_tick(1000) is not None:
        room.tick(1000)
        before, told = told, sum(bool(one.told) for one in pulls)
        most = max(most, told - before)

    assert most < 50
    assert [one.told for one in pulls] == [[("nothing", 1000)]] * 2000


@pytest.mark.parametrize("is_due", [True, False])
def test_who_waits_at_what_cannot_be_read_holds_nobody_up(is_due: bool) -> None:
    room, told = WaitingRoom(), list[str]()

    def fail(_is_due: bool, _now: int) -> None:
        raise StoreChangedError("a queue was truncated")

    session = Session("192.0.2.1", "192.0.2.1:1")
    for look in (fail, lambda _is_due, _now: "a message"):
        room.add(Waiting(PULLS, (TOPIC, 0), session, 1000, look, lambda result, _: told.append(result)))
    if not is_due:
        room.wake((TOPIC, 0))
    room.tick(1000 if is_due else 1)

    assert told == ["a message"]
    assert room.count(PULLS) == 0
