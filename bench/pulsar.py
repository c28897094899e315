"""``mqtool serve --pulsar-port`` against a standalone Apache Pulsar, under load of the Java client.

Both run at the same time, and one client in one JVM (``PulsarLoad.java``) talks to them in turns. A rate is that of the
best of several short rounds, a latency and the processor time of a message are medians; processor time is what the
broker's process takes, in the system too, by message. What a message of a batch takes here is told by step, measured
without sockets.
"""

import os
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.broker import (
    BenchRound,
    BrokerLoad,
    Pair,
    ask,
    free_ports,
    memory_of,
    mib,
    pair_of,
    ratio,
    read_until,
    running,
)
from bench.table import HELPER, Row
from mqtool.engine.pulsar.entries import batch_body, entry_of, to_store
from mqtool.engine.pulsar.frames import Payload, build_batch_body, build_payload
from mqtool.engine.pulsar.wire_classes import MessageMetadata, SingleMetadata
from mqtool.engine.remoting.clock import wall_clock
from mqtool.engine.store.message_store import MessageStore
from mqtool.formats.new_message import NewMessage
from mqtool.formats.stored_message import StoredMessage
from tests.differential.java_store import NoJavaError, class_path
from tests.interop import PULSAR_POM, PULSAR_VERSION

STARTS = 5
"""Of ours, of which the median counts: it takes a fraction of a second, in which little else changes much."""
ROUNDS = 3
ROUND_MS = 2000
BACKLOG = 40_000
"""Messages of 1 KiB that consumers find."""
_HERE = Path(__file__).parent
_READY_SECONDS = 300
_SINGLE, _BATCHED = "≥ 0.5", "≥ 0.25"
_LOADS = [
    (BrokerLoad("send 1 KiB, 1 thread", "send", "sync", 1024, 1), _SINGLE),
    (BrokerLoad("send 1 KiB, 16 threads", "send", "sync", 1024, 16), _SINGLE),
    (BrokerLoad("send 1 KiB, 256 under way", "async", "async", 1024, 256), _SINGLE),
    (BrokerLoad("send 1 KiB in batches, 1,000 under way", "batch", "batch", 1024, 1000), _BATCHED),
    (BrokerLoad("consume 1 KiB, Exclusive", "Exclusive", "single", 1024, BACKLOG), _SINGLE),
    (BrokerLoad("consume 1 KiB, Shared, 4 consumers", "Shared", "single", 1024, BACKLOG), _SINGLE),
    (BrokerLoad("consume 1 KiB, Key_Shared, 4, 1,000 keys", "Key_Shared", "single", 1024, BACKLOG), _SINGLE),
    (BrokerLoad("consume 1 KiB of batches, Exclusive", "Exclusive", "batches", 1024, BACKLOG), _BATCHED),
    (BrokerLoad("consume 1 KiB of batches, Shared, 4", "Shared", "batches", 1024, BACKLOG), _BATCHED),
]
_FILLS = [BrokerLoad("", "keys", "single", 1024, 256), BrokerLoad("", "batch", "batches", 1024, 1000)]
_OF_BATCH = 100
"""Messages of the batch whose steps are measured."""
_OPENS = (
    *("java.base/jdk.internal.loader", "java.base/java.lang", "java.base/java.io", "java.base/sun.net"),
    *("java.base/java.util", "java.base/java.util.zip", "java.base/java.nio", "java.base/jdk.internal.misc"),
    *("java.base/jdk.internal.platform", "java.management/sun.management"),
    "jdk.management/com.sun.management.internal",
)
_METADATA = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"


def measure_pulsar() -> Iterator[Row]:
    """Yield the rows, with Pulsar's figures in place of a store; only a remark where Java is missing."""
    with tempfile.TemporaryDirectory(prefix="mqtool-bench-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        try:
            jars = class_path(PULSAR_VERSION, PULSAR_POM)
            server_jars = class_path(PULSAR_VERSION, "../../bench/pulsar_pom.xml")
        except NoJavaError as error:
            yield Row(f"Pulsar: not compared, {error}", "", "", "", "")
            return
        os.sync()  # what others have written is not for a start to wait for
        # Ours first: a JVM has much to do after it is ready.
        starts = [_start_of_ours(folder / f"start {number}") for number in range(STARTS)]
        ours = stack.enter_context(_our_pulsar(folder / "ours"))
        theirs = stack.enter_context(_java_pulsar(folder / "java", server_jars))
        ready = statistics.median(starts)
        yield Row("ready", f"{theirs.ready:.2f} s", f"{ready:.3f} s", f"{ready / theirs.ready:.3f}", "≤ 0.033")
        yield Row("in memory, idle", mib(theirs.idle), mib(ours.idle), ratio(ours.idle, theirs.idle), "≤ 0.17")
        source = str(_HERE / "PulsarLoad.java")
        subprocess.run(["javac", "-nowarn", "-proc:none", "-cp", jars, "-d", name, source], check=True)
        client = stack.enter_context(_client(folder, jars))
        yield from _measure_loads(client, (theirs, ours))
        yield from _steps(folder / "steps")


def _measure_loads(client: "subprocess.Popen[str]", brokers: Sequence[Pair]) -> Iterator[Row]:
    for broker in brokers:
        for fill in _FILLS:
            stored = 0
            while stored < BACKLOG:
                stored += ask(client, broker, fill, ROUND_MS, broker.processes[-1]).stored
        for load, _ in _LOADS:
            ask(client, broker, load, ROUND_MS, broker.processes[-1])
    most = [0, 0]
    for load, goal in _LOADS:
        rounds: tuple[list[BenchRound], list[BenchRound]] = ([], [])
        for _ in range(ROUNDS):
            for number, broker in enumerate(brokers):
                rounds[number].append(ask(client, broker, load, ROUND_MS, broker.processes[-1]))
                most[number] = max(most[number], memory_of(broker.processes))
        yield from _rows_of(load, goal, "≤ 1.5" if goal == _SINGLE else "", *rounds)
    yield Row("in memory, most under load", mib(most[0]), mib(most[1]), ratio(most[1], most[0]), "≤ 0.17")


@contextmanager
def _client(folder: Path, jars: str) -> Iterator["subprocess.Popen[str]"]:
    opens = [word for name in _OPENS[1:2] + _OPENS[6:8] for word in ("--add-opens", f"{name}=ALL-UNNAMED")]
    words = ["java", "-Xmx1g", *opens, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    with running([*words, "-cp", f"{folder}{os.pathsep}{jars}", "PulsarLoad"], dict(os.environ)) as client:
        yield client


def _start_of_ours(folder: Path) -> float:
    """Return how long it takes until a new one is ready, in s."""
    with _our_pulsar(folder) as ours:
        return ours.ready


@contextmanager
def _our_pulsar(folder: Path) -> Iterator[Pair]:
    words = [*HELPER, "serve", "--namesrv-port", "0", "--port", "0", "--pulsar-port", "0", "-s", str(folder / "store")]
    start = time.perf_counter()
    with running(words, dict(os.environ)) as process:
        said = read_until(process, "ready")
        yield pair_of("pulsar://" + said.split("pulsar ")[1].split(",")[0].strip(), [process], start)


@contextmanager
def _java_pulsar(folder: Path, jars: str) -> Iterator[Pair]:
    """Give a standalone Pulsar of few threads, whose journal is not synced, as our log is not."""
    folder.mkdir()
    port, web, bookie = free_ports((0, 1, 2))
    settings = {
        "clusterName": "standalone",
        "zookeeperServers": "",
        "configurationStoreServers": "",
        "brokerServicePort": port,
        "webServicePort": web,
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "numIOThreads": 4,
        "numHttpServerThreads": 8,
        "managedLedgerDefaultEnsembleSize": 1,
        "managedLedgerDefaultWriteQuorum": 1,
        "managedLedgerDefaultAckQuorum": 1,
        "managedLedgerCacheSizeMB": 64,
        "loadBalancerEnabled": "false",
        "brokerDeleteInactiveTopicsEnabled": "false",
        "functionsWorkerEnabled": "false",
        "allowLoopback": "true",
        "nettyMaxFrameSizeBytes": 5_253_120,
        "journalSyncData": "false",
        "diskUsageThreshold": 0.99,
        "diskUsageWarnThreshold": 0.98,
        "dbStorage_writeCacheMaxSizeMb": 32,
        "dbStorage_readAheadCacheMaxSizeMb": 16,
        "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    }
    (folder / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    (folder / "log4j2.xml").write_text('<Configuration><Loggers><Root level="off"/></Loggers></Configuration>')
    words = [
        *("java", "-Xmx700m", "-XX:MaxDirectMemorySize=384m", "-XX:+UseSerialGC"),
        *(word for name in _OPENS for word in ("--add-opens", f"{name}=ALL-UNNAMED")),
        *("-Dio.netty.tryReflectionSetAccessible=true", f"-Dlog4j.configurationFile={folder / 'log4j2.xml'}"),
        f"-Dbookkeeper.metadata.bookie.drivers={_METADATA}BookieDriver",
        f"-Dbookkeeper.metadata.client.drivers={_METADATA}ClientDriver",
        *("-cp", jars, "org.apache.pulsar.PulsarStandaloneStarter", "-c", str(folder / "broker.conf")),
        *("-nfw", "-nss", "-a", "127.0.0.1", "--metadata-dir", str(folder / "metadata")),
        *("--bookkeeper-dir", str(folder / "bookkeeper"), "--bookkeeper-port", str(bookie)),
    ]
    start = time.perf_counter()
    with running(words, dict(os.environ)) as process:
        page = f"http://127.0.0.1:{web}/admin/v2/namespaces/public/default"
        while not _answers(page):
            if process.poll() is not None or time.perf_counter() > start + _READY_SECONDS:
                raise AssertionError("the standalone Pulsar does not start")
        yield pair_of(f"pulsar://127.0.0.1:{port}", [process], start)


def _answers(page: str) -> bool:
    try:
        with urllib.request.urlopen(page, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        time.sleep(0.05)
        return False


def _rows_of(
    load: BrokerLoad, goal: str, of_processor: str, theirs: list[BenchRound], ours: list[BenchRound]
) -> Iterator[Row]:
    """Yield what came of the rounds of one load."""
    best = [max(outcome.rate for outcome in rounds) for rounds in (theirs, ours)]
    yield Row(load.what, f"{best[0]:,.0f}/s", f"{best[1]:,.0f}/s", ratio(best[1], best[0]), goal)
    if theirs[0].latency:
        slow = [statistics.median(outcome.latency for outcome in rounds) for rounds in (theirs, ours)]
        yield Row("  99 of 100 within", f"{slow[0]:.2f} ms", f"{slow[1]:.2f} ms", ratio(slow[1], slow[0]), "")
    spent = [statistics.median(outcome.processor for outcome in rounds) for rounds in (theirs, ours)]
    of_message = ratio(spent[1], spent[0])
    yield Row("  processor a message", f"{spent[0]:.1f} µs", f"{spent[1]:.1f} µs", of_message, of_processor)
    failed = [sum(outcome.failures for outcome in rounds) for rounds in (theirs, ours)]
    if any(failed):
        yield Row("  failed", f"{failed[0]:,}", f"{failed[1]:,}", "", "0")


# What a message of a batch takes


def _steps(root: Path) -> Iterator[Row]:
    """Yield what each step of a batch takes here, a message."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=_OF_BATCH)
    single, body = SingleMetadata(payload_size=1024).SerializeToString(), bytes(1024)
    payload = build_payload(metadata.SerializeToString(), build_batch_body([Payload(single, body)] * _OF_BATCH))
    most = 4 << 20
    split = to_store(payload, most)
    store, host = MessageStore(root, now=wall_clock()), (bytes([127, 0, 0, 1]), 10911)
    messages = [NewMessage("bench", 0, record.body, record.properties) for record in split.records]
    records = [StoredMessage(message, 0, number, 0, 0) for number, message in enumerate(messages)]

    def append() -> None:
        now = wall_clock()
        store.append_batch(NewMessage("bench", 0, batch_body(split.records), b"", 0, 0, now, host, host), now)

    steps: list[tuple[str, Callable[[], object]]] = [
        ("  a batch of 100: split it for the store", lambda: to_store(payload, most)),
        ("  store its messages", append),
        ("  put it together for consumers", lambda: entry_of(records, most)),
    ]
    for what, step in steps:
        yield Row(what, "", f"{_microseconds(step):.1f} µs", "", "")
    store.close()


def _microseconds(step: Callable[[], object], runs: int = 300) -> float:
    start = time.process_time()
    for _ in range(runs):
        step()
    return (time.process_time() - start) * 1e6 / runs / _OF_BATCH
