"""A master, its slaves, name servers and clients under faults, all from one seed, in virtual time.

Brokers are killed, stopped and unplugged, alone and together; connections are cut, hosts divided, processes stalled,
lines slow. Of half of the seeds an operator promotes the slave, too, of a master that works and of one that is dead,
and a broker loses power: what it had not synced is gone from its log. Then the faults end, and it must hold that

- what a producer was told is stored (SEND_OK) is in the master's log; where a slave was promoted or power was lost,
  what a master said that waits for its slave, in its log or in that of a slave that has stopped and says so;
- each message in the master's log was consumed, but for one in the place of a message that was consumed and then lost
  with the power: its group is past that place, as in RocketMQ;
- where a master waits for its slaves a message has been in the log of a slave when that was told;
- without an operator the log of each slave is at any time the beginning of its master's; at rest they are always
  equal, as are their queues, but for a slave that has stopped and says so: it follows once the operator has cut its
  log as it says;
- there is one master, and each store is sound.
"""

import asyncio
import contextlib
import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from mqtool.aio import Producer, PushConsumer
from mqtool.engine import cluster, role_keeper
from mqtool.engine.broker import acknowledged
from mqtool.engine.broker.following import FollowingStatus
from mqtool.engine.broker.kept_role import read_role
from mqtool.engine.broker.settings import Role
from mqtool.engine.client.consuming import ConsumeFrom, ConsumeStatus
from mqtool.engine.client.outgoing import ProducerMessage
from mqtool.engine.client.sending import SendStatus
from mqtool.engine.client_runtime.admin_client import AdminClient
from mqtool.engine.client_runtime.consume_services import PushConsumerOptions
from mqtool.engine.client_runtime.producer import ProducerOptions
from mqtool.engine.client_runtime.promotion import plan_promotion, promote
from mqtool.engine.recovering import Recovered
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.plan import carry_out, plan_repair
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError, UnavailableError
from tests.simulation.history import ViolationError
from tests.simulation.network import Line, NetworkLoop
from tests.simulation.virtual_loop import CURRENT
from tests.simulation.world import STORE_SETTINGS, BrokerHost, NameServerHost, Server, World, simulate

NAME = "pair"
SECONDS = (15.0, 60.0)
"""Of work under faults."""
SETTLE_S = 600
_LOOK_S = 2.0
_CHECKED = 0.2
"""Of the acknowledged messages, how many are looked for at the slaves at once."""


@dataclass
class ReplicationOutcome:
    """What a simulation came to."""

    seed: int
    digest: str = ""
    sends: int = 0
    acknowledged: int = 0
    consumed: int = 0
    slaves: int = 0
    cuts: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    violation: str = ""


class MemberHost(BrokerHost):
    """A broker of the group: the master, or a slave."""

    def __init__(self, world: World, name: str, host: str, name_servers: list[str], settings: dict[str, str]) -> None:
        super().__init__(world, name, host, name_servers, {**settings, "brokerName": NAME}, 0)
        self.power_losses = 0
        self.may_start = asyncio.Event()
        self.may_start.set()

    @property
    def role(self) -> Role:
        """What it is, or was in its last life."""
        return self.rules.state.role

    @property
    def kept_epoch(self) -> int:
        """The epoch that its store knows."""
        kept = read_role(self.store)
        return kept.epoch if kept else 0

    @property
    def is_kept_slave(self) -> bool:
        """Whether its store says that it is a slave."""
        kept = read_role(self.store)
        return kept is None or kept.role is Role.SLAVE

    def is_to_be_slave(self, broker_id: int) -> None:
        """Have its settings say from the next start on that it is a slave."""
        as_slave = {"brokerRole": "SLAVE", "brokerId": str(broker_id), "haStartAtFirstByte": "true"}
        self._settings = {**self._settings, **as_slave}

    def lose_power(self, chance: random.Random) -> None:
        """Kill it with its machine: what its log has not synced stays by chance, from the beginning on."""
        log = self.rules.store.log
        end = chance.randint(log.flushed_offset, log.end_offset)
        self.power_losses += 1
        self.kill(silently=True)
        self.world.note(self.name, f"has lost its log behind {end:,}")
        for path in (self.store / "commitlog").iterdir():
            start = int(path.name)
            if start >= end > 0:
                path.unlink()
            elif start + path.stat().st_size > end:
                size = path.stat().st_size
                with path.open("r+b") as file:
                    file.truncate(end - start)
                    file.truncate(size)

    @property
    def log(self) -> bytes:
        """All bytes of its log, up to where it ends."""
        log = self.rules.store.log
        return b"".join(bytes(log.read(start, max(0, log.end_offset - start))) for start in sorted(log.segments))


class ReplicationScenario:
    """One simulation."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        loop: NetworkLoop,
        seconds: tuple[float, float],
        on_note: Callable[[str], None] | None,
    ) -> None:
        self.loop = loop
        self.seconds = seconds
        self.world = World(seed, folder, loop, on_note)
        self.outcome = ReplicationOutcome(seed)
        self._chance = chance = random.Random(f"replication {seed}")
        self.is_sync = chance.random() < 0.6
        self.has_operator = chance.random() < 0.5
        self.members: list[MemberHost] = []
        self._master: MemberHost
        self._promised: set[str] = set()
        self._sent: set[str] = set()
        self._given_up: set[str] = set()
        self._promoting: asyncio.Future[Any] | None = None
        self._ids = 10
        self._no_power_before = 0.0
        self._acknowledged: set[str] = set()
        self._consumed: Counter[str] = Counter()
        self._consumed_at: defaultdict[tuple[int, int], set[str]] = defaultdict(set)  # by queue and its offset
        self._violation: ViolationError | None = None
        self._is_over = False
        self._restarts: list[asyncio.Task[None]] = []
        self._work: list[asyncio.Future[Any]] = []

    async def run(self) -> ReplicationOutcome:
        """Run it to its end; what must not be is said in the outcome."""
        try:
            with contextlib.ExitStack() as stack:
                for owner in (cluster, role_keeper):
                    stack.enter_context(mock.patch.object(owner, "recover_store", self._recover))
                stack.enter_context(mock.patch.object(acknowledged, "_boot_id", self._boot_id))
                await self._run()
        except ViolationError as violation:
            self.outcome.violation = str(violation)
        finally:
            self.outcome.virtual_s = self.loop.time()
            self.outcome.digest = self.world.digest
            self.loop.set_exception_handler(lambda *_: None)
            await self.world.finish()
        self.outcome.acknowledged, self.outcome.consumed = len(self._acknowledged), len(self._consumed)
        return self.outcome

    async def _run(self) -> None:
        await self._begin()
        chance = self._chance
        watching = [] if self.has_operator else [self._watch()]
        chaos = [asyncio.ensure_future(one) for one in (self._disturb(), *watching)]
        await asyncio.wait(chaos, timeout=chance.uniform(*self.seconds), return_when=asyncio.FIRST_COMPLETED)
        for one in chaos:
            if one.done():
                one.result()
            one.cancel()
        await self._make_quiet()
        await self._settle()
        await self._end()

    async def _recover(self, store: Path, settings: Mapping[str, str], *options: str) -> Recovered:
        """Recover a store as a child does: there are none in here."""
        cut = [int(option.partition("=")[2]) for option in options]
        config = StoreConfig(dict(settings))
        plan = plan_repair(store, config, "recover", {"cut_at": cut[0] if cut else None})
        if plan.refusal:
            return Recovered(False, False, plan.refusal)
        carry_out(store, config, plan, Disk())
        self.outcome.cuts += bool(cut)
        return Recovered(True, bool(plan.losses), "")

    def _boot_id(self) -> str:
        process = CURRENT.get()
        host = process.host if process else ""
        return f"{host} {sum(one.power_losses for one in self.members if one.host == host)}"

    # The beginning

    async def _begin(self) -> None:
        chance, world = self._chance, self.world
        world.network.default = Line(chance.choice([0.0001, 0.001, 0.01]), chance.choice([0.0, 0.0005, 0.01]))
        self.name_server = NameServerHost(world, "names", "10.1.0.1")
        common = {
            "haAllow": "10.0.0.0/8",
            "defaultTopicQueueNums": "2",
            "flushDiskType": chance.choice(["ASYNC_FLUSH", "SYNC_FLUSH"]),
            "haTransferBatchSize": str(chance.choice([100, 1000, 32768])),
            "haCopyInterval": "2000",
            "haSendHeartbeatInterval": "1000",
            "haHousekeepingInterval": "5000",
            "slaveReadEnable": "true",
        }
        if self.is_sync:
            common["inSyncReplicas"] = "2"  # of the slave, too: once promoted it waits
        role = {"brokerRole": "SYNC_MASTER" if self.is_sync else "ASYNC_MASTER"}
        names = [self.name_server.address]
        self._master = MemberHost(world, "master", "10.2.0.1", names, common | role)
        slaves = [
            MemberHost(
                world,
                f"slave-{number}",
                f"10.2.0.{number + 1}",
                names,
                common | {"brokerRole": "SLAVE", "brokerId": str(number), "haStartAtFirstByte": "true"},
            )
            for number in range(1, 1 + (1 if self.has_operator else chance.choice([1, 1, 2])))
        ]
        self.members = [self._master, *slaves]
        self.outcome.slaves = len(slaves)
        await self.name_server.start()
        await self._master.start()
        for slave in slaves:
            if chance.random() < 0.3:
                await asyncio.sleep(chance.uniform(0, 20))
            await slave.start()
        self._start_consumer()
        for number in range(chance.choice([1, 3])):
            self._start_producer(f"P{number}")

    def _start_producer(self, name: str) -> None:
        process = self.world.process(name, f"10.3.0.{len(self._work) + 1}")
        options = ProducerOptions(instance_name=name, send_msg_timeout=4000)
        addresses, clock = [self.name_server.address], self.world.clock()
        producer = process.context.run(lambda: Producer(f"{name}-group", addresses, options, clock))

        async def work() -> None:
            await producer.start()
            number = 0
            while not self._is_over:
                body = f"{name}-{number}-" + "x" * self._chance.choice([10, 1000, 4000])
                number += 1
                self.outcome.sends += 1
                self._sent.add(body)
                try:
                    result = await producer.send(ProducerMessage("T", body.encode()))
                except MqtoolError as error:
                    self.world.note(name, f"{body[:20]} fails: {error}")
                else:
                    self.world.note(name, f"{body[:20]} {result.status.name}")
                    if result.status is SendStatus.SEND_OK:
                        self._acknowledge(body)
                await asyncio.sleep(self._chance.expovariate(2))

        self._work.append(process.start(work()))

    def _acknowledge(self, body: str) -> None:
        """Take note of a message that its producer was told is stored; where slaves are waited for one has it."""
        self._acknowledged.add(body)
        waits = self.is_sync and self.master.role is Role.SYNC_MASTER
        if waits or not self.has_operator:
            self._promised.add(body)
        if (
            self.is_sync
            and not self.has_operator
            and self._chance.random() < _CHECKED
            and not any(body.encode() in slave.last_log for slave in self._with_logs())
        ):
            self._violation = ViolationError(f"{body[:20]} was acknowledged, and no slave has it")

    def _with_logs(self) -> list[Any]:
        return [_LogOnDisk(slave.store) for slave in self.slaves]

    def _start_consumer(self) -> None:
        process = self._consumer = self.world.process("consumer", "10.4.0.1")
        options = PushConsumerOptions(instance_name="consumer", consume_from_where=ConsumeFrom.FIRST_OFFSET)
        addresses, clock = [self.name_server.address], self.world.clock()

        async def listen(messages: Any, _context: Any) -> ConsumeStatus:
            for one in messages:
                self._consumed[one.body.decode()] += 1
                self._consumed_at[one.queue_id, one.queue_offset].add(one.body.decode())
            return ConsumeStatus.SUCCESS

        consumer = process.context.run(lambda: PushConsumer("G", listen, addresses, options, clock))
        consumer.subscribe("T", "*")

        async def work() -> None:
            while True:
                try:
                    await consumer.start()
                    break
                except MqtoolError as error:
                    self.world.note("consumer", f"cannot start: {error}")
                    await asyncio.sleep(2)

        process.start(work())

    # Faults

    @property
    def master(self) -> MemberHost:
        """The member that is the master, or was the last."""
        self._master = next((one for one in self.members if one.is_up and one.role is not Role.SLAVE), self._master)
        return self._master

    @property
    def slaves(self) -> list[MemberHost]:
        """The others."""
        master = self.master
        return [one for one in self.members if one is not master]

    async def _disturb(self) -> None:
        chance = self._chance
        faults: list[Callable[[], None]] = [self._kill, self._kill, self._kill_all, self._stop, self._cut, self._divide]
        faults += [self._stall, self._slow, self._kill_names]
        if self.has_operator:
            faults += [self._promote, self._promote, self._lose_power, self._lose_power]
        faults = [one for one in faults if chance.random() < 0.6] or [self._kill]
        mean_s = chance.choice([1.0, 3.0, 8.0])
        while True:
            await asyncio.sleep(chance.expovariate(1 / mean_s))
            fault = chance.choice(faults)
            self.outcome.faults[fault.__name__[1:]] += 1
            fault()

    def _kill(self) -> None:
        if up := [one for one in self.members if one.is_up]:
            self._kill_one(self._chance.choice(up))

    def _kill_all(self) -> None:
        for one in self.members:
            if one.is_up:
                self._kill_one(one)

    def _kill_names(self) -> None:
        if self.name_server.is_up:
            self._kill_one(self.name_server)

    def _kill_one(self, server: Server) -> None:
        server.kill(silently=self._chance.random() < 0.3)
        self._restarts.append(asyncio.ensure_future(self._start_again(server)))

    def _stop(self) -> None:
        up = [one for one in self.members if one.is_up]
        if up:
            self._restarts.append(asyncio.ensure_future(self._stop_and_start(self._chance.choice(up))))

    async def _stop_and_start(self, server: Server) -> None:
        await server.stop()
        await self._start_again(server)

    async def _start_again(self, server: Server) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / 4))
        if isinstance(server, MemberHost):
            await server.may_start.wait()
        try:
            await server.start()
        except UnavailableError as error:
            if self._promoting is None or "has another master" not in str(error):
                raise
            await asyncio.wait([self._promoting])  # while it started: the operator has it be a slave
            await server.start()

    def _lose_power(self) -> None:
        """Have a machine stop; not one after the other within the time in which all is synced."""
        up = [one for one in self.members if one.is_up]
        if len(up) == len(self.members) and self.loop.time() >= self._no_power_before:
            self._no_power_before = self.loop.time() + 20
            one = self._chance.choice(up)
            one.lose_power(self._chance)
            self._restarts.append(asyncio.ensure_future(self._start_again(one)))

    def _promote(self) -> None:
        if self._promoting is None or self._promoting.done():
            self._promoting = asyncio.ensure_future(self._promote_one())

    async def _promote_one(self) -> None:
        """Promote the slave as an operator does, who sees to it that no dead master comes back as one."""
        if any(one.is_starting for one in self.members):
            return
        old = self.master
        is_dead = not old.is_up
        if is_dead:
            old.may_start.clear()
        process = self.world.process("operator", "10.5.0.1")

        async def work() -> None:
            async with AdminClient([self.name_server.address]) as admin:
                plan = await plan_promotion(admin, NAME, clock=self.world.clock())
                if plan.master is None and not is_dead:
                    self.world.note("operator", "the master does not answer: it is left alone")
                    return
                await promote(admin, plan, lambda said: self.world.note("operator", said))

        try:
            await process.start(work())
        except MqtoolError as error:
            self.world.note("operator", f"promoting fails: {error}")
        await self._see_to_one_master(old)
        old.may_start.set()

    async def _see_to_one_master(self, old: MemberHost) -> None:
        """End a master in whose place another has come, and have it be a slave; also where promoting has failed."""
        epochs = {one: one.kept_epoch for one in self.members}
        newest = max(self.members, key=lambda one: epochs[one])
        if newest is old or epochs[newest] == epochs[old] or newest.is_kept_slave:
            return
        self._ids += 1
        old.is_to_be_slave(self._ids)
        if old.is_up and old.role is not Role.SLAVE:
            self._kill_one(old)

    def _cut(self) -> None:
        network, chance = self.world.network, self._chance
        streams = [one for one in network.opened if not one.is_gone]
        for stream in chance.sample(streams, min(len(streams), chance.randint(1, 4))):
            network.cut(stream, one_end=chance.random() < 0.3)

    def _divide(self) -> None:
        network = self.world.network
        host = self._chance.choice([*(one.host for one in self.members), self.name_server.host])
        self.world.note("world", f"{host} is cut off")
        network.cut_off.add(host)

        def heal() -> None:
            network.cut_off.discard(host)
            network.changed()

        self.loop.call_later(self._chance.uniform(1, 15), heal)

    def _stall(self) -> None:
        processes = [one.process for one in self.members if one.is_up]
        if processes:
            self.world.stall(self._chance.choice(processes), self._chance.uniform(0.5, 10))

    def _slow(self) -> None:
        hosts, chance = [one.host for one in self.members], self._chance
        source, target = chance.sample(hosts, 2)
        self.world.network.lines[source, target] = Line(chance.choice([0.05, 0.5]), 0.02, chance.choice([0.0, 0.1]))

    async def _watch(self) -> None:
        """See all the time that the log of each slave is the beginning of its master's."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self._check_prefixes()

    def _check_prefixes(self) -> None:
        if self._violation:
            raise self._violation
        masters = _LogOnDisk(self.master.store).last_log
        for slave in self.slaves:
            if self._is_longer(slave):
                continue
            theirs = _LogOnDisk(slave.store).last_log
            size = min(len(masters), len(theirs))
            if theirs[:size] != masters[:size]:
                raise ViolationError(f"{slave.name} has another log than its master")

    # The end

    async def _make_quiet(self) -> None:
        self.world.note("world", "the faults end")
        network = self.world.network
        network.cut_off.clear()
        network.lines.clear()
        network.changed()
        for process in self.world.processes:
            if process.stalled is not None and not process.is_dead:
                self.loop.resume(process)
        if self._promoting is not None:
            await self._promoting
        await asyncio.gather(*self._restarts)
        await asyncio.sleep(5)
        self._is_over = True
        await asyncio.wait(self._work, timeout=60)

    async def _settle(self) -> None:
        """Wait until all is equal and consumed."""
        end = self.loop.time() + SETTLE_S
        while (wrong := self._wrong()) and self.loop.time() < end:
            await self._cut_by_hand()
            await asyncio.sleep(1)
        if wrong:
            raise ViolationError(f"after {SETTLE_S} s without faults: {wrong}")
        self._check_prefixes()
        masters = [one.name for one in self.members if one.role is not Role.SLAVE]
        if len(masters) != 1:
            raise ViolationError(f"the masters are {masters}")
        log = self.master.log
        others = b"".join(slave.log for slave in self.slaves)
        for body in sorted(self._promised - self._given_up):
            if body.encode() not in log and body.encode() not in others:
                raise ViolationError(f"{body[:20]} was acknowledged, and is lost")

    async def _cut_by_hand(self) -> None:
        """Do what a slave says that has other messages than its master, which it has acknowledged."""
        for slave in self.slaves:
            following = slave.rules.following
            found = re.search(r"--cut-at (\d+)|with an empty store", following.reason)
            if self.has_operator and slave.is_up and following.status is FollowingStatus.STOPPED and found:
                log = slave.log  # of which the operator is shown what is lost
                self._given_up |= {body for body in self._promised if body.encode() in log}
                await slave.stop()
                if found[1]:
                    await self._recover(slave.store, STORE_SETTINGS, f"--cut-at={found[1]}")
                else:
                    shutil.rmtree(slave.store)
                    slave.store.mkdir()
                await slave.start()

    def _wrong(self) -> str:
        masters = self.master.log
        for slave in self.slaves:
            following = slave.rules.following
            if self._is_longer(slave):
                continue  # it has stopped and says so
            if following.status is not FollowingStatus.FOLLOWING:
                return f"{slave.name} does not follow: {following.status} {following.reason}"
            if slave.log != masters:
                return (
                    f"{slave.name} has {slave.rules.store.end_offset:,} bytes of {self.master.rules.store.end_offset:,}"
                )
            if (theirs := _queues(slave)) != (ours := _queues(self.master)):
                return f"{slave.name} has other queues: {theirs} {ours}"
        for member in self.members:
            if not self._is_longer(member) and any(
                offset > _queues(member).get(("T", queue_id), 0)
                for queue_id, offset in member.rules.offsets.of("G", "T").items()
            ):
                return f"offsets of {member.name} are beyond its queues: {member.rules.offsets.of('G', 'T')}"
        missing = {
            body
            for body in self._sent - self._consumed.keys()
            if body.encode() in masters and not self._is_in_place_of_a_lost_one(body, masters)
        }
        return f"{len(missing)} messages are not consumed, such as {min(missing)[:20]}" if missing else ""

    def _is_longer(self, slave: MemberHost) -> bool:
        """Whether a slave has stopped as its log goes on after the end of its master's, and it still does."""
        if not self.has_operator:
            return False
        is_after = "after the end of the master's log" in slave.rules.following.reason
        return is_after and slave.rules.store.end_offset > self.master.rules.store.end_offset

    def _is_in_place_of_a_lost_one(self, body: str, masters: bytes) -> bool:
        """Whether a message has the place in its queue that another had that was consumed and is not in the log."""
        store = self.master.rules.store
        for (topic, queue_id), queue in store.dispatcher.queues.by_key.items():
            for unit in queue.units(0, queue.next_offset) if topic == "T" else ():
                if body.encode() in bytes(store.log.record(unit.physical_offset)):
                    consumed = self._consumed_at[queue_id, unit.queue_offset]
                    return any(other.encode() not in masters for other in consumed)
        return False

    async def _end(self) -> None:
        longer = [slave for slave in self.slaves if self._is_longer(slave)]
        known = {member.name: {topic for topic, _ in _queues(member)} for member in self.members}
        # What it consumed from a master that has more it would commit at the other, where no pull corrects it any more.
        self.world.kill(self._consumer)
        for server in (*self.members, self.name_server):
            await server.stop()
        config = StoreConfig(STORE_SETTINGS)
        for member in self.members:
            found = [one for one in verify_store(StoreReader(member.store, config)) if one.severity > Severity.NOTE]
            if member in longer:  # it has the tables of its master, which may lack what its own messages need
                found = [one for one in found if not one.code.startswith("CONFIG-")]
            # The folder of a queue may outlast a loss of power in which its topic and all messages are lost.
            found = [one for one in found if one.code != "CONFIG-NO-TOPIC" or one.topic in known[member.name]]
            if found:
                raise ViolationError(f"{member.name}: {found[0]}")


class _LogOnDisk:
    """The log of a store, of which nobody knows where it ends: up to the last byte that is not zero."""

    def __init__(self, store: Path) -> None:
        self._files = sorted((store / "commitlog").glob("*"))

    @property
    def last_log(self) -> bytes:
        return b"".join(file.read_bytes() for file in self._files).rstrip(b"\0")


def _queues(member: MemberHost) -> dict[Any, int]:
    dispatcher = member.rules.store.dispatcher
    return {key: queue.next_offset for key, queue in dispatcher.queues.by_key.items() if queue.next_offset}


def run_seed(
    seed: int, folder: Path, seconds: tuple[float, float] = SECONDS, on_note: Callable[[str], None] | None = None
) -> ReplicationOutcome:
    """Run the simulation of a seed in an empty folder; ``seconds`` are those of work under faults."""
    outcome: ReplicationOutcome = simulate(
        seed, lambda loop: ReplicationScenario(seed, folder, loop, seconds, on_note).run()
    )
    return outcome
