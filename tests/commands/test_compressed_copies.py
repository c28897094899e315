"""Compressed copies of stores: what reads them as streams says of one what it says of the store unpacked."""

import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from mqtool.engine.store import packed
from mqtool.errors import Status
from tests.commands.running import Ran, run
from tests.damage import cases
from tests.golden import copy_of, golden_store

ON_THE_LOG = (
    "dump commitlog -s STORE",
    "stats -s STORE --by queue",
    "find -s STORE --text a --scan --limit 20",
    "verify -s LOG",
)
ON_ALL_FILES = (
    "dump consumequeue -s STORE",
    "dump config -s STORE",
    "dump index -s STORE",
    "dump checkpoint -s STORE",
)


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(1).compress(data)


def zst_of_unknown_size(data: bytes) -> bytes:
    """As ``zstd`` writes it from a pipe, and as two frames."""
    machine = zstandard.ZstdCompressor(1, write_content_size=False)
    return machine.compress(data[:70_000]) + machine.compress(data[70_000:])


def gz_of_many_parts(data: bytes) -> bytes:
    """As ``bgzip`` writes it: an empty part at the end, so that the length of all stands nowhere."""
    parts = [data[at : at + 500] for at in range(0, len(data), 500)]
    return b"".join(gzip.compress(part, 1) for part in [*parts, b""])


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gz": (".gz", lambda data: gzip.compress(data, 1)),
    "gz of many parts": (".gz", gz_of_many_parts),
    "zst": (".zst", zst),
    "zst of unknown size": (".zst", zst_of_unknown_size),
}


def pack_segments(store: Path, form: str = "gz", keep_last: bool = True) -> Path:
    """Compress the segments of the log, but for the last one, which a broker would still write to."""
    suffix, pack = PACKERS[form]
    segments = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdigit())
    for path in segments[: len(segments) - keep_last]:
        path.with_name(path.name + suffix).write_bytes(pack(path.read_bytes()))
        path.unlink()
    return store


def archive(store: Path, into: Path, *options: str, inside: str = ".") -> Path:
    """Pack a store by GNU tar."""
    subprocess.run(["tar", *options, "-cf", into, "-C", store, inside], check=True)
    return into


def compressed(path: Path, form: str) -> Path:
    suffix, pack = PACKERS[form]
    target = path.with_name(path.name + suffix)
    target.write_bytes(pack(path.read_bytes()))
    return target


def named(ran: Ran, *places: object) -> Ran:
    """Return what a command said, with the store called STORE and segments by their plain names."""
    texts = [ran.output, ran.remarks]
    for place in places:
        texts = [text.replace(str(place), "STORE") for text in texts]
    texts = [re.sub(r"([0-9]{20})\.(gz|zst)", r"\1", text) for text in texts]
    return Ran(ran.status, *texts)


def without(remarks: str, *signs: str) -> list[str]:
    return [line for line in remarks.splitlines() if not any(sign in line for sign in signs)]


OF_PACKED = (
    "unpack", "a commit log without its store", "read as a stream", "--live", "using the store in",
)  # fmt: skip


def unlike(store: Path, copy: object, commands: tuple[str, ...]) -> list[str]:
    """Return the commands that say something else of a copy than of the store."""
    unlike = []
    for command in commands:
        plain = run(*command.replace("LOG", f"{store}/commitlog").replace("STORE", str(store)).split())
        there = run(*command.replace("LOG", str(copy)).replace("STORE", str(copy)).split())
        plain = named(plain, f"{store}/commitlog", store)
        there = named(there, f"{copy}/commitlog", copy)
        told = [one.output.replace('"commitlog/', '"') if "LOG" in command else one.output for one in (plain, there)]
        remarks = [without(one.remarks, *OF_PACKED) for one in (plain, there)]
        if (there.status, told[1], remarks[1]) != (plain.status, told[0], remarks[0]):
            unlike.append(command)
    return unlike


@pytest.mark.parametrize("form", PACKERS)
def test_a_store_with_compressed_segments_is_read_as_the_plain_one(form: str, tmp_path: Path) -> None:
    store = golden_store("mixed-533-kill")
    copy = pack_segments(copy_of("mixed-533-kill", tmp_path), form)

    assert unlike(store, copy, ON_THE_LOG) == []


ARCHIVES: dict[str, tuple[str, ...]] = {"tar": (), "sparse": ("--sparse",), "pax": ("--format=pax", "--sparse")}


@pytest.mark.parametrize(
    ("kind", "form"), [("tar", ""), ("tar", "gz"), ("tar", "zst"), ("sparse", ""), ("sparse", "zst"), ("pax", "gz")]
)
def test_an_archive_is_read_as_the_store_unpacked(kind: str, form: str, tmp_path: Path) -> None:
    store = golden_store("mixed-533-kill")
    copy = archive(store, tmp_path / "store.tar", *ARCHIVES[kind])
    if form:
        copy = compressed(copy, form)

    assert unlike(store, copy, ON_THE_LOG if kind == "tar" and form else ON_ALL_FILES) == []
    pages = [run("info", "-s", where).rows[0] for where in (store, copy)]
    for row in pages:
        del row["store"]
        del row["inferred"]
        for kind_of_file in row["disk"]:
            del kind_of_file["allocated_size"]
    assert pages[0] == pages[1]


@pytest.mark.parametrize("form", ["", "gz"])
def test_an_empty_file_of_an_archive_is_what_it_is_on_a_disk(form: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden_store("mixed-533-kill") / "commitlog", store / "commitlog")
    (store / "checkpoint").touch()
    copy = archive(store, tmp_path / "store.tar")
    copy = compressed(copy, form) if form else copy

    for command in ("dump checkpoint", "info"):
        plain, there = (run(*command.split(), "-s", where) for where in (store, copy))
        assert there.status == plain.status
        assert there.remarks.replace(str(copy), str(store)).splitlines()[-1:] == plain.remarks.splitlines()[-1:]


@pytest.mark.parametrize("name", ["dledger-497-clean", "multipath-533-clean", "rocksdb-533-clean"])
def test_logs_in_other_folders_are_read_from_a_compressed_archive(name: str, tmp_path: Path) -> None:
    store = golden_store(name)
    copy = compressed(archive(store, tmp_path / "store.tar", "--sparse"), "zst")

    for command in ("dump commitlog -s STORE", "stats -s STORE --by topic", "find -s STORE --text a --scan"):
        plain, there = (run(*command.replace("STORE", str(where)).split()) for where in (store, copy))
        assert (there.status, there.output) == (plain.status, plain.output), command
    assert run("verify", "-s", copy).status == Status.OK


@pytest.mark.parametrize("number", range(5, len(cases()), 97))
def test_damage_is_found_in_compressed_copies_as_in_the_plain_log(number: int, tmp_path: Path) -> None:
    store = cases()[number].store(tmp_path)
    if not (store / "commitlog").is_dir():
        pytest.skip("the case has no such log")
    copy = archive(store, tmp_path / "store.tar")

    assert unlike(store, compressed(copy, "gz"), ("verify -s LOG", "stats -s STORE")) == []
    plain = run("verify", "-s", store / "commitlog")
    packed_copy = pack_segments(store, keep_last=False)
    there = named(run("verify", "-s", packed_copy))
    assert (there.status, there.output.replace('"commitlog/', '"')) == (plain.status, plain.output)


def test_segments_in_any_order_of_an_archive_are_read_by_their_addresses(tmp_path: Path) -> None:
    store = golden_store("mixed-533-kill")
    names = sorted((path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()), reverse=True)
    with tarfile.open(tmp_path / "store.tar", "w") as tar:
        for name in names:
            tar.add(store / name, f"backup/of/broker/{name}")

    for copy in (tmp_path / "store.tar", compressed(tmp_path / "store.tar", "zst")):
        assert unlike(store, f"{copy}/backup/of/broker", ()) == []
        plain, there = (run("stats", "-s", where, "--by", "queue", "-j", "4") for where in (store, copy))
        assert (there.status, there.output) == (plain.status, plain.output)
        assert "the store in" in there.remarks
        assert "backup/of/broker" in there.remarks


def test_an_archive_that_had_to_be_read_again_and_again_is_to_be_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_ALWAYS", 0)
    with tarfile.open(tmp_path / "log.tar", "w") as tar:
        for number in reversed(range(40)):
            info = tarfile.TarInfo(f"commitlog/{number * 65536:020}")
            info.size = 65536
            tar.addfile(info, io.BytesIO(bytes(65536)))

    ran = run("stats", "-s", compressed(tmp_path / "log.tar", "zst"))

    assert ran.status == Status.USAGE
    assert "unpack it first" in ran.remarks


def test_of_a_segment_that_is_there_twice_the_plain_one_counts_and_a_remark_says_so(tmp_path: Path) -> None:
    store = golden_store("mixed-533-kill")
    copy = copy_of("mixed-533-kill", tmp_path)
    (copy / "commitlog" / f"{0:020}.gz").write_bytes(b"nothing of the kind")

    ran = run("stats", "-s", copy)

    assert ran.output == run("stats", "-s", store).output
    assert f"{0:020}.gz is not read" in ran.remarks
    recovered = run("recover", "-s", copy, "--dry-run")
    assert recovered.status == run("recover", "-s", store, "--dry-run").status
    assert f"{0:020}.gz is not read: there is another copy of it" in recovered.remarks
    assert "a compressed copy of a segment, which is not read: brokers refuse to start with it" in recovered.output
    assert f"{0:020}.gz is not read" in run("salvage", "-s", copy, "--into", tmp_path / "new").remarks


def test_one_compressed_segment_is_read_by_itself(tmp_path: Path) -> None:
    store = golden_store("mixed-533-kill")
    copy = pack_segments(copy_of("mixed-533-kill", tmp_path))

    for command in ("dump commitlog", "stats", "verify", "info"):
        plain, there = (
            run(*command.split(), "-s", where / "commitlog" / f"{0:020}{suffix}")
            for where, suffix in ((store, ""), (copy, ".gz"))
        )
        assert there.status == plain.status, command
        if command != "info":
            assert there.output == plain.output


# What is refused


@pytest.mark.parametrize("size", [0, 65536])
def test_an_empty_segment_beside_a_compressed_one_with_messages_is_not_given_up(size: int, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    segment = store / "commitlog" / f"{65536:020}"
    packed = segment.with_name(f"{segment.name}.gz")
    packed.write_bytes(gzip.compress(segment.read_bytes()))
    segment.write_bytes(bytes(size))
    before = contents(tmp_path)

    repairs = ["recover --abnormal --yes", "rebuild queues --yes", "doctor", f"salvage --into {tmp_path / 'new'}"]
    for command in repairs:
        ran = run(*command.split(), "-s", store)
        assert ran.status == Status.USAGE
        assert f"{segment} is empty, but a compressed copy beside it is not: unpack that first" in ran.remarks
        assert contents(tmp_path) == before
    read = run("stats", "-s", store)
    assert f"{segment} is empty: unpack the compressed copy beside it over it" in read.remarks

    packed.write_bytes(gzip.compress(bytes(size)))
    assert run("recover", "-s", store, "--dry-run").status == Status.DAMAGE


@pytest.mark.parametrize("form", ["tar", "segments"])
@pytest.mark.parametrize(
    "command",
    [
        "get 0 -s STORE",
        "find --key a -s STORE",
        "export -s STORE",
        "compare STORE STORE",
        "salvage -s STORE --into NEW",
        "rebuild all --into NEW -s STORE",
        "recover --yes -s STORE",
        "doctor -s STORE",
        "pull --topic OrderEvents --queue 0 -s STORE",
        "topic delete --yes OrderEvents -s STORE",
        "dump commitlog --follow -s STORE",
    ],
)
def test_all_else_says_to_unpack_first_and_changes_nothing(command: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    copy = pack_segments(copy_of("mixed-533-clean", tmp_path / "work"))
    if form == "tar":
        copy = archive(golden_store("mixed-533-clean"), tmp_path / "work" / "store.tar")
    before = contents(tmp_path)

    ran = run(*command.replace("STORE", str(copy)).replace("NEW", str(tmp_path / "new")).split())

    assert ran.status == Status.USAGE
    assert "unpack it first" in ran.remarks or "--follow" in ran.remarks
    assert len(ran.remarks.splitlines()) == 1
    assert ran.output == ""
    assert contents(tmp_path) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def small_archive(into: Path) -> Path:
    """An archive of few blocks: two segments of 8 KiB and a table."""
    store = into / "small"
    (store / "commitlog").mkdir(parents=True)
    (store / "config").mkdir()
    segment = (golden_store("mixed-533-kill") / "commitlog" / f"{0:020}").read_bytes()[:8192]
    (store / "commitlog" / f"{0:020}").write_bytes(segment)
    (store / "commitlog" / f"{8192:020}").write_bytes(bytes(8192))
    (store / "config" / "topics.json").write_bytes(b"{}")
    return archive(store, into / "small.tar")


@pytest.mark.parametrize("form", ["", "gz", "zst"])
def test_an_archive_that_is_cut_short_anywhere_is_never_taken_for_a_whole_one(form: str, tmp_path: Path) -> None:
    whole = small_archive(tmp_path)
    if form:
        whole = compressed(whole, form)
    data = whole.read_bytes()
    ends = range(0, len(data.rstrip(b"\0")), 1024 if not form else max(1, len(data) // 25))
    torn = tmp_path / f"torn{''.join(whole.suffixes)}"
    for end in ends:
        torn.write_bytes(data[:end])
        ran = run("stats", "-s", torn)
        assert ran.status == Status.BAD_DATA, end
        assert len(ran.remarks.splitlines()) == 1


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_a_compressed_segment_that_is_cut_short_or_damaged_is_an_error(form: str, tmp_path: Path) -> None:
    store = pack_segments(copy_of("mixed-533-kill", tmp_path), form)
    path = store / "commitlog" / f"{65536:020}.{form}"
    data = path.read_bytes()

    for wrong in (data[: len(data) // 2], data[:-1], b"", b"no such thing at all", data + b"more"):
        path.write_bytes(wrong)
        ran = run("stats", "-s", store)
        assert ran.status == Status.BAD_DATA
        assert path.name in ran.remarks
        assert len(ran.remarks.splitlines()) == 1


def test_a_segment_whose_file_holds_another_length_than_it_says_is_an_error(tmp_path: Path) -> None:
    store = pack_segments(copy_of("mixed-533-kill", tmp_path))
    path = store / "commitlog" / f"{65536:020}.gz"
    content = gzip.decompress(path.read_bytes())
    for wrong in (
        gzip.compress(content[:100]) + gzip.compress(content[100:]),
        gzip.compress(content) + gzip.compress(b"x"),
    ):
        path.write_bytes(wrong)
        ran = run("verify", "-s", store)
        assert ran.status == Status.BAD_DATA
        assert "should contain" in ran.remarks


def test_a_segment_that_is_too_short_is_judged_as_on_a_disk(tmp_path: Path) -> None:
    store = copy_of("mixed-533-kill", tmp_path)
    path = store / "commitlog" / f"{65536:020}"
    os.truncate(path, 40_000)
    plain = run("verify", "-s", store / "commitlog")
    there = named(run("verify", "-s", pack_segments(store)))

    assert (there.status, there.output.replace('"commitlog/', '"')) == (plain.status, plain.output)
    assert plain.status == Status.DAMAGE


def member(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


@pytest.mark.parametrize(
    ("members", "status", "said"),
    [
        ([f"commitlog/{0:020}", f"./commitlog/{0:020}"], Status.BAD_DATA, "twice"),
        ([f"commitlog/{0:020}", "../../etc/passwd"], Status.BAD_DATA, "outside the archive"),
        ([f"a/store/commitlog/{0:020}", f"b/store/commitlog/{0:020}"], Status.USAGE, "several stores"),
        (["README", "notes/today"], Status.NO_INPUT, "no RocketMQ store"),
        ([], Status.NO_INPUT, "no RocketMQ store"),
        (["LINK"], Status.BAD_DATA, "link"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["", "gz"])
def test_an_archive_that_cannot_be_understood_is_refused(
    members: list[str], status: Status, said: str, form: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd.tar"
    with tarfile.open(path, "w") as tar:
        for name in members:
            is_link = name == "LINK"
            info = member(name, size=0 if is_link else 4096, type=tarfile.SYMTYPE if is_link else tarfile.REGTYPE)
            tar.addfile(info, None if is_link else io.BytesIO(bytes(4096)))
    ran = run("stats", "-s", compressed(path, form) if form else path)

    assert ran.status == status, ran.remarks
    assert said in ran.remarks
    assert len(ran.remarks.splitlines()) == 1


PLACES = {
    "data": ("data", ""),
    "below folders named as those of a store": (
        "config/index/store/commitlog",
        "config/index/store/config/topics.json",
    ),
    "deep": ("a/" * 1200 + "commitlog", ""),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("form", ["", "gz"])
def test_a_log_is_found_in_an_archive_wherever_it_lies(name: str, form: str, tmp_path: Path) -> None:
    folder, table = PLACES[name]
    store = golden_store("mixed-533-kill")
    with tarfile.open(tmp_path / "log.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for segment in sorted((store / "commitlog").iterdir()):
            tar.add(segment, f"{folder}/{segment.name}")
        if table:
            tar.add(store / "config" / "topics.json", table)
    copy = compressed(tmp_path / "log.tar", form) if form else tmp_path / "log.tar"

    assert run("stats", "-s", copy).output == run("stats", "-s", store).output
    assert run("verify", "-s", copy).status == run("verify", "-s", store / "commitlog").status


def test_of_an_archive_without_a_log_nothing_is_called_sound(tmp_path: Path) -> None:
    store = copy_of("mixed-533-kill", tmp_path)
    (store / "consumequeue" / "log-x").rename(store / "consumequeue" / "config")  # a topic may have such a name
    copy = archive(store, tmp_path / "store.tar", "--exclude=./commitlog")

    ran = run("verify", "-s", copy)

    assert (ran.status, ran.output) == (Status.NO_INPUT, "")
    assert "holds no segment of a log" in ran.remarks
    assert run("dump", "consumequeue", "-s", copy).output == run("dump", "consumequeue", "-s", store).output


@pytest.mark.parametrize(
    "fields",
    [
        {"type": b"M"},  # what began in the volume before
        {"pax_headers": {"mtime": "nan"}},
        {"pax_headers": {"mtime": "1e400"}},
        {"pax_headers": {"GNU.sparse.map": "", "GNU.sparse.size": "4096"}},
        {"pax_headers": {"GNU.sparse.map": "0,8192", "GNU.sparse.size": "4096"}},
        {"pax_headers": {"GNU.sparse.map": "-512,4096", "GNU.sparse.size": "4096"}},
        {"pax_headers": {"GNU.sparse.map": "2048,2048,0,2048", "GNU.sparse.size": "4096"}},
        {"name": "commitlog/00000000000000000000/below"},
    ],
)
@pytest.mark.parametrize("form", ["", "gz"])
def test_an_archive_that_says_odd_things_of_a_file_is_refused(
    fields: dict[str, object], form: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd.tar"
    segments: list[dict[str, Any]] = [{"name": f"commitlog/{0:020}"}, {"name": f"commitlog/{4096:020}", **fields}]
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for segment in segments:
            tar.addfile(member(size=4096, **segment), io.BytesIO(bytes(4096)))

    for command in ("info", "stats", "verify"):
        ran = run(command, "-s", compressed(path, form) if form else path)
        assert ran.status == Status.BAD_DATA, ran.remarks
        assert len(ran.remarks.splitlines()) == 1


# With little memory


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_little_of_a_large_segment_is_kept_at_once(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "commitlog"
    folder.mkdir()
    first = (golden_store("mixed-533-kill") / "commitlog" / f"{0:020}").read_bytes()[:335]
    suffix, pack = PACKERS[form]
    (folder / f"{0:020}{suffix}").write_bytes(pack(first + bytes((96 << 20) - len(first))))
    sizes = []
    unpacked = packed._unpacked

    def noted(path: Path) -> Iterator[bytes]:
        for piece in unpacked(path):
            sizes.append(len(piece))
            yield piece

    monkeypatch.setattr(packed, "_unpacked", noted)

    ran = run("stats", "-s", tmp_path)

    assert ran.rows[0]["message_count"] == 1
    assert sum(sizes) == 96 << 20
    assert max(sizes) <= 64 << 20


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_verify_unpacks_each_segment_once(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = pack_segments(copy_of("mixed-533-kill", tmp_path), form, keep_last=False)
    sizes = []
    unpacked = packed._unpacked

    def noted(path: Path) -> Iterator[bytes]:
        for piece in unpacked(path):
            sizes.append(len(piece))
            yield piece

    monkeypatch.setattr(packed, "_unpacked", noted)

    assert run("verify", "-s", copy).status == Status.OK
    assert sum(sizes) == sum(path.stat().st_size for path in (golden_store("mixed-533-kill") / "commitlog").iterdir())


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_a_program_that_ends_while_it_reads_a_copy_says_nothing_of_it(form: str, tmp_path: Path) -> None:
    suffix, pack = PACKERS[form]
    path = tmp_path / f"00000000000000000000{suffix}"
    path.write_bytes(pack(os.urandom(1 << 20)))
    program = (
        "import pathlib, sys; from mqtool.engine.store import packed\n"
        "sys._reading = packed._unpacked(pathlib.Path(sys.argv[1])); print(len(next(sys._reading)) > 0)"
    )

    ended = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)

    assert (ended.stdout, ended.stderr) == ("True\n", "")
