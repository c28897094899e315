"""``mqtool trace``."""

from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._brokers import Brokers
from mqtool.commands._options import output_option
from mqtool.commands._output import Output, counted
from mqtool.commands._wire import wire_options
from mqtool.errors import NotFoundError, Status, UsageError
from mqtool.formats.property_names import ORIGIN_MESSAGE_ID
from mqtool.formats.topics import TRACE_TOPIC

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.browser import Browsed, Browser
    from mqtool.formats.message import Message

_COLUMNS = ("event_time", "what", "group", "told", "topic", "queue_id", "queue_offset", "broker_name")
_COLUMNS_OF_GROUPS = _COLUMNS[2:]
_MAX_ORIGINS = 100
_WORDS = {
    "Pub": "sent",
    "SubBefore": "given",
    "SubAfter": "consumed",
    "EndTransaction": "transaction",
    "Recall": "recalled",
}
_TURNS = {"sent": 0, "stored": 1, "given": 2, "consumed": 3}
"""What came first within one millisecond; all else is later."""


@click.command(short_help="Trace the path of a message.")
@click.argument("message_id", metavar="[ID]", required=False)
@click.option("--key", metavar="TEXT", help="All messages with this key.")
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, help="Topic that clients send traces to.")
@wire_options
@output_option
def command(message_id: str | None, key: str | None, trace_topic: str, brokers: Brokers, output: Output) -> int:
    """Trace the path of a message: where it is stored, what clients reported about it, retries, dead letters, groups.

    \b
      mqtool trace -n localhost:9876 7F000001000051AF0000000000000000
      mqtool trace -n localhost:9876 --key order-4106

    ID is a unique key or an offset message id. Clients send traces if that is enabled (enableMsgTrace in Java).
    For each group that has committed an offset in the message's queue, a row shows whether it is past the
    message.
    """  # noqa: D301
    if (message_id is None) == (key is None):
        raise UsageError("give the ID of a message, or --key")
    output.always = ("what", "group", "told")
    count = brokers.admin(lambda admin: _trace(admin, message_id, key, trace_topic, output))
    if count > 1:
        output.remark(f"{count:,} messages have this key")
    return Status.OK


async def _trace(
    admin: "AdminClient", message_id: str | None, key: str | None, trace_topic: str, output: Output
) -> int:
    from mqtool.engine.client_runtime.browser import Browser
    from mqtool.formats.topics import is_system_topic

    browser = Browser(admin)
    topics = await browser.topics()
    own = {name for name in topics if not is_system_topic(name)} - {trace_topic}
    hits = await _found(browser, key or message_id or "", own)
    offsets = await admin.offsets()
    origins = [hit for hit in hits if not _is_copy(hit.message)]
    if len(origins) > _MAX_ORIGINS:
        raise UsageError(f"{len(origins):,} messages have this key: give the ID of one")
    if trace_topic not in topics:
        output.remark(f"the topic {trace_topic} does not exist: no client has reported any message")
    for origin in origins or hits[:1]:
        copies = [hit for hit in hits if _is_copy(hit.message) and hit is not origin and _is_of(hit.message, origin)]
        rows = [_stored(hit) for hit in (origin, *copies)]
        if trace_topic in topics and origin.message.unique_key:
            rows += await _told(browser, trace_topic, origin.message.unique_key)
        rows.sort(key=lambda row: (row["event_timestamp"] or 0, _TURNS.get(row["what"], len(_TURNS))))
        passed = [
            _passed(offset.group, offset.consumer_offset, hit)
            for hit in (origin, *copies)
            for offset in offsets
            if (offset.broker_name, offset.topic, offset.queue_id)
            == (hit.broker.broker_name, hit.message.topic, hit.message.queue_id)
        ]
        if len(origins) > 1:
            output.text(click.style(_named(origin), bold=True))
        for columns, of_table in ((_COLUMNS, rows), (_COLUMNS_OF_GROUPS, passed)):
            output.new_table(columns)
            for row in of_table:
                output.row({"of_message_id": origin.message.message_id, **row})
    for remark in browser.remarks:
        output.remark(remark)
    return len(origins)


async def _found(browser: "Browser", name: str, topics: set[str]) -> "list[Browsed]":
    """Return all messages with a key, or with that of the message of an id, in topics, retries among them."""
    from mqtool.errors import FormatError
    from mqtool.formats.hosts import parse_message_id

    hits = await browser.by_key(name, topics)
    if not hits:
        try:
            of_id = await browser.by_message_id(name, parse_message_id(name))
        except FormatError:
            of_id = None
        if of_id:
            same = await browser.by_key(of_id.message.unique_key, topics) if of_id.message.unique_key else []
            wanted = of_id.message.message_id
            return [of_id, *(hit for hit in same if _is_copy(hit.message) and hit.message.message_id != wanted)]
        raise NotFoundError(f"no message has the id or key {name}: it is in no index of a broker")
    return hits


def _named(hit: "Browsed") -> str:
    message = hit.message
    place = f"offset {message.queue_offset:,} in queue {message.queue_id} of {message.topic}"
    return f"{message.message_id}, {place} on {hit.broker.broker_name}"


def _is_copy(message: "Message") -> bool:
    from mqtool.formats.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX

    return message.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def _is_of(copy: "Message", origin: "Browsed") -> bool:
    """Tell whether a retry or a dead letter is of a message: unique keys alone do not say, as batches share one."""
    named = copy.properties.get(ORIGIN_MESSAGE_ID) or copy.unique_key
    return named in (origin.message.message_id, origin.message.unique_key)


def _stored(hit: "Browsed") -> dict[str, Any]:
    from mqtool.formats.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX

    message = hit.message
    event, group, note = "stored", None, f"born {message.store_timestamp - message.born_timestamp:,} ms before"
    for prefix, name in ((RETRY_PREFIX, "retry"), (DEAD_LETTER_PREFIX, "dead letter")):
        if message.topic.startswith(prefix):
            event, group = name, message.topic.removeprefix(prefix)
            note = f"{counted(message.reconsume_times, 'attempt')} failed"
    return _row(event, message.store_timestamp, group, note, hit)


def _row(
    event: str, timestamp: int | None, group: str | None, note: str, hit: "Browsed | None", **more: Any
) -> dict[str, Any]:
    message = hit.message if hit else None
    return {
        "what": event,
        "event_timestamp": timestamp,
        "group": group,
        "topic": message.topic if message else more.get("topic"),
        "queue_id": message.queue_id if message else None,
        "queue_offset": message.queue_offset if message else None,
        "reconsume_times": message.reconsume_times if message else None,
        "message_id": message.message_id if message else None,
        "told": note,
        "client_host": more.get("client_host"),
        "broker_name": hit.broker.broker_name if hit else None,
    }


def _passed(group: str, offset: int | None, hit: "Browsed") -> dict[str, Any]:
    place = hit.message.topic  # narrow tables have no column of it, and a retry another than its origin
    if offset is None:
        note = f"has committed nothing in {place}"
    elif offset > hit.message.queue_offset:
        note = f"is past it in {place}, at {offset:,}"
    else:
        note = (
            f"has {counted(hit.message.queue_offset - offset, 'message')} to read before it in {place}, at {offset:,}"
        )
    return _row("group", None, group, note, hit)


async def _told(browser: "Browser", trace_topic: str, unique_key: str) -> list[dict[str, Any]]:
    """Return what clients told of a message; how a consumption ended has the group and time of its begin."""
    from mqtool.errors import FormatError
    from mqtool.formats.trace import TraceRecord, parse_trace

    records: list[TraceRecord] = []
    for carrier in await browser.by_key(unique_key, [trace_topic]):
        try:
            parsed = parse_trace(carrier.message.plain_body())
        except FormatError as error:
            browser.remarks.append(f"the trace message {carrier.message.message_id} cannot be read: {error}")
            continue
        records += [record for record in parsed if unique_key in record.unique_key.split(",")]
    begun = {record.request_id: record for record in records if record.kind == "SubBefore"}
    rows = []
    for record in dict.fromkeys(records):
        before = begun.get(record.request_id) if record.kind == "SubAfter" else None
        how = "" if record.is_success is None else "successfully" if record.is_success else "without success"
        took = f"in {record.cost_ms:,} ms" if record.cost_ms is not None else ""
        timestamp = record.timestamp
        if timestamp is None and before and before.timestamp is not None:
            timestamp = before.timestamp + (record.cost_ms or 0)
        rows.append(
            _row(
                _WORDS[record.kind],
                timestamp,
                record.group or (before.group if before else None),
                " ".join(filter(None, (record.state.lower(), how, took))),
                None,
                topic=record.topic or None,
                client_host=record.client_host or None,
            )
        )
    return rows
