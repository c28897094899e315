"""What brokers of RocketMQ that ask who somebody is do to commands on messages: told as with ours."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import mqtool
from mqtool.engine.cluster import Cluster
from mqtool.engine.server_configs import NameServerConfig
from mqtool.errors import MqtoolError, Status
from tests.commands.test_shell_refusals import (
    ACL,
    ADMINISTRATOR,
    EVERY,
    asked,
    commands,
    fill,
    is_one_sentence,
    meant,
    process,
)
from tests.differential.conftest import jars
from tests.differential.java_broker import POM, broker_process, in_a_thread
from tests.differential.java_store import VERSIONS
from tests.differential.test_python_clients import until
from tests.ports import free_port

JAVA = [pytest.param(one, marks=[pytest.mark.java, pytest.mark.xdist_group(f"python-{one}")]) for one in VERSIONS]
_AUTH = "org.apache.rocketmq.auth"
_OF_FOUR = "aclEnable=true\n"
_OF_FIVE = f"""authenticationEnabled=true
authenticationProvider={_AUTH}.authentication.provider.DefaultAuthenticationProvider
authenticationMetadataProvider={_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider
initAuthenticationUser={{"username":"{ADMINISTRATOR["access_key"]}","password":"{ADMINISTRATOR["secret_key"]}"}}
innerClientAuthenticationCredentials={{"accessKey":"{ADMINISTRATOR["access_key"]}",\
"secretKey":"{ADMINISTRATOR["secret_key"]}"}}
authorizationEnabled=true
authorizationProvider={_AUTH}.authorization.provider.DefaultAuthorizationProvider
authorizationMetadataProvider={_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider
"""


@contextlib.asynccontextmanager
async def _guarded(version: str, folder: Path) -> AsyncIterator[str]:
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "plain_acl.yml").write_text(ACL)
    settings = _OF_FOUR if version.startswith("4") else _OF_FIVE
    async with (
        Cluster(NameServerConfig()) as names,
        broker_process(version, folder, names.name_server_address, free_port(), settings=settings),
    ):
        yield names.name_server_address


@pytest.fixture(scope="module", params=JAVA)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a name server whose broker asks who somebody is."""
    jars(request.param, POM)

    def is_filled(address: str) -> bool:
        with contextlib.suppress(MqtoolError):  # a broker that has just started refuses for a moment
            fill(address)
            return True
        return False

    with in_a_thread(_guarded(request.param, tmp_path_factory.mktemp("java") / "broker")) as address:
        until(lambda: is_filled(address))
        yield address


@pytest.fixture(scope="module", name="other")
def other_cluster() -> Iterator[str]:
    """The address of the name server of a cluster of ours, to mirror to."""
    with mqtool.Broker() as running:
        yield running.name_server_address


def test_who_is_not_let_in_is_told_with_77(
    guarded: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"access_key": ADMINISTRATOR["access_key"], "secret_key": "wrongwrong"}
    for keys in ({}, wrong):
        for key, value in keys.items():
            monkeypatch.setenv(f"MQTOOL_{key.upper()}", value)
        for name in EVERY:
            ran = asked(commands(tmp_path)[name], guarded, other)

            assert (ran.status, ran.output) == (Status.NOT_PERMITTED, ""), (name, ran)
            assert is_one_sentence(ran)
            assert {one.name for one in tmp_path.iterdir()} <= {"state"}


def test_whoever_has_the_keys_is_answered_and_told_of_an_output_that_takes_nothing(
    guarded: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ADMINISTRATOR.items():
        monkeypatch.setenv(f"MQTOOL_{name.upper()}", value)
    for name in EVERY:
        ran = asked(commands(tmp_path)[name], guarded, other)
        assert ran.status == (Status.NO_INPUT if name == "get id" else Status.OK), (name, ran)
    for name in ("find", "dlq list", "trace", "mirror"):
        with Path("/dev/full").open("w") as full:
            ran = process(meant(commands(tmp_path)[name], guarded, other), full)
        assert ran.status == Status.IO_ERROR, (name, ran)
        assert is_one_sentence(ran)
