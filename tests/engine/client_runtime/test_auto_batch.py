"""Automatic batching: what is sent one by one is stored in few appends, and every message knows where."""

import asyncio
import collections
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import mqtool
from mqtool import MqtoolError, ProducerMessage, ProducerOptions, UnavailableError, UsageError, aio
from mqtool.engine.client.outgoing import Element
from mqtool.engine.client_runtime.auto_batch import AutoBatch, Blank, LaneKey, PendingMessage, SendFuture

HOUR_MS = 3_600_000


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        yield running


def batching(linger_ms: int = 10, **options: Any) -> ProducerOptions:
    return ProducerOptions(auto_batch=True, linger_ms=linger_ms, **options)


def stored(broker: mqtool.Broker, topic: str = "Orders") -> list[mqtool.Message]:
    """Return the messages of a topic in the order of the log."""
    return [one for one in mqtool.open_store(broker.store).messages() if one.topic == topic]


def is_where_it_says(message: mqtool.Message, result: mqtool.SendResult) -> bool:
    return (message.queue_id, message.queue_offset, message.message_id) == (
        result.queue.queue_id,
        result.queue_offset,
        result.offset_message_id,
    ) and result.message_id.encode() in message.raw_properties


def test_every_message_of_many_threads_learns_its_own_place(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address, batching(batch_size=2000)) as producer:

        def send(thread: int) -> dict[bytes, mqtool.SendResult]:
            dice = random.Random(thread)
            bodies = [b"%d-%d " % (thread, number) * dice.randrange(1, 60) for number in range(100)]
            futures = {body: producer.send_async(ProducerMessage("Orders", body, tags="t")) for body in bodies}
            last = b"%d-last" % thread
            return {
                **{body: future.result() for body, future in futures.items()},
                last: producer.send(ProducerMessage("Orders", last, keys=["k"])),
            }

        with ThreadPoolExecutor(4) as pool:
            results = collections.ChainMap(*pool.map(send, range(4)))
    found = {one.body: one for one in stored(broker)}
    assert len(found) == len(stored(broker)) == len(results) == 404
    assert all(is_where_it_says(found[body], result) for body, result in results.items())
    assert len({result.message_id for result in results.values()}) == 404


def test_messages_that_wait_go_together_and_in_order(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address, batching(HOUR_MS, batch_size=4000)) as producer:
        queue = producer.queues("Orders")[2]
        futures = [producer.send_async(ProducerMessage("Orders", b"%03d" % number), queue) for number in range(300)]
        producer.flush()
        offsets = [future.result().queue_offset for future in futures]
    assert offsets == [*range(300)]
    assert [one.body for one in stored(broker)] == [b"%03d" % number for number in range(300)]
    assert len({one.store_timestamp for one in stored(broker)}) < 40  # appends, of which each has one time


def test_a_selector_puts_messages_of_one_key_in_one_queue_in_order(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address, batching()) as producer:
        for number in range(200):
            message = ProducerMessage("Orders", b"%d" % number)
            producer.send_async(message, selector=mqtool.select_by_hash, arg=f"user-{number % 5}")
    by_user = collections.defaultdict(list)
    for one in stored(broker):
        by_user[int(one.body) % 5].append(one)
    assert sum(map(len, by_user.values())) == 200
    for ones in by_user.values():
        assert len({one.queue_id for one in ones}) == 1
        assert [int(one.body) for one in ones] == sorted(int(one.body) for one in ones)


def test_the_end_of_a_block_sends_what_still_waits(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address, batching(HOUR_MS)) as producer:
        futures = [producer.send_async(ProducerMessage("Orders", b"%d" % number)) for number in range(10)]
    assert {future.result().status for future in futures} == {mqtool.SendStatus.SEND_OK}
    assert len(stored(broker)) == 10


def test_what_cannot_be_batched_goes_by_itself_at_once(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address, batching(HOUR_MS)) as producer:
        waits = producer.send_async(ProducerMessage("Orders", b"waits"))
        assert producer.send(ProducerMessage("Later", b"delayed", delay_level=1)).queue_offset == 0
        assert not waits.done()


def test_a_message_that_no_broker_would_take_harms_no_other(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address, batching()) as producer:
        before = producer.send_async(ProducerMessage("Orders", b"before"))
        with pytest.raises(UsageError, match="no body"):
            producer.send_async(ProducerMessage("Orders", b""))
        after = producer.send_async(ProducerMessage("Orders", b"after"))
        assert [before.result().queue_offset, after.result().queue_offset] == [0, 1]


def test_a_message_that_has_no_time_takes_no_other_with_it(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address, batching(HOUR_MS)) as producer:
        before = producer.send_async(ProducerMessage("Orders", b"before"))
        hurried = producer.send_async(ProducerMessage("Orders", b"hurried"), timeout_ms=-1)
        after = producer.send_async(ProducerMessage("Orders", b"after"))
        producer.flush()
        with pytest.raises(MqtoolError, match="0 attempts"):
            hurried.result()
        assert before.result().queue_offset + after.result().queue_offset >= 0
    assert [one.body for one in stored(broker)] == [b"before", b"after"]


def test_a_message_that_is_cancelled_while_it_waits_is_not_sent(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address, batching(HOUR_MS)) as producer:
        futures = [producer.send_async(ProducerMessage("Orders", b"%d" % number)) for number in range(3)]
        assert futures[1].cancel()
        producer.flush()
        assert is_where_it_says(stored(broker)[1], futures[2].result())
    assert [one.body for one in stored(broker)] == [b"0", b"2"]


def test_every_message_of_a_batch_that_fails_raises() -> None:
    with ExitStack() as running, ExitStack() as broker_runs:
        broker = broker_runs.enter_context(mqtool.Broker())
        options = batching(send_msg_timeout=500)
        producer = running.enter_context(mqtool.Producer("shop", broker.name_server_address, options))
        producer.send(ProducerMessage("Orders", b"first"))
        broker_runs.close()
        futures = [producer.send_async(ProducerMessage("Orders", b"%d" % number)) for number in range(5)]
        for future in futures:
            with pytest.raises(MqtoolError):
                future.result()


def test_asyncio_programs_batch_as_well(broker: mqtool.Broker) -> None:
    async def run() -> list[mqtool.SendResult]:
        async with aio.Producer("shop", broker.name_server_address, batching()) as producer:
            begun = [await producer.send_async(ProducerMessage("Orders", b"%d" % number)) for number in range(50)]
            return [*await asyncio.gather(*begun, producer.send(ProducerMessage("Orders", b"50")))]

    results = asyncio.run(run())
    found = {one.message_id: one for one in stored(broker)}
    assert len(found) == 51
    assert all(is_where_it_says(found[result.offset_message_id], result) for result in results)
    assert [int(found[result.offset_message_id].body) for result in results] == [*range(51)]


def test_what_is_not_sent_in_time_is_counted_and_raises(broker: mqtool.Broker) -> None:
    async def run() -> "list[BaseException | None]":
        producer = aio.Producer("shop", broker.name_server_address, batching(HOUR_MS))
        await producer.start()
        begun = [await producer.send_async(ProducerMessage("Orders", b"%d" % number)) for number in range(3)]
        with pytest.raises(UnavailableError, match="3 messages were not sent within 0 ms"):
            await producer.flush(0)
        await producer.shutdown()
        return [one.exception() for one in begun]

    assert asyncio.run(run()) == [None] * 3


def test_futures_are_waited_for_as_any(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address, batching(HOUR_MS)) as producer:
        begun = [producer.send_async(ProducerMessage("Orders", b"%d" % number)) for number in range(20)]
        with pytest.raises(TimeoutError):
            begun[0].result(0)
        with pytest.raises(TimeoutError):
            begun[0].exception(0.01)
        assert futures.wait(begun, 0).done == set()
        with ThreadPoolExecutor(20) as pool:  # each waits for its own
            waiting = [pool.submit(one.result, 60) for one in begun[:19]]
            assert begun[19].cancel()  # which wakes the others
            with pytest.raises(futures.CancelledError):
                begun[19].result(60)
            assert not any(one.done() for one in waiting)
            producer.flush()
            assert [one.result(60).queue_offset for one in waiting] == [*range(19)]
        assert {*futures.as_completed(begun, 60)} == {*begun}


def test_a_future_has_all_that_futures_have_and_shares_only_the_lock() -> None:
    blank = Blank()
    one, other = vars(SendFuture(blank)), vars(SendFuture(blank))
    assert one.keys() == vars(futures.Future()).keys()
    own = {name for name, value in vars(futures.Future()).items() if isinstance(value, list)}
    assert own
    assert all((one[name] is other[name]) == (name not in own) for name in one)


def test_whoever_waits_for_a_future_is_told_when_it_is_cancelled() -> None:
    future = SendFuture(Blank())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(future.exception, 60)
        while not waiting.running():
            pass
        assert future.cancel()
        with pytest.raises(futures.CancelledError):
            waiting.result(60)


def test_a_message_that_comes_when_all_was_given_up_fails() -> None:
    async def run() -> None:
        async def send(*_: Any) -> mqtool.SendResult:
            raise AssertionError("nothing is sent any more")

        batches = AutoBatch(send, 1, 0)
        batches.give_up(UnavailableError("the producer was shut down"))
        future = batches.new_future()
        batches.post(LaneKey("Orders", None, True), PendingMessage(Element(b"late", "K"), 3000, future))
        with pytest.raises(UnavailableError, match="shut down"):
            future.result(0)
        assert batches.count == 0

    asyncio.run(run())


def test_a_signal_handler_may_send_in_the_middle_of_a_send() -> None:
    sent: list[bytes] = []

    async def run() -> None:
        async def send(_lane: LaneKey, batch: Sequence[Element], _timeout_ms: int) -> mqtool.SendResult:
            sent.extend(one.data for one in batch)
            raise UnavailableError("this is enough")

        class Interrupted(bytes):
            """A message that is interrupted where its size is noted."""

            is_new = True

            def __len__(self) -> int:
                if self.is_new:
                    self.is_new = False
                    post(b"of the handler")
                return super().__len__()

        def post(element: bytes) -> None:
            one = PendingMessage(Element(element, "K"), 3000, batches.new_future())
            batches.post(LaneKey("Orders", None, True), one)

        batches = AutoBatch(send, 10_000, HOUR_MS)
        post(Interrupted(b"interrupted"))
        await asyncio.gather(*batches.hurry())

    sending = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    sending.start()
    sending.join(60)
    assert sent == [b"interrupted", b"of the handler"]
