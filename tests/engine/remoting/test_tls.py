"""TLS of a server: told by the first byte, in each mode, with the ssl module of Python as the other side."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.remoting.server import RemotingServer
from mqtool.engine.streams.tls import TlsMode, TlsSettings
from mqtool.errors import NotFoundError, UnavailableError, UsageError
from mqtool.formats.remoting import RemotingCommand, build_frame
from tests.engine.remoting.test_server import ECHO, LARGE, Raw, Rules, on_a_loop, raw
from tests.frames import parse_frame


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a certificate for 127.0.0.1 and its key."""
    return with_certificate(tmp_path_factory.mktemp("tls"))


def with_certificate(folder: Path) -> Path:
    """Have openssl make a certificate and its key in a folder, and return that."""
    if shutil.which("openssl") is None:
        pytest.skip("TLS IS NOT TESTED: there is no openssl on this machine to make a certificate")
    command = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2"
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    subject = ["-subj", "/CN=mqtool", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *files, *subject], cwd=folder, check=True, capture_output=True)
    return folder


def settings(folder: Path, **more: str) -> dict[str, str]:
    names = {"tls.server.certPath": str(folder / "cert.pem"), "tls.server.keyPath": str(folder / "key.pem")}
    return names | {f"tls.server.{name}": value for name, value in more.items()}


@contextlib.asynccontextmanager
async def served(tls: TlsSettings) -> AsyncIterator[str]:
    server = RemotingServer(Rules(), tls)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop()


def client_of(address: str, folder: Path | None) -> RemotingClient:
    return RemotingClient([address], ssl.create_default_context(cafile=str(folder / "cert.pem")) if folder else None)


@pytest.mark.parametrize(
    ("mode", "plain", "encrypted"), [("disabled", True, False), ("permissive", True, True), ("enforcing", False, True)]
)
@on_a_loop
async def test_each_mode_takes_its_connections(certificate: Path, mode: str, plain: bool, encrypted: bool) -> None:
    async with served(TlsSettings.of(settings(certificate, mode=mode))) as address:
        for folder, welcome in ((None, plain), (certificate, encrypted)):
            client = client_of(address, folder)
            if welcome:
                assert (await client.invoke(RemotingCommand(ECHO, body=b"x" * 100_000))).body == b"x" * 100_000
                assert (await client.invoke(RemotingCommand(LARGE))).body == bytes(64 << 16)
                await client.close()
            else:
                with pytest.raises(UnavailableError):
                    await client.invoke(RemotingCommand(ECHO))


@on_a_loop
async def test_a_handshake_one_byte_at_a_time_is_taken(certificate: Path) -> None:
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    from_wire, to_wire = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(from_wire, to_wire, server_hostname="127.0.0.1")

    async def exchange(client: Raw) -> None:
        for byte in to_wire.read():
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        from_wire.write(await client.reader.read(1 << 16))

    async with served(TlsSettings.of(settings(certificate))) as address, raw(address) as client:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await exchange(client)
        frame = build_frame(RemotingCommand(ECHO, 0, 9, body=b"secret"))
        tls.write(frame)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4]):
            await exchange(client)
            with contextlib.suppress(ssl.SSLWantReadError):
                answer += tls.read(1 << 16)

        assert parse_frame(answer).body == b"secret"


@on_a_loop
async def test_garbage_after_the_first_byte_of_tls_ends_the_connection_only(certificate: Path) -> None:
    async with served(TlsSettings.of(settings(certificate))) as address:
        async with raw(address) as client:
            client.writer.write(b"\x16\x03\x01\x00\x05hello" + bytes(200))
            await client.reader.read()
        client_after = client_of(address, certificate)

        assert (await client_after.invoke(RemotingCommand(ECHO))).code == 0
        await client_after.close()


@on_a_loop
async def test_who_must_show_a_certificate_and_has_none_is_refused(certificate: Path) -> None:
    wanted = settings(certificate, **{"need.client.auth": "require", "trustCertPath": str(certificate / "cert.pem")})
    async with served(TlsSettings.of(wanted)) as address:
        with pytest.raises(UnavailableError):
            await client_of(address, certificate).invoke(RemotingCommand(ECHO))

        context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
        context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        trusted = RemotingClient([address], context)
        assert (await trusted.invoke(RemotingCommand(ECHO))).code == 0
        await trusted.close()


def test_without_a_certificate_tls_is_off() -> None:
    assert TlsSettings.of({}) == TlsSettings(TlsMode.DISABLED, None)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"tls.server.mode": "sometimes"}, UsageError),
        ({"tls.server.mode": "enforcing"}, UsageError),
        ({"tls.server.certPath": "/no/cert.pem"}, UsageError),
        ({"tls.server.certPath": "/no/cert.pem", "tls.server.keyPath": "/no/key.pem"}, NotFoundError),
        ({"tls.server.certPath": __file__, "tls.server.keyPath": __file__}, UsageError),
    ],
)
def test_settings_that_make_no_sense_are_said(given: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        TlsSettings.of(given)


@on_a_loop
async def test_a_client_that_is_closed_twice_can_still_be_aborted(certificate: Path) -> None:
    async with served(TlsSettings.of(settings(certificate, mode="enforcing"))) as address:
        client = client_of(address, certificate)
        await client.invoke(RemotingCommand(ECHO))
        closing = [asyncio.ensure_future(client.close()) for _ in range(2)]
        await asyncio.sleep(0)

        client.abort()

        await asyncio.gather(*closing)
