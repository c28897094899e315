"""``mqtool promote``."""

from typing import TYPE_CHECKING

import click

from mqtool.commands._brokers import Brokers
from mqtool.commands._output import Output
from mqtool.commands._repair import Confirmation, confirmation_options
from mqtool.commands._wire import wire_options
from mqtool.errors import Status

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_client import AdminClient


@click.command(short_help="Promote a slave to master.")
@click.option("--broker", "broker_name", required=True, metavar="NAME", help="The name that master and slaves share.")
@click.option(
    "--slave",
    "slave_id",
    type=click.IntRange(min=1),
    metavar="ID",
    help="The slave. Default: the one with the longest log of those that match their master's.",
)
@wire_options
@confirmation_options
def command(
    broker_name: str, slave_id: int | None, brokers: Brokers, confirmation: Confirmation, output: Output
) -> int:
    """Promote a slave to master, after a plan that shows what would be lost and repeated.

    If the old master answers, it stops accepting messages, the slave fetches what it lacks, and the two swap
    roles, each in its process: nothing is lost. If it is dead, the slave becomes master with what it has. Both
    must be mqtool brokers; for RocketMQ brokers the manual steps are printed. With ACL this requires an
    administrator.
    """
    return brokers.admin(lambda admin: _promote(admin, broker_name, slave_id, confirmation, output))


async def _promote(
    admin: "AdminClient", broker_name: str, slave_id: int | None, confirmation: Confirmation, output: Output
) -> int:
    from mqtool.engine.client_runtime.promotion import plan_promotion, promote

    plan = await plan_promotion(admin, broker_name, slave_id)
    output.row(
        {
            "broker_name": broker_name,
            "new_master": plan.slave.address,
            "broker_id": plan.slave.broker_id,
            "old_master": plan.master.address if plan.master else None,
            "role": plan.role,
            "epoch": plan.epoch,
            "lag_bytes": plan.lag_bytes,
        }
    )
    for remark in plan.remarks:
        output.remark(remark)
    output.flush()
    if not confirmation.is_answered_yes("Proceed?"):
        return Status.DAMAGE
    await promote(admin, plan, output.remark)
    return Status.OK
