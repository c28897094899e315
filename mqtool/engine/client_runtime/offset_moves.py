"""Offsets of groups copied, shifted, and taken to another cluster.

An offset means nothing in another cluster, a time does: the store time of the message that is next. So a group goes on
there at the first message stored at that time or later, in every queue of the topic: nothing is left out, some may come
again.

Cost: a request for each broker, and for what goes by time one or two for each queue.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from mqtool.engine.client import calls
from mqtool.engine.client_runtime.admin_changes import Changes
from mqtool.engine.client_runtime.admin_queries import AdminQueries, GroupOffset, MasterBroker, TopicQueue, check_known
from mqtool.engine.client_runtime.wire import together
from mqtool.errors import NotFoundError, UsageError
from mqtool.formats.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX

_AT_ONCE = 32
_NEW = "; create one with `mqtool group create {}`"


class Position(NamedTuple):
    """Where a group continues in a queue, and why."""

    group: str
    topic: str
    broker_name: str
    queue_id: int
    offset: int
    reason: str = ""


class KeptOffset(NamedTuple):
    """The progress of a group in a queue, with the store time (ms) of the next message; at the end, the time now."""

    group: str
    topic: str
    broker_name: str
    queue_id: int
    consumer_offset: int
    next_timestamp: int
    is_at_end: bool


async def plan_positions(
    admin: AdminQueries, brokers: Sequence[MasterBroker], positions: Collection[Position]
) -> Changes:
    """Plan to set consumer offsets; those that are already set are left out.

    Raises:
        UsageError: consumers of a group are online, and a broker can only have them reset all queues at once.
    """
    changes = Changes()
    for broker in brokers:
        wanted = [one for one in positions if one.broker_name == broker.broker_name]
        if not wanted:
            continue
        held = await admin.request(broker.address, calls.consumer_offsets())
        moved = [one for one in wanted if held.get((one.topic, one.group, one.queue_id)) != one.offset]
        settings = await admin.request(broker.address, calls.broker_settings())
        resets = settings.get("useServerSideResetOffset") == "true"
        for group in sorted({one.group for one in moved}):
            if not resets and await admin.request(broker.address, calls.members(group)) is not None:
                raise UsageError(
                    f"consumers of {group} are online, and {broker.broker_name} can only reset all queues at once: "
                    "stop them first"
                )
        ask = calls.reset_offset if resets else calls.set_offset
        for one in moved:
            before = held.get((one.topic, one.group, one.queue_id))
            changes.add(
                "create" if before is None else "replace",
                broker,
                ask(one.group, one.topic, one.queue_id, one.offset),
                one.reason,
                group=one.group,
                topic=one.topic,
                queue_id=one.queue_id,
                consumer_offset=before,
                new_offset=one.offset,
            )
    return changes


async def copied(
    admin: AdminQueries, from_group: str, to_group: str, is_wanted: Callable[[str], bool]
) -> list[Position]:
    """Return where a group continues that takes over from another, in the given topics.

    Retries of the other group are left to it.

    Raises:
        NotFoundError: there is no such group, or the first has committed nothing there.
    """
    names = await admin.group_names()
    check_known(from_group, names, "group")
    check_known(to_group, names, "group", _NEW.format(to_group))
    positions = [
        Position(to_group, one.topic, one.broker_name, one.queue_id, one.consumer_offset)
        for one in await _committed(admin, from_group, is_wanted)
        if one.broker_name is not None and one.consumer_offset is not None
    ]
    if not positions:
        raise NotFoundError(f"the group {from_group} has not committed an offset in any such topic")
    return positions


async def _committed(admin: AdminQueries, group: str, is_wanted: Callable[[str], bool]) -> "list[GroupOffset]":
    own = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
    return [
        one
        for one in await admin.offsets(group)
        if one.consumer_offset is not None and not one.topic.startswith(own) and is_wanted(one.topic)
    ]


async def shifted(
    admin: AdminQueries, group: str, is_wanted: Callable[[str], bool], by: int | None, by_ms: int | None, now: int
) -> list[Position]:
    """Return where a group continues that is rewound (negative) or forwarded, within the limits of its queues.

    Args:
        admin: a running client.
        group: its name.
        is_wanted: which of its topics.
        by: messages in each queue, or None to use ``by_ms``.
        by_ms: duration, from the store time of the next message, or from now in a queue that is read to its end.
        now: ms since 1970.

    Raises:
        NotFoundError: there is no such group, or it has committed nothing there.
    """
    check_known(group, await admin.group_names(), "group")
    found = await _committed(admin, group, is_wanted)
    if not found:
        raise NotFoundError(f"the group {group} has not committed an offset in any such topic")
    addresses = {master.broker_name: master.address for master in await admin.masters()}

    async def position(one: "GroupOffset") -> Position:
        assert one.broker_name is not None
        assert one.consumer_offset is not None
        low, high, address = one.min_offset or 0, one.max_offset or 0, addresses[one.broker_name]
        if by is not None:
            wanted = one.consumer_offset + by
        else:
            at = await _next_timestamp(admin, address, one, now)
            wanted = await admin.request(address, calls.offset_from(one.topic, one.queue_id, at + (by_ms or 0)))
        offset = min(max(wanted, low), high)
        reason = "" if offset == wanted else f"the queue covers {low:,} to {high:,}"
        return Position(group, one.topic, one.broker_name, one.queue_id, offset, reason)

    return await together(position(one) for one in found)


async def kept(admin: AdminQueries, offsets: "Iterable[GroupOffset]", now: int) -> list[KeptOffset]:
    """Return committed offsets in a form that can be used in another cluster."""
    addresses = {master.broker_name: master.address for master in await admin.masters()}

    async def one_kept(one: "GroupOffset") -> KeptOffset:
        assert one.broker_name is not None
        assert one.consumer_offset is not None
        at = await _next_timestamp(admin, addresses[one.broker_name], one, now)
        is_at_end = one.consumer_offset >= (one.max_offset or 0)
        return KeptOffset(one.group, one.topic, one.broker_name, one.queue_id, one.consumer_offset, at, is_at_end)

    return await together(one_kept(one) for one in offsets if one.consumer_offset is not None)


async def _next_timestamp(admin: AdminQueries, address: str, one: "GroupOffset", now: int) -> int:
    """Return the store time of what a group reads next, ``now`` where that has not come yet."""
    from mqtool.formats.inner_batch import messages_of

    at = max(one.consumer_offset or 0, one.min_offset or 0)
    while at < (one.max_offset or 0):
        pulled = await admin.request(address, calls.pull(one.topic, one.queue_id, at, _AT_ONCE))
        for message, _ in messages_of(pulled.records):
            if message.queue_offset >= at:
                return message.store_timestamp
        at = max(pulled.next_offset, at + 1)
    return now


async def translated(admin: AdminQueries, offsets: Sequence[KeptOffset], now: int) -> list[Position]:
    """Return where groups continue according to exported offsets.

    In a topic whose queues still have the next messages they continue there exactly; otherwise by time, in all
    its queues.

    Raises:
        NotFoundError: there is no such group or topic here.
    """
    names = await admin.group_names()
    topics = sorted({one.topic for one in offsets})
    queues = {(one.topic, one.broker_name, one.queue_id): one for one in await admin.topic_queues(*topics)}
    addresses = {master.broker_name: master.address for master in await admin.masters()}
    positions: list[Position] = []
    by_pair = sorted(offsets, key=lambda one: (one.group, one.topic))
    for (group, topic), found in itertools.groupby(by_pair, key=lambda one: (one.group, one.topic)):
        check_known(group, names, "group", _NEW.format(group))
        of_pair = [*found]
        if all(await together(_is_still_there(admin, addresses, queues, one, now) for one in of_pair)):
            positions += [
                Position(group, topic, one.broker_name, one.queue_id, one.consumer_offset, "as it was")
                for one in of_pair
            ]
            continue
        since = min(one.next_timestamp for one in of_pair)
        here = [(broker_name, queue_id) for name, broker_name, queue_id in queues if name == topic]
        at = await together(
            admin.request(addresses[broker_name], calls.offset_from(topic, queue_id, since))
            for broker_name, queue_id in here
        )
        for (broker_name, queue_id), offset in zip(here, at, strict=True):
            queue = queues[topic, broker_name, queue_id]
            within = min(max(offset, queue.min_offset), queue.max_offset)
            positions.append(Position(group, topic, broker_name, queue_id, within, "by time"))
    return positions


async def _is_still_there(
    admin: AdminQueries,
    addresses: dict[str, str],
    queues: "dict[tuple[str, str, int], TopicQueue]",
    one: KeptOffset,
    now: int,
) -> bool:
    """Tell whether a queue here is the one that an offset was kept of: what was next has the same store time."""
    queue = queues.get((one.topic, one.broker_name, one.queue_id))
    if queue is None or not queue.min_offset <= one.consumer_offset <= queue.max_offset:
        return False
    if one.consumer_offset == queue.max_offset:
        return one.is_at_end and queue.last_timestamp <= one.next_timestamp
    here = GroupOffset(
        one.group,
        one.topic,
        one.broker_name,
        one.queue_id,
        queue.min_offset,
        one.consumer_offset,
        queue.max_offset,
        None,
    )
    at = await _next_timestamp(admin, addresses[one.broker_name], here, now)
    return at >= one.next_timestamp if one.is_at_end else at == one.next_timestamp
