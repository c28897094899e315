"""The door of a broker for those who speak the remoting protocol: it knows which processor a request is for."""

from collections.abc import Iterable

from mqtool.engine.broker.broker import Broker
from mqtool.engine.broker.limits import MOST_OF_BODY
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
from mqtool.engine.broker.processors.request import Processor, Request
from mqtool.formats.codes import ResponseCode
from mqtool.formats.remoting import Outgoing, Peer, RemotingCommand

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

    def handle(self, command: RemotingCommand, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Return what to send for a command."""
        broker = self.broker
        if command.is_response:  # whose code may be that of a request
            return broker.calls.answered(command, peer, now)
        if broker.access and (fault := broker.access.fault(command, peer)):
            remark = f"org.apache.rocketmq.acl.common.AclException: {fault}"
            return ((peer, command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)),)
        if len(command.body) > MOST_OF_BODY and command.code not in send.PROCESSORS:
            remark = f"a request that carries no messages has at most {MOST_OF_BODY:,} bytes of body"
            return ((peer, command.answer(ResponseCode.INVALID_PARAMETER, remark=remark)),)
        processor = PROCESSORS.get(command.code)
        if processor is None:
            return refused.refuse(Request(command, peer, now))
        saves = broker.saves
        saves.begin_request()
        outgoing = processor(broker, Request(command, peer, now))
        return self._held(outgoing, command, peer) if saves.changes_of_request else outgoing

    def _held(self, outgoing: Iterable[Outgoing], command: RemotingCommand, peer: Peer) -> list[Outgoing]:
        """Return what need not wait for the tables that a request has changed: all but its answer."""
        saves, out = self.broker.saves, list[Outgoing]()
        for to, sent in outgoing:
            if to is not peer or not sent.is_response:
                out.append((to, sent))
            elif not command.is_oneway:
                out += saves.hold(saves.changes_of_request, peer, sent)
        return out

    def closed(self, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Return what to send when a connection has ended."""
        return self.broker.closed(peer, now)

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Do what is due."""
        return self.broker.tick(now)

    def next_tick(self, now: int) -> int:
        """Return when something is due."""
        return self.broker.next_tick(now)
