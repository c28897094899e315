"""``mqtool bench``."""

import asyncio
import contextlib
import math
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._brokers import Brokers
from mqtool.commands._completion import TOPIC_NAME
from mqtool.commands._options import OFFSET, limit_option, output_option
from mqtool.commands._output import Output
from mqtool.commands._streams import outlast_readers
from mqtool.commands._wire import wire_options
from mqtool.errors import MqtoolError, Status, UnavailableError, UsageError

if TYPE_CHECKING:
    from mqtool.engine.client.measuring import Bar, Flow, LoadTally
    from mqtool.engine.client_runtime.load import Load, LoadOptions
    from mqtool.engine.client_runtime.wire import Wire

_COLUMNS = ("what", "messages", "rate", "p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "max_ms", "mib_rate")
_COMPARED = ("figure", "first", "second", "ratio", "least", "most")
_PAIRS = 5  # of rounds, when two targets are compared; one more before them warms both up
_LOOK_S = 0.25
_KNOWN_S = 10.0
_BUSY = 0.9
_BARS = "▏▎▍▌▋▊▉█"


@click.command(short_help="Load-test brokers and report throughput and latency.")
@click.option("--topic", type=TOPIC_NAME, metavar="NAME", help="The topic. Default: a new one, deleted afterwards.")
@click.option(
    "--size", type=OFFSET, default="1KiB", show_default=True, metavar="SIZE", help="Size of a message body in bytes."
)
@click.option(
    "--in-flight", type=click.IntRange(1), default=64, show_default=True, metavar="N", help="Concurrent sends."
)
@click.option(
    "--consumers",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of consumers; 0: none.",
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="Send at most this many messages per second."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=10,
    show_default=True,
    metavar="N",
    help="How long to run, for each target.",
)
@limit_option
@click.option(
    "--against", metavar="HOST:PORT", help="Name servers of a second target, compared in short alternating turns."
)
@wire_options
@output_option
def command(
    topic: str | None,
    size: int,
    in_flight: int,
    consumers: int,
    rate: float | None,
    seconds: float,
    limit: int | None,
    against: str | None,
    brokers: Brokers,
    output: Output,
) -> int:
    """Load-test brokers: send and consume messages at full speed, or at a rate, and report throughput and latency.

    \b
      mqtool bench -n localhost:9876
      mqtool bench -n localhost:9876 --size 4KiB --rate 500 --seconds 60
      mqtool bench -n localhost:9876 --against otherhost:9876

    `send` is measured from the call to the broker's answer, `deliver` from the call to the consumer. With --rate
    both start when a message is due, even if it has to wait for room. Ctrl-C ends the test early and shows what
    was measured.
    """  # noqa: D301
    from mqtool.engine.client_runtime.load import LEAST_SIZE, LoadOptions

    outlast_readers()
    if size < LEAST_SIZE:
        raise UsageError(f"--size {size}: a body holds the time it was sent, so it needs at least {LEAST_SIZE} bytes")
    if against is not None and limit is not None:
        raise UsageError("two targets are compared by time: leave out --limit")
    options = LoadOptions(size=size, in_flight=in_flight, consumers=consumers, rate=rate)
    targets = [_Target(brokers, topic)]
    if against is not None:
        targets.append(_Target(brokers.elsewhere("--against", against), topic))
    report = _Report(output, targets, options)

    async def bench(_: "Wire") -> None:
        async with contextlib.AsyncExitStack() as stack:
            loads = [await stack.enter_async_context(_load(target, options, output)) for target in targets]
            with _shown(report) as live:
                await _run(targets, loads, seconds, limit, live)

    try:
        brokers.run(bench)
    except KeyboardInterrupt:
        report.write()
        raise
    return report.write()


@dataclass
class _Target:
    """Brokers, the topic that the load goes to, None where it must be made, and what each round came to."""

    brokers: Brokers
    topic: str | None
    rounds: "list[LoadTally]" = field(default_factory=list)

    @property
    def name(self) -> str:
        return ";".join(self.brokers.name_servers)


# The load


async def _run(
    targets: Sequence[_Target],
    loads: "Sequence[Load]",
    seconds: float,
    limit: int | None,
    live: "Callable[[_Target, LoadTally], None]",
) -> None:
    from mqtool.engine.client.measuring import LoadTally

    async def one_round(target: _Target, load: "Load", tally: "LoadTally", seconds: float) -> None:
        running = asyncio.create_task(load.run(tally, seconds, limit))
        try:
            while not running.done():
                await asyncio.wait([running], timeout=_LOOK_S)
                live(target, tally)
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    if len(targets) > 1:
        seconds /= _PAIRS
        for target, load in zip(targets, loads, strict=True):
            await one_round(target, load, LoadTally(), seconds)
    for _ in range(_PAIRS if len(targets) > 1 else 1):
        for target, load in zip(targets, loads, strict=True):
            target.rounds.append(LoadTally())
            await one_round(target, load, target.rounds[-1], seconds)


@contextlib.asynccontextmanager
async def _load(target: _Target, options: "LoadOptions", output: Output) -> "AsyncIterator[Load]":
    from mqtool.engine.client_runtime.load import Load

    async with contextlib.AsyncExitStack() as stack:
        wire = await stack.enter_async_context(target.brokers.wire())
        topic, brokers = target.topic, target.brokers
        if topic is None:
            topic = await stack.enter_async_context(_topic_of_our_own(wire, brokers, output))
        yield await stack.enter_async_context(Load(brokers.name_servers, topic, options, brokers.client_options()))


@contextlib.asynccontextmanager
async def _topic_of_our_own(wire: "Wire", brokers: Brokers, output: Output) -> AsyncIterator[str]:
    """Make a topic on all brokers, and delete it afterwards."""
    topic = f"mqtool-bench-{os.getpid()}-{time.time_ns() // 1_000_000}"
    async with brokers.admin_client() as admin:
        count = len(await admin.masters())
        try:
            await admin.create_topic(topic)
            await _until_known(wire, topic, count)
            yield topic
        finally:
            try:
                await admin.delete_topic(topic)
            except MqtoolError as error:
                output.remark(f"the topic {topic} was not deleted: {error}")


async def _until_known(wire: "Wire", topic: str, broker_count: int) -> None:
    from mqtool.engine.client import calls

    deadline = time.monotonic() + _KNOWN_S
    while time.monotonic() < deadline:
        route = await wire.request_name_server(calls.route(topic))
        if route and len(route.queues) == broker_count:
            return
        await asyncio.sleep(_LOOK_S / 10)
    raise UnavailableError(f"the name servers did not learn of the new topic {topic} within {_KNOWN_S:.0f} s")


# What is shown in the meantime


@contextlib.contextmanager
def _shown(report: "_Report") -> "Iterator[Callable[[_Target, LoadTally], None]]":
    """Yield what shows how a round goes on: a line on a terminal that is gone at the end."""
    if not sys.stderr.isatty():
        yield lambda _target, _tally: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as display:
        pace = _Speed()

        def show(target: _Target, tally: "LoadTally") -> None:
            display.update(Text(report.line(target, tally, pace), no_wrap=True, overflow="ellipsis"), refresh=True)

        yield show


class _Speed:
    """How fast a round goes now."""

    def __init__(self) -> None:
        self._tally: LoadTally | None = None
        self._then, self._counts, self._rates = 0.0, (0, 0), (0.0, 0.0)

    def rates(self, tally: "LoadTally") -> tuple[float, float]:
        """Return messages a second, sent and consumed, since the last call."""
        now, counts = time.monotonic(), (tally.sent.times.count, tally.consumed.times.count)
        seconds = now - self._then
        if tally is not self._tally:
            self._tally, self._rates = tally, (tally.sent.rate, tally.consumed.rate)
        elif seconds > _LOOK_S / 2:  # the last look at a round comes at any time
            self._rates = (counts[0] - self._counts[0]) / seconds, (counts[1] - self._counts[1]) / seconds
        else:
            return self._rates
        self._then, self._counts = now, counts
        return self._rates


# What came of it


class _Report:
    """What is told of the rounds of one target, or of two."""

    def __init__(self, output: Output, targets: Sequence[_Target], options: "LoadOptions") -> None:
        self._output = output
        self._targets = targets
        self._options = options
        self._start = _processor_and_time()

    def line(self, target: _Target, tally: "LoadTally", speed: _Speed) -> str:
        """Return what is shown while a round goes on."""
        sent, consumed = speed.rates(tally)
        parts = [f"sent {sent:,.0f}/s, {sent * self._options.size / (1 << 20):,.1f} MiB/s"]
        if self._options.consumers:
            parts.append(f"consumed {consumed:,.0f}/s")
        parts.append(f"99% of sends in {_ms(tally.sent.times.percentile(99)):,} ms")
        errors = tally.errors.total()
        parts += [f"{errors:,} errors"] * bool(errors) + [target.name] * (len(self._targets) > 1)
        return " · ".join(parts)

    def write(self) -> int:
        """Write all rows, and return the status."""
        from mqtool.engine.client.measuring import total

        output = self._output
        output.columns = ("target", *_COLUMNS) if len(self._targets) > 1 else _COLUMNS
        tallies = [total(target.rounds) for target in self._targets]
        for target, tally in zip(self._targets, tallies, strict=True):
            for flow_name, flow in self._flows(tally):
                output.row(self._row(target, flow_name, flow, tally))
        if len(self._targets) > 1:
            self._compare()
        if output.is_table:
            self._draw(tallies)
        self._tell(tallies)
        return Status.OK if any(tally.sent.times.count for tally in tallies) else Status.UNAVAILABLE

    def _flows(self, tally: "LoadTally") -> "list[tuple[str, Flow]]":
        flows = [("send", tally.sent), ("deliver", tally.consumed)]
        return flows if self._options.consumers else flows[:1]

    def _row(self, target: _Target, flow_name: str, flow: "Flow", tally: "LoadTally") -> dict[str, Any]:
        times = flow.times
        return {
            "kind": "load",
            "what": flow_name,
            "messages": times.count,
            "rate": round(flow.rate, 1),
            "mib_rate": round(flow.rate * self._options.size / (1 << 20), 2),
            **{f"p{percent:g}_ms".replace(".", "_"): _ms(times.percentile(percent)) for percent in (50, 90, 99, 99.9)},
            "max_ms": _ms(times.max),
            "errors": dict(tally.errors),
            "missing": tally.missing if self._options.consumers else 0,
            "histogram": [[_ms(bar.low), _ms(bar.high), bar.count] for bar in times.bars()],
            "seconds": round(flow.seconds, 3),
            "target": target.name,
        }

    def _compare(self) -> None:
        from mqtool.engine.client.measuring import compare

        measures: dict[str, Callable[[Flow], float]] = {
            "rate": lambda flow: flow.rate,
            "p50_ms": lambda flow: flow.times.percentile(50) / 1000,
            "p99_ms": lambda flow: flow.times.percentile(99) / 1000,
        }
        self._output.new_table(_COMPARED)
        flows = [[dict(self._flows(tally)) for tally in target.rounds] for target in self._targets]
        for flow_name in [name for name, _ in self._flows(self._targets[0].rounds[0])] if flows[0] else []:
            for name, figure in measures.items():
                comparison = compare(*([figure(by_name[flow_name]) for by_name in rounds] for rounds in flows))
                if comparison:
                    fields = {name: float(f"{value:.4g}") for name, value in comparison._asdict().items()}
                    self._output.row({"kind": "comparison", "figure": f"{flow_name} {name}", **fields})

    def _draw(self, tallies: "Sequence[LoadTally]") -> None:
        for target, tally in zip(self._targets, tallies, strict=True):
            of = f", {target.name}" if len(self._targets) > 1 else ""
            for flow_name, flow in self._flows(tally):
                if flow.times.count:
                    self._output.text(f"\n{flow_name}{of}")
                    for line in drawn(flow.times.bars(), self._output.width):
                        self._output.text(line)

    def _tell(self, tallies: "Sequence[LoadTally]") -> None:
        output = self._output
        for target, tally in zip(self._targets, tallies, strict=True):
            for name, count in tally.errors.most_common():
                output.remark(f"{target.name}: {count:,} times {name}")
            if tally.missing and self._options.consumers:
                output.remark(f"{target.name}: {tally.missing:,} messages were stored and did not come back")
        if len(self._targets) > 1:
            output.remark(
                f"first is {self._targets[0].name}, second {self._targets[1].name}; ratios are second to first"
            )
        processor, seconds = (now - then for now, then in zip(_processor_and_time(), self._start, strict=True))
        if processor > _BUSY * seconds:
            output.remark("mqtool itself was busy all the time: the brokers may be faster than measured")


def _processor_and_time() -> tuple[float, float]:
    """Return how many seconds this process has worked, and the time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, time.monotonic()


def _ms(time: int) -> float:
    """Return µs as ms, to three digits."""
    return float(f"{time / 1000:.3g}")


def drawn(bars: "Sequence[Bar]", width: int) -> list[str]:
    """Return the lines of a histogram."""
    most = max(bar.count for bar in bars)
    count = sum(bar.count for bar in bars)
    heads = [f"{_ms(bar.low):,g} to {_ms(bar.high):,g} ms" for bar in bars]
    tails = [f"{bar.count:,}  {100 * bar.count / count:.1f} %" for bar in bars]
    left, right = max(map(len, heads)), max(map(len, tails))
    room = max(10, min(width, 100) - left - right - 6)
    return [
        f"  {head:>{left}}  {_bar(bar.count / most * room):<{room}}  {tail:>{right}}"
        for bar, head, tail in zip(bars, heads, tails, strict=True)
    ]


def _bar(length: float) -> str:
    """Return a bar so many characters long, to an eighth; nothing but 0 has none."""
    whole, eighths = divmod(math.ceil(length * len(_BARS)), len(_BARS))
    return _BARS[-1] * whole + (_BARS[eighths - 1] if eighths else "")
