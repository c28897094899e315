"""Frames of the remoting protocol as commands."""

from mqtool.engine.remoting.connection import Connection
from mqtool.errors import FormatError
from mqtool.formats.remoting import RemotingCommand


def parse_frame(frame: bytes) -> RemotingCommand:
    """Return the command of one whole frame.

    Raises:
        FormatError: it is none, or more than one.
    """
    connection = Connection()
    connection.receive(frame)
    commands = [*connection.commands()]
    if len(commands) != 1 or connection.pending:
        raise FormatError(f"{len(commands)} whole frames", offset=0)
    return commands[0]
