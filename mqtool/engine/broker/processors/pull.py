"""Pulls: PULL_MESSAGE and LITE_PULL_MESSAGE.

(Rules: remoting.md 5. RocketMQ: ``PullMessageProcessor``, ``DefaultPullMessageResultHandler``.)
"""

import functools
from typing import TYPE_CHECKING

from mqtool.engine.broker.waiting_room import PULLS, Waiting
from mqtool.engine.store.live_pull import Fetched, Wanted, fetch
from mqtool.engine.store.pull import StoreStatus
from mqtool.errors import FilterError
from mqtool.formats.bodies import Subscription
from mqtool.formats.codes import Perm, PullSysFlag, RequestCode, ResponseCode
from mqtool.formats.config_tables import SubscriptionGroup, TopicConfig
from mqtool.formats.filters import compile_sql92, parse_tags
from mqtool.formats.headers import Pull, parse_header
from mqtool.formats.remoting import RESPONSE, RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request

FORBIDDEN_BROKER, FORBIDDEN_GROUP, FORBIDDEN_TOPIC, FORBIDDEN_BROADCAST, FORBIDDEN_SUBSCRIPTION = range(1, 6)
"""Who forbids a pull (RocketMQ: ``ForbiddenType``)."""

_CODES = {
    StoreStatus.FOUND: ResponseCode.SUCCESS,
    StoreStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    StoreStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    StoreStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    StoreStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    StoreStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    StoreStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_NOTHING_YET = (
    StoreStatus.OFFSET_OVERFLOW_ONE,
    StoreStatus.NO_MATCHED_MESSAGE,
    StoreStatus.NO_MATCHED_LOGIC_QUEUE,
    StoreStatus.NO_MESSAGE_IN_QUEUE,
)
_OFFSET_RESET = "OFFSET_RESET"

# Bits as plain numbers: a flag takes as long to test as all else that is checked.
_COMMIT_OFFSET, _SUSPEND = int(PullSysFlag.COMMIT_OFFSET), int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)
_READ = int(Perm.READ)


class RefusedError(Exception):
    """A request that gets no messages, and the code and remark that say why."""

    def __init__(self, code: ResponseCode, remark: str, forbidden_type: int | None = None) -> None:
        self.code = code
        self.remark = remark
        self.forbidden_type = forbidden_type
        super().__init__(remark)

    def answer(self, command: RemotingCommand) -> RemotingCommand:
        """Return the answer to a request."""
        fields = {} if self.forbidden_type is None else {"forbiddenType": str(self.forbidden_type)}
        return command.answer(self.code, fields, remark=self.remark)


def pull(broker: "Broker", request: "Request") -> "Answer":
    """Answer with messages, or let the request wait for some."""
    command, session, now = request
    header = parse_header(Pull, command.ext_fields)
    try:
        group, topic = _checked(broker, header, command, now)
        wanted = _wanted(broker, header, group)
    except RefusedError as refused:
        return refused.answer(command)
    flags, key = header.sys_flag, (header.consumer_group, header.topic, header.queue_id)
    if flags & _COMMIT_OFFSET and not broker.offsets.has_reset(*key):
        broker.offsets.check_room(*key)
        broker.offsets.commit(*key, header.commit_offset)
    once = _Pull(broker, header, command, group, topic, wanted)
    if flags & _SUSPEND and header.suspend_timeout_millis > 0 and broker.settings.long_polling_enabled:
        answer = once.answer_or_wait()
        if answer is not None:
            return answer
        if broker.room.has_room(PULLS, key[1:]):
            deadline = now + min(header.suspend_timeout_millis, _LONGEST_WAIT_MS)
            waiting = Waiting(
                PULLS,
                key[1:],
                session,
                deadline,
                once.answer_parked,
                session.reply,
                wanted=wanted,
                offset=header.queue_offset,
            )
            broker.room.add(waiting)
            command.shed()
            return None
    return once.answer()


_LONGEST_WAIT_MS = 600_000


class _Pull:
    """One pull that may be tried again."""

    __slots__ = ("_broker", "_command", "_group", "_header", "_topic", "_wanted")

    def __init__(
        self,
        broker: "Broker",
        header: Pull,
        command: RemotingCommand,
        group: SubscriptionGroup,
        topic: TopicConfig,
        wanted: Wanted,
    ) -> None:
        self._broker = broker
        self._header = header
        self._command = command
        self._group = group
        self._topic = topic
        self._wanted = wanted

    def answer_or_wait(self) -> RemotingCommand | None:
        """Return the answer as things are, None where it is that there is nothing yet."""
        if self._has_reset():
            return self.answer()
        fetched = self._fetch()
        return None if self._code(fetched) == ResponseCode.PULL_NOT_FOUND else self._answer(fetched)

    def answer_parked(self, is_due: bool, now: int) -> RemotingCommand | None:  # noqa: ARG002
        """Return the answer to a pull that has waited, None while there is nothing for it yet."""
        if is_due or self._has_reset():
            return self.answer()
        fetched = self._fetch()
        # Where a filter takes nothing of many messages the client learns how far that is so.
        if fetched.status in _NOTHING_YET and fetched.next_offset >= fetched.max_offset:
            return None
        return self._answer(fetched)

    def _has_reset(self) -> bool:
        header = self._header
        return self._broker.offsets.has_reset(header.consumer_group, header.topic, header.queue_id)

    def answer(self) -> RemotingCommand:
        """Return the answer as things are."""
        header = self._header
        target = self._broker.offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if target is None:
            return self._answer(self._fetch())
        queue = self._broker.store.queue(header.topic, header.queue_id)
        low = queue.min_offset(self._broker.store.log.min_offset) if queue else 0
        high = queue.next_offset if queue else 0
        return self._with_offsets(ResponseCode.PULL_OFFSET_MOVED, _OFFSET_RESET, target, low, high)

    def _fetch(self) -> Fetched:
        store, header = self._broker.store, self._header
        queue = store.queue(header.topic, header.queue_id)
        return fetch(store, queue, header.queue_offset, header.max_msg_nums, self._wanted)

    def _answer(self, fetched: Fetched) -> RemotingCommand:
        status, next_offset, low, high, parts, count = fetched
        header = self._header
        code = self._code(fetched)
        answer = self._with_offsets(code, status.value, next_offset, low, high)
        if parts:
            answer.parts = parts
            self._broker.figures.gave(header.topic, header.consumer_group, count, sum(map(len, parts)))
            self._broker.offsets.note_pull(header.consumer_group, header.topic, header.queue_id, next_offset)
        return answer

    def _code(self, fetched: Fetched) -> ResponseCode:
        code = _CODES.get(fetched.status)
        if code is None:  # an empty queue: only who asks for its beginning may wait for it
            code = ResponseCode.PULL_OFFSET_MOVED if self._header.queue_offset else ResponseCode.PULL_NOT_FOUND
        return code

    def _with_offsets(self, code: int, remark: str, next_offset: int, low: int, high: int) -> RemotingCommand:
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": str(low),
            "maxOffset": str(high),
            "topicSysFlag": str(self._topic.sys_flag),
            "groupSysFlag": str(self._group.sys_flag),
        }
        return RemotingCommand(code, RESPONSE, self._command.opaque, fields, remark=remark)


# What is checked first


def _checked(
    broker: "Broker", header: Pull, command: RemotingCommand, now: int
) -> tuple[SubscriptionGroup, TopicConfig]:
    """Return group and topic of a pull that may be answered; raises ``RefusedError``."""
    settings = broker.settings
    if not settings.perm & _READ:
        raise RefusedError(ResponseCode.NO_PERMISSION, "the broker may not be read", FORBIDDEN_BROKER)
    if command.code == RequestCode.LITE_PULL_MESSAGE and not settings.lite_pull_enabled:
        raise RefusedError(ResponseCode.NO_PERMISSION, "lite pull is switched off on this broker", FORBIDDEN_BROKER)
    return checked_group(broker, header.consumer_group, now), checked_topic(broker, header.topic, header.queue_id)


def checked_group(broker: "Broker", name: str, now: int) -> SubscriptionGroup:
    """Return a group that may consume.

    Raises:
        RefusedError: there is no such group, or it may not.
    """
    group = broker.groups.find(name, now)
    if group is None:
        raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist")
    if not group.consume_enabled:
        raise RefusedError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}", FORBIDDEN_GROUP)
    return group


def checked_topic(broker: "Broker", name: str, queue_id: int) -> TopicConfig:
    """Return a topic that may be read and has a queue.

    Raises:
        RefusedError: there is no such topic or queue, or it may not be read.
    """
    topic = broker.topics.get(name)
    if topic is None:
        raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
    if not topic.perm & _READ:
        raise RefusedError(
            ResponseCode.NO_PERMISSION, f"the topic[{name}] pulling message is forbidden", FORBIDDEN_TOPIC
        )
    if not 0 <= queue_id < topic.read_queue_count:
        remark = f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.read_queue_count}]"
        raise RefusedError(ResponseCode.INVALID_PARAMETER, remark)
    return topic


# What is wanted


def _wanted(broker: "Broker", header: Pull, group: SubscriptionGroup) -> Wanted:
    """Return the filter of a pull, from its header or from the heartbeats of its group; raises ``RefusedError``."""
    if header.sys_flag & _SUBSCRIPTION:
        kind = header.expression_type or "TAG"
        _check_kind(broker, kind)
        return wanted_by_expression(kind, header.subscription or "")
    online = broker.clients.group(header.consumer_group)
    if online is None:
        raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
    if online.is_broadcast and not group.consume_broadcast_enabled:
        raise RefusedError(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{group.group}] can not consume by broadcast way",
            FORBIDDEN_BROADCAST,
        )
    subscription = online.subscriptions.get(header.topic)
    if subscription is None:
        raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
    if subscription.version < header.sub_version:
        raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    if not broker.groups.is_readable(group.group, header.topic):
        remark = f"the consumer group[{group.group}] is forbidden for topic[{header.topic}]"
        raise RefusedError(ResponseCode.NO_PERMISSION, remark, FORBIDDEN_SUBSCRIPTION)
    _check_kind(broker, subscription.expression_type)
    return _subscribed(subscription)


def _check_kind(broker: "Broker", kind: str) -> None:
    if kind != "TAG" and not broker.settings.sql92_enabled:
        raise RefusedError(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
        )


def _subscribed(subscription: Subscription) -> Wanted:
    if subscription.expression_type == "TAG":
        if subscription.expression == "*":
            return _EVERYTHING
        return Wanted(_codes(subscription.tags_codes) if subscription.tags_codes else _tags(subscription.expression))
    wanted = _sql92(subscription.expression_type, subscription.expression)
    if isinstance(wanted, str):  # the heartbeat could not register it
        remark = f"the broker's consumer filter data is not exist: {wanted}"
        raise RefusedError(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
    return wanted


def wanted_by_expression(kind: str, expression: str) -> Wanted:
    """Return the filter for an expression of one kind, TAG or SQL92.

    Raises:
        RefusedError: it cannot be understood.
    """
    if len(expression) > MOST_OF_FILTER:
        remark = f"parse the consumer's subscription failed: it is longer than {MOST_OF_FILTER:,} characters"
        raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
    if kind == "TAG":
        try:
            return Wanted(_tags(expression))
        except FilterError as error:
            wanted: Wanted | str = str(error)
    else:
        wanted = _sql92(kind, expression)
    if isinstance(wanted, str):
        raise RefusedError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {wanted}"
        )
    return wanted


MOST_OF_FILTER = 1 << 14
"""Characters of a filter: it is parsed while all others wait."""
_MOST_KEPT, _MOST_CODES_KEPT = 1 << 10, 1 << 6
"""Characters, and hashes of tags, up to which what a filter means is kept for the next pull."""

_EVERYTHING = Wanted()


def _codes(codes: tuple[int, ...]) -> frozenset[int]:
    return (_kept_codes if len(codes) <= _MOST_CODES_KEPT else frozenset)(codes)


def _tags(expression: str) -> frozenset[int] | None:
    return (_kept_tags if len(expression) <= _MOST_KEPT else _parse_tags)(expression)


def _sql92(kind: str, expression: str) -> Wanted | str:
    """Return the filter for an expression that is not of tags, or what is wrong with it."""
    return (_kept_sql92 if len(expression) <= _MOST_KEPT else _compile_sql92)(kind, expression)


def _parse_tags(expression: str) -> frozenset[int] | None:
    tags = parse_tags(expression)
    return None if tags.expression == "*" else tags.codes


def _compile_sql92(kind: str, expression: str) -> Wanted | str:
    if kind != "SQL92":
        return f"there is no expression type {kind}"
    try:
        return Wanted(sql92=compile_sql92(expression))
    except FilterError as error:
        return str(error)


_kept_codes = functools.lru_cache(1024)(frozenset[int])
_kept_tags = functools.lru_cache(1024)(_parse_tags)
_kept_sql92 = functools.lru_cache(256)(_compile_sql92)


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.PULL_MESSAGE: pull,
    RequestCode.LITE_PULL_MESSAGE: pull,
}
