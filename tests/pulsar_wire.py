"""A client of Pulsar that says what it is told to, through a socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from mqtool.engine.pulsar.frames import Command, build_frame, build_message_frame, build_payload, parse_frame
from mqtool.engine.pulsar.wire import command
from mqtool.engine.pulsar.wire_classes import MessageMetadata

NO_REQUEST = (1 << 64) - 1


class PulsarWire:
    """A connection: requests are answered in turn, what else comes is in ``told``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._requests = 0
        self._answers: asyncio.Queue[Command | None] = asyncio.Queue()
        self.told: asyncio.Queue[Command | None] = asyncio.Queue()
        """None behind the last."""
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await self._reader.readexactly(4))
                answer = parse_frame(await self._reader.readexactly(size))
                is_answer = getattr(answer.body, "request_id", NO_REQUEST) == self._requests
                (self._answers if is_answer or answer.name == "connected" else self.told).put_nowait(answer)
        for queue in (self._answers, self.told):
            queue.put_nowait(None)

    @property
    def next_request(self) -> int:
        """The number of the next request."""
        return self._requests + 1

    def say(self, name: str, **fields: Any) -> None:
        """Send a command."""
        self._writer.write(build_frame(command(name, **fields)))

    async def ask(self, name: str, **fields: Any) -> Command:
        """Send a request and return its answer."""
        return await self.ask_with(command(name, request_id=self.next_request, **fields))

    async def ask_with(self, base: Any) -> Command:
        """Send a request that is made, with the next number, and return its answer."""
        self._requests += 1
        self._writer.write(build_frame(base))
        answer = await self._answers.get()
        assert answer is not None, "the connection was closed"
        return answer

    async def outcome(self, name: str, **fields: Any) -> str:
        """Send a request and return the text with which it is refused, empty where it is done."""
        answer = await self.ask(name, **fields)
        return answer.body.message if answer.name == "error" else ""

    def send(self, sequence_id: int, body: bytes, producer_id: int = 0, **metadata: Any) -> None:
        """Send a message."""
        of_message = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1, **metadata)
        base = command("send", producer_id=producer_id, sequence_id=sequence_id)
        self._writer.writelines(build_message_frame(base, build_payload(of_message.SerializeToString(), body)))

    async def next(self, name: str) -> Any:
        """Return the body of the next command of a kind, that which comes before it left out."""
        while True:
            one = await self.told.get()
            assert one is not None, "the connection was closed"
            if one.name == name:
                return one.body

    async def closed(self) -> bool:
        """Return when the other side has closed the connection."""
        while await self.told.get() is not None:
            pass
        return True

    async def close(self) -> None:
        """End the connection."""
        self._task.cancel()
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def connected(url: str, token: str = "") -> AsyncIterator[PulsarWire]:
    """Give a client that has connected to ``pulsar://host:port``."""
    host, _, port = url.removeprefix("pulsar://").rpartition(":")
    client = PulsarWire(*await asyncio.open_connection(host, int(port)))
    who = {"auth_method_name": "token", "auth_data": token.encode()} if token else {}
    client.say("connect", client_version="test", protocol_version=21, **who)
    assert (await client._answers.get()) is not None
    try:
        yield client
    finally:
        await client.close()
