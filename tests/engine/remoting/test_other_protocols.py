"""Clients of other protocols that come to a port of ours by mistake: closed, with a line that says what came."""

import asyncio
import contextlib
import ssl
import struct
from pathlib import Path

import pytest

import mqtool
from mqtool.engine.remoting.client import RemotingClient
from mqtool.formats.codes import RequestCode
from mqtool.formats.remoting import RemotingCommand
from tests.engine.remoting.test_tls import settings, with_certificate

# What a gRPC client sends first: the preface of HTTP/2 (RFC 9113, 3.4) and empty settings.
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
# CommandConnect of Pulsar: client_version "x", protocol_version 19.
_CONNECT = bytes.fromhex("0802") + bytes.fromhex("12050a01782013")
PULSAR = struct.pack(">II", len(_CONNECT) + 4, len(_CONNECT)) + _CONNECT
CLIENT_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(32)


@pytest.mark.parametrize("piece", [1, 1000])
@pytest.mark.parametrize(
    ("first", "said"),
    [
        (HTTP2, "it speaks HTTP/2, like gRPC clients"),
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", "it speaks the PROXY protocol"),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12), "it speaks the PROXY protocol"),
        (PULSAR, "it speaks the Pulsar protocol"),
        (b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n", "it speaks HTTP"),
        (b"DELETE /topics HTTP/1.1\r\n\r\n", "it speaks HTTP"),
        (CLIENT_HELLO, "it speaks TLS, which is not enabled here"),
    ],
)
def test_who_speaks_another_protocol_is_closed_and_told_of_once(
    first: bytes, said: str, piece: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker() as broker:
            for address in (broker.address, broker.address, broker.name_server_address):
                host, _, port = address.rpartition(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.get_extra_info("socket").setsockopt(6, 1, 1)  # TCP_NODELAY
                with contextlib.suppress(ConnectionError):  # closed while there was more to come
                    for at in range(0, len(first), piece):
                        writer.write(first[at : at + piece])
                        await writer.drain()
                    assert await reader.read() == b""
                writer.close()
            client = RemotingClient([broker.address])
            assert (await client.invoke(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))).code == 0
            await client.close()

    asyncio.run(test())
    lines = [one.getMessage() for one in caplog.records if "was refused" in one.getMessage()]
    assert len(lines) == 2  # a line of the broker, and one of the name server
    assert all(said in one for one in lines)


@pytest.mark.parametrize(
    ("mode", "is_encrypted", "said"),
    [
        ("permissive", True, "it speaks HTTP/2, like gRPC clients"),
        ("permissive", False, "it speaks HTTP/2, like gRPC clients"),
        ("enforcing", True, "it speaks HTTP/2, like gRPC clients"),
        ("enforcing", False, "it speaks no TLS, which is required here"),
    ],
)
def test_who_speaks_another_protocol_where_tls_is_on_is_told_of_too(
    mode: str, is_encrypted: bool, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_certificate(tmp_path)
    ours = ssl.create_default_context(cafile=str(folder / "cert.pem")) if is_encrypted else None

    async def test() -> None:
        async with asyncio.timeout(60), mqtool.Broker(settings=settings(folder, mode=mode)) as broker:
            for address in (broker.address, broker.name_server_address):
                host, _, port = address.rpartition(":")
                reader, writer = await asyncio.open_connection(host, int(port), ssl=ours)
                with contextlib.suppress(ConnectionError):
                    writer.write(HTTP2)
                    assert await reader.read() == b""
                writer.close()

    asyncio.run(test())
    lines = [one.getMessage() for one in caplog.records if "was refused" in one.getMessage()]
    assert len(lines) == 2
    assert all(said in one for one in lines)
