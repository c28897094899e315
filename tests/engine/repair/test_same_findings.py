"""The same store gives the same findings in the same order, wherever its log is cut and whoever shares the work."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.parts import Part, joined
from mqtool.engine.repair.verify import index as verify_index
from mqtool.engine.repair.verify import log as verify_log
from mqtool.engine.repair.verify import store as verify
from mqtool.engine.repair.verify.store import Level, verify_store
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import scan
from tests import damage
from tests.golden import copy_of

STORES = ["mixed-533-clean", "batchcq-533-clean", "propcrc-533-clean", "mixed-550-kill"]
SEGMENT = 65536
CRC_AT = 8


@pytest.fixture(scope="module", params=STORES)
def victim(request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    yield copy_of(request.param, folder)
    shutil.rmtree(folder)


def findings(store: Path, part: int, jobs: int = 1, level: Level = Level.FULL, compiled: bool = False) -> list[Finding]:
    """Judge a store whose log is cut into stretches of so many bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "PART", part)
        patch.setattr(scan, "COMPILE_FROM" if compiled else "LOAD_FROM", 0 if compiled else scan.COMPILE_FROM)
        return list(verify_store(StoreReader(store), level, jobs))


@settings(max_examples=5)
@given(st.data())
def test_findings_are_the_same_wherever_the_log_is_cut(victim: Path, data: st.DataObject) -> None:
    harm = st.one_of(
        damage.flips(victim, "commitlog/*"),
        damage.copies(victim, "commitlog/*"),
        damage.zeroes(victim, "commitlog/*"),
        damage.flips(victim, "*consumequeue*/**/0*"),
        damage.zeroes(victim, "*consumequeue*/**/0*"),
        damage.flips(victim, "index/*"),
    )
    ops = data.draw(st.lists(harm, min_size=1, max_size=4))
    block = data.draw(st.sampled_from([16 << 20, 20_000]))
    with damage.damaged(victim, *ops), pytest.MonkeyPatch.context() as patch:
        for module in (verify_log, verify_index):
            patch.setattr(module, "BLOCK", block)
        whole = findings(victim, 16 << 20)

        for part, jobs in ((data.draw(st.integers(100, 900)), 1), (data.draw(st.integers(4000, 40_000)), 2)):
            assert findings(victim, part, jobs) == whole
        assert findings(victim, 16 << 20, compiled=True) == whole
        quick = findings(victim, 16 << 20, level=Level.QUICK)
        assert findings(victim, 3000, 2, Level.QUICK) == quick


def test_what_the_next_record_shows_of_one_comes_with_its_other_findings(tmp_path: Path) -> None:
    store = copy_of("propcrc-533-clean", tmp_path)
    with (store / f"commitlog/{SEGMENT:020}").open("r+b") as file:
        file.seek(1598)  # its CRC property, the last of the properties
        file.write(bytes(20))

    whole = findings(store, 16 << 20)

    of_log = [(one.code, one.offset) for one in whole if one.code.startswith("LOG")]
    assert of_log == [("LOG-PROPERTY-CRC", 1022), ("LOG-PROPERTY-TEXT", 1022)]
    for part in (100, 700, 4000):
        assert findings(store, part) == whole


def test_more_findings_than_are_listed_are_counted_alike(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    for message in StoreReader(store).messages():
        segment = store / f"commitlog/{message.physical_offset // SEGMENT * SEGMENT:020}"
        with segment.open("r+b") as file:
            file.seek(message.physical_offset % SEGMENT + CRC_AT)
            file.write(b"CRC?")

    whole = findings(store, 16 << 20)

    assert [one.message for one in whole if one.code == "LOG-CRC"][100:] == ["187 more of these in 3 files or folders"]
    for part in (700, 9000):
        assert findings(store, part, 2) == whole


@pytest.mark.parametrize("gone", [1, 2])
@pytest.mark.parametrize("seen", [0, 1])
def test_segments_that_retention_takes_meanwhile_are_told_and_the_others_judged(
    gone: int, seen: int, tmp_path: Path
) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    segments = sorted((store / "commitlog").iterdir())
    reader = StoreReader(store)
    told: list[int] = []

    def remove(done: int) -> None:
        """Take the oldest files when so many are judged, as a broker's retention would."""
        if done > (seen - 1) * SEGMENT and not told:
            told.append(done)
            for path in segments[: seen + gone]:
                path.unlink()

    if not seen:
        assert reader.commit_log.segments
        remove(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mqtool.engine.repair.verify.store.in_order", one_by_one)
        found = list(verify_store(reader, progress=remove))

    assert [one for one in found if one.severity != "note"] == []
    assert any("was deleted by retention" in remark for remark in reader.remarks)
    assert segments[seen].name in " ".join(reader.remarks)


def one_by_one(_pool: object, check: Any, parts_: list[Part], _ahead: int) -> Iterator[Any]:
    """Judge each stretch only when the one before it has been taken."""
    return joined((check(part, None) for part in parts_), check)
