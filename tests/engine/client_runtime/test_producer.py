"""Producers on a broker: what they send is in its store, exactly once; where one broker fails, another takes it."""

import asyncio
import collections
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import mqtool
from mqtool import ProducerMessage, ProducerOptions, SendStatus, TransactionState, aio
from mqtool.errors import MqtoolError, NotFoundError, RefusedError, UnavailableError, UsageError
from mqtool.formats.bodies import Registration, build_registration
from mqtool.formats.codes import RequestCode
from mqtool.formats.config_tables import DataVersion, TopicConfig
from mqtool.formats.headers import RegisterBroker, build_header
from mqtool.formats.remoting import RemotingCommand, frame_buffers
from tests.ports import free_port


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker(settings={"recallMessageEnable": True}) as running:
        yield running


def stored(broker: mqtool.Broker, topic: str) -> list[mqtool.Message]:
    """Return the messages of a topic in the order of the log."""
    return [one for one in mqtool.open_store(broker.store).messages() if one.topic == topic]


def test_every_field_of_a_message_arrives(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address) as producer:
        message = ProducerMessage(
            "Orders", b"hello", tags="new", keys=["k1", "k2"], shard_key="s", flag=7, properties={"own": "1"}
        )
        result = producer.send(message)
        [found] = stored(broker, "Orders")
    assert result.status is SendStatus.SEND_OK
    assert (found.body, found.flag, found.tags, found.keys, found.unique_key) == (
        b"hello", 7, "new", "k1 k2", message.unique_key,
    )  # fmt: skip
    assert {"own": "1", "__SHARDINGKEY": "s", "WAIT": "true"}.items() <= found.properties.items()
    assert (result.message_id, result.offset_message_id) == (found.unique_key, found.message_id)
    assert (result.queue.queue_id, result.queue_offset) == (found.queue_id, found.queue_offset)


def test_a_producer_loads_no_slow_library(broker: mqtool.Broker) -> None:
    program = f"""
import sys, mqtool
assert "mqtool.engine" not in sys.modules
with mqtool.Producer("shop", "{broker.name_server_address}") as producer:
    producer.send(mqtool.ProducerMessage("Orders", b"hello"))
assert {{"construct", "numba", "numpy", "lark"}}.isdisjoint(sys.modules), sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert len(stored(broker, "Orders")) == 1


@pytest.mark.parametrize("compression", mqtool.Compression)
def test_a_large_body_is_compressed_on_its_way(broker: mqtool.Broker, compression: mqtool.Compression) -> None:
    options = ProducerOptions(compress_type=compression)
    body = b"large " * 1000
    with mqtool.Producer("shop", broker.name_server_address, options) as producer:
        producer.send(ProducerMessage("Orders", body))
        [found] = stored(broker, "Orders")
    assert found.body_size < 1000
    assert found.plain_body() == body


def test_sends_of_many_threads_are_each_stored_once(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address) as producer:

        def send(number: int) -> str:
            return producer.send(ProducerMessage("Orders", str(number).encode())).message_id

        with ThreadPoolExecutor(8) as pool:
            keys = [*pool.map(send, range(200))]
        futures = [producer.send_async(ProducerMessage("Orders", str(number).encode())) for number in range(200, 400)]
        keys += [future.result().message_id for future in futures]
        found = stored(broker, "Orders")
    assert collections.Counter(one.body for one in found) == {str(number).encode(): 1 for number in range(400)}
    assert sorted(one.unique_key or "" for one in found) == sorted(keys)
    assert {one.queue_id for one in found} == {0, 1, 2, 3}


def test_a_oneway_message_is_stored_though_nobody_says_so(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address) as producer:
        producer.send_oneway(ProducerMessage("Orders", b"one way"))
        producer.send(ProducerMessage("Orders", b"after"))  # over the same connection: the broker has read both
        assert [one.body for one in stored(broker, "Orders")] == [b"one way", b"after"]


def test_a_selector_and_a_queue_say_where_it_goes(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address) as producer:
        for number in range(20):
            producer.send(
                ProducerMessage("Orders", b"%d" % number), selector=mqtool.select_by_hash, arg=f"user-{number % 3}"
            )
        by_user = collections.defaultdict(set)
        for one in stored(broker, "Orders"):
            by_user[int(one.body) % 3].add(one.queue_id)
        assert {len(ids) for ids in by_user.values()} == {1}
        queue = producer.queues("Orders")[2]
        assert producer.send(ProducerMessage("Orders", b"there"), queue).queue == queue
        with pytest.raises(UsageError, match="mutually exclusive"):
            producer.send(ProducerMessage("Orders", b"where"), queue, selector=mqtool.select_at_random)


def test_a_batch_is_cut_by_size_and_keeps_its_order(broker: mqtool.Broker) -> None:
    options = ProducerOptions(max_message_size=2000)
    with mqtool.Producer("shop", broker.name_server_address, options) as producer:
        queue = producer.queues("Orders")[1]
        messages = [ProducerMessage("Orders", b"%03d" % number * 100, tags="b") for number in range(20)]
        results = producer.send_batch(messages, queue)
        found = stored(broker, "Orders")
    assert len(results) > 2
    assert [one.body for one in found] == [one.body for one in messages]
    assert [one.queue_offset for one in found] == [*range(20)]
    keys = ",".join(result.message_id for result in results).split(",")
    assert all(key.encode() in one.raw_properties for key, one in zip(keys, found, strict=True))


def test_a_timer_message_is_taken_back(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address) as producer:
        handle = producer.send(ProducerMessage("Orders", b"later", delay_ms=3_600_000)).recall_handle
        assert handle
        assert producer.recall("Orders", handle)
        with pytest.raises(UsageError, match="not a recall handle"):
            producer.recall("Orders", "nonsense")


def test_names_of_a_namespace_are_the_brokers_business_only(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address, ProducerOptions(namespace="eu")) as producer:
        assert producer.send(ProducerMessage("Orders", b"hello")).queue.topic == "Orders"
        assert len(stored(broker, "eu%Orders")) == 1


# What fails


def dead_address() -> str:
    return f"127.0.0.1:{free_port()}"


@contextmanager
def dead_broker(broker: mqtool.Broker, topic: str) -> Iterator[None]:
    """Have the name server believe in one more broker with the topic, at an address where nobody is."""
    topics = {name: TopicConfig(name, 4, 4, 6, False, "SINGLE_TAG", 0, {}) for name in (topic, "Another")}
    body = build_registration(Registration(DataVersion(0, 1, 1), topics))  # one topic alone is no first registration
    fields = build_header(RegisterBroker("broker-z", dead_address(), "DefaultCluster", "", 0))
    host, port = broker.name_server_address.split(":")
    with socket.create_connection((host, int(port))) as connection:  # at whose end it would be forgotten
        connection.sendall(
            b"".join(frame_buffers(RemotingCommand(RequestCode.REGISTER_BROKER, ext_fields=fields, body=body)))
        )
        assert connection.recv(1)
        yield


def test_what_a_dead_broker_does_not_take_another_does(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address) as producer:
        producer.send(ProducerMessage("Orders", b"first"))
    with dead_broker(broker, "Orders"), mqtool.Producer("shop", broker.name_server_address) as producer:
        assert {queue.broker_name for queue in producer.queues("Orders")} == {"broker-a", "broker-z"}
        results = [producer.send(ProducerMessage("Orders", b"%d" % number)) for number in range(20)]
        assert {result.queue.broker_name for result in results} == {"broker-a"}
        dead = next(queue for queue in producer.queues("Orders") if queue.broker_name == "broker-z")
        with pytest.raises(UnavailableError, match="cannot connect"):
            producer.send(ProducerMessage("Orders", b"nowhere else"), dead)
        assert len(stored(broker, "Orders")) == 21


def test_without_retries_a_dead_broker_is_an_error_that_names_it(broker: mqtool.Broker) -> None:
    options = ProducerOptions(retry_times_when_send_failed=0)
    with (
        dead_broker(broker, "Alone"),
        mqtool.Producer("shop", broker.name_server_address, options) as producer,
        pytest.raises(mqtool.SendError, match=r"1 attempt .* cannot connect") as caught,
    ):
        producer.send(ProducerMessage("Alone", b"x"))
    assert caught.value.brokers == ["broker-z"]


def test_a_refusal_that_any_broker_would_give_comes_at_once() -> None:
    with (
        mqtool.Broker(settings={"maxMessageSize": 1000}) as small,
        mqtool.Producer("shop", small.name_server_address) as producer,
        pytest.raises(RefusedError) as caught,
    ):
        producer.send(ProducerMessage("Orders", bytes(range(256)) * 8))
    assert caught.value.code == 13


def test_a_topic_that_nobody_makes_is_not_found() -> None:
    with (
        mqtool.Broker(settings={"autoCreateTopicEnable": False}) as strict,
        mqtool.Producer("shop", strict.name_server_address) as producer,
        pytest.raises(NotFoundError, match="the topic Orders does not exist"),
    ):
        producer.send(ProducerMessage("Orders", b"x"))


def test_without_a_name_server_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(UsageError, match="NAMESRV_ADDR is not set"):
        mqtool.Producer("shop")
    with mqtool.Producer("shop", dead_address()) as producer, pytest.raises(UnavailableError, match="cannot connect"):
        producer.send(ProducerMessage("Orders", b"x"))


def test_a_producer_that_does_not_run_sends_nothing(broker: mqtool.Broker) -> None:
    producer = mqtool.Producer("shop", broker.name_server_address)
    with pytest.raises(UsageError, match="not running"):
        producer.send(ProducerMessage("Orders", b"x"))
    with producer, pytest.raises(UsageError, match="already running"):
        producer.start()


# Transactions


class ObedientTransactions:
    """Does as it is told; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.answer = TransactionState.UNKNOWN

    def execute_local_transaction(self, _message: ProducerMessage, arg: Any) -> TransactionState:
        if isinstance(arg, Exception):
            raise arg
        assert isinstance(arg, TransactionState)
        return arg

    def check_local_transaction(self, message: mqtool.ConsumerMessage) -> TransactionState:
        self.asked.append(message.body)
        return self.answer


def test_a_transaction_decides_what_is_delivered(broker: mqtool.Broker) -> None:
    with mqtool.TransactionProducer("tx", ObedientTransactions(), broker.name_server_address) as producer:
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            result = producer.send_in_transaction(ProducerMessage("Orders", state.name.encode()), state)
            assert (result.status, result.transaction_state) == (SendStatus.SEND_OK, state)
        producer.send(ProducerMessage("Others", b"after"))  # over the same connection: the ends are there
        assert [one.body for one in stored(broker, "Orders")] == [b"COMMIT"]


def test_an_exception_of_the_local_transaction_is_the_callers(broker: mqtool.Broker) -> None:
    with (
        mqtool.TransactionProducer("tx", ObedientTransactions(), broker.name_server_address) as producer,
        pytest.raises(ZeroDivisionError),
    ):
        producer.send_in_transaction(ProducerMessage("Orders", b"failed"), ZeroDivisionError())


def test_a_broker_that_heard_nothing_asks_and_is_answered() -> None:
    clock = mqtool.VirtualClock()
    listener = ObedientTransactions()
    listener.answer = TransactionState.COMMIT
    with (
        mqtool.Broker(clock=clock) as broker,
        mqtool.TransactionProducer("tx", listener, broker.name_server_address) as producer,
    ):
        producer.send_in_transaction(ProducerMessage("Orders", b"checked"), TransactionState.UNKNOWN)
        assert not stored(broker, "Orders")
        while not listener.asked:
            clock.advance(30)
        while not stored(broker, "Orders"):
            clock.advance(0)
        assert [one.body for one in stored(broker, "Orders")] == [b"checked"]
        assert {*listener.asked} == {b"checked"}


# asyncio


def test_the_same_names_work_on_an_event_loop(broker: mqtool.Broker) -> None:
    async def main() -> list[mqtool.SendResult]:
        async with aio.Producer("shop", broker.name_server_address) as producer:
            tasks = [await producer.send_async(ProducerMessage("Orders", b"%d" % number)) for number in range(50)]
            return [*await asyncio.gather(*tasks), await producer.send(ProducerMessage("Orders", b"last"))]

    results = asyncio.run(main())
    assert {result.status for result in results} == {SendStatus.SEND_OK}
    assert len(stored(broker, "Orders")) == 51


def test_back_pressure_lets_everything_through_in_the_end(broker: mqtool.Broker) -> None:
    options = ProducerOptions(enable_backpressure_for_async_mode=True, back_pressure_for_async_send_num=10)
    with mqtool.Producer("shop", broker.name_server_address, options) as producer:
        futures = [producer.send_async(ProducerMessage("Orders", b"%d" % number)) for number in range(100)]
        assert len({future.result().message_id for future in futures}) == 100


def test_an_error_is_one_of_ours(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address) as producer, pytest.raises(MqtoolError, match="no body"):
        producer.send_async(ProducerMessage("Orders", b"")).result()
