"""``mqtool cluster``."""

from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._options import matching, output_option
from mqtool.commands._output import Output
from mqtool.commands._wire import Brokers, wire_options
from mqtool.errors import Status

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_client import AdminClient, BrokerPlace

_COLUMNS = (
    "broker_name", "broker_id", "address", "version", "stored_per_second", "given_per_second", "disk_used",
    "boot_time", "cluster",
)  # fmt: skip


@click.group(short_help="List brokers and show how they are.")
def command() -> None:
    """Ask name servers which brokers there are, and brokers how they are."""


@command.command("list", short_help="List the brokers.")
@wire_options
@output_option
def list_(brokers: Brokers, output: Output) -> int:
    """List all brokers: where they are, their version, messages stored and given in a second, how full their disk is.

    Rates are those of the last ten seconds. Ends with status 69 when a broker does not answer.
    """
    output.columns = _COLUMNS
    return brokers.admin(lambda admin: _list(admin, output))


async def _list(admin: "AdminClient", output: Output) -> int:
    status = Status.OK
    for broker, figures, error in await admin.broker_figures():
        if error:
            output.remark(str(error))
            status = Status.UNAVAILABLE
        output.row(_row(broker, figures))
    return status


@command.command(short_help="Show what brokers tell of themselves.")
@click.argument("names", nargs=-1, metavar="[BROKER]...")
@wire_options
@output_option
def show(names: tuple[str, ...], brokers: Brokers, output: Output) -> int:
    """Show all figures that brokers tell of themselves, by RocketMQ's names; of those named, or of all."""
    return brokers.admin(lambda admin: _show(admin, names, output))


async def _show(admin: "AdminClient", names: tuple[str, ...], output: Output) -> int:
    brokers = await admin.brokers()
    if names:
        chosen = matching(names, {broker.broker_name for broker in brokers}, "broker")
        brokers = [broker for broker in brokers if broker.broker_name in chosen]
    status = Status.OK
    for (cluster, name, broker_id, address), figures, error in await admin.broker_figures(brokers):
        if error:
            output.remark(str(error))
            status = Status.UNAVAILABLE
            continue
        if output.is_table:
            output.text(click.style(f"{name} ({address}, id {broker_id} of {cluster})", bold=True))
            output.new_table(("name", "value"))
        for figure, value in sorted(figures.items()):
            output.row({"broker_name": name, "broker_id": broker_id, "name": figure, "value": value})
    return status


def _row(broker: "BrokerPlace", told: dict[str, str]) -> dict[str, Any]:
    cluster, name, broker_id, address = broker
    given = told.get("getTransferredTps") or told.get("getTransferedTps")
    return {
        "cluster": cluster,
        "broker_name": name,
        "broker_id": broker_id,
        "address": address,
        "version": told.get("brokerVersionDesc"),
        "stored_per_second": _first_number(told.get("putTps")),
        "given_per_second": _first_number(given),
        "disk_used": _first_number(told.get("commitLogDiskRatio")),
        "boot_timestamp": int(told["bootTimestamp"]) if told.get("bootTimestamp", "").isdecimal() else None,
    }


def _first_number(text: str | None) -> float | None:
    """Return the first of some numbers: of three rates that of the last ten seconds."""
    try:
        return round(float((text or "").split()[0]), 2)
    except (ValueError, IndexError):
        return None
