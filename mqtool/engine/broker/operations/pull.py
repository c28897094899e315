"""Pulls: messages of one queue from an offset on, now or as soon as there are any.

(Rules: remoting.md 5. RocketMQ: ``PullMessageProcessor``, ``PullRequestHoldService``.)
"""

from typing import NamedTuple

from mqtool.engine.broker.broker_stats import BrokerStatsManager
from mqtool.engine.broker.clients import Clients
from mqtool.engine.broker.operations.checks import checked_group, checked_topic, refusal_meanwhile
from mqtool.engine.broker.operations.filters import wanted_by_expression, wanted_by_subscription
from mqtool.engine.broker.operations.reading import ReadingParts
from mqtool.engine.broker.operations.refusal import Forbids, OperationRefusedError, Reason
from mqtool.engine.broker.sessions import Session
from mqtool.engine.broker.settings import MASTER_ID, Role
from mqtool.engine.broker.waiting_room import PULLS, Waiting
from mqtool.engine.store.live_pull import PHYSICAL_MEMORY, GetMessageResult, PullFilter, fetch
from mqtool.engine.store.pull import StoreStatus
from mqtool.formats.codes import Perm
from mqtool.formats.config_tables import SubscriptionGroup, TopicConfig

_READ = int(Perm.READ)  # an operator of an enum takes a microsecond
_LONGEST_WAIT_MS = 600_000
_EMPTY = (StoreStatus.NO_MATCHED_LOGIC_QUEUE, StoreStatus.NO_MESSAGE_IN_QUEUE)
_AT_END = (StoreStatus.OFFSET_OVERFLOW_ONE, StoreStatus.OFFSET_FOUND_NULL)
_WRONG = (StoreStatus.OFFSET_TOO_SMALL, StoreStatus.OFFSET_OVERFLOW_BADLY, *_EMPTY)
_OTHERS_OF_SLAVE = 10
"""Percentage of the memory that a slave leaves to others."""
_NOTHING_YET = (StoreStatus.OFFSET_OVERFLOW_ONE, StoreStatus.NO_MATCHED_MESSAGE, *_EMPTY)


class PullOutcome(NamedTuple):
    """The result of a pull."""

    fetched: GetMessageResult
    topic: TopicConfig
    group: SubscriptionGroup
    is_reset: bool = False  # no messages; the group continues at ``fetched.next_offset``
    suggested_broker_id: int = MASTER_ID  # the broker of this name to pull from next
    is_corrected: bool = True  # a wrong offset is corrected; a slave leaves that to its master


class PullPosition(NamedTuple):
    """From where a group pulls."""

    group: str
    topic: str
    queue_id: int
    offset: int
    most: int  # messages


class Filter(NamedTuple):
    """The filter of a pull: an expression, or the group's subscription by heartbeat, which must not be older."""

    expression: str | None
    kind: str | None
    version: int


class Pulls:
    """Pulls, with the parts of a broker that they need."""

    def __init__(self, parts: ReadingParts, clients: Clients, broker_stats: BrokerStatsManager) -> None:
        self.store, self._state, self._topics, self._groups, self.offsets, self._room = parts
        self.broker_stats = broker_stats
        self._clients = clients

    def pull(
        self,
        session: Session,
        place: PullPosition,
        wanted_by: Filter,
        now: int,
        *,
        wait_ms: int = 0,
        commit_offset: int | None = None,
        is_lite: bool = False,
    ) -> PullOutcome | Waiting:
        """Return messages, or a waiting request.

        Args:
            session: of the client.
            place: where it starts.
            wanted_by: the filter.
            now: the time, in ms.
            wait_ms: how long to wait if there are no messages.
            commit_offset: the consumer offset of the group to commit, None for none.
            is_lite: from a lite pull consumer.

        Raises:
            OperationRefusedError: it gets no messages.
        """
        settings = self._state.settings
        if not settings.perm & _READ:
            raise OperationRefusedError(Reason.NOT_ALLOWED, "the broker is not readable", Forbids.BROKER)
        if is_lite and not settings.lite_pull_enabled:
            raise OperationRefusedError(Reason.NOT_ALLOWED, "lite pull is disabled on this broker", Forbids.BROKER)
        group_name, topic_name, queue_id, offset, most = place
        group = checked_group(self._groups, group_name, now)
        topic = checked_topic(self._topics, topic_name, queue_id)
        wanted = self._wanted(place, wanted_by, group)
        if self.offsets.has_reset(group_name, topic_name, queue_id):
            return _Pull(self, place, group, topic, wanted).now()
        if commit_offset is not None:
            self.offsets.check_room(group_name, topic_name, [queue_id])
            self.offsets.commit(group_name, topic_name, queue_id, commit_offset)
        store, key = self.store, (topic_name, queue_id)
        fetched = fetch(store, store.queue(topic_name, queue_id), offset, most, wanted)
        if fetched.parts or not (
            wait_ms > 0
            and settings.long_polling_enabled
            and (fetched.status in _AT_END or (fetched.status in _EMPTY and not offset))
            and self._room.has_room(PULLS, key)
        ):
            return self.give(place, fetched, topic, group)
        deadline = now + min(wait_ms, _LONGEST_WAIT_MS)
        once = _Pull(self, place, group, topic, wanted)
        waiting = Waiting(PULLS, key, session, deadline, once.look, wanted=wanted, offset=offset)
        self._room.add(waiting)
        return waiting

    def give(
        self, place: PullPosition, fetched: GetMessageResult, topic: TopicConfig, group: SubscriptionGroup
    ) -> PullOutcome:
        """Return messages for a group, and record their delivery."""
        if fetched.parts:
            name, topic_name, queue_id, _, _ = place
            self.broker_stats.gave(topic_name, name, fetched.message_count, sum(map(len, fetched.parts)))
            self.offsets.note_pull(name, topic_name, queue_id, fetched.next_offset)
        state = self._state
        is_corrected = state.role is not Role.SLAVE or state.settings.checks_offsets_as_slave
        if not is_corrected and fetched.status in _WRONG:
            fetched = fetched._replace(next_offset=place.offset)
        return PullOutcome(fetched, topic, group, False, self._suggested(fetched, group), is_corrected)

    def _suggested(self, fetched: GetMessageResult, group: SubscriptionGroup) -> int:
        """Return the broker from which a group should pull next: a slave, if it lags behind the messages in memory."""
        settings = self._state.settings
        if not settings.slave_read_enabled:
            return MASTER_ID
        ratio = settings.memory_ratio - (_OTHERS_OF_SLAVE if self._state.role is Role.SLAVE else 0)
        lag = self.store.end_offset - fetched.last_start
        if fetched.last_start >= 0 and lag > PHYSICAL_MEMORY * max(0, ratio) // 100:
            return group.slow_consumer_broker_id
        return group.broker_id

    def refusal_of(self, place: PullPosition) -> OperationRefusedError | None:
        """Return why a waiting pull may not be served any more."""
        return refusal_meanwhile(self._topics, self._groups, place.topic, place.queue_id, place.group)

    def _wanted(self, place: PullPosition, wanted_by: Filter, group: SubscriptionGroup) -> PullFilter:
        """Return the filter of a pull, its own or that of its group's heartbeats; raises ``OperationRefusedError``."""
        if wanted_by.expression is not None:
            kind = wanted_by.kind or "TAG"
            self._check_kind(kind)
            return wanted_by_expression(kind, wanted_by.expression)
        online = self._clients.group(place.group)
        if online is None:
            raise OperationRefusedError(Reason.NOT_SUBSCRIBED, "the consumer's group info not exist")
        if online.is_broadcast and not group.consume_broadcast_enabled:
            text = f"the consumer group[{group.group}] can not consume by broadcast way"
            raise OperationRefusedError(Reason.NOT_ALLOWED, text, Forbids.BROADCAST)
        subscription = online.subscriptions.get(place.topic)
        if subscription is None:
            raise OperationRefusedError(Reason.NOT_SUBSCRIBED, "the consumer's subscription not exist")
        if subscription.version < wanted_by.version:
            raise OperationRefusedError(Reason.OLD_SUBSCRIPTION, "the consumer's subscription not latest")
        if not self._groups.is_readable(group.group, place.topic):
            text = f"the consumer group[{group.group}] is forbidden for topic[{place.topic}]"
            raise OperationRefusedError(Reason.NOT_ALLOWED, text, Forbids.SUBSCRIPTION)
        self._check_kind(subscription.expression_type)
        return wanted_by_subscription(subscription)

    def _check_kind(self, kind: str) -> None:
        if kind != "TAG" and not self._state.settings.sql92_enabled:
            text = f"The broker does not support consumer to filter message by {kind}"
            raise OperationRefusedError(Reason.NOT_POSSIBLE, text)


class _Pull:
    """One pull that may be repeated."""

    __slots__ = ("_group", "_place", "_pulls", "_topic", "_wanted")

    def __init__(
        self, pulls: Pulls, place: PullPosition, group: SubscriptionGroup, topic: TopicConfig, wanted: PullFilter
    ) -> None:
        self._pulls = pulls
        self._place = place
        self._group = group
        self._topic = topic
        self._wanted = wanted

    def now(self) -> PullOutcome:
        """Return the current result."""
        group, topic, queue_id, _, _ = self._place
        target = self._pulls.offsets.take_reset(group, topic, queue_id)
        if target is None:
            return self._give(self._fetch())
        store = self._pulls.store
        queue = store.queue(topic, queue_id)
        low = queue.min_offset(store.log.min_offset) if queue else 0
        high = queue.next_offset if queue else 0
        return PullOutcome(
            GetMessageResult(StoreStatus.OFFSET_OVERFLOW_BADLY, target, low, high), self._topic, self._group, True
        )

    def look(self, is_due: bool, now: int) -> PullOutcome | OperationRefusedError | None:  # noqa: ARG002
        """Return the result for a waiting pull, None while there are no messages."""
        if refused := self._pulls.refusal_of(self._place):
            return refused
        if is_due or self._has_reset():
            return self.now()
        fetched = self._fetch()
        # If a filter matches none of many messages, the client learns how far they were examined; if the topic was
        # deleted, that its offset no longer exists.
        is_at_end = self._place.offset <= fetched.max_offset <= fetched.next_offset
        if fetched.status in _NOTHING_YET and is_at_end:
            return None
        return self._give(fetched)

    def _has_reset(self) -> bool:
        group, topic, queue_id, _, _ = self._place
        return self._pulls.offsets.has_reset(group, topic, queue_id)

    def _fetch(self) -> GetMessageResult:
        _, topic, queue_id, offset, count = self._place
        store = self._pulls.store
        return fetch(store, store.queue(topic, queue_id), offset, count, self._wanted)

    def _give(self, fetched: GetMessageResult) -> PullOutcome:
        return self._pulls.give(self._place, fetched, self._topic, self._group)
