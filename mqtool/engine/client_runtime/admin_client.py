"""Administration of brokers, for asyncio: changes of topics, groups and offsets; queries are in ``admin_queries``."""

from collections.abc import Callable, Collection, Sequence

from mqtool.engine.client import calls
from mqtool.engine.client_runtime import admin_changes, offset_moves
from mqtool.engine.client_runtime.admin_changes import Changes, OffsetTarget
from mqtool.engine.client_runtime.admin_queries import AdminQueries
from mqtool.engine.client_runtime.offset_moves import KeptOffset, Position
from mqtool.errors import UsageError
from mqtool.formats.topics import RETRY_PREFIX

_PERMS = {"rw": 6, "r": 4, "w": 2}


class AdminClient(AdminQueries):
    """Queries and changes brokers, from ``async with`` to the end of its block, or from ``start`` to ``shutdown``.

    Methods that change something first make a plan, and return it; with ``dry_run`` they do nothing else, and
    ``apply`` can carry out the plan later.
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
        """Create a topic, or change an existing one.

        Args:
            topic: its name.
            queues: the number of queues; 8 for a new topic.
            perm: ``rw``, ``r`` or ``w``; ``rw`` for a new topic.
            broker_name: only this broker, instead of all.
            dry_run: only plan it.

        Raises:
            UsageError: the name or the permission is invalid.
        """
        if perm is not None and perm not in _PERMS:
            raise UsageError(f"perm must be one of {', '.join(_PERMS)}, not {perm}")
        brokers = await self.masters(broker_name)
        bits = None if perm is None else _PERMS[perm]
        return await self._done(await admin_changes.plan_topic(self, brokers, topic, queues, bits), dry_run)

    async def delete_topic(self, topic: str, *, broker_name: str | None = None, dry_run: bool = False) -> Changes:
        """Delete a topic, its queues and the consumer offsets in it; only on ``broker_name``, if given.

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
        """Create a group, or change an existing one.

        Args:
            group: its name.
            retries: the maximum number of retries per message.
            consume: whether the group may consume.
            broadcast: whether it may consume by broadcasting.
            broker_name: only this broker, instead of all.
            dry_run: only plan it.
        """
        brokers = await self.masters(broker_name)
        changes = await admin_changes.plan_group(self, brokers, group, retries, consume, broadcast)
        return await self._done(changes, dry_run)

    async def delete_group(self, group: str, *, broker_name: str | None = None, dry_run: bool = False) -> Changes:
        """Delete a group, its consumer offsets, and its retry and dead-letter topics.

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
        """Set the consumer offset of a group in one queue; consumers that are online continue there.

        Raises:
            NotFoundError: there is no such group, topic or queue.
            UsageError: the offset is outside the queue, or a broker of 4.x would have to move consumers that are
                online.
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
        """Set the consumer offsets of a group in all queues of topics; consumers that are online continue there.

        Args:
            group: its name.
            topics: their names.
            timestamp: the first message stored at this time (ms) or later; 0 is the first message, -1 the end.
            broker_name: only this broker, instead of all.
            dry_run: only plan it.

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
        """Copy the consumer offsets of a group to another, in all its topics except its retries, or in the given ones.

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
        """Rewind (negative) or forward a group, within the limits of its queues.

        Args:
            group: its name.
            topics: only these; by default all topics of the group except its retries.
            by: number of messages in each queue, or None to use ``by_ms``.
            by_ms: duration, counted from the next message, or from now in a queue that is read to its end.
            now: ms since 1970.
            broker_name: only this broker, instead of all.
            dry_run: only plan it.

        Raises:
            NotFoundError: there is no such group, or it has committed nothing there.
            UsageError: consumers are online, and a broker of 4.x would have to move them.
        """
        if (by is None) == (by_ms is None):
            raise UsageError("give either by or by_ms")
        positions = await offset_moves.shifted(self, group, _among(topics), by, by_ms, now)
        return await self._moved(positions, broker_name, dry_run)

    async def export_offsets(self, now: int, groups: Collection[str] | None = None) -> list[KeptOffset]:
        """Return the committed offsets of groups, as ``import_offsets`` takes them; ``now`` is in ms since 1970."""
        is_wanted = _among(groups)
        return await offset_moves.kept(
            self, [offset for offset in await self.offsets() if is_wanted(offset.group)], now
        )

    async def import_offsets(
        self, offsets: Sequence[KeptOffset], now: int, *, broker_name: str | None = None, dry_run: bool = False
    ) -> Changes:
        """Set consumer offsets from an export: exactly if the queues are the same ones, otherwise by time.

        Retry topics that do not exist here are left out: the messages to retry do not exist here either.

        Raises:
            NotFoundError: there is no such group or topic here.
        """
        known = {topic.settings.topic for topic in await self.topics()}
        absent = {offset.topic for offset in offsets if offset.topic.startswith(RETRY_PREFIX)} - known
        restorable = [offset for offset in offsets if offset.topic not in absent]
        changes = await self._moved(await offset_moves.translated(self, restorable, now), broker_name, dry_run)
        changes.remarks += [f"{topic} does not exist here: its offsets are left out" for topic in sorted(absent)]
        return changes

    async def _moved(self, positions: Collection[Position], broker_name: str | None, dry_run: bool) -> Changes:
        brokers = await self.masters(broker_name)
        return await self._done(await offset_moves.plan_positions(self, brokers, positions), dry_run)

    # Changing

    async def apply(self, changes: Changes) -> None:
        """Carry out a plan, one request after the other.

        Raises:
            MqtoolError: a broker refuses or does not answer; earlier requests of the plan have been carried out.
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
    if broker_name is not None:  # others may still have the topic
        changes.forgotten_topics.clear()
    return changes
