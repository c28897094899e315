"""``mqtool serve`` at work for ten minutes with Pulsar clients, and its memory meanwhile.

Producers send single messages and batches, some with keys and some for later; consumers of all four types receive and
acknowledge one by one, some give messages back first, and some come and go; readers read from the beginning; topics are
made and forgotten; one consumer reads and never acknowledges, another never reads. Every ten seconds the memory of the
process is noted. In the end each subscription must have had every message, and the store is verified::

    python -m tests.campaigns.soak_pulsar --minutes 10

It prints the memory and what was done; ``flat`` says by how much the last third of the time differs from the second.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import contextlib
import itertools
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pulsar

from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.reader import StoreReader
from tests.campaigns.fuzz import memory_of
from tests.commands.test_serve import started
from tests.pulsar_client import PulsarWireClient

TOPIC = "soak"
KEYS = 100
_PAUSE_SECONDS = 0.01
_SAMPLE_SECONDS = 10.0
_LAST_SECONDS = 60.0
_RECEIVE_MS = 1000
_LATER_MS = 3000
_READY = re.compile(r".*pulsar ([\d.]+):(\d+).*\n")
TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "failover": pulsar.ConsumerType.Failover,
    "shared": pulsar.ConsumerType.Shared,
    "key_shared": pulsar.ConsumerType.KeyShared,
}


class PulsarSoak:
    """Clients of one broker, and what they count."""

    def __init__(self, url: str, seconds: float) -> None:
        self.client = pulsar.Client(
            url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60
        )
        self.end = time.monotonic() + seconds
        self.sent: set[bytes] = set()
        self.received: dict[str, set[bytes]] = {name: set() for name in TYPES}
        self.given_back = self.came_and_went = self.read = self.topics = 0
        self.faults: list[str] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end

    def is_behind(self, name: str) -> bool:
        """Tell whether a subscription has not had everything yet, and may still get it."""
        return len(self.received[name]) < len(self.sent) and time.monotonic() < self.end + _LAST_SECONDS

    def in_thread(self, work: Callable[[], None]) -> threading.Thread:
        """Begin to do something until the end."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:  # a thread has nobody to raise it to
                self.faults.append(f"{work}: {error!r}")

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def send_on(self, *, is_batching: bool) -> None:
        """Send messages, a pause between two, some with a key and some for later."""
        producer = self.client.create_producer(TOPIC, batching_enabled=is_batching)
        while not self.is_over:
            number = next(self._numbers)
            body = b"%d " % number + bytes(number % 1000)
            key = f"key-{number % KEYS}"
            later = _LATER_MS if not is_batching and not number % 50 else None
            with self._lock:
                self.sent.add(body)
            if is_batching:
                for _ in range(5):
                    producer.send_async(body, lambda *_: None, partition_key=key)
                producer.flush()
            else:
                at = int(time.time() * 1000) + later if later else None
                producer.send(body, partition_key=key, deliver_at=at)
            time.sleep(_PAUSE_SECONDS)
        producer.close()

    def consume_on(self, name: str, *, gives_back: bool, stays: bool) -> None:
        """Receive and acknowledge, until everything has come; some consumers come and go."""
        while not self.is_over or self.is_behind(name):
            consumer = self.client.subscribe(
                TOPIC,
                name,
                TYPES[name],
                initial_position=pulsar.InitialPosition.Earliest,
                negative_ack_redelivery_delay_ms=500,
            )
            until = float("inf") if stays else time.monotonic() + 5
            while time.monotonic() < until and (not self.is_over or self.is_behind(name)):
                try:
                    message = consumer.receive(_RECEIVE_MS)
                except pulsar.Timeout:
                    continue
                if gives_back and not message.redelivery_count() and hash(message.data()) % 20 == 0:
                    consumer.negative_acknowledge(message)
                    self.given_back += 1
                    continue
                consumer.acknowledge(message)
                with self._lock:
                    self.received[name].add(message.data())
            consumer.close()
            self.came_and_went += 1

    def read_on(self) -> None:
        """Read the topic from its beginning, a hundred messages at a time, and make topics that are forgotten."""
        while not self.is_over:
            reader = self.client.create_reader(TOPIC, pulsar.MessageId.earliest)
            for _ in range(100):
                with contextlib.suppress(pulsar.Timeout):
                    reader.read_next(_RECEIVE_MS)
                    self.read += 1
            reader.close()
            consumer = self.client.subscribe(f"{TOPIC}-{self.topics % 50}", f"s{self.topics}")
            consumer.unsubscribe()
            self.topics += 1
            time.sleep(1)


def soak(folder: Path, seconds: float) -> str:
    """Work for so long and return what was done.

    Raises:
        AssertionError: something was lost, or the store is not sound.
    """
    store = folder / "store"
    with started("-s", store, "--port", "0", "--pulsar-port", "0") as (process, line):
        ready = _READY.fullmatch(line)
        assert ready, line
        host, port = ready[1], int(ready[2])
        work = PulsarSoak(f"pulsar://{host}:{port}", seconds)
        with PulsarWireClient(host, port) as hoarder, PulsarWireClient(host, port) as deaf:
            for name in TYPES:  # each is there before the first message
                work.client.subscribe(TOPIC, name, TYPES[name]).close()
            threads = [
                work.in_thread(lambda: work.send_on(is_batching=False)),
                work.in_thread(lambda: work.send_on(is_batching=True)),
                work.in_thread(work.read_on),
            ]
            threads += _consumers(work)
            deaf.subscribe(TOPIC, 1 << 31, subscription="deaf")
            hoarder.subscribe(TOPIC, 1 << 31, subscription="hoards")
            threads.append(work.in_thread(lambda: _hoard(hoarder, work)))
            memory = _samples(process.pid, work)
            for thread in threads:
                thread.join(_LAST_SECONDS * 2)
            work.client.close()
        process.terminate()
        _, log = process.communicate()
    assert work.faults == []
    assert "Traceback" not in log, log
    for name, received in work.received.items():
        assert received == work.sent, f"{name}: {len(work.sent - received)} messages are missing"
    findings = verify_store(StoreReader(store))
    assert [finding.code for finding in findings if finding.severity != Severity.NOTE] == []
    return _told(work, memory)


def _consumers(work: PulsarSoak) -> list[threading.Thread]:
    """Start the consumers of each subscription."""
    kinds = {"exclusive": [(False, True)], "failover": [(False, True), (False, False)]}
    several = [(False, True), (True, True), (False, False)]

    def consumer(name: str, gives_back: bool, stays: bool) -> threading.Thread:
        return work.in_thread(lambda: work.consume_on(name, gives_back=gives_back, stays=stays))

    return [consumer(name, *how) for name in TYPES for how in kinds.get(name, several)]


def _hoard(client: PulsarWireClient, work: PulsarSoak) -> None:
    """Read what comes and acknowledge none of it."""
    client.socket.settimeout(_SAMPLE_SECONDS)
    while not work.is_over:
        with contextlib.suppress(TimeoutError):
            client.next("message")
        client.told.clear()


def _samples(process: int, work: PulsarSoak) -> list[int]:
    memory = []
    while not work.is_over:
        memory.append(memory_of(process))
        time.sleep(min(_SAMPLE_SECONDS, max(work.end - time.monotonic(), 0.1)))
    return memory


def _told(work: PulsarSoak, memory: list[int]) -> str:
    third = len(memory) // 3 or 1
    second, last = statistics.mean(memory[third : 2 * third] or memory), statistics.mean(memory[2 * third :] or memory)
    return (
        f"memory in MiB, every {_SAMPLE_SECONDS:.0f} s: {' '.join(str(size >> 20) for size in memory)}\n"
        f"flat: the last third of the time {(last - second) / second:+.1%}\n"
        f"{len(work.sent):,} different messages, each had by {len(TYPES)} subscriptions; "
        f"{work.given_back:,} given back; {work.came_and_went:,} consumers came and went; "
        f"readers read {work.read:,} messages; {work.topics:,} subscriptions were made and forgotten"
    )


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mqtool-soak-") as name:
        print(soak(Path(name), options.minutes * 60))
    return 0


if __name__ == "__main__":
    sys.exit(main())
