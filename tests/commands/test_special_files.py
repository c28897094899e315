"""A named pipe, a socket or a device where a file of a store belongs: no command waits for it forever."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtool.errors import Status
from tests.commands.running import run
from tests.golden import copy_of

_SECONDS = 60

_SEGMENT = "commitlog/00000000000000065536"
_QUEUE = "consumequeue/OrderEvents/0/00000000000000000000"
_INDEX = "index/*"
_REFUSE = {"verify", "doctor", "recover", "recover as a broker", "rebuild", "salvage"}
_COMMANDS = {
    "verify": ("verify",),
    "doctor": ("doctor",),
    "info": ("info",),
    "stats": ("stats",),
    "find": ("find", "--key", "x"),
    "get": ("get", "OrderEvents", "0", "0"),
    "rebuild": ("rebuild", "all", "--yes"),
    "recover": ("recover", "--abnormal", "--yes"),
    "recover as a broker": ("recover", "--as-broker", "5.3", "--yes"),
    "salvage": ("salvage", "--into", "{new}"),
    "export": ("export", "--into", "{new}"),
}


@pytest.fixture(autouse=True)
def _a_limit() -> Iterator[None]:
    """Fail what waits."""

    def stop(*_: object) -> None:
        raise TimeoutError("the command waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _pipe_at(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("name", _COMMANDS)
@pytest.mark.parametrize("file", [_SEGMENT, _QUEUE, _INDEX, "checkpoint", "lock", "abort"])
def test_no_command_waits_at_a_named_pipe(file: str, name: str, tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    pipe = _pipe_at(next(store.glob(file), store / file))
    command, *arguments = (text.format(new=tmp_path / "new") for text in _COMMANDS[name])

    ran = run(command, *arguments, "-s", store)

    if ran.status == Status.IO_ERROR:
        assert f"{pipe} is a named pipe where a file belongs" in ran.remarks
    if name in _REFUSE and file in (_SEGMENT, _QUEUE, _INDEX):
        assert ran.status == Status.IO_ERROR


def test_a_socket_and_a_device_are_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    (store / _SEGMENT).unlink()
    monkeypatch.chdir(store / "commitlog")  # the name of a socket is limited
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(Path(_SEGMENT).name)
        by_socket = run("recover", "-s", store, "--yes")
    (store / _SEGMENT).unlink()
    (store / _SEGMENT).symlink_to("/dev/zero")
    by_device = run("recover", "-s", store, "--yes")

    assert [by_socket.status, by_device.status] == [Status.IO_ERROR] * 2
    assert "is a socket where a file belongs" in by_socket.remarks
    assert "is a device where a file belongs" in by_device.remarks


def test_undo_does_not_wait_for_a_named_pipe_that_took_the_place_of_a_file(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    with (store / _SEGMENT).open("r+b") as file:
        file.seek(3000)
        file.write(bytes(1000))
    assert run("recover", "-s", store, "--abnormal", "--yes").status == Status.GIVEN_UP
    _pipe_at(store / _SEGMENT)

    assert run("undo", "-s", store, "--yes").status == Status.BUSY
    forced = run("undo", "-s", store, "--yes", "--force")
    assert forced.status == Status.IO_ERROR
    assert str(store / _SEGMENT) in forced.remarks


def test_settings_may_come_from_a_pipe_or_a_device(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    reading, writing = os.pipe()
    try:
        os.write(writing, b"mappedFileSizeCommitLog=65536\n")
        os.close(writing)
        for config, inferred in ((f"/dev/fd/{reading}", False), ("/dev/null", True)):
            told = run("info", "-s", store, "-c", config)

            assert told.status == Status.OK
            assert ("assuming 65,536-byte segments" in told.output) is inferred
    finally:
        os.close(reading)
