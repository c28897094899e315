"""The end of a transaction, as reported by its producer.

(Rules: remoting.md 4.6. RocketMQ: ``EndTransactionProcessor``.)
"""

from typing import NamedTuple

from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.transactions import Transactions
from mqtool.engine.store.append_result import PutStatus
from mqtool.formats.properties import find_property, probe_of
from mqtool.formats.property_names import PGROUP

_GROUP = probe_of(PGROUP)


class End(NamedTuple):
    """How a transaction has ended."""

    producer_group: str
    physical_offset: int  # of the half message
    queue_offset: int  # of the half message
    is_commit: bool
    is_answer: bool  # to a check


def end_transaction(transactions: Transactions, end: End, now: int) -> None:
    """Deliver the message of a half message, or close it undelivered.

    Raises:
        OperationRefusedError: this producer has no such half message, it is too late, or nothing can be stored.
    """
    half = transactions.half_at(end.physical_offset)
    if half is None:
        raise OperationRefusedError(Reason.NOT_POSSIBLE, f"there is no prepared message at {end.physical_offset}")
    if find_property(half.message.properties, _GROUP) != end.producer_group.encode("utf-8", "replace"):
        text = f"the prepared message does not belong to the producer group {end.producer_group}"
        raise OperationRefusedError(Reason.NOT_POSSIBLE, text)
    if half.queue_offset != end.queue_offset:
        text = f"the queue offset of the prepared message is not {end.queue_offset}"
        raise OperationRefusedError(Reason.NOT_POSSIBLE, text)
    if not end.is_answer and transactions.is_late(half, now):
        raise OperationRefusedError(Reason.ONLY_BY_CHECK, "too late: only the answer to a check counts now")
    status = (transactions.commit if end.is_commit else transactions.roll_back)(half, now)
    if status is not PutStatus.PUT_OK:
        raise OperationRefusedError(Reason.NOT_POSSIBLE, status)
