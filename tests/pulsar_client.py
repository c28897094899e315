"""A client of Pulsar's protocol that does what it is told, also what no official one does, by a blocking socket."""

import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Self

from mqtool.engine.pulsar.frames import (
    Command,
    PulsarFrameDecoder,
    build_frame,
    build_message_frame,
    build_payload,
    split_payload,
)
from mqtool.engine.pulsar.wire import command
from mqtool.engine.pulsar.wire_classes import MessageMetadata

_PATIENCE_SECONDS = 60.0
_LONGEST_FRAME = 1 << 23


class PulsarWireClient:
    """One connection."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None, **connect: Any) -> None:
        plain = socket.create_connection((host, port), _PATIENCE_SECONDS)
        self.socket = tls.wrap_socket(plain, server_hostname=host) if tls else plain
        self.told: list[Command] = []
        self._frames = PulsarFrameDecoder(_LONGEST_FRAME)
        self.say("connect", client_version="wire", protocol_version=21, **connect)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, name: str, payload: bytes | None = None, **fields: Any) -> None:
        """Send a command."""
        base = command(name, **fields)
        self.socket.sendall(b"".join(build_message_frame(base, payload)) if payload is not None else build_frame(base))

    def produce(self, topic: str, producer_id: int = 0) -> None:
        """Open a producer."""
        self.say("producer", topic=topic, producer_id=producer_id, request_id=1)
        self.next("producer_success")

    def send(self, body: bytes, count: int = 1, **metadata: Any) -> Any:
        """Send a payload with such metadata and return the receipt, or the error."""
        made = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **metadata)
        self.say(
            "send", build_payload(made.SerializeToString(), body), producer_id=0, sequence_id=0, num_messages=count
        )
        return self.next("send_receipt", "send_error").body

    def subscribe(self, topic: str, permits: int = 0, *, consumer_id: int = 0, kind: int = 1, **fields: Any) -> None:
        """Open a consumer that begins with the first message."""
        own: dict[str, Any] = {"subscription": "s", "initialPosition": 1} | fields
        self.say("subscribe", topic=topic, subType=kind, consumer_id=consumer_id, request_id=2, **own)
        self.next("success")
        if permits:
            self.say("flow", consumer_id=consumer_id, messagePermits=permits)

    def ack(self, *places: tuple[int, int, list[int]], consumer_id: int = 0) -> None:
        """Acknowledge entries, by generation and offset, and return once the broker has the acknowledgements."""
        base = command("ack", consumer_id=consumer_id, ack_type=0, request_id=9)
        for ledger_id, entry_id, words in places:
            base.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id).ack_set.extend(words)
        self.socket.sendall(build_frame(base))
        self.next("ack_response")

    def ping(self) -> None:
        """Return once the broker has done all that it was asked before."""
        self.say("ping")
        self.next("pong")

    def next(self, *names: str) -> Command:
        """Return the next command of such a name that the broker says, and keep the others as ``told``."""
        return self.until(lambda said: said.name in names)

    def bodies(self, count: int) -> list[bytes]:
        """Return the bodies of so many entries that come."""
        payloads = [self.next("message").payload or b"" for _ in range(count)]
        return [split_payload(payload).body for payload in payloads]

    def until(self, is_last: Callable[[Command], bool]) -> Command:
        """Return the first command that is it, of those as well that were kept."""
        for place, said in enumerate(self.told):
            if is_last(said):
                return self.told.pop(place)
        for said in self._commands():
            if is_last(said):
                return said
            self.told.append(said)
        raise EOFError("the broker has closed the connection")

    def is_closed(self) -> bool:
        """Tell whether the broker closes the connection, which it has reason to."""
        try:
            self.until(lambda _: False)
        except (EOFError, ConnectionError):
            return True
        return False

    def _commands(self) -> Iterator[Command]:
        while True:
            for said in self._frames.commands():
                if said.name == "ping":
                    self.say("pong")
                yield said
            data = self.socket.recv(1 << 16)
            if not data:
                return
            self._frames.receive(data)
