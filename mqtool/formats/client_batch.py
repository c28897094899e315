"""A batch as clients send it, in one body: several messages, each with its own flag, body and properties.

(Rules: remoting.md 1.7; ``new_message.split_batch`` takes it apart. RocketMQ: ``MessageDecoder.encodeMessage``.)
"""

import struct

_HEAD = struct.Struct(">iiiii")  # size, magic code, CRC, flag, size of the body
_SHORT = struct.Struct(">h")


def build_element(flag: int, body: bytes, properties: bytes) -> bytes:
    r"""Return one message of a batch; a batch is a sequence of these.

    >>> build_element(0, b"hi", b"").hex(" ", 4)
    '00000018 00000000 00000000 00000000 00000002 68690000'
    """
    size = _HEAD.size + len(body) + _SHORT.size + len(properties)
    return b"".join((_HEAD.pack(size, 0, 0, flag, len(body)), body, _SHORT.pack(len(properties)), properties))


def parse_element(element: bytes) -> tuple[int, bytes, bytes]:
    """Return flag, body and properties of one message of a batch, as ``build_element`` made it.

    >>> parse_element(build_element(7, b"hi", b"p"))
    (7, b'hi', b'p')
    """
    *_, flag, size = _HEAD.unpack_from(element)
    end = _HEAD.size + size
    return flag, element[_HEAD.size : end], element[end + _SHORT.size :]
