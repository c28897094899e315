"""The arguments and results of processors."""

from collections.abc import Callable
from typing import NamedTuple

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.processors.session import RemotingSession
from mqtool.formats.remoting import RemotingCommand


class BrokerRequest(NamedTuple):
    """A command from a client, and when it was received."""

    command: RemotingCommand
    session: RemotingSession
    now: int


Answer = RemotingCommand | None
"""None: the answer is sent later, by ``RemotingSession.reply``, or not at all."""

Processor = Callable[[BrokerController, BrokerRequest], Answer]
"""Serves requests."""
