"""The door of a broker for the remoting protocol: it knows the processor of each request code."""

from collections.abc import Iterable

from mqtool.engine.broker.door import Door
from mqtool.engine.broker.limits import MAX_OF_BODY
from mqtool.engine.broker.operations.refusal import OperationRefusedError
from mqtool.engine.broker.processors import (
    accounts,
    admin,
    assignment,
    clients,
    consumers,
    groups,
    pop,
    pull,
    query,
    recall,
    refused,
    send,
    slaves,
    topics,
    transaction,
)
from mqtool.engine.broker.processors.authentication import access_fault
from mqtool.engine.broker.processors.protocol_texts import ACL_EXCEPTION
from mqtool.engine.broker.processors.refusals import refusal
from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor
from mqtool.engine.broker.processors.session import RemotingOutbox, RemotingSession
from mqtool.engine.broker.processors.slave_refusals import refusal_by_slave
from mqtool.engine.broker.settings import Role
from mqtool.formats.codes import ResponseCode
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import RESPONSE, Outgoing, RemotingCommand

PROCESSORS: dict[int, Processor] = {
    code: processor
    for family in (
        query,
        send,
        topics,
        accounts,
        assignment,
        clients,
        consumers,
        groups,
        pop,
        pull,
        recall,
        slaves,
        transaction,
        admin,
    )
    for code, processor in family.PROCESSORS.items()
}
"""By request code."""
_SLAVE = Role.SLAVE  # faster than an attribute of an enum


class RemotingDoor(Door[RemotingCommand, RemotingSession]):
    """The door for remoting commands: what a ``RemotingServer`` asks of a handler."""

    outbox: RemotingOutbox

    def new_outbox(self) -> RemotingOutbox:
        """Return where its sessions put commands to send."""
        return RemotingOutbox(self.broker.room, lambda: self.broker.settings.broker_name)

    def new_session(self, peer: Peer) -> RemotingSession:
        """Return a session for a new connection."""
        return RemotingSession(peer, self.outbox)

    def handle(self, command: RemotingCommand, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Return what to send for a command."""
        broker, session = self.broker, self._sessions.get(peer) or self.session(peer)
        if command.flag & RESPONSE:  # its code may be that of a request
            session.answered(command, now)
            return self.outbox.take()
        if broker.access and (fault := access_fault(broker.access, command, peer.host)):
            return ((peer, command.answer(ResponseCode.SYSTEM_ERROR, remark=ACL_EXCEPTION + fault)),)
        if broker.state.role is _SLAVE and (no := refusal_by_slave(command.code, broker.state)):
            return ((peer, command.answer(no.code, remark=no.reason)),)
        if len(command.body) > MAX_OF_BODY and command.code not in send.PROCESSORS:
            remark = f"a request without messages has a body of at most {MAX_OF_BODY:,} bytes"
            return ((peer, command.answer(ResponseCode.INVALID_PARAMETER, remark=remark)),)
        processor = PROCESSORS.get(command.code)
        if processor is None:
            return ((peer, refused.refuse(BrokerRequest(command, session, now))),)
        saves, outbox = broker.saves, self.outbox
        changes = saves.begin_request()
        answer: Answer
        try:
            answer = processor(broker, BrokerRequest(command, session, now))
        except OperationRefusedError as error:
            answer = refusal(command, error)
        if answer is not None:
            if saves.changes != changes:
                if not command.is_oneway:
                    session.reply_when_saved(saves, command, answer, saves.changes, now)
            elif outbox.waiting:
                session.reply(answer, now)
            else:
                return ((peer, answer),)
        return outbox.take() if outbox.waiting else ()
