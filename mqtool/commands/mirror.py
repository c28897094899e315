"""``mqtool mirror``."""

import fnmatch
import time
from typing import TYPE_CHECKING

import click

from mqtool.commands._brokers import Brokers
from mqtool.commands._completion import GROUP_NAME, TOPIC_NAME
from mqtool.commands._options import SPAN, WHERE, matching
from mqtool.commands._output import Output, counted, status_line
from mqtool.commands._repair import Confirmation, confirmation_options
from mqtool.commands._wire import pair_options
from mqtool.errors import Status, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.mirror import Mirror, NotMirrored
    from mqtool.engine.client_runtime.wire import Wire

_PLAN_COLUMNS = ("topic", "lag", "source_queues", "target_queues", "what")
_COLUMNS = ("topic", "copied", "rate", "lag", "skipped", "lost")
_SHOW_S = 0.25
_TELL_S = 5.0


@click.command(short_help="Copy topics to another cluster, continuously.")
@click.option(
    "--topic", "topics", multiple=True, required=True, type=TOPIC_NAME, metavar="GLOB", help="Topics; repeatable."
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    type=GROUP_NAME,
    metavar="GLOB",
    help="Consumer groups whose offsets are copied, too; repeatable. Default: all.",
)
@click.option(
    "--begin",
    type=WHERE,
    default="first",
    metavar="first|last|TIME",
    show_default=True,
    help="Where to start in queues that have not been copied yet.",
)
@click.option(
    "--idle", type=SPAN, metavar="DURATION", help="Stop when there was nothing left to copy for this long: 5s."
)
@click.option("--from-name", metavar="NAME", help="Name of the source cluster in copies. Default: its own name.")
@click.option("--to-name", metavar="NAME", help="Name of the target cluster in copies. Default: its own name.")
@pair_options
@confirmation_options
def command(
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    begin: "str | int",
    idle: int | None,
    from_name: str | None,
    to_name: str | None,
    source: Brokers,
    target: Brokers,
    confirmation: Confirmation,
    output: Output,
) -> int:
    """Copy the messages of topics to another cluster, each once, until Ctrl-C or --idle.

    \b
      mqtool mirror --from ns-a:9876 --to ns-b:9876 --topic 'Order*'
      mqtool mirror --from-profile a --to-profile b --topic '*' --yes

    A new run continues where the last one stopped, even if that was killed. Consumer offsets are copied, too, for
    groups that have no consumer online at the target. Topics that match later are copied as well, and created there
    if missing. A message never returns to a cluster that it was copied from.
    """  # noqa: D301
    mirroring = _Mirroring(topics, groups, begin, idle, confirmation, output)

    async def connected(_: "Wire") -> int:
        async with source.admin_client() as admin, target.admin_client() as target_admin:
            return await mirroring.run(admin, target_admin, from_name, to_name)

    try:
        return source.run(connected)
    except BaseException:
        mirroring.sum_up()
        raise


class _Mirroring:
    """One run of the command."""

    def __init__(
        self,
        topics: tuple[str, ...],
        groups: tuple[str, ...],
        begin: "str | int",
        idle: int | None,
        confirmation: Confirmation,
        output: Output,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._begin = begin
        self._idle = idle
        self._confirmation = confirmation
        self._output = output
        self._mirror: Mirror | None = None
        self._begun = self._shown = self._told = time.monotonic()
        self._counts: dict[str, int] = {}
        self._show: Callable[[str], None] = lambda _: None
        self._shown_count = 0

    async def run(
        self, source: "AdminClient", target: "AdminClient", from_name: str | None, to_name: str | None
    ) -> int:
        """Plan, ask, copy; return the status."""
        from mqtool.engine.client_runtime.mirror import Mirror

        names = await _names(source, target, from_name, to_name)
        mirror = Mirror(
            source,
            target,
            *names,
            lambda topic: _is_one(topic, self._topics),
            begin=self._begin,
            takes_group=lambda group: not self._groups or _is_one(group, self._groups),
            tell=self._output.remark,
            refused=self._refused,
        )
        await self._show_plan(mirror, source, *names)
        self._output.flush()
        if not self._confirmation.is_answered_yes("Copy them?"):
            return Status.DAMAGE
        self._output.new_table(_COLUMNS)
        self._mirror = mirror
        self._begun = self._shown = self._told = time.monotonic()
        with status_line() as self._show:
            await mirror.run(None if self._idle is None else self._idle / 1000, self._tick)
        return self.sum_up()

    async def _show_plan(self, mirror: "Mirror", source: "AdminClient", from_name: str, to_name: str) -> None:
        matching(self._topics, await mirror.known_topics(), "topic")
        if self._groups:
            matching(self._groups, await source.group_names(), "group")
        self._output.columns, self._output.always = _PLAN_COLUMNS, ("what",)
        begin = self._begin if isinstance(self._begin, str) else "time"
        for plan in await mirror.plan():
            start_text = "goes on" if plan.is_begun else f"from the {begin}"
            self._output.row(
                {
                    "kind": "plan",
                    "topic": plan.topic,
                    "lag": plan.lag,
                    "source_queues": plan.source_queue_count,
                    "target_queues": plan.target_queue_count or plan.source_queue_count,
                    "what": start_text if plan.target_queue_count else f"new, {start_text}",
                }
            )
        self._output.remark(f"from {from_name} to {to_name}, as the group {mirror.group}")

    # While it goes on

    def _tick(self) -> None:
        now = time.monotonic()
        mirror, output = self._mirror, self._output
        assert mirror
        if now - self._shown >= _SHOW_S:
            copied = sum(topic_progress.copied for topic_progress in mirror.progress.values())
            lag = sum(topic_progress.lag for topic_progress in mirror.progress.values())
            rate = (copied - self._shown_count) / (now - self._shown)
            count = len(mirror.progress)
            self._show(f"{counted(count, 'topic')} · {copied:,} copied · {rate:,.0f}/s · lag {lag:,}")
            self._shown, self._shown_count = now, copied
        if now - self._told >= _TELL_S and not output.is_table:
            self._write_rows(now - self._told)
            self._told = now

    def _write_rows(self, seconds: float) -> None:
        """Write a row for each topic, with the rate of a time."""
        assert self._mirror
        for topic, topic_progress in sorted(self._mirror.progress.items()):
            rate = (topic_progress.copied - self._counts.get(topic, 0)) / max(seconds, 1e-3)
            self._counts[topic] = topic_progress.copied
            self._output.row(
                {
                    "kind": "progress",
                    "topic": topic,
                    "copied": topic_progress.copied,
                    "rate": round(rate, 1),
                    "lag": topic_progress.lag,
                    "skipped": topic_progress.skipped,
                    "lost": topic_progress.lost,
                    "event_timestamp": int(time.time() * 1000),
                }
            )
        self._output.flush()

    def _refused(self, refusal: "NotMirrored") -> None:
        queue = refusal.queue
        row = {
            "kind": "lost",
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "queue_offset": refusal.queue_offset,
            "messages": refusal.messages,
            "reason": refusal.reason,
            "broker_name": queue.broker_name,
        }
        if self._output.is_table:
            self._output.remark(
                f"not copied: {refusal.messages:,} of {queue.topic}, queue {queue.queue_id} of {queue.broker_name} at "
                f"{refusal.queue_offset:,}: {refusal.reason}"
            )
        else:
            self._output.row(row)

    def sum_up(self) -> int:
        """Write what was done, and return the status."""
        if self._mirror is None:
            return Status.OK
        seconds = time.monotonic() - (self._begun if self._output.is_table else self._told)
        self._write_rows(seconds)
        every = self._mirror.progress.values()
        lost = sum(topic_progress.lost for topic_progress in every)
        skipped = sum(topic_progress.skipped for topic_progress in every)
        parts = [f"{counted(sum(topic_progress.copied for topic_progress in every), 'message')} copied"]
        parts += [f"{skipped:,} left out because they had been there before"] * bool(skipped)
        parts += [f"{lost:,} could not be copied"] * bool(lost)
        self._output.remark(", ".join(parts))
        self._mirror = None
        return Status.GIVEN_UP if lost else Status.OK


def _is_one(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


async def _names(
    source: "AdminClient", target: "AdminClient", from_name: str | None, to_name: str | None
) -> tuple[str, str]:
    """Return what copies call the clusters.

    Raises:
        UsageError: both have the same name, or are the same cluster, or one has several.
    """
    from mqtool.engine.client.mirroring import check_cluster_name

    names = []
    addresses: set[str] = set()
    for admin, cluster_name, option in ((source, from_name, "--from-name"), (target, to_name, "--to-name")):
        masters = await admin.masters()
        own = {master.address for master in masters}
        if shared := sorted(addresses & own):  # where each copy would be copied again, under any two names
            raise UsageError(f"--from and --to both lead to the broker {shared[0]}: a cluster cannot be its own mirror")
        addresses = own
        clusters = sorted({master.cluster for master in masters})
        if cluster_name is None and len(clusters) > 1:
            raise UsageError(f"there are several clusters, {', '.join(clusters)}: give one name for all with {option}")
        names.append(cluster_name or clusters[0])
        check_cluster_name(names[-1])
    if names[0] == names[1]:
        raise UsageError(
            f"both clusters are named {names[0]}: give them different names, always the same ones, with "
            "--from-name and --to-name"
        )
    return names[0], names[1]
