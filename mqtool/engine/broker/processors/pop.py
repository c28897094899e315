"""Pops, and what belongs to them: acknowledging, hiding for longer, looking without taking, asking for news.

(Rules: remoting.md 3.4. RocketMQ: ``PopMessageProcessor``, ``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor``,
``PeekMessageProcessor``, ``NotificationProcessor``, ``PollingInfoProcessor``.)
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mqtool.engine.broker.limits import check_name
from mqtool.engine.broker.operations.checks import checked_group
from mqtool.engine.broker.operations.filters import wanted_by_expression
from mqtool.engine.broker.operations.refusal import Reason, RefusedError
from mqtool.engine.broker.pops import Taken
from mqtool.engine.broker.processors.refusals import refusal
from mqtool.engine.broker.processors.send import acknowledged, when_flushed
from mqtool.engine.broker.waiting_room import NOTIFICATIONS, POPS, Kind, Waiting
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.engine.store.live_pull import EVERYTHING, Wanted, fetch
from mqtool.errors import FormatError
from mqtool.formats.bodies import parse_body
from mqtool.formats.codes import Perm, RequestCode, ResponseCode
from mqtool.formats.config_tables import Table
from mqtool.formats.headers import (
    Ack,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Notification,
    NotificationResponse,
    Peek,
    PollingInfo,
    PollingInfoResponse,
    Pop,
    PopResponse,
    build_header,
    parse_header,
)
from mqtool.formats.pop import ORDER_QUEUE_ID, Acknowledgement, flagged_topic, parse_bits, parse_receipt
from mqtool.formats.remoting import RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request

MOST_MESSAGES = 32
_LATE_MS = 500
"""A pop that has been under way for so much longer than it would wait is not worth an answer."""
_READ = int(Perm.READ)
_FOUND, _NOTHING = "FOUND", "NO_MESSAGE_IN_QUEUE"


# Taking messages


def pop(broker: "Broker", request: "Request") -> "Answer":
    """Answer with messages, or let the request wait for some."""
    command, now = request.command, request.now
    header = parse_header(Pop, command.ext_fields)
    until = (header.born_time or now) + header.poll_time
    try:
        if now - until > _LATE_MS:
            raise RefusedError(Reason.TOO_LATE, "the pop message is timeout too much")
        if header.max_msg_nums > MOST_MESSAGES:
            remark = f"the broker[{broker.address}] pop message's num is greater than {MOST_MESSAGES}"
            raise RefusedError(Reason.BAD_ARGUMENT, remark)
        if not broker.settings.timer_enabled:
            raise RefusedError(Reason.NOT_POSSIBLE, "pop message is forbidden because timerWheelEnable is false")
        _check(broker, header.consumer_group, header.topic, header.queue_id, now)
        wanted = _wanted(header)
    except RefusedError as refused:
        return refusal(command, refused, PopResponse(0, 0, 0, 0))
    broker.offsets.check_room(header.consumer_group, header.topic)
    check_name(header.attempt_id or "", "attempt id")
    once = _Pop(broker, request, header, wanted)
    return once.answer_or_wait(until)


class _Pop:
    """A pop that may be answered, as often as it is tried."""

    def __init__(self, broker: "Broker", request: "Request", header: Pop, wanted: Wanted) -> None:
        self._broker = broker
        self._request = request
        self._header = header
        self._wanted = wanted
        self._key = key_of(POPS, header)

    def answer_or_wait(self, until: int) -> "Answer":
        """Return the answer if there are messages, or if this cannot wait for some until a time (ms)."""
        broker, header, (_, session, now) = self._broker, self._header, self._request
        taken = broker.pops.take(header, self._wanted, now)
        room = broker.room
        if taken.parts or header.poll_time <= 0 or until <= now:
            if taken.rest:
                room.wake(self._key)
            return self._answer(taken, ResponseCode.POLLING_TIMEOUT)
        if not room.has_room(POPS, self._key):
            return self._answer(taken, ResponseCode.POLLING_FULL)
        topics = (header.topic, *broker.pops.retry_topics(header.topic, header.consumer_group))
        self._request.command.shed()
        room.add(Waiting(POPS, self._key, session, until, self._look, self._give, topics=topics, wanted=self._wanted))
        self._look_again(taken)
        return None

    def _look(self, is_due: bool, now: int) -> Taken | None:
        taken = self._broker.pops.take(self._header, self._wanted, now)
        if taken.parts or is_due:
            return taken
        self._look_again(taken)
        return None

    def _give(self, taken: Taken, now: int) -> None:
        answer = self._answer(taken, ResponseCode.POLLING_TIMEOUT)
        if answer is not None:
            self._request.session.reply(answer, now)

    def _look_again(self, taken: Taken) -> None:
        """See to it that a pop that waits is tried again where its filter stopped, or when a queue is free."""
        if taken.rest:
            self._broker.room.wake(self._key)
        if taken.free_at:
            self._broker.room.wake_at(taken.free_at, self._key)

    def _answer(self, taken: Taken, code_of_nothing: ResponseCode) -> "Answer":
        header, command = self._header, self._request.command
        fields = build_header(
            PopResponse(
                taken.pop_time,
                header.invisible_time,
                taken.revive_queue_id,
                taken.rest,
                ";".join(taken.starts),
                ";".join(taken.offsets),
                ";".join(taken.order_counts) if header.order else None,
            )
        )
        if not taken.parts:
            return command.answer(code_of_nothing, fields, remark=_NOTHING)
        answer = command.answer(0, fields, remark=_FOUND)
        answer.parts = taken.parts
        if taken.flush_offset > self._broker.store.flushed_offset:
            when_flushed(self._broker, self._request._replace(now=taken.pop_time), answer, taken.flush_offset)
            return None
        return answer


def _wanted(header: Pop) -> Wanted:
    """Return the filter of a pop; raises ``RefusedError``."""
    if not header.exp:
        return EVERYTHING
    try:
        return wanted_by_expression(header.exp_type or "TAG", header.exp)
    except RefusedError:
        remark = "parse the consumer's subscription failed"
        raise RefusedError(Reason.BAD_FILTER, remark) from None


def peek(broker: "Broker", request: "Request") -> "Answer":
    """Answer with messages that stay where they are."""
    command, now = request.command, request.now
    topic, queue_id, most, group = header = parse_header(Peek, command.ext_fields)
    try:
        _check(broker, group, topic, queue_id, now)
    except RefusedError as refused:
        return refusal(command, refused, PopResponse(0, 0, 0, 0))
    parts: list[bytes] = []
    rest = count = 0
    for name, one in _places(broker, header):
        if count >= most:
            break
        queue, offset = broker.store.queue(name, one), broker.pops.cursor(name, group, one)
        fetched = fetch(broker.store, queue, offset, most - count)
        parts += fetched.parts
        count += fetched.message_count
        rest += max(0, fetched.max_offset - offset)
    fields = build_header(PopResponse(0, 0, 0, rest))
    if not parts:
        return command.answer(ResponseCode.PULL_NOT_FOUND, fields, remark=_NOTHING)
    answer = command.answer(0, fields, remark=_FOUND)
    answer.parts = parts
    return answer


def _places(broker: "Broker", header: Peek | Notification) -> Iterable[tuple[str, int]]:
    """Yield the queues that a request is about."""
    config = broker.topics.get(header.topic)
    queue_ids: Iterable[int] = (header.queue_id,)
    if header.queue_id < 0:
        queue_ids = range(config.read_queue_count if config else 0)
    yield from ((header.topic, queue_id) for queue_id in queue_ids)
    yield from ((topic, 0) for topic in broker.pops.retry_topics(header.topic, header.consumer_group))


def key_of(kind: Kind, header: Pop | Notification) -> tuple[str, str, str, int]:
    """Return what those have in common who wait for the same; a queue id of -1 is all queues."""
    return kind.name, header.topic, header.consumer_group, header.queue_id


# Asking for news


def notification(broker: "Broker", request: "Request") -> "Answer":
    """Tell whether there are messages, as soon as there are any."""
    command, session, now = request
    header = parse_header(Notification, command.ext_fields)
    try:
        _check(broker, header.consumer_group, header.topic, header.queue_id, now)
    except RefusedError as refused:
        return refusal(command, refused, NotificationResponse(False, False))
    room, key = broker.room, key_of(NOTIFICATIONS, header)

    def tell(is_due: bool, now: int) -> RemotingCommand | None:
        has_messages = _has_messages(broker, header, now)
        if not has_messages and not is_due:
            return None
        return command.answer(0, build_header(NotificationResponse(has_messages, False)))

    until = (header.born_time or now) + header.poll_time
    answer = tell(until <= now, now)
    if answer is not None:
        return answer
    if not room.has_room(NOTIFICATIONS, key):
        return command.answer(0, build_header(NotificationResponse(False, True)))
    topics = (header.topic, *broker.pops.retry_topics(header.topic, header.consumer_group))
    command.shed()
    room.add(Waiting(NOTIFICATIONS, key, session, until, tell, session.reply, topics=topics))
    return None


def _has_messages(broker: "Broker", header: Notification, now: int) -> bool:
    group = header.consumer_group
    for topic, queue_id in _places(broker, header):
        key = topic, group, queue_id
        if header.order and (free_at := broker.pops.orders.blocked_until(key, header.attempt_id, now)):
            broker.room.wake_at(free_at, key_of(NOTIFICATIONS, header))
        elif broker.pops.has_messages(topic, group, queue_id):
            return True
    return False


def polling_info(broker: "Broker", request: "Request") -> "Answer":
    """Tell how many pops wait."""
    command, now = request.command, request.now
    group, topic, queue_id = parse_header(PollingInfo, command.ext_fields)
    try:
        _check(broker, group, topic, queue_id, now)
    except RefusedError as refused:
        return refusal(command, refused, PollingInfoResponse(0))
    count = broker.room.count(POPS, (POPS.name, topic, group, queue_id))
    return command.answer(0, build_header(PollingInfoResponse(count)))


# Being done with messages


def ack(broker: "Broker", request: "Request") -> "Answer":
    """Take note that a consumer is done with a message."""
    command, now = request.command, request.now
    header = parse_header(Ack, command.ext_fields)
    group, topic, queue_id, extra_info, offset = header
    try:
        low, high = _kept(broker, topic, queue_id)
        if not low <= offset <= high:
            remark = f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}"
            raise RefusedError(Reason.NO_MESSAGE, remark)
        receipt = parse_receipt(extra_info)
        done = receipt.acknowledgement(group, topic, queue_id, offset)
        result = _acknowledge(broker, done, receipt.revive_queue_id, receipt.revive_time, now)
    except RefusedError as refused:
        return refusal(command, refused)
    return _stored(broker, request, result)


def batch_ack(broker: "Broker", request: "Request") -> "Answer":
    """Take note that a consumer is done with messages of several pops."""
    command, now = request.command, request.now
    body = parse_body(command.body) if command.body else {}
    result: AppendResult | None = None
    listed = body.get("acks") or []
    if not isinstance(listed, list) or not all(isinstance(members, dict) for members in listed):
        raise FormatError("acks is no list of acknowledgements", offset=0)
    acks = [_parse_batch(members, str(body.get("brokerName") or "")) for members in listed]
    if not acks:
        return command.answer(ResponseCode.NO_MESSAGE)
    try:
        for done, revive_queue_id, revive_time in acks:
            queue = broker.store.queue(done.topic, done.queue_id)
            low, high = (queue.min_offset(broker.store.log.min_offset), queue.next_offset) if queue else (0, -1)
            done = done._replace(offsets=tuple(offset for offset in done.offsets if low <= offset <= high))
            if done.offsets:
                result = _acknowledge(broker, done, revive_queue_id, revive_time, now) or result
    except RefusedError as refused:
        return refusal(command, refused)
    return _stored(broker, request, result)


def _parse_batch(members: Table, broker_name: str) -> tuple[Acknowledgement, int, int]:
    """Return what one member of a body acknowledges, its revive queue, and when its messages could be seen again."""
    try:
        group, start, pop_time = str(members["c"]), int(members["so"]), int(members["pt"])
        topic = flagged_topic(str(members["t"]), group, str(members.get("r") or "0"))
        offsets = tuple(start + place for place in parse_bits(members["b"]))
        done = Acknowledgement(group, topic, int(members["q"]), start, pop_time, broker_name, offsets)
        return done, int(members["rq"]), pop_time + int(members["it"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError("an acknowledgement of several messages lacks something", offset=0) from error


def _acknowledge(
    broker: "Broker", done: Acknowledgement, revive_queue_id: int, revive_time: int, now: int
) -> AppendResult | None:
    """Take note that messages are done with; raises ``RefusedError``."""
    if revive_queue_id != ORDER_QUEUE_ID:
        return broker.pops.acknowledge(done, revive_queue_id, revive_time, now)
    try:
        broker.pops.acknowledge_in_order(done)
    except KeyError as error:
        remark = f"offset is illegal, key:{done.topic}@{done.group}@{done.queue_id}, commit:{error.args[0]}"
        raise RefusedError(Reason.BAD_MESSAGE, remark) from None
    return None


def change_invisible_time(broker: "Broker", request: "Request") -> "Answer":
    """Hide a message for another time."""
    command, now = request.command, request.now
    header = parse_header(ChangeInvisibleTime, command.ext_fields)
    try:
        low, high = _kept(broker, header.topic, header.queue_id)
        if not low <= header.offset < high:
            raise RefusedError(Reason.NO_MESSAGE, f"there is no message {header.offset}")
    except RefusedError as refused:
        return refusal(command, refused, ChangeInvisibleTimeResponse(0, 0, 0))
    receipt = parse_receipt(header.extra_info)
    if receipt.revive_queue_id == ORDER_QUEUE_ID:
        until = broker.pops.hide_in_order(header, receipt, now)
        changed = ChangeInvisibleTimeResponse(0, 0, 0)
        if until is not None:
            changed = ChangeInvisibleTimeResponse(receipt.pop_time, until - receipt.pop_time, ORDER_QUEUE_ID)
        return command.answer(0, build_header(changed))
    result = broker.pops.hide(header, receipt, now)
    changed = ChangeInvisibleTimeResponse(now, header.invisible_time, receipt.revive_queue_id)
    return _stored(broker, request, result, build_header(changed))


def _stored(
    broker: "Broker", request: "Request", result: AppendResult | None, fields: dict[str, str] | None = None
) -> "Answer":
    """Return the answer to what may have been written down."""
    command = request.command
    answer = command.answer(0, fields)
    if result is None:
        return answer
    if result.status is not PutStatus.PUT_OK:
        remark = broker.store.refusal or f"the revive log does not take it: {result.status}"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    return acknowledged(broker, request, answer, result)


# What is checked


def _check(broker: "Broker", group: str, topic: str, queue_id: int, now: int) -> None:
    """See whether a group may read a topic; raises ``RefusedError``."""
    if not broker.settings.perm & _READ:
        raise RefusedError(Reason.NOT_ALLOWED, f"the broker[{broker.address}] pop message is forbidden")
    config = broker.topics.get(topic)
    if config is None:
        raise RefusedError(Reason.NO_TOPIC, f"topic[{topic}] not exist, apply first please!")
    if not config.perm & _READ:
        raise RefusedError(Reason.NOT_ALLOWED, f"the topic[{topic}] peeking message is forbidden")
    if queue_id >= config.read_queue_count:
        raise RefusedError(Reason.BAD_ARGUMENT, _illegal(topic, queue_id, config.read_queue_count))
    checked_group(broker.groups, group, now)


def _kept(broker: "Broker", topic: str, queue_id: int) -> tuple[int, int]:
    """Return the first queue offset that is kept and the next one; raises ``RefusedError``."""
    config = broker.topics.get(topic)
    if config is None:
        raise RefusedError(Reason.NO_TOPIC, f"topic[{topic}] not exist, apply first please!")
    if not 0 <= queue_id < config.read_queue_count:
        raise RefusedError(Reason.BAD_MESSAGE, _illegal(topic, queue_id, config.read_queue_count))
    queue = broker.store.queue(topic, queue_id)
    return (queue.min_offset(broker.store.log.min_offset), queue.next_offset) if queue else (0, 0)


def _illegal(topic: str, queue_id: int, count: int) -> str:
    return f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{count}]"


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.POP_MESSAGE: pop,
    RequestCode.ACK_MESSAGE: ack,
    RequestCode.BATCH_ACK_MESSAGE: batch_ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: change_invisible_time,
    RequestCode.PEEK_MESSAGE: peek,
    RequestCode.NOTIFICATION: notification,
    RequestCode.POLLING_INFO: polling_info,
}
