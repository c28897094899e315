"""``rebuild`` in pieces, without Spark: every step of the job, with rows that are brought together by plain Python."""

import contextlib
import filecmp
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqtool.commands._spark import Job
from mqtool.engine.repair.rebuild.distributed import decide, walk_distributed
from mqtool.engine.repair.rebuild.plan import PART, Built, build
from mqtool.engine.store import remote, uploads
from mqtool.engine.store.disk import Disk
from mqtool.errors import Status, UsageError, WriteError
from mqtool.spark import rebuild, target
from mqtool.spark.stores import Store, find_stores
from tests.campaigns.spark_scale import make_store
from tests.commands.running import run
from tests.damage import DamageCase, cases
from tests.engine.repair.test_rebuild import IN_FILES, config_of
from tests.golden import copy_of, golden_store, manifest
from tests.spark.frames import Frames, FrameStub
from tests.storage import BUCKET, S3, environment, s3_server


def names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def outcome(built: Built) -> tuple[Any, ...]:
    return (
        sorted(built.queues.items()), built.index_names, built.entries, built.index_timestamp, built.messages,
        built.end_offset, built.holes, built.unplaced, built.filled,
    )  # fmt: skip


def rebuilt(session: Frames, store: Store, into: Path | str) -> Built:
    """Rebuild in pieces."""
    return rebuild.run(session, store, into, queues=True, index=True, topics=None, version=None, partition_size=20_000)


def rebuilt_twice(store: Store, tmp_path: Path) -> tuple[Built, Built]:
    """Rebuild at once in the folder "one", and in pieces in "two"."""
    one, two = tmp_path / "one", tmp_path / "two"
    return build(store.open(), one, Disk(), queues=True, index=True), rebuilt(Frames(), store, two)


def differing_files(one: Path, two: Path) -> list[str]:
    """Return the names of files that are not equal, or in one of two folders only."""
    names = {*names_below(one)} | {*names_below(two)}
    equal, *_ = filecmp.cmpfiles(one, two, names, shallow=False)
    return sorted(names - {*equal})


def small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("mqtool.engine.repair.rebuild.plan", "mqtool.spark.rebuild"):
        monkeypatch.setattr(f"{module}.PART", 8192)


@pytest.mark.parametrize("name", IN_FILES)
def test_a_golden_store_is_rebuilt_in_pieces_byte_for_byte(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_stretches(monkeypatch)
    (store,) = find_stores([str(golden_store(name))], config_of(name).settings)

    at_once, in_pieces = rebuilt_twice(store, tmp_path)

    assert outcome(in_pieces) == outcome(at_once)
    assert differing_files(tmp_path / "one", tmp_path / "two") == []


@pytest.mark.parametrize("size", [600, 8192, 1 << 20])
def test_a_queue_whose_second_message_is_lost_keeps_its_offsets_in_pieces_too(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("mqtool.engine.repair.rebuild.plan", "mqtool.spark.rebuild"):
        monkeypatch.setattr(f"{module}.PART", size)
    root = copy_of("propcrc-533-clean", tmp_path)
    with (root / "commitlog" / "00000000000000065536").open("r+b") as file:
        file.seek(23104)
        file.write(bytes(64))
    (store,) = find_stores([str(root)], config_of("propcrc-533-clean").settings)
    units = manifest("propcrc-533-clean")["load"]["after_load"]["queues"]
    ends = {(topic, int(number)): queue["max"] for topic, numbers in units.items() for number, queue in numbers.items()}

    at_once, in_pieces = rebuilt_twice(store, tmp_path)

    assert outcome(in_pieces) == outcome(at_once)
    assert differing_files(tmp_path / "one", tmp_path / "two") == []
    assert {key: queue.next for key, queue in at_once.queues.items()} == {key: ends[key] for key in at_once.queues}


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_a_damaged_store_is_rebuilt_in_pieces_byte_for_byte(
    case: DamageCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_stretches(monkeypatch)
    (store,) = find_stores([str(case.store(tmp_path))], {})

    at_once, in_pieces = rebuilt_twice(store, tmp_path)

    assert outcome(in_pieces) == outcome(at_once)
    assert differing_files(tmp_path / "one", tmp_path / "two") == []


def test_stretches_without_a_message_cost_no_memory_where_all_are_joined(tmp_path: Path) -> None:
    store = Store(str(make_store(tmp_path / "store", 4, queues=4, messages=2)))
    scope, tasks, _, _ = rebuild.plan(store, True, True, None, None, 1 << 30)
    rules = scope.rules()
    reports = [walk_distributed(rules, stretch).report for task in tasks for stretch in task.stretch.cut(PART // 32)]

    tracemalloc.start()
    verdict = decide(rules, None, iter(reports), lambda _: None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (verdict.messages, verdict.left_out) == (8, set())
    assert peak < 32 * len(reports)


# Into a storage.


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server, environment(server.environment):
        remote.forget_storages()
        yield server
    remote.forget_storages()


def objects(s3: S3, name: str) -> dict[str, bytes]:
    """Return what lies below a name, by the rest of their names."""
    found = s3.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{name}/").get("Contents", [])
    return {
        one["Key"].removeprefix(f"{name}/"): s3.client.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read()
        for one in found
    }


def test_queues_and_index_are_put_into_a_storage_byte_for_byte(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_stretches(monkeypatch)
    store = Store(str(golden_store("mixed-533-clean")))
    wanted = build(store.open(), tmp_path / "one", Disk(), queues=True, index=True)

    session = Frames()
    found = rebuilt(session, store, f"s3a://{BUCKET}/made/store")

    assert session.conf == {}  # as it was before
    assert outcome(found) == outcome(wanted)
    files = {name: (tmp_path / "one" / name).read_bytes() for name in names_below(tmp_path / "one")}
    assert objects(s3, "made/store") == files
    with pytest.raises(UsageError, match="is not empty"):
        rebuilt(Frames(), store, f"s3://{BUCKET}/made")
    with pytest.raises(UsageError, match="is inside the store"):
        rebuilt(Frames(), Store(s3.put(golden_store("mixed-533-clean"), "put")), f"s3://{BUCKET}/put/new")
    with pytest.raises(WriteError, match=r"cannot write s3://nowhere/made/abort: "):
        rebuilt(Frames(), store, "s3://nowhere/made")


def test_of_a_job_that_fails_nothing_is_left_in_a_storage(s3: S3) -> None:
    class Lost(Frames):
        """Fails when queues are there, and index files are to be made."""

        def createDataFrame(self, rows: list[tuple[bytes]], _schema: str, **_: bool) -> FrameStub:  # noqa: N802
            if any(name.startswith("consumequeue/") for name in objects(s3, "lost")):
                raise RuntimeError("the cluster is gone")
            return super().createDataFrame(rows, _schema)

    with pytest.raises(RuntimeError, match="the cluster is gone"):
        rebuilt(Lost(), Store(str(golden_store("mixed-533-clean"))), f"s3://{BUCKET}/lost")

    assert objects(s3, "lost") == {}


class Killed(Frames):
    """The process ends when queues are there, and index files are to be made."""

    def __init__(self, is_there: Callable[[], bool]) -> None:
        self._is_there = is_there

    def createDataFrame(self, rows: list[tuple[bytes]], _schema: str, **_: bool) -> FrameStub:  # noqa: N802
        if self._is_there():
            os._exit(9)
        return super().createDataFrame(rows, _schema)


def killed(is_there: Callable[[], bool], store: Store, into: Path | str) -> int:
    """Have a driver begin to rebuild a store, and be killed; return its exit code."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            rebuilt(Killed(is_there), store, into)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_what_a_killed_driver_has_left_in_a_folder_is_removed_and_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def in_frames(_job: Job) -> Iterator[Frames]:
        yield Frames()

    monkeypatch.setattr(Job, "session", in_frames)
    store, into = golden_store("mixed-533-clean"), tmp_path / "two"
    assert killed(lambda: any((into / "consumequeue").glob("*/*")), Store(str(store)), into) == 9
    assert (into / "abort").exists()

    ran = run("spark", "rebuild", "all", "-s", store, "--into", into)

    assert ran.status == Status.OK
    assert f"{into} holds leftovers of a killed run, which are removed first" in ran.remarks
    assert run("rebuild", "all", "-s", store, "--into", tmp_path / "one").status == Status.OK
    assert differing_files(tmp_path / "one", into) == []
    again = run("spark", "rebuild", "all", "-s", store, "--into", into)
    assert (again.status, "is not empty" in again.remarks) == (Status.USAGE, True)


def test_what_a_killed_driver_has_left_in_a_storage_is_called_that(s3: S3) -> None:
    root = remote.place(f"s3://{BUCKET}/killed")
    assert isinstance(root, remote.RemotePath)
    uploads.put_bytes(b"unit", root / "consumequeue/T/0/00000000000000000000")
    store = Store(str(golden_store("mixed-533-clean")))
    with pytest.raises(UsageError, match="is not empty"):
        rebuilt(Frames(), store, str(root))

    uploads.put_bytes(target._MARK, root / "abort")

    with pytest.raises(UsageError, match="contains the unfinished output of another run"):
        rebuilt(Frames(), store, str(root))
    assert len(objects(s3, "killed")) == 2
