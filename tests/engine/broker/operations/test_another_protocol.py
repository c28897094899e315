"""A client of a protocol that there is not, on the operations of a broker: nothing here knows a remoting command."""

from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.broker.operations.pop import News, NewsRequest
from mqtool.engine.broker.operations.pull import Filter, PullOutcome, PullPosition
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.operations.send import NewTopic
from mqtool.engine.broker.pops import PoppedMessage, PopRequest, Taken
from mqtool.engine.broker.sessions import (
    ClientCall,
    Consume,
    ConsumersChanged,
    Notice,
    Session,
    TellOffsets,
    TellRunningInfo,
    ThenTold,
    Told,
    TransactionCheck,
)
from mqtool.engine.broker.waiting_room import Waiting
from mqtool.formats.bodies import ConsumerData, Heartbeat, MessageQueue, Subscription
from mqtool.formats.new_message import NewMessage
from mqtool.formats.pop import Receipt, build_receipt
from mqtool.formats.stored_message import parse_stored
from tests.engine.broker.asking import Asking, broker_at_work
from tests.engine.store.live import new_message

TOPIC, GROUP = "T", "G"
LIKE = NewTopic("TBW102", 1, False)
EVERYTHING = Filter("*", "TAG", 0)


class OurSession(Session):
    """Somebody who understands all but running info."""

    def __init__(self, name: str) -> None:
        super().__init__("192.0.2.7", name)
        self.notices: list[Notice] = []
        self.calls: list[tuple[ClientCall, int, ThenTold]] = []

    def notify(self, notice: Notice) -> None:
        self.notices.append(notice)

    def understands(self, call: ClientCall) -> bool:
        return not isinstance(call, TellRunningInfo)

    def ask(self, call: ClientCall, due: int, then: ThenTold) -> None:
        self.calls.append((call, due, then))


def send(asking: Asking, body: bytes, properties: bytes = b"") -> None:
    message = NewMessage(TOPIC, 0, body, properties, born_timestamp=asking.now, born_host=new_message(TOPIC).born_host)
    assert asking.broker.sends.send(message, LIKE, asking.now).result.status == "PUT_OK"
    asking.broker.store.write_units()


def join(asking: Asking, name: str) -> OurSession:
    session = OurSession(name)
    data = ConsumerData(GROUP, "CONSUME_PASSIVELY", "CLUSTERING", "", (Subscription(TOPIC, "*"),))
    asking.broker.client_requests.heartbeat(session, Heartbeat(name, ("P",), (data,)), asking.now)
    return session


def bodies(parts: Any) -> list[bytes]:
    return [parse_stored(part).message.body for part in parts]


def test_a_pull_and_a_question_for_news_are_told_later_of_what_was_sent(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        broker, session = asking.broker, OurSession("one")
        send(asking, b"first")
        place = PullPosition(GROUP, TOPIC, 0, 1, 32)
        waiting = broker.pulls.pull(session, place, EVERYTHING, asking.now, wait_ms=1000)
        news = broker.pop_requests.news(
            session, NewsRequest("Other", TOPIC, 0, is_in_order=False, attempt_id=None), asking.now + 1000, asking.now
        )
        told: list[tuple[Any, int]] = []
        assert isinstance(waiting, Waiting)
        waiting.then = lambda pulled, now: told.append((pulled, now))

        assert news == News(True)  # of the first
        send(asking, b"second")
        broker.tick(asking.now + 1)

        [(pulled, at)] = told
        assert isinstance(pulled, PullOutcome)
        assert (bodies(pulled.fetched.parts), at) == ([b"second"], asking.now + 1)


def test_what_waits_for_a_session_ends_with_it(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        broker, session = asking.broker, join(asking, "one")
        send(asking, b"first")
        waiting = broker.pulls.pull(session, PullPosition(GROUP, TOPIC, 0, 1, 32), EVERYTHING, asking.now, wait_ms=1000)
        assert isinstance(waiting, Waiting)
        waiting.then = lambda pulled, now: pytest.fail("told of nobody")  # noqa: ARG005
        broker.closed(session, asking.now)
        send(asking, b"second")
        broker.tick(asking.now + 2000)
        with pytest.raises(OperationRefusedError) as refused:
            broker.client_requests.consumers(GROUP)
        assert refused.value.reason is Reason.NOT_ONLINE


def test_messages_are_popped_and_acknowledged(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        broker, session = asking.broker, OurSession("one")
        send(asking, b"first")
        taken = broker.pop_requests.pop(
            session, PopRequest(GROUP, TOPIC, -1, 32, 60_000), asking.now, asked_at=asking.now
        )
        assert isinstance(taken, Taken)
        assert bodies(taken.parts) == [b"first"]
        [given] = taken.queues
        receipt = Receipt(given.start_offset, taken.pop_time, 60_000, taken.revive_queue_id, "broker-a")
        text = build_receipt(receipt, "0", given.queue_id, 0)
        popped = PoppedMessage(GROUP, TOPIC, given.queue_id, 0)
        assert broker.acknowledgements.hide(popped, text, 5_000, asking.now).invisible_ms == 5_000
        broker.acknowledgements.acknowledge(popped, text, asking.now)
        with pytest.raises(OperationRefusedError) as refused:
            broker.acknowledgements.acknowledge(popped._replace(offset=9), text, asking.now)
        assert refused.value.reason is Reason.NO_MESSAGE


def test_consumers_are_told_of_each_other_and_asked(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        send(asking, b"first")
        broker, one = asking.broker, join(asking, "one")
        two = join(asking, "two")
        assert one.notices == [ConsumersChanged(GROUP), ConsumersChanged(GROUP)]
        told: list[object] = []

        broker.client_calls.offsets(GROUP, TOPIC, None, asking.now, lambda found, now: told.append(found))  # noqa: ARG005
        (call, _, then_one), (_, _, then_two) = *one.calls, *two.calls
        assert call == TellOffsets(GROUP, TOPIC)
        then_one(Told({MessageQueue(TOPIC, "broker-a", 0): 7}), asking.now)
        assert told == []
        then_two(None, asking.now)
        assert told == [{"one": {MessageQueue(TOPIC, "broker-a", 0): 7}}]

        message_id = broker.store.append(new_message(TOPIC, b"again"), asking.now).message_id
        outcomes: list[bytes | OperationRefusedError] = []
        broker.client_calls.consume(
            GROUP,
            "one",
            message_id,
            (None, None),
            asking.now,
            lambda told, now: outcomes.append(told),  # noqa: ARG005
        )
        consume, _, then = one.calls.pop()
        assert isinstance(consume, Consume)
        assert bodies([consume.record]) == [b"again"]
        then(Told(b"done"), asking.now)
        then(None, asking.now)
        assert (outcomes[0], outcomes[1].reason) == (b"done", Reason.NO_ANSWER)  # type: ignore[union-attr]
        with pytest.raises(OperationRefusedError, match="too low"):
            broker.client_calls.running_info(
                TellRunningInfo(GROUP, "one", wants_stacks=False),
                asking.now,
                lambda told, now: None,  # noqa: ARG005
            )


def test_a_producer_is_asked_for_the_end_of_its_transaction(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        session = join(asking, "one")
        send(asking, b"half", b"TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01AC14\x02")
        asking.broker.tick(asking.now + 60_000)
        [check] = [notice for notice in session.notices if isinstance(notice, TransactionCheck)]
        assert (check.half.message.topic, check.half.message.body, check.unique_key) == (TOPIC, b"half", "AC14")
