"""The door of a broker for those who speak the remoting protocol: it knows which processor a request is for."""

from collections.abc import Iterable

from mqtool.engine.broker.broker import Broker
from mqtool.engine.broker.limits import MOST_OF_BODY
from mqtool.engine.broker.operations.refusal import RefusedError
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
from mqtool.engine.broker.processors.request import Answer, Processor, Request
from mqtool.engine.broker.processors.session import Outbox, RemotingSession
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


class RemotingDoor:
    """Stands between remoting commands and a broker: what a server asks of a handler."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._outbox = Outbox(broker.room, lambda: broker.settings.broker_name)
        self._sessions: dict[Peer, RemotingSession] = {}

    def handle(self, command: RemotingCommand, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Return what to send for a command."""
        broker, session = self.broker, self._sessions.get(peer) or self.session(peer)
        if command.flag & RESPONSE:  # whose code may be that of a request
            session.answered(command, now)
            return self._outbox.take()
        if broker.access and (fault := access_fault(broker.access, command, peer.host)):
            return ((peer, command.answer(ResponseCode.SYSTEM_ERROR, remark=ACL_EXCEPTION + fault)),)
        if len(command.body) > MOST_OF_BODY and command.code not in send.PROCESSORS:
            remark = f"a request that carries no messages has at most {MOST_OF_BODY:,} bytes of body"
            return ((peer, command.answer(ResponseCode.INVALID_PARAMETER, remark=remark)),)
        processor = PROCESSORS.get(command.code)
        if processor is None:
            return ((peer, refused.refuse(Request(command, session, now))),)
        saves, outbox = broker.saves, self._outbox
        changes = saves.begin_request()
        answer: Answer
        try:
            answer = processor(broker, Request(command, session, now))
        except RefusedError as error:
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

    def session(self, peer: Peer) -> RemotingSession:
        """Return the session of a connection."""
        session = self._sessions.get(peer)
        if session is None:
            session = self._sessions[peer] = RemotingSession(peer, self._outbox)
        return session

    def outgoing(self) -> Iterable[Outgoing]:
        """Return what is to be sent by now."""
        return self._outbox.take()

    def closed(self, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Return what to send when a connection has ended."""
        session = self._sessions.pop(peer, None)
        if session is not None:
            self.broker.closed(session, now)
        return self._outbox.take()

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Do what is due."""
        self.broker.tick(now)
        return self._outbox.take()

    def next_tick(self, now: int) -> int:
        """Return when something is due."""
        return self.broker.next_tick(now)
