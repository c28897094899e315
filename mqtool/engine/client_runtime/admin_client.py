"""What administrators have brokers do, for asyncio: topics, groups, offsets; what they ask is in ``admin_queries``."""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from mqtool.engine.client import calls
from mqtool.engine.client_runtime import admin_changes, offset_moves
from mqtool.engine.client_runtime.admin_changes import Changes, OffsetTarget
from mqtool.engine.client_runtime.admin_queries import AdminQueries
from mqtool.engine.client_runtime.offset_moves import KeptOffset, Position
from mqtool.errors import UsageError
from mqtool.formats.topics import RETRY_PREFIX

T = TypeVar("T")

_PERMS = {"rw": 6, "r": 4, "w": 2}


class AdminClient(AdminQueries):
    """Asks brokers, and changes them, from ``async with`` to the end of its block, or from ``start`` to ``shutdown``.

    What changes something first plans all of it, and returns the plan; with ``dry_run`` that is all, and ``apply``
    carries it out later.
    """

    # Topics

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        perm: str | None = None,
        broker_name: str | None = None,
        dry_run: bool = False,
    ) -> Changes:
        """Make a topic, or change the one that there is.

        Args:
            topic: its name.
            queues: how many; 8 for a new one.
            perm: ``rw``, ``r`` or ``w``; ``rw`` for a new one.
            broker_name: the one broker that is meant, in place of all.
            dry_run: plan it, and change nothing.

        Raises:
            UsageError: the name or the permission makes no sense.
        """
        if perm is not None and perm not in _PERMS:
            raise UsageError(f"perm is one of {', '.join(_PERMS)}, not {perm}")
        brokers = await self.masters(broker_name)
        bits = None if perm is None else _PERMS[perm]
        return await self._done(await admin_changes.plan_topic(self, brokers, topic, queues, bits), dry_run)

    async def delete_topic(self, topic: str, *, broker_name: str | None = None, dry_run: bool = False) -> Changes:
        """Delete a topic, its queues and what groups have read of it; with one broker named, there alone.

        Raises:
            NotFoundError: no broker has it.
        """
        changes = await admin_changes.plan_topic_deletion(self, await self.masters(broker_name), topic)
        return await self._done(_of_one(changes, broker_name), dry_run)

    # Groups

    async def create_group(
        self,
        group: str,
        *,
        retries: int | None = None,
        consume: bool | None = None,
        broadcast: bool | None = None,
        broker_name: str | None = None,
        dry_run: bool = False,
    ) -> Changes:
        """Make a group, or change the one that there is.

        Args:
            group: its name.
            retries: how often a message is tried again at most.
            consume: whether the group may consume.
            broadcast: whether it may consume by broadcasting.
            broker_name: the one broker that is meant, in place of all.
            dry_run: plan it, and change nothing.
        """
        brokers = await self.masters(broker_name)
        changes = await admin_changes.plan_group(self, brokers, group, retries, consume, broadcast)
        return await self._done(changes, dry_run)

    async def delete_group(self, group: str, *, broker_name: str | None = None, dry_run: bool = False) -> Changes:
        """Delete a group, what it has read, and its topics for retries and dead letters.

        Raises:
            NotFoundError: no broker has it.
        """
        changes = await admin_changes.plan_group_deletion(self, await self.masters(broker_name), group)
        return await self._done(_of_one(changes, broker_name), dry_run)

    # Offsets

    async def set_offset(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        broker_name: str | None = None,
        dry_run: bool = False,
    ) -> Changes:
        """Set what a group reads next of one queue; consumers that are online go on there.

        Raises:
            NotFoundError: there is no such group, topic or queue.
            UsageError: the offset lies outside the queue, or a broker of 4.x would have to move consumers online.
        """
        wanted = OffsetTarget(queue_id=queue_id, offset=offset)
        brokers = await self.masters(broker_name)
        return await self._done(await admin_changes.plan_offsets(self, brokers, group, [topic], wanted), dry_run)

    async def reset_offsets(
        self,
        group: str,
        topics: Sequence[str],
        timestamp: int,
        *,
        broker_name: str | None = None,
        dry_run: bool = False,
    ) -> Changes:
        """Set what a group reads next in all queues of topics; consumers that are online go on there.

        Args:
            group: its name.
            topics: their names.
            timestamp: the first message stored at this time (ms) or later; 0 is the first there is, -1 the end.
            broker_name: the one broker that is meant, in place of all.
            dry_run: plan it, and change nothing.

        Raises:
            NotFoundError: there is no such group or topic.
        """
        brokers = await self.masters(broker_name)
        changes = await admin_changes.plan_offsets(self, brokers, group, topics, OffsetTarget(timestamp))
        return await self._done(changes, dry_run)

    async def copy_offsets(
        self,
        from_group: str,
        to_group: str,
        topics: Collection[str] | None = None,
        *,
        broker_name: str | None = None,
        dry_run: bool = False,
    ) -> Changes:
        """Have a group go on where another is, in all topics of that but its retries, or in those named.

        Raises:
            NotFoundError: there is no such group, or the first has committed nothing there.
            UsageError: consumers of the second are online, and a broker of 4.x would have to move them.
        """
        positions = await offset_moves.copied(self, from_group, to_group, _among(topics))
        return await self._moved(positions, broker_name, dry_run)

    async def shift_offsets(
        self,
        group: str,
        topics: Collection[str] | None = None,
        *,
        by: int | None = None,
        by_ms: int | None = None,
        now: int,
        broker_name: str | None = None,
        dry_run: bool = False,
    ) -> Changes:
        """Move a group back (negative) or forward, within what its queues hold.

        Args:
            group: its name.
            topics: where; by default in all but its retries.
            by: so many messages of each queue, or None for ..
            by_ms: .. so much time, from what is next, or from now where a queue is read to its end.
            now: ms since 1970.
            broker_name: the one broker that is meant, in place of all.
            dry_run: plan it, and change nothing.

        Raises:
            NotFoundError: there is no such group, or it has committed nothing there.
            UsageError: consumers are online, and a broker of 4.x would have to move them.
        """
        if (by is None) == (by_ms is None):
            raise UsageError("give one of by and by_ms")
        positions = await offset_moves.shifted(self, group, _among(topics), by, by_ms, now)
        return await self._moved(positions, broker_name, dry_run)

    async def export_offsets(self, now: int, groups: Collection[str] | None = None) -> list[KeptOffset]:
        """Return what groups have committed, as ``import_offsets`` takes it; ``now`` is in ms since 1970."""
        is_wanted = _among(groups)
        return await offset_moves.kept(self, [one for one in await self.offsets() if is_wanted(one.group)], now)

    async def import_offsets(
        self, offsets: Sequence[KeptOffset], now: int, *, broker_name: str | None = None, dry_run: bool = False
    ) -> Changes:
        """Have groups go on where they were, exactly where the queues are the same ones, else by time.

        Topics of retries that are not here are left out: what was to come again is not here either.

        Raises:
            NotFoundError: there is no such group or topic here.
        """
        known = {one.settings.topic for one in await self.topics()}
        absent = {one.topic for one in offsets if one.topic.startswith(RETRY_PREFIX)} - known
        here = [one for one in offsets if one.topic not in absent]
        changes = await self._moved(await offset_moves.translated(self, here, now), broker_name, dry_run)
        changes.remarks += [f"{topic} is not here: its offsets are left out" for topic in sorted(absent)]
        return changes

    async def _moved(self, positions: Collection[Position], broker_name: str | None, dry_run: bool) -> Changes:
        brokers = await self.masters(broker_name)
        return await self._done(await offset_moves.plan_positions(self, brokers, positions), dry_run)

    # Changing

    async def apply(self, changes: Changes) -> None:
        """Carry out what was planned, one request after the other.

        Raises:
            MqtoolError: a broker refuses or does not answer; what came before in the plan is done.
        """
        for address, request in changes.requests:
            await self.request(address, request)
        for topic in changes.forgotten_topics:
            for address in self.name_servers:
                await self.request(address, calls.delete_route(topic))

    async def _done(self, changes: Changes, dry_run: bool) -> Changes:
        if not dry_run:
            await self.apply(changes)
        return changes


def _among(names: Collection[str] | None) -> Callable[[str], bool]:
    return lambda name: names is None or name in names


def _of_one(changes: Changes, broker_name: str | None) -> Changes:
    if broker_name is not None:  # others may have the topic still
        changes.forgotten_topics.clear()
    return changes
