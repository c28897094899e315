"""The hosts of a simulation: name servers, brokers on their stores, and clients; each can be stopped, killed, stalled.

They are those of mqtool, unchanged, but that brokers look after their disks less often. What they would get from
outside comes from the seed: time, addresses, chance, threads and connections.
"""

import asyncio
import contextlib
import hashlib
import itertools
import os
import random
import secrets
import shutil
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from mqtool.engine import cluster
from mqtool.engine.broker import broker
from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.remoting_door import RemotingDoor
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.client_runtime import consume_services, instance
from mqtool.engine.cluster import Cluster
from mqtool.engine.doors import REMOTING
from mqtool.engine.server_configs import BrokerConfig, NameServerConfig
from tests.simulation.network import NetworkLoop
from tests.simulation.virtual_loop import CURRENT, Process, ThreadPool, VirtualListenerThreads

NOON = 1_767_268_800_000
"""When every simulation begins, in ms: hours away from when stores clean up."""
STORE_SETTINGS = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "8000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "mappedFileSizeTimerLog": "52000",
    "fileReservedTime": "1000000",  # files are as old as the machine says, which knows nothing of the time in here
    "diskMaxUsedSpaceRatio": "99",
}
BROKER_PORT, NAME_SERVER_PORT = 10911, 9876


class World:
    """All that there is, and a log of what happened."""

    def __init__(
        self, seed: int, folder: Path, loop: NetworkLoop, on_note: Callable[[str], None] | None = None
    ) -> None:
        self.seed = seed
        self.folder = folder
        self.loop = loop
        self.network = loop.network
        self.processes: list[Process] = []
        self.killed: list[BrokerController] = []
        self.notes = 0
        self._digest = hashlib.sha256()
        self._on_note = on_note

    def note(self, who: str, what: str) -> None:
        """Add a line to the log."""
        line = f"{self.loop.time():11.6f} {who:14} {what}"
        self.notes += 1
        self._digest.update(line.encode() + b"\n")
        if self._on_note:
            self._on_note(line)

    @property
    def digest(self) -> str:
        """The digest of the log."""
        return self._digest.hexdigest()

    def process(self, name: str, host: str) -> Process:
        """Return a new process on a host."""
        process = Process(name, host)
        self.processes.append(process)
        return process

    def clock(self, skew_ms: int = 0) -> Callable[[], int]:
        """Return a clock that is wrong by so much."""
        return lambda: NOON + skew_ms + self.loop.time_ns() // 1_000_000

    def kill(self, process: Process, *, silently: bool = False) -> None:
        """End a process; what it did before stays, and nothing else happens."""
        self.note(process.name, "vanishes" if silently else "is killed")
        process.kill()
        self.network.end(process, silently=silently)

    def stall(self, process: Process, seconds: float) -> None:
        """Have a process do nothing for a while, as when it is out of memory or collects garbage."""
        if process.stalled is not None or process.is_dead:
            return
        self.note(process.name, f"stalls for {seconds:.1f} s")
        process.stalled = []

        def go_on() -> None:
            if process.is_dead:
                return
            self.note(process.name, "goes on")
            self.loop.resume(process)
            self.network.changed()

        self.loop.call_later(seconds, go_on)

    async def finish(self) -> None:
        """Break off what is left of dead processes, so that nothing of it stays, and no file is open."""
        self.network.is_down = True
        for process in self.processes:
            self.loop.resume(process)
        tasks = [task for process in self.processes for task in process.tasks if not task.done()]
        tasks += [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and task not in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=60) if tasks else None
        for rules in self.killed:
            rules.store._stack.close()
            rules.acknowledged.close()


class Server:
    """A name server or a broker on a host of its own."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.is_up = False
        self.is_starting = False
        self.process: Process
        self.starts = 0
        self._cluster: Cluster

    async def start(self) -> None:
        """Start it, on what an earlier life has left."""
        self.is_starting = True
        self.starts += 1
        self.world.network.unplugged.discard(self.host)
        self.process = self.world.process(self.name, self.host)
        self._cluster = self._make()
        self.world.note(self.name, "starts")
        await self.process.start(self._cluster.__aenter__())
        self.is_up, self.is_starting = True, False
        self.world.note(self.name, "is up")

    async def stop(self) -> None:
        """Stop it in good order."""
        self.is_up = False
        self.world.note(self.name, "stops")
        await self.process.start(self._cluster.__aexit__(None, None, None))
        self.process.kill()
        self.world.note(self.name, "has stopped")

    def kill(self, *, silently: bool = False) -> None:
        """Kill it."""
        self.is_up = False
        if silently:
            self.world.network.unplugged.add(self.host)
        self.world.kill(self.process, silently=silently)

    def _make(self) -> Cluster:
        raise NotImplementedError


class NameServerHost(Server):
    """A name server."""

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{NAME_SERVER_PORT}"

    def _make(self) -> Cluster:
        return Cluster(NameServerConfig(self.host, NAME_SERVER_PORT), clock=self.world.clock())


class BrokerHost(Server):
    """A broker on its store; one that is killed leaves the store as its system has it."""

    def __init__(
        self, world: World, name: str, host: str, name_servers: list[str], settings: dict[str, str], skew_ms: int
    ) -> None:
        super().__init__(world, name, host)
        self._name_servers = name_servers
        self._settings = settings
        self.clock = world.clock(skew_ms)
        self._lives = itertools.count()
        self.store = world.folder / f"{name}-{next(self._lives)}"

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{BROKER_PORT}"

    @property
    def rules(self) -> BrokerController:
        """The rules of the one that runs."""
        return self._cluster.brokers[0]

    @property
    def door(self) -> RemotingDoor:
        """The door of the one that runs."""
        door = self._cluster.doors[0][REMOTING].rules
        assert isinstance(door, RemotingDoor)
        return door

    def _make(self) -> Cluster:
        settings, _ = BrokerSettings().updated({"brokerName": self.name, **self._settings})
        of_store = STORE_SETTINGS | {key: value for key, value in self._settings.items() if key == "flushDiskType"}
        config = BrokerConfig(self.store, self.host, BROKER_PORT, settings, of_store)
        return Cluster(None, [config], self._name_servers, self.clock)

    def kill(self, *, silently: bool = False) -> None:
        """Kill it; the next life has a copy of the store, as what is killed in here still has its files open."""
        super().kill(silently=silently)
        self.world.killed += self._cluster.brokers
        before, self.store = self.store, self.world.folder / f"{self.name}-{next(self._lives)}"
        shutil.copytree(before, self.store)


@contextlib.contextmanager
def nothing_by_chance(seed: int) -> Iterator[None]:
    """Have all that programs get from their machine come from the seed."""
    chance = random.Random(f"machine {seed}")
    state = random.getstate()
    random.seed(f"programs {seed}")

    def own_address() -> str:
        process = CURRENT.get()
        return process.host if process else "127.0.0.1"

    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (instance, "own_address", own_address),
            (cluster, "ThreadPoolExecutor", ThreadPool),
            (cluster, "_FLUSH_LOOK_SECONDS", 0.5),  # looking at the disk, ten times a second, is most of what
            (broker, "_STORE_INTERVAL", 500),  # brokers do in here
            (consume_services, "ListenerThreads", VirtualListenerThreads),
            (os, "getpid", lambda: 1),
            (secrets, "randbits", chance.getrandbits),
            (uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128))),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        try:
            yield
        finally:
            random.setstate(state)


def simulate(seed: int, main: Callable[[NetworkLoop], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine in a loop of its own, with nothing by chance."""
    loop = NetworkLoop(str(seed))
    loop.set_exception_handler(lambda *_: None)  # the end breaks off much that nobody will ask about
    with nothing_by_chance(seed):
        try:
            return loop.run_until_complete(main(loop))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
