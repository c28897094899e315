"""The program as a whole: its exit statuses, what a terminal or pipe may do to it, and what it loads.

Processes are real, and each waits for the other by reading: nothing here sleeps.
"""

import ast
import contextlib
import inspect
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import click
import numpy
import pytest
from click.shell_completion import BashComplete

import mqtool
from mqtool import cli
from mqtool.errors import Status
from mqtool.spark.session import package_into
from tests.commands.running import run
from tests.damage import snapshot
from tests.golden import copy_of, golden_store

ROOT = Path(__file__).parent.parent
SLOW = ("numba", "llvmlite", "pyarrow", "pyspark", "rich", "rocksdict")


@pytest.fixture
def surroundings(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing names a store."""
    home = tmp_path / "home"
    home.mkdir()
    return {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def mqtool_at(surroundings: dict[str, str], *arguments: object, **more: Any) -> "subprocess.CompletedProcess[str]":
    """Run the program to its end."""
    environment = surroundings | more.pop("environment", {})
    command = [sys.executable, "-m", "mqtool", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **more)


EXTRA = """
import contextlib, os, signal, sys, types
import click
from mqtool import cli

@click.command()
@click.argument("store")
def command(store):
    "One more command."
    {body}

module = types.ModuleType("mqtool.commands.extra")
module.command = command
sys.modules[module.__name__] = module
cli.COMMANDS["extra"] = cli.CommandEntry("extra", "One more.")
sys.argv = ["mqtool", "extra", sys.argv[1]]
cli.main()
"""


def start_extra(surroundings: dict[str, str], body: str, store: Path, **more: Any) -> "subprocess.Popen[str]":
    """Start the program with one more command in its table."""
    program = EXTRA.format(body="\n    ".join(body.strip().splitlines()))
    return subprocess.Popen(
        [sys.executable, "-c", program, str(store)],
        env=surroundings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    )


# Statuses.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["verify", "--nonsense"], "No such option"),
        (["verify", "--level", "some"], "'some' is not one of"),
        (["verify", "--jobs", "0"], "0 is not in the range"),
        (["verify", "too", "much"], "unexpected extra argument"),
        (["verify", "-s"], "requires an argument"),
        (["info", "-s", "/", "--set", "maxIndexNum"], "give it as KEY=VALUE"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], said: str) -> None:
    ran = run(*arguments)

    assert (ran.status, ran.output) == (Status.USAGE, "")
    assert said in ran.remarks


def test_without_a_command_the_help_is_shown(surroundings: dict[str, str]) -> None:
    done = mqtool_at(surroundings)

    assert done.returncode == Status.USAGE
    for name in cli.COMMANDS:
        assert name in done.stderr


@pytest.mark.parametrize("command", ["info", "verify", "dump commitlog", "stats"])
def test_a_path_that_is_no_store_ends_with_66(command: str, tmp_path: Path) -> None:
    for path, said in ((tmp_path, "is not a RocketMQ store"), (tmp_path / "gone", "is not a directory")):
        ran = run(*command.split(), "-s", path)

        assert (ran.status, ran.output) == (Status.NO_INPUT, "")
        assert f"{path} {said}" in ran.remarks


def test_where_no_store_is_named_and_none_is_near_it_ends_with_66(surroundings: dict[str, str], tmp_path: Path) -> None:
    done = mqtool_at(surroundings, "info", cwd=tmp_path)

    assert done.returncode == Status.NO_INPUT
    assert "use -s DIR or set MQTOOL_STORE" in done.stderr


def test_a_store_is_the_one_named_or_the_one_near(surroundings: dict[str, str], tmp_path: Path) -> None:
    def topics(*arguments: object, **more: Any) -> str:
        done = mqtool_at(surroundings, "dump", "commitlog", "--limit", 1, *arguments, cwd=tmp_path, **more)
        return str(json.loads(done.stdout)["topic"]) if done.returncode == 0 else done.stderr

    def first(name: str) -> str:
        return next(mqtool.open_store(golden_store(name)).messages()).topic

    names = {"retry-533-clean", "batchcq-533-clean", "special-533-clean"}
    assert len({first(name) for name in names}) == 3
    copy_of("batchcq-533-clean", tmp_path).rename(tmp_path / "home/store")
    assert topics() == first("batchcq-533-clean")
    copy_of("special-533-clean", tmp_path).rename(tmp_path / "store")
    assert topics() == first("special-533-clean")
    named = {"MQTOOL_STORE": str(golden_store("retry-533-clean"))}
    assert topics(environment=named) == first("retry-533-clean")
    assert topics("-s", "home/store", environment=named) == first("batchcq-533-clean")


def test_a_configuration_that_is_not_there_ends_with_66(tmp_path: Path) -> None:
    ran = run("info", "-s", golden_store("txn-533-clean"), "-c", tmp_path / "broker.conf")

    assert (ran.status, ran.output) == (Status.NO_INPUT, "")
    assert "broker.conf does not exist" in ran.remarks


def test_bad_data_ends_with_65(tmp_path: Path) -> None:
    store = copy_of("txn-533-clean", tmp_path)
    (store / "checkpoint").write_bytes(b"short")

    ran = run("dump", "checkpoint", "-s", store)

    assert ran.status == Status.BAD_DATA
    assert "5 bytes instead of 4,096" in ran.remarks


def test_a_verdict_is_a_status(tmp_path: Path) -> None:
    assert run("verify", "-s", golden_store("txn-533-clean")).status == Status.OK

    store = copy_of("txn-533-clean", tmp_path)
    os.truncate(store / "commitlog" / ("0" * 20), 20_000)
    assert run("verify", "-s", store).status == Status.DAMAGE


@pytest.fixture
def shared() -> Iterator[Path]:
    """A store that another user may reach, but for one segment of its log."""
    home = Path(tempfile.mkdtemp(prefix="mqtool-shared-"))
    store = home / "store"
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / ("0" * 20)).write_bytes(bytes(4096))
    for folder in (home, store, store / "commitlog"):
        folder.chmod(0o755)
    yield store
    for path in home.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(home)


# Root may read everything, and another user perhaps not even Python: so all that is needed is loaded before.
AS_ANOTHER = """
import os, sys
from mqtool import cli

cli.run([*sys.argv[1:], "-o", "csv"])
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
cli.main()
"""


@pytest.mark.parametrize("closed", ["commitlog/" + "0" * 20, "commitlog", "."])
def test_what_a_user_may_not_read_ends_with_77(surroundings: dict[str, str], shared: Path, closed: str) -> None:
    (shared / closed).chmod(0)

    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER, "dump", "commitlog", "-s", str(shared)],
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (Status.NOT_PERMITTED, "")
    assert "no permission to read" in done.stderr.splitlines()[-1]


def test_a_full_disk_ends_with_74(surroundings: dict[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mqtool", "explain"],
            env=surroundings,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == Status.IO_ERROR
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def shell(surroundings: dict[str, str], command: str) -> "subprocess.CompletedProcess[str]":
    """Run a line of shell that begins with ``mqtool``."""
    line = f'"{sys.executable}" -m {command}'
    return subprocess.run(
        ["bash", "-c", line], env=surroundings, capture_output=True, text=True, errors="replace", check=False
    )


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "command", ["--version", "explain", "info -s {}", "verify -s {}", "dump commitlog -o csv -s {}"]
)
def test_where_the_output_is_closed_only_the_status_tells(
    surroundings: dict[str, str], command: str, closed: str
) -> None:
    done = shell(surroundings, f"mqtool {command.format(golden_store('txn-533-clean'))} {closed}")

    assert (done.returncode, done.stdout) == (Status.OK, "")
    assert "fault" not in done.stderr


@pytest.mark.parametrize(("command", "status"), [("info -s /nowhere", Status.NO_INPUT), ("info --x", Status.USAGE)])
def test_a_complaint_that_cannot_be_written_is_a_status_all_the_same(
    surroundings: dict[str, str], command: str, status: Status
) -> None:
    assert shell(surroundings, f"mqtool {command} 2>/dev/full").returncode == status


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("form", ["table", "csv", "jsonl"])
def test_no_character_is_too_much_for_an_output(surroundings: dict[str, str], encoding: str, form: str) -> None:
    command = f"mqtool dump commitlog -o {form} -s {golden_store('mixed-533-clean')}"

    done = shell(surroundings | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}, command)

    assert done.returncode == Status.OK
    assert "fault" not in done.stderr
    assert (r"\u6807" if (form, encoding) == ("table", "latin-1") else "标签") in done.stdout


NOBODY = """
import pathlib, pwd, sys
from mqtool import cli

def unknown(uid):
    raise KeyError(uid)

pwd.getpwuid = unknown
cli.main()
"""


def test_a_user_without_a_home_is_no_fault(surroundings: dict[str, str], tmp_path: Path) -> None:
    del surroundings["HOME"]
    done = subprocess.run(
        [sys.executable, "-c", NOBODY, "info"],
        env=surroundings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == Status.NO_INPUT
    assert "use -s DIR or set MQTOOL_STORE" in done.stderr


@pytest.mark.parametrize(
    ("setting", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colors_can_be_declined(
    surroundings: dict[str, str], setting: dict[str, str], colored: bool, terminal: tuple[int, int]
) -> None:
    parent, child = terminal

    subprocess.run(
        [sys.executable, "-m", "mqtool", "explain", "LOG-CRC", "-o", "table"],
        env=surroundings | {"TERM": "xterm"} | setting,
        stdout=child,
        check=True,
    )

    os.close(child)
    assert (b"\x1b[" in os.read(parent, 4096)) is colored
    os.close(parent)


def test_a_fault_is_one_sentence_and_a_file(surroundings: dict[str, str], tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    with start_extra(surroundings | {"XDG_CACHE_HOME": str(cache)}, "print('some'); 1 / 0", tmp_path) as process:
        output, remarks = process.communicate()

    assert (process.returncode, output) == (Status.FAULT, "some\n")
    assert remarks.count("\n") == 1
    assert remarks.startswith("mqtool: internal error in mqtool (ZeroDivisionError): please report it with ")
    (kept,) = (cache / "mqtool").iterdir()
    assert str(kept) in remarks
    assert "1 / 0" in kept.read_text() or "ZeroDivisionError: division by zero" in kept.read_text()


def test_a_fault_whose_file_cannot_be_written_is_told_in_full(surroundings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")

    with start_extra(surroundings | {"XDG_CACHE_HOME": str(tmp_path / "cache")}, "1 / 0", tmp_path) as process:
        _, remarks = process.communicate()

    assert process.returncode == Status.FAULT
    assert "Traceback" in remarks


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        ("MemoryError", Status.FAULT, "not enough memory"),
        ("OSError(5, 'Input/output error', 'some/file')", Status.IO_ERROR, "some/file: Input/output error"),
        (
            "PermissionError(13, 'Permission denied', 'some/file')",
            Status.NOT_PERMITTED,
            "no permission to read or write some/file",
        ),
        ("click.Abort", Status.INTERRUPTED, ""),
        ("KeyboardInterrupt", Status.INTERRUPTED, ""),
    ],
)
def test_what_is_raised_is_a_status(
    surroundings: dict[str, str], tmp_path: Path, raised: str, status: Status, said: str
) -> None:
    with start_extra(surroundings, f"raise {raised}", tmp_path) as process:
        output, remarks = process.communicate()

    assert (process.returncode, output) == (status, "")
    assert said in remarks
    assert "Traceback" not in remarks


# Pipes and signals.


def test_a_closed_pipe_ends_quietly(surroundings: dict[str, str]) -> None:
    store = golden_store("mixed-533-clean")
    command = f'"{sys.executable}" -m mqtool dump commitlog -s "{store}" | head -n 1; echo "${{PIPESTATUS[@]}}"'

    done = subprocess.run(["bash", "-c", command], env=surroundings, capture_output=True, text=True, check=False)

    first, statuses = done.stdout.splitlines()
    assert json.loads(first)["physical_offset"] == 0
    assert statuses == "0 0"
    assert "Error" not in done.stderr
    assert "Broken" not in done.stderr


@pytest.mark.parametrize(
    "command",
    ["--help", "explain", "verify --help", "info -s {}", "dump commitlog -s {}", "dump commitlog -s {} -o csv"],
)
def test_a_pipe_that_nobody_reads_ends_quietly(surroundings: dict[str, str], command: str) -> None:
    arguments = command.format(golden_store("txn-533-clean")).split()
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [sys.executable, "-m", "mqtool", *arguments],
        env=surroundings,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )

    os.close(writer)
    assert done.returncode == Status.OK
    assert "Error" not in done.stderr
    assert "Broken" not in done.stderr


def start_dump(surroundings: dict[str, str], store: Path) -> "subprocess.Popen[str]":
    """Start a command that writes more than a pipe holds, and wait until it writes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mqtool", "dump", "commitlog", "-o", "jsonl", "-s", str(store)],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert json.loads(opened(process.stdout).readline())["physical_offset"] == 0
    return process


def opened(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def test_an_interrupt_from_the_terminal_ends_with_130(surroundings: dict[str, str], tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    before = snapshot(store)

    with start_dump(surroundings, store) as process:
        # As a terminal does: to parent and child. One that comes just before a write that nobody reads takes another.
        while process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
        remarks = opened(process.stderr).read()

    assert process.returncode == Status.INTERRUPTED
    assert "Traceback" not in remarks
    assert snapshot(store) == before


def test_an_interrupt_while_the_program_is_loaded_ends_it_without_a_traceback(
    surroundings: dict[str, str], tmp_path: Path
) -> None:
    # Whatever is loaded: it stands for all modules.
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")

    ended = mqtool_at(surroundings, "serve", environment={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, cwd=tmp_path)

    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


UNREAD_ROWS = """
os.set_blocking(1, False)
with contextlib.suppress(BlockingIOError):
    while True:
        os.write(1, bytes(1 << 16))
os.set_blocking(1, True)
sys.stdout.write("a row")
print("ready", file=sys.stderr, flush=True)
raise KeyboardInterrupt
"""


def test_a_second_interrupt_ends_a_wait_for_a_reader_of_the_rows_with_130(
    surroundings: dict[str, str], tmp_path: Path
) -> None:
    with start_extra(surroundings, UNREAD_ROWS, tmp_path) as process:
        assert opened(process.stderr).readline() == "ready\n"
        while process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        remarks = opened(process.stderr).read()

    assert process.returncode == Status.INTERRUPTED
    assert "Traceback" not in remarks


def test_a_request_to_end_reaches_the_child(surroundings: dict[str, str], tmp_path: Path) -> None:
    with start_extra(surroundings, "print('ready', flush=True)\nsignal.pause()", tmp_path) as process:
        assert opened(process.stdout).readline() == "ready\n"
        process.terminate()
        # Both ends of the pipe close only when the child is gone too.
        assert opened(process.stdout).read() == ""

    assert process.returncode == 128 + signal.SIGTERM


CUT_WHILE_READ = """
from mqtool.engine.store.reader import StoreReader
segment = StoreReader(store).commit_log.segments[0]
mapped = segment.bytes
os.truncate(segment.path, 0)
print(mapped.sum())
"""


def test_a_mapped_file_that_is_cut_while_it_is_read_ends_with_75(surroundings: dict[str, str], tmp_path: Path) -> None:
    store = copy_of("txn-533-clean", tmp_path)

    with start_extra(surroundings, CUT_WHILE_READ, store) as process:
        output, remarks = process.communicate()

    assert (process.returncode, output) == (Status.BUSY, "")
    assert remarks == "mqtool: a file was truncated, or its disk failed, while it was being read: try again\n"


def test_a_store_that_shrinks_under_a_command_ends_with_75(surroundings: dict[str, str], tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)

    with start_dump(surroundings, store) as process:
        for segment in (store / "commitlog").iterdir():
            os.truncate(segment, 0)
        rest = opened(process.stdout).read()
        remarks = opened(process.stderr).read()

    assert process.returncode == Status.BUSY
    assert "was truncated" in remarks
    assert rest.count("\n") < 286


def test_another_signal_is_told_by_name(surroundings: dict[str, str], tmp_path: Path) -> None:
    with start_extra(surroundings, "os.kill(os.getpid(), signal.SIGKILL)", tmp_path) as process:
        _, remarks = process.communicate()

    assert process.returncode == Status.FAULT
    assert remarks == "mqtool: killed by SIGKILL\n"


# What is loaded.

LOADED = """
import sys
from mqtool import cli

status = cli.run(sys.argv[2:])
print([name for name in sys.argv[1].split(",") if name in sys.modules], int(status), file=sys.stderr)
"""


def loaded(surroundings: dict[str, str], *arguments: object) -> tuple[str, str]:
    """Run a command; return its output, and which slow libraries it has loaded with its status."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, ",".join(SLOW), *map(str, arguments)],
        env=surroundings,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help_loads_no_slow_library(surroundings: dict[str, str], command: str) -> None:
    output, found = loaded(surroundings, *command.split(), "--help")

    assert found == "[] 0"
    assert f"Usage: mqtool {command}" in output


@pytest.mark.parametrize(
    "command",
    ["dump commitlog --limit 10", "get 0", "pull --topic OrderEvents --queue 0 --limit 3", "dump checkpoint", "info"],
)
def test_quick_commands_load_no_slow_library(surroundings: dict[str, str], command: str) -> None:
    output, found = loaded(surroundings, *command.split(), "-s", golden_store("mixed-533-clean"))

    assert found == "[] 0"
    assert output


AT_READY = """
import os, signal, sys
import click
from mqtool import cli

echo = click.echo

def told(text, **options):
    echo(text, **options)
    if text.startswith("mqtool: ready"):
        slow = "construct", "numpy", "google.protobuf", "crc32c"
        echo([name for name in slow if name in sys.modules], err=True)
        os.kill(os.getpid(), signal.SIGTERM)

click.echo = told
raise SystemExit(cli.run(["serve", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("doors", [(), ("--pulsar-port", "0")])
def test_a_new_broker_is_ready_without_slow_libraries(
    surroundings: dict[str, str], tmp_path: Path, doors: tuple[str, ...]
) -> None:
    ports = ("--namesrv-port", "0", "--port", "0", *doors)

    done = subprocess.run(
        [sys.executable, "-c", AT_READY, *ports, "-s", str(tmp_path / "store")],
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (Status.OK, "[]\n"), done.stderr
    assert done.stdout.startswith("mqtool: ready: name server")


@pytest.mark.parametrize("missing", ["google.protobuf", "crc32c", "lz4.block"])
def test_a_port_for_pulsar_clients_needs_its_libraries_before_a_client_connects(
    surroundings: dict[str, str], tmp_path: Path, missing: str
) -> None:
    start = (
        f"import sys; sys.modules[{missing!r}] = None; from mqtool import cli; raise SystemExit(cli.run(sys.argv[1:]))"
    )
    words = ["serve", "--namesrv-port", "0", "--port", "0", "--pulsar-port", "0", "-s", str(tmp_path / "store")]

    done = subprocess.run(
        [sys.executable, "-c", start, *words], env=surroundings, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stdout) == (Status.UNAVAILABLE, "")
    assert "pip install 'mqtool[pulsar]'" in done.stderr


def test_the_short_help_is_the_one_of_the_command() -> None:
    context = cli.cli.make_context("mqtool", ["explain"])

    assert cli.cli.list_commands(context) == list(cli.COMMANDS)
    for name, entry in cli.COMMANDS.items():
        command = cli.cli.get_command(context, name)
        assert command is not None
        assert command.short_help == entry.help
        assert command.help
        for parameter in command.params:
            assert not isinstance(parameter, click.Option) or parameter.help, f"{name} {parameter.name}"


def test_help_tells_the_status_and_fits_a_narrow_terminal(surroundings: dict[str, str]) -> None:
    for name in cli.COMMANDS:
        done = mqtool_at(surroundings, name, "--help", environment={"COLUMNS": "80"})
        assert done.returncode == Status.OK
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert "\\b" not in done.stdout  # which keeps lines as they are


def test_the_version_is_told(surroundings: dict[str, str]) -> None:
    done = mqtool_at(surroundings, "--version")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"mqtool {version('mqtool')}"
    assert platform.python_version() in done.stdout
    assert f"numpy {numpy.__version__}" in done.stdout


@pytest.mark.parametrize(
    ("shell", "said"), [("bash", "_mqtool_completion"), ("zsh", "#compdef mqtool"), ("fish", "mqtool")]
)
def test_shells_are_told_how_to_complete(surroundings: dict[str, str], shell: str, said: str) -> None:
    done = mqtool_at(surroundings, environment={"_MQTOOL_COMPLETE": f"{shell}_source"})

    assert done.returncode == Status.OK
    assert said in done.stdout


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("mqtool ver", ["verify"]),
        ("mqtool verify --le", ["--level"]),
        ("mqtool verify --level q", ["quick"]),
        ("mqtool explain log-cr", ["LOG-CRC"]),
        ("mqtool ", list(cli.COMMANDS)),
    ],
)
def test_words_are_completed(surroundings: dict[str, str], words: str, completed: list[str]) -> None:
    asked = {
        "_MQTOOL_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }

    done = mqtool_at(surroundings, environment=asked)

    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == completed


def test_topics_and_groups_of_brokers_are_completed_and_silence_answers_what_cannot_be(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    shell = BashComplete(cli.cli, {}, "mqtool", "_MQTOOL_COMPLETE")
    with mqtool.Broker() as broker, socket.create_server(("127.0.0.1", 0)) as mute:
        address = broker.name_server_address
        with mqtool.AdminClient(address) as admin:
            for name in ("Orders", "OrdersOld"):
                admin.create_topic(name)
                admin.create_group(f"of-{name}")
        (tmp_path / "mqtool").mkdir()
        (tmp_path / "mqtool" / "config.toml").write_text(f"[profiles.prod]\nnamesrv='{address}'\n[profiles.pre]\n")
        for words, completed in (
            ("consume --profile pr", ["pre", "prod"]),
            ("mirror --to-profile pro", ["prod"]),
            ("consume --profile prod --topic OrdersO", ["OrdersOld"]),
            ("consume --profile pre --topic OrdersO", []),
            (f"consume -n {address} --topic Ord", ["Orders", "OrdersOld"]),
            (f"consume -n {address} --topic Orders --topic Ord", ["OrdersOld"]),
            (f"consume -n {address} --group of-", ["of-Orders", "of-OrdersOld"]),
            (f"topic delete -n {address} OrdersO", ["OrdersOld"]),
            (f"offset copy -n {address} --from-group of-OrdersO", ["of-OrdersOld"]),
            (f"mirror --from {address} --topic OrdersO", ["OrdersOld"]),
            ("dlq show -n 127.0.0.1:1 --group ", []),
            (f"dlq show -n 127.0.0.1:{mute.getsockname()[1]} --group ", []),
            ("consume --profile none --topic ", []),
            ("consume --topic ", []),
            ("find -s /nowhere --topic ", []),
        ):
            *typed, begun = words.split(" ")
            assert [one.value for one in shell.get_completions(typed, begun)] == completed, words
    assert capfd.readouterr() == ("", "")


# The public API.


def test_what_the_package_offers_is_there_and_says_what_it_is() -> None:
    assert {"Broker", "Producer", "PushConsumer", "open_store", "verify_store"} <= {*mqtool.__all__}
    assert dir(mqtool) == mqtool.__all__
    for name in mqtool.__all__:
        assert inspect.getdoc(getattr(mqtool, name)), name
    assert "open_store" in (mqtool.__doc__ or "")


@pytest.mark.parametrize("module", [mqtool, mqtool.aio])
def test_each_line_of_a_stub_states_one_public_name(module: Any) -> None:
    stub = Path(str(module.__file__)).with_suffix(".pyi").read_text()
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]

    assert all(node.lineno == node.end_lineno and len(node.names) == 1 for node in imports)
    assert sorted(name.asname or "" for node in imports for name in node.names) == module.__all__


def test_the_package_may_be_in_a_zip_file(tmp_path: Path) -> None:
    package = package_into(tmp_path)
    program = "import mqtool; print(mqtool.__file__, mqtool.aio.Producer.__name__, mqtool.open_store.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [f"{package}/mqtool/__init__.py", "Producer", "open_store"]


def test_the_public_methods_of_a_store_say_what_they_do() -> None:
    for name, member in inspect.getmembers(mqtool.StoreReader):
        if not name.startswith("_"):
            assert inspect.getdoc(member), name


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        mqtool.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_a_store_is_opened_by_path_and_settings() -> None:
    path = golden_store("mixed-533-clean")

    assert next(mqtool.open_store(str(path)).messages()).topic == "OrderEvents"
    assert mqtool.open_store(path, {"maxHashSlotNum": "100", "maxIndexNum": "250"}).index_files[0].shape
    with pytest.raises(mqtool.MqtoolError):
        mqtool.open_store("/nowhere")


def test_importing_the_package_loads_nothing(surroundings: dict[str, str]) -> None:
    program = "import sys, mqtool; print(sorted(m for m in sys.modules if m.startswith('mqtool.') or m == 'numpy'))"

    done = subprocess.run([sys.executable, "-c", program], env=surroundings, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("typed", "meant"), [("verfy", "verify"), ("recovr", "recover"), ("vesion", "version"), ("comsume", "consume")]
)
def test_a_misspelt_command_is_told_which_was_meant(typed: str, meant: str) -> None:
    ran = run(typed)

    assert ran.status == Status.USAGE
    assert f"Did you mean {meant}?" in ran.remarks


def test_the_version_and_help_are_shown_whichever_way_people_ask() -> None:
    assert run("version").output == run("-V").output == run("--version").output != ""
    assert run("help").output == run("--help").output != ""
    assert run("help", "verify").output == run("verify", "--help").output != ""
    assert run("help", "topic", "list").output == run("topic", "list", "--help").output != ""
    assert run("help", "verfy").status == run("help", "verify", "x").status == Status.USAGE


@pytest.mark.parametrize(
    ("name", "folder"), [("mixed-533-clean", "commitlog"), ("dledger-497-clean", "dledger-*/data")]
)
def test_the_folder_of_a_log_is_read_as_a_log_and_never_changed(name: str, folder: str, tmp_path: Path) -> None:
    store = copy_of(name, tmp_path)
    (log,) = store.glob(folder)
    count = len(run("dump", "commitlog", "-s", store).rows)
    before = snapshot(store)

    assert len(run("dump", "commitlog", "-s", log).rows) == count
    assert run("find", "--text", "a", "--limit", 1, "-s", log).status == Status.OK
    ran = run("verify", "-s", log)
    assert (ran.status, ran.rows) == (Status.OK, [])
    assert "the store is sound" not in ran.remarks
    for command in (["recover", "--yes"], ["rebuild", "all", "--yes"], ["topic", "delete", "X", "--yes"], ["doctor"]):
        ran = run(*command, "-s", log)
        assert ran.status == Status.USAGE
        assert str(store) in ran.remarks
    assert run("pull", "--topic", "OrderEvents", "--queue", 0, "-s", log).status == Status.NO_INPUT
    assert snapshot(store) == before
