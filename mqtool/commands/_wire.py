"""Options of commands that talk to brokers: which, as whom, over TLS or not; and of those that can use a store."""

import dataclasses
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqtool.commands._completion import PROFILE_NAME
from mqtool.commands._options import open_store, store_names
from mqtool.errors import UsageError

if TYPE_CHECKING:
    from mqtool.commands._output import Output
    from mqtool.commands._profiles import Profile
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.wire import Wire
    from mqtool.engine.store.reader import StoreReader

T = TypeVar("T")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

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
            output.remark(f"the brokers of {where} are asked, as {NAMESRV_ADDR} says; -s DIR looks at a store")

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
        raise UsageError(f"{option} names no name server")
    return tuple(addresses)


def _brokers(namesrv: str, connection: "Profile", option: str = "-n") -> Brokers:
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
    connection = _of_profile(profile, Profile("", *keys, bool(params.get("tls")), params.get("authorities")))
    named = params.get("namesrv") or params.get("from_") or connection.namesrv
    meant = named or (None if params.get("store") else environment.get(NAMESRV_ADDR))
    return _brokers(meant, connection) if meant else None


def wire_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-n`` and how to connect; the command receives ``Brokers`` as ``brokers``."""

    @_namesrv("Name servers, with ; between. Default: NAMESRV_ADDR.")
    @_connection
    @functools.wraps(command)
    def wrapped(*args: Any, namesrv: str | None, connection: "Profile", **kwargs: Any) -> Any:
        meant = namesrv or connection.namesrv or os.environ.get(NAMESRV_ADDR)
        if not meant:
            raise UsageError(f"give the name servers: -n HOST:PORT, --profile NAME, or {NAMESRV_ADDR}")
        return command(*args, brokers=_brokers(meant, connection), **kwargs)

    return wrapped


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a broker and of a store; the command receives what is meant as ``source``.

    That is ``Brokers`` when ``-n`` is given, or when ``NAMESRV_ADDR`` is set and no ``-s``; else a ``StoreReader``.
    """

    @either_options
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        brokers: Brokers | None,
        is_explicit: bool,  # noqa: ARG001
        store: Path | None,
        config: Path | None,
        settings: tuple[str, ...],
        is_live: bool = False,
        **kwargs: Any,
    ) -> Any:
        if brokers and is_live:
            raise UsageError("--live is of a store, and brokers are meant: give -s, or leave it out")
        unpacks = bool(kwargs.get("scan"))  # what walks over the log takes compressed copies
        source: Brokers | StoreReader = brokers or open_store(store, config, settings, is_live, unpacks)
        return command(*args, source=source, **kwargs)

    return wrapped


def either_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of both; the command receives those of a store, and ``brokers``, None where a store is meant.

    ``is_explicit`` tells it whether an option says so, and not the environment alone.
    """

    @_namesrv("Name servers, with ; between: ask the brokers there. Default: NAMESRV_ADDR, if no -s is given.")
    @_connection
    @store_names
    @functools.wraps(command)
    def wrapped(*args: Any, namesrv: str | None, connection: "Profile", store: Path | None, **kwargs: Any) -> Any:
        named = namesrv or connection.namesrv
        if named and store:
            raise UsageError(f"{'-n' if namesrv else '--profile'} means brokers and -s a store: give one")
        meant = named or (None if store else os.environ.get(NAMESRV_ADDR))
        brokers = _brokers(meant, connection) if meant else None
        if brokers and not named:
            brokers = dataclasses.replace(brokers, is_of_environment=True)
        return command(*args, brokers=brokers, is_explicit=bool(named or store), store=store, **kwargs)

    return wrapped


def _namesrv(text: str) -> Decorator:
    return click.option("-n", "--namesrv", metavar="HOST:PORT", help=text)


def _connection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add keys, TLS and profiles; the command receives a ``Profile`` as ``connection``, of what all of them say."""

    @click.option("--profile", type=PROFILE_NAME, metavar="NAME", help="A connection of ~/.config/mqtool/config.toml.")
    @_credentials
    @functools.wraps(command)
    def wrapped(*args: Any, profile: str | None, credentials: "Profile", **kwargs: Any) -> Any:
        return command(*args, connection=_of_profile(profile, credentials), **kwargs)

    return wrapped


def pair_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--from`` and ``--to``, or a profile for either; the command receives ``source`` and ``target``.

    Keys and TLS that are typed are for both.
    """

    @click.option("--from", "from_", metavar="HOST:PORT", help="Name servers of the cluster that messages come from.")
    @click.option("--to", metavar="HOST:PORT", help="Name servers of the cluster that they go to.")
    @click.option(
        "--from-profile",
        type=PROFILE_NAME,
        metavar="NAME",
        help="The first, by a connection of ~/.config/mqtool/config.toml.",
    )
    @click.option("--to-profile", type=PROFILE_NAME, metavar="NAME", help="The second, likewise.")
    @_credentials
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        from_: str | None,
        to: str | None,
        from_profile: str | None,
        to_profile: str | None,
        credentials: "Profile",
        **kwargs: Any,
    ) -> Any:
        source = _one_of_pair("--from", from_, from_profile, credentials)
        target = _one_of_pair("--to", to, to_profile, credentials)
        return command(*args, source=source, target=target, **kwargs)

    return wrapped


def _one_of_pair(option: str, typed: str | None, profile: str | None, credentials: "Profile") -> Brokers:
    connection = _of_profile(profile, credentials)
    if not (typed or connection.namesrv):
        raise UsageError(f"give the name servers of both clusters: {option} HOST:PORT, or {option}-profile NAME")
    return _brokers(typed or connection.namesrv, connection, option)


def _credentials(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add keys and TLS; the command receives a ``Profile`` without name servers as ``credentials``."""

    @click.option(
        "--access-key", envvar="MQTOOL_ACCESS_KEY", metavar="TEXT", help="Sign requests. Default: MQTOOL_ACCESS_KEY."
    )
    @click.option(
        "--secret-key", envvar="MQTOOL_SECRET_KEY", metavar="TEXT", help="Its secret. Default: MQTOOL_SECRET_KEY."
    )
    @click.option("--tls", is_flag=True, help="Connect with TLS.")
    @click.option(
        "--ca",
        "authorities",
        type=click.Path(path_type=Path, readable=False),
        metavar="FILE",
        help="Certificates to trust, with TLS. Default: those of the system.",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        access_key: str | None,
        secret_key: str | None,
        tls: bool,
        authorities: Path | None,
        **kwargs: Any,
    ) -> Any:
        from mqtool.commands._profiles import Profile

        return command(*args, credentials=Profile("", access_key, secret_key, tls, authorities), **kwargs)

    return wrapped


def _of_profile(name: str | None, credentials: "Profile") -> "Profile":
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
