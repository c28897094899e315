"""``mqtool serve``."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from mqtool.commands._options import NewPath, parse_settings
from mqtool.commands._streams import outlast_readers
from mqtool.errors import MissingExtraError, NotFoundError, Status, WriteError
from mqtool.late import load_late

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.server_configs import BrokerConfig, NameServerConfig


_FEW_CONNECTIONS = 1000
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(short_help="Run a name server and a broker.")
@click.option("--no-broker", is_flag=True, help="Run only a name server.")
@click.option("--no-namesrv", is_flag=True, help="Run only a broker, which registers with --namesrv.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--namesrv-port",
    type=click.IntRange(0, 65535),
    help="Port of the name server; 0 chooses one. Default: 9876, with --no-broker listenPort of the configuration.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port of the broker; 0 chooses one. Default: listenPort of the configuration, or 10911.",
)
@click.option(
    "-n",
    "--namesrv",
    envvar="NAMESRV_ADDR",
    metavar="HOST:PORT",
    help="Name servers for --no-namesrv, separated by semicolons. Default: NAMESRV_ADDR, or namesrvAddr of the "
    "configuration.",
)
@click.option(
    "-s",
    "--store",
    type=NewPath(file_okay=False),
    help="The store's directory, created if missing. Default: storePathRootDir of the configuration, or ./store.",
)
@click.option(
    "--metrics",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Also serve metrics for Prometheus on this port, at /metrics; 0 chooses one. Needs mqtool[metrics].",
)
@click.option(
    "--acl",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Require an account from this plain_acl.yml; created, with accounts, if missing.",
)
@click.option(
    "--ha-allow",
    multiple=True,
    metavar="CIDR",
    help="A network that slaves may connect from, such as 10.0.0.0/8; repeatable. Default: this machine.",
)
@click.option(
    "--pulsar-port",
    type=click.IntRange(0, 65535),
    help="Also serve clients of Apache Pulsar on this port; 0 chooses one. Needs mqtool[pulsar].",
)
@click.option(
    "--pulsar-tls-port",
    type=click.IntRange(0, 65535),
    help="Also serve clients of Apache Pulsar on this port, with TLS only; 0 chooses one. Needs a certificate "
    "(tls.server.certPath and keyPath).",
)
@click.option(
    "--pulsar-admin-port",
    type=click.IntRange(0, 65535),
    help="Also serve pulsar-admin, and Pulsar clients that look up topics over HTTP, on this port; 0 chooses one.",
)
@click.option(
    "--pulsar-advertised",
    metavar="HOST:PORT",
    help="Broker address announced to Pulsar clients. Default: the address they connected to.",
)
@click.option(
    "-c", "--config", type=click.Path(path_type=Path, readable=False), help="A broker.conf, or a namesrv.conf."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of either; repeatable.")
def command(
    no_broker: bool,
    no_namesrv: bool,
    host: str,
    namesrv_port: int | None,
    port: int | None,
    namesrv: str | None,
    store: Path | None,
    metrics: int | None,
    acl: Path | None,
    ha_allow: tuple[str, ...],
    pulsar_port: int | None,
    pulsar_tls_port: int | None,
    pulsar_admin_port: int | None,
    pulsar_advertised: str | None,
    config: Path | None,
    settings: tuple[str, ...],
) -> int:
    """Run a name server and a broker until stopped by Ctrl-C, SIGTERM or SIGHUP.

    Brokers and clients of RocketMQ 4.x and 5.x register with it and ask it for routes. One line on standard
    output says when it is ready, and where. It listens on 127.0.0.1 unless --host says otherwise. TLS is off
    unless the settings tls.server.certPath and tls.server.keyPath name a certificate and its key.
    """
    outlast_readers()
    if no_broker and no_namesrv:
        raise click.UsageError("--no-broker and --no-namesrv are mutually exclusive: nothing would be left to run")
    is_given = click.get_current_context().get_parameter_source("namesrv") is ParameterSource.COMMANDLINE
    if is_given and not no_namesrv:
        raise click.UsageError("-n is for --no-namesrv; without it the name server runs in this process")
    if metrics is not None and no_broker:
        raise click.UsageError("--metrics is for a broker: leave out --no-broker")
    if not host:
        raise click.UsageError("--host is empty: 0.0.0.0 listens on all addresses of this machine")
    if acl is not None and no_broker:
        raise click.UsageError("--acl is for a broker: a name server has no accounts")
    gc.disable()  # until it is ready: what is made in a start stays, and looking through it is a tenth of the time
    click.get_current_context().call_on_close(gc.enable)
    from mqtool.engine.cluster import run
    from mqtool.engine.streams.ports import is_loopback
    from mqtool.engine.streams.tls import OF_REGISTRATION

    metrics_of = _metrics(host, metrics) if metrics is not None else None
    configured = _configured(config, settings)
    if ha_allow:
        if no_broker:
            raise click.UsageError("--ha-allow is for a broker: a name server has no slaves")
        configured["haAllow"] = ",".join(ha_allow)
    if no_broker and (pulsar_port, pulsar_tls_port) != (None, None):
        raise click.UsageError("--pulsar-port and --pulsar-tls-port are for a broker: leave out --no-broker")
    for_pulsar = {
        "pulsarPort": pulsar_port,
        "pulsarTlsPort": pulsar_tls_port,
        "pulsarAdminPort": pulsar_admin_port,
        "pulsarAdvertised": pulsar_advertised,
    }
    configured |= {setting: str(value) for setting, value in for_pulsar.items() if value is not None}
    has_port = not {"pulsarPort", "pulsarTlsPort"}.isdisjoint(configured)
    if not has_port and {"pulsarAdminPort", "pulsarAdvertised"} & configured.keys():
        raise click.UsageError(
            "--pulsar-admin-port and --pulsar-advertised are for a broker with --pulsar-port or --pulsar-tls-port"
        )
    if acl is not None:
        configured |= {"aclEnable": "true", "rocketmq.acl.plain.file": str(acl)}
        if not acl.exists():
            _make_accounts(acl)
    names = namesrv or configured.get("namesrvAddr")
    if no_namesrv and not names:
        raise click.UsageError("--no-namesrv needs -n: a broker registers with a name server")
    used: set[str] = {"listenPort", *(name for name in configured if name.startswith("tls.server."))}
    if no_namesrv:
        used |= {"namesrvAddr", *OF_REGISTRATION}
    name_server = broker = None
    if not no_namesrv:
        name_server = _name_server(host, namesrv_port, configured, used, alone=no_broker)
    if not no_broker:
        broker = _broker(host, port, store or Path(configured.get("storePathRootDir") or "store"), configured, used)
    if broker and not broker.settings.acl_enabled and not is_loopback(host):
        click.echo(
            f"mqtool: anyone who can reach {host} has full access: --acl FILE restricts it to accounts", err=True
        )
    elif name_server and not is_loopback(host):
        click.echo(f"mqtool: anyone who can reach {host} can register brokers: a name server has no accounts", err=True)
    if unused := sorted(configured.keys() - used):
        click.echo(f"mqtool: these settings have no effect here: {', '.join(unused)}", err=True)
    _prepare_process()
    return run(_serve(name_server, broker, (names or "") if no_namesrv else "", metrics_of))


def _make_accounts(path: Path) -> None:
    """Make a file with an account for administrators and one for clients, that only its owner can read."""
    import secrets

    from mqtool.formats.plain_acl import ANY, SUB, Account, PlainAcl, build_acl

    accounts = [
        Account("administrator", secrets.token_urlsafe(24), is_admin=True),
        Account("client-of-all", secrets.token_urlsafe(24), default_topic_perm=ANY, default_group_perm=SUB),
    ]
    text = build_acl(PlainAcl({account.access_key: account for account in accounts}))
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)  # whole at once: a file that was cut short would keep all out
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise WriteError(f"cannot create {path} for --acl: {error.strerror}") from error
    names = " and ".join(account.access_key for account in accounts)
    click.echo(f"mqtool: created {path} with the accounts {names} and their secrets", err=True)


def _configured(file: Path | None, settings: tuple[str, ...]) -> dict[str, str]:
    from mqtool.formats.settings import parse_settings as parse_file

    from_file: dict[str, str] = {}
    if file:
        try:
            from_file = parse_file(file.read_text("utf-8", "replace"))
        except (FileNotFoundError, IsADirectoryError) as error:
            raise NotFoundError(f"the configuration file {file} does not exist") from error
    return from_file | parse_settings(settings)


def _name_server(
    host: str, port: int | None, configured: dict[str, str], used: set[str], *, alone: bool
) -> "NameServerConfig":
    from mqtool.engine.doors import parse_port
    from mqtool.engine.name_server.settings import NameServerSettings
    from mqtool.engine.server_configs import NameServerConfig
    from mqtool.engine.streams.tls import TlsSettings

    if port is None:
        port = parse_port("listenPort", configured.get("listenPort", "9876")) if alone else 9876
    rules, unknown = NameServerSettings().updated(configured)
    used |= configured.keys() - unknown
    return NameServerConfig(host, port, rules, TlsSettings.of(configured))


def _broker(host: str, port: int | None, store: Path, configured: dict[str, str], used: set[str]) -> "BrokerConfig":
    from mqtool.engine.broker.roles import HA_SETTINGS, check_roles
    from mqtool.engine.broker.settings import BrokerSettings
    from mqtool.engine.doors import DOORS, REMOTING, further_ports, further_settings, parse_port
    from mqtool.engine.server_configs import BrokerConfig
    from mqtool.engine.store.paths import STORE_SETTINGS
    from mqtool.engine.streams.tls import TlsSettings

    if port is None:
        port = parse_port("listenPort", configured.get("listenPort", "10911"))
    rules, unknown = BrokerSettings().updated(configured)
    used |= configured.keys() - unknown
    used |= STORE_SETTINGS | {"storePathRootDir", DOORS[REMOTING].setting} | further_settings().keys()
    check_roles(configured, rules)
    of_store = {name: value for name, value in configured.items() if name in STORE_SETTINGS}
    tls = TlsSettings.of(configured)
    return BrokerConfig(
        store,
        host,
        port,
        rules,
        of_store,
        tls,
        further_ports(configured, tls),
        is_replicated=not HA_SETTINGS.isdisjoint(configured),
    )


def _prepare_process() -> None:
    """Take all the files that the system gives, one a connection."""
    import resource

    from mqtool.engine.streams.server import most_connections

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if (connections := most_connections()) < _FEW_CONNECTIONS:
        click.echo(
            f"mqtool: at most {connections:,} clients can connect at a time: {most:,} open files are allowed "
            "(ulimit -n)",
            err=True,
        )


async def _serve(
    name_server: "NameServerConfig | None",
    broker: "BrokerConfig | None",
    name_servers: str,
    metrics_of: "Callable[[Sequence[BrokerController]], AbstractAsyncContextManager[str]] | None",
) -> int:
    from mqtool.engine.cluster import Cluster
    from mqtool.engine.remoting.client import split_addresses

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    for name in ("broker", "slave"):  # what administrators change, and whom a slave follows
        logging.getLogger(f"mqtool.engine.{name}").setLevel(logging.INFO)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # A second signal must not kill what is about to end.
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        stopping.set()

    def tell(*_: object) -> None:
        # Nothing is ignored here: Python would print a traceback for the other signal if both came at once.
        if not loop.is_closed():  # as it may be for one that had come before it was ignored
            loop.call_soon_threadsafe(stop)

    for number in _ENDING:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, tell)
    brokers = [broker] if broker else []
    async with Cluster(name_server, brokers, split_addresses(name_servers)) as cluster:
        ready = [f"name server {cluster.name_server_address}"] if name_server else []
        for doors in cluster.door_addresses:
            ready += [f"{door} {address}" for door, address in doors.items()]
        if broker and broker.is_replicated:
            ready += [f"replication {address}" for address in cluster.replication_addresses]
        async with contextlib.AsyncExitStack() as stack:
            if metrics_of:
                address = await stack.enter_async_context(metrics_of(cluster.brokers))
                ready.append(f"metrics http://{address}/metrics")
            click.echo(f"mqtool: ready: {', '.join(ready)}")
            if broker:  # no start waits for these, nor does the first message
                await asyncio.to_thread(load_late)
            gc.freeze()  # what is there for good is never looked through while clients wait
            gc.enable()
            await stopping.wait()
    return Status.OK


def _metrics(host: str, port: int) -> "Callable[[Sequence[BrokerController]], AbstractAsyncContextManager[str]]":
    """Return what serves metrics of brokers, before anything is started that would have to be stopped again."""
    try:
        from mqtool.engine.metrics import metrics_served
    except ImportError as error:
        raise MissingExtraError("--metrics", "metrics") from error
    return partial(metrics_served, host=host, port=port)
