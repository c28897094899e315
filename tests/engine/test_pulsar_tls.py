"""The port for Pulsar clients with TLS: the official Python client, connections by hand, and where lookups lead."""

import json
import re
import socket
import ssl
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import UnavailableError, UsageError
from tests.commands.test_serve import started
from tests.engine.remoting.test_tls import settings, with_certificate
from tests.engine.test_pulsar_server import EARLIEST, WAIT_MS, token_of, with_accounts
from tests.ports import free_port
from tests.pulsar_client import PulsarWireClient

pulsar = pytest.importorskip("pulsar")
Given = dict[str, str | int | bool]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a certificate for 127.0.0.1 and its key."""
    return with_certificate(tmp_path_factory.mktemp("tls"))


def with_tls(folder: Path, **more: str | int) -> Given:
    """Return the settings of a broker with a port for TLS."""
    return {**settings(folder), "pulsarTlsPort": 0, **more}


def client_of(url: str, folder: Path, **more: Any) -> Any:
    return pulsar.Client(
        url,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        io_threads=1,
        message_listener_threads=1,
        tls_trust_certs_file_path=str(folder / "cert.pem"),
        tls_validate_hostname=True,
        **more,
    )


def sent_and_received(client: Any, body: bytes) -> bytes:
    """Return what a consumer of a client receives after its producer has sent a body."""
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    client.create_producer("t").send(body)
    message = consumer.receive(WAIT_MS)
    consumer.acknowledge(message)
    client.close()
    data: bytes = message.data()
    return data


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    return host, int(port)


def page_of(broker: mqtool.Broker) -> Any:
    """Return what a lookup over HTTP is answered."""
    with urllib.request.urlopen(f"{broker.pulsar_admin_url}/lookup/v2/topic/persistent/public/default/t") as response:
        return json.load(response)


@pytest.mark.parametrize("has_accounts", [False, True])
def test_the_official_client_produces_and_consumes_with_tls(
    has_accounts: bool, certificate: Path, tmp_path: Path
) -> None:
    given = with_tls(certificate) | (with_accounts(tmp_path) if has_accounts else {})
    authentication = pulsar.AuthenticationToken(token_of("everyone")) if has_accounts else None

    with mqtool.Broker(tmp_path / "store", pulsar=True, settings=given) as broker:
        client = client_of(broker.pulsar_tls_url, certificate, authentication=authentication)
        received = sent_and_received(client, b"secret")

    assert received == b"secret"
    assert [one for one in verify_store(StoreReader(tmp_path / "store")) if one.severity.name != "NOTE"] == []


def test_nobody_comes_in_with_tls_but_without_the_token_of_an_account(certificate: Path, tmp_path: Path) -> None:
    given = with_tls(certificate) | with_accounts(tmp_path)

    with mqtool.Broker(tmp_path / "store", pulsar=True, settings=given) as broker:
        client = client_of(broker.pulsar_tls_url, certificate, operation_timeout_seconds=1)  # for so long it retries
        with pytest.raises((pulsar.AuthenticationError, pulsar.ConnectError, pulsar.Timeout)):
            client.create_producer("t")
        client.close()


def test_who_comes_to_that_port_without_tls_is_refused_and_told_of_once(
    certificate: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mqtool.Broker(tmp_path / "store", pulsar=True, settings=with_tls(certificate)) as broker:
        for _ in range(2):
            with (
                PulsarWireClient(*address_of(broker.pulsar_tls_url)) as client,
                pytest.raises((EOFError, ConnectionError)),  # closed
            ):
                client.next("connected")
        with PulsarWireClient(*address_of(broker.pulsar_url)) as client:
            client.next("connected")

    [line] = [one.getMessage() for one in caplog.records if "was refused" in one.getMessage()]
    assert "it speaks no TLS, which is required here" in line


def test_a_client_is_asked_for_a_certificate_where_one_is_required(certificate: Path, tmp_path: Path) -> None:
    needs = {"tls.server.need.client.auth": "require", "tls.server.trustCertPath": str(certificate / "cert.pem")}
    own = {"tls_private_key_file_path": "key.pem", "tls_certificate_file_path": "cert.pem"}

    with mqtool.Broker(tmp_path / "store", pulsar=True, settings=with_tls(certificate, **needs)) as broker:
        stranger = client_of(broker.pulsar_tls_url, certificate, operation_timeout_seconds=1)
        with pytest.raises((pulsar.ConnectError, pulsar.Timeout)):
            stranger.create_producer("t")
        stranger.close()
        paths = {name: str(certificate / file) for name, file in own.items()}
        received = sent_and_received(client_of(broker.pulsar_tls_url, certificate, **paths), b"trusted")

    assert received == b"trusted"


def test_lookups_lead_clients_with_tls_to_the_port_for_tls(certificate: Path, tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    looked_up = []

    with mqtool.Broker(tmp_path / "store", pulsar=True, settings=with_tls(certificate)) as broker:
        urls = broker.pulsar_url, broker.pulsar_tls_url
        # By that for all as well, which takes TLS because there is a certificate.
        for url, tls in ((urls[0], None), (urls[0], context), (urls[1], context)):
            with PulsarWireClient(*address_of(url), tls) as client:
                client.say("lookup", topic="t", request_id=1)
                answer = client.next("lookup_response").body
                looked_up.append((answer.brokerServiceUrl, answer.brokerServiceUrlTls))
        page = page_of(broker)

    assert looked_up == [urls, urls, urls]
    assert (page["brokerUrl"], page["nativeUrl"]) == (urls[0], urls[0])
    assert (page["brokerUrlTls"], page["brokerUrlSsl"]) == (urls[1], urls[1])


@pytest.mark.parametrize(
    ("ports", "plain", "tls"),
    [
        (("pulsarPort", "pulsarTlsPort"), "pulsar://192.0.2.7:16650", "pulsar+ssl://192.0.2.7:{own}"),
        (("pulsarTlsPort",), "", "pulsar+ssl://192.0.2.7:16650"),
        (("pulsarPort",), "pulsar://192.0.2.7:16650", "pulsar+ssl://192.0.2.7:16650"),
    ],
)
def test_an_address_that_is_announced_stands_for_the_port_without_tls_or_the_only_one(
    ports: tuple[str, ...], plain: str, tls: str, certificate: Path, tmp_path: Path
) -> None:
    given: Given = {**settings(certificate), **dict.fromkeys((*ports, "pulsarAdminPort"), 0)}
    given["pulsarAdvertised"] = "192.0.2.7:16650"

    with mqtool.Broker(tmp_path / "store", settings=given) as broker:
        page = page_of(broker)
        own = broker.pulsar_tls_url.rpartition(":")[2]

    assert (page["brokerUrl"], page["brokerUrlTls"]) == (plain, tls.format(own=own))


def test_with_a_port_for_tls_alone_there_is_none_without(certificate: Path, tmp_path: Path) -> None:
    with mqtool.Broker(tmp_path / "store", settings=with_tls(certificate)) as broker:
        doors = {*broker.door_addresses}
        received = sent_and_received(client_of(broker.pulsar_tls_url, certificate), b"secret")

    assert (doors, broker.pulsar_url, received) == ({"broker", "pulsar tls"}, "", b"secret")


def test_where_the_port_for_tls_is_taken_the_other_is_not_left_open(certificate: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first, port = free_port(), taken.getsockname()[1]
        given = with_tls(certificate, pulsarPort=first)
        with (
            pytest.raises(UnavailableError, match=f"cannot listen on 127.0.0.1:{port}"),
            mqtool.Broker(tmp_path / "store", settings={**given, "pulsarTlsPort": port}),
        ):
            pass
        with mqtool.Broker(tmp_path / "store", settings=given) as broker:
            assert broker.pulsar_url == f"pulsar://127.0.0.1:{first}"


@pytest.mark.parametrize("mode", [{}, {"tls.server.mode": "disabled"}])
def test_there_is_no_port_for_tls_without_a_certificate(
    mode: Mapping[str, str], certificate: Path, tmp_path: Path
) -> None:
    given = {**settings(certificate), **mode} if mode else {}

    with pytest.raises(UsageError, match="pulsarTlsPort needs a certificate"):
        mqtool.Broker(tmp_path / "store", settings={**given, "pulsarTlsPort": 0})


def test_serve_says_where_the_port_for_tls_is(certificate: Path, tmp_path: Path) -> None:
    ports = ("--port", "0", "--pulsar-port", "0", "--pulsar-tls-port", "0")
    certificates = [word for pair in settings(certificate).items() for word in ("--set", "=".join(pair))]

    with started("-s", tmp_path / "store", *ports, *certificates) as (process, line):
        ready = re.fullmatch(r"mqtool: ready: .*, pulsar 127\.0\.0\.1:\d+, pulsar tls (127\.0\.0\.1:\d+)\b.*\n", line)
        assert ready, (line, process.stderr and process.stderr.read())
        received = sent_and_received(client_of(f"pulsar+ssl://{ready[1]}", certificate), b"secret")
        process.terminate()
        assert process.communicate(timeout=60) == ("", "")

    assert received == b"secret"
