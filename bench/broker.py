"""``mqtool serve`` against the official broker and name server, under load of their client (``BrokerLoad.java``).

Both pairs run at the same time, and one client in one JVM talks to them in turns: what is loaded is the only thing that
works. A rate is that of the best of several short rounds, a latency and the processor time of a message are medians.
Processor time is what the broker's process takes, in the system too, by message.
"""

import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.table import HELPER, Row
from mqtool.engine.remoting.clock import wall_clock
from mqtool.engine.store.message_store import MessageStore
from mqtool.formats.new_message import NewMessage
from tests.differential.java_store import OPENS, NoJavaError, class_path

VERSION = "5.3.3"
ROUNDS = 3
ROUND_MS = 2000
BACKLOG = 60_000
"""Messages of 1 KiB that consumers find."""
APPENDS = 60_000
_SETTLE_SECONDS = 2
_HERE = Path(__file__).parent
_TICKS = os.sysconf("SC_CLK_TCK")
LOGGING = '<configuration><root level="OFF"/></configuration>'
LOGGING_FILES = ("rmq.broker.logback.xml", "rmq.namesrv.logback.xml")
BROKER_PORTS = (-2, 0, 1)  # a RocketMQ broker listens on three, told by that of its clients


class BrokerLoad(NamedTuple):
    """One thing that the client does, in the words of ``BrokerLoad.java``."""

    what: str
    kind: str
    topic: str
    size: int
    number: int


LOADS = [
    *(
        BrokerLoad(f"send {name}, {threads} thread{'s' if threads > 1 else ''}", "send", f"send-{size}", size, threads)
        for size, name in ((128, "128 B"), (1024, "1 KiB"))
        for threads in (1, 16, 64)
    ),
    BrokerLoad("send 1 KiB, 256 under way", "async", "async", 1024, 256),
    BrokerLoad("send 1 KiB, batches of 32", "batch", "batch", 1024, 32),
    BrokerLoad("push consumer, 1 KiB", "push", "backlog", 1024, BACKLOG),
    BrokerLoad("pull 1 KiB, 32 at a time", "pull", "backlog", 1024, BACKLOG),
]
_FILL = BrokerLoad("", "batch", "backlog", 1024, 32)


class BenchRound(NamedTuple):
    """What came of one round."""

    messages: int
    rate: float  # messages a second
    latency: float  # the 99th of a hundred, in ms; 0 where none is taken
    processor: float  # microseconds of the watched process a message
    failures: int
    stored: int


class Pair(NamedTuple):
    """A name server and a broker that run."""

    name_server: str
    processes: Sequence[int]  # the last is the broker
    ready: float  # seconds from the start until both were
    idle: int  # bytes in memory then


def measure_broker() -> list[Row]:
    """Return the rows, with Java's figures in place of a store; only a remark where Java is missing."""
    with tempfile.TemporaryDirectory(prefix="mqtool-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            jars = compile_java(folder)
        except NoJavaError as error:
            return [Row(f"serve: not compared, {error}", "", "", "", "")]
        return [*_measure_pairs(folder, jars), _measure_append(folder, jars)]


def compile_java(folder: Path) -> str:
    jars = class_path(VERSION, str(_HERE / "pom.xml"))
    sources = [str(_HERE / name) for name in ("BrokerLoad.java", "StoreAppend.java")]
    subprocess.run(["javac", "-nowarn", "-XDsuppressNotes", "-cp", jars, "-d", str(folder), *sources], check=True)
    return f"{folder}{os.pathsep}{jars}"


# Brokers and their client


def _measure_pairs(folder: Path, jars: str) -> Iterator[Row]:
    with ExitStack() as stack:
        theirs = stack.enter_context(java_pair(folder / "java", jars))
        ours = stack.enter_context(our_pair(folder / "ours"))
        yield Row("ready", f"{theirs.ready:.2f} s", f"{ours.ready:.2f} s", ratio(ours.ready, theirs.ready), "≤ 0.1")
        yield Row("in memory, idle", mib(theirs.idle), mib(ours.idle), ratio(ours.idle, theirs.idle), "≤ 0.25")
        client = stack.enter_context(java_client(folder, jars))
        pairs = theirs, ours
        for pair in pairs:
            stored = 0
            while stored < BACKLOG:
                stored += ask(client, pair, _FILL, ROUND_MS, pair.processes[-1]).stored
            for load in LOADS:
                ask(client, pair, load, ROUND_MS, pair.processes[-1])
        most = [0, 0]
        for load in LOADS:
            rounds: tuple[list[BenchRound], list[BenchRound]] = ([], [])
            for _ in range(ROUNDS):
                for number, pair in enumerate(pairs):
                    rounds[number].append(ask(client, pair, load, ROUND_MS, pair.processes[-1]))
                    most[number] = max(most[number], memory_of(pair.processes))
            yield from rows_of(load, *rounds)
        yield Row("in memory, most under load", mib(most[0]), mib(most[1]), ratio(most[1], most[0]), "≤ 0.25")


def rows_of(load: BrokerLoad, theirs: list[BenchRound], ours: list[BenchRound]) -> Iterator[Row]:
    best = [max(one.rate for one in rounds) for rounds in (theirs, ours)]
    yield Row(load.what, f"{best[0]:,.0f}/s", f"{best[1]:,.0f}/s", ratio(best[1], best[0]), "≥ 1")
    if theirs[0].latency:
        slow = [statistics.median(one.latency for one in rounds) for rounds in (theirs, ours)]
        yield Row("  99 of 100 within", f"{slow[0]:.2f} ms", f"{slow[1]:.2f} ms", ratio(slow[1], slow[0]), "≤ 1")
    spent = [statistics.median(one.processor for one in rounds) for rounds in (theirs, ours)]
    yield Row("  processor a message", f"{spent[0]:.1f} µs", f"{spent[1]:.1f} µs", ratio(spent[1], spent[0]), "≤ 1")
    failed = [sum(one.failures for one in rounds) for rounds in (theirs, ours)]
    if any(failed):
        yield Row("  failed", f"{failed[0]:,}", f"{failed[1]:,}", "", "0")


def ask(client: "subprocess.Popen[str]", pair: Pair, load: BrokerLoad, milliseconds: int, watched: int) -> BenchRound:
    """Have a client do one thing for a while; ``watched`` is the process whose time counts."""
    assert client.stdin
    assert client.stdout
    before = processor(watched)
    print(load.kind, pair.name_server, load.topic, load.size, load.number, milliseconds, file=client.stdin, flush=True)
    words = client.stdout.readline().split()
    if not words:
        raise AssertionError(f"the client ended while it did {load}")
    messages, failures = int(words[0]), int(words[2])
    spent = (processor(watched) - before) * 1e6 / messages
    stored = messages - failures * (load.number if load.kind == "batch" else 1)
    return BenchRound(messages, messages / float(words[1]), int(words[3]) / 1000, spent, failures, stored)


@contextmanager
def java_client(folder: Path, jars: str) -> Iterator["subprocess.Popen[str]"]:
    words = ["java", "-Xmx1g", f"-Drocketmq.client.logRoot={folder}", "-cp", jars, "BrokerLoad"]
    with running(words, dict(os.environ)) as client:
        yield client


@contextmanager
def java_pair(folder: Path, jars: str) -> Iterator[Pair]:
    (folder / "conf").mkdir(parents=True)
    for name in LOGGING_FILES:
        (folder / "conf" / name).write_text(LOGGING)
    (name_server_port,), port = free_ports((0,)), free_ports(BROKER_PORTS)[1]
    name_server = f"127.0.0.1:{name_server_port}"
    (folder / "namesrv.conf").write_text(f"listenPort={name_server_port}\n")
    (folder / "broker.conf").write_text(
        f"brokerIP1=127.0.0.1\nlistenPort={port}\nnamesrvAddr={name_server}\nstorePathRootDir={folder / 'store'}\n"
    )
    java = java_command(folder, jars)
    home = {**os.environ, "ROCKETMQ_HOME": str(folder)}
    start = time.perf_counter()
    with ExitStack() as stack:
        both = []
        for name, main in (("namesrv", "namesrv.NamesrvStartup"), ("broker", "broker.BrokerStartup")):
            words = [*java, f"org.apache.rocketmq.{main}", "-c", str(folder / f"{name}.conf")]
            both.append(stack.enter_context(running(words, home)))
        for one in both:
            read_until(one, "boot success")
        yield pair_of(name_server, both, start)


def java_command(folder: Path, jars: str) -> list[str]:
    return ["java", "-Xmx1g", f"-Duser.home={folder}", *OPENS, "-cp", jars]


@contextmanager
def our_pair(folder: Path) -> Iterator[Pair]:
    words = [*HELPER, "serve", "--namesrv-port", "0", "--port", "0", "-s", str(folder / "store")]
    start = time.perf_counter()
    with running(words, dict(os.environ)) as process:
        said = read_until(process, "ready")
        yield pair_of(said.split("name server ")[1].split(",")[0], [process], start)


def pair_of(name_server: str, both: "list[subprocess.Popen[str]]", start: float) -> Pair:
    ready = time.perf_counter() - start
    processes = [process for one in both for process in (one.pid, *_children(one.pid))]
    time.sleep(_SETTLE_SECONDS)
    return Pair(name_server, processes, ready, memory_of(processes))


@contextmanager
def running(words: list[str], environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def read_until(process: "subprocess.Popen[str]", sign: str) -> str:
    assert process.stdout
    for line in process.stdout:
        if sign in line:
            return line
    raise AssertionError("a broker or name server does not start")


def free_ports(steps: Sequence[int]) -> list[int]:
    """Return ports that are free, told by their distances from the first that is chosen."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            ports = [first + step for step in steps]
            try:
                for port in ports:
                    if port != first:
                        stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
            return ports


def _children(process: int) -> list[int]:
    """Return the children of a process: mqtool runs a command in one."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def processor(process: int) -> float:
    """Return the seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_of(processes: Sequence[int]) -> int:
    """Return the bytes that processes have in memory, but for those of files, which the system could take back."""
    sizes = 0
    for process in processes:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                sizes += int(line.split()[1]) << 10
    return sizes


# The stores alone


def _measure_append(folder: Path, jars: str) -> Row:
    java = java_command(folder, jars)
    words = [*java, "StoreAppend", str(folder / "java-store"), str(ROUNDS), str(APPENDS)]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    theirs = max(float(line) for line in said[-ROUNDS:])  # what comes before is of its logger
    ours = _append(folder / "our-store")
    return Row("append 1 KiB, the store alone", f"{theirs:,.0f}/s", f"{ours:,.0f}/s", ratio(ours, theirs), "≥ 0.5")


def _append(root: Path) -> float:
    """Return how many messages a second the store takes, their units and index entries included."""
    store, body, host, best = MessageStore(root, now=wall_clock()), bytes(1024), (bytes([127, 0, 0, 1]), 10911), 0.0
    for number in range(ROUNDS):
        start = time.perf_counter()
        for i in range(APPENDS):
            now = wall_clock()
            properties = b"KEYS\x01%d-%d\x02WAIT\x01true\x02TAGS\x01TagA\x02" % (number, i)
            store.append(NewMessage("bench", i % 4, body, properties, 0, 0, now, host, host), now)
        store.write_units()
        best = max(best, APPENDS / (time.perf_counter() - start))
    store.close()
    return best


def mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}"
