"""Write docs/reference/rows.md and rows/*.json, a JSON Schema of each kind of row: ``python -m tools.row_schemas``.

Schemas are made of what commands write on the stores of the fixtures, damaged ones too, and on a broker that runs
here, and of the classes behind the rows where there are some: a field is required if every such row has it, and may be
null if one of them has null. Cost: some seconds.
"""

import contextlib
import io
import itertools
import json
import os
import shutil
import sys
import tempfile
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mqtool
from mqtool import cli
from mqtool.commands.dump import KINDS
from mqtool.commands.topic import TopicSubscription
from mqtool.engine.repair.compare.keys import Difference
from mqtool.engine.repair.compare.stores import FileDifference, Range
from mqtool.engine.repair.doctor.broker import StartOutcome
from mqtool.engine.repair.doctor.diagnosis import Diagnosis
from mqtool.engine.repair.findings import Finding
from tools import sessions

VERSION = 1
FOLDER = sessions.ROOT / "docs" / "reference" / "rows"
PAGE = FOLDER.parent / "rows.md"
_GOLDEN = sessions.ROOT / "fixtures" / "golden"
STORES = (
    *("mixed-533-kill", "mixed-497-clean", "txn-533-clean", "retry-533-clean", "timer-533-clean", "batchcq-533-clean"),
    *("ext-533-clean", "dledger-497-clean", "rocksdb-533-clean", "special-533-clean", "propcrc-533-clean"),
)
Row = dict[str, Any]


class Kind(NamedTuple):
    """A kind of row: what it is, and the commands that write it; of their rows those whose ``kind`` is this one."""

    what: str
    commands: tuple[str, ...]
    kind: str | None = None


def _dumps() -> dict[str, Kind]:
    found = {}
    for name, kind in KINDS.items():
        if name == "commitlog":
            continue  # messages
        limit = " --limit 300" if "limit" in kind.options else ""
        lines = tuple(f"dump {name} -s {store}{limit}" for store in STORES)
        found[f"dump_{name}"] = Kind(kind.help.partition(" --from")[0], lines)
    return found


ROWS: Mapping[str, Kind] = {
    **_dumps(),
    "message": Kind(
        "A message, of `dump commitlog`, `find`, `get` and `pull`; `export` adds `stored_body`.",
        (*(f"dump commitlog -s {store} --limit 300" for store in STORES), "find -s mixed-533-kill --topic log-x"),
    ),
    "pulled_message": Kind(
        "A message of a broker, of `pull -n`, `find -n` and `get -n`.", ("pull -n NS --topic Orders --queue 0",)
    ),
    "consumed_message": Kind(
        "A message of `consume`.", ("consume -n NS --topic Orders --group g --peek --begin first --idle 300ms",)
    ),
    "sent_message": Kind(
        "The result of `send` for a message.", ("send -n NS --topic Orders --queue 0 --tag a --key k one two",)
    ),
    "finding": Kind("A finding of `verify`.", ("verify -s sick", *(f"verify -s {store}" for store in STORES))),
    "check": Kind("A check, of `explain`.", ("explain", "explain LOG-CRC")),
    "store": Kind("The description of a store, of `info`.", tuple(f"info -s {store}" for store in STORES)),
    **{
        f"stats_{by}": Kind(
            f"Counts, of `stats --by {by}`.",
            (f"stats -s mixed-533-kill --by {by}", f"stats -s txn-533-clean --by {by}"),
        )
        for by in ("topic", "queue", "tag", "hour", "size", "host")
    },
    "compare_range": Kind(
        "Addresses at which two logs differ, of `compare`.", ("compare mixed-533-kill sick",), "range"
    ),
    "compare_queue": Kind(
        "Messages of a queue that only one of two logs has, of `compare`.", ("compare mixed-533-kill sick",), "queue"
    ),
    "compare_file": Kind(
        "A queue or a table in which two stores differ, of `compare`.", ("compare mixed-533-kill queueless",), "file"
    ),
    "compare_message": Kind(
        "A message of which one store has more, of `compare --by key`.",
        ("compare mixed-533-kill sick --by key",),
        "message",
    ),
    "compare_topic": Kind(
        "Counts of a topic, of `compare --by key`.", ("compare mixed-533-kill sick --by key",), "topic"
    ),
    "doctor_start": Kind(
        "The outcome of starting a broker, of `doctor`.", ("doctor -s sick", "doctor -s retry-533-clean"), "start"
    ),
    "doctor_group": Kind(
        "The effect of starting a broker on a consumer group, of `doctor`.", ("doctor -s lost",), "group"
    ),
    "doctor_cause": Kind("A cause, of `doctor`.", ("doctor -s sick", "doctor -s lost"), "cause"),
    "plan_change": Kind(
        "A step of a repair, of `recover`, `rebuild`, `apply` and the like.",
        ("recover -s sick --dry-run", "rebuild all -s mixed-533-kill --dry-run"),
        "change",
    ),
    "plan_loss": Kind(
        "A loss of a repair, of the same commands; a message that `import` leaves out.",
        ("recover -s sick --dry-run",),
        "loss",
    ),
    "salvaged_topic": Kind("Counts of a topic, of `salvage`.", ("salvage -s sick --into new --dry-run",)),
    "topic": Kind("A topic, of `topic list`.", ("topic list -s mixed-533-kill", "topic list -n NS")),
    "topic_queue": Kind(
        "A queue, of `topic show`.", ("topic show -s mixed-533-kill OrderEvents", "topic show -n NS Orders")
    ),
    "topic_subscription": Kind(
        "Who reads a queue, of `topic show --subscriptions`.",
        ("topic show -s retry-533-clean --subscriptions *", "topic show -n NS Orders --subscriptions"),
    ),
    "group": Kind("A consumer group, of `group list`.", ("group list -s retry-533-clean", "group list -n NS")),
    "offset": Kind(
        "The consumer offset of a group in a queue, of `offset list`.",
        ("offset list -s retry-533-clean", "offset list -n NS"),
    ),
    "dead_letters": Kind("The dead letters of a group, of `dlq list`.", ("dlq list -s retry-533-clean",)),
    "broker": Kind("A broker, of `cluster list`.", ("cluster list -n NS",)),
    "trace": Kind("A step on the path of a message, of `trace`.", ("trace -n NS --key k",)),
    "planned_change": Kind(
        "A change of topics, groups or offsets of brokers.",
        ("topic create -n NS Invoices --yes", "offset set -n NS --group g --topic Orders --queue 0 --offset 1 --yes"),
    ),
}


def samples() -> dict[str, list[Row]]:
    """Return rows of each kind, by the commands that write it. They are run in a folder of their own."""
    rows: dict[str, list[Row]] = {}
    with stores(), mqtool.Broker() as broker:
        _run(f"send -n {broker.name_server_address} --topic Orders --queue 0 --tag a --key k zero".split())
        _run(f"group create -n {broker.name_server_address} g --yes".split())
        _run(f"offset set -n {broker.name_server_address} --group g --topic Orders --queue 0 --offset 0 --yes".split())
        for name, kind in ROWS.items():
            found = [
                row for line in kind.commands for row in _run(line.replace("NS", broker.name_server_address).split())
            ]
            rows[name] = [row for row in found if kind.kind is None or row.get("kind") == kind.kind]
    return rows


@contextlib.contextmanager
def stores() -> Iterator[None]:
    """Work in a folder that has the stores of the table."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sessions.prepare(Path())
        for name in STORES:
            sessions.unpack(_GOLDEN / f"{name}.tar.xz", Path(name))
        Path("retry-533-clean").rename("lost")  # and a copy whose last segments are gone, so that groups are hit
        sessions.unpack(_GOLDEN / "retry-533-clean.tar.xz", Path("retry-533-clean"))
        with next(Path("lost/commitlog").glob("0*")).open("r+b") as segment:
            segment.seek(9000)
            segment.write(bytes(3000))
        shutil.copytree("mixed-533-kill", "queueless")
        shutil.rmtree("queueless/consumequeue/pay_events")
        yield


def _run(arguments: list[str]) -> list[Row]:
    """Return the rows that a command writes as JSON lines, none where the store has no such thing."""
    output, before = io.TextIOWrapper(io.BytesIO(), "utf-8"), (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = output, io.TextIOWrapper(io.BytesIO(), "utf-8")
    try:
        cli.run([*arguments, "-o", "jsonl"])
        output.flush()
        return [json.loads(line) for line in output.buffer.getvalue().splitlines()]
    finally:
        sys.stdout, sys.stderr = before


CLASSES: Mapping[str, type] = {
    "finding": Finding,
    "compare_range": Range,
    "compare_file": FileDifference,
    "compare_message": Difference,
    "doctor_start": StartOutcome,
    "doctor_cause": Diagnosis,
    "topic_subscription": TopicSubscription,
}
"""The class of a row, whose types say more than samples do."""


def schema_of(name: str, rows: list[Row]) -> Row:
    """Return the JSON Schema of rows of one kind."""
    schema = _of_values(rows)
    for field, hint in typing.get_type_hints(CLASSES[name]).items() if name in CLASSES else ():
        if field in schema["properties"]:
            known = schema["properties"][field]
            before = [known["type"]] if isinstance(known["type"], str) else known["type"]
            both = sorted({*before, *_types_of(hint)})
            known["type"] = both[0] if len(both) == 1 else both
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:mqtool:row:{name}:{VERSION}",
        "title": name,
        "description": ROWS[name].what,
        **schema,
    }


def _types_of(hint: Any) -> Iterator[str]:
    """Yield the JSON types of a type hint."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        for one in typing.get_args(hint):
            yield from _types_of(one)
        return
    plain = typing.get_origin(hint) or hint
    for kind, name in ((type(None), "null"), (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if isinstance(plain, type) and issubclass(plain, kind):
            yield name
            return
    yield "array" if plain in (list, tuple) else "object"


def _of_values(values: list[Any]) -> Row:
    """Return the schema of values: all their types, members and items."""
    types = sorted({_type(value) for value in values})
    if "integer" in types and "number" in types:
        types.remove("integer")
    schema: Row = {"type": types[0] if len(types) == 1 else types}
    objects = [value for value in values if isinstance(value, dict)]
    if objects and not _is_map(objects):
        names = dict.fromkeys(itertools.chain.from_iterable(objects))
        schema["properties"] = {name: _of_values([one[name] for one in objects if name in one]) for name in names}
        for name in names:
            if name.endswith("_time") and f"{name}stamp" in names:  # null for what no calendar holds
                schema["properties"][name] = {"type": ["null", "string"]}
        schema["required"] = [name for name in names if all(name in one for one in objects)]
    items = [item for value in values if isinstance(value, list) for item in value]
    if items:
        schema["items"] = _of_values(items)
    return schema


def _is_map(objects: list[Row]) -> bool:
    """Tell whether the members of objects are data (properties, tables), not fields, by how they are spelt."""
    names = {name for one in objects for name in one}
    return any(not name.replace("_", "").isalnum() or name != name.lower() for name in names)


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def faults(schema: Row, value: Any, place: str = "row") -> Iterator[str]:
    """Yield what keeps a value from having a schema, a field that the schema does not know included."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    known = _type(value)
    if known not in types and not (known == "integer" and "number" in types):
        yield f"{place} is {known}, not {' or '.join(types)}"
    if isinstance(value, dict) and "properties" in schema:
        for name in schema["required"]:
            if name not in value:
                yield f"{place} has no {name}"
        for name, member in value.items():
            if name not in schema["properties"]:
                yield f"{place} has {name}"
            else:
                yield from faults(schema["properties"][name], member, f"{place}.{name}")
    if isinstance(value, list) and "items" in schema:
        for item in value:
            yield from faults(schema["items"], item, f"{place}[]")


_HEAD = """\
# Rows

Every command writes its results as JSON lines with `-o jsonl` (in a pipe by default). There is one JSON Schema for each
kind of row, in the folder `rows`. This page and the schemas are made by `python -m tools.row_schemas` from what the
commands write.

**Version {version}.** What is promised within a version: a field that is listed stays and keeps its name, its type and
its meaning, and a required field is always there. New fields and new kinds of rows may be added at any time, so
programs should ignore fields that they do not know. Whatever breaks this gets a new version and a line in the
changelog.

A type in parentheses is that of a field that some rows do not have. `?` means that the field may be null.

| Row | What it is | Fields |
|---|---|---|
"""


def page(schemas: Mapping[str, Row]) -> str:
    """Return the page that lists all kinds."""
    lines = []
    for name, schema in schemas.items():
        fields = ", ".join(_field(schema, field) for field in schema.get("properties", {}))
        lines.append(f"| [{name}](rows/{name}.json) | {schema['description']} | {fields} |\n")
    return _HEAD.format(version=VERSION) + "".join(lines)


def _field(schema: Row, name: str) -> str:
    said = schema["properties"][name]["type"]
    types = [said] if isinstance(said, str) else said
    text = " or ".join(one for one in types if one != "null") + ("?" if "null" in types else "")
    return f"`{name}` {text}" if name in schema["required"] else f"`{name}` ({text})"


def main() -> None:
    """Write the schemas and the page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = samples()
    missing = [name for name, found in rows.items() if not found]
    if missing:
        raise SystemExit(f"no rows of {', '.join(missing)}")
    schemas = {name: schema_of(name, found) for name, found in rows.items()}
    for name, schema in schemas.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(schema, indent=2) + "\n")
    PAGE.write_text(page(schemas))


if __name__ == "__main__":
    os.environ.pop("NAMESRV_ADDR", None)
    main()
