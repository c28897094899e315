"""A stream over two stores that grow, while its driver and its executors are killed.

A round is one query with a checkpoint of its own. It reads while the stores grow, and at moments by chance its driver,
or one of its executors, is killed with SIGKILL; a driver begins again from the checkpoint. When the round's kills are
done the query reads to the end, and each message must have come once. Then something is lost: one log is cut and
written again, its first segments are deleted before they were read, or a store is retired; begun again, the query must
end with the reason, and no message may have come twice::

    python -m tests.campaigns.spark_streams --kills 100 --into spark_streams.jsonl

Ends with status 1 when a law was violated.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.builders import Draft, Stored, StoreSizes, write_store

ROOT = Path(__file__).parent.parent.parent
MASTER = "local-cluster[2,1,1024]"
SEGMENT = 1 << 16
LOSSES = {"cut": "is not the log that was read", "retention": "were deleted before they were read",
          "retired": "is gone"}  # fmt: skip
KILLS_A_ROUND = 10
PATIENCE_S = 900.0


def main() -> int:
    """Run the campaign; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--into", type=Path, default=Path("spark_streams.jsonl"), metavar="FILE")
    parser.add_argument("--query", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.query:
        follow(options.query)
        return 0
    counts, wrong, seed = collections.Counter[str](), 0, options.seed
    with options.into.open("a") as file:
        while counts["driver"] + counts["executor"] < options.kills:
            left = options.kills - counts["driver"] - counts["executor"]
            with tempfile.TemporaryDirectory() as folder:
                row = {"seed": seed, **StreamRound(seed, Path(folder)).run(min(left, KILLS_A_ROUND))}
            print(json.dumps(row), file=file, flush=True)
            print(row, flush=True)
            counts.update(row["kills"])
            counts["messages"] += row["messages"]
            wrong += len(row["violations"])
            seed += 1
    print(f"{dict(counts)}, {wrong:,} violations")
    return int(bool(wrong))


def follow(folder: Path) -> None:
    """Run the query until a file says that it is to read what is there and end; this is the process that is killed."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false")
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    builder = builder.config("spark.python.authenticate.socketTimeout", "120s")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    names = {str(folder / "stores" / name): name for name in ("a", "b")}
    source = spark.readStream.format("rocketmq_store").options(
        storeNames=json.dumps(names), columns="store,physical_offset,_corrupt_record", maxBytesPerTrigger="40k"
    )
    rows = source.load(str(folder / "stores" / "*")).writeStream.format("parquet").option("path", str(folder / "out"))
    query = rows.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        while not (folder / "end").exists():
            query.awaitTermination(1)
            if query.recentProgress:
                (folder / "began").touch()
        query.processAllAvailable()
        query.stop()
        (folder / "done").touch()
    except Exception as error:
        (folder / "reason").write_text(str(error))


class StreamRound:
    """One query, from its first start to its end."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.loss = [*LOSSES][seed % len(LOSSES)]
        self.folder = folder
        self.stores = {name: GrowingStore(folder, name) for name in ("a", "b")}
        self.query: subprocess.Popen[bytes] | None = None
        self.kills = collections.Counter[str]()
        self.violations: list[str] = []

    def run(self, kills: int) -> dict[str, Any]:
        """Return what came of it."""
        for store in self.stores.values():
            store.grow(1)
        try:
            for _ in range(kills):
                self._reads()
                for _ in range(self.random.randrange(1, 6)):
                    self._grow()
                    time.sleep(self.random.random())
                self._kill()
            for store in self.stores.values():
                store.grow(store.size - 2 * SEGMENT)
            self._ends("done")
            self._judge("at the end of growth", {(name, offset) for name, one in self.stores.items()
                                                 for offset in one.offsets()})  # fmt: skip
            self._lose()
            self._ends("reason")
            self._judge(f"after {self.loss}", None)
        except RuntimeError as error:
            self.violations.append(f"the query did not go on: {error}")
        finally:
            self._stop()
        return {"loss": self.loss, "kills": dict(self.kills), "messages": len(self._rows()),
                "violations": self.violations}  # fmt: skip

    def _reads(self) -> None:
        """Have the query run, and wait until it has read something since it began."""
        if self.query is None or self.query.poll() is not None:
            for name in ("began", "end", "done", "reason"):
                (self.folder / name).unlink(missing_ok=True)
            words = [sys.executable, "-m", "tests.campaigns.spark_streams", "--query", str(self.folder)]
            given = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
            with (self.folder / "log").open("ab") as log:
                self.query = subprocess.Popen(
                    words, cwd=ROOT, env=given, stdout=log, stderr=log, start_new_session=True
                )
            self._wait(self.folder / "began", self.folder / "reason")

    def _ends(self, how: str) -> None:
        """Have the query read what is there; it must end as is said."""
        self._reads()
        (self.folder / "end").touch()
        self._wait(self.folder / "done", self.folder / "reason")
        reason = self.folder / "reason"
        text = reason.read_text() if reason.exists() else ""
        if how == "done" and text:
            self.violations.append(f"the query ended: {text[:300]}")
        if how == "reason" and LOSSES[self.loss] not in text:
            self.violations.append(f"{self.loss} was not told: {text[:300]!r}")
        self._stop()

    def _grow(self) -> None:
        store = self.random.choice([*self.stores.values()])
        store.grow(min(store.end + self.random.randrange(1, 30_000), store.size - 3 * SEGMENT))

    def _kill(self) -> None:
        assert self.query
        executors = [*_executors(self.query.pid)]
        if executors and self.random.random() < 0.5:
            self.kills["executor"] += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.random.choice(executors), signal.SIGKILL)
            return
        self.kills["driver"] += 1
        self._stop()

    def _stop(self) -> None:
        """Kill the driver, its JVM and its executors, all of which are of one process group."""
        if self.query is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.query.pid, signal.SIGKILL)
            self.query.wait()
            self.query = None

    def _lose(self) -> None:
        store = self.stores["b"]
        if self.loss == "retired":
            store.root.rename(self.folder / "retired")
        elif self.loss == "retention":
            store.grow(store.size)
            for file in sorted((store.root / "commitlog").iterdir())[:-1]:
                file.unlink()
        else:
            store.rewrite()

    def _judge(self, when: str, wanted: set[tuple[str, int]] | None) -> None:
        rows = collections.Counter(self._rows())
        if twice := [row for row, count in rows.items() if count > 1]:
            self.violations.append(f"{when}: {len(twice):,} messages came twice, as {twice[0]}")
        if wanted is not None and (missing := wanted - rows.keys()):
            self.violations.append(f"{when}: {len(missing):,} messages did not come, as {min(missing)}")
        if wanted is not None and (more := rows.keys() - wanted):
            self.violations.append(f"{when}: {len(more):,} messages that there are not, as {min(more)}")

    def _rows(self) -> list[tuple[str, int]]:
        """Return what the sink has committed: files that its own log names."""
        import pyarrow.parquet as parquet

        files: dict[str, None] = {}
        for log in sorted((self.folder / "out" / "_spark_metadata").glob("[0-9]*")):
            for line in log.read_text().splitlines()[1:]:
                files[json.loads(line)["path"].removeprefix("file://")] = None
        return [
            (Path(row["store"]).name, row["physical_offset"])
            for file in files
            for row in parquet.read_table(file, columns=["store", "physical_offset"]).to_pylist()
        ]

    def _wait(self, *paths: Path) -> None:
        end = time.monotonic() + PATIENCE_S
        while not any(path.exists() for path in paths):
            if time.monotonic() > end or (self.query and self.query.poll() is not None):
                raise RuntimeError((self.folder / "log").read_text()[-3000:])
            time.sleep(0.1)


class GrowingStore:
    """A store of which a broker has written so much."""

    def __init__(self, folder: Path, name: str) -> None:
        self.root = folder / "stores" / name
        self._folder, self._name = folder, name
        self._drafts = [Draft(topic=f"T{n % 3}", queue_id=n % 2, body=b"x" * (7 * n % 2000)) for n in range(600)]
        self.end = 0
        self._write(self._drafts, "whole")

    def _write(self, drafts: list[Draft], name: str) -> None:
        whole = self._folder / name / self._name
        self.stored: list[Stored] = write_store(whole, drafts, StoreSizes(segment=SEGMENT))
        self._files = sorted((whole / "commitlog").iterdir())
        (self.root / "commitlog").mkdir(parents=True, exist_ok=True)

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return SEGMENT * len(self._files)

    def grow(self, end: int) -> None:
        """Have the log reach so far, in the middle of a message or not; written as a broker does it, in place."""
        for number, file in enumerate(self._files):
            at = SEGMENT * number
            if at < end and at + SEGMENT > self.end:
                target = self.root / "commitlog" / file.name
                if not target.exists():
                    target.write_bytes(bytes(SEGMENT))
                with target.open("r+b") as log:
                    log.seek(max(0, self.end - at))
                    log.write(file.read_bytes()[max(0, self.end - at) : end - at])
        self.end = max(self.end, end)

    def rewrite(self) -> None:
        """Have the log as it was at a third, with other messages from there on."""
        third = len(self._drafts) // 3
        others = [dataclasses.replace(one, body=b"other" + one.body) for one in self._drafts[third:]]
        shutil.rmtree(self.root)
        self._write([*self._drafts[:third], *others], "other")
        self.end = 0
        self.grow(self.size)

    def offsets(self) -> list[int]:
        """Return where the messages begin that are whole."""
        return [one.physical_offset for one in self.stored if one.physical_offset + len(one.record) <= self.end]


def _executors(leader: int) -> Iterator[int]:
    """Yield the executors of a driver: the processes of its session that are called so."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                b"CoarseGrainedExecutorBackend" in (path / "cmdline").read_bytes()
                and os.getsid(int(path.name)) == leader
            ):
                yield int(path.name)


if __name__ == "__main__":
    raise SystemExit(main())
