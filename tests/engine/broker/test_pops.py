"""Pops against a simple model of what a group may be given when, across restarts; and what stores of others hold."""

import asyncio
import base64
import contextlib
import itertools
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import mqtool
from mqtool.engine.broker import timers
from mqtool.formats.bodies import build_body
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.pop import Receipt, build_receipt, parse_receipt
from mqtool.formats.properties import parse_properties
from mqtool.formats.property_names import POP_CK
from mqtool.formats.remoting import Outgoing, RemotingCommand
from mqtool.formats.stored_message import StoredMessage, parse_stored
from tests.cost import counted
from tests.engine.broker.asking import Asking, body_of, broker_at_work
from tests.engine.store.live import NOW, new_message
from tests.wire_client import WireClient

GROUP, TOPIC = "G", "T"
QUEUES = 2


@dataclass
class GivenMessage:
    """One delivery of a message."""

    name: str
    topic: str  # it is acknowledged under
    queue_id: int
    queue_offset: int
    receipt: str
    times: int  # it was given out before


def make_topic(asking: Asking, topic: str = TOPIC, queues: int = QUEUES) -> None:
    asking.broker.topics.put([TopicConfig(topic, queues, queues, 6, False, "SINGLE_TAG", 0, {})], asking.now)


def send(asking: Asking, name: str, queue_id: int = 0, topic: str = TOPIC, **pairs: str) -> None:
    asking.append(new_message(topic, name.encode(), queue_id=queue_id, pairs={"UNIQ_KEY": name, **pairs}))


def pop_fields(queue_id: int = -1, count: int = 32, invisible: int = 5000, **more: Any) -> dict[str, Any]:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue_id, "maxMsgNums": count}
    return {**fields, "invisibleTime": invisible, "pollTime": 0, "bornTime": 0, "initMode": 0, **more}


def pop(asking: Asking, **given: Any) -> list[GivenMessage]:
    answer = asking.ask(RequestCode.POP_MESSAGE, **pop_fields(**given))
    assert answer.code in (0, ResponseCode.POLLING_TIMEOUT)
    return deliveries(answer)


def deliveries(answer: RemotingCommand) -> list[GivenMessage]:
    """Return what an answer gives out, with the receipts that a Java client makes of it."""
    fields = answer.ext_fields
    starts = {}
    for text in filter(None, fields["startOffsetInfo"].split(";")):
        flag, queue_id, start = text.split(" ")
        starts[flag, int(queue_id)] = int(start)
    found = []
    body = body_of(answer)
    while body:
        size = int.from_bytes(body[:4], "big")
        found.append(_delivery(parse_stored(body[:size]), fields, starts))
        body = body[size:]
    return found


def _delivery(stored: StoredMessage, fields: dict[str, str], starts: dict[tuple[str, int], int]) -> GivenMessage:
    message = stored.message
    assert message.topic == TOPIC
    text = parse_properties(message.properties).get(POP_CK)
    if text is None:
        start = starts["0", message.queue_id]
        time, invisible, revive = (int(fields[name]) for name in ("popTime", "invisibleTime", "reviveQid"))
        receipt = Receipt(start, time, invisible, revive, "broker-a")
        text = build_receipt(receipt, "0", message.queue_id, stored.queue_offset)
    topic = TOPIC if text.split(" ")[4] == "0" else f"%RETRY%{GROUP}_{TOPIC}"
    return GivenMessage(
        message.body.decode(), topic, message.queue_id, stored.queue_offset, text, message.reconsume_times
    )


def of_one(one: GivenMessage) -> dict[str, Any]:
    fields = {"consumerGroup": GROUP, "topic": one.topic, "queueId": one.queue_id}
    return {**fields, "extraInfo": one.receipt, "offset": one.queue_offset}


def acknowledge(asking: Asking, one: GivenMessage) -> int:
    return asking.ask(RequestCode.ACK_MESSAGE, **of_one(one)).code


def hide(asking: Asking, one: GivenMessage, invisible: int) -> GivenMessage:
    answer = asking.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **of_one(one), invisibleTime=invisible)
    assert answer.code == 0
    fields = answer.ext_fields
    time, changed, revive = (int(fields[name]) for name in ("popTime", "invisibleTime", "reviveQid"))
    flag = one.receipt.split(" ")[4]
    receipt = Receipt(one.queue_offset, time, changed, revive, "broker-a")
    text = build_receipt(receipt, flag, one.queue_id, one.queue_offset)
    return GivenMessage(one.name, one.topic, one.queue_id, one.queue_offset, text, one.times)


def bits_of(places: Iterable[int]) -> str:
    """Return a set of places as clients write it."""
    bits = sum(1 << place for place in set(places))
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def acknowledge_all(asking: Asking, some: list[GivenMessage]) -> int:
    """Acknowledge deliveries in one request, by the body that clients make of them."""
    acks: dict[tuple[Any, ...], list[int]] = {}
    for one in some:
        receipt = parse_receipt(one.receipt)
        key = one.receipt.split(" ")[4], one.queue_id, receipt
        acks.setdefault(key, []).append(one.queue_offset - receipt.start_offset)
    body = [
        {
            "c": GROUP,
            "t": TOPIC,
            "r": flag,
            "so": receipt.start_offset,
            "q": queue_id,
            "rq": receipt.revive_queue_id,
            "pt": receipt.pop_time,
            "it": receipt.invisible_ms,
            "b": bits_of(places),
        }
        for (flag, queue_id, receipt), places in acks.items()
    ]
    return asking.ask(RequestCode.BATCH_ACK_MESSAGE, build_body({"brokerName": "broker-a", "acks": body})).code


def pass_time(asking: Asking, span: int) -> list[Outgoing]:
    """Let the broker tick whenever something is due; return what it sends."""
    until = asking.now + span
    out: list[Outgoing] = []
    while (due := asking.door.next_tick(asking.now)) <= until:
        asking.now = max(asking.now, due)
        out += asking.door.tick(asking.now)
    asking.now = until
    return out


@dataclass
class Known:
    """What the model knows of a message."""

    hidden_until: int = 0  # ms
    times: int = 0
    last: GivenMessage | None = None
    older: list[GivenMessage] = field(default_factory=list)
    is_done: bool = False


class PopsOverTime(RuleBasedStateMachine):
    """A message is given out when it is new or its time is over, counted, and not once it is acknowledged."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.known: dict[str, Known] = {}
        self.now = NOW
        self.start()
        make_topic(self.asking)

    def start(self) -> None:
        self.stack = contextlib.ExitStack()
        self.asking = self.stack.enter_context(broker_at_work(Path(self.folder.name), self.now))

    @rule(queue_id=st.integers(0, QUEUES - 1))
    def send(self, queue_id: int) -> None:
        name = f"m{len(self.known)}"
        send(self.asking, name, queue_id)
        self.known[name] = Known()

    @rule(count=st.integers(1, 3), invisible=st.integers(100, 9000))
    def pop_some(self, count: int, invisible: int) -> None:
        self.take(pop(self.asking, count=count, invisible=invisible), invisible)

    @rule(invisible=st.integers(100, 9000))
    def pop_all(self, invisible: int) -> None:
        given = pop(self.asking, invisible=invisible)
        # What has been visible for two seconds has come back.
        due = {name for name, one in self.known.items() if not one.is_done and one.hidden_until + 2000 <= self.now}
        assert {one.name for one in given} >= due
        self.take(given, invisible)

    def take(self, given: list[GivenMessage], invisible: int) -> None:
        assert len({one.name for one in given}) == len(given)
        for one in given:
            known = self.known[one.name]
            assert not known.is_done, one
            assert known.hidden_until <= self.now, one
            assert known.times == one.times
            if known.last:
                known.older.append(known.last)
            known.times, known.last, known.hidden_until = known.times + 1, one, self.now + invisible

    def held(self) -> list[Known]:
        return [one for one in self.known.values() if one.last and not one.is_done and self.now < one.hidden_until]

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.held()))
        assert known.last is not None
        assert acknowledge(self.asking, known.last) == 0
        known.is_done = True

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def acknowledge_several(self, data: st.DataObject) -> None:
        some = [one for one in self.held() if data.draw(st.booleans())]
        if some:
            assert acknowledge_all(self.asking, [one.last for one in some if one.last]) == 0
            for known in some:
                known.is_done = True

    @precondition(lambda self: self.held())
    @rule(data=st.data(), invisible=st.integers(100, 9000))
    def hide(self, data: st.DataObject, invisible: int) -> None:
        known = data.draw(st.sampled_from(self.held()))
        assert known.last is not None
        # Receipts of one message and one millisecond are the same receipt, here as in RocketMQ.
        self.asking.now = self.now = self.now + 1
        known.older.append(known.last)
        known.last = hide(self.asking, known.last, invisible)
        known.hidden_until = self.now + invisible

    @precondition(lambda self: any(one.older for one in self.held()))
    @rule(data=st.data())
    def acknowledge_an_older_delivery(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from([one for one in self.held() if one.older]))
        assert acknowledge(self.asking, data.draw(st.sampled_from(known.older))) == 0

    @rule(span=st.integers(1, 6000))
    def pass_time(self, span: int) -> None:
        pass_time(self.asking, span)
        self.now = self.asking.now

    @rule(says_so=st.booleans())
    def restart(self, says_so: bool) -> None:
        """Start anew; what a process that is killed leaves is what its disk holds at that moment."""
        left = tempfile.TemporaryDirectory()
        if says_so:
            self.asking.broker.stop(self.now)
            self.stack.close()
        shutil.copytree(self.folder.name, left.name, dirs_exist_ok=True)
        with self.folder:
            self.stack.close()
        self.folder = left
        self.start()

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            with self.folder, contextlib.closing(self.stack):
                # In the end everything that was not acknowledged comes, once.
                pass_time(self.asking, 20_000)
                left = sorted(one.name for one in pop(self.asking, invisible=60_000))
                while more := pop(self.asking, invisible=60_000):
                    left += [one.name for one in more]
                assert sorted(left) == sorted(name for name, one in self.known.items() if not one.is_done)


PopsOverTime.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestPopsOverTime = PopsOverTime.TestCase


def test_messages_that_many_pops_did_not_acknowledge_come_back_some_at_a_time(tmp_path: Path) -> None:
    with broker_at_work(tmp_path, mappedFileSizeCommitLog=str(1 << 22)) as asking:
        make_topic(asking)
        for number in range(2000):
            send(asking, f"m{number}")
        while pop(asking):
            pass
        store = asking.store
        asking.now += 10_000
        counts = [0]
        while asking.door.next_tick(asking.now) <= asking.now:
            asking.door.tick(asking.now)
            queue = store.queue(f"%RETRY%{GROUP}_{TOPIC}", 0)
            counts.append(queue.next_offset if queue else 0)

        assert counts[-1] == 2000
        assert max(after - before for before, after in itertools.pairwise(counts)) <= 232


def test_a_question_for_news_is_answered_when_the_queue_that_others_hold_is_free_again(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        make_topic(asking)
        send(asking, "one")
        asking.ask(RequestCode.POP_MESSAGE, **pop_fields(0, order=True, invisible=3000))
        call: dict[str, Any] = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": 0,
            "order": True,
            "bornTime": asking.now,
        }
        assert asking.handle(RequestCode.NOTIFICATION, **call, pollTime=20_000) == []
        assert pass_time(asking, 2900) == []
        [(_, answer)] = pass_time(asking, 200)
        assert answer.ext_fields["hasMsg"] == "true"


def test_who_waits_for_queues_that_others_hold_takes_no_more_memory_the_more_comes_meanwhile(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        make_topic(asking)
        for queue_id in range(QUEUES):
            send(asking, f"first {queue_id}", queue_id)
            asking.ask(RequestCode.POP_MESSAGE, **pop_fields(queue_id, order=True, invisible=60_000))
        call: dict[str, Any] = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": -1,
            "order": True,
            "bornTime": asking.now,
        }
        waits = {"bornTime": asking.now, "pollTime": 50_000, "order": True}
        assert asking.handle(RequestCode.NOTIFICATION, **call, pollTime=50_000) == []
        assert asking.handle(RequestCode.POP_MESSAGE, **pop_fields(**waits)) == []
        sizes = []
        for _ in range(2):
            for number in range(200):
                send(asking, f"m{number}", number % QUEUES)
                assert asking.door.tick(asking.now) == []
            sizes.append(len(asking.broker.room._alarms))
        assert sizes == [2, 2]


def test_who_would_wait_for_years_and_leaves_leaves_nothing(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        make_topic(asking)
        times = []
        for _ in range(3):
            for number in range(1000):
                waits = pop_fields(bornTime=asking.now, pollTime=10**12 + number)
                assert asking.handle(RequestCode.POP_MESSAGE, **waits) == []
            asking.door.closed(asking.client, asking.now)
            asking.now += 1000
            times.append(len(asking.broker.room._by_time))
        assert times[-1] <= 1000


def test_what_pops_keep_has_a_limit_of_its_own_and_who_waits_for_room_costs_nothing(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        make_topic(asking)
        for number in range(3):
            send(asking, f"m{number}")
        timed: dict[str, Any] = {
            "topic": TOPIC,
            "queueId": 0,
            "producerGroup": "P",
            "properties": "TIMER_DELAY_SEC\x019\x02",
        }
        timed |= {"defaultTopic": "TBW102", "defaultTopicQueueNums": 1, "sysFlag": 0, "bornTimestamp": 1, "flag": 0}
        with mock.patch.multiple(timers, MAX_OF_POPS=1, MAX_TIMERS=1):
            [first] = pop(asking, count=1, invisible=5000)
            assert pop(asking) == []
            assert acknowledge(asking, first) == ResponseCode.SYSTEM_ERROR  # it comes again
            sends = [asking.ask(RequestCode.SEND_MESSAGE, b"later", **timed).code for _ in range(2)]
            assert sends == [0, ResponseCode.SYSTEM_ERROR]
            waits = pop_fields(bornTime=asking.now, pollTime=15_000)
            assert asking.handle(RequestCode.POP_MESSAGE, **waits) == []
            asking.door.tick(asking.now)
            assert asking.door.next_tick(asking.now) > asking.now
            out = pass_time(asking, 8000)
            assert {one.name for _, answer in out for one in deliveries(answer)} <= {"m0", "m1", "m2"}
            assert len(out) == 1
        left = {one.name for _, answer in out for one in deliveries(answer)}
        pass_time(asking, 20_000)
        assert {one.name for one in pop(asking)} | left >= {"m0", "m1", "m2", "later"}


def test_only_messages_that_a_pop_in_order_has_given_out_are_hidden_on(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        make_topic(asking)
        for number in range(9):
            send(asking, f"m{number}")
        [one] = deliveries(asking.ask(RequestCode.POP_MESSAGE, **pop_fields(0, 1, order=True)))
        for offset in range(9):
            hidden = of_one(one) | {"offset": offset, "invisibleTime": 2000}
            assert asking.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **hidden).code == 0
        pass_time(asking, 6000)
        table = (tmp_path / "config" / "consumerOrderInfo.json").read_text()
        assert re.findall(r'"ot":\{([^}]*)\}', re.sub(r"\s", "", table)) == [f"0:{asking.now - 6000 + 2000}"]


@pytest.mark.parametrize("what", ["topic", "group"])
def test_a_late_acknowledgement_of_what_was_popped_in_order_moves_no_new_topic_or_group_of_the_name(what: str) -> None:
    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker() as broker:
            client = WireClient(broker.address)
            for body in (b"1", b"2"):
                await client.send(body, 0, "T")
            before = await client.pop("T", "G", 32, 60_000, in_order=True)
            assert [body for body, _ in before] == [b"1", b"2"]
            if what == "topic":
                await client.done(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
                for body in (b"1", b"2"):
                    await client.send(body, 0, "T")
            else:
                await client.done(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G", cleanOffset=True)
            for _, ack in before:
                await client.ask(RequestCode.ACK_MESSAGE, **ack)
            assert [body for body, _ in await client.pop("T", "G", 32, 60_000, in_order=True)] == [b"1", b"2"]
            await client.close()

    asyncio.run(test())


@pytest.mark.parametrize("invisible_ms", [1 << 42, (1 << 63) - 1])
def test_what_is_to_be_hidden_longer_than_a_timer_runs_is_not_given_out_and_is_still_there(invisible_ms: int) -> None:
    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker() as broker:
            client = WireClient(broker.address)
            await client.send(b"one", 0, "T")
            with pytest.raises(AssertionError, match="is longer than timerMaxDelaySec"):
                await client.pop("T", "G", 32, invisible_ms)
            [(body, ack)] = await client.pop("T", "G", 32, 2000)
            assert body == b"one"
            answer = await client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **ack, invisibleTime=invisible_ms)
            said = "is longer than timerMaxDelaySec" in (answer.remark or "")
            assert (answer.code, said) == (ResponseCode.INVALID_PARAMETER, True)
            while not (again := await client.pop("T", "G", 32, 60_000)):
                await asyncio.sleep(0.05)
            assert [body for body, _ in again] == [b"one"]
            await client.close()

    asyncio.run(test())


def test_a_pop_of_queues_without_new_messages_takes_few_steps_and_changes_nothing(tmp_path: Path) -> None:
    queues = 100
    with broker_at_work(tmp_path) as asking:
        make_topic(asking, queues=queues)
        for queue_id in range(queues):
            send(asking, str(queue_id), queue_id)
        while pop(asking, invisible=500_000):
            pass
        asking.broker.offsets.keep(asking.now)
        with counted() as counting:
            assert pop(asking) == []

        assert counting.total < 30 * queues
        assert not asking.broker.offsets._is_changed

        send(asking, "new", queues - 1)
        assert [given.name for given in pop(asking)] == ["new"]


def test_the_retries_of_others_stay_when_a_topic_is_deleted() -> None:
    async def test() -> None:
        clock = mqtool.VirtualClock()
        async with asyncio.timeout(60), mqtool.Broker(clock=clock) as broker:
            client = WireClient(broker.address)
            # Their retry topics end with the names of deleted topics: %RETRY%G_a_b, %RETRY%orders_b.
            for topic, group in (("a_b", "G"), ("b", "orders"), ("b", "H")):
                await client.send(b"one", topic=topic)
                sent = await client.send(b"two", topic=topic)
                asked: dict[str, Any] = {"consumerGroup": group, "topic": topic, "queueId": 0, "maxMsgNums": 9}
                asked |= {"invisibleTime": 2000, "pollTime": 0, "bornTime": clock(), "initMode": 0, "order": False}
                await client.done(RequestCode.POP_MESSAGE, **asked, expType="TAG", exp="*")
            await client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"orders_b"}')
            back: dict[str, Any] = {"offset": int(sent["msgId"][-16:], 16), "group": "orders_b", "delayLevel": 1}
            await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, **back)
            for _ in range(4):
                clock.advance(2)
            for name in ("G_a_b", "orders_b", "H_b"):
                assert b"two" in [one.body for one in await client.messages(f"%RETRY%{name}")]

            await client.done(RequestCode.DELETE_TOPIC_IN_BROKER, topic="b")

            for name, is_there in (("G_a_b", True), ("orders_b", True), ("H_b", False)):
                left = [one.body for one in await client.messages(f"%RETRY%{name}")]
                assert (b"two" in left) == is_there, name
            await client.close()

    asyncio.run(test())


@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.PULL_MESSAGE])
@pytest.mark.parametrize(("what", "answered"), [("group", 16), ("topic", 16), ("queue", 29)])
def test_who_waits_is_refused_what_was_forbidden_meanwhile(
    code: RequestCode, what: str, answered: int, tmp_path: Path
) -> None:
    with broker_at_work(tmp_path) as asking:
        topics, groups = asking.broker.topics, asking.broker.groups
        topics.put([TopicConfig("Wide", 2, 2, 6, False, "SINGLE_TAG", 0, {})], NOW)
        asked: dict[str, Any] = {"consumerGroup": "waiting", "topic": "Wide", "queueId": 1, "queueOffset": 0}
        asked |= {"maxMsgNums": 1, "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": 60_000, "subVersion": 0}
        asked |= {"subscription": "*", "expressionType": "TAG", "bornTime": NOW, "pollTime": 60_000, "initMode": 0}
        assert asking.handle(code, **{**asked, "invisibleTime": 60_000, "order": False}) == []
        if what == "group":
            groups.update({"groupName": "waiting", "consumeEnable": False}, NOW)
        else:
            read_queue_count, perm = (2, 2) if what == "topic" else (1, 6)
            topics.put([TopicConfig("Wide", read_queue_count, 2, perm, False, "SINGLE_TAG", 0, {})], NOW)

        asking.append(new_message("Wide", queue_id=1))

        [(_, answer)] = [*asking.door.tick(NOW)]
        assert (answer.code, answer.parts) == (answered, ())
        assert asking.broker.pops.has_messages("Wide", "waiting", 1)
