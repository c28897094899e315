"""A slave that reads and acknowledges the log of a master, and stores nothing: it takes next to no processor time.

``python -m bench.acknowledging_slave PORT`` follows the HA port of a broker on this machine from its last segment on.
"""

import socket
import struct
import sys

_HEAD = struct.Struct(">qi")
"""Of a frame: address and size of its body."""
_READ_AT_ONCE = 1 << 20


def follow(port: int) -> None:
    """Acknowledge what comes until the master ends the connection."""
    buffer = memoryview(bytearray(_READ_AT_ONCE))
    head = b""
    left = end = acknowledged = 0  # bytes left of a body, its end, and the end of the last whole one
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.sendall(struct.pack(">q", 0))
        while size := stream.recv_into(buffer):
            at, before = 0, acknowledged
            while at < size:
                if left:
                    step = min(left, size - at)
                    left -= step
                else:
                    step = min(_HEAD.size - len(head), size - at)
                    head += buffer[at : at + step]
                    if len(head) == _HEAD.size:
                        start, left = _HEAD.unpack(head)
                        head, end = b"", start + left
                at += step
                if not (left or head):
                    acknowledged = end
            if acknowledged != before:
                stream.sendall(struct.pack(">q", acknowledged))


if __name__ == "__main__":
    follow(int(sys.argv[1]))
