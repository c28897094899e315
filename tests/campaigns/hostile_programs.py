"""Programs that do to their clients what no program should, with a broker that is killed, stopped and mute meanwhile.

Listeners raise everything there is, exit, fork, block, and return nonsense; two threads send all the time; others poll,
pop, pull by offset and read assigned queues, and raise in the middle; clients of ``mqtool.aio`` do the same in a loop
of their own, where they are started and closed again and again, and cancelled in the middle. Hooks, selectors,
strategies and transaction listeners raise as well, listeners tell nonsense in their contexts and fork in coroutines,
too, and a broadcasting consumer is closed and started again all the time. The broker
is killed and started again, and stopped so that it holds its connections and says nothing; a name server that never
answers stands before the real one. In the end

- each message that was acknowledged was consumed by each group;
- no send took longer than its own time-out (and ``SLACK_S``, for a busy machine), and no shutdown longer than
  ``MAX_SHUTDOWN_S``; a forked child was told that its clients are its parent's, and did not hang;
- no thread, task or descriptor is left when all clients are closed.

The tests try a few seconds; this is the long form::

    python -m tests.campaigns.hostile_programs --minutes 10

It ends with status 1 if anything of this is not so.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mqtool
from mqtool import ConsumeContext, ConsumeFrom, ConsumerMessage, ConsumeStatus, ProducerMessage
from mqtool.engine.client.rebalance import averagely
from mqtool.engine.client_runtime.blocking.background import background
from mqtool.errors import MqtoolError, UsageError
from tests.ports import free_port

TOPIC = "Hostile"
SEND_MS = 1000
SLACK_S = 10.0
MAX_SHUTDOWN_S = 60.0
SETTLE_S = 180.0
_PATIENCE_S = 120.0
_CHILD_S = 30.0
_ROOT = Path(__file__).parent.parent.parent
_RAISED: tuple[Callable[[], BaseException], ...] = (
    SystemExit,
    KeyboardInterrupt,
    asyncio.CancelledError,
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    MemoryError,
    ValueError,
    BaseException,
)
_NONSENSE: tuple[Any, ...] = (42, "LATER", object(), [], False, ValueError)


@dataclass
class HostileOutcome:
    """What happened, and what must not have."""

    did: Counter[str] = field(default_factory=Counter)
    longest_send_s: float = 0.0
    longest_shutdown_s: float = 0.0
    violations: list[str] = field(default_factory=list)


class ServedInProcess:
    """``mqtool serve`` in a process of its own, always on the same ports and store."""

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        ports = [free_port(), free_port()]
        self.name_server = f"127.0.0.1:{ports[0]}"
        self._words = ["--namesrv-port", str(ports[0]), "--port", str(ports[1]), "-s", str(folder / "store")]
        # A broker that was killed learns of producers again within half a minute, and gives up after so many checks.
        checks = ("transactionTimeOut=1000", "transactionCheckInterval=1000", "transactionCheckMax=1000")
        for setting in (*checks, *settings):
            self._words += ["--set", setting]
        self._log = (folder / "log").open("ab")
        self._process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        words = [sys.executable, "-m", "mqtool", "serve", *self._words]
        settings = {**os.environ, "PYTHONPATH": str(_ROOT)}
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=self._log, env=settings, start_new_session=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith(b"mqtool: ready")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its children."""
        os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Program:
    """Clients, and what their program does to them."""

    def __init__(self, name_servers: str, folder: Path, seed: int, *, is_short: bool) -> None:
        self._folder = folder
        self.outcome = HostileOutcome()
        self.acknowledged: set[bytes] = set()
        self.consumed: dict[str, set[bytes]] = {}
        self.is_over = threading.Event()
        self.is_calm = threading.Event()
        """Nobody raises or is cancelled any more where that keeps a consumer from what is left."""
        self._chance = random.Random(seed)
        self._name_servers = name_servers
        often = _OFTEN if is_short else {}
        self.producer = mqtool.Producer("hostile", name_servers, send_msg_timeout=SEND_MS)
        self._producers: list[Any] = [self.producer]
        self.consumers: list[Any] = []
        self._assigned: list[mqtool.LitePullConsumer] = []
        for name, orderly, is_coroutine in (("shared", False, False), ("loop", False, True), ("ordered", True, False)):
            listen = self._coroutine(name) if is_coroutine else self._function(name)
            self._add(name, mqtool.PushConsumer(name, listen, name_servers, orderly=orderly, **_CONSUMING, **often))
        lite = mqtool.LitePullConsumer("lite", name_servers, consume_from_where=ConsumeFrom.FIRST_OFFSET, **often)
        self._add("lite", lite)
        self._threads = [threading.Thread(target=self._send_on, args=(which,)) for which in range(2)]
        self._threads.append(threading.Thread(target=self._poll_on, args=("lite", lite)))
        if not is_short:
            self._add_others()

    def _add_others(self) -> None:
        """Add consumers of the other kinds, and those of a loop."""
        names = self._name_servers
        pop = mqtool.PopConsumer("pop", names, pop_invisible_time=10_000, poll_timeout_millis=500)
        self._add("pop", pop)
        assigned = mqtool.LitePullConsumer("assigned", names, consume_from_where=ConsumeFrom.FIRST_OFFSET)
        self._add("assigned", assigned, subscribes=False)
        self._assigned.append(assigned)
        pull = mqtool.PullConsumer("pull", names, consumer_pull_timeout_millis=SEND_MS)
        self._add("pull", pull, subscribes=False)
        hostile: dict[str, Any] = {"strategy": self._strategy, "hooks": [_Raising(self._strikes)]}
        self._add("hooked", mqtool.PushConsumer("hooked", self._function("hooked"), names, **hostile, **_CONSUMING))
        self.consumed |= {name: set() for name in ("aio_push", "aio_pop", "aio_lite", "broadcast")}
        batching = mqtool.Producer("batching", names, send_msg_timeout=SEND_MS, auto_batch=True, hooks=hostile["hooks"])
        bank = mqtool.TransactionProducer("bank", _Bank(self._strikes), names, send_msg_timeout=SEND_MS, topics=[TOPIC])
        self._producers += [batching, bank]
        works: tuple[tuple[Callable[..., None], tuple[Any, ...]], ...] = (
            (self._poll_on, ("assigned", assigned)),
            (self._pop_on, (pop,)),
            (self._pull_on, (pull,)),
            (self._run_loop, ()),
            (self._send_async_on, (batching,)),
            (self._transact_on, (bank,)),
            (self._broadcast_on, ()),
        )
        self._threads += [threading.Thread(target=work, args=given, name=work.__name__) for work, given in works]

    def _add(self, name: str, consumer: Any, *, subscribes: bool = True) -> None:
        self.consumed[name] = set()
        if subscribes:
            consumer.subscribe(TOPIC)
        self.consumers.append(consumer)

    def start(self) -> None:
        """Begin."""
        for client in (*self._producers, *self.consumers):
            client.start()
            if client in self._assigned:
                client.assign(client.fetch_message_queues(TOPIC))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Close all clients, and take note of how long that took."""
        self.is_over.set()
        for thread in self._threads:
            thread.join(SETTLE_S)
            if thread.is_alive():
                self.outcome.violations.append(f"{thread.name} hangs")
        for client in (*self.consumers, *self._producers):
            begun = time.monotonic()
            with contextlib.suppress(MqtoolError):
                client.close()
            self.outcome.longest_shutdown_s = max(self.outcome.longest_shutdown_s, time.monotonic() - begun)

    def _send_on(self, which: int) -> None:
        number = 0
        while not self.is_over.is_set():
            number += 1
            body = b"%d %d" % (which, number)
            begun = time.monotonic()
            try:
                if self.producer.send(ProducerMessage(TOPIC, body)).status is mqtool.SendStatus.SEND_OK:
                    self.acknowledged.add(body)
                    self.outcome.did["sent"] += 1
            except MqtoolError:
                self.outcome.did["not sent"] += 1
            self.outcome.longest_send_s = max(self.outcome.longest_send_s, time.monotonic() - begun)
            self.is_over.wait(0.02)

    def _send_async_on(self, producer: mqtool.Producer) -> None:
        number = 0
        while not self.is_over.is_set():
            begun: dict[bytes, Any] = {}
            for _ in range(20):
                number += 1
                body = b"async %d" % number
                selector = self._selector if self._strikes(0.2) else None
                try:
                    begun[body] = producer.send_async(ProducerMessage(TOPIC, body), selector=selector)
                except Exception:  # whatever a selector or hook has raised
                    self.outcome.did["not sent"] += 1
            for body, future in begun.items():
                begun_at = time.monotonic()
                with contextlib.suppress(Exception):
                    if future.result(SETTLE_S).status is mqtool.SendStatus.SEND_OK:
                        self.acknowledged.add(body)
                        self.outcome.did["sent in batches"] += 1
                self.outcome.longest_send_s = max(self.outcome.longest_send_s, time.monotonic() - begun_at)
            self.is_over.wait(0.2)

    def _transact_on(self, producer: mqtool.TransactionProducer) -> None:
        number = 0
        while not self.is_over.is_set():
            number += 1
            body = b"transaction %d" % number
            with contextlib.suppress(Exception):
                sent = producer.send_in_transaction(ProducerMessage(TOPIC, body))
                if sent.transaction_state is mqtool.TransactionState.COMMIT:
                    self.acknowledged.add(body)
                    self.outcome.did["transactions"] += 1
            self.is_over.wait(0.2)

    def _broadcast_on(self) -> None:
        """Have a consumer that gets everything begin again and again: what comes meanwhile must not be left out."""

        def listen(messages: Sequence[ConsumerMessage], _: ConsumeContext) -> Any:
            self.consumed["broadcast"] |= {one.body for one in messages}
            return self._chance.choice(_NONSENSE)

        while not self.is_over.is_set():
            made = mqtool.PushConsumer(
                "broadcast",
                listen,
                self._name_servers,
                message_model=mqtool.MessageModel.BROADCASTING,
                offsets_folder=self._folder / "offsets",
                **_CONSUMING,
            )
            made.subscribe(TOPIC)
            with contextlib.suppress(MqtoolError), made:
                self.is_over.wait(self._chance.uniform(0.5, 8.0))
                while self.is_calm.is_set() and not self.is_over.is_set():
                    self.is_over.wait(0.5)
                self.outcome.did["broadcasting consumer closed"] += 1
                begun = time.monotonic()
            self.outcome.longest_shutdown_s = max(self.outcome.longest_shutdown_s, time.monotonic() - begun)

    def _poll_on(self, name: str, lite: mqtool.LitePullConsumer) -> None:
        while not self.is_over.is_set():
            with contextlib.suppress(BlockError, MqtoolError), lite.batch(500) as messages:
                self._take(name, messages)

    def _pop_on(self, pop: mqtool.PopConsumer) -> None:
        while not self.is_over.is_set():
            with contextlib.suppress(BlockError, MqtoolError):
                if self._chance.random() < 0.5:
                    with pop.batch(500) as messages:
                        self._take("pop", messages)
                else:
                    for message in pop.pop(500):
                        self._take("pop", [message])
                        pop.ack(message)

    def _pull_on(self, pull: mqtool.PullConsumer) -> None:
        offsets: dict[mqtool.MessageQueue, int] = {}
        while not self.is_over.is_set():
            with contextlib.suppress(BlockError, MqtoolError):
                for queue in pull.fetch_message_queues(TOPIC):
                    pulled = pull.pull(queue, offsets.get(queue, 0))
                    self._take("pull", pulled.messages)
                    offsets[queue] = pulled.next_offset
                    pull.commit(queue, pulled.next_offset)
            self.is_over.wait(0.05)

    def _take(self, name: str, messages: Sequence[ConsumerMessage]) -> None:
        if self._chance.random() < 0.01 * len(messages) and not self.is_calm.is_set():
            raise BlockError
        self.consumed[name] |= {one.body for one in messages}

    # In a loop of the program's own

    def _run_loop(self) -> None:
        asyncio.run(self._live_in_loop())

    async def _live_in_loop(self) -> None:
        works = self._aio_lite, self._aio_pop, self._aio_send
        tasks = [asyncio.create_task(self._begin_again(work)) for work in works]
        listener = self._coroutine("aio_push", asks=False)
        push = mqtool.aio.PushConsumer("aio_push", listener, self._name_servers, **_CONSUMING)
        push.subscribe(TOPIC)
        async with push:
            while not self.is_over.is_set():
                await asyncio.sleep(0.1)
            await asyncio.gather(*tasks)
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            self.outcome.violations.append(f"{len(left)} tasks are left in the loop of the program: {left}")

    async def _begin_again(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have work with a client of its own begin again and again, now and then cancelled in the middle."""
        while not self.is_over.is_set():
            task = asyncio.create_task(work())
            await asyncio.wait([task], timeout=self._chance.uniform(0.5, 8.0))
            while self.is_calm.is_set() and not (task.done() or self.is_over.is_set()):
                await asyncio.wait([task], timeout=0.5)
            self.outcome.did["client of a loop ended"] += 1
            task.cancel()
            begun = time.monotonic()
            await asyncio.wait([task])
            self.outcome.longest_shutdown_s = max(self.outcome.longest_shutdown_s, time.monotonic() - begun)
            error = None if task.cancelled() else task.exception()
            if error and not isinstance(error, MqtoolError | BlockError):
                self.outcome.violations.append(f"{work.__name__} ended with {error!r}")

    async def _aio_lite(self) -> None:
        lite = mqtool.aio.LitePullConsumer(
            "aio_lite", self._name_servers, consume_from_where=ConsumeFrom.FIRST_OFFSET, auto_commit_interval_millis=200
        )
        lite.subscribe(TOPIC)
        async with lite:
            async for message in lite:
                self._take("aio_lite", [message])

    async def _aio_pop(self) -> None:
        pop = mqtool.aio.PopConsumer("aio_pop", self._name_servers, pop_invisible_time=10_000)
        pop.subscribe(TOPIC)
        async with pop:
            async for message in pop:
                self._take("aio_pop", [message])

    async def _aio_send(self) -> None:
        async with mqtool.aio.Producer("aio", self._name_servers, send_msg_timeout=SEND_MS, trace=True) as producer:
            while True:
                await asyncio.gather(*(producer.send(ProducerMessage(TOPIC, b"of a loop")) for _ in range(3)))
                await asyncio.sleep(0.05)

    # Listeners, and what else a program has called

    def _strikes(self, chance: float) -> bool:
        """Tell whether something goes wrong this time; it does not when all is to be calm."""
        return self._chance.random() < chance and not self.is_calm.is_set()

    def _strategy(
        self, queues: Sequence[mqtool.MessageQueue], members: Sequence[str], own: str
    ) -> list[mqtool.MessageQueue]:
        if self._strikes(0.3):
            self.outcome.did["strategy raised"] += 1
            raise self._chance.choice(_RAISED)()
        return averagely(queues, members, own)

    def _selector(self, queues: Sequence[mqtool.MessageQueue], _message: ProducerMessage, _arg: Any) -> Any:
        self.outcome.did["selector"] += 1
        if self._strikes(0.5):
            raise self._chance.choice(_RAISED)()
        return self._chance.choice((queues[0], 3, None))

    def _function(self, name: str) -> Callable[..., Any]:
        def listen(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> Any:
            if (bad := self._misbehave(messages, context)) is not None:
                return bad()
            self.consumed[name] |= {one.body for one in messages}
            return self._chance.choice((None, ConsumeStatus.SUCCESS, *_NONSENSE))

        return listen

    def _coroutine(self, name: str, *, asks: bool = True) -> Callable[..., Any]:
        async def listen(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> Any:
            if asks and self._chance.random() < 0.02:
                self.outcome.did["blocking call in the loop"] += 1
                with contextlib.suppress(UsageError):
                    self.producer.queues(TOPIC)
                    self.outcome.violations.append("a blocking call in the loop of the clients went through")
            if (bad := self._misbehave(messages, context, may_block=False)) is not None:
                return bad()
            self.consumed[name] |= {one.body for one in messages}
            return self._chance.choice((None, ConsumeStatus.SUCCESS, *_NONSENSE))

        return listen

    def _misbehave(
        self, messages: Sequence[ConsumerMessage], context: ConsumeContext, *, may_block: bool = True
    ) -> Callable[[], Any] | None:
        """Return what a listener does with messages that come for the first time, now and then."""
        context.delay_level, context.suspend_ms = 1, 50
        how = self._chance.random()
        if how > 0.15 or messages[0].reconsume_times:
            return None
        if how < 0.005:
            return self._fork
        if how < 0.03:
            return self._exit
        if how < 0.05 and may_block:
            return self._block
        if how < 0.07:
            self.outcome.did["nonsense in a context"] += 1
            name = self._chance.choice(("delay_level", "ack_index", "suspend_ms"))
            setattr(context, name, self._chance.choice(("all", None, 1 << 40, object())))
            return lambda: None  # which does not count as consumed
        return self._raise

    def _raise(self) -> None:
        self.outcome.did["raised"] += 1
        raise self._chance.choice(_RAISED)()

    def _exit(self) -> None:
        self.outcome.did["exited"] += 1
        sys.exit(3)

    def _block(self) -> ConsumeStatus:
        self.outcome.did["blocked"] += 1
        time.sleep(self._chance.uniform(0.1, 2.0))
        return ConsumeStatus.LATER

    def _fork(self) -> ConsumeStatus:
        """Fork; the child must be told, by the clients of its parent, that they are not its own."""
        self.outcome.did["forked"] += 1
        child = os.fork()
        if not child:
            try:
                self.producer.send(ProducerMessage(TOPIC, b"of a child"))
            except UsageError:
                os._exit(0)
            except BaseException:
                os._exit(2)
            os._exit(1)
        end = time.monotonic() + _CHILD_S
        while time.monotonic() < end:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                if status:
                    self.outcome.violations.append(f"a forked child ended with {status}")
                return ConsumeStatus.LATER
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.outcome.violations.append(f"a forked child hung for {_CHILD_S} s")
        return ConsumeStatus.LATER


class _Raising(mqtool.Hook):
    """Raises now and then, when it is told of messages before and after."""

    def __init__(self, strikes: Callable[[float], bool]) -> None:
        self._strikes = strikes

    def before_send(self, messages: Sequence[ProducerMessage], group: str) -> None:  # noqa: ARG002
        """Raise."""
        self._told()

    def after_send(self, *_: Any) -> None:
        """Raise."""
        self._told()

    def before_consume(self, messages: Sequence[ConsumerMessage], group: str) -> None:  # noqa: ARG002
        """Raise."""
        self._told()

    def after_consume(self, *_: Any) -> None:
        """Raise."""
        self._told()

    def _told(self) -> None:
        if self._strikes(0.05):
            raise random.choice(_RAISED)()


class _Bank:
    """Ends transactions as they should; now and then it raises, and is asked again."""

    def __init__(self, strikes: Callable[[float], bool]) -> None:
        self._strikes = strikes

    def execute_local_transaction(self, _message: ProducerMessage, _arg: Any) -> mqtool.TransactionState:
        """Commit."""
        return self._state()

    def check_local_transaction(self, _message: ConsumerMessage) -> mqtool.TransactionState:
        """Commit what was left open."""
        return self._state()

    def _state(self) -> mqtool.TransactionState:
        if self._strikes(0.1):
            raise random.choice(_RAISED)()
        return mqtool.TransactionState.COMMIT


_CONSUMING: dict[str, Any] = {"consume_from_where": ConsumeFrom.FIRST_OFFSET, "consume_thread_max": 8}
_OFTEN: dict[str, Any] = {"heartbeat_broker_interval_ms": 500, "poll_name_server_interval_ms": 1000}
_SOON = f"messageDelayLevel={' '.join(['1s'] * 18)}"


class BlockError(Exception):
    """What the program raises in a block."""


@contextlib.contextmanager
def mute_server() -> Iterator[str]:
    """Give the address of a server that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def disturb(
    served: ServedInProcess, program: Program, seconds: float, wanted: Collection[str], chance: random.Random
) -> None:
    """Kill and stop the broker for a time."""
    begun = time.monotonic()
    while (spent := time.monotonic() - begun) < seconds or (
        spent < _PATIENCE_S and not all(program.outcome.did[what] for what in wanted)
    ):
        time.sleep(chance.uniform(0.5, 3.0))
        if chance.random() < 0.5:
            program.outcome.did["broker killed"] += 1
            served.end()
            time.sleep(chance.uniform(0.0, 2.0))
            served.start()
        else:
            program.outcome.did["broker stopped"] += 1
            served.signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.5, 6.0))
            served.signal(signal.SIGCONT)


def run(
    folder: Path, seconds: float, seed: int, wanted: Collection[str] = (), *, is_short: bool = False
) -> HostileOutcome:
    """Run a hostile program for a time, on a slow machine until it has done what is wanted; return what came of it.

    In a short run nobody pops, pulls by offset, or lives in a loop: what is popped and dropped takes long to come
    again. A broker that was killed is told of consumers soon, and what they have sent back comes again after a second.
    """
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    served = ServedInProcess(folder, [_SOON] if is_short else [])
    served.start()
    try:
        with mute_server() as mute:
            with mqtool.AdminClient(served.name_server) as admin:
                admin.create_topic(TOPIC, queues=4)
                for group in (
                    "pop",
                    "aio_pop",
                ):  # which drop what they have popped so often that it would become dead letters
                    admin.create_group(group, retries=10_000)
            before = _left()
            program = Program(f"{mute};{served.name_server}", folder, seed, is_short=is_short)
            program.start()
            outcome = program.outcome
            disturb(served, program, seconds, wanted, random.Random(seed))
            outcome.violations += _settled(program)
            program.stop()
            outcome.violations += _leaked(before)
    finally:
        served.end()
        served._log.close()
    if outcome.longest_send_s > SEND_MS / 1000 + SLACK_S:
        outcome.violations.append(f"a send took {outcome.longest_send_s:.1f} s, with a time-out of {SEND_MS} ms")
    if outcome.longest_shutdown_s > MAX_SHUTDOWN_S:
        outcome.violations.append(f"a shutdown took {outcome.longest_shutdown_s:.1f} s")
    return outcome


def _settled(program: Program) -> list[str]:
    """Wait until all is consumed that was acknowledged by now, for as long as some of it comes."""
    program.is_calm.set()
    wanted = program.acknowledged.copy()
    before, end = None, time.monotonic() + SETTLE_S
    while time.monotonic() < end:
        left = sum(len(wanted - got) for got in program.consumed.values())
        if not left:
            return []
        if before is None or left < before:  # on a busy machine much is left, and goes slowly
            before, end = left, time.monotonic() + SETTLE_S
        time.sleep(0.1)
    missing = {name: sorted(wanted - got) for name, got in program.consumed.items() if wanted - got}
    return [f"{name} has not consumed {len(some)}, the first of them {some[0]!r}" for name, some in missing.items()]


def _left() -> dict[str, int]:
    """Return what there is of threads, tasks and descriptors."""
    tasks = background.call(lambda: len(asyncio.all_tasks()))
    threads = [one for one in threading.enumerate() if not one.name.startswith("asyncio_")]  # those the loop keeps
    return {"threads": len(threads), "tasks": tasks, "descriptors": len([*Path("/proc/self/fd").iterdir()])}


def _leaked(before: dict[str, int]) -> list[str]:
    end = time.monotonic() + 20
    after = _left()
    while any(after[what] > count for what, count in before.items()) and time.monotonic() < end:
        time.sleep(0.2)
        after = _left()
    return [f"{count - before[what]} {what} are left" for what, count in after.items() if count > before[what]]


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mqtool-hostile-") as name:
        outcome = run(Path(name), given.minutes * 60, given.seed)
    print(", ".join(f"{count:,} {what}" for what, count in sorted(outcome.did.items())))
    print(f"slowest send {outcome.longest_send_s:.2f} s, slowest shutdown {outcome.longest_shutdown_s:.2f} s")
    for violation in outcome.violations:
        print(f"FAILED: {violation}")
    sys.exit(1 if outcome.violations else 0)


if __name__ == "__main__":
    main()
