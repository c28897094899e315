"""The end of a transaction, as its producer tells it.

(Rules: remoting.md 4.6. RocketMQ: ``EndTransactionProcessor``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.store.append_result import PutStatus
from mqtool.formats.codes import RequestCode, ResponseCode, SysFlag
from mqtool.formats.headers import EndTransaction, parse_header
from mqtool.formats.properties import find_property, probe_of

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request

_GROUP = probe_of("PGROUP")


def _end_transaction(broker: "Broker", request: "Request") -> "Answer":
    command, transactions = request.command, broker.transactions
    header = parse_header(EndTransaction, command.ext_fields)
    if header.commit_or_rollback not in (SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK):
        return None  # the producer does not know yet: it will be asked
    half = transactions.half_at(header.commit_log_offset)
    if half is None:
        return _refuse(request, f"no prepared message lies at {header.commit_log_offset}")
    if find_property(half.message.properties, _GROUP) != header.producer_group.encode("utf-8", "replace"):
        return _refuse(request, f"the prepared message is not of the producer group {header.producer_group}")
    if half.queue_offset != header.tran_state_table_offset:
        return _refuse(request, f"the queue offset of the prepared message is not {header.tran_state_table_offset}")
    if not header.from_transaction_check and transactions.is_late(half, request.now):
        remark = "too late: only the answer to a check counts by now"
        return command.answer(ResponseCode.ILLEGAL_OPERATION, remark=remark)
    is_commit = header.commit_or_rollback == SysFlag.TRANSACTION_COMMIT
    status = (transactions.commit if is_commit else transactions.roll_back)(half, request.now)
    if status is not PutStatus.PUT_OK:
        return _refuse(request, status)
    return command.answer()


def _refuse(request: "Request", remark: str) -> "Answer":
    return request.command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.END_TRANSACTION: _end_transaction,
}
