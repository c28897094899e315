"""What replication costs those who send: to a SYNC_MASTER that waits for its slave, to an ASYNC_MASTER that has one.

A pair of RocketMQ and one of mqtool run at the same time, and one client in one JVM sends to them in turns, as in
``broker.py``. A send that no slave has in time counts as failed.
"""

import os
import subprocess
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
    ratio,
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
        for load, rounds in _rounds(client, theirs, ours):
            yield from rows_of(load._replace(what=f"SYNC_MASTER, inSyncReplicas=2: {load.what}"), *rounds)
    with ExitStack() as stack:
        client = stack.enter_context(java_client(folder, jars))
        alone = _replicated(stack, folder / "alone", _ASYNC, "", has_slave=False)
        followed = _replicated(stack, folder / "followed", _ASYNC, "")
        for load, rounds in _rounds(client, alone, followed):
            without, with_slave = (max(one.rate for one in of) for of in rounds)
            name = f"mqtool, ASYNC_MASTER alone and with a slave: {load.what}"
            yield Row(name, f"{without:,.0f}/s", f"{with_slave:,.0f}/s", ratio(with_slave, without), "≥ 0.95")


def _rounds(
    client: "subprocess.Popen[str]", *pairs: Pair
) -> Iterator[tuple[BrokerLoad, tuple[list[BenchRound], list[BenchRound]]]]:
    """Yield each load with the rounds of both pairs, after one that does not count."""
    for load in _LOADS:
        rounds: tuple[list[BenchRound], list[BenchRound]] = ([], [])
        for number in range(1 + ROUNDS):
            for done, pair in zip(rounds, pairs, strict=True):
                outcome = ask(client, pair, load, ROUND_MS, pair.processes[-1])
                if number:
                    done.append(outcome)
        yield load, rounds


def _until_slave_follows(client: "subprocess.Popen[str]", pair: Pair) -> None:
    deadline = time.monotonic() + _FOLLOWS_SECONDS
    while ask(client, pair, _LOADS[0], 500, pair.processes[-1]).failures:
        if time.monotonic() > deadline:
            raise AssertionError("no slave acknowledges what is sent")


def _replicated(stack: ExitStack, folder: Path, role: dict[str, str], jars: str, *, has_slave: bool = True) -> Pair:
    """Start a name server of mqtool, a slave and its master; the master is the process that is watched."""
    [port] = free_ports((0,))
    name_server, start = f"127.0.0.1:{port}", time.perf_counter()
    words = [*HELPER, "serve", "--no-broker", "--namesrv-port", str(port)]
    read_until(stack.enter_context(running(words, dict(os.environ))), "ready")
    if has_slave:
        stack.enter_context(_broker(folder / "slave", name_server, _SLAVE, jars))
    return pair_of(name_server, [stack.enter_context(_broker(folder / "master", name_server, role, jars))], start)


@contextmanager
def _broker(folder: Path, name_server: str, role: dict[str, str], jars: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a broker, of RocketMQ where there are jars."""
    port = free_ports(BROKER_PORTS)[1]
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
