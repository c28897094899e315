"""What tells of versions, against stores whose version is known; and summaries of damaged stores."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.summary import describe
from mqtool.engine.store.versions import RELEASES, Evidence, before, conclude, find_evidence, ranges, since
from tests import damage
from tests.golden import GOLDEN_NAMES, copy_of, golden_store, manifest


def milestone(version: str) -> str:
    numbers = [int(part) for part in version.split(".")]
    return max(
        (release for release in RELEASES if [int(part) for part in release.split(".")] <= numbers),
        key=RELEASES.index,
    )


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_no_evidence_speaks_against_the_version_that_wrote_a_store(name: str) -> None:
    store = StoreReader(golden_store(name))
    messages = list(store.messages())
    written_by = milestone(manifest(name)["rocketmq_version"])

    evidence = find_evidence(store, messages, messages[-32:])

    assert evidence
    for one in evidence:
        assert written_by in one.releases, one.text
    assert written_by in conclude(evidence)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_what_is_told_of_the_version_leaves_out_other_lines(name: str) -> None:
    told = describe(StoreReader(golden_store(name)))["versions"]["written_by"]
    version = manifest(name)["rocketmq_version"]

    # What the store API wrote has no config, so less can be told of it.
    if not name.startswith(("special", "many", "propcrc")):
        assert (
            told
            == {
                "4.9.7": "4.9.2 or later, before 5.0.0" if "multipath" in name else "4.9.1 or later, before 5.0.0",
                "5.3.3": "5.2.0 or later, before 5.4.0",
                "5.5.0": "5.4.0 or later" if "rocksdb" in name else "5.5.0 or later",
            }[version]
        )


def test_a_hint_that_contradicts_what_is_certain_is_passed_over() -> None:
    certain, hint = Evidence("a", since("5.4.0")), Evidence("b", before("5.4.0"), certain=False)

    assert conclude([hint, certain]) == since("5.4.0")
    assert conclude([]) == frozenset(RELEASES)


@pytest.mark.parametrize(
    ("releases", "text"),
    [
        (frozenset(RELEASES), "any"),
        (since("5.5.0"), "5.5.0 or later"),
        (before("4.9.1"), "before 4.9.1"),
        (before("4.9.1") | since("5.2.0"), "before 4.9.1; or 5.2.0 or later"),
    ],
)
def test_releases_in_words(releases: frozenset[str], text: str) -> None:
    assert ranges(releases) == text


_copies: dict[str, Path] = {}


@given(st.data())
@settings(max_examples=40)
def test_whatever_is_damaged_there_is_a_summary(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["mixed-550-kill", "timer-533-kill", "batchcq-533-kill", "rocksdb-533-clean"]))
    if name not in _copies:
        _copies[name] = copy_of(name, tmp_path_factory.mktemp("copies"))
    store = _copies[name]
    op = data.draw(damage.flips(store) | damage.cuts(store))

    with damage.damaged(store, op):
        told = describe(StoreReader(store))

    assert told["disk"]
    assert isinstance(told["problems"], list)
