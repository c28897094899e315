"""Which brokers a command line means, as whom, and over TLS or not."""

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqtool.errors import UsageError

if TYPE_CHECKING:
    from mqtool.commands._output import Output
    from mqtool.commands._profiles import Profile
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.wire import Wire

T = TypeVar("T")

NAMESRV_ADDR = "NAMESRV_ADDR"
"""RocketMQ's own name for where name servers are."""


@dataclass(frozen=True)
class Brokers:
    """The brokers that the options mean: where to ask for them, and as whom."""

    name_servers: tuple[str, ...]
    access_key: str | None
    secret_key: str | None
    tls: bool
    authorities: Path | None
    is_of_environment: bool = False
    """Whether no option names them."""

    def remark(self, output: "Output") -> None:
        """Say so where the environment alone has a command look at brokers, not at a store."""
        if self.is_of_environment:
            where = ";".join(self.name_servers)
            output.remark(f"querying the brokers of {where}, from {NAMESRV_ADDR}; use -s DIR to read a store")

    def client_options(self) -> dict[str, Any]:
        """Return what ``ClientOptions`` say of how to connect."""
        return {
            "access_key": self.access_key or "",
            "secret_key": self.secret_key or "",
            "tls": self.tls,
            "authorities": self.authorities,
        }

    def run(self, work: "Callable[[Wire], Awaitable[T]]") -> T:
        """Connect, do the work and return what it comes to.

        Raises:
            UnavailableError: nobody answers.
            MqtoolError: what the work raises.
        """
        from mqtool.engine.cluster import run

        logging.basicConfig(format="mqtool: %(message)s", level=logging.WARNING)

        async def connected() -> T:
            async with self.wire() as wire:
                return await work(wire)

        return run(connected())

    def admin(self, work: "Callable[[AdminClient], Awaitable[T]]") -> T:
        """Have an admin client do work and return what it comes to; raises what ``run`` does."""

        async def connected(_: "Wire") -> T:
            async with self.admin_client() as client:
                return await work(client)

        return self.run(connected)

    def admin_client(self) -> "AdminClient":
        """Return a client for administrators, not started."""
        from mqtool.engine.client_runtime.admin_client import AdminClient
        from mqtool.engine.client_runtime.instance import ClientOptions

        return AdminClient(self.name_servers, ClientOptions(**self.client_options()))

    def wire(self) -> "Wire":
        """Return connections to them, none of which is made yet."""
        from mqtool.engine.client_runtime.wire import Wire
        from mqtool.engine.streams.tls import client_context
        from mqtool.formats.signing import Credentials

        context = client_context(self.authorities) if self.tls else None
        credentials = Credentials(self.access_key, self.secret_key) if self.access_key and self.secret_key else None
        return Wire(self.name_servers, credentials, context)

    def elsewhere(self, option: str, addresses: str) -> "Brokers":
        """Return the brokers that another option names, to connect to in the same way."""
        return dataclasses.replace(self, name_servers=_addresses(option, addresses))


def _addresses(option: str, text: str) -> tuple[str, ...]:
    from mqtool.engine.remoting.client import split_addresses

    addresses = split_addresses(text)
    if not addresses:
        raise UsageError(f"{option} does not name a name server")
    return tuple(addresses)


def brokers_at(namesrv: str, connection: "Profile", option: str = "-n") -> Brokers:
    """Return the brokers of name servers that an option names."""
    _, access_key, secret_key, tls, authorities = connection
    addresses = _addresses(option, namesrv)
    if bool(access_key) != bool(secret_key):
        raise UsageError("--access-key and --secret-key belong together: give both")
    return Brokers(addresses, access_key, secret_key, tls or authorities is not None, authorities)


def brokers_of(params: Mapping[str, Any], environment: Mapping[str, str]) -> Brokers | None:
    """Return the brokers that a command line means which is being typed, None where it names none, or a store."""
    from mqtool.commands._profiles import Profile

    keys = (params.get("access_key"), params.get("secret_key"))
    profile = params.get("profile") or params.get("from_profile")
    connection = connection_of(profile, Profile("", *keys, bool(params.get("tls")), params.get("authorities")))
    named = params.get("namesrv") or params.get("from_") or connection.namesrv
    meant = named or (None if params.get("store") else environment.get(NAMESRV_ADDR))
    return brokers_at(meant, connection) if meant else None


def connection_of(name: str | None, credentials: "Profile") -> "Profile":
    """Return a connection by its name, with what else the options say."""
    from mqtool.commands._profiles import Profile, read_profile

    if name is None:
        return credentials
    named = read_profile(name)
    return Profile(
        named.namesrv,
        # What is typed counts more than a profile, that more than the variables of every connection.
        credentials.access_key if _is_typed("access_key") else named.access_key,
        credentials.secret_key if _is_typed("secret_key") else named.secret_key,
        credentials.tls or named.tls,
        credentials.authorities or named.authorities,
    )


def _is_typed(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE
