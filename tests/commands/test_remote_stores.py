"""Stores in object storage: each command that reads says of one what it says of the same files on a disk."""

import itertools
import os
import random
import select
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mqtool.engine.repair import placement
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store import remote, spool
from mqtool.engine.store.commit_log import CommitLog
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import Bytes
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import NotFoundError, ReadError, Status, StoreChangedError
from mqtool.formats.scan import MessageTable
from mqtool.spark.partitions import LogRange, RangeReader, UnreadablePlace, log_ranges
from mqtool.spark.stores import Store
from tests.builders import Draft, StoreSizes, record, write_store
from tests.commands.running import Ran, run
from tests.commands.test_compressed_copies import archive, compressed, pack_segments, unlike
from tests.commands.test_live import tear
from tests.damage import cases
from tests.golden import copy_of, golden_store
from tests.storage import BUCKET, S3, FaultyServer, environment, faulty_server, s3_server

pytestmark = pytest.mark.xdist_group("s3")
KIB = 1 << 10


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server, environment(server.environment):
        remote.forget_storages()
        yield server
    remote.forget_storages()


@pytest.fixture
def faulty(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """An S3 server that can fail; it is waited for no longer than a test has time."""
    monkeypatch.setattr(remote, "_FIRST_WAIT", 0.001)
    with faulty_server(s3.address) as server, environment({"AWS_ENDPOINT_URL": f"http://{server.address}"}):
        remote.forget_storages()
        yield server
    remote.forget_storages()


def both(store: Path, url: str, *arguments: object) -> tuple[Ran, Ran]:
    """Run a command on files of a disk and on the same in storage; both called STORE in what they say."""
    ran = []
    for where in (str(store), url):
        one = run(*(str(argument).replace("STORE", where) for argument in arguments))
        ran.append(Ran(one.status, one.output.replace(where, "STORE"), one.remarks.replace(where, "STORE")))
    return ran[0], ran[1]


COMMANDS = {
    "mixed-533-kill": (
        "verify -s STORE",
        "stats -s STORE --by queue",
        "dump commitlog -s STORE",
        "dump consumequeue -s STORE",
        "dump config -s STORE",
        "find -s STORE --text a --limit 20",
    ),
    "rocksdb-533-clean": ("verify -s STORE", "dump consumequeue -s STORE"),
    "ext-497-kill": ("verify -s STORE",),
    "batchcq-533-kill": ("verify -s STORE", "dump consumequeue -s STORE"),
    "multipath-533-clean": ("verify -s STORE", "dump commitlog -s STORE"),
}
"""By store: verify reads every file of each, the others what only this kind of store has, or all of them once."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_store_in_s3_is_told_as_the_same_files_on_a_disk(s3: S3, name: str) -> None:
    url = s3.put(golden_store(name), name)

    for command in COMMANDS[name]:
        local, there = both(golden_store(name), url, *command.split())
        assert (there.status, there.output, there.remarks) == (local.status, local.output, local.remarks), command


@pytest.mark.parametrize("folder", ["", "commitlog/", "consumequeue/", "consumequeue/T0/", "config/", "new/"])
def test_an_object_that_marks_a_folder_changes_nothing(folder: str, s3: S3, tmp_path: Path) -> None:
    write_store(tmp_path, [Draft(topic=f"T{number % 3}") for number in range(30)])
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config/topics.json").write_text("{}")
    url = s3.put(tmp_path, f"marked-{folder.replace('/', '-')}")
    s3.client.put_object(Bucket=BUCKET, Key=f"{url.removeprefix(f's3://{BUCKET}/')}/{folder}", Body=b"")

    for command in ("stats", "verify", "dump consumequeue", "dump config", "info"):
        local, there = both(tmp_path, url, *command.split(), "-s", "STORE")
        assert there.status == local.status, (command, there.remarks)
        assert command == "info" or (there.output, there.remarks) == (local.output, local.remarks)


def test_single_messages_queues_and_pages_are_found_in_s3(s3: S3) -> None:
    name = "mixed-533-clean"
    store, url = golden_store(name), s3.put(golden_store(name), name)
    rows = run("dump", "commitlog", "-s", store).rows
    one = rows[len(rows) // 2]
    topic, queue_id = one["topic"], one["queue_id"]

    for command in (
        f"get -s STORE {one['physical_offset']}",
        f"get -s STORE {one['physical_offset'] + 1}",
        f"get -s STORE {topic} {queue_id} {one['queue_offset']}",
        f"pull -s STORE {topic} --queue {queue_id}",
        "find -s STORE --key *1*",
        "dump index -s STORE",
        "dump checkpoint -s STORE",
        "dump commitlog -s STORE/commitlog/00000000000000065536",
        "stats -s STORE/commitlog",
        "export -s STORE",
        f"compare {store} STORE",
    ):
        local, there = both(store, url, *command.split())
        assert (there.status, there.output, there.remarks) == (local.status, local.output, local.remarks), command
    pages = [run("info", "-s", where).rows[0] for where in (store, url)]
    for row in pages:
        del row["store"]
        for kind in row["disk"]:
            del kind["allocated_size"]  # storage has no holes
    assert pages[0] == pages[1]


def test_compressed_copies_in_s3_are_read_as_those_on_a_disk(s3: S3, tmp_path: Path) -> None:
    store, up = golden_store("mixed-533-kill"), tmp_path / "up"
    up.mkdir()
    pack_segments(copy_of("mixed-533-kill", up), "zst")
    compressed(archive(store, up / "store.tar"), "gz")
    url = s3.put(up, "up")

    for name in ("mixed-533-kill", "store.tar", "store.tar.gz"):
        assert unlike(store, f"{url}/{name}", ("stats -s STORE", "verify -s LOG")) == []


@pytest.mark.parametrize("number", range(3, len(cases()), 34))
def test_damage_is_found_in_s3_as_on_a_disk(s3: S3, number: int, tmp_path: Path) -> None:
    store = cases()[number].store(tmp_path)
    url = s3.put(store, f"damage-{number}")
    local, there = both(store, url, "verify", "-s", "STORE")
    assert (there.status, there.output) == (local.status, local.output)
    assert [one for one in there.remarks.splitlines() if "--live" not in one] == local.remarks.splitlines()


def test_a_torn_end_in_s3_is_remarked_and_no_damage_of_a_store_that_is_told_to_be_in_use(
    s3: S3, tmp_path: Path
) -> None:
    store = copy_of("batchcq-533-clean", tmp_path)
    url = s3.put(tear(store, 60), "torn")

    for command in ("verify -s STORE", "export -s STORE"):
        local, there = both(store, url, *command.split())
        assert (there.status, there.output) == (local.status, local.output), command
        told = [line for line in there.remarks.splitlines() if line not in local.remarks.splitlines()]
        assert [("--live" in line, line.startswith("mqtool: STORE")) for line in told] == [(True, True)], command
        local, there = both(store, url, *command.split(), "--live")
        assert (there.status, there.output, there.remarks) == (local.status, local.output, local.remarks), command
        assert there.status == Status.OK, command


def test_salvage_makes_the_same_store_of_one_in_s3(s3: S3, tmp_path: Path) -> None:
    name = "mixed-533-kill"
    url = s3.put(golden_store(name), name)

    ran = [
        run("salvage", "-s", where, "--into", tmp_path / into)
        for where, into in ((golden_store(name), "a"), (url, "b"))
    ]

    assert [one.status for one in ran] == [Status.OK, Status.OK]
    assert ran[0].output == ran[1].output
    logs = [sorted((tmp_path / into / "commitlog").iterdir()) for into in "ab"]
    assert [path.read_bytes() for path in logs[0]] == [path.read_bytes() for path in logs[1]]


@pytest.mark.parametrize(
    "command",
    ["recover --yes", "rebuild all --yes", "undo --yes", "topic delete --yes T", "doctor", "serve"],
)
def test_what_changes_a_store_is_refused_in_s3(
    s3: S3, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = s3.put(golden_store("mixed-533-clean"), "mixed-533-clean")
    before = s3.client.list_objects_v2(Bucket=BUCKET, Prefix="mixed-533-clean/")["Contents"]

    name, *rest = command.split()
    ran = run(name, *rest, "--store" if name == "serve" else "-s", url)

    assert ran.status == Status.USAGE
    assert url in ran.remarks
    assert ran.output == ""
    assert s3.client.list_objects_v2(Bucket=BUCKET, Prefix="mixed-533-clean/")["Contents"] == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("s3")
def test_what_is_not_there_gets_a_sentence() -> None:
    for url, status in (
        (f"s3://{BUCKET}/nothing", Status.NO_INPUT),
        ("s3://no-such-bucket/store", Status.NO_INPUT),
        ("s3://", Status.USAGE),
        ("ftp://host/store", Status.USAGE),
    ):
        ran = run("info", "-s", url)
        assert ran.status == status, ran.remarks
        assert url in ran.remarks
        assert len(ran.remarks.splitlines()) <= 4


def test_a_file_url_is_a_path() -> None:
    store = golden_store("mixed-533-clean")

    assert run("stats", "-s", f"file://{store}").output == run("stats", "-s", store).output


# What is fetched, and from what storage that fails


def put_segment(s3: S3, size: int) -> tuple[str, bytes]:
    data = np.random.default_rng(size).bytes(size)
    s3.client.put_object(Bucket=BUCKET, Key=f"bytes-{size}/commitlog/{0:020}", Body=data)
    return f"s3://{BUCKET}/bytes-{size}/commitlog/{0:020}", data


def opened(url: str, size: int) -> MappedFile:
    path = remote.place(url)
    assert isinstance(path, remote.RemotePath)
    return MappedFile(path.fresh(), 0, size)


def test_little_is_fetched_for_little(s3: S3, faulty: FaultyServer) -> None:
    url, data = put_segment(s3, 11 << 20)
    file = opened(url, len(data))

    assert file.read(7 << 20, 100) == data[7 << 20 : (7 << 20) + 100]
    assert file.stretch(9 << 20, (9 << 20) + 5).tobytes() == data[9 << 20 : (9 << 20) + 5]
    assert sum(faulty.sizes) == 2 * spool.BLOCK
    assert file.read(7 << 20, 5000) == data[7 << 20 : (7 << 20) + 5000]
    assert len(faulty.sizes) == 2


def test_a_whole_file_takes_few_large_requests(s3: S3, faulty: FaultyServer) -> None:
    url, data = put_segment(s3, 20 << 20)

    file = opened(url, len(data))
    assert file.bytes.tobytes() == data
    assert sum(faulty.sizes) == len(data)
    assert len(faulty.sizes) == 3
    assert faulty.head_count == 1  # for its length: the answers tell whether it is the same object


def test_verify_fetches_each_byte_of_a_store_once(s3: S3, faulty: FaultyServer) -> None:
    store = golden_store("mixed-533-kill")

    ran = run("verify", "-s", s3.put(store, "mixed-533-kill"))

    assert (ran.status, ran.output) == (Status.OK, run("verify", "-s", store).output)
    assert sum(faulty.sizes) <= sum(path.stat().st_size for path in store.rglob("*") if path.is_file())


def test_a_few_records_of_a_segment_are_fetched_to_tell_its_name(
    s3: S3, faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_SAMPLED", spool.BLOCK)
    size = 12 << 20
    first = record(body=bytes(3 << 20))  # its end lies behind what is fetched for its beginning
    s3.client.put_object(Bucket=BUCKET, Key=f"named/commitlog/{0:020}", Body=first.ljust(size, b"\0"))
    log = CommitLog([remote.place(f"s3://{BUCKET}/named/commitlog")], size)

    found = placement.place(log)

    assert [(one.start_offset, one.size) for one in found.log.segments] == [(0, size)]
    assert sum(faulty.sizes) <= 8 * spool.BLOCK


@pytest.mark.parametrize(("body_size", "most"), [(16 << 10, 6), (3 << 20, 60)])
def test_of_a_segment_of_real_size_a_few_records_are_fetched_to_tell_its_name(
    body_size: int, most: int, s3: S3, faulty: FaultyServer
) -> None:
    size, data = 128 << 20, bytearray()
    while len(data) + body_size + 1024 < size:
        data += record(body=bytes(body_size), physical_offset=len(data))
    s3.client.put_object(Bucket=BUCKET, Key=f"named/commitlog/{0:020}", Body=bytes(data).ljust(size, b"\0"))
    log = CommitLog([remote.place(f"s3://{BUCKET}/named/commitlog")], size)

    found = placement.place(log)

    assert [(one.start_offset, one.size) for one in found.log.segments] == [(0, size)]
    assert sum(faulty.sizes) <= most * spool.BLOCK


def test_names_of_several_segments_are_told_at_once(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    log = StoreReader(s3.put(golden_store("mixed-533-kill"), "mixed-533-kill")).commit_log
    calls, together, reach = itertools.count(), threading.Barrier(3, timeout=30), MappedFile.reach

    def reach_together(file: MappedFile, start: int, stop: int) -> tuple[Bytes, int]:
        if next(calls) < together.parties:
            together.wait()
        return reach(file, start, stop)

    monkeypatch.setattr(MappedFile, "reach", reach_together)

    assert [segment.path for segment in placement.place(log).log.segments] == [segment.path for segment in log.segments]
    assert len(log.segments) > together.parties


@pytest.mark.parametrize("faults", [[503, 503], ["cut"], ["stall", 500], ["cut", 503, "stall", "cut"]])
def test_a_request_that_fails_is_tried_again(s3: S3, faulty: FaultyServer, faults: list[int | str]) -> None:
    url, data = put_segment(s3, 300 * KIB)
    faulty.faults = list(faults)

    assert opened(url, len(data)).bytes.tobytes() == data
    assert faulty.faults == []


@pytest.mark.parametrize("fault", [503, "cut", 416])
def test_storage_that_fails_on_and_on_is_an_error(s3: S3, faulty: FaultyServer, fault: int | str) -> None:
    url, data = put_segment(s3, 300 * KIB)
    faulty.faults = [fault] * 1000

    with pytest.raises(ReadError, match=f"cannot read {url} after 5 attempts: "):
        _ = opened(url, len(data)).bytes
    assert 1000 - len(faulty.faults) == 5


def test_an_object_that_is_replaced_while_it_is_read_is_noticed(s3: S3, faulty: FaultyServer) -> None:
    for size in (300, 400, 100):  # as long, longer, and so short that the range is refused
        url, data = put_segment(s3, 300 * KIB)
        file = opened(url, len(data))
        key = url.removeprefix(f"s3://{BUCKET}/")
        again = bytes(size * KIB)
        faulty.before_get = lambda key=key, again=again: s3.client.put_object(Bucket=BUCKET, Key=key, Body=again)

        with pytest.raises(StoreChangedError, match="was replaced or grew"):
            file.read(200 * KIB, 100 * KIB)
        faulty.before_get = lambda: None


@pytest.mark.parametrize("name", ["store.tar", "store.tar.gz"])
def test_so_is_an_archive_where_the_answers_do_not_tell(
    name: str, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_READERS", {})  # as of HDFS, which is asked for the time of a file
    (tmp_path / "up").mkdir()
    compressed(archive(golden_store("mixed-533-kill"), tmp_path / "up" / "store.tar"), "gz")
    url = f"{s3.put(tmp_path / 'up', 'replaced')}/{name}"
    segment = StoreReader(url, StoreConfig(unpacks=True)).commit_log.segments[0]
    size = (tmp_path / "up" / name).stat().st_size
    s3.client.put_object(Bucket=BUCKET, Key=url.removeprefix(f"s3://{BUCKET}/"), Body=bytes(size))

    with pytest.raises(StoreChangedError, match="was replaced or grew"):
        segment.read(0, 100)


def test_an_object_that_is_deleted_is_not_there(s3: S3) -> None:
    url, data = put_segment(s3, 500 * KIB)
    file = opened(url, len(data))
    s3.client.delete_object(Bucket=BUCKET, Key=url.removeprefix(f"s3://{BUCKET}/"))

    with pytest.raises(NotFoundError, match=url):
        file.read(0, 10)


def test_no_more_is_kept_than_the_bound_and_what_went_is_fetched_again(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MAX_SPOOLED", 3 << 20)
    files = [opened(url, len(data)) for url, data in (put_segment(s3, (2 << 20) + number) for number in range(4))]
    contents = [put_segment(s3, (2 << 20) + number)[1] for number in range(4)]
    files = [opened(f"s3://{BUCKET}/bytes-{len(data)}/commitlog/{0:020}", len(data)) for data in contents]

    for file, data in zip(files, contents, strict=True):
        assert file.bytes.tobytes() == data
    assert ["spool" in vars(file) for file in files] == [False, False, False, True]
    assert files[0].read(5, 5) == contents[0][5:10]


def test_what_is_behind_a_walk_is_released_and_fetched_again_when_it_is_asked_for(s3: S3) -> None:
    url, data = put_segment(s3, (21 << 20) + 5)
    file = opened(url, len(data)).to_walk()
    chance = np.random.default_rng(5)

    for start in chance.integers(0, len(data), 200).tolist():
        stop = min(start + int(chance.integers(1, 6 << 20)), len(data))
        assert file.stretch(start, stop).tobytes() == data[start:stop]
        file.let_go(0, int(chance.integers(0, stop)))
    assert file.spool
    _ = file.stretch(0, len(data))
    file.let_go(0, len(data) - 1)
    assert file.spool.kept <= 2 << 20
    assert file.bytes.tobytes() == data


def test_what_is_on_its_way_while_a_walk_releases_what_is_behind_is_whole(
    s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, data = put_segment(s3, 12 << 20)
    file = opened(url, len(data)).to_walk()
    file.stretch(0, 1)
    keep = spool.Spool._keep

    def keep_and_release(fetching: spool.Spool, at: int, pieces: list[memoryview]) -> None:
        keep(fetching, at, pieces)
        fetching.forget_before(len(data))

    monkeypatch.setattr(spool.Spool, "_keep", keep_and_release)
    file.stretch(3 << 20, 6 << 20)
    monkeypatch.undo()

    assert file.bytes.tobytes() == data


def test_a_log_is_fetched_once_to_be_counted_or_scanned_by_a_job(s3: S3, faulty: FaultyServer, tmp_path: Path) -> None:
    drafts = [Draft(topic=f"T{number % 7}", body=b"x" * (number * 7919 % 90_000)) for number in range(400)]
    write_store(tmp_path, drafts, StoreSizes(segment=8 << 20))
    files = sorted((tmp_path / "commitlog").iterdir())
    size = sum(path.stat().st_size for path in files)
    unused = len(files[-1].read_bytes()) - len(files[-1].read_bytes().rstrip(b"\0"))
    url = s3.put(tmp_path, "long")
    before = sum(faulty.sizes)

    local, there = both(tmp_path, url, "stats", "-s", "STORE")
    counted = sum(faulty.sizes) - before
    store = Store(url)
    found = [piece.column("position").tolist() for part in log_ranges(store, store.open()) for piece in _tables(part)]

    assert (there.status, there.output) == (local.status, local.output)
    assert counted <= size + unused + (1 << 20)
    assert len([position for some in found for position in some]) == len(drafts)
    assert sum(faulty.sizes) - before - counted <= size + unused + (1 << 20)


@pytest.mark.parametrize("seed", range(3))
def test_verify_reads_a_log_of_real_size_once_and_tells_its_damage_as_on_a_disk(
    s3: S3, faulty: FaultyServer, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_AHEAD_IN_MEMORY", 4)
    chance = random.Random(seed)
    longest = (20_000, 200_000, 4_000_000)[seed]
    bodies = [b"x" * chance.randrange(longest) for _ in range(150_000_000 // longest)]
    drafts = [Draft(topic=f"T{number % 7}", body=body) for number, body in enumerate(bodies)]
    write_store(tmp_path, drafts, StoreSizes(segment=36 << 20))
    files = sorted((tmp_path / "commitlog").iterdir())
    for _ in range(seed * 3):  # none in the first
        with chance.choice(files).open("r+b") as file:
            file.seek(chance.choice((16 << 20, 32 << 20, chance.randrange(36 << 20))) - chance.randrange(2000))
            file.write(chance.choice((b"\0", b"\xff")) * chance.randrange(1, 3000))
    size = sum(path.stat().st_size for path in files)
    url = s3.put(tmp_path / "commitlog", f"real-{seed}/commitlog")

    before = sum(faulty.sizes)
    local, there = (list(verify_store(StoreReader(log), jobs=3)) for log in (tmp_path / "commitlog", url))

    assert there == local
    assert bool(local) == bool(seed)
    if not seed:
        assert sum(faulty.sizes) - before <= 1.2 * size


def _tables(part: LogRange) -> Iterator[MessageTable]:
    with RangeReader(part) as reader:
        yield from (piece for piece in reader.tables() if not isinstance(piece, UnreadablePlace))


def test_a_process_that_has_read_from_hdfs_can_fork() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        name_node = remote.place(f"hdfs://127.0.0.1:{server.getsockname()[1]}/brokers")
        assert isinstance(name_node, remote.RemotePath)
        assert name_node.tree.storage
        child = os.fork()
        if not child:
            os._exit(0)  # what runs in a child at first has run by now
        ended, _, _ = select.select([os.pidfd_open(child)], [], [], 30)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    assert ended, "the child hangs in what it does behind a fork"
