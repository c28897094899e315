"""Answers to requests that have stored something, which wait until it is safe.

(Rules: remoting.md 3.2. RocketMQ: ``DefaultMessageStore.handleDiskFlushAndHA``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.group_commit import Safety
from mqtool.formats.codes import ResponseCode
from mqtool.formats.remoting import RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest

_CODES = {
    Safety.NOT_ON_DISK: ResponseCode.FLUSH_DISK_TIMEOUT,
    Safety.NOT_WITH_OTHERS: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    Safety.NO_OTHERS: ResponseCode.SLAVE_NOT_AVAILABLE,
}


def acknowledged(
    broker: "BrokerController", request: "BrokerRequest", answer: RemotingCommand, flush_offset: int
) -> "Answer":
    """Return the answer to a request that has stored a message, None if it must wait for the disk."""
    if broker.group_commit.is_safe(flush_offset):
        return answer
    session, changes = request.session, broker.saves.changes_of_request

    def then(safety: Safety, now: int) -> None:
        answer.code = _CODES.get(safety, answer.code)
        session.reply_when_saved(broker.saves, request.command, answer, changes, now)

    broker.group_commit.wait(flush_offset, session, then, request.now)
    return None
