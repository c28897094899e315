"""Records of a message trace come to the trace topic whatever happens to a connection; what is lost is told."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import mqtool
from mqtool import ProducerMessage, aio
from mqtool.engine.client_runtime import message_trace
from mqtool.formats.topics import TRACE_TOPIC

OnTrace = Callable[[asyncio.StreamWriter], Awaitable[bool]]
"""Is given the connection that asks for the trace topic, and tells whether the question goes on."""


@contextlib.asynccontextmanager
async def door(address: str, on_trace: OnTrace) -> AsyncIterator[str]:
    """Stand in front of a name server; give the address for clients."""
    host, _, port = address.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, calls = await asyncio.open_connection(host, int(port))

        async def back() -> None:
            while data := await answers.read(1 << 16):
                writer.write(data)

        backwards = asyncio.create_task(back())
        while data := await reader.read(1 << 16):
            if TRACE_TOPIC.encode() not in data or await on_trace(writer):
                calls.write(data)
        backwards.cancel()
        calls.close()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def told(broker: mqtool.Broker) -> list[bytes]:
    return [one.body for one in mqtool.open_store(broker.store).messages() if one.topic == TRACE_TOPIC]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have traces be sent without a second's wait."""
    monkeypatch.setattr(message_trace, "_INTERVAL_S", 0.01)


@pytest.mark.usefixtures("at_once")
def test_records_under_way_when_their_client_ends_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def run(broker: mqtool.Broker) -> None:
        asked, goes_on = asyncio.Event(), asyncio.Event()

        async def hold(_: asyncio.StreamWriter) -> bool:
            asked.set()
            await goes_on.wait()
            return True

        async with door(broker.name_server_address, hold) as address:
            async with aio.Producer("P", address, trace=True) as producer:
                sent = await producer.send(ProducerMessage("Orders", b"x"))
                await asked.wait()
                asyncio.get_running_loop().call_later(0.2, goes_on.set)  # while it ends
            assert [sent.message_id.encode() in text for text in told(broker)] == [True]

    with mqtool.Broker() as broker:
        asyncio.run(run(broker))
    assert not caplog.records


@pytest.mark.usefixtures("at_once")
def test_records_that_nobody_took_are_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    async def run(broker: mqtool.Broker) -> None:
        cut: list[int] = []

        async def cut_off(writer: asyncio.StreamWriter) -> bool:
            cut.append(1)
            if len(cut) <= 3:
                writer.transport.abort()
            return len(cut) > 3

        async with door(broker.name_server_address, cut_off) as address:
            async with aio.Producer("P", address, trace=True) as producer:
                sent = await producer.send(ProducerMessage("Orders", b"x"))
                async with asyncio.timeout(60):
                    while len(cut) < 2:
                        await asyncio.sleep(0.01)
            assert [sent.message_id.encode() in text for text in told(broker)] == [True]

    with mqtool.Broker() as broker:
        asyncio.run(run(broker))
    [waits] = [one.getMessage() for one in caplog.records if one.name == message_trace.__name__]
    assert waits.startswith("trace records of P are waiting, because none can be sent now: ")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("begun_before", [False, True])
def test_records_that_cannot_be_sent_by_the_end_are_told(
    begun_before: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_trace, "_LAST_S", 0.1)

    async def run(broker: mqtool.Broker) -> None:
        begun = asyncio.Event()

        async def keep_quiet(_: asyncio.StreamWriter) -> bool:
            begun.set()
            return False

        async with (
            door(broker.name_server_address, keep_quiet) as address,
            aio.Producer("P", address, trace=True) as producer,
        ):
            await producer.send(ProducerMessage("Orders", b"x"))
            if begun_before:
                await begun.wait()

    with mqtool.Broker() as broker:
        asyncio.run(run(broker))
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert said == ["1 trace records of P were lost: no broker accepted them in time"]
