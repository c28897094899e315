"""``mqtool.Broker`` as a program uses it: in an event loop, in a thread, several at a time, with a clock of its own."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest

import mqtool
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.repair.findings import Severity
from mqtool.formats.bodies import (
    ConsumerData,
    Heartbeat,
    Subscription,
    build_heartbeat,
    parse_cluster_info,
    parse_route,
)
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.remoting import RemotingCommand
from tests.commands.test_serve import ask, route_of, send
from tests.engine.broker.asking import body_of
from tests.engine.broker.processors.test_pull import bodies, fields
from tests.engine.remoting.test_server import on_a_loop

DAY = 86_400
SMALL = {"mappedFileSizeCommitLog": 65_536, "mappedFileSizeConsumeQueue": 20_000}


def pull(topic: str = "Orders", **given: Any) -> RemotingCommand:
    texts = {name: str(value) for name, value in fields(topic=topic, **{"suspendTimeoutMillis": 0, **given}).items()}
    subscription = {"subscription": "*", "expressionType": "TAG"}
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields={**texts, **subscription, "sysFlag": "4"})


def delayed(body: str, level: int) -> RemotingCommand:
    command = send(body)
    command.ext_fields["i"] = f"DELAY\x01{level}\x02"
    return command


def heartbeat() -> RemotingCommand:
    subscription = Subscription("Orders", "*", "TAG", (), (), 1)
    data = ConsumerData("G", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", (subscription,))
    body = build_heartbeat(Heartbeat("c1", (), (data,)))
    return RemotingCommand(RequestCode.HEART_BEAT, ext_fields={}, body=body)


def pulled(answers: Iterable[RemotingCommand]) -> list[list[bytes]]:
    return [bodies(answer) if body_of(answer) else [] for answer in answers]


def worst(store: Path) -> Severity:
    findings = mqtool.verify_store(mqtool.open_store(store))
    return max((finding.severity for finding in findings), default=Severity.NOTE)


@on_a_loop
async def test_it_runs_in_the_loop_of_its_caller_and_leaves_nothing_behind() -> None:
    async with mqtool.Broker() as broker:
        names, client = RemotingClient([broker.name_server_address]), RemotingClient([broker.address])
        sent = await client.invoke(send("one"))
        route = parse_route((await names.invoke(route_of("Orders"))).body)
        found = await client.invoke(pull())
        await names.close()
        await client.close()
        assert (broker.store / "commitlog").is_dir()

    assert sent.code == 0
    assert route.brokers[0].addresses == {0: broker.address}
    assert bodies(found) == [b"one"]
    assert not broker.store.exists()


def test_it_runs_in_a_thread_and_again_on_the_same_store(tmp_path: Path) -> None:
    broker = mqtool.Broker(tmp_path / "store", settings={"brokerName": "shop", **SMALL})
    with broker:
        ask(broker.address, send("one"))
    with broker:
        [route] = ask(broker.name_server_address, route_of("Orders"))
        answers = ask(broker.address, send("two"), pull())

    assert parse_route(route.body).brokers[0].broker_name == "shop"
    assert pulled(answers[1:]) == [[b"one", b"two"]]
    assert worst(tmp_path / "store") == Severity.NOTE
    assert "mqtool broker" not in {thread.name for thread in threading.enumerate()}


def test_several_run_side_by_side_alone_or_with_one_name_server() -> None:
    with (
        mqtool.Broker(settings={"brokerName": "a"}) as one,
        mqtool.Broker(name_servers=[one.name_server_address], settings={"brokerName": "b"}) as other,
        mqtool.Broker() as alone,
    ):
        ask(one.address, send("one"))
        [empty] = ask(alone.address, pull())
        [info] = ask(one.name_server_address, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        assert other.name_server_address == one.name_server_address

    assert empty.code == ResponseCode.TOPIC_NOT_EXIST
    addresses = {name: broker.addresses[0] for name, broker in parse_cluster_info(info.body).brokers.items()}
    assert addresses == {"a": one.address, "b": other.address}


@on_a_loop
async def test_the_next_segment_is_made_as_soon_as_the_last_one_is_half_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtool.engine.cluster._FLUSH_LOOK_SECONDS", 3600)  # nobody looks
    async with mqtool.Broker(tmp_path / "store", settings=SMALL) as broker:
        client, ahead = RemotingClient([broker.address]), tmp_path / "store" / "commitlog" / f"{65_536:020}"
        await client.invoke(send("a" * 30_000))
        before = ahead.exists()
        await client.invoke(send("b" * 3_000))
        async with asyncio.timeout(60):
            while not ahead.exists():
                await asyncio.sleep(0)
        await client.close()

    assert not before


@pytest.mark.parametrize("level", [1, 16, 18])
def test_a_delayed_message_comes_when_the_clock_is_moved_and_no_ms_earlier(level: int) -> None:
    seconds = {1: 1, 16: 30 * 60, 18: 2 * 3600}[level]
    clock = mqtool.VirtualClock()
    with mqtool.Broker(clock=clock) as broker:
        ask(broker.address, delayed("later", level))
        clock.advance(seconds - 0.001)
        before = ask(broker.address, pull())
        clock.advance(0.001)
        after = ask(broker.address, pull())

    assert pulled(before + after) == [[], [b"later"]]


@on_a_loop
async def test_a_pull_that_waits_ends_when_the_clock_says_so() -> None:
    clock = mqtool.VirtualClock(now=1_700_000_000_000)
    held = pull(queueOffset=1, suspendTimeoutMillis=20_000)
    held.ext_fields["sysFlag"] = "6"
    async with mqtool.Broker(clock=clock) as broker:
        client = RemotingClient([broker.address])
        await client.invoke(send("one"))
        waiting = asyncio.ensure_future(client.invoke(held))
        await client.invoke(heartbeat())  # when that is answered the pull has been read, too
        clock.advance(19.999)
        await client.invoke(heartbeat())
        assert not waiting.done()
        clock.advance(5)  # the broker looks every five seconds
        assert (await waiting).code == ResponseCode.PULL_NOT_FOUND
        await client.close()


@on_a_loop
async def test_clients_and_brokers_that_are_connected_outlive_a_jump() -> None:
    clock = mqtool.VirtualClock()
    members = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext_fields={"consumerGroup": "G"})
    async with mqtool.Broker(clock=clock) as broker:
        client, names = RemotingClient([broker.address]), RemotingClient([broker.name_server_address])
        await client.invoke(heartbeat())
        clock.advance(DAY)
        found = await client.invoke(members)
        route = await names.invoke(route_of("TBW102"))
        await client.close()
        await names.close()

    assert orjson.loads(found.body) == {"consumerIdList": ["c1"]}
    assert route.code == 0


def test_old_messages_are_deleted_when_the_clock_reaches_the_hour(tmp_path: Path) -> None:
    clock = mqtool.VirtualClock()
    hours = ";".join(f"{hour:02}" for hour in range(24))
    settings = {"mappedFileSizeCommitLog": "4096", "fileReservedTime": "48", "deleteWhen": hours}
    settings["flushDiskType"] = "SYNC_FLUSH"  # what is not on the disk is not deleted either
    with mqtool.Broker(tmp_path, clock=clock, settings=settings) as broker:
        ask(broker.address, *(send("x" * 1000) for _ in range(12)))
        count = len([*(tmp_path / "commitlog").iterdir()])
        clock.advance(DAY)
        after_a_day = len([*(tmp_path / "commitlog").iterdir()])
        for _ in range(count):
            clock.advance(2 * DAY)
        after_all = len([*(tmp_path / "commitlog").iterdir()])

    assert after_a_day == count > 3
    assert after_all < count


def test_what_is_in_its_way_it_says(tmp_path: Path) -> None:
    with mqtool.Broker(tmp_path) as broker, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for wrong, message in (
            (mqtool.Broker(tmp_path), "is locked"),
            (mqtool.Broker(port=port), f"cannot listen on 127.0.0.1:{port}"),
            (mqtool.Broker(name_server_port=port), f"cannot listen on 127.0.0.1:{port}"),
        ):
            with pytest.raises(mqtool.MqtoolError, match=message), wrong:
                pass
        [answer] = ask(broker.address, send("still there"))

    assert answer.code == 0
    with pytest.raises(mqtool.MqtoolError, match="autoCreateTopicEnable=maybe is neither true nor false"):
        mqtool.Broker(settings={"autoCreateTopicEnable": "maybe"})


@pytest.mark.parametrize("options", [{"host": "localhost"}, {"settings": {"brokerIP1": "localhost"}}])
def test_a_broker_may_be_known_by_the_name_of_its_host(options: Any) -> None:
    with mqtool.Broker(**options) as broker:
        with mqtool.Producer("shop", broker.name_server_address) as producer:
            producer.send(mqtool.ProducerMessage("t", b"one"))
        with mqtool.PullConsumer("billing", broker.name_server_address) as consumer:
            [message] = [
                message for queue in consumer.fetch_message_queues("t") for message in consumer.pull(queue, 0).messages
            ]
        assert broker.address.startswith("localhost:")
        assert message.store_host in {f"127.0.0.1:{broker.address[10:]}", f"[::1]:{broker.address[10:]}"}

    with pytest.raises(mqtool.MqtoolError, match=r"the host no\.such\.invalid has no address"):
        mqtool.Broker(settings={"brokerIP1": "no.such.invalid"}).__enter__()


def test_an_exception_of_the_block_comes_out_and_the_store_is_closed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), mqtool.Broker(tmp_path, settings=SMALL) as broker:
        ask(broker.address, send("one"))
        1 / 0  # noqa: B018

    assert not (tmp_path / "abort").exists()
    assert worst(tmp_path) == Severity.NOTE


def test_a_setting_without_effect_is_named(caplog: pytest.LogCaptureFixture) -> None:
    mqtool.Broker(settings={"flushDiskTyp": "SYNC_FLUSH", "defaultTopicQueueNums": 2, "autoCreateTopicEnable": False})

    assert [record.getMessage() for record in caplog.records] == ["these settings have no effect here: flushDiskTyp"]


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="-1"):
        mqtool.VirtualClock().advance(-1)


def test_importing_the_library_loads_none_of_it() -> None:
    program = "import mqtool, sys; assert 'Broker' in dir(mqtool); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert {"asyncio", "numpy", "construct", "numba"}.isdisjoint(done.stdout.split())
