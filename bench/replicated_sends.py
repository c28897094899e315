"""What replication costs those who send: to a SYNC_MASTER that waits for its slave, to an ASYNC_MASTER that has one.

A pair of RocketMQ and one of mqtool run at the same time, and one client in one JVM sends to them in turns, as in
``broker.py``. A send that no slave has in time counts as failed.

A slave on the same machine takes processor time from its master and the client. What the master itself spends on a
slave is seen with ``acknowledging_slave.py`` in its place, which takes next to none.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.broker import (
    BROKER_PORTS,
    LOGGING,
    LOGGING_FILES,
    ROUND_MS,
    ROUNDS,
    BenchRound,
    BrokerLoad,
    Pair,
    ask,
    compile_java,
    free_ports,
    java_client,
    java_command,
    pair_of,
    read_until,
    rows_of,
    running,
)
from bench.table import HELPER, Row
from tests.commands.running import as_options

_SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
_ASYNC = {"brokerRole": "ASYNC_MASTER"}
_SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}
_LOADS = [
    BrokerLoad(f"send 1 KiB, {threads} thread{'s' if threads > 1 else ''}", "send", f"send-{threads}", 1024, threads)
    for threads in (1, 64)
]
_ASYNC_ROUNDS = 12
"""The differences are small, so each is that of two rounds close to each other, and their median counts."""
_FOLLOWS_SECONDS = 120


def measure_sends(folder: Path) -> Iterator[Row]:
    """Yield the rows: sends that wait for a slave, RocketMQ's and ours, and sends to ours with a slave and without."""
    jars = compile_java(folder)
    with ExitStack() as stack:
        client = stack.enter_context(java_client(folder, jars))
        theirs = _replicated(stack, folder / "java-pair", _SYNC, jars)
        ours = _replicated(stack, folder / "our-pair", _SYNC, "")
        for pair in (theirs, ours):
            _until_slave_follows(client, pair)
        for load, (their_rounds, our_rounds) in _rounds(client, theirs, ours):
            what = f"SYNC_MASTER, inSyncReplicas=2: {load.what}"
            yield from rows_of(load._replace(what=what), their_rounds, our_rounds)
    yield from _async_rows(folder, jars)


def _async_rows(folder: Path, jars: str) -> Iterator[Row]:
    theirs = {load.what: kept for load, [kept] in _kept(folder / "java-async", jars, is_ours=False)}
    for load, [kept, kept_elsewhere] in _kept(folder / "our-async", jars, is_ours=True):
        name = f"ASYNC_MASTER, {load.what}, of the rate without a slave"
        yield Row(f"{name}: slave on these cores", f"{theirs[load.what]:.2f}", f"{kept:.2f}", "", "")
        yield Row("  slave elsewhere", "", f"{kept_elsewhere:.2f}", "", "≥ 0.95")


def _kept(folder: Path, jars: str, *, is_ours: bool) -> Iterator[tuple[BrokerLoad, list[float]]]:
    """Yield each load with the share of the rate without a slave that is left with each kind of slave."""
    with ExitStack() as stack:
        client = stack.enter_context(java_client(folder, jars))
        broker_jars = "" if is_ours else jars
        pairs = [
            _replicated(stack, folder / "alone", _ASYNC, broker_jars, has_slave=False),
            _replicated(stack, folder / "followed", _ASYNC, broker_jars),
        ]
        if is_ours:
            port = free_ports(BROKER_PORTS)[1]
            pairs.append(_replicated(stack, folder / "acknowledged", _ASYNC, "", has_slave=False, port=port))
            words = [sys.executable, "-m", "bench.acknowledging_slave", str(port + 1)]
            stack.enter_context(running(words, dict(os.environ)))
        for load, (alone, *others) in _rounds(client, *pairs, count=_ASYNC_ROUNDS):
            yield (
                load,
                [
                    statistics.median(one.rate / without.rate for one, without in zip(rounds, alone, strict=True))
                    for rounds in others
                ],
            )


def _rounds(
    client: "subprocess.Popen[str]", *pairs: Pair, count: int = ROUNDS
) -> Iterator[tuple[BrokerLoad, list[list[BenchRound]]]]:
    """Yield each load with the rounds of each pair, after one that does not count.

    Every other time the pairs take turns in reverse: what one has written slows down the next.
    """
    for load in _LOADS:
        rounds: list[list[BenchRound]] = [[] for _ in pairs]
        in_turns = [*zip(rounds, pairs, strict=True)]
        for number in range(1 + count):
            for done, pair in in_turns if number % 2 else reversed(in_turns):
                outcome = ask(client, pair, load, ROUND_MS, pair.processes[-1])
                if number:
                    done.append(outcome)
        yield load, rounds


def _until_slave_follows(client: "subprocess.Popen[str]", pair: Pair) -> None:
    deadline = time.monotonic() + _FOLLOWS_SECONDS
    while ask(client, pair, _LOADS[0], 500, pair.processes[-1]).failures:
        if time.monotonic() > deadline:
            raise AssertionError("no slave acknowledges what is sent")


def _replicated(
    stack: ExitStack,
    folder: Path,
    role: dict[str, str],
    jars: str,
    *,
    has_slave: bool = True,
    port: int | None = None,
) -> Pair:
    """Start a name server of mqtool, a slave and its master; the master is the process that is watched."""
    [name_port] = free_ports((0,))
    name_server, start = f"127.0.0.1:{name_port}", time.perf_counter()
    words = [*HELPER, "serve", "--no-broker", "--namesrv-port", str(name_port)]
    read_until(stack.enter_context(running(words, dict(os.environ))), "ready")
    if has_slave:
        stack.enter_context(_broker(folder / "slave", name_server, _SLAVE, jars))
    master = stack.enter_context(_broker(folder / "master", name_server, role, jars, port))
    return pair_of(name_server, [master], start)


@contextmanager
def _broker(
    folder: Path, name_server: str, role: dict[str, str], jars: str, port: int | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Run a broker, of RocketMQ where there are jars."""
    port = port or free_ports(BROKER_PORTS)[1]
    settings = {**role, "brokerName": "bench", "brokerIP2": "127.0.0.1", "haListenPort": str(port + 1)}
    environment, sign = dict(os.environ), "ready"
    if jars:
        (folder / "conf").mkdir(parents=True)
        for name in LOGGING_FILES:
            (folder / "conf" / name).write_text(LOGGING)
        settings |= {"brokerIP1": "127.0.0.1", "listenPort": str(port), "namesrvAddr": name_server}
        settings |= {"storePathRootDir": str(folder / "store")}
        (folder / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        main = "org.apache.rocketmq.broker.BrokerStartup"
        words = [*java_command(folder, jars), main, "-c", str(folder / "broker.conf")]
        environment["ROCKETMQ_HOME"], sign = str(folder), "boot success"
    else:
        words = [*HELPER, "serve", "--no-namesrv", "-n", name_server, "--port", str(port), "-s", str(folder / "store")]
        words += as_options(settings)
    with running(words, environment) as process:
        read_until(process, sign)
        yield process
