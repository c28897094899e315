"""``mqtool group``."""

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._admin import (
    consumer_counts,
    offset_row,
    stored_offsets,
    stored_subscriptions,
    tell_log_alone,
)
from mqtool.commands._brokers import Brokers
from mqtool.commands._change import Target, broker_option, target_options
from mqtool.commands._completion import GROUP_NAME
from mqtool.commands._options import matching, output_option
from mqtool.commands._output import Format, Output
from mqtool.commands._wire import source_options
from mqtool.errors import Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.client.calls import Members
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.admin_queries import GroupOffset, SubscriptionOnBroker
    from mqtool.engine.store.reader import StoreReader
    from mqtool.formats.config_tables import SubscriptionGroup

_COLUMNS = ("group", "members", "lag", "consume_enabled", "retry_max_times", "broker_name", "consume_broadcast_enabled")
_SETTINGS = ("group", "broker_name", "consume_enabled", "retry_max_times", "consume_broadcast_enabled")
_MEMBER = ("client_id", "address", "language", "version", "broker_name")
_SUBSCRIPTION = ("topic", "expression", "expression_type", "consume_type", "message_model", "broker_name")
_PULSAR = (
    "topic", "queue_id", "type", "consumers", "consumer_offset", "backlog", "unacked", "acked_ranges", "broker_name",
)  # fmt: skip
_QUEUE = ("topic", "queue_id", "consumer_offset", "max_offset", "lag", "client_id", "broker_name", "min_offset")


@click.group(short_help="List, show, create and delete consumer groups.")
def command() -> None:
    """List, show, create and delete consumer groups: of brokers with -n, or of a store."""


@command.command("list", short_help="List groups.")
@click.argument("patterns", nargs=-1, type=GROUP_NAME, metavar="[GLOB]...")
@source_options
@output_option
def list_(patterns: tuple[str, ...], source: "Brokers | StoreReader", output: Output) -> int:
    """List groups: how many consumers are online, how many messages are left to read (lag), and their settings."""
    from mqtool.engine.broker.subscription_groups import is_system_group

    output.columns = _COLUMNS
    if isinstance(source, Brokers):
        rows = source.admin(lambda admin: _rows_of_brokers(admin, patterns))
    else:
        tell_log_alone(source, output)
        rows = _rows_of_store(source, patterns)
    # What a broker makes for itself comes last, so that a person's own groups are not lost in it.
    for row in sorted(rows, key=lambda row: (is_system_group(row["group"]), row["group"], row["broker_name"] or "")):
        output.row(row)
    return Status.OK


async def _rows_of_brokers(admin: "AdminClient", patterns: tuple[str, ...]) -> list[dict[str, Any]]:
    names = _chosen(patterns, await admin.group_names()) if patterns else None
    of_pulsar = consumer_counts(await admin.pulsar_subscriptions())
    return [
        _row(
            group.settings,
            group.broker_name,
            group.members + of_pulsar.get((group.broker_name, group.settings.group), 0),
            group.lag,
        )
        for group in await admin.groups(names)
    ]


def _rows_of_store(store: "StoreReader", patterns: tuple[str, ...]) -> list[dict[str, Any]]:
    groups = _stored_groups(store)
    names = _chosen(patterns, groups.keys())
    lags = _lags(stored_offsets(store, lambda key: key[1] in names))
    return [_row(group, None, None, lags.get(name)) for name, group in groups.items() if name in names]


def _chosen(patterns: tuple[str, ...], names: Any) -> set[str]:
    return matching(patterns, names, "group") if patterns else {*names}


def _lags(offsets: "list[GroupOffset]") -> dict[str, int]:
    lags: dict[str, int] = {}
    for offset in offsets:
        lags[offset.group] = lags.get(offset.group, 0) + (offset.lag or 0)
    return lags


def _stored_groups(store: "StoreReader") -> "dict[str, SubscriptionGroup]":
    from mqtool.formats.config_tables import subscription_groups

    return subscription_groups(store.config_table("subscriptionGroup.json") or {})


def _row(group: "SubscriptionGroup", broker_name: str | None, members: int | None, lag: int | None) -> dict[str, Any]:
    fields = dataclasses.asdict(group)
    return {"group": fields.pop("group"), "broker_name": broker_name, "members": members, "lag": lag, **fields}


@command.command(short_help="Show a group: members, subscriptions, lag of each queue.")
@click.argument("group", type=GROUP_NAME)
@source_options
@output_option
def show(group: str, source: "Brokers | StoreReader", output: Output) -> int:
    """Show the settings of a group, its consumers, their subscriptions, and its consumer offsets.

    For a Pulsar subscription, a row for each queue shows its type, how many messages are unacknowledged (backlog),
    how many of those consumers have received (unacked), and how many ranges of messages beyond the consumer offset
    are acknowledged.
    """
    if output.format is Format.CSV:
        raise UsageError("the rows of a group have different columns: give -o jsonl, or see mqtool offset list")
    rows = source.admin(lambda admin: _shown_by_brokers(admin, group)) if isinstance(source, Brokers) else None
    if rows is None:
        assert not isinstance(source, Brokers)
        rows = _shown_by_store(source, group)
    _show(rows, output)
    return Status.OK


def _show(rows: list[dict[str, Any]], output: Output) -> None:
    kinds = {
        "group": _SETTINGS,
        "member": _MEMBER,
        "subscription": _SUBSCRIPTION,
        "pulsar_subscription": _PULSAR,
        "queue": _QUEUE,
    }
    for kind, columns in kinds.items():
        of_kind = [row for row in rows if row["kind"] == kind]
        if of_kind and kind != "group":
            output.text()
        output.new_table(columns)
        for row in of_kind:
            output.row(row)
    if not any(row["kind"] == "member" or row.get("consumers") for row in rows):
        output.remark("no consumer of the group is online, as far as is known")


def _shown_by_store(store: "StoreReader", group: str) -> list[dict[str, Any]]:
    from mqtool.engine.client_runtime.admin_queries import check_known

    groups = _stored_groups(store)
    offsets = stored_offsets(store, lambda key: key[1] == group)
    check_known(group, groups.keys() | {offset.group for offset in offsets}, "group")
    settings = [_row(groups[group], None, None, None)] if group in groups else []
    return [
        *({"kind": "group", **row} for row in settings),
        *_pulsar_rows([reader for reader in stored_subscriptions(store) if reader.state.group == group]),
        *({"kind": "queue", **offset_row(offset), "client_id": None} for offset in offsets),
    ]


async def _shown_by_brokers(admin: "AdminClient", group: str) -> list[dict[str, Any]]:
    from mqtool.formats.bodies import MessageQueue

    rows = []
    subscriptions = [reader for reader in await admin.pulsar_subscriptions() if reader.state.group == group]
    of_pulsar = consumer_counts(subscriptions)
    for broker_name, settings, online, offsets, holders in await admin.group(group):
        count = (len(online.members) if online else 0) + of_pulsar.get((broker_name, group), 0)
        rows.append({"kind": "group", **_row(settings, broker_name, count, _lags(offsets).get(group))})
        rows += _online_rows(broker_name, online)
        rows += _pulsar_rows([reader for reader in subscriptions if reader.broker_name == broker_name])
        rows += [
            {
                "kind": "queue",
                **offset_row(offset),
                "client_id": holders.get(MessageQueue(offset.topic, broker_name, offset.queue_id)),
            }
            for offset in offsets
        ]
    return rows


def _pulsar_rows(subscriptions: "list[SubscriptionOnBroker]") -> list[dict[str, Any]]:
    return [
        {"kind": "pulsar_subscription", "broker_name": broker_name, **state._asdict()}
        for broker_name, state in subscriptions
    ]


def _online_rows(broker_name: str, online: "Members | None") -> list[dict[str, Any]]:
    if online is None:
        return []
    rows: list[dict[str, Any]] = [
        {"kind": "member", "broker_name": broker_name, **member._asdict()} for member in online.members
    ]
    rows += [
        {
            "kind": "subscription",
            "broker_name": broker_name,
            "topic": subscription.topic,
            "expression": subscription.expression,
            "expression_type": subscription.expression_type,
            "consume_type": online.consume_type,
            "message_model": online.message_model,
            "consume_from_where": online.consume_from_where,
        }
        for subscription in online.subscriptions
    ]
    return rows


@command.command(short_help="Create or change a group.")
@click.argument("group", type=GROUP_NAME)
@click.option("--retries", type=click.IntRange(-1), metavar="N", help="Maximum number of retries per message.")
@click.option("--consume/--no-consume", default=None, help="Whether the group may consume.")
@click.option("--broadcast/--no-broadcast", default=None, help="Whether it may consume by broadcasting.")
@broker_option
@target_options
def create(
    group: str,
    retries: int | None,
    consume: bool | None,
    broadcast: bool | None,
    broker_name: str | None,
    target: Target,
) -> int:
    """Create a group, or change an existing one: on every broker, on the given one, or in a store.

    \b
      mqtool group create -n localhost:9876 billing --retries 3
      mqtool group create -s ./store billing --no-consume
    """  # noqa: D301
    options = {"group": group, "retries": retries, "consume": consume, "broadcast": broadcast}
    return target.run(
        "group create",
        options,
        broker_name,
        lambda admin: admin.create_group(
            group, retries=retries, consume=consume, broadcast=broadcast, broker_name=broker_name, dry_run=True
        ),
    )


@command.command(short_help="Delete a group.")
@click.argument("group", type=GROUP_NAME)
@broker_option
@target_options
def delete(group: str, broker_name: str | None, target: Target) -> int:
    """Delete a group, its consumer offsets, and its retry and dead-letter topics.

    Consumers that are online create it again.
    """
    return target.run(
        "group delete",
        {"group": group},
        broker_name,
        lambda admin: admin.delete_group(group, broker_name=broker_name, dry_run=True),
    )
