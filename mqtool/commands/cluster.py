"""``mqtool cluster``."""

from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._options import matching, output_option
from mqtool.commands._output import Output
from mqtool.commands._wire import Brokers, wire_options
from mqtool.errors import MqtoolError, Status, UnavailableError

if TYPE_CHECKING:
    from mqtool.engine.client_runtime import Wire
    from mqtool.formats.bodies import ClusterInfo

_COLUMNS = (
    "broker_name", "broker_id", "address", "version", "stored_per_second", "given_per_second", "disk_used",
    "boot_time", "cluster",
)  # fmt: skip
Place = tuple[str, str, int, str]
"""Cluster, name, id and address of a broker."""


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
    return brokers.run(lambda wire: _list(wire, output))


async def _list(wire: "Wire", output: Output) -> int:
    status = Status.OK
    for place, told in await _all_told(wire, await _places(wire)):
        if isinstance(told, MqtoolError):
            output.remark(str(told))
            status = Status.UNAVAILABLE
        output.row(_row(place, {} if isinstance(told, MqtoolError) else told))
    return status


@command.command(short_help="Show what brokers tell of themselves.")
@click.argument("names", nargs=-1, metavar="[BROKER]...")
@wire_options
@output_option
def show(names: tuple[str, ...], brokers: Brokers, output: Output) -> int:
    """Show all figures that brokers tell of themselves, by RocketMQ's names; of those named, or of all."""
    return brokers.run(lambda wire: _show(wire, names, output))


async def _show(wire: "Wire", names: tuple[str, ...], output: Output) -> int:
    places = await _places(wire)
    if names:
        chosen = matching(names, {name for _, name, _, _ in places}, "broker")
        places = [place for place in places if place[1] in chosen]
    status = Status.OK
    for place, told in await _all_told(wire, places):
        cluster, name, broker_id, address = place
        if isinstance(told, MqtoolError):
            output.remark(str(told))
            status = Status.UNAVAILABLE
            continue
        if output.is_table:
            output.text(click.style(f"{name} ({address}, id {broker_id} of {cluster})", bold=True))
            output.new_table(("name", "value"))
        for figure, value in sorted(told.items()):
            output.row({"broker_name": name, "broker_id": broker_id, "name": figure, "value": value})
    return status


async def _places(wire: "Wire") -> list[Place]:
    from mqtool.engine.client import questions

    info: ClusterInfo = await wire.ask_name_server(questions.clusters())
    places = sorted(
        (broker.cluster, name, broker_id, address)
        for name, broker in info.brokers.items()
        for broker_id, address in broker.addresses.items()
    )
    if not places:
        raise UnavailableError(f"no broker is registered with {', '.join(wire.name_servers)}")
    return places


async def _all_told(wire: "Wire", places: list[Place]) -> list[tuple[Place, dict[str, str] | MqtoolError]]:
    """Return what each broker tells of itself, or why it does not."""
    from mqtool.engine.client import questions
    from mqtool.engine.client_runtime import together

    async def told(address: str) -> dict[str, str] | MqtoolError:
        try:
            return await wire.ask(address, questions.runtime_info())
        except MqtoolError as error:
            return error

    return list(zip(places, await together(told(address) for *_, address in places), strict=True))


def _row(place: Place, told: dict[str, str]) -> dict[str, Any]:
    cluster, name, broker_id, address = place
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
