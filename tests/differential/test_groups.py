"""Groups whose members are written in Python and in Java, and brokers that are killed under their clients."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mqtool import (
    ConsumeContext,
    ConsumeFrom,
    ConsumerMessage,
    ProducerMessage,
    ProducerOptions,
    PushConsumerOptions,
    SendStatus,
    aio,
)
from mqtool.engine.client import calls, fetching
from mqtool.engine.client_runtime.wire import Wire
from mqtool.engine.cluster import Cluster
from mqtool.engine.server_configs import BrokerConfig, NameServerConfig
from mqtool.errors import MqtoolError
from mqtool.formats.config_tables import TopicConfig
from tests.differential.conftest import jars
from tests.differential.java_broker import (
    POM,
    JavaClientAtWork,
    broker_process,
    group_client,
    running_broker,
    within,
)
from tests.ports import free_port

pytestmark = pytest.mark.java

PATIENCE = 300.0
OURS = "ours"
CONCURRENTLY, ORDERLY = "Concurrently", "Orderly"  # topics, and the groups that consume them
QUICK_ROUTES: dict[str, Any] = {"poll_name_server_interval_ms": 1000}

Queue = tuple[str, str, int]
"""Topic, broker, queue id."""


class Delivery(NamedTuple):
    """What a member of a group was given."""

    queue: Queue
    queue_offset: int
    body: str


class NotingListener:
    """A listener that notes what it is given."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    async def __call__(self, messages: Sequence[ConsumerMessage], _context: ConsumeContext) -> None:
        self.deliveries += [
            Delivery((one.topic, one.broker_name, one.queue_id), one.queue_offset, one.body.decode())
            for one in messages
        ]


def by_java(client: JavaClientAtWork) -> list[Delivery]:
    """Return what the members in Java were given."""
    return [
        Delivery((topic, broker, int(queue)), int(offset), body)
        for topic, broker, queue, offset, body in client.deliveries
    ]


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Return when a condition holds; ``within`` bounds it."""
    while not await is_so():
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def brokers_of(version: str, folder: Path) -> AsyncIterator[str]:
    """Run a broker, of ours or of a version of RocketMQ, and give the address of its name server."""
    async with contextlib.AsyncExitStack() as stack:
        ours = [BrokerConfig(folder / "store")] if version == OURS else []
        names = await stack.enter_async_context(Cluster(NameServerConfig(), ours))
        if version != OURS:
            broker = running_broker(version, folder / "broker", names.name_server_address, free_port())
            await stack.enter_async_context(broker)
        yield names.name_server_address


async def send(producer: aio.Producer, topic: str, bodies: Iterable[str]) -> None:
    for body in bodies:
        while True:
            try:
                await producer.send(ProducerMessage(topic, body.encode()))
                break
            except MqtoolError:  # a broker that has just started refuses for a moment
                await asyncio.sleep(0.2)


async def create_topic(address: str) -> None:
    """Have a broker make the topic T; one that has just started refuses for a moment."""
    async with Wire([address]) as wire:
        while True:
            try:
                return await wire.request(
                    address, calls.put_topic(TopicConfig("T", 4, 4, 6, False, "SINGLE_TAG", 0, {}))
                )
            except MqtoolError:
                await asyncio.sleep(0.2)


def member(name_server: str, topic: str, seen: NotingListener, **options: Any) -> aio.PushConsumer:
    first, orderly = ConsumeFrom.FIRST_OFFSET, topic == ORDERLY
    chosen = PushConsumerOptions(consume_from_where=first, orderly=orderly, **options)
    made = aio.PushConsumer(topic, seen, name_server, chosen)
    made.subscribe(topic)
    return made


def own(consumer: aio.PushConsumer, topic: str) -> set[Queue]:
    return {(one.topic, one.broker_name, one.queue_id) for one in consumer.queues() if one.topic == topic}


async def of_java(client: JavaClientAtWork, topic: str) -> set[Queue]:
    found = (await client.ask(f"queues {topic}")).split()
    return {(topic, broker, int(queue)) for broker, _, queue in (one.partition(":") for one in found)}


@pytest.mark.parametrize(
    ("version", "broker", "who_leaves"),
    [
        pytest.param(*row, marks=pytest.mark.xdist_group(f"java-{row[0]}"))
        for row in (("4.9.7", "4.9.7", "Python"), ("5.3.3", "5.3.3", "Java"), ("5.5.0", OURS, "Java"))
    ],
)
def test_members_in_java_and_python_share_topics(version: str, broker: str, who_leaves: str, tmp_path: Path) -> None:
    jars(version, POM)
    python = {CONCURRENTLY: NotingListener(), ORDERLY: NotingListener()}
    java: list[Delivery] = []
    sent: dict[str, list[str]] = {CONCURRENTLY: [], ORDERLY: []}

    async def shared() -> None:
        async with brokers_of(broker, tmp_path) as name_server, aio.Producer("P", name_server) as producer:

            async def send_all(word: str) -> None:
                for topic, bodies in sent.items():
                    new = [f"{word} {number}" for number in range(40)]
                    await send(producer, topic, new)
                    bodies += new

            await send_all("before")
            queues = {
                topic: {(one.topic, one.broker_name, one.queue_id) for one in await producer.queues(topic)}
                for topic in sent
            }
            arguments = [name_server, *(word for topic in sent for word in (topic, topic.lower()))]
            async with (
                group_client(version, tmp_path / "client", *arguments) as client,
                contextlib.AsyncExitStack() as stack,
            ):
                members = {
                    topic: await stack.enter_async_context(member(name_server, topic, seen))
                    for topic, seen in python.items()
                }

                async def is_shared() -> bool:
                    shares = [(own(members[topic], topic), await of_java(client, topic)) for topic in sent]
                    return all(
                        len(mine) == len(theirs) == 2 and mine | theirs == queues[topic]
                        for (mine, theirs), topic in zip(shares, sent, strict=True)
                    )

                async def all_is_seen() -> bool:
                    if who_leaves == "Python" or not java:
                        await client.ask(f"queues {ORDERLY}")  # reads what it was given up to now
                    given = [*python[CONCURRENTLY].deliveries, *python[ORDERLY].deliveries, *by_java(client)]
                    return {(one.queue[0], one.body) for one in given} >= {
                        (topic, body) for topic, bodies in sent.items() for body in bodies
                    }

                await until(is_shared)
                await send_all("together")
                await until(all_is_seen)
                if who_leaves == "Java":
                    await client.stop()
                    java.extend(by_java(client))
                else:
                    await stack.aclose()

                async def one_has_all() -> bool:
                    if java:
                        return all(own(members[topic], topic) == queues[topic] for topic in sent)
                    return all([await of_java(client, topic) == queues[topic] for topic in sent])

                await until(one_has_all)
                await send_all("alone")
                await until(all_is_seen)
                java[:] = by_java(client)

    within(PATIENCE, shared())
    for each in (java, python[ORDERLY].deliveries):
        for queue in {one.queue for one in each if one.queue[0] == ORDERLY}:
            first = list(dict.fromkeys(one.queue_offset for one in each if one.queue == queue))
            assert first == sorted(first)
    left = python[CONCURRENTLY].deliveries if who_leaves == "Java" else java
    alone = [one for one in left if one.queue[0] == CONCURRENTLY and one.body.startswith("alone")]
    assert len({one.body for one in alone}) == 40


@pytest.mark.parametrize(
    "version", [pytest.param(one, marks=pytest.mark.xdist_group(f"java-{one}")) for one in ("4.9.7", "5.3.3")]
)
def test_a_producer_goes_on_with_the_other_broker_when_one_is_killed(version: str, tmp_path: Path) -> None:
    jars(version, POM)
    seen = NotingListener()
    acknowledged: list[str] = []

    async def failed_over() -> None:
        async with Cluster(NameServerConfig()) as names, contextlib.AsyncExitStack() as stack:
            address, ports = names.name_server_address, {"a": free_port(), "b": free_port()}

            def broker(name: str, folder: str) -> contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]:
                settings = f"brokerName={name}\n"
                return broker_process(
                    version, tmp_path / folder, address, ports[name], tmp_path / f"store-{name}", settings
                )

            await stack.enter_async_context(broker("a", "a"))
            second = await stack.enter_async_context(broker("b", "b"))
            producer = await stack.enter_async_context(aio.Producer("P", address, ProducerOptions(**QUICK_ROUTES)))

            for each in ports.values():
                await create_topic(f"127.0.0.1:{each}")

            async def is_on_both() -> bool:
                return {queue.broker_name for queue in await producer.queues("T")} == {"a", "b"}

            await until(is_on_both)
            names_of_brokers = []
            for number in range(300):
                if number == 100:
                    second.kill()
                result = await producer.send(ProducerMessage("T", b"%d" % number))
                assert result.status is SendStatus.SEND_OK
                acknowledged.append(str(number))
                names_of_brokers.append(result.queue.broker_name)
            assert {*names_of_brokers[:100]} == {"a", "b"}
            assert {*names_of_brokers[101:]} == {"a"}

            async with member(address, "T", seen, **QUICK_ROUTES):
                await stack.enter_async_context(broker("b", "b again"))

                async def all_is_seen() -> bool:
                    return {one.body for one in seen.deliveries} >= {*acknowledged}

                await until(all_is_seen)

    within(PATIENCE, failed_over())


@pytest.mark.parametrize(
    "version", [pytest.param(one, marks=pytest.mark.xdist_group(f"java-{one}")) for one in ("4.9.7", "5.3.3")]
)
def test_consumers_read_from_the_slave_of_a_master_that_is_killed(version: str, tmp_path: Path) -> None:
    jars(version, POM)
    seen = NotingListener()

    async def read() -> None:
        async with Cluster(NameServerConfig()) as names, contextlib.AsyncExitStack() as stack:
            address, port = names.name_server_address, free_port()
            settings = f"brokerRole=ASYNC_MASTER\nhaListenPort={port + 1}\n"
            master = await stack.enter_async_context(
                broker_process(version, tmp_path / "master", address, port, settings=settings)
            )
            producer = await stack.enter_async_context(aio.Producer("P", address, ProducerOptions(**QUICK_ROUTES)))

            await create_topic(f"127.0.0.1:{port}")
            await send(producer, "T", map(str, range(40)))
            slave_port = free_port()
            settings = f"brokerRole=SLAVE\nbrokerId=1\nslaveReadEnable=true\nhaListenPort={slave_port + 1}\n"
            await stack.enter_async_context(
                broker_process(version, tmp_path / "slave", address, slave_port, settings=settings)
            )
            slave = await stack.enter_async_context(Wire([f"127.0.0.1:{slave_port}"]))

            async def is_copied() -> bool:
                at = slave.name_servers[0]
                queues = await producer.queues("T")
                ends = [await slave.request(at, fetching.max_offset(queue)) for queue in queues]
                # It asks its master for topics once a minute.
                return sum(ends) == 40 and "T" in await slave.request(at, calls.topic_configs())

            await until(is_copied)
            master.kill()
            await master.wait()
            async with member(address, "T", seen, **QUICK_ROUTES):

                async def all_is_seen() -> bool:
                    return {one.body for one in seen.deliveries} == {*map(str, range(40))}

                await until(all_is_seen)

    within(PATIENCE, read())
