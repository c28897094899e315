"""What holds for every test: how hypothesis draws, and that golden stores are only read."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mqtool.formats import scan
from tests.golden import changes_since_unpacking, opened_stores
from tests.machine import Mounts, leave_mounts, show_half_empty_disk

# A machine may be slow without a test being wrong: no deadlines, and no complaint about slow examples.
settings.register_profile("quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("quick"), derandomize=True, database=None)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=2000)
settings.load_profile("ci" if os.environ.get("CI") else "quick")  # --hypothesis-profile=thorough overrides

# What the developer's shell says about stores and brokers is not for tests.
for _name in ("MQTOOL_STORE", "NAMESRV_ADDR"):
    os.environ.pop(_name, None)

# Neither is how full the machine's disk is.
show_half_empty_disk()

# Stores of tests are small and many: compiled kernels, where an earlier run has left them, read them in half the time.
scan.LOAD_FROM = 0

# What a shell starts in the background ignores SIGINT, what nohup starts SIGHUP, and so would the commands of tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Name at the end what failed, a line each: pytest's own summary shows whole tables in CI, which may keep less."""
    yield
    for outcome in ("failed", "error"):
        for report in terminalreporter.getreports(outcome):
            terminalreporter.write_line(f"{outcome}: {report.nodeid}")


@pytest.fixture(autouse=True)
def golden_stores_are_only_read() -> Iterator[None]:
    """Fail the test that writes to a golden store, before others trip over it."""
    yield
    changed = {name: paths for name in sorted(opened_stores()) if (paths := changes_since_unpacking(name))}
    assert not changed, f"written to golden stores that all tests share (use copy_of): {changed}"


@pytest.fixture
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small stores read as a new process of a user reads them, without compiled kernels."""
    monkeypatch.setattr(scan, "LOAD_FROM", scan.COMPILE_FROM)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """Make a folder that every user may write to; pytest keeps its own from others."""
    with tempfile.TemporaryDirectory(prefix="mqtool-open-") as name:
        Path(name).chmod(0o777)
        yield Path(name).resolve()


@pytest.fixture
def terminal() -> tuple[int, int]:
    """Make a terminal: the side that looks at it and the side of a program, both closed by the test."""
    try:
        return os.openpty()
    except OSError as error:
        pytest.skip(f"no terminal can be opened: {error} (is /dev/pts mounted?)")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """Make a folder in memory, where there is room: what syncs a thousand times waits for no disk there."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 1 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="mqtool-", dir=memory) as name:
        yield Path(name)


@pytest.fixture
def mounts() -> Iterator[Mounts]:
    """Make mounts; where the machine lets nobody, the test is skipped, and says why."""
    why_not = leave_mounts()
    if why_not:
        pytest.skip(why_not)
    made = Mounts()
    yield made
    made.end()
