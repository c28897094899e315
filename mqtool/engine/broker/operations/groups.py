"""Subscription groups: created, changed, deleted and forbidden to read by administrators.

(Rules: remoting.md 3.5. RocketMQ: ``AdminBrokerProcessor``.)
"""

from collections.abc import Iterable, Sequence

from mqtool.engine.broker.consumer_offsets import ConsumerOffsets
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.pop_orders import PopOrders
from mqtool.engine.broker.subscription_groups import MAX_GIVEN_NAME, SubscriptionGroups, is_name
from mqtool.engine.broker.topics import MAX_QUEUES
from mqtool.formats.config_tables import Table


class GroupRequests:
    """Requests of administrators about groups, with the parts of a broker that they need."""

    def __init__(self, groups: SubscriptionGroups, offsets: ConsumerOffsets, pop_orders: PopOrders) -> None:
        self._groups = groups
        self._offsets = offsets
        self._pop_orders = pop_orders

    def find(self, group: str) -> Table:
        """Return a group in the form of the table; raises ``OperationRefusedError`` if there is none."""
        members = self._groups.members(group)
        if members is None:
            raise OperationRefusedError(Reason.NO_GROUP, f"No group in this broker. group: {group}")
        return members

    def update(self, tables: Sequence[Table], now: int) -> None:
        """Create or change groups, by the members of the table; none of them if one has an invalid name.

        Raises:
            OperationRefusedError: the name or the number of queues of a group is invalid.
            FormatError: another member is invalid.
            LimitError: there would be too many groups, or the settings of one are too long.
        """
        for table in tables:
            name = str(table.get("groupName") or "")
            if not is_name(name, MAX_GIVEN_NAME):
                text = f"the group name [{name[:200]}] is blank, longer than {MAX_GIVEN_NAME} or has characters other"
                raise OperationRefusedError(Reason.BAD_ARGUMENT, f"{text} than %|a-zA-Z0-9_-")
        for table in tables:
            count = table.get("retryQueueNums") or 0
            if not isinstance(count, int) or not 0 <= count <= MAX_QUEUES:
                text = f"retryQueueNums of the group [{table['groupName']}] is not a number from 0 to {MAX_QUEUES:,}"
                raise OperationRefusedError(Reason.BAD_ARGUMENT, text)
        for table in tables:
            self._groups.update(table, now)

    def delete(self, groups: Iterable[str], now: int, *, with_offsets: bool) -> None:
        """Delete groups, and their offsets if requested."""
        gone = dict.fromkeys(groups)
        for group in gone:
            self._groups.delete(group, now)
        if with_offsets:
            self._offsets.delete_groups(gone.keys(), now)
            self._pop_orders.delete_groups(gone.keys(), now)

    def forbid(self, group: str, topic: str, readable: bool | None, now: int) -> bool:
        """Return whether a group may read a topic, after changing it if ``readable`` is given."""
        if readable is not None:
            self._groups.set_readable(group, topic, readable, now)
        return self._groups.is_readable(group, topic)
