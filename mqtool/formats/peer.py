"""Who is at the other end of a connection, whatever protocol it carries."""

Buffer = bytes | memoryview
"""Bytes to be sent, as they are or where they are stored."""


class Peer:
    """Who is at the other end of a connection: one object for as long as that lasts, a key for dicts."""

    __slots__ = ("address", "host", "id", "port")

    def __init__(self, id: int, host: str, port: int) -> None:  # noqa: A002
        self.id = id
        self.host = host
        self.port = port
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def __repr__(self) -> str:
        return f"Peer({self.id}, {self.address})"
