"""``mqtool serve``."""

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqtool.commands._options import parse_settings
from mqtool.errors import NotFoundError, Status

if TYPE_CHECKING:
    from mqtool.engine.cluster import NameServerConfig


@click.command(short_help="Run a name server.")
@click.option("--no-broker", is_flag=True, help="A name server alone.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option(
    "--namesrv-port",
    type=click.IntRange(0, 65535),
    help="Port of the name server; 0 chooses one. Default: listenPort of the configuration, or 9876.",
)
@click.option("-c", "--config", type=click.Path(path_type=Path, readable=False), help="A namesrv.conf.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the name server; repeats.")
def command(
    no_broker: bool,
    host: str,
    namesrv_port: int | None,
    config: Path | None,
    settings: tuple[str, ...],
) -> int:
    """Run a name server until it is told to stop, by Ctrl-C or SIGTERM.

    Brokers and clients of RocketMQ 4.x and 5.x register with it and ask it for routes. One line on standard output
    tells when it is ready, and where. It listens on 127.0.0.1 unless --host says otherwise. TLS is off unless the
    settings tls.server.certPath and tls.server.keyPath name a certificate and its key.
    """
    if not no_broker:
        raise click.UsageError("there is no broker in this version: give --no-broker")
    from mqtool.engine.cluster import run

    return run(_serve(_config(host, namesrv_port, config, settings)))


def _config(host: str, port: int | None, file: Path | None, settings: tuple[str, ...]) -> "NameServerConfig":
    from mqtool.engine.cluster import NameServerConfig
    from mqtool.engine.name_server.settings import NameServerSettings
    from mqtool.engine.remoting.tls import TlsSettings
    from mqtool.formats.settings import parse_settings as parse_file

    given: dict[str, str] = {}
    if file:
        try:
            given = parse_file(file.read_text("utf-8", "replace"))
        except (FileNotFoundError, IsADirectoryError) as error:
            raise NotFoundError(f"there is no configuration file {file}") from error
    given |= parse_settings(settings)
    if port is None:
        port = _port(given.get("listenPort", "9876"))
    rules, unused = NameServerSettings().updated(given)
    unused = [name for name in unused if name != "listenPort" and not name.startswith("tls.server.")]
    if unused:
        click.echo(f"mqtool: these settings have no effect here: {', '.join(sorted(unused))}", err=True)
    return NameServerConfig(host, port, rules, TlsSettings.of(given))


def _port(text: str) -> int:
    if text.isdecimal() and int(text[:6]) < 65536:
        return int(text[:6])
    raise click.UsageError(f"listenPort={text} is no port")


async def _serve(config: "NameServerConfig") -> int:
    from mqtool.engine.cluster import Cluster

    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(*_: object) -> None:
        # A second signal must not kill what is about to end: who stops a service tells every process of it, and the
        # one that waits for this one passes the signal on.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if not loop.is_closed():  # as it may be for one that had come before it was ignored
            loop.call_soon_threadsafe(told.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, tell)
    async with Cluster(config) as cluster:
        click.echo(f"mqtool: ready: name server {cluster.name_server_address}")
        await told.wait()
    return Status.OK
