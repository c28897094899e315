"""Reasons for socket errors, in the words of the system."""

import os
import re

_NUMBER = re.compile(r"\[Errno (\d+)\]")


def reason_of(error: OSError) -> str:
    """Return the system's words for a failure: asyncio puts its own in their place, with addresses in them.

    >>> reason_of(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"))
    'Connection refused'
    >>> reason_of(OSError("Multiple exceptions: [Errno 111] Connect call failed .., [Errno 101] .."))
    'Connection refused, Network is unreachable'
    >>> reason_of(TimeoutError())
    'no answer'
    """
    if type(error).__module__ in ("ssl", "socket"):  # whose numbers are others
        return error.strerror or str(error)
    numbers = [error.errno] if error.errno else [int(number) for number in _NUMBER.findall(str(error))]
    return ", ".join(dict.fromkeys(map(os.strerror, numbers))) or str(error) or "no answer"
