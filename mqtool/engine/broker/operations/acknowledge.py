"""What happens to popped messages: they are acknowledged, or hidden for a new time.

(Rules: remoting.md 3.4. RocketMQ: ``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor``.)
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.broker.operations.checks import check_invisible_time, no_such_queue
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.pops import PoppedMessage, Pops
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.topics import Topics
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.formats.pop import ORDER_QUEUE_ID, Acknowledgement, parse_receipt

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore


class Done(NamedTuple):
    """Messages of one pop that a group has acknowledged."""

    messages: Acknowledgement
    revive_queue_id: int
    revive_time: int  # when they become visible again (ms)


class Hidden(NamedTuple):
    """A message that is hidden for a new time."""

    pop_time: int  # from when on it is hidden, in ms; 0 if its group has acknowledged it
    invisible_ms: int
    revive_queue_id: int
    flush_offset: int = 0


_DONE_WITH = Hidden(0, 0, 0)


class Acknowledgements:
    """Acknowledgements, with the parts of a broker that they need.

    Each returns up to where the log must be flushed before the consumer may get its answer; 0 for at once.
    """

    def __init__(self, store: "MessageStore", state: BrokerState, topics: Topics, pops: Pops) -> None:
        self._store = store
        self._state = state
        self._topics = topics
        self._pops = pops

    def acknowledge(self, popped: PoppedMessage, receipt: str, now: int) -> int:
        """Acknowledge a message for a group; return the flush offset.

        Raises:
            OperationRefusedError: this message was not delivered to it, or the acknowledgement cannot be stored.
            FormatError: the receipt is invalid.
        """
        group, topic, queue_id, offset = popped
        low, high = self._kept(topic, queue_id)
        if not low <= offset <= high:
            text = f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}"
            raise OperationRefusedError(Reason.NO_MESSAGE, text)
        parsed_receipt = parse_receipt(receipt)
        messages = parsed_receipt.acknowledgement(group, topic, queue_id, offset)
        return self._flush_offset(
            self._take(Done(messages, parsed_receipt.revive_queue_id, parsed_receipt.revive_time), now)
        )

    def acknowledge_all(self, batch: Iterable[Done], now: int) -> int:
        """Acknowledge messages of several pops for groups; return the flush offset.

        Messages that no longer exist are skipped.

        Raises:
            OperationRefusedError: one was not delivered to its group, or an acknowledgement cannot be stored.
        """
        result: AppendResult | None = None
        for done in batch:
            messages = done.messages
            queue = self._store.queue(messages.topic, messages.queue_id)
            low, high = (queue.min_offset(self._store.log.min_offset), queue.next_offset) if queue else (0, -1)
            kept = tuple(offset for offset in messages.offsets if low <= offset <= high)
            if kept:
                result = self._take(done._replace(messages=messages._replace(offsets=kept)), now) or result
        return self._flush_offset(result)

    def hide(
        self, popped: PoppedMessage, receipt: str, invisible_ms: int, now: int, *, is_suspended: bool = False
    ) -> Hidden:
        """Hide a message for a new time; with ``is_suspended``, its redelivery does not count as an attempt.

        Raises:
            OperationRefusedError: there is no such message, the time is too long, or the change cannot be stored.
            FormatError: the receipt is invalid.
        """
        check_invisible_time(invisible_ms, self._state.settings)
        low, high = self._kept(popped.topic, popped.queue_id)
        if not low <= popped.offset < high:
            raise OperationRefusedError(Reason.NO_MESSAGE, f"there is no message {popped.offset}")
        parsed_receipt = parse_receipt(receipt)
        if parsed_receipt.revive_queue_id == ORDER_QUEUE_ID:
            until = self._pops.hide_in_order(popped, parsed_receipt, invisible_ms, now)
            return (
                _DONE_WITH
                if until is None
                else Hidden(parsed_receipt.pop_time, until - parsed_receipt.pop_time, ORDER_QUEUE_ID)
            )
        result = self._pops.hide(popped, parsed_receipt, invisible_ms, now, is_suspended=is_suspended)
        return Hidden(now, invisible_ms, parsed_receipt.revive_queue_id, self._flush_offset(result))

    def _take(self, done: Done, now: int) -> AppendResult | None:
        """Acknowledge messages; raises ``OperationRefusedError``."""
        messages = done.messages
        if done.revive_queue_id != ORDER_QUEUE_ID:
            return self._pops.acknowledge(messages, done.revive_queue_id, done.revive_time, now)
        try:
            self._pops.acknowledge_in_order(messages)
        except KeyError as error:
            place = f"{messages.topic}@{messages.group}@{messages.queue_id}"
            text = f"offset is illegal, key:{place}, commit:{error.args[0]}"
            raise OperationRefusedError(Reason.BAD_MESSAGE, text) from None
        return None

    def _flush_offset(self, result: AppendResult | None) -> int:
        """Return the flush offset of a record, if any; raises ``OperationRefusedError`` if it was not stored."""
        if result is None:
            return 0
        if result.status is not PutStatus.PUT_OK:
            text = self._store.refusal or f"the revive log cannot store it: {result.status}"
            raise OperationRefusedError(Reason.NOT_POSSIBLE, text)
        return result.flush_offset

    def _kept(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset and the next one; raises ``OperationRefusedError``."""
        config = self._topics.get(topic)
        if config is None:
            raise OperationRefusedError(Reason.NO_TOPIC, f"topic[{topic}] not exist, apply first please!")
        if not 0 <= queue_id < config.read_queue_count:
            raise OperationRefusedError(Reason.BAD_MESSAGE, no_such_queue(config, queue_id))
        queue = self._store.queue(topic, queue_id)
        return (queue.min_offset(self._store.log.min_offset), queue.next_offset) if queue else (0, 0)
