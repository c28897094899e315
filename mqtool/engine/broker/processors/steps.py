"""Answers that take long to find: they are made in pieces, between the requests of others."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.processors.refusals import refusal
from mqtool.engine.broker.waiting_room import PIECES, Waiting
from mqtool.errors import MqtoolError

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.operations.steps import Steps
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor
    from mqtool.formats.remoting import RemotingCommand


def in_pieces(steps_of: "Callable[[BrokerController, BrokerRequest], Steps[RemotingCommand]]") -> "Processor":
    """Return a processor that answers with the result of steps: at once if there is only one, otherwise later.

    It refuses a request if too many of the same client are under way.
    """

    def processor(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
        return _begin(broker, request, steps_of(broker, request))

    return processor


def _begin(broker: "BrokerController", request: "BrokerRequest", steps: "Steps[RemotingCommand]") -> "Answer":
    try:
        next(steps)
    except StopIteration as end:
        answer: RemotingCommand = end.value
        return answer
    room, session, key = broker.room, request.session, ("pieces", request.session)
    if not room.has_room(PIECES, key):
        text = f"{session.address} already waits for {PIECES.most_of_key} answers that take long: retry later"
        raise OperationRefusedError(Reason.NOT_POSSIBLE, text)

    def look(is_due: bool, now: int) -> "RemotingCommand | None":  # noqa: ARG001
        try:
            next(steps)
        except StopIteration as end:
            answer: RemotingCommand = end.value
            return answer
        except OperationRefusedError as error:
            return refusal(request.command, error)
        except MqtoolError as error:
            return refusal(request.command, OperationRefusedError(Reason.NOT_POSSIBLE, str(error)))
        room.wake(key)
        return None

    room.add(Waiting(PIECES, key, session, None, look, session.reply))
    room.wake(key)
    return None
