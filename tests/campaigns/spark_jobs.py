"""Each job of ``mqtool spark`` held against the command of its name, on generated damages and with any cut of the log.

A seed is a case of ``tests/laws``: a golden store and one or two damages; it also chooses the bytes of a range, from
9,000 to 1 GiB. What jobs and commands answer is compared as multisets, or by the kind of error where a command ends
with one. All seeds run in one Spark session::

    python -m tests.campaigns.spark_jobs --seeds 1:501 --into spark_jobs.jsonl

With ``--without-java`` the tasks of each job are run one after another, and what they give is brought together here: a
seed takes half a second, and Spark itself is not tried.

Run again it goes on where it was stopped. Ends with status 1 when an answer differed.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import collections
import dataclasses
import json
import logging
import random
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

from mqtool.engine.repair.aligned import SIDES
from mqtool.engine.repair.compare_keys import Messages, compare_keys
from mqtool.engine.repair.rebuild import build
from mqtool.engine.repair.verify import Level, verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.search import Query, Search
from mqtool.engine.store.stats import KEYS, By, Selection, count_messages
from mqtool.errors import MqtoolError
from mqtool.spark import compare, export, find, rebuild, stats, verify
from mqtool.spark.messages import CORRUPT
from mqtool.spark.partitions import log_ranges
from mqtool.spark.stores import Store
from mqtool.spark.tables import TABLES
from tests.commands.running import run
from tests.golden import golden_store
from tests.laws.cases import case_of
from tests.spark.frames import Frames
from tests.spark.session import session
from tests.spark.test_verify_far import in_pieces as pieces_of_verify

SIZES = (9_000, 20_000, 65_536, 100_000, 1 << 20, 1 << 30)
_RAISED = re.compile(r"mqtool\.errors\.(\w+)")
_SHOWN = 3

Pair = tuple[Callable[[], Iterable[Hashable]], Callable[[], Iterable[Hashable]]]


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
    rows = [row for row in known if row["seed"] in seeds]
    with options.into.open("a") as file:
        for seed in seeds:
            if seed in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                row = {"seed": seed, **hold(spark, seed, Path(folder))}
            rows.append(row)
            print(json.dumps(row), file=file, flush=True)
            for job, difference in row["differences"].items():
                print(f"seed {seed} ({row['case']}, {row['size']:,} B): {job}: {difference}", flush=True)
    answers = sum(row["answers"] for row in rows)
    wrong = sum(len(row["differences"]) for row in rows)
    print(f"{len(rows):,} seeds, {answers:,} answers, {wrong:,} differ")
    return int(bool(wrong))


def hold(spark: Any, seed: int, folder: Path) -> dict[str, Any]:
    """Return what a seed came to: which case it is, and where a job answered otherwise than its command."""
    case, size = case_of(seed), random.Random(seed).choice(SIZES)
    store = Store(str(case.build(folder / "store")))
    other = Store(str(golden_store(case.base)))
    differences = {}
    pairs = pairs_of(spark, store, other, size, folder) if spark else in_pieces(store, other, size, folder)
    for job, (ours, theirs) in pairs.items():
        found, wanted = answered(ours), answered(theirs)
        if found != wanted:
            differences[job] = told(found, wanted)
        for name in ("out", "one", "two"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return {"case": f"{case.base}: {', '.join(case.kinds)}", "size": size, "answers": len(pairs),
            "differences": differences}  # fmt: skip


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


def pairs_of(spark: Any, store: Store, other: Store, size: int, folder: Path) -> dict[str, Pair]:
    """Return for each job how Spark and the command are asked."""
    return {
        "verify": (
            lambda: (
                repr(verify.finding_of(row.asDict()))
                for row in verify.findings(spark, [store], Level.FULL, size).collect()
            ),
            lambda: map(repr, verify_store(store.open(), Level.FULL)),
        ),
        "stats --by topic": (
            lambda: _counted_by_spark(spark, store, By.TOPIC, size),
            lambda: _counted(store, By.TOPIC),
        ),
        "stats --by queue": (
            lambda: _counted_by_spark(spark, store, By.QUEUE, size),
            lambda: _counted(store, By.QUEUE),
        ),
        "find": (
            lambda: (
                row["position"]
                for row in find.messages(spark, find.plan([(store, _QUERY)], size, True).items)[0].collect()
            ),
            lambda: (message.position for message in Search(store.open(), _QUERY).messages()),
        ),
        "export": (lambda: _exported_by_spark(spark, store, size, folder), lambda: _exported(store, folder)),
        "rebuild": (lambda: _rebuilt_by_spark(spark, store, size, folder), lambda: _rebuilt(store, folder)),
        "compare": (
            lambda: (tuple(row[:5]) for row in compare.by_key(spark, store, other, size)[0].collect()),
            lambda: (
                (one.side, one.left_count, one.right_count, one.physical_offset, one.topic)
                for one in compare_keys(store.open(), other.open(), Messages())
            ),
        ),
    }


_QUERY = Query(texts=("1",))


def in_pieces(store: Store, other: Store, size: int, folder: Path) -> dict[str, Pair]:
    """Return for each job what its tasks give, one after another, and how the command is asked."""
    theirs = {job: pair[1] for job, pair in pairs_of(None, store, other, size, folder).items()}
    return {
        "verify": (lambda: pieces_of_verify(store, Level.FULL, size).elements(), theirs["verify"]),
        "stats --by topic": (lambda: _counted_in_pieces(store, By.TOPIC, size), theirs["stats --by topic"]),
        "stats --by queue": (lambda: _counted_in_pieces(store, By.QUEUE, size), theirs["stats --by queue"]),
        "find": (
            lambda: (
                row["position"]
                for row in _rows(find.find(one) for one in find.plan([(store, _QUERY)], size, True).items)
                if row[CORRUPT] is None
            ),
            theirs["find"],
        ),
        "export": (lambda: _exported_in_pieces(store, size), theirs["export"]),
        "rebuild": (lambda: _rebuilt_by_spark(Frames(), store, size, folder), theirs["rebuild"]),
        "compare": (
            lambda: _compared_in_pieces(store, other, size),
            lambda: (
                (one.side, one.left_count, one.right_count)
                for one in compare_keys(store.open(), other.open(), Messages())
            ),
        ),
    }


def _rows(parts: Iterable[Iterable[Any]]) -> Iterable[dict[str, Any]]:
    return (row for part in parts for batch in part for row in batch.to_pylist())


def _counted_in_pieces(store: Store, by: By, size: int) -> Iterable[Hashable]:
    totals: dict[Hashable, list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    items = (stats.Item(parts, by, Selection()) for parts in stats._ranges(store, Selection(), size))
    for row in _rows(map(stats.count, items)):
        if row["records"]:
            total = totals[tuple(row[name] for name in KEYS[by])]
            for number, name in enumerate(("messages", "size", "body_size")):
                total[number] += row[name]
    return ((key, *total) for key, total in totals.items())


def _exported_in_pieces(store: Store, size: int) -> Iterable[Hashable]:
    ask = dataclasses.replace(export._ASK, max_partition=size)
    items = (export.Item(part, ask.bounds) for part in TABLES["messages"].parts(store, store.open(), ask))
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


def _counted_by_spark(spark: Any, store: Store, by: By, size: int) -> Iterable[Hashable]:
    return (
        (tuple(row[name] for name in KEYS[by]), row["messages"], row["size"], row["body_size"])
        for row in stats.counts(spark, [store], by, Selection(), size).collect()
        if row["records"]
    )


def _counted(store: Store, by: By) -> Iterable[Hashable]:
    reader = store.open()
    log = reader.commit_log
    groups = count_messages(reader, by, Selection(), log.min_offset, log.end_offset).tally.groups
    return ((key, one.messages, one.size, one.body_size) for key, one in groups.items() if one.records)


def _exported_by_spark(spark: Any, store: Store, size: int, folder: Path) -> Iterable[Hashable]:
    export.run(spark, [store], folder / "out", export.Chosen(), size)
    files = [*(folder / "out").rglob("*.parquet")]
    rows = spark.read.parquet(str(folder / "out")).collect() if files else []
    return ((row["physical_offset"], row["topic"], row["queue_offset"], row["body_crc"]) for row in rows)


def _exported(store: Store, folder: Path) -> Iterable[Hashable]:
    (folder / "one").mkdir()
    into = folder / "one" / "rows.jsonl"
    ran = run("export", "-s", store.path, "--into", into)
    if not into.exists():
        raise RuntimeError(ran.remarks)
    rows = map(json.loads, into.read_text().splitlines())
    return [(row["physical_offset"], row["topic"], row["queue_offset"], row["body_crc"]) for row in rows]


def _rebuilt_by_spark(spark: Any, store: Store, size: int, folder: Path) -> Iterable[Hashable]:
    rebuild.run(spark, store, folder / "two", queues=True, index=True, topics=None, version=None, partition_size=size)
    return _files(folder / "two")


def _rebuilt(store: Store, folder: Path) -> Iterable[Hashable]:
    build(store.open(), folder / "one", Disk())
    return _files(folder / "one")


def _files(folder: Path) -> list[Hashable]:
    return [(str(path.relative_to(folder)), path.read_bytes()) for path in folder.rglob("*") if path.is_file()]


if __name__ == "__main__":
    raise SystemExit(main())
