"""What a processor gets and what it returns."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from mqtool.engine.broker.broker import Broker
from mqtool.formats.remoting import Outgoing, Peer, RemotingCommand


class Request(NamedTuple):
    """A command from a client, and when it came."""

    command: RemotingCommand
    peer: Peer
    now: int


Processor = Callable[[Broker, Request], Iterable[Outgoing]]
"""Serves requests; returns what to send to whom."""
