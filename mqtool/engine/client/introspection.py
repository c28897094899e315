"""Requests that brokers forward to a consumer for administrators, and its answers.

(Rules: remoting.md 3.7. RocketMQ: ``ClientRemotingProcessor``, ``ConsumerRunningInfo``, ``ResetOffsetBody``,
``GetConsumerStatusBody``, ``ConsumeMessageDirectlyResult``.)
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mqtool.engine.client.consuming import ConsumeStatus
from mqtool.engine.client.process_queue import ProcessQueue
from mqtool.formats.bodies import MessageQueue, Subscription, build_body, by_queue, parse_body, subscription_members


def parse_reset(body: bytes) -> dict[MessageQueue, int]:
    """Return the offsets that a consumer is to continue from, by queue.

    Raises:
        FormatError: the body does not contain them.
    """
    return {
        queue: int(offset)
        for queue, offset in by_queue(parse_body(body).get("offsetTable") or {}, "offsetTable").items()
    }


def build_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the body with the offsets of a consumer."""
    return build_body({"consumerTable": {}, "messageQueueTable": dict(offsets)})


def build_running_info(
    properties: Mapping[str, str],
    subscriptions: Iterable[Subscription],
    queues: Mapping[MessageQueue, tuple[ProcessQueue[Any], int]],
    rates: Mapping[str, Mapping[str, float | int]],
    stacks: str | None,
) -> bytes:
    """Return the body with the running information of a consumer.

    Args:
        properties: its settings.
        subscriptions: of all topics.
        queues: assigned queues, with the unfinished messages and the consumed offset of each.
        rates: of each topic, by Java's names.
        stacks: of its threads, if they were requested.
    """
    return build_body(
        {
            "jstack": stacks,
            "mqPopTable": {},
            "mqTable": {queue: _queue_info(waiting, offset) for queue, (waiting, offset) in queues.items()},
            "properties": dict(properties),
            "statusTable": {topic: dict(topic_rates) for topic, topic_rates in rates.items()},
            "subscriptionSet": [subscription_members(subscription) for subscription in subscriptions],
            "userConsumerInfo": {},
        }
    )


def _queue_info(waiting: ProcessQueue[Any], offset: int) -> dict[str, Any]:
    first, last = waiting.ends
    return {
        "cachedMsgCount": len(waiting),
        "cachedMsgMaxOffset": last,
        "cachedMsgMinOffset": first,
        "cachedMsgSizeInMiB": waiting.size >> 20,
        "commitOffset": offset,
        "droped": waiting.is_dropped,
        "lastConsumeTimestamp": waiting.consumed_at,
        "lastLockTimestamp": waiting.locked_at or 0,
        "lastPullTimestamp": waiting.pulled_at,
        "locked": waiting.locked_at is not None,
        "transactionMsgCount": waiting.count - len(waiting),
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def build_consumed(status: ConsumeStatus, error: str | None, spent_ms: int, *, is_orderly: bool) -> bytes:
    """Return the body with the result of a message that was consumed for an administrator."""
    if error is not None:
        result = "CR_THROW_EXCEPTION"
    else:
        result = "CR_SUCCESS" if status is ConsumeStatus.SUCCESS else "CR_LATER"
    return build_body(
        {
            "autoCommit": True,
            "consumeResult": result,
            "order": is_orderly,
            "remark": error,
            "spentTimeMills": spent_ms,
        }
    )
