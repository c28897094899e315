"""What the jobs of ``mqtool spark`` hold in memory on a store of very many segments and queues.

The store is sparse: a few messages and a blank record in each segment, one unit in each queue. What the driver
(its Python process and its JVM) and the largest Python worker hold at most is told beside that of a session with
nothing to do::

    python -m tests.campaigns.spark_scale --segments 20000 --queues 100000
"""

import argparse
import contextlib
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from mqtool.engine.store.file_queue import segment_name
from mqtool.formats import commit_log, consume_queue

SEGMENT = 1 << 30
QUEUES_A_TOPIC = 8
_HEAD = struct.Struct(">iiiiiqqiq4siq4siiqi")
_HOST = bytes([127, 0, 0, 1])
_BODY = b"body"
_CRC = zlib.crc32(_BODY) & 0x7FFFFFFF
_OWN = re.compile(r"(?:RssAnon|RssShmem):\s+([0-9]+) kB")
_HEAP = "512m"  # a JVM takes all that it may before it collects garbage
_PERIOD = 0.25  # seconds between two looks at the processes
JOBS = {
    "nothing": (),
    "stats": ("spark", "stats", "--by", "topic", "-o", "jsonl"),
    "find": ("spark", "find", "--key", "k7", "--scan", "-o", "jsonl"),
    "verify": ("spark", "verify", "-o", "jsonl"),
    "offsets": ("spark", "offsets", "-o", "jsonl"),
    "compare": ("spark", "compare", "--by", "offset", "--with", "{store}", "-o", "jsonl"),
    "export": ("spark", "export", "--into", "{into}/export"),
    "rebuild": ("spark", "rebuild", "queues", "--into", "{into}/rebuilt"),
}
_NOTHING = """
import sys
from mqtool.spark.session import session
from mqtool.spark.spread import spread
import pyarrow as pa
with session(sys.argv[1], {"spark.driver.memory": sys.argv[2]}, "nothing") as spark:
    spread(spark, range(8), lambda number: [pa.record_batch([[number]], ["number"])], "number long").collect()
"""


def make_store(root: Path, segments: int, queues: int, messages: int) -> Path:
    """Write a sparse store of so many segments and queues, with so many messages in each segment."""
    (root / "commitlog").mkdir(parents=True)
    units: dict[int, list[bytes]] = {}
    number = 0
    for index in range(segments):
        data = bytearray()
        for _ in range(messages):
            queue = number % queues
            before = units.setdefault(queue, [])
            address = index * SEGMENT + len(data)
            topic, properties = (
                b"topic-%d" % (queue // QUEUES_A_TOPIC),
                b"UNIQ_KEY\x01%032X\x02KEYS\x01k%d\x02" % (number, number),
            )
            size = _HEAD.size + len(_BODY) + 1 + len(topic) + 2 + len(properties)
            moment = 1_700_000_000_000 + number * 1000
            data += _HEAD.pack(
                size, commit_log.MAGIC_V1, _CRC, queue % QUEUES_A_TOPIC, 0, len(before), address, 0,
                moment, _HOST, 40000, moment, _HOST, 10911, 0, 0, len(_BODY),
            )  # fmt: skip
            data += _BODY + bytes([len(topic)]) + topic + struct.pack(">h", len(properties)) + properties
            before.append(struct.pack(">qiq", address, size, 0))
            number += 1
        if index < segments - 1:
            data += struct.pack(">ii", SEGMENT - len(data), commit_log.MAGIC_BLANK)
        with (root / "commitlog" / segment_name(index * SEGMENT)).open("wb") as file:
            file.write(data)
            file.truncate(SEGMENT)
    for queue, its_units in units.items():
        place = root / f"consumequeue/topic-{queue // QUEUES_A_TOPIC}/{queue % QUEUES_A_TOPIC}"
        place.mkdir(parents=True)
        with (place / segment_name(0)).open("wb") as file:
            file.write(b"".join(its_units))
            file.truncate(300_000 * consume_queue.UNIT_SIZE)
    return root


class MeasuredProcess(NamedTuple):
    """A process of this machine, with the bytes of its own memory: what it has of files is the system's to take."""

    number: int
    parent: int
    name: str
    own: int


def _processes() -> Iterator[MeasuredProcess]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                own = sum(1024 * int(size) for size in _OWN.findall((folder / "status").read_text()))
                yield MeasuredProcess(int(folder.name), int(rest.split()[1]), name, own)


def watched(command: list[str]) -> tuple[float, dict[str, int], str]:
    """Run a command; return seconds, the most bytes of its Python, its JVM and of a worker, and what it said."""
    most = dict.fromkeys(("driver", "jvm", "worker"), 0)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def look() -> None:
        while process.poll() is None:
            for kind, own in _kinds({one.number: one for one in _processes()}, process.pid):
                most[kind] = max(most[kind], own)
            time.sleep(_PERIOD)

    watcher = threading.Thread(target=look)
    began = time.monotonic()
    watcher.start()
    said, _ = process.communicate()
    watcher.join()
    return time.monotonic() - began, most, said


def _kinds(found: dict[int, MeasuredProcess], root: int) -> Iterator[tuple[str, int]]:
    for one in found.values():
        names, above = [], one
        while above.number != root and above.parent in found:
            names.append(above.name)
            above = found[above.parent]
        # A thread of the JVM that starts a program (chmod, for files) is for a moment a process with all of its memory.
        if above.number == root and (one.name == "java" or one.name.startswith("python")):
            yield ("jvm" if one.name == "java" else "worker" if "java" in names else "driver"), one.own


def main() -> None:
    """Make the store, run each job, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=20_000)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=5, help="in each segment")
    parser.add_argument("--store", type=Path, help="made if it is not there; else in a folder that goes in the end")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", action="append", choices=JOBS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = asked.store or Path(folder, "store")
        if not store.exists():
            make_store(store, asked.segments, asked.queues, asked.messages)
        table = Table("job", "seconds", "driver MB", "JVM MB", "worker MB", "last line")
        for job in asked.only or JOBS:
            into = tempfile.mkdtemp(dir=folder)
            words = [word.format(into=into, store=store) for word in JOBS[job]]
            command = [sys.executable, "-m", "mqtool", *words, "-s", str(store), "--master", asked.master]
            command += ["--conf", f"spark.driver.memory={_HEAP}"]
            if job == "nothing":
                command = [sys.executable, "-c", _NOTHING, asked.master, _HEAP]
            seconds, most, said = watched(command)
            sizes = [f"{most[kind] / 1e6:,.0f}" for kind in ("driver", "jvm", "worker")]
            table.add_row(job, f"{seconds:.1f}", *sizes, (said.strip().splitlines() or [""])[-1][:120])
        Console(width=200).print(table)


if __name__ == "__main__":
    main()
