"""What slaves, and those who look after them, ask a master that has none.

(Rules: remoting.md 3.8. RocketMQ: ``AdminBrokerProcessor``, ``HAService``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.settings import Role
from mqtool.formats.bodies import build_body
from mqtool.formats.codes import RequestCode

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request

_NO_CLIENT = {
    "lastReadTimestamp": 0,
    "lastWriteTimestamp": 0,
    "masterFlushOffset": 0,
    "maxOffset": 0,
    "transferredByteInSecond": 0,
}


def ha_status(broker: "Broker", request: "Request") -> "Answer":
    """Tell how far the slaves are: there are none."""
    body = {
        "haClientRuntimeInfo": _NO_CLIENT,  # what a slave would tell of its own connection
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": broker.state.role is not Role.SLAVE,
        "masterCommitLogMaxOffset": broker.store.log.end_offset,
    }
    return request.command.answer(body=build_body(body))


def reset_flush_offset(broker: "Broker", request: "Request") -> "Answer":  # noqa: ARG001
    """Forget up to where the master has flushed: a master knows that itself, and changes nothing."""
    return request.command.answer()


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.GET_BROKER_HA_STATUS: ha_status,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: reset_flush_offset,
}
