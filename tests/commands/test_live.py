"""Stores in use whose locks nobody sees: ``--live`` has their ends judged as what a broker is just writing."""

from pathlib import Path

import pytest

from mqtool.engine.store.locks import _locks_stay_here
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import Status
from mqtool.formats.message import Message
from mqtool.spark.options import Options
from mqtool.spark.partitions import RangeReader, log_ranges
from tests.commands.running import run
from tests.golden import copy_of, golden_store

STORE = "mixed-533-clean"
COMMANDS = ("verify", "find --text zzzz", "export", "dump commitlog", "stats")


def messages_of(store: Path) -> list[Message]:
    return list(StoreReader(store).messages())


def segment_of(store: Path, offset: int) -> MappedFile:
    segments = StoreReader(store).commit_log.segments
    return next(one for one in segments if one.start_offset <= offset < one.end_offset)


def tear(store: Path, kept: int = 200, count: int = 1) -> Path:
    """Leave of the last ``count`` messages of a log the first bytes of the first, as if no more was written so far."""
    for number, message in enumerate(messages_of(store)[-count:]):
        segment = segment_of(store, message.physical_offset)
        keep = 0 if number else kept
        with segment.path.open("r+b") as file:
            file.seek(message.physical_offset - segment.start_offset + keep)
            file.write(bytes(message.size - keep))
    return store


def ask(command: str, store: Path, *options: str) -> int:
    name, *rest = command.split()
    return run(name, *rest, "-s", store, *options).status


@pytest.mark.parametrize("kept", [40, 200, 360, 399])
def test_a_message_that_is_being_written_is_no_damage_of_a_store_in_use(tmp_path: Path, kept: int) -> None:
    store = tear(copy_of(STORE, tmp_path), kept)

    assert ask("verify", store) == Status.DAMAGE
    assert {command: ask(command, store, "--live") for command in COMMANDS} == dict.fromkeys(COMMANDS, Status.OK)
    whole = run("export", "-s", golden_store(STORE)).rows
    assert run("export", "-s", store, "--live").rows == whole[:-1]


@pytest.mark.parametrize("name", [STORE, "batchcq-533-clean", "rocksdb-533-clean", "retry-533-clean"])
@pytest.mark.parametrize("count", [1, 5])
def test_queues_of_a_copy_may_reach_further_than_its_log(tmp_path: Path, name: str, count: int) -> None:
    store = tear(copy_of(name, tmp_path), 0, count)

    found = {row["code"] for row in run("verify", "-s", store).rows}
    live = run("verify", "-s", store, "--live")

    assert found & {"QUEUE-BEYOND", "INDEX-BEYOND", "CHECKPOINT-AHEAD"}
    assert live.status == run("verify", "-s", golden_store(name)).status == Status.OK
    assert "STORE-LIVE" in {row["code"] for row in live.rows}


def test_damage_in_the_middle_is_damage_of_a_store_in_use(tmp_path: Path) -> None:
    store = tear(copy_of(STORE, tmp_path))
    message = messages_of(store)[100]
    segment = segment_of(store, message.physical_offset)
    with segment.path.open("r+b") as file:
        file.seek(message.physical_offset - segment.start_offset + 4)
        file.write(b"\xff" * 40)

    for command in COMMANDS:
        assert ask(command, store, "--live") == Status.DAMAGE, command
    lost = [row["physical_offset"] for row in run("verify", "-s", store, "--live").rows if row["code"] == "LOG-MAGIC"]
    assert lost == [message.physical_offset]


def test_a_range_that_ends_within_the_log_is_judged_to_its_end(tmp_path: Path) -> None:
    store = copy_of(STORE, tmp_path)
    message = messages_of(store)[100]
    segment = segment_of(store, message.physical_offset)
    with segment.path.open("r+b") as file:
        file.seek(message.physical_offset - segment.start_offset + 4)
        file.write(b"\xff" * 40)

    behind = message.physical_offset + message.size
    assert ask("find --text zzzz", store, "--live", "--to", str(behind)) == Status.DAMAGE


def test_on_a_disk_whose_locks_are_seen_nothing_is_asked(tmp_path: Path) -> None:
    store = tear(copy_of(STORE, tmp_path))

    assert "--live" not in run("verify", "-s", store).remarks


def test_brokers_are_not_told_to_be_in_use() -> None:
    ran = run("find", "-n", "localhost:1", "--key", "a", "--live")

    assert ran.status == Status.USAGE
    assert "--live applies to a store" in ran.remarks


def test_a_source_and_its_ranges_leave_out_what_is_being_written(tmp_path: Path) -> None:
    store = tear(copy_of(STORE, tmp_path))

    def lost(live: str) -> list[str]:
        (one,) = Options.read({"path": str(store), "live": live}).stores()
        codes = []
        for part in log_ranges(one, one.open(), 64 << 10):
            with RangeReader(part) as reader:
                codes += [piece.code for piece in reader.tables() if hasattr(piece, "code")]
        return codes

    assert lost("false") == ["LOG-TORN"]
    assert lost("true") == []


@pytest.mark.parametrize(
    ("mount", "stay"),
    [
        ("36 25 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro", False),
        ("90 25 0:52 / /mnt/a rw,relatime shared:2 - nfs4 filer:/a rw,vers=4.2,hard,local_lock=none", False),
        ("91 25 0:53 / /mnt/b rw,relatime shared:3 - nfs filer:/b rw,vers=3,hard,nolock,local_lock=all", True),
        ("92 25 0:54 / /mnt/c rw,relatime - nfs4 filer:/c rw,vers=4.1,local_lock=posix,addr=10.0.0.1", True),
        ("93 25 0:55 / /mnt/d rw,nosuid,nodev - fuse.s3fs s3fs rw,user_id=0,group_id=0", True),
        ("94 25 8:17 / /mnt/e rw,relatime - fuseblk /dev/sdb1 rw,user_id=0", False),
        ("95 25 0:56 / /mnt/f rw,relatime - cifs //filer/f rw,vers=3.0,nobrl", True),
        ("96 25 0:57 / /mnt/g rw,relatime - lustre mgs@tcp:/g rw,flock", False),
        ("97 25 0:58 / /mnt/h rw,relatime - lustre mgs@tcp:/h rw,localflock", True),
        ("98 25 0:59 / /mnt/i rw,relatime - virtiofs shared rw", True),
    ],
)
def test_mounts_that_do_not_show_the_locks_of_other_machines_are_known(mount: str, stay: bool) -> None:
    assert _locks_stay_here(mount) is stay
