"""The real broker's store: RocketMQ's own jars in a JVM that is asked through pipes.

Maven fetches the jars by their coordinates (``pom.xml``); the class path it finds is kept in the user's cache folder.
The JVM compiles ``StoreHarness.java`` as it starts, loads the stores that it is asked about and answers one line each.
"""

import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest

VERSIONS = ("4.9.7", "5.3.3", "5.5.0")

each_version = pytest.mark.parametrize(
    "version", [pytest.param(version, marks=pytest.mark.xdist_group(f"java-{version}")) for version in VERSIONS]
)
"""Runs a test for every version; all tests of one version share a process of pytest, and so a JVM."""

Answer = dict[str, Any]
Given = TypeVar("Given")
Result = TypeVar("Result")

_HERE = Path(__file__).parent
_AT_ONCE = 4  # a store waits for its own threads most of the time
_PACKAGES = ("java.lang", "java.nio", "jdk.internal.ref", "sun.nio.ch")  # 4.9.7 unmaps files through private fields
OPENS = [word for name in _PACKAGES for word in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")]
"""What a broker's store needs of a JVM of today."""
_MAVEN_SECONDS = 1200
_ANSWER_SECONDS = 120


class NoJavaError(Exception):
    """There is no JDK or no Maven here, or Maven could not fetch the jars; says which."""


class JavaStore:
    """The store of one version, in a JVM that starts with the first question.

    Threads may ask at the same time. A JVM that ends takes the questions under way with it, as errors; the next
    question starts another.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self._jvm: _Jvm | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._jvm:
                self._jvm.close()

    def ask(
        self, store: Path, config: dict[str, Any], *, start: bool = True, reads: Iterable[tuple[str, int, int]] = ()
    ) -> Answer:
        """Let the broker load ``store``, which changes it, and return what it made of it.

        ``config`` is the manifest's. ``start`` also starts the store, waits for the dispatcher and shuts it down.

        The answer has the keys that ``fixtures/README.md`` gives for verdicts, and of a queue ``min``, ``max`` and all
        ``units``, or an ``error`` where the broker cannot read it; ``hangs`` where the broker never got ready; and
        ``reads``, for each (topic, queue, queue offset) asked for a row [status, physical offset, queue offset,
        SHA-256 of the stored body].
        """
        request = {"store": str(store), "config": settings(store, config), "start": start, "reads": list(reads)}
        with self._lock:
            if self._jvm is None or self._jvm.has_ended():
                self._jvm = _Jvm(self.version)
            jvm = self._jvm
            answer = jvm.send(request)
        try:
            return answer.result(_ANSWER_SECONDS)
        except TimeoutError:
            jvm.close()
            raise


class _Jvm:
    """One running JVM and the questions that it has not answered yet."""

    def __init__(self, version: str) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="mqtool-java-", ignore_cleanup_errors=True)
        self._errors = Path(self._home.name, "stderr")
        self._asked: dict[int, Future[Answer]] = {}
        self._numbers = itertools.count()
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                _command(version, self._home.name),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
            )
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._receiver.start()

    def has_ended(self) -> bool:
        return not self._receiver.is_alive()

    def send(self, request: dict[str, Any]) -> Future[Answer]:
        number = next(self._numbers)
        answer = self._asked[number] = Future()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then the receiver says how the JVM ended
            self._process.stdin.write(json.dumps({"id": number, **request}) + "\n")
            self._process.stdin.flush()
        return answer

    def close(self) -> None:
        self._process.kill()
        self._receiver.join()
        self._home.cleanup()

    def _receive(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._asked.pop(answer.pop("id")).set_result(answer)
        status = self._process.wait()
        last_words = self._errors.read_text(errors="replace")[-2000:]
        for answer in list(self._asked.values()):
            answer.set_exception(RuntimeError(f"the JVM ended with status {status}: {last_words}"))
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]  # both are pipes


def settings(store: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return the broker's settings, as text, from the ``config`` of a manifest; paths become absolute."""
    plain = {key: str(value) for key, value in config.items() if key != "commitLogPaths"}
    if folders := config.get("commitLogPaths"):
        plain["storePathCommitLog"] = ",".join(str(store / folder) for folder in folders)
    return plain


def at_once(function: Callable[[Given], Result], values: Iterable[Given]) -> list[Result]:
    """Call ``function`` with each value, several at a time: most of a question is waiting."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(function, values))


def _command(version: str, home: str) -> list[str]:
    return [
        "java",
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",  # starts quicker; stores are small
        f"-Duser.home={home}",  # where brokers put their logs
        "-Duser.timezone=UTC",  # index files are named by the local time
        "-Dfile.encoding=UTF-8",
        "-Dsun.stdout.encoding=UTF-8",
        "-Dstdout.encoding=UTF-8",
        *OPENS,
        "-cp",
        class_path(version),
        str(_HERE / "StoreHarness.java"),
    ]


@functools.cache
def class_path(version: str, pom_name: str = "pom.xml") -> str:
    """Return the jars of one version, for ``java -cp``; Maven fetches them when it was not asked before.

    Raises NoJavaError.
    """
    pom = _HERE / pom_name
    checksum = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    file = _cache() / f"class-path-{version}-{checksum}"
    with contextlib.suppress(FileNotFoundError):
        kept = file.read_text()
        if all(Path(jar).exists() for jar in kept.split(os.pathsep)):
            return kept
    for tool in ("javac", "java", "mvn"):
        if shutil.which(tool) is None:
            raise NoJavaError(f"there is no {tool} on this machine")
    with tempfile.TemporaryDirectory(dir=file.parent) as folder, (file.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Maven's own cache is not made for two at a time
        found = Path(folder) / "class-path"
        _maven(
            "-f", str(pom), f"-Drocketmq.version={version}", f"-Dpulsar.version={version}", f"-Dmdep.outputFile={found}"
        )
        found.rename(file)
    return file.read_text()


def _maven(*arguments: str) -> None:
    command = ["mvn", "-q", "-B", *arguments, "dependency:build-classpath"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MAVEN_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NoJavaError(f"Maven took longer than {_MAVEN_SECONDS} s") from error
    if done.returncode:
        raise NoJavaError(f"Maven could not fetch the jars: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mqtool-differential"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder for one store that is gone afterwards: hundreds of stores would fill a disk."""
    with tempfile.TemporaryDirectory(prefix="mqtool-differential-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
