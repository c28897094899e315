"""Queues assigned by the broker, for consumers with server-side rebalancing, and how they consume them.

(Rules: remoting.md 3.3, 6.5. RocketMQ: ``QueryAssignmentProcessor``.)
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mqtool.engine.broker.clients import Clients
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.request_modes import BY_PULL, POP, PULL, RequestMode, RequestModes
from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.engine.broker.topics import Topics
from mqtool.formats.allocation import share_evenly, share_in_turn
from mqtool.formats.topics import RETRY_PREFIX

_ALL_QUEUES = -1
"""Instead of a queue id: a pop may return messages of any queue."""

STRATEGIES: dict[str, Callable[[int, int, int], Sequence[int]]] = {
    "AVG": share_evenly,
    "AVG_BY_CIRCLE": share_in_turn,
}
"""By the names that clients use: takes the number of queues, the number of members, and the index of one."""


class Assigned(NamedTuple):
    """The queues of a topic that are assigned to a consumer."""

    mode: str  # PULL or POP
    queue_ids: Sequence[int] | None  # None: not known yet


class Assignments:
    """Assignments, with the parts of a broker that they need."""

    def __init__(self, topics: Topics, groups: SubscriptionGroups, clients: Clients, modes: RequestModes) -> None:
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._modes = modes

    def assigned(self, topic: str, group: str, client_id: str, strategy: str, *, is_broadcast: bool) -> Assigned:
        """Return the queues of a topic that are assigned to a consumer."""
        mode = BY_PULL if topic.startswith(RETRY_PREFIX) else self._modes.get(topic, group)
        return Assigned(mode.mode, self._queue_ids(topic, group, client_id, strategy, mode, is_broadcast=is_broadcast))

    def _queue_ids(
        self, topic: str, group: str, client_id: str, strategy: str, mode: RequestMode, *, is_broadcast: bool
    ) -> Sequence[int] | None:
        config = self._topics.get(topic)
        if config is None:
            return None
        count = config.read_queue_count
        if is_broadcast:
            return range(count)
        online, share = self._clients.group(group), STRATEGIES.get(strategy)
        if online is None or share is None:
            return None
        members = sorted({client.client_id for client in online.members.values()})
        if client_id not in members:
            return []
        index = members.index(client_id)
        if mode.mode != POP:
            return share(count, len(members), index)
        if not 0 < mode.share_count < len(members) - 1:
            return [_ALL_QUEUES]
        if count <= 0:
            return []
        if len(members) > count:
            return [index % count]
        shared = ((index + step) % len(members) for step in range(mode.share_count + 1))
        return [queue_id for member in shared for queue_id in share(count, len(members), member)]

    def set_mode(self, topic: str, group: str, mode: object, share_count: object, now: int) -> None:
        """Set how a group consumes a topic.

        Raises:
            OperationRefusedError: there is no such topic, group or mode, or it is a retry topic.
            LimitError: there are too many modes.
        """
        if topic.startswith(RETRY_PREFIX):
            raise OperationRefusedError(Reason.NOT_ALLOWED, "retry topic is not allowed to set mode")
        if self._topics.get(topic) is None:
            raise OperationRefusedError(Reason.NO_TOPIC, f"topic[{topic}] not exist")
        if self._groups.find(group, now) is None:
            raise OperationRefusedError(Reason.NO_GROUP, f"subscription group [{group}] not exist")
        count = share_count or 0
        if mode not in (PULL, POP) or not isinstance(count, int):
            raise OperationRefusedError(Reason.BAD_ARGUMENT, f"there is no mode {mode}, {share_count}")
        self._modes.set(topic, group, RequestMode(str(mode), count))
