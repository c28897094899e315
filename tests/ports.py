"""Ports that a test has to know before a server listens on them, or that a server leaves and takes again."""

import contextlib
import itertools
import random
import socket
from collections.abc import Sequence
from pathlib import Path

_GIVEN_ON_LINUX = Path("/proc/sys/net/ipv4/ip_local_port_range")
_GIVEN_ELSEWHERE = "32768 65535"


def _numbers() -> Sequence[int]:
    text = _GIVEN_ON_LINUX.read_text() if _GIVEN_ON_LINUX.exists() else _GIVEN_ELSEWHERE
    first, last = map(int, text.split())
    return [*range(10_000, first - 4, 4), *range(last + 4, 65_000, 4)] or range(10_000, 65_000, 4)


_NUMBERS = _numbers()
# Processes that run side by side begin at different places.
_ports = itertools.islice(itertools.cycle(_NUMBERS), random.randrange(len(_NUMBERS)), None)


def free_port() -> int:
    """Return a port that is free, as are those that a broker wants beside it.

    It is none that the machine gives to connections, and to servers that name no port: while others connect, one of
    those is soon taken.
    """
    while True:
        port = next(_ports)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in (port - 2, port, port + 1):  # for VIP channels, itself, and for slaves
                stack.enter_context(socket.socket()).bind(("", number))
            return port
