"""Each job of ``mqtool spark`` held against the command of its name, on generated damages and with any cut of the log.

A seed is a case of ``tests/laws``: a golden store and one or two damages. Fifty seeds are held together, with ranges
from 9,000 bytes to 1 GiB, and a job that takes several stores answers for all of them. What jobs and commands answer is
compared as multisets, or by the kind of error where a command ends with one. A store whose groups have saved nothing
gets a table of offsets. All seeds run in one Spark session::

    python -m tests.campaigns.spark_jobs --seeds 1:501 --into spark_jobs.jsonl

With ``--without-java`` the tasks of each job are run one after another, and
what they give is brought together here: a seed takes half a second, and Spark itself is not tried.

Run again it goes on where it was stopped. Ends with status 1 when an answer differed.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import collections
import dataclasses
import functools
import json
import logging
import random
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet

from mqtool.commands._admin import stored_offsets
from mqtool.commands._options import require_log
from mqtool.engine.repair.compare.aligned import SIDES
from mqtool.engine.repair.compare.keys import Difference, Messages, compare_keys
from mqtool.engine.repair.rebuild.plan import build, refuse_log
from mqtool.engine.repair.verify.store import Level, verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.queue_view import queue_keys
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.search import Query, Search
from mqtool.engine.store.stats import KEYS, By, Selection, count_messages
from mqtool.errors import MqtoolError
from mqtool.formats import config_tables
from mqtool.formats.topics import SCHEDULE_GROUP
from mqtool.spark import compare, export, find, offsets, rebuild, spread, stats, verify
from mqtool.spark.messages import CORRUPT
from mqtool.spark.partitions import log_ranges
from mqtool.spark.stores import Store
from mqtool.spark.tables import TABLES
from tests.commands.running import run
from tests.golden import golden_store
from tests.laws.cases import case_of
from tests.spark.frames import Frames
from tests.spark.session import session
from tests.spark.test_verify_distributed import in_pieces as pieces_of_verify

SIZES = (9_000, 20_000, 65_536, 100_000, 1 << 20, 1 << 30)
TOGETHER = 50
"""So many seeds are held at once, with one size of ranges: a job on Spark takes about as long for one."""
AT_ONCE = 4
"""So many jobs run at once that take one store each."""
_RAISED = re.compile(r"mqtool\.errors\.(\w+)")
_SHOWN = 3
_QUERY = Query(texts=("1",))


@dataclasses.dataclass(frozen=True)
class DamagedStore:
    """A damaged store, what it was before, and where answers may be put."""

    seed: int
    called: str
    store: Store
    other: Store
    size: int  # bytes of a range
    folder: Path


def main() -> int:
    """Run the campaign; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1:501", metavar="FIRST:LAST", help="half open; default 1:501")
    parser.add_argument("--into", type=Path, default=Path("spark_jobs.jsonl"), metavar="FILE")
    parser.add_argument("--without-java", action="store_true", help="run the tasks without Spark")
    options = parser.parse_args()
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last or int(first) + 1))
    known = [json.loads(line) for line in options.into.read_text().splitlines()] if options.into.exists() else []
    done = {row["seed"] for row in known}
    warnings.simplefilter("ignore")
    logging.getLogger("mqtool").setLevel(logging.ERROR)
    spark = None if options.without_java else session()
    spread._MAX_TASKS = 0  # tasks of some ranges each: four for each core
    rows = [row for row in known if row["seed"] in seeds]
    seconds: dict[str, float] = collections.defaultdict(float)
    with options.into.open("a") as file:
        for start in range(seeds.start, seeds.stop, TOGETHER):
            some = [seed for seed in seeds[start - seeds.start : start - seeds.start + TOGETHER] if seed not in done]
            with tempfile.TemporaryDirectory() as folder:
                found = hold(spark, some, Path(folder), seconds) if some else []
            for row in found:
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
                for job, difference in row["differences"].items():
                    print(f"seed {row['seed']} ({row['case']}, {row['size']:,} B): {job}: {difference}", flush=True)
    answers = sum(row["answers"] for row in rows)
    wrong = sum(len(row["differences"]) for row in rows)
    print("seconds of jobs:", ", ".join(f"{job} {spent:,.0f}" for job, spent in seconds.items()))
    print(f"{len(rows):,} seeds, {answers:,} answers, {wrong:,} differ")
    return int(bool(wrong))


def hold(spark: Any, seeds: Sequence[int], folder: Path, seconds: dict[str, float]) -> list[dict[str, Any]]:
    """Return what some seeds came to: which cases they are, and where a job answered otherwise than its command."""
    size = SIZES[seeds[0] // TOGETHER % len(SIZES)]
    some = [made(seed, size, folder / str(seed)) for seed in seeds]
    differences: dict[int, dict[str, str]] = {one.seed: {} for one in some}
    for job, command in (COMMANDS if spark else COMMANDS | {"compare": _counted_as_compared}).items():
        wanted = {one.seed: answered(functools.partial(_asked, job, command, one)) for one in some}
        began = time.monotonic()
        for seed, difference in held_against(spark, job, some, wanted).items():
            differences[seed][job] = difference
        seconds[job] += time.monotonic() - began
    return [
        {"seed": one.seed, "case": one.called, "size": size, "answers": len(COMMANDS),
         "differences": differences[one.seed]}
        for one in some
    ]  # fmt: skip


def made(seed: int, size: int, folder: Path) -> DamagedStore:
    """Make the store of a seed."""
    case = case_of(seed)
    store = Store(str(case.build(folder / "store")))
    save_some_offsets(store, random.Random(seed))
    called = f"{case.base}: {', '.join(case.kinds)}"
    return DamagedStore(seed, called, store, Store(str(golden_store(case.base))), size, folder)


def held_against(spark: Any, job: str, some: Sequence[DamagedStore], wanted: dict[int, Any]) -> dict[int, str]:
    """Return where a job answers otherwise than its command, by seed.

    One job answers for all stores of which the command ends with no error; where it answers otherwise than the command
    does of all of them, for half of them each.
    """
    if job in ALONE or not spark:
        with ThreadPoolExecutor(AT_ONCE if spark else 1) as pool:
            return _merged(pool.map(lambda one: _held_alone(spark, job, one, wanted[one.seed]), some))
    together = [one for one in some if not isinstance(wanted[one.seed], str)]
    differences = _merged(_held_alone(spark, job, one, wanted[one.seed]) for one in some if one not in together)
    if len(together) < 2:
        return differences | _merged(_held_alone(spark, job, one, wanted[one.seed]) for one in together)
    answer = joined(job, together, [wanted[one.seed] for one in together])
    found = answered(lambda: ON_SPARK[job](spark, together))
    if found != answer:
        half = len(together) // 2
        of_halves = _merged(held_against(spark, job, part, wanted) for part in (together[:half], together[half:]))
        differences |= of_halves or {together[0].seed: f"of {len(together)} stores together: {told(found, answer)}"}
    return differences


def _held_alone(spark: Any, job: str, one: DamagedStore, wanted: Any) -> dict[int, str]:
    if not spark:
        found, answer = answered(lambda: _asked(job, IN_PIECES[job], one)), wanted
    else:
        on_spark = functools.partial({**ON_SPARK, **ALONE}[job], spark)
        found = answered(lambda: _asked(job, lambda one: on_spark([one]), one))
        answer = wanted if isinstance(wanted, str) else joined(job, [one], [wanted])
    return {} if found == answer else {one.seed: told(found, answer)}


def _merged(parts: Iterable[dict[int, str]]) -> dict[int, str]:
    return {seed: difference for part in parts for seed, difference in part.items()}


def _asked(job: str, ask: Callable[[DamagedStore], Iterable[Hashable]], held: DamagedStore) -> Iterable[Hashable]:
    """Ask of a store that both command lines take: where its log lies elsewhere they refuse it (``test_spark.py``)."""
    if job == "rebuild":
        refuse_log(held.store.open())
    elif job.startswith("stats") or job in ("find", "export"):
        require_log(held.store.open())
    return ask(held)


def joined(
    job: str, some: Sequence[DamagedStore], answers: Sequence["collections.Counter[Any]"]
) -> "collections.Counter[Any]":
    """Return what commands answer of some stores as one job answers it."""
    whole = collections.Counter[Any]()
    for one, answer in zip(some, answers, strict=True):
        if job.startswith("stats") or job in ("export", "rebuild"):  # their rows tell no store
            whole.update(answer)
        else:
            whole.update({(one.store.path, *row): count for row, count in answer.items()})
    if not job.startswith("stats"):
        return whole
    totals: dict[Hashable, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for key, *numbers in whole.elements():
        totals[key] = [one + other for one, other in zip(totals[key], numbers, strict=True)]
    return collections.Counter((key, *numbers) for key, numbers in totals.items())


def save_some_offsets(store: Store, chance: random.Random) -> None:
    """Have groups of a store whose table of offsets is sound and empty, or not there, read some of its queues."""
    path = Path(store.path, "config/consumerOffset.json")
    reader = store.open()
    try:
        if config_tables.consumer_offsets(reader.config_table(path.name) or {}):
            return
        keys = sorted(queue_keys(reader))
    except MqtoolError:
        return
    table: dict[str, dict[str, int]] = {}
    for topic, queue_id in chance.sample(keys, min(3, len(keys))):
        if topic and "@" not in topic and queue_id >= 0:
            for group in chance.choice((("GID_one",), ("GID_one", "GID_two"))):
                number = queue_id + chance.choice((0, 0, 0, 77))  # of a queue that is gone
                table.setdefault(f"{topic}@{group}", {})[str(number)] = chance.choice((0, 1, 5, 1000))
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"offsetTable": table}))


def answered(ask: Callable[[], Iterable[Hashable]]) -> Any:
    """Return what is answered as a multiset, or the kind of error."""
    try:
        return collections.Counter(ask())
    except MqtoolError as error:
        return type(error).__name__
    except Exception as error:
        raised = _RAISED.findall(str(error))
        return raised[-1] if raised else f"{type(error).__name__}: {str(error)[:500]}"


def told(found: Any, wanted: Any) -> str:
    """Return where two answers differ."""
    if isinstance(found, str) or isinstance(wanted, str):
        names = (one if isinstance(one, str) else f"{one.total():,} rows" for one in (found, wanted))
        return "{} in Spark, {} by the command".format(*names)
    more, less = found - wanted, wanted - found
    shown = [[repr(one)[:300] for one in list(some)[:_SHOWN]] for some in (more, less)]
    return f"{more.total():,} in Spark only {shown[0]}, {less.total():,} by the command only {shown[1]}"


def _verified(held: DamagedStore) -> Iterable[Hashable]:
    return ((repr(one),) for one in verify_store(held.store.open(), Level.FULL))


def _found(held: DamagedStore) -> Iterable[Hashable]:
    return ((message.position,) for message in Search(held.store.open(), _QUERY).messages())


def _compared(held: DamagedStore) -> Iterable[Hashable]:
    return ((one.side, one.left_count, one.right_count, one.physical_offset, one.topic) for one in _differences(held))


def _differences(held: DamagedStore) -> Iterable[Difference]:
    return compare_keys(held.store.open(), held.other.open(), Messages())


def _counted_as_compared(held: DamagedStore) -> Iterable[Hashable]:
    return ((one.side, one.left_count, one.right_count) for one in _differences(held))


COMMANDS: dict[str, Callable[[DamagedStore], Iterable[Hashable]]] = {
    "verify": _verified,
    "stats --by topic": lambda held: _counted(held.store, By.TOPIC),
    "stats --by queue": lambda held: _counted(held.store, By.QUEUE),
    "find": _found,
    "export": lambda held: _exported(held.store, held.folder),
    "rebuild": lambda held: _rebuilt(held.store, held.folder),
    "compare": _compared,
    "offsets": lambda held: _progress(held.store),
}
"""What the command of each job answers of a store, as rows."""


def _verified_on_spark(spark: Any, some: Sequence[DamagedStore]) -> Iterable[Hashable]:
    for row in verify.findings(spark, [one.store for one in some], Level.FULL, some[0].size).collect():
        yield row["store"], repr(verify.finding_of(row.asDict()))


def _counted_on_spark(spark: Any, some: Sequence[DamagedStore], by: By) -> Iterable[Hashable]:
    for row in stats.counts(spark, [one.store for one in some], by, Selection(), some[0].size).collect():
        if row["records"]:
            yield tuple(row[name] for name in KEYS[by]), row["messages"], row["size"], row["body_size"]


def _found_on_spark(spark: Any, some: Sequence[DamagedStore]) -> Iterable[Hashable]:
    planned = find.plan([(one.store, _QUERY) for one in some], some[0].size, True)
    return ((row["store"], row["position"]) for row in find.messages(spark, planned.items)[0].collect())


def _exported_on_spark(spark: Any, some: Sequence[DamagedStore]) -> Iterable[Hashable]:
    into = some[0].folder / "out"
    try:
        export.run(spark, [one.store for one in some], into, export.ExportSelection(), some[0].size)
        columns = ["physical_offset", "topic", "queue_offset", "body_crc"]
        for path in into.rglob("*.parquet"):
            with pyarrow.parquet.ParquetFile(path) as file:
                yield from (tuple(row[name] for name in columns) for row in file.read(columns).to_pylist())
    finally:
        shutil.rmtree(into, ignore_errors=True)


def _progress_on_spark(spark: Any, some: Sequence[DamagedStore]) -> Iterable[Hashable]:
    frame, observed = offsets.progress(spark, [one.store for one in some], some[0].size)
    rows = frame.collect()
    unread = observed.get["unread"]  # of all stores
    for one in some:
        listed = _as_listed([row.asDict() for row in rows if row["store"] == one.store.path])
        yield from ((one.store.path, *row) for row in listed)
        count = min(unread, _unread(one.store.open()))
        unread -= count
        yield from [(one.store.path, "unread")] * count
    yield from ["unread in none of them"] * unread


ON_SPARK: dict[str, Callable[[Any, Sequence[DamagedStore]], Iterable[Hashable]]] = {
    "verify": _verified_on_spark,
    "stats --by topic": lambda spark, some: _counted_on_spark(spark, some, By.TOPIC),
    "stats --by queue": lambda spark, some: _counted_on_spark(spark, some, By.QUEUE),
    "find": _found_on_spark,
    "export": _exported_on_spark,
    "offsets": _progress_on_spark,
}
"""What a job answers of some stores."""


def _rebuilt_on_spark(spark: Any, some: Sequence[DamagedStore]) -> Iterable[Hashable]:
    (one,) = some
    into = one.folder / "two"
    try:
        rebuild.run(spark, one.store, into, queues=True, index=True, topics=None, version=None, partition_size=one.size)
        return _files(into)
    finally:
        shutil.rmtree(into, ignore_errors=True)


def _compared_on_spark(spark: Any, some: Sequence[DamagedStore]) -> Iterable[Hashable]:
    (one,) = some
    return ((one.store.path, *row[:5]) for row in compare.by_key(spark, one.store, one.other, one.size)[0].collect())


ALONE: dict[str, Callable[[Any, Sequence[DamagedStore]], Iterable[Hashable]]] = {
    "rebuild": _rebuilt_on_spark,
    "compare": _compared_on_spark,
}
"""The same of jobs that take one store, or two to compare."""


def _found_in_pieces(held: DamagedStore) -> Iterable[Hashable]:
    items = find.plan([(held.store, _QUERY)], held.size, True).items
    return ((row["position"],) for row in _rows(map(find.find, items)) if row[CORRUPT] is None)


IN_PIECES: dict[str, Callable[[DamagedStore], Iterable[Hashable]]] = {
    "verify": lambda held: ((one,) for one in pieces_of_verify(held.store, Level.FULL, held.size).elements()),
    "stats --by topic": lambda held: _counted_in_pieces(held.store, By.TOPIC, held.size),
    "stats --by queue": lambda held: _counted_in_pieces(held.store, By.QUEUE, held.size),
    "find": _found_in_pieces,
    "export": lambda held: _exported_in_pieces(held.store, held.size),
    "rebuild": lambda held: _rebuilt_on_spark(Frames(), [held]),
    "compare": lambda held: _compared_in_pieces(held.store, held.other, held.size),
    "offsets": lambda held: _progress_in_pieces(held.store, held.size),
}
"""What the tasks of a job give of a store, one after another."""


def _rows(parts: Iterable[Iterable[Any]]) -> Iterable[dict[str, Any]]:
    return (row for part in parts for batch in part for row in batch.to_pylist())


def _counted_in_pieces(store: Store, by: By, size: int) -> Iterable[Hashable]:
    totals: dict[Hashable, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    items = (stats.StatsTask(parts, by, Selection()) for parts in stats._ranges(store, Selection(), size))
    for row in _rows(map(stats.count, items)):
        if row["records"]:
            total = totals[tuple(row[name] for name in KEYS[by])]
            for number, name in enumerate(("messages", "size", "body_size")):
                total[number] += row[name]
    return ((key, *total) for key, total in totals.items())


def _exported_in_pieces(store: Store, size: int) -> Iterable[Hashable]:
    ask = dataclasses.replace(export._ASK, max_partition=size)
    items = (export.ExportTask(part, ask.bounds) for part in TABLES["messages"].parts(store, store.open(), ask))
    return (
        (row["physical_offset"], row["topic"], row["queue_offset"], row["body_crc"])
        for row in _rows(map(export.read, items))
        if row[CORRUPT] is None
    )


def _compared_in_pieces(left: Store, right: Store, size: int) -> Iterable[Hashable]:
    counts = [
        collections.Counter(
            (row["first"], row["second"])
            for row in _rows(compare.identities((side, part)) for part in log_ranges(store, store.open(), size))
            if row["first"] is not None
        )
        for side, store in zip(SIDES, (left, right), strict=True)
    ]
    for key in counts[0].keys() | counts[1].keys():
        ours, others = (count[key] for count in counts)
        if ours != others:
            yield SIDES[others > ours], ours, others


def _counted(store: Store, by: By) -> Iterable[Hashable]:
    reader = store.open()
    log = reader.commit_log
    groups = count_messages(reader, by, Selection(), log.min_offset, log.end_offset).tally.groups
    return ((key, one.messages, one.size, one.body_size) for key, one in groups.items() if one.records)


def _exported(store: Store, folder: Path) -> Iterable[Hashable]:
    into = folder / "rows.jsonl"
    ran = run("export", "-s", store.path, "--into", into)
    if not into.exists():
        raise RuntimeError(ran.remarks)
    rows = map(json.loads, into.read_text().splitlines())
    return [(row["physical_offset"], row["topic"], row["queue_offset"], row["body_crc"]) for row in rows]


def _rebuilt(store: Store, folder: Path) -> Iterable[Hashable]:
    build(store.open(), folder / "one", Disk())
    return _files(folder / "one")


def _progress_in_pieces(store: Store, size: int) -> Iterable[Hashable]:
    items = offsets.tasks([store], size)
    furthest: dict[tuple[str | None, str, int], dict[str, int]] = collections.defaultdict(dict)
    for row in _rows(map(offsets.find, items)):
        known = furthest[row["group"], row["topic"], row["queue_id"]]
        known[row["kind"]] = max(known.get(row["kind"], row["offset"]), row["offset"])
    rows = []
    for (group, topic, queue_id), known in furthest.items():
        if group is not None:
            ends = furthest.get((None, topic, queue_id), {})
            row = {"group": group, "topic": topic, "queue_id": queue_id, "saved": known.get("saved")}
            row |= {name: ends.get(name) for name in ("min_offset", "max_offset")}
            has_both = row["saved"] is not None and row["max_offset"] is not None
            rows.append(row | {"lag": max(0, row["max_offset"] - row["saved"]) if has_both else None})
    yield from _as_listed(rows)
    yield from [("unread",) for known in furthest.values() if "unread" in known]


def _as_listed(rows: list[dict[str, Any]]) -> Iterable[tuple[Hashable, ...]]:
    """Yield what ``mqtool offset list`` tells too.

    It knows nothing of what the log tells, so the lag is compared where an offset is saved.
    """
    rows = [row for row in rows if row["group"] != SCHEDULE_GROUP]
    saved = {(row["group"], row["topic"]) for row in rows if row["saved"] is not None}
    for row in rows:
        is_listed = row["saved"] is not None or row["max_offset"] is not None
        if is_listed and (row["group"], row["topic"]) in saved:
            ends = row["min_offset"], row["max_offset"]
            lag = None if row["saved"] is None else row["lag"]
            yield row["group"], row["topic"], row["queue_id"], *ends, row["saved"], lag


def _progress(store: Store) -> Iterable[Hashable]:
    reader = store.open()
    for one in stored_offsets(reader, lambda _: True) if _is_read(reader, "consumerOffset.json") else ():
        lag = None if one.consumer_offset is None else one.lag
        yield one.group, one.topic, one.queue_id, one.min_offset, one.max_offset, one.consumer_offset, lag
    yield from [("unread",)] * _unread(reader)


def _unread(reader: StoreReader) -> int:
    names = ("consumerOffset.json", "lmqConsumerOffset.json", "delayOffset.json")
    return sum(not _is_read(reader, name) for name in names)


def _is_read(reader: StoreReader, name: str) -> bool:
    try:
        table = reader.config_table(name) or {}
        config_tables.delay_offsets(table) if name == "delayOffset.json" else config_tables.consumer_offsets(table, [])
    except MqtoolError:
        return False
    return True


def _files(folder: Path) -> list[Hashable]:
    return [(str(path.relative_to(folder)), path.read_bytes()) for path in folder.rglob("*") if path.is_file()]


if __name__ == "__main__":
    raise SystemExit(main())
