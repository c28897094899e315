"""Addresses of hosts, as records keep them and as people write them, and the message ids that are made of them."""

import functools
import ipaddress

from mqtool.errors import FormatError


@functools.lru_cache(4096)
def host_text(address: bytes, port: int) -> str:
    """Return ``address:port``, an IPv6 address in brackets.

    >>> host_text(bytes([127, 0, 0, 1]), 10911)
    '127.0.0.1:10911'
    """
    ip = ipaddress.ip_address(address)
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


@functools.lru_cache(4096)
def parse_host(text: str) -> tuple[bytes, int]:
    """Return address and port of ``address:port``."""
    address, _, port = text.rpartition(":")
    return ipaddress.ip_address(address.strip("[]")).packed, int(port)


def offset_message_id(store_host: str, position: int) -> str:
    """Return the id that RocketMQ makes of store host and position."""
    address, port = parse_host(store_host)
    return (address + port.to_bytes(4, "big", signed=True) + position.to_bytes(8, "big", signed=True)).hex().upper()


def parse_message_id(message_id: str) -> int:
    """Return the position that an offset message id names.

    Raises:
        FormatError: it has not the form of such an id.
    """
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise FormatError("not an offset message id (32 or 56 hexadecimal digits)", offset=0)
    return int.from_bytes(raw[-8:], "big", signed=True)


def host_of_message_id(message_id: str) -> str:
    """Return the store host that an offset message id names; raises what ``parse_message_id`` does.

    >>> host_of_message_id("7F00000100002A9F0000000000000000")
    '127.0.0.1:10911'
    """
    parse_message_id(message_id)
    raw = bytes.fromhex(message_id)
    return host_text(raw[:-12], int.from_bytes(raw[-12:-8], "big", signed=True))
