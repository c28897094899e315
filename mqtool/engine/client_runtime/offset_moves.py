"""Copies and shifts offsets of groups, and takes them to another cluster.

Offsets are meaningless in another cluster, but the store time of the next message is not. So a group continues there at
the first message stored at that time or later, in every queue of the topic: nothing is left out, some messages may be
delivered again.

Cost: a request for each broker, and for positions by time one or two for each queue.
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
        wanted = [position for position in positions if position.broker_name == broker.broker_name]
        if not wanted:
            continue
        held = await admin.request(broker.address, calls.consumer_offsets())
        moved = [
            position
            for position in wanted
            if held.get((position.topic, position.group, position.queue_id)) != position.offset
        ]
        settings = await admin.request(broker.address, calls.broker_settings())
        resets = settings.get("useServerSideResetOffset") == "true"
        for group in sorted({position.group for position in moved}):
            if not resets and await admin.request(broker.address, calls.members(group)) is not None:
                raise UsageError(
                    f"consumers of {group} are online, and {broker.broker_name} can only reset all queues at once: "
                    "stop them first"
                )
        ask = calls.reset_offset if resets else calls.set_offset
        for position in moved:
            before = held.get((position.topic, position.group, position.queue_id))
            changes.add(
                "create" if before is None else "replace",
                broker,
                ask(position.group, position.topic, position.queue_id, position.offset),
                position.reason,
                group=position.group,
                topic=position.topic,
                queue_id=position.queue_id,
                consumer_offset=before,
                new_offset=position.offset,
            )
    return changes


async def copied(
    admin: AdminQueries, from_group: str, to_group: str, is_wanted: Callable[[str], bool]
) -> list[Position]:
    """Return where a group continues that takes over from another, in the given topics.

    The retries of the other group are not copied.

    Raises:
        NotFoundError: there is no such group, or the first has committed nothing there.
    """
    names = await admin.group_names()
    check_known(from_group, names, "group")
    check_known(to_group, names, "group", _NEW.format(to_group))
    positions = [
        Position(to_group, offset.topic, offset.broker_name, offset.queue_id, offset.consumer_offset)
        for offset in await _committed(admin, from_group, is_wanted)
        if offset.broker_name is not None and offset.consumer_offset is not None
    ]
    if not positions:
        raise NotFoundError(f"the group {from_group} has not committed an offset in any such topic")
    return positions


async def _committed(admin: AdminQueries, group: str, is_wanted: Callable[[str], bool]) -> "list[GroupOffset]":
    own = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
    return [
        offset
        for offset in await admin.offsets(group)
        if offset.consumer_offset is not None and not offset.topic.startswith(own) and is_wanted(offset.topic)
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
    committed = await _committed(admin, group, is_wanted)
    if not committed:
        raise NotFoundError(f"the group {group} has not committed an offset in any such topic")
    addresses = {master.broker_name: master.address for master in await admin.masters()}

    async def position(group_offset: "GroupOffset") -> Position:
        assert group_offset.broker_name is not None
        assert group_offset.consumer_offset is not None
        low, high, address = (
            group_offset.min_offset or 0,
            group_offset.max_offset or 0,
            addresses[group_offset.broker_name],
        )
        if by is not None:
            wanted = group_offset.consumer_offset + by
        else:
            at = await _next_timestamp(admin, address, group_offset, now)
            wanted = await admin.request(
                address, calls.offset_from(group_offset.topic, group_offset.queue_id, at + (by_ms or 0))
            )
        offset = min(max(wanted, low), high)
        reason = "" if offset == wanted else f"the queue covers {low:,} to {high:,}"
        return Position(group, group_offset.topic, group_offset.broker_name, group_offset.queue_id, offset, reason)

    return await together(position(group_offset) for group_offset in committed)


async def kept(admin: AdminQueries, offsets: "Iterable[GroupOffset]", now: int) -> list[KeptOffset]:
    """Return committed offsets in a form that can be used in another cluster."""
    addresses = {master.broker_name: master.address for master in await admin.masters()}

    async def one_kept(group_offset: "GroupOffset") -> KeptOffset:
        assert group_offset.broker_name is not None
        assert group_offset.consumer_offset is not None
        at = await _next_timestamp(admin, addresses[group_offset.broker_name], group_offset, now)
        is_at_end = group_offset.consumer_offset >= (group_offset.max_offset or 0)
        return KeptOffset(
            group_offset.group,
            group_offset.topic,
            group_offset.broker_name,
            group_offset.queue_id,
            group_offset.consumer_offset,
            at,
            is_at_end,
        )

    return await together(
        one_kept(group_offset) for group_offset in offsets if group_offset.consumer_offset is not None
    )


async def _next_timestamp(admin: AdminQueries, address: str, group_offset: "GroupOffset", now: int) -> int:
    """Return the store time of the message that a group reads next, ``now`` if it does not exist yet."""
    from mqtool.formats.inner_batch import messages_of

    at = max(group_offset.consumer_offset or 0, group_offset.min_offset or 0)
    while at < (group_offset.max_offset or 0):
        pulled = await admin.request(address, calls.pull(group_offset.topic, group_offset.queue_id, at, _AT_ONCE))
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
    topics = sorted({kept_offset.topic for kept_offset in offsets})
    queues = {(queue.topic, queue.broker_name, queue.queue_id): queue for queue in await admin.topic_queues(*topics)}
    addresses = {master.broker_name: master.address for master in await admin.masters()}
    positions: list[Position] = []
    by_pair = sorted(offsets, key=lambda kept_offset: (kept_offset.group, kept_offset.topic))
    for (group, topic), offsets_of_pair in itertools.groupby(
        by_pair, key=lambda kept_offset: (kept_offset.group, kept_offset.topic)
    ):
        check_known(group, names, "group", _NEW.format(group))
        of_pair = [*offsets_of_pair]
        if all(await together(_is_still_there(admin, addresses, queues, kept_offset, now) for kept_offset in of_pair)):
            positions += [
                Position(
                    group,
                    topic,
                    kept_offset.broker_name,
                    kept_offset.queue_id,
                    kept_offset.consumer_offset,
                    "as it was",
                )
                for kept_offset in of_pair
            ]
            continue
        since = min(kept_offset.next_timestamp for kept_offset in of_pair)
        queues_here = [(broker_name, queue_id) for name, broker_name, queue_id in queues if name == topic]
        at = await together(
            admin.request(addresses[broker_name], calls.offset_from(topic, queue_id, since))
            for broker_name, queue_id in queues_here
        )
        for (broker_name, queue_id), offset in zip(queues_here, at, strict=True):
            queue = queues[topic, broker_name, queue_id]
            within = min(max(offset, queue.min_offset), queue.max_offset)
            positions.append(Position(group, topic, broker_name, queue_id, within, "by time"))
    return positions


async def _is_still_there(
    admin: AdminQueries,
    addresses: dict[str, str],
    queues: "dict[tuple[str, str, int], TopicQueue]",
    kept_offset: KeptOffset,
    now: int,
) -> bool:
    """Return whether a queue is the one of an exported offset: the next message has the same store time."""
    queue = queues.get((kept_offset.topic, kept_offset.broker_name, kept_offset.queue_id))
    if queue is None or not queue.min_offset <= kept_offset.consumer_offset <= queue.max_offset:
        return False
    if kept_offset.consumer_offset == queue.max_offset:
        return kept_offset.is_at_end and queue.last_timestamp <= kept_offset.next_timestamp
    offset_here = GroupOffset(
        kept_offset.group,
        kept_offset.topic,
        kept_offset.broker_name,
        kept_offset.queue_id,
        queue.min_offset,
        kept_offset.consumer_offset,
        queue.max_offset,
        None,
    )
    at = await _next_timestamp(admin, addresses[kept_offset.broker_name], offset_here, now)
    return at >= kept_offset.next_timestamp if kept_offset.is_at_end else at == kept_offset.next_timestamp
