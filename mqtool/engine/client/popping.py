"""The requests of a consumer that pops to 5.x brokers: pops, acknowledgements and changes of the invisible time.

(Rules: remoting.md 3.4. RocketMQ: ``MQClientAPIImpl.processPopResponse``, ``ExtraInfoUtil``.)
"""

import dataclasses
from typing import NamedTuple

from mqtool.engine.client.calls import Call
from mqtool.engine.client.incoming import ConsumerMessage, parse_messages
from mqtool.errors import FormatError, UsageError
from mqtool.formats.bodies import Subscription
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.headers import (
    Ack,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Pop,
    PopResponse,
    build_header,
    parse_header,
)
from mqtool.formats.pop import Receipt, build_receipt, flagged_topic, parse_receipt
from mqtool.formats.properties import build_properties
from mqtool.formats.property_names import POP_CK
from mqtool.formats.remoting import RemotingCommand

ANY_QUEUE = -1
_NORMAL = "0"
_GONE = ResponseCode.NO_MESSAGE
_TOO_LATE = "timeout too much"
_LATE_MS = 500
"""A broker treats a pop as late if it took this much longer to arrive than it would wait."""
_FIRST_STEP_MS = 1000
_MAX_MS = 10 * 365 * 86_400_000


class Popped(NamedTuple):
    """The answer to a pop."""

    messages: list[ConsumerMessage]
    pop_time: int  # in ms, by the clock of the broker
    is_late: bool  # sent too long ago by the broker's clock: it returns nothing


class ClockSearch:
    """Finds how far (ms) the clock of a broker is ahead of ours, by which pops it treats as late.

    >>> search = ClockSearch(0)
    >>> while (ahead := search.next_try()) is not None: search.note(ahead, is_late=90_000 - ahead > 500)
    >>> 90_000 <= search.found <= 90_500
    True
    """

    def __init__(self, known: int) -> None:
        self._known = known
        self._late: int | None = None
        self._in_time: int | None = None
        self._step = _FIRST_STEP_MS

    def next_try(self) -> int | None:
        """Return the next difference to try, None if it is found or cannot be found."""
        late, in_time = self._late, self._in_time
        if late is None and in_time is None:
            return self._known
        if self._step > _MAX_MS:
            return None
        if late is None or in_time is None:
            step, self._step = self._step, 2 * self._step
            return late + step if late is not None else (in_time or 0) - step
        return (late + in_time) // 2 if in_time - late > _LATE_MS else None

    def note(self, ahead: int, *, is_late: bool) -> None:
        """Note the broker's answer to a try."""
        if is_late:
            self._late = ahead
        else:
            self._in_time = ahead

    @property
    def found(self) -> int:
        """By how much its clock is ahead, or at most half a second more."""
        if self._late is None or self._in_time is None:
            return self._known
        return self._in_time + _LATE_MS


def pop(header: Pop, broker_name: str) -> Call[Popped]:
    """Messages that are hidden from others for a while; each has a property that is its receipt, ``POP_CK``."""

    def read(answer: RemotingCommand) -> Popped:
        if answer.code != ResponseCode.SUCCESS:
            return Popped([], 0, is_late=_TOO_LATE in (answer.remark or ""))
        response = parse_header(PopResponse, answer.ext_fields)
        starts = _starts(response.start_offset_info or "")
        messages = []
        for message in parse_messages(answer.body, broker_name):
            if POP_CK not in message.properties:  # a broker adds it to messages from a retry topic
                start = starts.get(message.queue_id)
                if start is None:
                    raise FormatError(f"startOffsetInfo of the answer lacks the queue {message.queue_id}", offset=0)
                receipt = Receipt(start, response.pop_time, response.invisible_time, response.revive_qid, broker_name)
                message = _with_receipt(message, receipt, _NORMAL, message.queue_id, message.queue_offset)
            messages.append(message)
        return Popped(messages, response.pop_time, is_late=False)

    codes = (ResponseCode.SUCCESS, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT)
    return Call(RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=build_header(header)), read, codes)


def pop_of(
    group: str, subscription: Subscription, most: int, invisible_ms: int, wait_ms: int, now: int, *, in_order: bool
) -> Pop:
    """Return the request for messages of any queue of a topic; times are in ms."""
    kind = subscription.expression_type
    return Pop(
        group,
        subscription.topic,
        ANY_QUEUE,
        most,
        invisible_ms,
        wait_ms,
        now,
        0,
        kind,
        subscription.expression,
        in_order,
    )


def acknowledge(group: str, message: ConsumerMessage) -> Call[bool]:
    """Acknowledge a message for its group; False if it was too late."""
    topic, queue_id, offset, text = _place(group, message)
    header = Ack(group, topic, queue_id, text, offset)
    return Call(
        RemotingCommand(RequestCode.ACK_MESSAGE, ext_fields=build_header(header)),
        lambda answer: answer.code == ResponseCode.SUCCESS,
        (ResponseCode.SUCCESS, _GONE),
    )


def change_invisible_time(group: str, message: ConsumerMessage, invisible_ms: int) -> Call[ConsumerMessage | None]:
    """Hide a message for a time from now on; the message with its new receipt, None if it was too late."""
    topic, queue_id, offset, text = _place(group, message)

    def read(answer: RemotingCommand) -> ConsumerMessage | None:
        if answer.code != ResponseCode.SUCCESS:
            return None
        response = parse_header(ChangeInvisibleTimeResponse, answer.ext_fields)
        receipt = Receipt(offset, response.pop_time, response.invisible_time, response.revive_qid, message.broker_name)
        return _with_receipt(message, receipt, _flag(text), queue_id, offset)

    header = ChangeInvisibleTime(group, topic, queue_id, text, offset, invisible_ms)
    command = RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext_fields=build_header(header))
    return Call(command, read, (ResponseCode.SUCCESS, _GONE))


def _starts(text: str) -> dict[int, int]:
    """Return the start offset of the check point of each queue of the topic itself."""
    starts = {}
    for part in filter(None, text.split(";")):
        words = part.split(" ")
        if len(words) != 3 or not all(word.isdecimal() for word in words[1:]):
            raise FormatError(f"startOffsetInfo of the answer: {part[:40]}", offset=0)
        if words[0] == _NORMAL:
            starts[int(words[1])] = int(words[2])
    return starts


def _with_receipt(message: ConsumerMessage, receipt: Receipt, flag: str, queue_id: int, offset: int) -> ConsumerMessage:
    text = build_receipt(receipt, flag, queue_id, offset)
    return dataclasses.replace(message, raw_properties=build_properties({**message.properties, POP_CK: text}))


def _flag(receipt: str) -> str:
    return receipt.split(" ")[4]


def _place(group: str, message: ConsumerMessage) -> tuple[str, int, int, str]:
    """Return topic, queue id and queue offset of a popped message, and its receipt.

    Raises:
        UsageError: the message does not come from a pop.
    """
    text = message.properties.get(POP_CK, "")
    words = text.split(" ")
    try:
        parse_receipt(text)
        queue_id, offset = int(words[6]), int(words[7])
    except (FormatError, IndexError, ValueError) as error:
        raise UsageError("this message was not received by pop: it has no receipt") from error
    return flagged_topic(message.topic, group, _flag(text)), queue_id, offset, text
