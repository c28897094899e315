"""``mqtool dump``."""

import importlib
import itertools
import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from mqtool.commands._options import (
    group_filter,
    key_filter,
    limit_option,
    live_option,
    message_options,
    output_option,
    packed_store_options,
    queue_filter,
    range_options,
    tag_filter,
    tell_may_be_live,
    time_options,
    topic_filter,
)
from mqtool.commands._output import Output, Row, progress
from mqtool.errors import Status, UsageError

if TYPE_CHECKING:
    from mqtool.commands._dump.request import DumpRequest
    from mqtool.engine.store.reader import StoreReader

_PICK = ("topic", "queue")
_RANGE = ("from", "to")
_TIME = ("since", "until")
_UNIT = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code")


class DumpKind(NamedTuple):
    """One kind of file: what it is, which function yields its rows, and the options that mean something for it."""

    help: str
    rows: str  # module and function, loaded when called
    options: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


KINDS = {
    "commitlog": DumpKind(
        "Messages; also those of a DLedger log. --from and --to are physical offsets.",
        "log:messages",
        (*_PICK, "tag", "key", *_RANGE, *_TIME, "limit", "body", "format", "follow"),
    ),
    "consumequeue": DumpKind(
        "Units of queues. --from and --to are queue offsets.",
        "queues:units",
        (*_PICK, *_RANGE, "limit", "follow"),
        _UNIT,
    ),
    "rocksdbconsumequeue": DumpKind(
        "Units of queues in RocksDB. --from and --to are queue offsets.",
        "queues:rocksdb_units",
        (*_PICK, *_RANGE, *_TIME, "limit"),
        (*_UNIT, "store_time"),
    ),
    "consumequeueext": DumpKind(
        "Units of queue extensions. --from and --to are positions.",
        "queues:ext_units",
        (*_PICK, *_RANGE, *_TIME, "limit"),
        ("topic", "queue_id", "position", "size", "tags_code", "store_time", "bit_map_size", "address", "bit_map"),
    ),
    "batchconsumequeue": DumpKind(
        "Units of the queues of inner batches. --from and --to are queue offsets.",
        "queues:batch_units",
        (*_PICK, *_RANGE, *_TIME, "limit"),
        ("topic", "queue_id", "queue_offset", "batch_size", "physical_offset", "size", "tags_code", "store_time",
         "compacted_offset"),
    ),
    "index": DumpKind(
        "Entries of index files. --from and --to are physical offsets.",
        "index:entries",
        (*_RANGE, *_TIME, "limit"),
        ("file", "entry", "slot", "key_hash", "physical_offset", "seconds_since_begin", "previous_entry"),
    ),
    "indexheader": DumpKind(
        "Headers of index files.",
        "index:headers",
        ("limit",),
        ("file", "entry_count", "slot_count", "begin_time", "end_time", "begin_physical_offset", "end_physical_offset"),
    ),
    "checkpoint": DumpKind("The times up to which everything is on disk, as the broker says.", "files:checkpoint_page"),
    "config": DumpKind(
        "Tables: topics, groups, offsets, ..; FILE is one of them (topics.json, or topics).",
        "config:tables",
        ("file", *_PICK, "group", "limit"),
    ),
    "timerwheel": DumpKind(
        "Slots of the timer wheel that were ever used.",
        "files:timer_wheel",
        ("limit",),
        ("slot", "time", "count", "first_position", "last_position", "magic_code"),
    ),
    "timerlog": DumpKind(
        "Units of the timer log. --from and --to are positions.",
        "files:timer_log",
        (*_RANGE, "limit"),
        ("position", "physical_offset", "message_size", "enqueue_time", "delay_ms", "magic_code", "previous_position",
         "topic_hash"),
    ),
    "timercheck": DumpKind("The progress of the timer.", "files:timer_check_page"),
    "abort": DumpKind("Whether the broker is running or did not stop cleanly.", "files:abort"),
    "lock": DumpKind("Whether a broker holds the store.", "files:lock"),
    "dledger": DumpKind(
        "Heads of the entries of a DLedger log. --from and --to are positions.",
        "files:dledger_entries",
        (*_RANGE, "limit"),
        ("position", "index", "term", "size", "body_size", "magic_code", "channel", "chain_crc", "body_crc"),
    ),
    "dledgerindex": DumpKind(
        "Units of the index of a DLedger log. --from and --to are positions of entries.",
        "files:dledger_index",
        (*_RANGE, "limit"),
        ("index", "position", "size", "term", "magic_code"),
    ),
}  # fmt: skip

_PARAMETERS = {
    "file": "file", "topics": "topic", "queues": "queue", "tags": "tag", "keys": "key", "groups": "group",
    "start": "from", "stop": "to", "since": "since", "until": "until", "limit": "limit", "body": "body",
    "template": "format", "follow": "follow",
}  # fmt: skip
"""Each parameter by its name in code, and as a user writes it."""


class _Dump(click.Command):
    """A command whose help lists the kinds."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Kinds"):
            formatter.write_dl([(name, kind.help) for name, kind in KINDS.items()])
        super().format_options(ctx, formatter)


@click.command(cls=_Dump, short_help="List the records of one kind of file.")
@click.argument("kind", metavar="KIND", type=click.Choice(list(KINDS)))
@click.argument("file", metavar="[FILE]", required=False)
@topic_filter
@queue_filter
@tag_filter
@key_filter
@group_filter
@range_options
@time_options
@limit_option
@message_options
@click.option("--follow", is_flag=True, help="Keep printing as a broker appends, until Ctrl-C or --limit.")
@live_option
@packed_store_options
@output_option
@click.pass_context
def command(ctx: click.Context, /, kind: str, store: "StoreReader", output: Output, **chosen: Any) -> int:
    """List the records of one kind of file, with the fields of their layout.

    \b
      mqtool dump commitlog --topic 'Order*' --since 2h
      mqtool dump consumequeue --topic Orders --queue 0 --from 100 --to 200
      mqtool dump config topics

    Unreadable parts are skipped: a remark lists them, and the exit status is 3. The store may be in use: in-flight
    writes are left out, or with --follow shown once they are complete.
    """  # noqa: D301
    from mqtool.commands._dump.request import DumpRequest

    _refuse(ctx, kind)
    if chosen["follow"] and store.is_packed:
        raise UsageError(f"{store.root} is a compressed copy, to which nothing is appended: leave out --follow")
    output.columns = KINDS[kind].columns
    total = store.commit_log.total_size if kind == "commitlog" and _is_file(sys.stdout) else 0
    with progress(total, "dump") as advance:
        ask = DumpRequest(kind, store, output, advance=advance, **chosen)
        try:
            for row in itertools.islice(_rows(kind)(ask), ask.limit):
                output.row(row)
        except KeyboardInterrupt:
            if ask.reached:
                output.remark(f"stopped at {ask.reached}")
            raise
    if not output.count and ask.limit != 0 and kind != "config":
        ask.remark("no record matches")
    if ask.is_damaged:
        tell_may_be_live(store, output)
    ask.finish()
    return Status.DAMAGE if ask.is_damaged else Status.OK


def _rows(kind: str) -> "Callable[[DumpRequest], Iterator[Row]]":
    module, _, function = KINDS[kind].rows.partition(":")
    rows: Callable[[DumpRequest], Iterator[Row]] = getattr(
        importlib.import_module(f"mqtool.commands._dump.{module}"), function
    )
    return rows


def _refuse(ctx: click.Context, kind: str) -> None:
    """Refuse options that mean nothing for a kind of file.

    Raises:
        UsageError: there is one.
    """
    options = KINDS[kind].options
    used_options = [
        option
        for name, option in _PARAMETERS.items()
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE and ctx.params[name] is not None
    ]
    for option in used_options:
        if option not in options:
            written = "a file name" if option == "file" else f"--{option}"
            accepted = (
                ", ".join("FILE" if name == "file" else f"--{name}" for name in options) or "only -s, -c, --set and -o"
            )
            raise UsageError(f"{written} does not apply to dump {kind}; it takes {accepted}")
    if "follow" in used_options and {"to", "until"} & set(used_options):
        raise UsageError("--follow has no end: leave out --to and --until")


def _is_file(stream: Any) -> bool:
    """Tell whether a stream is a plain file: beside one, progress disturbs nobody."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
