"""The common basis of operations that deliver messages to groups, or report their progress."""

from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.broker.consumer_offsets import ConsumerOffsets
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.engine.broker.topics import Topics
from mqtool.engine.broker.waiting_room import WaitingRoom

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore


class ReadingParts(NamedTuple):
    """The parts of a broker that pulls, pops and offset queries share."""

    store: "MessageStore"
    state: BrokerState
    topics: Topics
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    room: WaitingRoom
