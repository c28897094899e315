"""``mqtool find``."""

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mqtool.commands._brokers import Brokers
from mqtool.commands._options import (
    key_filter,
    limit_option,
    live_option,
    matching,
    message_options,
    output_option,
    queue_filter,
    range_options,
    require_log,
    tag_filter,
    tell_may_be_live,
    time_options,
    topic_filter,
)
from mqtool.commands._output import Output, counted, progress
from mqtool.commands._query import topics_of, unread_remarks
from mqtool.commands._rows import message_columns, message_row
from mqtool.commands._wire import source_options
from mqtool.errors import Status, UsageError

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.browser import Browsed, Browser
    from mqtool.engine.store.reader import StoreReader
    from mqtool.engine.store.search import Query, Search
    from mqtool.formats.message import Message

_SNIPPET_FROM = 30


def _regexes(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> "tuple[re.Pattern[str], ...]":
    try:
        return tuple(re.compile(value) for value in values)
    except re.error as error:
        raise click.BadParameter(f"{error.pattern!r} is not a regular expression: {error}") from error


def _properties(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return names and patterns of ``NAME=VALUE``, or of ``NAME`` alone."""
    conditions = []
    for value in values:
        name, equals, pattern = value.partition("=")
        if not name or (equals and not pattern) or not name.isprintable():
            raise click.BadParameter(f"{value}: give it as NAME=VALUE, or NAME alone for any value")
        conditions.append((name, pattern if equals else "*"))
    return tuple(conditions)


_CONDITIONS = (
    topic_filter,
    queue_filter,
    tag_filter,
    key_filter,
    click.option(
        "--text", "texts", multiple=True, metavar="TEXT",
        help="Only messages with this text in the body; repeatable, must match all.",
    ),
    click.option(
        "--regex", "regexes", multiple=True, callback=_regexes, metavar="RE",
        help="Only messages whose body matches this; repeatable, must match all.",
    ),
    click.option(
        "--property", "properties", multiple=True, callback=_properties, metavar="NAME[=GLOB]",
        help="Only messages with this property and value; repeatable, must match all.",
    ),
    range_options,
    time_options,
)  # fmt: skip


def query_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the conditions for messages; the command receives what ``query_of`` takes."""
    return functools.reduce(lambda decorated, add: add(decorated), reversed(_CONDITIONS), command)


def query_of(
    topics: tuple[str, ...],
    queues: tuple[str, ...],
    tags: tuple[str, ...],
    keys: tuple[str, ...],
    texts: tuple[str, ...],
    regexes: tuple["re.Pattern[str]", ...],
    properties: tuple[tuple[str, str], ...],
    start: int | None,
    stop: int | None,
    since: int | None,
    until: int | None,
) -> "Query":
    """Return the query for what ``query_options`` gave; its topics are left to ``topics_of`` each store.

    Raises:
        UsageError: there is no condition at all.
    """
    from mqtool.engine.store.search import Query

    filters = (topics, queues, tags, keys, texts, regexes, properties)
    if not any(filters) and all(bound is None for bound in (start, stop, since, until)):
        raise UsageError("no condition given: use --key, --tag, --text or another condition")
    return Query(
        keys=keys, tags=tags, texts=texts, regexes=regexes, properties=properties, queues=queues, since=since,
        until=until, start_offset=start or 0, stop_offset=stop,
    )  # fmt: skip


@click.command(short_help="Find messages by key, tag, body, property or time.")
@query_options
@limit_option
@click.option("--scan", is_flag=True, help="Search the log itself, without the index files.")
@click.option("--broker", "broker_name", metavar="NAME", help="Only this broker. Default: all.")
@message_options
@live_option
@source_options
@output_option
def command(
    limit: int | None,
    scan: bool,
    broker_name: str | None,
    body: str,
    source: "Brokers | StoreReader",
    output: Output,
    **conditions: Any,
) -> int:
    """Find the messages that match every condition, in the order of the log.

    \b
      mqtool find --key order-4106
      mqtool find --topic 'Order*' --tag TagA --since 2h
      mqtool find --text 'connection refused' --property 'KEYS=order-*' --limit 10
      mqtool find -n localhost:9876 --topic Orders --text refused --since 2h

    A GLOB is a name, or a pattern with * and ?. Bodies are searched as the producer sent them, compressed or not.
    Messages in an inner batch count: the record that holds them is shown. --from and --to are physical offsets.

    A key is looked up in the index files. The log is scanned where they do not cover it or are inconsistent, and
    for all other conditions; --topic, --since, --until, --from and --to reduce that. Brokers look up a key that
    is not a pattern; for anything else whole queues are pulled, which needs --since or --limit. Exits with status
    3 if part of the log that was scanned, or a message that an index entry refers to, could not be read.
    """  # noqa: D301
    from mqtool.engine.store.search import Search

    query = query_of(**conditions)
    if isinstance(source, Brokers):
        source.remark(output)
        wanted = _FindQuery(query, conditions["topics"], broker_name, limit, scan)
        return source.admin(lambda admin: _find_on_brokers(admin, wanted, body, output))
    if broker_name is not None:
        raise UsageError("--broker selects one of several brokers, but a store belongs to only one: leave it out")
    store = source
    require_log(store)
    query = dataclasses.replace(query, topics=topics_of(store, conditions["topics"]))
    search = Search(store, query, use_index=not scan)
    output.tell_compiling(search.scan_size)
    output.columns, output.always = _columns(query, output.width, body), _always(query)
    try:
        with progress(search.scan_size, "find") as advance:
            for message in itertools.islice(search.messages(advance), limit):
                output.row(_row(message, query, body, output))
    except KeyboardInterrupt:
        output.remark(_summary(search, output.count, f"interrupted: continue with --from {search.position}"))
        raise
    for remark in (*store.remarks, *unread_remarks(search)):
        output.remark(remark)
    output.remark(_summary(search, output.count, "--limit is reached" if output.count == limit else ""))
    if search.gaps or search.faulty_count:
        tell_may_be_live(store, output)
    return Status.DAMAGE if search.is_damaged else Status.OK


class _FindQuery(NamedTuple):
    """What is asked of brokers."""

    query: "Query"
    topics: tuple[str, ...]
    broker_name: str | None
    limit: int | None
    scan: bool

    @property
    def has_keys(self) -> bool:
        """Whether brokers can look up all that is wanted."""
        from mqtool.engine.store.search import is_glob

        return bool(self.query.keys) and not self.scan and not any(map(is_glob, self.query.keys))


async def _find_on_brokers(admin: "AdminClient", wanted: _FindQuery, body: str, output: Output) -> int:
    from mqtool.engine.client_runtime.browser import Browser
    from mqtool.formats.topics import is_system_topic

    if not wanted.has_keys and wanted.query.since is None and wanted.limit is None:
        raise UsageError("whole queues would be pulled: give --since or --limit (or a --key without a pattern)")
    browser = Browser(admin, wanted.broker_name)
    known = await browser.topics()
    chosen = matching(wanted.topics, known, "topic") if wanted.topics else None
    topics = sorted(chosen if chosen is not None else {name for name in known if not is_system_topic(name)})
    output.columns, output.always = _columns(wanted.query, output.width, body), _always(wanted.query)
    looked = f"{counted(len(topics), 'topic')} looked up by key" if wanted.has_keys else ""
    messages = _with_keys(browser, wanted, topics) if wanted.has_keys else None
    if messages is None:
        places = await browser.starts(await browser.places(topics), wanted.query.since)
        size = sum(place.max_offset - place.min_offset for place in places)
        output.remark(
            f"pulling {counted(size, 'message')} in {counted(len(places), 'queue')} of "
            f"{counted(len(topics), 'topic')}, or fewer if --limit is reached"
        )
        messages = browser.search(places, wanted.query)
        looked = f"{counted(len(places), 'queue')} pulled"
    async with contextlib.aclosing(messages):
        while output.count != wanted.limit and (hit := await anext(messages, None)):
            output.row(_row(hit.message, wanted.query, body, output))
    for remark in browser.remarks:
        output.remark(remark)
    count_text = counted(output.count, "message") if output.count else "no message"
    output.remark(f"{count_text} found; {looked}{'; --limit is reached' if output.count == wanted.limit else ''}")
    return Status.DAMAGE if browser.remarks else Status.OK


async def _with_keys(browser: "Browser", wanted: _FindQuery, topics: list[str]) -> "AsyncGenerator[Browsed, None]":
    shown = set()
    for key in wanted.query.keys:
        for hit in await browser.by_key(key, topics):
            place = (hit.broker, hit.message.position, hit.message.queue_offset)
            if place not in shown and wanted.query.matches(hit.message):
                shown.add(place)
                yield hit


def _always(query: "Query") -> tuple[str, ...]:
    """Return what no terminal is too narrow for, however long the name of the topic is."""
    return ("keys", "body") if query.keys else ("tags", "body") if query.tags else ("body",)


def _columns(query: "Query", width: int, body: str) -> tuple[str, ...]:
    """Return what a table shows: what was asked for before what was not."""
    columns = message_columns(width, body)
    wanted = _always(query)[:-1]
    place = columns.index("queue_offset") + 1
    return (*columns[:place], *(name for name in wanted if name not in columns), *columns[place:])


def _row(message: "Message", query: "Query", body: str, output: Output) -> dict[str, Any]:
    """Return a message as a row; a table shows of its body where the wanted text stands."""
    row = message_row(message, body)
    text = row.get("body")
    if output.is_table and isinstance(text, str) and row["body_encoding"] == "text":
        at = max(
            [text.find(searched) for searched in query.texts] + [_place(regex, text) for regex in query.regexes],
            default=0,
        )
        if at > _SNIPPET_FROM:
            row["body"] = f"…{text[at - _SNIPPET_FROM // 2 :]}"
    return row


def _place(regex: "re.Pattern[str]", text: str) -> int:
    match = regex.search(text)
    return match.start() if match else 0


def _summary(search: "Search", count: int, stopped: str) -> str:
    asked = counted(search.index_files_used, "index file")
    ways = [f"{asked} searched"] if search.index_files_used else []
    if search.scanned_size or not (ways or stopped):
        ways.append(f"{search.scanned_size:,} of {search.total_size:,} bytes of log scanned")
    count_text = counted(count, "message") if count else "no message"
    parts = [f"{count_text} found", *([", ".join(ways)] if ways else []), *([stopped] if stopped else [])]
    return "; ".join(parts)
