"""The table of the kinds of files, held against stores of real brokers and the description of the format."""

import re
from pathlib import Path

import pytest

from mqtool.engine.store.file_kinds import BY_NAME, COMMIT_LOG, KINDS, OF_STORE
from tests.golden import GOLDEN_NAMES, golden_store

LAYOUT = (Path(__file__).parents[3] / "docs" / "format" / "store").with_suffix(".md")
_OF_A_LOG = re.compile(r"dledger-\w+|commitlog-\w+")
"""Folders whose names a setting tells."""
_NEVER_WRITTEN = {"transaction"}


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_whatever_a_broker_put_into_its_store_is_of_a_kind(name: str) -> None:
    for path in golden_store(name).iterdir():
        if _OF_A_LOG.fullmatch(path.name):
            continue
        kind = BY_NAME.get(path.name)

        assert kind is not None, path.name
        assert path.is_dir() == (kind.levels > 0), path.name
        if kind.has_addresses and not (path / "CURRENT").exists():  # a database of RocksDB
            files = [file for file in path.rglob("*") if file.is_file()]
            assert all(re.fullmatch("[0-9]{20}", file.name) for file in files), files
            assert {len(file.relative_to(path).parts) for file in files} <= {kind.levels}, files


def test_the_table_has_what_the_description_of_the_format_lists_with_its_release() -> None:
    [table] = re.findall(r"### 1.1 Layout.*?(\n\|.*?)\n\n", LAYOUT.read_text(), re.DOTALL)
    rows = re.findall(r"^\| `([\w.]+)[^|]*\|.*\|([^|]*)\|$", table, re.MULTILINE)
    described = {name: since.split() for name, since in reversed(rows) if name not in _NEVER_WRITTEN}
    by_content = {"consumequeue_rocksdb", "rocksdbstore"}  # of RocksDB: their databases are described, not listed

    assert {*described} | by_content == {kind.name for kind in OF_STORE}
    for name, release in described.items():
        assert not (since := BY_NAME[name].since) or since.startswith(release[0]), name


def test_nothing_of_a_store_but_its_log_is_called_its_log() -> None:
    assert [kind for kind in KINDS if kind.label == COMMIT_LOG.label] == [COMMIT_LOG]
    assert len({(kind.parent, kind.name) for kind in KINDS}) == len(KINDS)
