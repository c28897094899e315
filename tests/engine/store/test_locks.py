"""Asking after a lock that another process holds, without taking it."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtool.engine.store.locks import is_locked
from mqtool.engine.store.reader import StoreReader
from tests.damage import snapshot
from tests.golden import copy_of

# As a broker: an exclusive lock on the first byte, kept until it is told to go.
HOLDER = """
import fcntl, os, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, int(sys.argv[2]), os.SEEK_SET)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return copy_of("txn-533-clean", tmp_path)


@pytest.fixture
def holder(store: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    first = getattr(request, "param", 0)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store / "lock"), str(first)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        process.stdin.close()


@pytest.mark.usefixtures("holder")
def test_a_store_whose_lock_another_process_holds_is_live(store: Path) -> None:
    before = snapshot(store)

    assert is_locked(store / "lock")
    assert StoreReader(store).is_live
    assert snapshot(store) == before


@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize("holder", [1], indirect=True)
def test_only_the_first_byte_counts(store: Path) -> None:
    assert not is_locked(store / "lock")


def test_a_store_whose_broker_has_stopped_is_not_live(store: Path) -> None:
    assert not is_locked(store / "lock")
    assert not StoreReader(store).is_live


def test_asking_takes_no_lock(store: Path) -> None:
    assert not is_locked(store / "lock")

    with (store / "lock").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        assert not is_locked(
            store / "lock"
        )  # one's own is no other's; and asking has closed the file, and so let it go


def test_without_a_lock_file_nothing_is_live_and_none_is_made(store: Path) -> None:
    (store / "lock").unlink()

    assert not StoreReader(store).is_live
    assert not (store / "lock").exists()
