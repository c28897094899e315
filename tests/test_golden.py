import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import damage, golden
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_an_unpacked_store_is_the_one_its_manifest_describes(name: str) -> None:
    found = damage.snapshot(golden_store(name))

    files = {path: {"size": size, "sha256": sha256} for path, (size, sha256, _) in found.items() if sha256}
    if "lock" in files:
        del files["lock"]["sha256"]  # the broker held it when the manifest was made
    assert files == manifest(name)["files"]


@pytest.mark.parametrize("name", ["dledger-497-clean", "mixed-497-clean", "timer-533-kill"])
def test_a_copy_equals_its_store_and_takes_no_more_room(name: str, tmp_path: Path) -> None:
    store = golden_store(name)

    copy = copy_of(name, tmp_path)

    # The store's own folder is not in the archive, so its time tells nothing.
    then, now = damage.snapshot(store), damage.snapshot(copy)
    assert {**now, ".": None} == {**then, ".": None}
    assert all(os.access(path, os.W_OK) for path in copy.rglob("*"))
    assert sum(path.stat().st_blocks for path in copy.rglob("*")) * 512 < 4 << 20


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Unpack golden stores where no other worker looks."""
    golden._unpacked.cache_clear()
    monkeypatch.setattr(golden, "_cache", lambda: tmp_path)
    yield tmp_path
    golden._unpacked.cache_clear()


@pytest.mark.usefixtures("own_cache")
def test_writing_to_a_golden_store_shows_and_the_store_is_unpacked_again() -> None:
    victim = golden_store("txn-533-kill") / "checkpoint"
    before, content = victim.stat(), victim.read_bytes()
    assert golden.changes_since_unpacking("txn-533-kill") == []

    victim.chmod(0o644)
    victim.write_bytes(content[::-1])
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert golden.changes_since_unpacking("txn-533-kill") == ["store/checkpoint"]
    golden._unpacked.cache_clear()  # as in the next process
    assert (golden_store("txn-533-kill") / "checkpoint").read_bytes() == content
    assert golden.changes_since_unpacking("txn-533-kill") == []


@pytest.mark.usefixtures("own_cache")
def test_a_store_is_unpacked_once() -> None:
    first = golden_store("txn-533-kill").stat()
    golden._unpacked.cache_clear()

    again = golden_store("txn-533-kill").stat()

    assert again.st_ino == first.st_ino


@pytest.mark.parametrize("case", damage.cases(), ids=lambda case: case.name)
def test_a_recorded_case_changes_what_its_operations_name_and_nothing_else(
    case: damage.DamageCase, tmp_path: Path
) -> None:
    before = damage.snapshot(golden_store(case.base))

    after = damage.snapshot(case.store(tmp_path))

    touched = [op.get("to") or op.get("file") or op["path"] for op in case.ops]
    files = {path for path in before.keys() | after.keys() if (before.get(path) or after[path])[1]}
    changed = {path for path in files if before.get(path, ())[:2] != after.get(path, ())[:2]}
    assert all(any(Path(path).is_relative_to(named) for named in touched) for path in changed)
    assert bool(changed) == bool(case.ops)


def test_every_operation_does_what_it_says(tmp_path: Path) -> None:
    damage.apply_ops(
        tmp_path,
        [
            {"op": "mkdir", "path": "a/b"},
            {"op": "create", "file": "a/b/zeros", "size": 8},
            {"op": "write", "file": "a/b/zeros", "at": 2, "hex": "0102ff"},
            {"op": "create", "file": "copied", "size": 4},
            {"op": "copy", "file": "a/b/zeros", "at": 3, "len": 2, "to": "copied", "to_at": 1},
            {"op": "zero", "file": "a/b/zeros", "at": 3, "len": 1},
            {"op": "resize", "file": "a/b/zeros", "size": 5},
            {"op": "create", "file": "gone", "size": 0},
            {"op": "delete", "path": "gone"},
        ],
    )

    assert (tmp_path / "a/b/zeros").read_bytes() == b"\0\0\x01\0\xff"
    assert (tmp_path / "copied").read_bytes() == b"\0\x02\xff\0"
    damage.apply_ops(tmp_path, [{"op": "delete", "path": "a"}])
    assert [path.name for path in tmp_path.iterdir()] == ["copied"]


@given(st.data())
def test_drawn_damage_changes_its_file_and_is_taken_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = tmp_path_factory.mktemp("store")
    (store / "file").write_bytes(b"some bytes")
    (store / "empty").touch()
    before = damage.snapshot(store)

    op = data.draw(damage.flips(store) | damage.cuts(store))
    with damage.damaged(store, op):
        hit = damage.snapshot(store)

    assert {path for path in before if before[path][:2] != hit[path][:2]} == {"file"}
    assert damage.snapshot(store) == before


@given(st.data(), st.binary(min_size=1))
def test_drawn_bytes_are_never_the_original(data: st.DataObject, original: bytes) -> None:
    changed = data.draw(damage.flipped(original))
    shorter = data.draw(damage.cut(original))

    assert len(changed) == len(original)
    assert sum(a != b for a, b in zip(changed, original, strict=True)) == 1
    assert original.startswith(shorter)
    assert len(shorter) < len(original)


def test_the_checksum_of_a_snapshot_is_the_files_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")

    assert damage.snapshot(tmp_path)["file"][1] == hashlib.sha256(b"bytes").hexdigest()
