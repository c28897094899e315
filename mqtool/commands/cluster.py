"""``mqtool cluster``."""

from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._brokers import Brokers
from mqtool.commands._options import matching, output_option
from mqtool.commands._output import Output
from mqtool.commands._wire import wire_options
from mqtool.engine.client.routes import MASTER
from mqtool.errors import Status

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.admin_queries import BrokerPlace, Replication

_COLUMNS = (
    "broker_name", "broker_id", "address", "version", "stored_per_second", "given_per_second", "disk_used",
    "boot_time", "cluster",
)  # fmt: skip


@click.group(short_help="List brokers and show their state.")
def command() -> None:
    """Ask name servers which brokers exist, and brokers for their state."""


@command.command("list", short_help="List the brokers.")
@wire_options
@output_option
def list_(brokers: Brokers, output: Output) -> int:
    """List all brokers: address, version, messages stored and delivered per second, and disk usage.

    Rates are averages of the last ten seconds. Exits with status 69 if a broker does not answer.
    """
    output.columns = _COLUMNS
    return brokers.admin(lambda admin: _list(admin, output))


async def _list(admin: "AdminClient", output: Output) -> int:
    status = Status.OK
    for broker, stats, error in await admin.broker_stats():
        if error:
            output.remark(str(error))
            status = Status.UNAVAILABLE
        output.row(_row(broker, stats))
    return status


@command.command(short_help="Show what brokers report about themselves.")
@click.argument("names", nargs=-1, metavar="[BROKER]...")
@click.option(
    "--max-lag",
    type=click.IntRange(min=0),
    metavar="BYTES",
    help="Exit with status 4 if a slave is more than this behind its master, does not follow it or copy its tables, or "
    "has no master.",
)
@wire_options
@output_option
def show(names: tuple[str, ...], max_lag: int | None, brokers: Brokers, output: Output) -> int:
    """Show all statistics that brokers report, by RocketMQ's names; for the brokers given, or for all.

    For replication, role is the role of a broker. For a slave, lag_bytes and lag_seconds are how far it is behind its
    master (lag_seconds only if the master runs mqtool); for a master, in_sync_count is how many brokers have its log,
    including itself. Exits with status 69 if a broker does not answer.
    """
    return brokers.admin(lambda admin: _show(admin, names, max_lag, output))


async def _show(admin: "AdminClient", names: tuple[str, ...], max_lag: int | None, output: Output) -> int:
    brokers = await admin.brokers()
    if names:
        chosen = matching(names, {broker.broker_name for broker in brokers}, "broker")
        brokers = [broker for broker in brokers if broker.broker_name in chosen]
    status = Status.OK
    all_stats = await admin.broker_stats(brokers)
    replication = await admin.replication(all_stats)
    for ((cluster, name, broker_id, address), stats, error), replica in zip(all_stats, replication, strict=True):
        if error:
            output.remark(str(error))
            status = Status.UNAVAILABLE
            continue
        stats = {**stats, **_stats_of(replica)}
        if output.is_table:
            output.text(click.style(f"{name} ({address}, id {broker_id} of {cluster})", bold=True))
            output.new_table(("name", "value"))
        for figure, value in sorted(stats.items()):
            output.row({"broker_name": name, "broker_id": broker_id, "name": figure, "value": value})
    if max_lag is not None and (late := [fault for status in replication if (fault := _lateness(status, max_lag))]):
        for sentence in late:
            output.remark(sentence)
        status = status or Status.WARNINGS
    return status


def _stats_of(replica: "Replication") -> dict[str, str]:
    """Return what is told of replication, without what is not known."""
    stats = {
        "role": replica.role,
        "lag_bytes": replica.lag_bytes,
        "lag_seconds": replica.lag_seconds,
        "in_sync_count": replica.in_sync_count,
    }
    return {name: str(value) for name, value in stats.items() if value is not None}


def _lateness(replica: "Replication", max_lag: int) -> str:
    """Return what is wrong with a slave that has to be near its master; nothing where nothing is."""
    broker, lag = replica.broker, replica.lag_bytes
    if broker.broker_id == MASTER:
        return ""
    slave = f"slave {broker.broker_id} of {broker.broker_name} ({broker.address})"
    if replica.fault:
        return f"{slave} does not follow its master: {replica.fault}"
    if replica.not_copied:
        return f"{slave} does not copy all tables of its master: {replica.not_copied}"
    if lag is None:
        return f"{slave}: its lag is unknown, because it or its master does not answer"
    return f"{slave} is {lag:,} bytes behind its master; the limit is {max_lag:,}" if lag > max_lag else ""


def _row(broker: "BrokerPlace", stats: dict[str, str]) -> dict[str, Any]:
    cluster, name, broker_id, address = broker
    delivered_rate = stats.get("getTransferredTps") or stats.get("getTransferedTps")
    return {
        "cluster": cluster,
        "broker_name": name,
        "broker_id": broker_id,
        "address": address,
        "version": stats.get("brokerVersionDesc"),
        "stored_per_second": _first_number(stats.get("putTps")),
        "given_per_second": _first_number(delivered_rate),
        "disk_used": _first_number(stats.get("commitLogDiskRatio")),
        "boot_timestamp": int(stats["bootTimestamp"]) if stats.get("bootTimestamp", "").isdecimal() else None,
    }


def _first_number(text: str | None) -> float | None:
    """Return the first of some numbers: of three rates that of the last ten seconds."""
    try:
        return round(float((text or "").split()[0]), 2)
    except (ValueError, IndexError):
        return None
