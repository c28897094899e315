"""Options of commands that talk to brokers: which, as whom, over TLS or not; and of those that can use a store."""

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._brokers import NAMESRV_ADDR, Brokers, brokers_at, connection_of
from mqtool.commands._completion import PROFILE_NAME
from mqtool.commands._options import open_store, store_names
from mqtool.errors import UsageError

if TYPE_CHECKING:
    from mqtool.commands._profiles import Profile
    from mqtool.engine.store.reader import StoreReader

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def wire_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-n`` and how to connect; the command receives ``Brokers`` as ``brokers``."""

    @_namesrv("Name servers, separated by semicolons. Default: NAMESRV_ADDR.")
    @_connection
    @functools.wraps(command)
    def wrapped(*args: Any, namesrv: str | None, connection: "Profile", **kwargs: Any) -> Any:
        meant = namesrv or connection.namesrv or os.environ.get(NAMESRV_ADDR)
        if not meant:
            raise UsageError(f"give the name servers: -n HOST:PORT, --profile NAME, or {NAMESRV_ADDR}")
        return command(*args, brokers=brokers_at(meant, connection), **kwargs)

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
            raise UsageError("--live applies to a store, not to brokers: give -s, or leave it out")
        unpacks = bool(kwargs.get("scan"))  # what walks over the log takes compressed copies
        source: Brokers | StoreReader = brokers or open_store(store, config, settings, is_live, unpacks)
        return command(*args, source=source, **kwargs)

    return wrapped


def either_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of both; the command receives those of a store, and ``brokers``, None where a store is meant.

    ``is_explicit`` tells it whether an option says so, and not the environment alone.
    """

    @_namesrv("Name servers, separated by semicolons: query their brokers. Default: NAMESRV_ADDR, if no -s is given.")
    @_connection
    @store_names
    @functools.wraps(command)
    def wrapped(*args: Any, namesrv: str | None, connection: "Profile", store: Path | None, **kwargs: Any) -> Any:
        named = namesrv or connection.namesrv
        if named and store:
            raise UsageError(f"{'-n' if namesrv else '--profile'} selects brokers and -s a store: give only one")
        meant = named or (None if store else os.environ.get(NAMESRV_ADDR))
        brokers = brokers_at(meant, connection) if meant else None
        if brokers and not named:
            brokers = dataclasses.replace(brokers, is_of_environment=True)
        return command(*args, brokers=brokers, is_explicit=bool(named or store), store=store, **kwargs)

    return wrapped


def _namesrv(text: str) -> Decorator:
    return click.option("-n", "--namesrv", metavar="HOST:PORT", help=text)


def _connection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add keys, TLS and profiles; the command receives a ``Profile`` as ``connection``, of what all of them say."""

    @click.option(
        "--profile", type=PROFILE_NAME, metavar="NAME", help="A connection from ~/.config/mqtool/config.toml."
    )
    @_credentials
    @functools.wraps(command)
    def wrapped(*args: Any, profile: str | None, credentials: "Profile", **kwargs: Any) -> Any:
        return command(*args, connection=connection_of(profile, credentials), **kwargs)

    return wrapped


def pair_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--from`` and ``--to``, or a profile for either; the command receives ``source`` and ``target``.

    Keys and TLS that are typed are for both.
    """

    @click.option("--from", "from_", metavar="HOST:PORT", help="Name servers of the source cluster.")
    @click.option("--to", metavar="HOST:PORT", help="Name servers of the target cluster.")
    @click.option(
        "--from-profile",
        type=PROFILE_NAME,
        metavar="NAME",
        help="The source cluster, as a connection from ~/.config/mqtool/config.toml.",
    )
    @click.option("--to-profile", type=PROFILE_NAME, metavar="NAME", help="The target cluster, likewise.")
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
    connection = connection_of(profile, credentials)
    if not (typed or connection.namesrv):
        raise UsageError(f"give the name servers of both clusters: {option} HOST:PORT, or {option}-profile NAME")
    return brokers_at(typed or connection.namesrv, connection, option)


def _credentials(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add keys and TLS; the command receives a ``Profile`` without name servers as ``credentials``."""

    @click.option(
        "--access-key",
        envvar="MQTOOL_ACCESS_KEY",
        metavar="TEXT",
        help="Access key to sign requests with. Default: MQTOOL_ACCESS_KEY.",
    )
    @click.option(
        "--secret-key", envvar="MQTOOL_SECRET_KEY", metavar="TEXT", help="Its secret key. Default: MQTOOL_SECRET_KEY."
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
