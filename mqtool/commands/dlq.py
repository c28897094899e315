"""``mqtool dlq``."""

import contextlib
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mqtool.commands._brokers import Brokers
from mqtool.commands._change import Target, broker_option, target_options
from mqtool.commands._completion import GROUP_NAME
from mqtool.commands._options import (
    export_rows,
    key_filter,
    limit_option,
    matching,
    message_options,
    open_store,
    output_option,
    require_log,
    store_names,
    tag_filter,
    time_options,
)
from mqtool.commands._output import Output, counted
from mqtool.commands._query import unread_remarks
from mqtool.commands._repair import Confirmation, confirmation_options
from mqtool.commands._rows import message_row
from mqtool.commands._wire import source_options, wire_options
from mqtool.errors import AccessDeniedError, MqtoolError, NotFoundError, Status, UsageError
from mqtool.formats.property_names import CLUSTER

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_changes import Changes
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.browser import Browser
    from mqtool.engine.client_runtime.dead_letters import DeadLetter, Resender
    from mqtool.engine.store.reader import StoreReader
    from mqtool.engine.store.search import Query
    from mqtool.formats.message import Message

_GROUP_COLUMNS = ("group", "messages", "passed", "last_time", "broker_name")
_COLUMNS = (
    "origin_topic", "queue_id", "queue_offset", "store_time", "reconsume_times", "tags", "body", "keys", "message_id",
    "broker_name",
)  # fmt: skip
_SENT_COLUMNS = ("outcome", "origin_topic", "queue_id", "queue_offset", "copy_message_id", "reason", "broker_name")

broker_of_store = click.option("--broker", "broker_name", metavar="NAME", help="The broker that the store belongs to.")
group_option = click.option(
    "--group", required=True, type=GROUP_NAME, metavar="NAME", help="The group that the dead letters belong to."
)


class DeadLetterSelection(NamedTuple):
    """Which dead letters of a group."""

    group: str
    keys: tuple[str, ...]
    tags: tuple[str, ...]
    since: int | None
    until: int | None
    attempts: int
    passed: bool
    limit: int | None

    @property
    def topic(self) -> str:
        """Their topic."""
        from mqtool.formats.topics import DEAD_LETTER_PREFIX

        return DEAD_LETTER_PREFIX + self.group

    def query(self) -> "Query":
        """Return what a message must be."""
        from mqtool.engine.store.search import Query

        topics = frozenset([self.topic])
        return Query(keys=self.keys, tags=self.tags, topics=topics, since=self.since, until=self.until)

    def takes(self, message: "Message", committed: int) -> bool:
        """Tell whether a message of the topic that fits the query is chosen."""
        return message.reconsume_times >= self.attempts and (self.passed or message.queue_offset >= committed)


def chosen_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the conditions for dead letters; the command receives them as ``chosen``."""

    @group_option
    @key_filter
    @tag_filter
    @time_options
    @click.option(
        "--attempts", type=click.IntRange(0), default=0, metavar="N", help="Only those consumed this many times."
    )
    @click.option("--passed", is_flag=True, help="Also those that purge has passed.")
    @limit_option
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        group: str,
        keys: tuple[str, ...],
        tags: tuple[str, ...],
        since: int | None,
        until: int | None,
        attempts: int,
        passed: bool,
        limit: int | None,
        **kwargs: Any,
    ) -> Any:
        chosen = DeadLetterSelection(group, keys, tags, since, until, attempts, passed, limit)
        return command(*args, chosen=chosen, **kwargs)

    return wrapped


@click.group(short_help="List, show, resend and purge dead letters.")
def command() -> None:
    """List, show, resend, export and purge dead letters: of brokers with -n, or of a store."""


@command.command("list", short_help="List groups that have dead letters.")
@click.argument("patterns", nargs=-1, type=GROUP_NAME, metavar="[GLOB]...")
@source_options
@output_option
def list_(patterns: tuple[str, ...], source: "Brokers | StoreReader", output: Output) -> int:
    """List groups that have dead letters: how many, how many purge has passed, and when the last one arrived."""
    output.columns = _GROUP_COLUMNS
    rows = source.admin(_groups_of_brokers) if isinstance(source, Brokers) else _groups_of_store(source)
    names = matching(patterns, {row["group"] for row in rows}, "group") if patterns else None
    for row in rows:
        if names is None or row["group"] in names:
            output.row(row)
    if not rows:
        output.remark("no group has dead letters")
    return Status.OK


def _group_rows(
    queues: "dict[tuple[str, str | None], list[tuple[int, int, int, int]]]",
) -> list[dict[str, Any]]:
    """Return a row for each group and broker, of the ends, the committed offset and the last time of its queues."""
    return [
        {
            "group": group,
            "broker_name": broker_name,
            "messages": sum(high - low for low, high, _, _ in ends),
            "passed": sum(min(max(committed - low, 0), high - low) for low, high, committed, _ in ends),
            "last_timestamp": max(last for *_, last in ends) or None,
        }
        for (group, broker_name), ends in sorted(queues.items(), key=lambda entry: (entry[0][0], entry[0][1] or ""))
        if any(high > low for low, high, _, _ in ends)
    ]


async def _groups_of_brokers(admin: "AdminClient") -> list[dict[str, Any]]:
    from mqtool.formats.topics import DEAD_LETTER_PREFIX

    names = {config.topic for _, config in await admin.topics() if config.topic.startswith(DEAD_LETTER_PREFIX)}
    committed = {
        (offset.broker_name, offset.topic, offset.queue_id): offset.consumer_offset or 0
        for offset in await admin.offsets()
        if offset.topic == DEAD_LETTER_PREFIX + offset.group
    }
    queues: dict[tuple[str, str | None], list[tuple[int, int, int, int]]] = {}
    for topic, broker_name, queue_id, low, high, last in await admin.topic_queues(*sorted(names)):
        key = (topic.removeprefix(DEAD_LETTER_PREFIX), broker_name)
        queues.setdefault(key, []).append((low, high, committed.get((broker_name, topic, queue_id), 0), last))
    return _group_rows(queues)


def _groups_of_store(store: "StoreReader") -> list[dict[str, Any]]:
    from mqtool.commands._admin import last_timestamp
    from mqtool.engine.store.queue_view import open_queue, queue_keys
    from mqtool.formats.topics import DEAD_LETTER_PREFIX

    committed = _committed_in(store)
    queues: dict[tuple[str, str | None], list[tuple[int, int, int, int]]] = {}
    for topic, queue_id in sorted(queue_keys(store)):
        if topic.startswith(DEAD_LETTER_PREFIX) and (queue := open_queue(store, topic, queue_id)):
            group = topic.removeprefix(DEAD_LETTER_PREFIX)
            passed, last = committed.get((topic, group, queue_id), 0), last_timestamp(store, queue)
            queues.setdefault((group, None), []).append((queue.min_offset, queue.max_offset, passed, last))
    return _group_rows(queues)


def _committed_in(store: "StoreReader") -> dict[tuple[str, str, int], int]:
    """Return what groups have committed, by topic, group and queue id."""
    from mqtool.formats.config_tables import consumer_offsets

    return consumer_offsets(store.config_table("consumerOffset.json") or {}, [])


@command.command(short_help="Show dead letters.")
@chosen_options
@message_options
@source_options
@output_option
def show(chosen: DeadLetterSelection, body: str, source: "Brokers | StoreReader", output: Output) -> int:
    """Show the dead letters of a group, in the order in which they arrived; reconsume_times is how often each failed.

    \b
      mqtool dlq show -n localhost:9876 --group billing --since 2h
    """  # noqa: D301
    output.columns, output.always = _COLUMNS, ("body", "keys")
    rows, is_damaged = _rows(source, chosen, body, output)
    for row in rows:
        output.row(row)
    output.remark(counted(output.count, "dead letter"))
    return Status.DAMAGE if is_damaged else Status.OK


@command.command(short_help="Write dead letters to a file.")
@chosen_options
@click.option(
    "--into", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="A new file."
)
@source_options
@output_option
def export(chosen: DeadLetterSelection, into: Path, source: "Brokers | StoreReader", output: Output) -> int:
    """Write the dead letters of a group to a file of JSON lines, which `mqtool send --jsonl` accepts."""
    rows, is_damaged = _rows(source, chosen, "base64", output)
    status = export_rows(into, rows, "dead letter", output)
    return Status.DAMAGE if is_damaged else status


def _rows(
    source: "Brokers | StoreReader", chosen: DeadLetterSelection, body: str, output: Output
) -> tuple[list[dict[str, Any]], bool]:
    """Return the chosen letters, and whether part of the store could not be read."""
    from mqtool.engine.client_runtime.dead_letters import origin_topic

    is_damaged = False
    if isinstance(source, Brokers):
        source.remark(output)
        letters = source.admin(lambda admin: _letters(admin, chosen, output))
        pairs = [(letter.found.message, letter.found.broker.broker_name) for letter in letters]
    else:
        stored, is_damaged = _stored_letters(source, chosen, output)
        pairs = [(message, "") for message in stored]
    rows = [
        {"origin_topic": origin_topic(message), **message_row(message, body), "broker_name": broker_name or None}
        for message, broker_name in pairs
    ]
    return rows, is_damaged


def _stored_letters(store: "StoreReader", chosen: DeadLetterSelection, output: Output) -> "tuple[list[Message], bool]":
    from mqtool.commands._admin import stored_topics
    from mqtool.engine.store.queue_view import queue_keys
    from mqtool.engine.store.search import Search

    require_log(store)
    keys = queue_keys(store)
    if chosen.topic not in {name for name, _ in keys} | stored_topics(store).keys():
        raise _no_letters(chosen.group, {name for name, _ in keys})
    committed = _committed_in(store)
    search = Search(store, chosen.query())
    letters = [
        message
        for message in search.messages(lambda _: None)
        if chosen.takes(message, committed.get((chosen.topic, chosen.group, message.queue_id), 0))
    ]
    for remark in unread_remarks(search):
        output.remark(remark)
    return letters[: chosen.limit], search.is_damaged


def _no_letters(group: str, topics: set[str]) -> NotFoundError:
    from mqtool.formats.topics import DEAD_LETTER_PREFIX

    having = sorted(name.removeprefix(DEAD_LETTER_PREFIX) for name in topics if name.startswith(DEAD_LETTER_PREFIX))
    listed = f"; groups that have one: {', '.join(having[:10])}" if having else ""
    return NotFoundError(f"the group {group} has no dead-letter topic{listed}")


async def _letters(admin: "AdminClient", chosen: DeadLetterSelection, output: Output) -> "list[DeadLetter]":
    """Return the dead letters that are chosen, oldest first."""
    from mqtool.engine.client_runtime.browser import Browser
    from mqtool.engine.client_runtime.dead_letters import DeadLetter, origin_topic

    browser = Browser(admin)
    topics = await browser.topics()
    if chosen.topic not in topics:
        raise _no_letters(chosen.group, topics)
    committed = {
        (offset.broker_name, offset.queue_id): offset.consumer_offset or 0
        for offset in await admin.offsets(chosen.group)
        if offset.topic == chosen.topic
    }
    places = await browser.starts(await browser.places([chosen.topic]), chosen.since)
    letters: list[DeadLetter] = []
    try:
        async with contextlib.aclosing(browser.search(places, chosen.query())) as messages:
            while len(letters) != chosen.limit and (browsed := await anext(messages, None)):
                if chosen.takes(
                    browsed.message, committed.get((browsed.broker.broker_name, browsed.message.queue_id), 0)
                ):
                    letters.append(DeadLetter(browsed, origin_topic(browsed.message)))
    except AccessDeniedError as error:
        raise NotFoundError(
            f"{error}; if the topic is not readable, change that with `mqtool topic create {chosen.topic} --perm rw`"
        ) from error
    _tell(browser, output)
    return letters


def _tell(browser: "Browser", output: Output) -> None:
    for remark in browser.remarks:
        output.remark(remark)


# Sending again


@command.command(short_help="Resend dead letters.")
@chosen_options
@click.option(
    "--to",
    "where",
    type=click.Choice(["retry", "origin"]),
    default="retry",
    show_default=True,
    help="To this group only, by its retry topic, or to all groups, by the original topic.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Send at most this many per second.")
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Record of what was sent. Default: a file in ~/.local/state/mqtool/dlq.",
)
@broker_of_store
@wire_options
@store_names
@confirmation_options
def resend(
    chosen: DeadLetterSelection,
    where: str,
    rate: float | None,
    state: Path | None,
    broker_name: str | None,
    brokers: Brokers,
    store: Path | None,
    config: Path | None,
    settings: tuple[str, ...],
    confirmation: Confirmation,
    output: Output,
) -> int:
    """Resend the dead letters of a group, each of them only once, even if the command is run again.

    \b
      mqtool dlq resend --group billing --dry-run
      mqtool dlq resend --group billing --since 2h --rate 50 --yes
      mqtool dlq resend -s ./store --broker broker-a -n localhost:9876 --group billing

    With -s the dead letters are read from a store of the broker that --broker names; later runs recognize them by
    that name.

    Each copy is read back, and carries the address of its dead letter in the property MQTOOL_ORIGIN: by that, and
    by a file, a later run knows what was sent. Dead letters stay where they are: see purge. Run the command again
    to continue an interrupted run.
    """  # noqa: D301
    every = chosen._replace(limit=None)
    stored: list[DeadLetter] | None = None
    if store is not None:
        stored = _letters_of_store(open_store(store, config, settings), every, broker_name, output)
    elif broker_name is not None or config or settings:
        raise UsageError("--broker, -c and --set apply to a store: give -s DIR, or leave them out")

    async def send(admin: "AdminClient") -> int:
        letters = await _letters(admin, every, output) if stored is None else stored
        return await _resend(admin, letters, chosen, where, rate, state, confirmation, output)

    return brokers.admin(send)


def _letters_of_store(
    store: "StoreReader", chosen: DeadLetterSelection, broker_name: str | None, output: Output
) -> "list[DeadLetter]":
    """Return the dead letters of a store with the addresses that they had at its broker."""
    from mqtool.engine.client_runtime.admin_queries import MasterBroker
    from mqtool.engine.client_runtime.browser import Browsed
    from mqtool.engine.client_runtime.dead_letters import DeadLetter, origin_topic

    settings = store.config.settings
    name = broker_name or settings.get("brokerName")
    if name is None:
        raise UsageError(
            "the store does not show its broker's name, by which letters sent earlier are recognized: give "
            "--broker NAME, or its broker.conf with -c"
        )
    cluster = settings.get("brokerClusterName")
    return [
        DeadLetter(
            Browsed(message, b"", MasterBroker(cluster or message.properties.get(CLUSTER, "DefaultCluster"), name, "")),
            origin_topic(message),
        )
        for message in _stored_letters(store, chosen, output)[0]
    ]


async def _resend(
    admin: "AdminClient",
    letters: "list[DeadLetter]",
    chosen: DeadLetterSelection,
    where: str,
    rate: float | None,
    state: Path | None,
    confirmation: Confirmation,
    output: Output,
) -> int:
    from mqtool.engine.client_runtime.dead_letters import Resender, ResentLog, state_file
    from mqtool.engine.client_runtime.wire import together

    clusters = sorted({master.cluster for master in await admin.masters()})
    with ResentLog(state or state_file("+".join(clusters), chosen.group)) as log:
        resender = Resender(admin, log, to_retry=where == "retry")
        were_sent = await together(map(resender.was_sent, letters))
        waiting = [letter for letter, was_sent in zip(letters, were_sent, strict=True) if not was_sent]
        if len(waiting) < len(letters):
            already = counted(len(letters) - len(waiting), "dead letter")
            output.remark(f"{already} already resent, according to {log.path} and the brokers")
        waiting = waiting[: chosen.limit]
        _show_plan(chosen, waiting, where, output)
        if not waiting:
            output.remark("there is nothing to resend")
            return Status.OK
        await resender.check_target(waiting)
        output.flush()
        if not confirmation.is_answered_yes("Resend them?"):
            return Status.DAMAGE
        output.new_table(_SENT_COLUMNS)
        return await _send_all(resender, waiting, rate, output)


def _show_plan(chosen: DeadLetterSelection, waiting: "list[DeadLetter]", where: str, output: Output) -> None:
    output.columns = ("group", "origin_topic", "messages", "to")
    topics: dict[str | None, int] = {}
    for letter in waiting:
        topics[letter.topic] = topics.get(letter.topic, 0) + 1
    for topic, count in sorted(topics.items(), key=lambda entry: entry[0] or ""):
        to = "the retry topic of the group" if where == "retry" else "the original topic, for all groups"
        row = {"kind": "plan", "group": chosen.group, "origin_topic": topic, "messages": count, "to": to}
        output.row(row)


async def _send_all(resender: "Resender", waiting: "list[DeadLetter]", rate: float | None, output: Output) -> int:
    import asyncio

    from mqtool.commands.send import Pace
    from mqtool.engine.client_runtime.dead_letters import is_uncertain
    from mqtool.errors import BadDataError, FormatError

    pace, outcomes = Pace(rate), {"sent": 0, "failed": 0}
    try:
        for letter in waiting:
            await asyncio.sleep(pace.wait(1, time.monotonic()))
            try:
                copy_id = await resender.send(letter, int(time.time() * 1000))
            except (BadDataError, FormatError, NotFoundError, UsageError) as error:  # of this one letter
                outcomes["failed"] += 1
                row = _outcome(letter, "failed", None, str(error))
                output.row(row)
                if output.is_table:  # which may be too narrow for the reason
                    output.remark(f"queue {row['queue_id']} at {row['queue_offset']:,}: {error}")
                continue
            except MqtoolError as error:
                output.row(_outcome(letter, "uncertain" if is_uncertain(error) else "failed", None, str(error)))
                raise
            outcomes["sent"] += 1
            output.row(_outcome(letter, "sent", copy_id, ""))
    except BaseException:
        done = f"{outcomes['sent']:,} of {counted(len(waiting), 'dead letter')} were sent"
        output.remark(f"{done}: run it again for the rest")
        raise
    failed = f", {outcomes['failed']:,} failed" if outcomes["failed"] else ""
    output.remark(f"{counted(outcomes['sent'], 'dead letter')} resent and read back{failed}")
    return Status.GIVEN_UP if failed else Status.OK


def _outcome(letter: "DeadLetter", outcome: str, copy_id: str | None, reason: str) -> dict[str, Any]:
    message = letter.found.message
    return {
        "kind": "letter",
        "outcome": outcome,
        "origin_topic": letter.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "unique_key": message.unique_key,
        "copy_message_id": copy_id,
        "reason": reason,
        "broker_name": letter.found.broker.broker_name,
    }


# Done with them


@command.command(short_help="Purge the dead letters of a group.")
@group_option
@click.option("--delete-topic", is_flag=True, help="Delete their topic, instead of moving past them.")
@broker_option
@target_options
def purge(group: str, delete_topic: bool, broker_name: str | None, target: Target) -> int:
    """Purge all dead letters of a group: move past them, or delete their topic with --delete-topic.

    RocketMQ cannot delete single messages. Moving past them commits the end of the topic as an offset of the
    group: `dlq` leaves out what is before it (--passed shows it), until the broker deletes it with its log.
    """
    from mqtool.formats.topics import DEAD_LETTER_PREFIX

    topic = DEAD_LETTER_PREFIX + group
    if delete_topic:
        return target.run(
            "topic delete",
            {"topic": topic},
            broker_name,
            lambda admin: admin.delete_topic(topic, broker_name=broker_name, dry_run=True),
        )
    options = {"group": group, "topics": [topic], "timestamp": -1}
    return target.run("offset reset", options, broker_name, lambda admin: _plan_past(admin, group, topic, broker_name))


async def _plan_past(admin: "AdminClient", group: str, topic: str, broker_name: str | None) -> "Changes":
    """Plan to move past all dead letters; no consumer of the group has their queues, so brokers are told directly."""
    from mqtool.engine.client import calls
    from mqtool.engine.client_runtime.admin_changes import Changes

    masters = await admin.masters(broker_name)
    answers = await admin.ask_each(masters, calls.topic_configs)
    holders = [broker for broker, configs in answers if topic in configs]
    if not holders:
        raise _no_letters(group, {name for _, configs in answers for name in configs})
    committed = {
        (offset.broker_name, offset.queue_id): offset.consumer_offset
        for offset in await admin.offsets(group)
        if offset.topic == topic
    }
    changes, in_all = Changes(), 0
    for broker, queues in await admin.ask_each(holders, lambda: calls.topic_queues(topic)):
        for queue_id, queue in queues.items():
            before = committed.get((broker.broker_name, queue_id))
            if (before or 0) < queue.max_offset:
                count = queue.max_offset - max(before or 0, queue.min_offset)
                in_all += count
                changes.add(
                    "create" if before is None else "replace",
                    broker,
                    calls.set_offset(group, topic, queue_id, queue.max_offset),
                    f"past {counted(count, 'dead letter')}",
                    group=group,
                    topic=topic,
                    queue_id=queue_id,
                    consumer_offset=before,
                    new_offset=queue.max_offset,
                )
    if changes.changes:
        changes.remarks.append(
            f"the group moves past {counted(in_all, 'dead letter')}, which stay in {topic} until a broker deletes them"
        )
    return changes
