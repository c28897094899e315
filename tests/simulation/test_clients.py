"""Clients in virtual time: what goes wrong only when two things happen at once, each at its moment."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from mqtool.aio import LitePullConsumer, PopConsumer, Producer, PushConsumer
from mqtool.engine.client import calls
from mqtool.engine.client.consuming import ConsumeFrom, MessageModel
from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client.outgoing import ProducerMessage
from mqtool.engine.client.rebalance import by_configuration
from mqtool.engine.client_runtime.consume_services import ConsumeContext, PushConsumerOptions
from mqtool.engine.client_runtime.pop_consumer import PopConsumerOptions
from mqtool.engine.client_runtime.producer import ProducerOptions
from mqtool.engine.remoting.client import RemotingClient
from mqtool.errors import UnavailableError
from mqtool.formats.bodies import MessageQueue, Registration, build_registration
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import DataVersion, TopicConfig
from mqtool.formats.remoting import RemotingCommand
from tests.simulation.network import NetworkLoop
from tests.simulation.world import BrokerHost, NameServerHost, World, simulate

SETTINGS = {"defaultTopicQueueNums": "2"}
QUEUE = MessageQueue("T", "b", 0)


class Small:
    """A name server, a broker, and clients of theirs."""

    def __init__(self, folder: Path, loop: NetworkLoop, skew_ms: int) -> None:
        self.loop = loop
        self.world = World(1, folder, loop)
        self.names = NameServerHost(self.world, "n", "10.0.0.1")
        self.broker = BrokerHost(self.world, "b", "10.0.0.2", [self.names.address], SETTINGS, skew_ms)
        self.clock = self.world.clock()

    def committed(self) -> int:
        """Return what the group G has committed of the queue."""
        return self.broker.rules.offsets.get("G", "T", 0)

    def push(self, name: str, listener: Any, expression: str = "*", **options: Any) -> PushConsumer:
        """Return a consumer of the group G."""
        given = PushConsumerOptions(consume_from_where=ConsumeFrom.FIRST_OFFSET, instance_name=name, **options)
        consumer = PushConsumer("G", listener, self.names.address, given, self.clock)
        consumer.subscribe("T", expression)
        return consumer


def in_virtual_time(folder: Path, work: Callable[[Small], Coroutine[Any, Any, None]], *, skew_ms: int = 0) -> None:
    """Do something with a broker whose clock is ahead by so much."""

    async def main(loop: NetworkLoop) -> None:
        small = Small(folder, loop, skew_ms)
        await small.names.start()
        await small.broker.start()
        await work(small)
        await small.broker.stop()
        await small.names.stop()
        await small.world.finish()

    simulate(1, main)


def test_nothing_is_committed_beyond_a_message_that_an_orderly_listener_is_at(tmp_path: Path) -> None:
    async def work(small: Small) -> None:
        goes_on = asyncio.Event()
        got: list[bytes] = []

        async def listen(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> None:
            got.extend(one.body for one in messages)
            await goes_on.wait()

        consumer = small.push("c", listen, "wanted", orderly=True)
        async with Producer("P", small.names.address, clock=small.clock) as producer, consumer:
            await producer.send(ProducerMessage("T", b"first", tags="wanted"), QUEUE)
            await asyncio.sleep(60)
            for _ in range(5):  # the pull that passes over them finds nothing that waits
                await producer.send(ProducerMessage("T", b"other", tags="unwanted"), QUEUE)
            await asyncio.sleep(60)
            assert got == [b"first"]
            assert small.committed() in (-1, 0)
            goes_on.set()
            await asyncio.sleep(60)
            assert small.committed() == 6

    in_virtual_time(tmp_path, work)


def test_who_leaves_takes_no_queue_over_any_more(tmp_path: Path) -> None:
    async def work(small: Small) -> None:
        got: list[bytes] = []

        async def listen(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> None:
            got.extend(one.body for one in messages)
            await asyncio.sleep(10)

        one, other = small.push("1", listen, orderly=True), small.push("2", listen, orderly=True)
        async with Producer("P", small.names.address, clock=small.clock) as producer:
            await producer.send(ProducerMessage("T", b"first"), QUEUE)
            await one.start()
            await other.start()
            await asyncio.sleep(60)
            assert got == [b"first"]
            await producer.send(ProducerMessage("T", b"second"), QUEUE)
            await asyncio.sleep(1)
            # While the listener of one is still at work the other leaves, and its queue has nobody then.
            await asyncio.gather(one.shutdown(), other.shutdown())
            assert got == [b"first", b"second"]
            assert not small.broker.rules.locks.is_any_held("G", small.broker.clock())
            assert small.committed() == 2

    in_virtual_time(tmp_path, work)


def test_a_queue_that_cannot_be_taken_over_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def work(small: Small) -> None:
        got: list[bytes] = []

        async def listen(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> None:
            got.extend(one.body for one in messages)

        handle = small.broker.door.handle

        def refuse(command: Any, peer: Any, now: int) -> Any:
            if command.code == RequestCode.QUERY_CONSUMER_OFFSET and command.ext_fields["queueId"] == "1":
                return ((peer, command.answer(ResponseCode.SYSTEM_ERROR)),)
            return handle(command, peer, now)

        small.broker.door.handle = refuse  # type: ignore[method-assign]
        async with Producer("P", small.names.address, clock=small.clock) as producer:
            await producer.send(ProducerMessage("T", b"first"), QUEUE)
            await producer.send(ProducerMessage("T", b"second"), QUEUE._replace(queue_id=1))
            async with small.push("c", listen):
                await asyncio.sleep(10)
                assert got == [b"first"]
                small.broker.door.handle = handle  # type: ignore[method-assign]
                await asyncio.sleep(30)
                assert got == [b"first", b"second"]

    in_virtual_time(tmp_path, work)


def test_queues_that_are_configured_are_taken_over_once(tmp_path: Path) -> None:
    async def work(small: Small) -> None:
        got: list[bytes] = []

        async def listen(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> None:
            got.extend(one.body for one in messages)

        asked = []
        handle = small.broker.door.handle

        def count(command: Any, peer: Any, now: int) -> Any:
            asked.append(command.code)
            return handle(command, peer, now)

        consumer = small.push("c", listen, strategy=by_configuration([QUEUE, MessageQueue("%RETRY%G", "b", 0)]))
        async with Producer("P", small.names.address, clock=small.clock) as producer:
            await producer.send(ProducerMessage("T", b"first"), QUEUE)
            async with consumer:
                await asyncio.sleep(60)
                small.broker.door.handle = count  # type: ignore[method-assign]
                await asyncio.sleep(150)
                assert asked.count(RequestCode.PULL_MESSAGE) == 20  # two queues, each for 15 s
                assert RequestCode.QUERY_CONSUMER_OFFSET not in asked
                assert len(consumer.queues()) == 1
        assert got == [b"first"]

    in_virtual_time(tmp_path, work)


@pytest.mark.parametrize(
    ("kind", "away_s", "count"),
    [
        ("push", 0, 3),
        ("lite pull", 0, 3),
        ("orderly", 0, 3),
        ("broadcasting", 0, 3),
        ("assigned", 0, 3),
        ("push", 60, 9),
        ("push", 0, 9),
        ("lite pull", 0, 9),
    ],
)
def test_a_topic_that_is_deleted_and_made_again_is_consumed_from_its_beginning(
    kind: str, away_s: int, count: int, tmp_path: Path
) -> None:
    got: list[bytes] = []

    async def work(small: Small) -> None:
        broker = RemotingClient([small.broker.address])

        async def send(name: str, count: int) -> None:
            async with Producer("P", small.names.address, clock=small.clock) as producer:
                for number in range(count):
                    await producer.send(ProducerMessage("T", f"{name} {number}".encode()), QUEUE)

        def consumer() -> "PushConsumer | LitePullConsumer":
            if kind in ("lite pull", "assigned"):
                made = LitePullConsumer("G", small.names.address, {"instance_name": "c"}, small.clock)
                if kind == "assigned":
                    made.assign([QUEUE])
                else:
                    made.subscribe("T")
                return made
            model = MessageModel.BROADCASTING if kind == "broadcasting" else MessageModel.CLUSTERING
            more: dict[str, Any] = {
                "orderly": kind == "orderly",
                "message_model": model,
                "offsets_folder": tmp_path / "offsets",
            }
            begin = ConsumeFrom.FIRST_OFFSET if kind == "broadcasting" else ConsumeFrom.LAST_OFFSET
            options = PushConsumerOptions(instance_name="c", consume_from_where=begin, **more)
            pushed = PushConsumer("G", listen, small.names.address, options, small.clock)
            pushed.subscribe("T")
            return pushed

        async def listen(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> None:
            got.extend(one.body for one in messages)

        async def for_a_while(one: "PushConsumer | LitePullConsumer", seconds: float) -> None:
            if isinstance(one, PushConsumer):
                await asyncio.sleep(seconds)
                return
            end = small.loop.time() + seconds
            while small.loop.time() < end:
                got.extend(message.body for message in await one.poll(10_000))

        await send("first", 5)
        async with consumer() as one:
            await for_a_while(one, 20)
            await broker.invoke(calls.delete_topic("T").command)
            await for_a_while(one, away_s)
            await send("second", count)
            await for_a_while(one, 60)
        async with consumer() as one:
            await for_a_while(one, 20)
        names = [("first", number) for number in range(5)] + [("second", number) for number in range(count)]
        assert got == [f"{name} {number}".encode() for name, number in names]
        await broker.close()

    in_virtual_time(tmp_path, work)


def test_a_pop_does_not_hurry_where_the_clock_of_a_broker_is_ahead(tmp_path: Path) -> None:
    async def work(small: Small) -> None:
        asked = []
        handle = small.broker.door.handle

        def count(command: Any, peer: Any, now: int) -> Any:
            asked.append(command.code)
            return handle(command, peer, now)

        small.broker.door.handle = count  # type: ignore[method-assign]
        options = PopConsumerOptions(instance_name="c")
        async with Producer("P", small.names.address, clock=small.clock) as producer:
            await producer.send(ProducerMessage("T", b"first"), QUEUE)
            consumer = PopConsumer("G", small.names.address, options, small.clock)
            consumer.subscribe("T")
            async with consumer:
                [message] = await consumer.pop()
                assert await consumer.ack(message)
                for _ in range(20):
                    assert await consumer.pop(3000) == []
        assert asked.count(RequestCode.POP_MESSAGE) < 20 * 20

    in_virtual_time(tmp_path, work, skew_ms=2900)


@pytest.mark.parametrize("skew_ms", [-3_600_000, -7_000, 7_000, 3_600_000])
def test_messages_are_popped_in_time_whatever_the_clock_of_their_broker_says(tmp_path: Path, skew_ms: int) -> None:
    async def work(small: Small) -> None:
        loop = small.loop
        options = PopConsumerOptions(instance_name="c", pop_invisible_time=10_000)
        async with Producer("P", small.names.address, clock=small.clock) as producer:
            await producer.send(ProducerMessage("T", b"first"), QUEUE)
            one, other = (PopConsumer("G", small.names.address, options, small.clock) for _ in range(2))
            for each in (one, other):
                each.subscribe("T")
            async with one, other:
                [first] = await one.pop()
                assert await one.ack(first)
                for each in (one, other):  # of which one has learnt of the clock by the message
                    began = loop.time()
                    assert await each.pop(3000) == []
                    assert loop.time() - began < 10
                began = loop.time()
                later = asyncio.create_task(other.pop(3000))
                await asyncio.sleep(1)
                await producer.send(ProducerMessage("T", b"second"), QUEUE)
                [second] = await later
                assert loop.time() - began < 2
                renewed = await other.change_invisible_time(second, 30_000)
                assert renewed
                assert [message.body for message in await one.pop(25_000)] == []
                assert await other.ack(renewed)
                assert await one.pop(20_000) == []

    in_virtual_time(tmp_path, work, skew_ms=skew_ms)


def test_a_pop_says_that_only_slaves_are_left(tmp_path: Path) -> None:
    async def work(small: Small) -> None:
        master, slave = (
            {"brokerName": "a", "brokerId": number, "brokerAddr": at, "clusterName": "C", "haServerAddr": at}
            for number, at in (("0", "10.0.0.3:10911"), ("1", "10.0.0.4:10911"))
        )
        topics = {name: TopicConfig(name, 4, 4, 6, False, "SINGLE_TAG", 0, {}) for name in ("S", "T")}
        body = build_registration(Registration(DataVersion(0, 1, 1), topics, []))
        client = RemotingClient([small.names.address])
        for code, broker in (
            (RequestCode.REGISTER_BROKER, master),
            (RequestCode.REGISTER_BROKER, slave),
            (RequestCode.UNREGISTER_BROKER, master),
        ):
            assert (await client.invoke(RemotingCommand(code, 0, 1, broker, body))).code == 0
        consumer = PopConsumer("G", small.names.address, PopConsumerOptions(instance_name="c"), small.clock)
        consumer.subscribe("T")
        async with consumer:
            with pytest.raises(UnavailableError, match="the routes of T no longer contain a master"):
                await consumer.pop()

    in_virtual_time(tmp_path, work)


def test_what_a_listener_never_finishes_goes_back_and_offsets_go_on(tmp_path: Path) -> None:
    async def work(small: Small) -> None:
        goes_on = asyncio.Event()
        got: list[tuple[bytes, int]] = []

        async def listen(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> None:
            [message] = messages
            got.append((message.body, message.reconsume_times))
            if message.body == b"stuck" and not message.reconsume_times:
                await goes_on.wait()

        consumer = small.push("c", listen, consume_timeout=15)
        async with Producer("P", small.names.address, clock=small.clock) as producer, consumer:
            for body in (b"stuck", b"other"):
                await producer.send(ProducerMessage("T", body), QUEUE)
            await asyncio.sleep(14 * 60)
            assert sorted(got) == [(b"other", 0), (b"stuck", 0)]
            assert small.committed() <= 0
            await asyncio.sleep(32 * 60)  # it is looked at every 15 minutes
            assert sorted(got) == [(b"other", 0), (b"stuck", 0), (b"stuck", 1)]
            assert small.committed() == 2
            goes_on.set()  # which comes too late to count
            await asyncio.sleep(60)
            assert (small.committed(), len(got)) == (2, 3)

    in_virtual_time(tmp_path, work)


@pytest.mark.parametrize(("is_wanted", "status", "stored"), [(True, "SEND_OK", 2), (False, "FLUSH_DISK_TIMEOUT", 1)])
def test_what_is_not_safe_yet_is_sent_again_where_the_producer_wants_that(
    tmp_path: Path, is_wanted: bool, status: str, stored: int
) -> None:
    async def work(small: Small) -> None:
        # A topic that is new would be written down before there is an answer.
        small.broker.rules.topics.create_by_sending("T", "TBW102", 4, False, small.clock())
        handle = small.broker.door.handle
        codes = [ResponseCode.FLUSH_DISK_TIMEOUT]

        def answer_late_once(command: Any, peer: Any, now: int) -> Any:
            answers = [*handle(command, peer, now)]
            if command.code == RequestCode.SEND_MESSAGE_V2 and codes:
                [(_, answer)] = answers
                answer.code = codes.pop()
            return answers

        small.broker.door.handle = answer_late_once  # type: ignore[method-assign]
        options = ProducerOptions(retry_another_broker_when_not_store_ok=is_wanted)
        async with Producer("P", small.names.address, options, clock=small.clock) as producer:
            assert (await producer.send(ProducerMessage("T", b"first"))).status.name == status
        queues = [small.broker.rules.store.queue("T", number) for number in (0, 1)]
        assert sum(queue.next_offset for queue in queues if queue) == stored

    in_virtual_time(tmp_path, work)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_consumer_that_is_suspended_is_given_nothing_until_it_goes_on(tmp_path: Path, orderly: bool) -> None:
    async def work(small: Small) -> None:
        got: list[bytes] = []

        async def listen(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> None:
            got.extend(one.body for one in messages)

        consumer = small.push("c", listen, orderly=orderly)
        async with Producer("P", small.names.address, clock=small.clock) as producer, consumer:
            await producer.send(ProducerMessage("T", b"first"), QUEUE)
            await asyncio.sleep(60)
            consumer.suspend()
            await producer.send(ProducerMessage("T", b"second"), QUEUE)
            await asyncio.sleep(60)
            assert (got, small.committed()) == ([b"first"], 1)
            consumer.resume()
            await asyncio.sleep(60)
            assert (got, small.committed()) == ([b"first", b"second"], 2)

    in_virtual_time(tmp_path, work)


@pytest.mark.parametrize("kind", ["push", "lite pull"])
@pytest.mark.parametrize("begins", [ConsumeFrom.LAST_OFFSET, ConsumeFrom.TIMESTAMP])
def test_a_group_that_began_at_the_end_goes_on_there_though_nothing_came(
    tmp_path: Path, kind: str, begins: ConsumeFrom
) -> None:
    async def work(small: Small) -> None:
        got: list[bytes] = []

        async def listen(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> None:
            got.extend(one.body for one in messages)

        handle = small.broker.door.handle

        def as_of_an_old_queue(command: Any, peer: Any, now: int) -> Any:
            """Do not say 0 of a group that has consumed nothing, as where the first messages are gone."""
            answers = [*handle(command, peer, now)]
            if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
                for _, answer in answers:
                    if answer.ext_fields.get("offset") == "0":
                        answer.code = ResponseCode.QUERY_NOT_FOUND
            return answers

        async def live(seconds: float) -> None:
            options: dict[str, Any] = {"consume_from_where": begins, "consume_timestamp": small.clock()}
            if kind == "push":
                made: Any = PushConsumer("G", listen, small.names.address, **options, clock=small.clock)
                made.subscribe("T")
                async with made:
                    await asyncio.sleep(seconds)
                return
            made = LitePullConsumer("G", small.names.address, **options, clock=small.clock)
            made.subscribe("T")
            async with made:
                for _ in range(int(seconds)):
                    got.extend(one.body for one in await made.poll(1000))

        small.broker.door.handle = as_of_an_old_queue  # type: ignore[method-assign]
        async with Producer("P", small.names.address, clock=small.clock) as producer:
            await producer.send(ProducerMessage("T", b"before"), QUEUE)
            await asyncio.sleep(1)
            await live(5)
            await producer.send(ProducerMessage("T", b"meanwhile"), QUEUE)
            await asyncio.sleep(1)
            await live(60)
        assert got == [b"meanwhile"]

    in_virtual_time(tmp_path, work)


@pytest.mark.parametrize("kind", ["push", "lite pull"])
def test_the_end_of_a_consumer_takes_no_longer_for_many_queues_where_their_broker_is_gone(
    tmp_path: Path, kind: str
) -> None:
    async def work(small: Small) -> None:
        got: list[bytes] = []

        async def listen(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> None:
            got.extend(one.body for one in messages)

        count = 64
        client = RemotingClient([small.broker.address])
        made_topic = calls.put_topic(TopicConfig("T", count, count, 6, False, "SINGLE_TAG", 0, {}))
        assert (await client.invoke(made_topic.command)).code == 0
        await client.close()
        async with Producer("P", small.names.address, clock=small.clock) as producer:
            for number in range(count):
                await producer.send(ProducerMessage("T", b"%d" % number), QUEUE._replace(queue_id=number))
        made: Any = small.push("c", listen, persist_consumer_offset_interval=3_600_000)
        if kind == "lite pull":
            options: dict[str, Any] = {"consume_from_where": ConsumeFrom.FIRST_OFFSET}
            made = LitePullConsumer("G", small.names.address, **options, clock=small.clock)
            made.subscribe("T")
        await made.start()
        while len(got) < count:
            await asyncio.sleep(1)
            if kind == "lite pull":
                got.extend(one.body for one in await made.poll(1000))
        small.broker.kill(silently=True)
        begun = small.loop.time()
        await made.__aexit__(None, None, None)
        assert small.loop.time() - begun < 60
        await small.broker.start()

    in_virtual_time(tmp_path, work)


@pytest.mark.parametrize("kind", ["push", "lite pull"])
def test_who_never_ends_to_be_told_of_queues_does_not_keep_a_consumer_from_its_end(tmp_path: Path, kind: str) -> None:
    async def work(small: Small) -> None:
        async def listen(_: Sequence[ConsumerMessage], __: ConsumeContext) -> None:
            pass

        async def never(_: list[MessageQueue]) -> None:
            await asyncio.Event().wait()

        async with Producer("P", small.names.address, clock=small.clock) as producer:
            await producer.send(ProducerMessage("T", b"first"), QUEUE)
        made: Any = small.push("c", listen, on_revoked=never)
        if kind == "lite pull":
            made = LitePullConsumer("G", small.names.address, on_revoked=never, clock=small.clock)
            made.subscribe("T")
        await made.start()
        await asyncio.sleep(30)
        begun = small.loop.time()
        async with asyncio.timeout(600):
            await made.shutdown()
        assert small.loop.time() - begun < 60

    in_virtual_time(tmp_path, work)


def test_a_queue_that_is_paused_and_another_members_by_then_gives_nothing_more(tmp_path: Path) -> None:
    async def work(small: Small) -> None:
        got: dict[str, list[bytes]] = {"1": [], "2": []}

        def made(name: str) -> LitePullConsumer:
            lite = LitePullConsumer(
                "G",
                small.names.address,
                consume_from_where=ConsumeFrom.FIRST_OFFSET,
                instance_name=name,
                clock=small.clock,
            )
            lite.subscribe("T")
            return lite

        async def poll(name: str, lite: LitePullConsumer) -> None:
            for _ in range(30):
                got[name] += [one.body for one in await lite.poll(1000)]

        one, other = made("1"), made("2")
        async with Producer("P", small.names.address, clock=small.clock) as producer, one:
            await producer.send(ProducerMessage("T", b"begin"), QUEUE)
            await poll("1", one)
            both = one.assignment()
            one.pause(both)
            for queue in both:
                await producer.send(ProducerMessage("T", b"%d" % queue.queue_id), queue)
            await poll("1", one)
            assert got["1"] == [b"begin"]
            async with other:
                await poll("2", other)
                [kept] = one.assignment()
                [moved] = {*both} - {kept}
                assert got["2"] == [b"%d" % moved.queue_id]
                one.resume(both)
                await asyncio.gather(poll("1", one), poll("2", other))
            await poll("1", one)
            assert (got["1"], got["2"]) == ([b"begin", b"%d" % kept.queue_id], [b"%d" % moved.queue_id])

    in_virtual_time(tmp_path, work)


def test_who_lets_a_queue_go_late_does_not_take_back_what_its_next_owner_has_committed(tmp_path: Path) -> None:
    async def work(small: Small) -> None:
        def made(name: str) -> LitePullConsumer:
            begin = ConsumeFrom.FIRST_OFFSET
            lite = LitePullConsumer(
                "G", small.names.address, consume_from_where=begin, instance_name=name, clock=small.clock
            )
            lite.subscribe("T")
            return lite

        queues = [QUEUE, QUEUE._replace(queue_id=1)]
        one, other = made("1"), made("2")
        async with Producer("P", small.names.address, clock=small.clock) as producer, one:
            for queue in queues:
                await producer.send(ProducerMessage("T", b"first"), queue)
            while small.broker.rules.offsets.of("G", "T") != {0: 1, 1: 1}:
                await one.poll(1000)
            one.pause(queues)
            for queue in queues:
                for body in (b"second", b"third"):
                    await producer.send(ProducerMessage("T", body), queue)
                small.broker.rules.offsets.commit("G", "T", queue.queue_id, 2)  # by who has it already
            async with other:
                await asyncio.sleep(60)
                assert len(one.assignment()) == len(other.assignment()) == 1
                assert small.broker.rules.offsets.of("G", "T") == {0: 2, 1: 2}

    in_virtual_time(tmp_path, work)
