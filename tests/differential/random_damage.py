"""Small damages to golden stores, made from a seed: any number of cases like the recorded ones, each repeatable.

``random_case(seed, number)`` always makes the same case, so a failure is named by two numbers. One to three damages
meet in a store: to the log, the queues, the index or the checkpoint; in half of the cases ``abort`` is changed too.
``MQTOOL_RANDOM_CASES`` sets how many cases the tests make, ``MQTOOL_RANDOM_SEED`` which.
"""

import functools
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

from mqtool.formats.consume_queue import UNIT_SIZE
from tests.damage import DamageCase, Operation
from tests.golden import GOLDEN_NAMES, golden_store, manifest

BASES = [name for name in GOLDEN_NAMES if not name.startswith(("dledger", "rocksdb", "timer"))]
"""Stores with an ordinary log and queues in files; those with timers are left out: their wheel takes long to copy."""

CASES = int(os.environ.get("MQTOOL_RANDOM_CASES", "100"))
SEED = int(os.environ.get("MQTOOL_RANDOM_SEED", "1"))

_PAGES = (64, 512, 4096, 16384)
_CHECKPOINT_TIMES = (0, 8, 16)
_CHECKPOINT_OFFSETS = (32, 40)


def random_case(seed: int, number: int) -> DamageCase:
    """Return one case, without verdicts."""
    chance = random.Random(f"{seed}/{number}")
    base = chance.choice(BASES)
    ops: list[Operation] = []
    for _ in range(chance.choices((1, 2, 3), weights=(6, 3, 1))[0]):
        kind = chance.choices(list(DAMAGES), weights=list(DAMAGES.values()))[0]
        added = kind(base, chance)
        if not _collide(added, ops):
            ops += added
    return DamageCase(f"random-{seed}-{number}", base, ops + _abort(base, chance), verdicts={})


def _collide(added: Iterable[Operation], ops: Iterable[Operation]) -> bool:
    """Tell whether new operations need something that earlier ones took away or gave another size."""
    spoiled = [path for op in ops if op["op"] in ("delete", "resize", "create") for path in _paths(op)]
    return any(
        one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")
        for op in added
        for one in _paths(op)
        for other in spoiled
    )


def _paths(op: Operation) -> list[str]:
    return [op[key] for key in ("file", "path", "to") if key in op]


def _abort(base: str, chance: random.Random) -> list[Operation]:
    there = (golden_store(base) / "abort").exists()
    if there == chance.choice((True, False)):
        return []
    return [{"op": "delete", "path": "abort"}] if there else [{"op": "create", "file": "abort", "size": 0}]


# The log


def _flip_in_log(base: str, chance: random.Random) -> list[Operation]:
    start, size = _record(base, chance)
    depth = chance.choice((4, 8, 20, 100, size))
    return _flip(base, *_in_segment(base, start + chance.randrange(min(depth, size))), chance)


def _zero_page_in_log(base: str, chance: random.Random) -> list[Operation]:
    page = chance.choice(_PAGES)
    file, at = _in_segment(base, chance.randrange(_end(base)) // page * page)
    return [{"op": "zero", "file": file, "at": at, "len": min(page, _size(base, file) - at)}]


def _zero_tail_of_log(base: str, chance: random.Random) -> list[Operation]:
    segments = _segments(base)
    first = chance.choice([chance.randrange(_end(base)), _record(base, chance)[0]])
    return [
        {"op": "zero", "file": file, "at": max(first - start, 0), "len": _size(base, file) - max(first - start, 0)}
        for start, file in segments
        if start + _size(base, file) > first
    ]


def _copy_in_log(base: str, chance: random.Random) -> list[Operation]:
    source, size = _record(base, chance)
    target, _ = _record(base, chance)
    file, at = _in_segment(base, source)
    to, to_at = _in_segment(base, target)
    size = min(size, _size(base, to) - to_at)
    return [{"op": "copy", "file": file, "at": at, "len": size, "to": to, "to_at": to_at}]


def _lose_segment(base: str, chance: random.Random) -> list[Operation]:
    return [{"op": "delete", "path": chance.choice(_segments(base))[1]}]


def _cut_segment(base: str, chance: random.Random) -> list[Operation]:
    file = chance.choice(_segments(base)[-2:])[1]
    return [{"op": "resize", "file": file, "size": chance.choice([0, chance.randrange(_size(base, file))])}]


def _allocate_segment(base: str, chance: random.Random) -> list[Operation]:
    start, file = _segments(base)[-1]
    size = _size(base, file)
    name = f"{Path(file).parent}/{start + size:020}"
    return [{"op": "create", "file": name, "size": chance.choice((0, size, size))}]


# The queues


def _flip_in_queue(base: str, chance: random.Random) -> list[Operation]:
    file, units = _queue_file(base, chance)
    return _flip(base, file, chance.randrange(units * UNIT_SIZE), chance)


def _zero_tail_of_queue(base: str, chance: random.Random) -> list[Operation]:
    file, units = _queue_file(base, chance)
    at = chance.randrange(units * UNIT_SIZE) if chance.random() < 0.3 else chance.randrange(units) * UNIT_SIZE
    later = [one for one in _files(base, f"{Path(file).parent}/*") if one > file]
    return [
        {"op": "zero", "file": file, "at": at, "len": _size(base, file) - at},
        *({"op": "delete", "path": one} for one in later),
    ]


def _zero_unit(base: str, chance: random.Random) -> list[Operation]:
    file, units = _queue_file(base, chance)
    return [{"op": "zero", "file": file, "at": chance.randrange(units) * UNIT_SIZE, "len": UNIT_SIZE}]


def _cut_queue_file(base: str, chance: random.Random) -> list[Operation]:
    file, _ = _queue_file(base, chance)
    return [{"op": "resize", "file": file, "size": chance.choice([0, chance.randrange(_size(base, file))])}]


def _lose_queue(base: str, chance: random.Random) -> list[Operation]:
    path = Path(_queue_file(base, chance)[0])
    return [{"op": "delete", "path": str(chance.choice((path, path.parent, path.parent, path.parent.parent)))}]


def _lose_queues(base: str, _: random.Random) -> list[Operation]:
    folders = ("consumequeue", "batchconsumequeue", "consumequeue_ext")
    return [{"op": "delete", "path": name} for name in folders if (golden_store(base) / name).exists()]


# The index and the checkpoint


def _damage_index(base: str, chance: random.Random) -> list[Operation]:
    file = chance.choice(_files(base, "index/*"))
    kind = chance.choice(("flip", "head", "lose", "lose all"))
    if kind in ("flip", "head"):
        return _flip(base, file, chance.randrange(40 if kind == "head" else _size(base, file)), chance)
    return [{"op": "delete", "path": file if kind == "lose" else "index"}]


def _change_checkpoint(base: str, chance: random.Random) -> list[Operation]:
    kind = chance.choice(("delete", "zero", "time", "times", "offsets", "flip"))
    message = chance.choice(manifest(base)["messages"])
    if kind == "delete":
        return [{"op": "delete", "path": "checkpoint"}]
    if kind == "zero":
        return [{"op": "zero", "file": "checkpoint", "at": 0, "len": 48}]
    if kind == "flip":
        return _flip(base, "checkpoint", chance.randrange(48), chance)
    if kind == "offsets":
        return [_set_checkpoint(at, message["phy"]) for at in _CHECKPOINT_OFFSETS]
    # A broker starts three seconds before the checkpoint, and all messages of a store are seconds apart.
    time = message["store_timestamp"] + chance.choice((0, 3000, 3001, 3_600_000))
    places = _CHECKPOINT_TIMES if kind == "times" else (chance.choice(_CHECKPOINT_TIMES),)
    return [_set_checkpoint(at, time) for at in places]


def _set_checkpoint(at: int, value: int) -> Operation:
    return {"op": "write", "file": "checkpoint", "at": at, "hex": value.to_bytes(8, "big").hex()}


DAMAGES: dict[Callable[[str, random.Random], list[Operation]], int] = {
    _flip_in_log: 12,
    _zero_page_in_log: 6,
    _zero_tail_of_log: 6,
    _copy_in_log: 3,
    _lose_segment: 4,
    _cut_segment: 2,
    _allocate_segment: 2,
    _flip_in_queue: 4,
    _zero_tail_of_queue: 8,
    _zero_unit: 3,
    _cut_queue_file: 2,
    _lose_queue: 5,
    _lose_queues: 4,
    _damage_index: 6,
    _change_checkpoint: 6,
}
"""Each kind of damage and how often it comes."""


# What there is to damage


@functools.cache
def _files(base: str, pattern: str) -> list[str]:
    store = golden_store(base)
    return sorted(str(path.relative_to(store)) for path in store.glob(pattern) if path.is_file())


@functools.cache
def _segments(base: str) -> list[tuple[int, str]]:
    return sorted((int(Path(file).name), file) for file in _files(base, "commitlog*/*"))


@functools.cache
def _size(base: str, file: str) -> int:
    return (golden_store(base) / file).stat().st_size


@functools.cache
def _used_units(base: str, file: str) -> int:
    data = (golden_store(base) / file).read_bytes().rstrip(b"\0")
    return -(-len(data) // UNIT_SIZE)


def _queue_file(base: str, chance: random.Random) -> tuple[str, int]:
    """Draw a queue file and tell how many units of 20 bytes are in use; batch units count as several."""
    files = [
        (file, units)
        for file in (*_files(base, "consumequeue/*/*/*"), *_files(base, "batchconsumequeue/*/*/*"))
        if (units := _used_units(base, file))
    ]
    return chance.choice(files)


def _end(base: str) -> int:
    last = manifest(base)["messages"][-1]
    return int(last["phy"] + last["size"])


def _record(base: str, chance: random.Random) -> tuple[int, int]:
    message = chance.choice(manifest(base)["messages"])
    return message["phy"], message["size"]


def _in_segment(base: str, offset: int) -> tuple[str, int]:
    start, file = max(segment for segment in _segments(base) if segment[0] <= offset)
    return file, offset - start


def _flip(base: str, file: str, at: int, chance: random.Random) -> list[Operation]:
    with (golden_store(base) / file).open("rb") as stream:
        stream.seek(at)
        value = stream.read(1)[0]
    changed = chance.choice((value ^ 1 << chance.randrange(8), chance.randrange(256)))
    return [{"op": "write", "file": file, "at": at, "hex": f"{changed:02x}"}]
