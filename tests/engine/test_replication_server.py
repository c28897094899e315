"""The port for slaves, through sockets: slaves are played by hand, producers are clients."""

import asyncio
import logging
import select
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.cluster import Cluster
from mqtool.engine.replication.frames import Frame, FrameParser, build_report
from mqtool.engine.replication_server import allowed_networks
from mqtool.engine.server_configs import BrokerConfig
from mqtool.errors import UnavailableError, UsageError
from mqtool.formats.bodies import parse_body
from mqtool.formats.codes import RequestCode, ResponseCode
from tests.ports import free_port
from tests.wire_client import WireClient

SENT, FLUSH_SLAVE_TIMEOUT = 0, int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)


class FakeSlave:
    """A slave that reports what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.parser = FrameParser()
        self.data = bytearray()
        self.start = -1

    @classmethod
    async def connect(cls, broker: mqtool.Broker) -> "FakeSlave":
        host, port = broker.address.split(":")
        return cls(*await asyncio.open_connection(host, int(port) + 1))

    def report(self, offset: int) -> None:
        self.writer.write(build_report(offset))

    async def frame(self) -> Frame:
        """Return the next frame; EOFError where the connection has ended."""
        while True:
            for one in self.parser.commands():
                if isinstance(one, Frame):
                    if self.start < 0:
                        self.start = one.physical_offset
                    assert one.physical_offset == self.start + len(self.data)
                    self.data += one.body
                    return one
            if not (data := await self.reader.read(1 << 16)):
                raise EOFError
            self.parser.receive(data)

    async def read_to(self, end: int) -> None:
        """Read frames until one ends there."""
        while self.start + len(self.data) < end:
            await self.frame()

    async def acknowledge(self) -> None:
        """Report what comes as it comes, until the connection ends."""
        while True:
            await self.frame()
            self.report(self.start + len(self.data))

    async def is_ended(self) -> bool:
        """Wait for the end of the connection."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True


def on_broker(
    test: Callable[[mqtool.Broker, WireClient], Awaitable[None]], store: Path | None = None, **settings: Any
) -> None:
    async def served() -> None:
        async with asyncio.timeout(60), mqtool.Broker(store, settings=settings) as broker:
            client = WireClient(broker.address)
            await test(broker, client)
            await client.close()

    asyncio.run(served())


async def code_of_send(client: WireClient, body: bytes = b"body", **pairs: str) -> int:
    """Return what a producer is told of a message."""
    fields = {"producerGroup": "P", "topic": "Orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4}
    fields |= {"queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "batch": False, "reconsumeTimes": 0}
    properties = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
    answer = await client.ask(RequestCode.SEND_MESSAGE, body, **fields, properties=properties)
    assert answer.ext_fields["queueOffset"].isdecimal()
    return answer.code


def log_of(broker: mqtool.Broker) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((broker.store / "commitlog").iterdir()))


async def end_of(client: WireClient) -> int:
    answer = await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return int(parse_body(answer.body)["table"]["commitLogMaxOffset"])


async def status_of(client: WireClient) -> dict[str, Any]:
    return dict(parse_body((await client.ask(RequestCode.GET_BROKER_HA_STATUS)).body))


def test_a_slave_gets_the_log_byte_for_byte_and_messages_as_they_come(tmp_path: Path) -> None:
    async def test(broker: mqtool.Broker, client: WireClient) -> None:
        for number in range(30):
            await client.send(bytes([number]) * 3000)
        end = await end_of(client)
        assert end > 3 * (1 << 14)
        slave = await FakeSlave.connect(broker)
        slave.report(1)
        await slave.read_to(end)
        assert slave.data == log_of(broker)[1:end]

        for number in range(5):
            await client.send(bytes([number]) * 100)
            end = await end_of(client)
            await slave.read_to(end)
            assert slave.data == log_of(broker)[1:end]

        last = await FakeSlave.connect(broker)
        last.report(0)
        end = await end_of(client)
        await last.read_to(end)
        assert (last.start, bytes(last.data)) == (end - end % (1 << 14), log_of(broker)[end - end % (1 << 14) : end])
        for one in (slave, last):
            one.writer.close()

    on_broker(test, tmp_path / "store", mappedFileSizeCommitLog=1 << 14, haSendHeartbeatInterval=60_000)


def test_a_master_that_is_stopped_sends_its_slaves_what_it_has_gathered_for_them() -> None:
    async def served() -> None:
        async with asyncio.timeout(60):
            async with mqtool.Broker() as broker:
                client = WireClient(broker.address)
                await client.send(b"first")
                slave = await FakeSlave.connect(broker)
                slave.report(1)
                await slave.frame()
                for number in range(20):
                    await client.send(bytes([number]) * 100)
                end = await end_of(client)
                await client.close()
            await slave.read_to(end)
            slave.writer.close()

    asyncio.run(served())


def test_a_send_is_answered_when_a_slave_has_acknowledged_it_and_its_bytes_were_sent() -> None:
    async def test(broker: mqtool.Broker, client: WireClient) -> None:
        slave = await FakeSlave.connect(broker)
        slave.report(0)
        sent = asyncio.create_task(code_of_send(client))
        body = (await slave.frame()).body
        while not body:
            body = (await slave.frame()).body
        await end_of(client)  # it has had time for an answer
        assert not sent.done()
        slave.report(len(body) - 1)
        await end_of(client)
        assert not sent.done()
        slave.report(len(body))
        assert await sent == SENT

        answering = asyncio.create_task(slave.acknowledge())
        others = [WireClient(broker.address) for _ in range(8)]
        codes = await asyncio.gather(*(code_of_send(one) for one in others for _ in range(20)))
        assert set(codes) == {SENT}
        answering.cancel()
        for one in others:
            await one.close()
        slave.writer.close()

    on_broker(test, brokerRole="SYNC_MASTER", inSyncReplicas=2, slaveTimeout=30_000)


def test_a_message_that_comes_alone_is_on_its_way_to_slaves_while_it_is_handled_and_several_together_are_not() -> None:
    async def served(store: Path) -> None:
        settings = BrokerSettings(role="SYNC_MASTER", in_sync_replicas=2, slave_timeout_ms=30_000)
        async with asyncio.timeout(60), Cluster(brokers=[BrokerConfig(store, settings=settings)]) as cluster:
            client = WireClient(cluster.broker_addresses[0])
            host, _, port = cluster.replication_addresses[0].rpartition(":")
            slave = FakeSlave(*await asyncio.open_connection(host, int(port)))
            slave.report(0)
            answering = asyncio.create_task(slave.acknowledge())
            assert await code_of_send(client) == SENT
            ways: list[bool] = []
            connection = slave.writer.get_extra_info("socket")
            cluster.brokers[0].on_arrival.append(
                lambda *_: ways.append(bool(select.select([connection], [], [], 0)[0])),
            )

            assert await code_of_send(client) == SENT
            assert await asyncio.gather(*(code_of_send(client) for _ in range(3))) == [SENT] * 3

            assert ways == [True, False, False, False]
            answering.cancel()
            slave.writer.close()
            await client.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(served(Path(folder) / "store"))


@pytest.mark.parametrize(
    ("settings", "code", "is_quick"),
    [
        ({"brokerRole": "SYNC_MASTER"}, SENT, True),
        ({"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}, FLUSH_SLAVE_TIMEOUT, False),
        ({"brokerRole": "SYNC_MASTER", "haDialect": 4}, SLAVE_NOT_AVAILABLE, True),
        ({"brokerRole": "SYNC_MASTER", "haDialect": 4, "flushDiskType": "SYNC_FLUSH"}, SLAVE_NOT_AVAILABLE, True),
        (
            {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "flushDiskType": "SYNC_FLUSH"},
            FLUSH_SLAVE_TIMEOUT,
            False,
        ),
        ({"brokerRole": "ASYNC_MASTER", "inSyncReplicas": 3}, SENT, True),
    ],
)
def test_without_a_slave_producers_are_told_what_their_broker_would_tell_them(
    settings: dict[str, Any], code: int, is_quick: bool
) -> None:
    async def test(_: mqtool.Broker, client: WireClient) -> None:
        began = time.monotonic()
        assert await code_of_send(client) == code
        assert is_quick or time.monotonic() - began >= 0.3
        assert await code_of_send(client, WAIT="false") == SENT
        assert [one.body for one in await client.messages("Orders")] == [b"body", b"body"]  # stored all the same

    on_broker(test, slaveTimeout=300, **settings)


def test_by_4_9_a_slave_that_is_there_is_waited_for_and_one_that_is_far_behind_is_not() -> None:
    async def test(broker: mqtool.Broker, client: WireClient) -> None:
        slave = await FakeSlave.connect(broker)
        slave.report(0)
        while not (await status_of(client))["haConnectionInfo"]:
            pass
        assert await code_of_send(client) == FLUSH_SLAVE_TIMEOUT
        assert await code_of_send(client, b"x" * 2000) == SLAVE_NOT_AVAILABLE
        slave.writer.close()

    on_broker(test, brokerRole="SYNC_MASTER", haDialect=4, slaveTimeout=200, haSlaveFallbehindMax=2000)


def test_how_many_are_waited_for_can_be_changed_while_it_runs() -> None:
    async def test(_: mqtool.Broker, client: WireClient) -> None:
        assert await code_of_send(client) == FLUSH_SLAVE_TIMEOUT
        await client.done(RequestCode.UPDATE_BROKER_CONFIG, b"inSyncReplicas=1\n")
        assert await code_of_send(client) == SENT
        refused = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerRole=ASYNC_MASTER\n")
        assert "can be changed only at startup" in (refused.remark or "")

    on_broker(test, brokerRole="SYNC_MASTER", inSyncReplicas=2, slaveTimeout=200)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", "it speaks HTTP"),
        (bytes.fromhex("1603010200010001fc0303"), "it speaks TLS"),
        (bytes.fromhex("0000006a00000066") + b'{"code":34,"flag":0}', "it speaks the remoting protocol"),
        (bytes.fromhex("0000000100000000") + bytes(7) + b"\x02", "auto-switch slave"),
        (b"\xff" * 8, ""),
    ],
)
def test_who_is_no_slave_is_hung_up_on_with_the_reason(
    data: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(broker: mqtool.Broker, client: WireClient) -> None:
        stranger = await FakeSlave.connect(broker)
        stranger.writer.write(data)
        assert await stranger.is_ended()
        assert not stranger.data
        good = await FakeSlave.connect(broker)
        good.report(0)
        await client.send(b"x")
        while not (await good.frame()).body:
            pass
        for one in (stranger, good):
            one.writer.close()

    with caplog.at_level(logging.WARNING):
        on_broker(test)
    assert said in caplog.text


def test_a_slave_may_come_from_allowed_networks_only(caplog: pytest.LogCaptureFixture) -> None:
    async def test(broker: mqtool.Broker, client: WireClient) -> None:
        stranger = await FakeSlave.connect(broker)
        stranger.report(0)
        assert await stranger.is_ended()
        assert (await status_of(client))["haConnectionInfo"] == []
        stranger.writer.close()

    with caplog.at_level(logging.WARNING):
        on_broker(test, haAllow="10.0.0.0/8, 192.168.1.0/24")
    assert "allowed from 10.0.0.0/8, 192.168.1.0/24 only (--ha-allow)" in caplog.text
    assert [str(one) for one in allowed_networks("")] == ["127.0.0.0/8", "::1/128"]
    with pytest.raises(UsageError, match=r"give networks like 10\.0\.0\.0/8"):
        allowed_networks("10.0.0.1/8")
    with pytest.raises(UsageError, match=r"'everybody' does not appear"):
        on_broker(test, haAllow="everybody")


def test_a_slave_that_stops_reading_costs_no_more_than_a_buffer_and_nobody_else_waits(tmp_path: Path) -> None:
    async def test(broker: mqtool.Broker, client: WireClient) -> None:
        for number in range(16):
            await client.send(bytes([number]) * (1 << 20))
        end = await end_of(client)
        deaf, good = await FakeSlave.connect(broker), await FakeSlave.connect(broker)
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        deaf.report(1)
        good.report(1)
        await good.read_to(end)
        assert good.data == log_of(broker)[1:end]
        of_deaf = [one for one in (await status_of(client))["haConnectionInfo"] if one["slaveAckOffset"] == 1]
        assert min(one["transferFromWhere"] for one in of_deaf) < end // 2
        deaf.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await deaf.read_to(end)
        assert deaf.data == good.data
        for one in (deaf, good):
            one.writer.close()

    on_broker(test, tmp_path / "store", mappedFileSizeCommitLog=1 << 23, haSendHeartbeatInterval=60_000)


def test_how_far_slaves_are_is_told() -> None:
    async def test(broker: mqtool.Broker, client: WireClient) -> None:
        assert (await status_of(client))["haConnectionInfo"] == []
        slave = await FakeSlave.connect(broker)
        slave.report(0)
        await client.send(b"x")
        end = await end_of(client)
        await slave.read_to(end)
        slave.report(end - 3)
        while True:
            status = await status_of(client)
            [one] = status["haConnectionInfo"]
            if one["slaveAckOffset"]:
                break
        host, port = slave.writer.get_extra_info("sockname")
        assert one["addr"] == f"{host}:{port}"
        assert (one["slaveAckOffset"], one["diff"], one["inSync"], one["transferFromWhere"]) == (end - 3, 3, True, end)
        assert (status["master"], status["inSyncSlaveNums"], status["masterCommitLogMaxOffset"]) == (True, 1, end)
        slave.writer.close()
        while (await status_of(client))["haConnectionInfo"]:
            pass

    on_broker(test)


def test_slaves_learn_from_name_servers_where_they_copy_from() -> None:
    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker() as names:
            settings = {"brokerName": "b", "brokerIP2": "127.0.0.2"}
            async with mqtool.Broker(name_servers=[names.name_server_address], settings=settings) as broker:
                port = int(broker.address.split(":")[1])
                for address, name in ((names.name_server_address, "b"), (names.name_server_address, "broker-a")):
                    client = WireClient(address)
                    fields = {"brokerName": name, "brokerAddr": "127.0.0.9:1", "clusterName": "DefaultCluster"}
                    body = (
                        b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":1},'
                        b'"topicConfigTable":{}},"filterServerList":[]}'
                    )
                    told = await client.done(
                        RequestCode.REGISTER_BROKER, body, **fields, haServerAddr="127.0.0.9:2", brokerId=7
                    )
                    if name == "b":
                        assert told["masterAddr"] == broker.address
                        assert told["haServerAddr"] == f"127.0.0.2:{port + 1}"  # brokerIP2
                    else:  # of the same process
                        own = int(names.address.split(":")[1])
                        assert told["masterAddr"] == names.address
                        assert told["haServerAddr"] == f"127.0.0.1:{own + 1}"
                    await client.close()

    asyncio.run(test())


def test_what_slaves_ask_of_the_fast_port_is_answered_there() -> None:
    async def test(broker: mqtool.Broker, client: WireClient) -> None:
        await client.send(b"x")
        host, port = broker.address.split(":")
        fast = WireClient(f"{host}:{int(port) - 2}")
        for code in (
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_ALL_DELAY_OFFSET,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
            RequestCode.GET_TIMER_METRICS,
        ):
            answer = await fast.ask(code)
            assert (answer.code, parse_body(answer.body)) == (0, parse_body((await client.ask(code)).body))
        page = (await fast.ask(RequestCode.GET_TIMER_CHECK_POINT)).body
        assert len(page) == 56  # as a broker of 5.3.3 answers it
        await fast.close()

    on_broker(test)


@pytest.mark.parametrize("distance", [1, -2])
def test_a_neighbouring_port_that_is_taken_is_a_warning_and_an_error_where_slaves_are_wanted(
    distance: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def start(port: int, **settings: Any) -> None:
        async with mqtool.Broker(port=port, settings=settings):
            pass

    port = free_port()
    with socket.create_server(("127.0.0.1", port + distance)), caplog.at_level(logging.WARNING):
        asyncio.run(start(port))
        [line] = caplog.messages
        assert f"cannot listen on 127.0.0.1:{port + distance}" in line
        name = "haListenPort" if distance == 1 else "listenPort - 2"
        with pytest.raises(UnavailableError, match=rf"{name}.*cannot listen on 127\.0\.0\.1:{port + distance}"):
            asyncio.run(start(port, brokerRole="ASYNC_MASTER"))


def test_a_port_that_is_chosen_has_free_neighbours_and_a_port_for_slaves_may_be_anywhere() -> None:
    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker(settings={"brokerRole": "SYNC_MASTER"}) as first:
            host, port = first.address.split(":")
            for distance in (1, -2):
                _, writer = await asyncio.open_connection(host, int(port) + distance)
                writer.close()
            ha_port = free_port()
            async with mqtool.Broker(settings={"haListenPort": ha_port}):
                _, writer = await asyncio.open_connection(host, ha_port)
                writer.close()

    asyncio.run(test())


def test_a_master_says_at_its_start_what_it_does_less_than_it_seems_to(caplog: pytest.LogCaptureFixture) -> None:
    async def start(**settings: Any) -> None:
        caplog.clear()
        async with mqtool.Broker(settings=settings):
            pass

    with caplog.at_level(logging.WARNING):
        asyncio.run(start(brokerRole="SYNC_MASTER"))
        assert "inSyncReplicas=1, the default, does not wait for slaves" in caplog.text
        asyncio.run(start(brokerRole="SYNC_MASTER", haDialect=4))
        assert caplog.messages == []
        asyncio.run(start(inSyncReplicas=2, brokerId=3))
        assert "does not wait for slaves" in caplog.text
        assert "brokerId=3 has no effect" in caplog.text


def test_a_broker_for_other_machines_serves_slaves_of_this_one_only_until_told_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def listens(address: str, port: int) -> bool:
        try:
            _, writer = await asyncio.open_connection(address, port)
        except OSError:
            return False
        writer.close()
        return True

    async def test() -> None:
        for allowed, is_open in (("", False), ("127.0.0.0/8", False), ("127.0.0.0/8,10.0.0.0/8", True)):
            settings = {"brokerRole": "ASYNC_MASTER", "haAllow": allowed}
            async with asyncio.timeout(60), mqtool.Broker(host="0.0.0.0", settings=settings) as broker:
                port = int(broker.address.split(":")[1])
                assert await listens("127.0.0.2", port)
                assert await listens("127.0.0.1", port + 1)
                assert await listens("127.0.0.2", port + 1) is is_open

    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
    assert caplog.text.count("use --ha-allow CIDR to allow others") == 2
