"""The Python client against the official one (``client_load.py`` against ``BrokerLoad.java``), each on one core.

Both talk to the same brokers in turns: one of RocketMQ, one of ``mqtool serve``, both on another core if there is one.
A rate is that of the best of several short rounds, a latency and the processor time of a message are medians; processor
time is that of the client.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.broker import (
    VERSION,
    BenchRound,
    BrokerLoad,
    Pair,
    ask,
    compile_java,
    java_client,
    java_pair,
    mib,
    our_pair,
    ratio,
    running,
)
from bench.table import Row
from tests.differential.java_store import NoJavaError

ROUNDS = 5
ROUND_MS = 2000
BACKLOG = 60_000
_STARTS = 20
_LOADS = [
    BrokerLoad("send 1 KiB, 256 under way", "async", "async", 1024, 256),
    BrokerLoad("send 1 KiB, batches of 32", "batch", "batch", 1024, 32),
    BrokerLoad("push consumer, 1 KiB", "push", "backlog", 1024, BACKLOG),
]
_GOALS = {"async": "≥ 0.5", "push": "≥ 0.5"}
_FILL = BrokerLoad("", "batch", "backlog", 1024, 32)


def measure_client() -> Iterator[Row]:
    """Yield the rows, with Java's figures in place of a store; only a remark where Java is missing."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="mqtool-bench-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        try:
            jars = compile_java(folder)
        except NoJavaError as error:
            yield Row(f"clients: not compared, {error}", "", "", "", "")
            return
        # A process keeps to the cores that its parent had when it began.
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, cores[1:] or cores)
        pairs = {
            f"broker {VERSION}": stack.enter_context(java_pair(folder / "java", jars)),
            "mqtool serve": stack.enter_context(our_pair(folder / "ours")),
        }
        os.sched_setaffinity(0, cores[:1])
        clients = stack.enter_context(java_client(folder, jars)), stack.enter_context(_python_client())
        yield from _measure_loads(clients, pairs)
        yield from _measure_auto_batch(clients[1], pairs)
        yield from _measure_start(next(iter(pairs.values())), folder / "bytecode")


@contextmanager
def _python_client() -> Iterator["subprocess.Popen[str]"]:
    with running([sys.executable, "-m", "bench.client_load"], dict(os.environ)) as client:
        yield client


def _measure_loads(clients: "tuple[subprocess.Popen[str], ...]", pairs: dict[str, Pair]) -> Iterator[Row]:
    for pair in pairs.values():
        stored = 0
        while stored < BACKLOG:
            stored += _ask(clients[0], pair, _FILL).stored
        for client in clients:
            for load in _LOADS:
                _ask(client, pair, load)
    for load in _LOADS:
        for name, pair in pairs.items():
            rounds: tuple[list[BenchRound], ...] = ([], [])
            for _ in range(ROUNDS):
                for client, found in zip(clients, rounds, strict=True):
                    found.append(_ask(client, pair, load))
            yield from _rows_of(name, load, *rounds)
    theirs, ours = (_most_memory(client.pid) for client in clients)
    yield Row("in memory, most", mib(theirs), mib(ours), ratio(ours, theirs), "≤ 0.25")


def _ask(client: "subprocess.Popen[str]", pair: Pair, load: BrokerLoad) -> BenchRound:
    return ask(client, pair, load, ROUND_MS, client.pid)


def _rows_of(broker: str, load: BrokerLoad, theirs: list[BenchRound], ours: list[BenchRound]) -> Iterator[Row]:
    best = [max(one.rate for one in rounds) for rounds in (theirs, ours)]
    yield Row(
        f"{load.what}, {broker}",
        f"{best[0]:,.0f}/s",
        f"{best[1]:,.0f}/s",
        ratio(best[1], best[0]),
        _GOALS.get(load.kind, ""),
    )
    if theirs[0].latency:
        slow = [statistics.median(one.latency for one in rounds) for rounds in (theirs, ours)]
        yield Row("  99 of 100 within", f"{slow[0]:.2f} ms", f"{slow[1]:.2f} ms", ratio(slow[1], slow[0]), "")
    spent = [statistics.median(one.processor for one in rounds) for rounds in (theirs, ours)]
    yield Row("  processor a message", f"{spent[0]:.1f} µs", f"{spent[1]:.1f} µs", ratio(spent[1], spent[0]), "")
    failed = [sum(one.failures for one in rounds) for rounds in (theirs, ours)]
    if any(failed):
        yield Row("  failed", f"{failed[0]:,}", f"{failed[1]:,}", "", "0")


def _measure_auto_batch(client: "subprocess.Popen[str]", pairs: dict[str, Pair]) -> Iterator[Row]:
    """Yield what automatic batching gains a thread that sends; one out of order counts as failed."""
    loads = [BrokerLoad("", kind, "async", 100, 2000) for kind in ("thread", "auto-batch")]
    for name, pair in pairs.items():
        rounds: tuple[list[BenchRound], ...] = ([], [])
        for _ in range(ROUNDS):
            for load, found in zip(loads, rounds, strict=True):
                found.append(_ask(client, pair, load))
        alone, batched = (max(one.rate for one in some) for some in rounds)
        what = f"send_async of a thread, 100 B, {name}: auto_batch off, on"
        yield Row(what, f"{alone:,.0f}/s", f"{batched:,.0f}/s", ratio(batched, alone), "≥ 3")
        failed = [sum(one.failures for one in some) for some in rounds]
        if any(failed):
            yield Row("  failed or out of order", f"{failed[0]:,}", f"{failed[1]:,}", "", "0 when on")


def _most_memory(process: int) -> int:
    """Return the most bytes that a process has had in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def _measure_start(pair: Pair, folder: Path) -> Iterator[Row]:
    """Yield the processor time of programs that do little more than to start, medians of turns with an empty one."""
    programs = {
        "python -c pass": ("pass", 0),
        "import asyncio": ("import asyncio", 0),
        "import mqtool": ("import mqtool", 5),
        "mqtool.Producer": ("import mqtool; mqtool.Producer", 5),
        "mqtool.PushConsumer": ("import mqtool; mqtool.PushConsumer", 15),
        "a producer that knows where to send": (
            f"import mqtool\nproducer = mqtool.Producer('P', {pair.name_server!r})\n"
            "producer.start()\nproducer.queues('async')",
            15,
        ),
    }
    surroundings = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}  # compiled once, as what is installed is
    surroundings.pop("PYTHONDONTWRITEBYTECODE", None)
    spent: dict[str, list[float]] = {what: [] for what in programs}
    for turn in range(1 + _STARTS):
        for what, (program, _) in programs.items():
            before = _spent_by_children()
            subprocess.run([sys.executable, "-c", program], env=surroundings, check=True)
            if turn:  # the first one compiles
                spent[what].append(_spent_by_children() - before)
    nothing = statistics.median(spent["python -c pass"])
    for what, (_, goal) in programs.items():
        seconds = statistics.median(spent[what])
        yield Row(what, "", f"{seconds * 1000:.0f} ms", f"{seconds / nothing:.1f} x", f"≤ {goal} x" if goal else "")


def _spent_by_children() -> float:
    """Return the processor seconds of all processes that were waited for."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime
