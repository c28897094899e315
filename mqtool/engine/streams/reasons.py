"""Reasons for socket errors, in the words of the system."""

import errno
import os
import re

from mqtool.errors import MqtoolError, NotPermittedError, UnavailableError

_NUMBER = re.compile(r"\[Errno (\d+)\]")


def reason_of(error: OSError) -> str:
    """Return the system's message for a failure: asyncio replaces it by its own, which contains addresses.

    >>> reason_of(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"))
    'Connection refused'
    >>> reason_of(OSError("Multiple exceptions: [Errno 111] Connect call failed .., [Errno 101] .."))
    'Connection refused, Network is unreachable'
    >>> reason_of(TimeoutError())
    'no answer'
    """
    if type(error).__module__ in ("ssl", "socket"):  # their error numbers are different
        return error.strerror or str(error)
    numbers = [error.errno] if error.errno else [int(number) for number in _NUMBER.findall(str(error))]
    return ", ".join(dict.fromkeys(map(os.strerror, numbers))) or str(error) or "no answer"


def cannot_listen(host: str, port: int, error: OSError) -> MqtoolError:
    """Return the error of a server that cannot listen on an address, and what to do.

    >>> str(cannot_listen("127.0.0.1", 9876, OSError(errno.EADDRINUSE, "")))
    'cannot listen on 127.0.0.1:9876: Address already in use; stop the program that uses it, or choose another port'
    """
    if isinstance(error, PermissionError):
        return NotPermittedError(f"this user has no permission to listen on {host}:{port}")
    in_use = "; stop the program that uses it, or choose another port" if error.errno == errno.EADDRINUSE else ""
    return UnavailableError(f"cannot listen on {host}:{port}: {reason_of(error)}{in_use}")
