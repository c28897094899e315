"""Clients leave nothing where their start fails or their end is cut short, and begin anew when they start again."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

import mqtool
from mqtool import ConsumerMessage, ProducerMessage, aio
from mqtool.engine.remoting.client import RemotingClient
from mqtool.errors import MqtoolError, RefusedError, UnavailableError
from mqtool.formats.codes import RequestCode
from mqtool.formats.remoting import RemotingCommand
from tests.engine.client_runtime.test_push_consumer import send


@pytest.fixture
def clock() -> mqtool.VirtualClock:
    return mqtool.VirtualClock()


@pytest.fixture
def broker(clock: mqtool.VirtualClock) -> Iterator[mqtool.Broker]:
    with mqtool.Broker(clock=clock) as running:
        yield running


async def _nothing(_messages: Sequence[ConsumerMessage], _context: Any) -> None:
    pass


def _subscribed(made: Any, expression: str = "*") -> Any:
    made.subscribe("Orders", expression, is_sql92=expression != "*")
    return made


KINDS: dict[str, Callable[[str], Any]] = {
    "Producer": lambda address: aio.Producer("P", address, topics=["Orders"], trace=True, auto_batch=True),
    "PushConsumer": lambda address: _subscribed(aio.PushConsumer("G", _nothing, address, trace=True)),
    "LitePullConsumer": lambda address: _subscribed(aio.LitePullConsumer("G", address)),
    "PopConsumer": lambda address: _subscribed(aio.PopConsumer("G", address)),
}


class MuteServer:
    """Takes connections and what comes over them, and answers nothing."""

    def __init__(self) -> None:
        self.has_come = asyncio.Event()
        self.open = 0
        self.is_empty = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Count a connection until it ends."""
        self.open += 1
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                self.has_come.set()
        self.open -= 1
        if not self.open:
            self.is_empty.set()
        writer.close()


@pytest.mark.parametrize("kind", [*KINDS])
def test_a_start_that_is_given_up_leaves_no_connection_and_no_task(kind: str) -> None:
    async def run() -> None:
        mute = MuteServer()
        async with await asyncio.start_server(mute.serve, "127.0.0.1", 0) as server:
            before = asyncio.all_tasks()
            made = KINDS[kind](f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            starting = asyncio.create_task(made.start())
            await mute.has_come.wait()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            async with asyncio.timeout(60):
                await mute.is_empty.wait()
            await asyncio.sleep(0)
            assert not made.is_running
            assert asyncio.all_tasks() == before

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["PushConsumer", "LitePullConsumer"])
def test_a_start_that_a_broker_refuses_leaves_no_task_and_can_be_tried_again(kind: str, broker: mqtool.Broker) -> None:
    send(broker, [b"one"])

    async def run(broker: mqtool.Broker) -> None:
        made = KINDS[kind](broker.name_server_address)
        _subscribed(made, "a > 3")
        before = asyncio.all_tasks()
        for _ in range(2):  # the second time it does not say that it is running already
            with pytest.raises(RefusedError):
                await made.start()
            assert asyncio.all_tasks() == before
        _subscribed(made)
        async with made:
            assert made.is_running

    with mqtool.Broker(settings={"enablePropertyFilter": False}) as broker:
        send(broker, [b"one"])
        asyncio.run(run(broker))


def test_an_end_that_is_given_up_leaves_no_task(broker: mqtool.Broker) -> None:
    send(broker, [b"one"])

    async def run() -> None:
        is_at_work = asyncio.Event()

        async def never_done(_messages: Sequence[ConsumerMessage], _context: Any) -> None:
            is_at_work.set()
            await asyncio.Event().wait()

        before = asyncio.all_tasks()
        made = _subscribed(aio.PushConsumer("G", never_done, broker.name_server_address, consume_from_where=FIRST))
        await made.start()
        await is_at_work.wait()
        ending = asyncio.create_task(made.shutdown())
        while not ending.done() and made.is_running:
            await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert asyncio.all_tasks() == before

    asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_that_is_cancelled_at_any_moment_leaves_no_task(kind: str, broker: mqtool.Broker) -> None:
    send(broker, [b"one"])

    async def run() -> dict[int, set[Any]]:
        before, left = asyncio.all_tasks(), {}
        for turns in range(1, 40):
            made = KINDS[kind](broker.name_server_address)
            await made.start()
            ending = asyncio.create_task(made.shutdown())
            for _ in range(turns):
                await asyncio.sleep(0)
            ending.cancel()
            await asyncio.wait([ending])
            left[turns] = asyncio.all_tasks() - before
            for task in left[turns]:
                task.cancel()
        return {turns: tasks for turns, tasks in left.items() if tasks}

    assert asyncio.run(run()) == {}


FIRST = mqtool.ConsumeFrom.FIRST_OFFSET


def test_a_client_of_one_server_that_is_closed_connects_no_more(broker: mqtool.Broker) -> None:
    async def run() -> None:
        client = RemotingClient([broker.address])
        asked = client.invoke(RemotingCommand(RequestCode.GET_BROKER_CONFIG))
        await asked
        connecting = RemotingClient([broker.address])
        asking = asyncio.create_task(connecting.invoke(RemotingCommand(RequestCode.GET_BROKER_CONFIG)))
        await asyncio.sleep(0)
        for one in (client, connecting):
            await one.close()
        with pytest.raises(UnavailableError):
            await asking
        with pytest.raises(UnavailableError, match="is closed"):
            await client.invoke(RemotingCommand(RequestCode.GET_BROKER_CONFIG))

    asyncio.run(run())


# A second start


def test_a_message_that_failed_before_a_restart_is_not_acknowledged_by_it(
    broker: mqtool.Broker, clock: mqtool.VirtualClock
) -> None:
    send(broker, [b"one"])

    async def run() -> list[bytes]:
        options = mqtool.PopConsumerOptions(poll_timeout_millis=0)
        made = _subscribed(aio.PopConsumer("G", broker.name_server_address, options, clock=clock))
        with pytest.raises(KeyError):
            async with made:
                async for _ in made:
                    raise KeyError
        async with made:
            clock.advance(30)
            assert await _some(made.pop, 20) == []
            asking = asyncio.create_task(anext(made))  # which acknowledges what it has given before
            await asyncio.sleep(0.1)
            clock.advance(60)
            return [(await asking).body]

    assert asyncio.run(run()) == [b"one"]


async def _some(pop: Callable[[int], Awaitable[list[ConsumerMessage]]], times: int) -> list[bytes]:
    return [one.body for _ in range(times) for one in await pop(0)]


def test_a_restart_does_not_take_back_what_another_member_has_committed(broker: mqtool.Broker) -> None:
    async def run() -> int | None:
        address = broker.name_server_address
        async with aio.Producer("P", address) as producer:
            [queue, *_] = await producer.queues("Orders")
            for number in range(30):
                await producer.send(ProducerMessage("Orders", b"%d" % number), queue)
        made, other = (aio.LitePullConsumer("G", address, auto_commit=False, consume_from_where=FIRST) for _ in "12")
        made.assign([queue])
        with pytest.raises(KeyError):
            async with made:
                await made.poll()
                await made.poll()
                raise KeyError
        other.assign([queue])
        async with other:
            await other.poll()
            await other.commit({queue: 30})
        async with made:
            while made.queues() != [queue]:
                await asyncio.sleep(0)
            await made.commit()
            return await made.committed(queue)

    assert asyncio.run(run()) == 30


def test_brokers_learn_of_a_producer_that_starts_again(broker: mqtool.Broker) -> None:
    async def run() -> None:
        producer = aio.Producer("P", broker.name_server_address)
        for _ in range(2):
            async with producer:
                await producer.send(ProducerMessage("Orders", b"x"))
                command = RemotingCommand(RequestCode.GET_PRODUCER_CONNECTION_LIST, ext_fields={"producerGroup": "P"})
                client = RemotingClient([broker.address])
                while (answer := await client.invoke(command)).code:
                    assert "not exist" in (answer.remark or "")
                    await asyncio.sleep(0.01)
                await client.close()

    async def in_time() -> None:
        async with asyncio.timeout(60):
            await run()

    asyncio.run(in_time())


# Pops


def test_a_broker_that_is_gone_keeps_nobody_from_what_another_has(broker: mqtool.Broker) -> None:
    from tests.engine.client_runtime.test_producer import dead_broker

    send(broker, [b"one"])
    with dead_broker(broker, "Orders"):

        async def run() -> list[bytes]:
            made = _subscribed(aio.PopConsumer("G", broker.name_server_address))
            async with made:
                for _ in range(5):
                    if found := await made.pop(2_000):
                        return [one.body for one in found]
                return []

        assert asyncio.run(run()) == [b"one"]
    with dead_broker(broker, "Alone"):

        async def alone() -> None:
            made = aio.PopConsumer("G", broker.name_server_address)
            made.subscribe("Alone")
            async with made:
                await made.pop(100)

        with pytest.raises(MqtoolError, match="cannot connect"):
            asyncio.run(alone())


def test_what_was_popped_beside_is_not_given_when_others_may_have_it(
    broker: mqtool.Broker, clock: mqtool.VirtualClock
) -> None:
    for topic in ("Orders", "Others"):
        with mqtool.Producer("P", broker.name_server_address) as producer:
            producer.send(ProducerMessage(topic, topic.encode()))

    async def run() -> tuple[list[bytes], list[ConsumerMessage]]:
        one, other = (_subscribed(aio.PopConsumer("G", broker.name_server_address, clock=clock)) for _ in "12")
        one.subscribe("Others")
        other.subscribe("Others")
        async with one, other:
            while not (found := await one.pop(0)):
                pass
            assert await one.ack(found[0])
            while not all(popping.done() for popping in one._under_way.values()):  # that of the other topic
                await asyncio.sleep(0.001)
            clock.advance(90)
            while not (again := await other.pop(0)):
                await asyncio.sleep(0.001)
            return sorted([found[0].body, again[0].body]), await one.pop(0)

    assert asyncio.run(run()) == ([b"Orders", b"Others"], [])


def test_an_end_that_is_given_up_while_traces_are_sent_leaves_no_task(broker: mqtool.Broker) -> None:
    async def run() -> None:
        before = asyncio.all_tasks()
        producer = aio.Producer("P", broker.name_server_address, trace=True)
        await producer.start()
        await producer.send(ProducerMessage("Orders", b"x"))
        ending = asyncio.create_task(producer.shutdown())
        while producer.is_running:
            await asyncio.sleep(0)
        assert producer._trace is not None
        while producer._trace._waiting:  # which are sent in the turn after this
            await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert asyncio.all_tasks() == before

    asyncio.run(run())
