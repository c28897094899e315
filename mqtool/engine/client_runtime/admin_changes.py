"""Changes that administrators make on brokers: a plan that can be shown, and the requests that carry it out.

Cost: a few requests to each broker, and one for each queue in which a time is looked up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mqtool.engine.client import calls
from mqtool.engine.client_runtime.admin_queries import AdminQueries, MasterBroker, check_known
from mqtool.errors import NotFoundError, UsageError
from mqtool.formats.config_changes import changed_group, changed_topic, differences, group_differences
from mqtool.formats.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from mqtool.engine.client.calls import Call, QueueEnds

T = TypeVar("T")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class AdminChange:
    """One change to one broker; ``what`` is create, replace or remove.

    Fields that do not apply are None. ``new_offset`` is the consumer offset to set, ``consumer_offset`` the
    previous one.
    """

    what: str
    broker_name: str
    reason: str = ""
    group: str | None = None
    topic: str | None = None
    queue_id: int | None = None
    consumer_offset: int | None = None
    new_offset: int | None = None


@dataclass
class Changes:
    """The planned changes, and the requests that make them; ``remarks`` help to decide."""

    changes: list[AdminChange] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    requests: "list[tuple[str, Call[None]]]" = field(default_factory=list)
    forgotten_topics: list[str] = field(default_factory=list)
    """Topics that name servers must delete after the brokers have."""

    def add(
        self, action: str, broker: MasterBroker, request: "Call[None] | None", reason: str = "", **fields: Any
    ) -> None:
        """Add a change; one without a request is carried out by the request of another."""
        self.changes.append(AdminChange(action, broker.broker_name, reason, **fields))
        if request:
            self.requests.append((broker.address, request))

    def add_settings(
        self,
        broker: MasterBroker,
        before: T | None,
        after: T,
        request: "Call[None]",
        difference: Callable[[T | None, T], str],
        **fields: Any,
    ) -> None:
        """Add a change of settings on a broker, unless it already has them."""
        if after != before:
            self.add("create" if before is None else "replace", broker, request, difference(before, after), **fields)


# Topics


async def plan_topic(
    admin: AdminQueries, brokers: Sequence[MasterBroker], topic: str, queue_count: int | None, perm: int | None
) -> Changes:
    """Plan to create or change a topic."""
    changes = Changes()
    for broker, configs in await admin.ask_each(brokers, calls.topic_configs):
        known = configs.get(topic)
        config = changed_topic(known, topic, queue_count, perm)
        changes.add_settings(broker, known, config, calls.put_topic(config), differences, topic=topic)
    return changes


async def plan_topic_deletion(admin: AdminQueries, brokers: Sequence[MasterBroker], topic: str) -> Changes:
    """Plan to delete a topic and its queues."""
    changes = Changes()
    holders = await _holders(admin, brokers, calls.topic_configs, topic, "topic")
    await _add_topic_deletion(admin, holders, topic, changes)
    return changes


async def _holders(
    admin: AdminQueries,
    brokers: Sequence[MasterBroker],
    call: "Callable[[], Call[dict[str, T]]]",
    name: str,
    noun: str,
) -> list[MasterBroker]:
    """Return the brokers that know a name; raises what ``check_known`` does."""
    answers = await admin.ask_each(brokers, call)
    check_known(name, {group_name for _, held in answers for group_name in held}, noun)
    return [broker for broker, held in answers if name in held]


async def _add_topic_deletion(
    admin: AdminQueries, holders: Sequence[MasterBroker], topic: str, changes: Changes
) -> None:
    for broker, queues in await admin.ask_each(holders, lambda: calls.topic_queues(topic)):
        count = sum(queue.max_offset - queue.min_offset for queue in queues.values())
        reason = f"{_counted(len(queues), 'queue')} with {_counted(count, 'message')} that can no longer be consumed"
        changes.add("remove", broker, calls.delete_topic(topic), reason, topic=topic)
    changes.forgotten_topics.append(topic)


# Groups


async def plan_group(
    admin: AdminQueries,
    brokers: Sequence[MasterBroker],
    group: str,
    retries: int | None,
    consume: bool | None,
    broadcast: bool | None,
) -> Changes:
    """Plan to create or change a group."""
    changes = Changes()
    options = {"retries": retries, "consume": consume, "broadcast": broadcast}
    for broker, tables in await admin.ask_each(brokers, calls.groups):
        known = tables.get(group)
        settings = changed_group(known, group, options)
        changes.add_settings(broker, known, settings, calls.put_group(settings), group_differences, group=group)
    return changes


async def plan_group_deletion(admin: AdminQueries, brokers: Sequence[MasterBroker], group: str) -> Changes:
    """Plan to delete a group, its offsets, and its retry and dead-letter topics."""
    changes = Changes()
    for broker in await _holders(admin, brokers, calls.groups, group, "group"):
        online = await admin.request(broker.address, calls.members(group))
        if online:
            count = len(online.members)
            are = "is" if count == 1 else "are"
            changes.remarks.append(f"{_counted(count, 'consumer')} {are} online, and will create the group again")
        changes.add("remove", broker, calls.delete_group(group), "settings and offsets", group=group)
    topics = await admin.ask_each(brokers, calls.topic_configs)
    for topic in (RETRY_PREFIX + group, DEAD_LETTER_PREFIX + group):
        holders = [broker for broker, configs in topics if topic in configs]
        if holders:
            await _add_topic_deletion(admin, holders, topic, changes)
    return changes


# Offsets


class OffsetTarget(NamedTuple):
    """Where a group continues: at an offset in one queue, or in all queues at a store time (ms).

    By time it continues at the first message stored then or later.

    A time of -1 is the end of a queue, 0 its first message.
    """

    timestamp: int = -1
    queue_id: int | None = None
    offset: int | None = None


async def plan_offsets(
    admin: AdminQueries, brokers: Sequence[MasterBroker], group: str, topics: Sequence[str], wanted: OffsetTarget
) -> Changes:
    """Plan to set the consumer offsets of topics."""
    changes = Changes()
    groups = dict(await admin.ask_each(brokers, calls.groups))
    check_known(group, {name for known in groups.values() for name in known}, "group")
    held: dict[str, bool] = {}  # and whether it has the queue
    for broker, configs in await admin.ask_each(brokers, calls.topic_configs):
        for topic in topics if group in groups[broker] else ():
            if topic in configs:
                has_queue = await _OffsetPlan(admin, broker, group, topic, wanted, changes).add()
                held[topic] = held.get(topic, False) or has_queue
    for topic in topics:
        if topic not in held:
            raise NotFoundError(f"no broker has the topic {topic}")
        if not held[topic] and wanted.queue_id is not None:
            raise NotFoundError(f"{topic} has no queue {wanted.queue_id}")
    return changes


class _OffsetPlan:
    """The planned offsets of one group in one topic on one broker."""

    def __init__(
        self, admin: AdminQueries, broker: MasterBroker, group: str, topic: str, wanted: OffsetTarget, changes: Changes
    ) -> None:
        self._admin = admin
        self._broker = broker
        self._group = group
        self._topic = topic
        self._wanted = wanted
        self._changes = changes

    async def add(self) -> bool:
        """Add the changes, and return whether the broker has such queues.

        Raises:
            UsageError: the offset is not in the queue, or this broker cannot do it while consumers are online.
        """
        ask, address, wanted = self._admin.request, self._broker.address, self._wanted
        queues = await ask(address, calls.topic_queues(self._topic))
        offsets = await ask(address, calls.consumer_offsets())
        rows = []
        for queue_id, queue in queues.items():
            if wanted.queue_id in (None, queue_id):
                before = offsets.get((self._topic, self._group, queue_id))
                rows.append((queue_id, before, await self._target(queue_id, queue)))
        tell = await self._how(any(before != after for _, before, after in rows))
        for queue_id, before, after in rows:
            if before != after:
                self._changes.add(
                    "create" if before is None else "replace",
                    self._broker,
                    tell(queue_id, after),
                    group=self._group,
                    topic=self._topic,
                    queue_id=queue_id,
                    consumer_offset=before,
                    new_offset=after,
                )
        return bool(rows)

    async def _target(self, queue_id: int, queue: "QueueEnds") -> int:
        offset, timestamp = self._wanted.offset, self._wanted.timestamp
        if offset is not None:
            if not queue.min_offset <= offset <= queue.max_offset:
                raise UsageError(
                    f"queue {queue_id} of {self._topic} covers {queue.min_offset:,} to {queue.max_offset:,}: "
                    f"{offset:,} is outside"
                )
            return offset
        if timestamp < 0:
            return queue.max_offset
        if queue.max_offset == queue.min_offset or timestamp == 0:
            return queue.min_offset
        return await self._admin.request(self._broker.address, calls.offset_at(self._topic, queue_id, timestamp))

    async def _how(self, is_needed: bool) -> "Callable[[int, int], Call[None] | None]":
        """Return a function that builds the request; brokers before 5.0 let online consumers reset their offsets."""
        group, topic, address = self._group, self._topic, self._broker.address
        settings = await self._admin.request(address, calls.broker_settings())
        if settings.get("useServerSideResetOffset") == "true":
            return lambda queue_id, offset: calls.reset_offset(group, topic, queue_id, offset)
        if not is_needed or await self._admin.request(address, calls.members(group)) is None:
            return lambda queue_id, offset: calls.set_offset(group, topic, queue_id, offset)
        if self._wanted.offset is not None:
            raise UsageError(
                f"consumers of {group} are online, and this broker can only reset all queues at once: stop them first"
            )
        whole = [calls.reset_to_time(group, topic, self._wanted.timestamp)]
        return lambda *_: whole.pop() if whole else None
