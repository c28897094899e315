"""The end of a transaction, sent by its producer: END_TRANSACTION.

(Rules: remoting.md 4.6. RocketMQ: ``EndTransactionProcessor``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.transaction import End, end_transaction
from mqtool.formats.codes import RequestCode, SysFlag
from mqtool.formats.headers import EndTransaction, parse_header

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor

_IS_COMMIT = {int(SysFlag.TRANSACTION_COMMIT): True, int(SysFlag.TRANSACTION_ROLLBACK): False}


def _end_transaction(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    header = parse_header(EndTransaction, request.command.ext_fields)
    is_commit = _IS_COMMIT.get(header.commit_or_rollback)
    if is_commit is None:
        return None  # the producer does not know yet: there will be a check
    end = End(
        header.producer_group,
        header.commit_log_offset,
        header.tran_state_table_offset,
        is_commit,
        header.from_transaction_check,
    )
    end_transaction(broker.transactions, end, request.now)
    return request.command.answer()


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.END_TRANSACTION: _end_transaction,
}
