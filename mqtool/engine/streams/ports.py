"""Where to listen: related free ports, loopback addresses."""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterable

from mqtool.errors import UnavailableError

_ATTEMPTS = 100


def is_loopback(host: str) -> bool:
    """Return whether a host is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def resolved_host(host: str) -> str:
    """Return the IP address of a host; an address is returned unchanged.

    Raises:
        UnavailableError: the host has no address.
    """
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UnavailableError(f"the host {host} has no address: {error.strerror or error}") from error
    return str(addresses[0][4][0])


def free_port(host: str, distances: Iterable[int]) -> int:
    """Return a free port such that the ports at some distances from it are also free; 0 if none is found.

    They are free on return, but not reserved.

    Raises:
        UnavailableError: the host has no such address.
    """
    for _ in range(_ATTEMPTS):
        with contextlib.ExitStack() as stack:
            try:
                family, kind, protocol, _, address = socket.getaddrinfo(
                    host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )[0]
                first = stack.enter_context(socket.socket(family, kind, protocol))
                first.bind(address)
            except OSError as error:
                raise UnavailableError(f"cannot listen on {host}: {error.strerror or error}") from error
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                for distance in distances:
                    other = stack.enter_context(socket.socket(family, kind, protocol))
                    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    other.bind((address[0], port + distance, *address[2:]))
                return port
    return 0
