"""Which queues of a topic belong to which consumer of a group.

Every consumer computes this for itself, from the same sorted lists of queues and client ids; so all must use the same
strategy, including its order. (Rules: remoting.md 6.5. RocketMQ: ``AllocateMessageQueueStrategy`` and its family.)
"""

import bisect
import functools
import hashlib
from collections.abc import Callable, Collection, Sequence

from mqtool.formats.allocation import share_evenly, share_in_turn
from mqtool.formats.bodies import MessageQueue

Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]
"""Takes all queues and all members, both sorted, and the own client id; returns its queues."""

VIRTUAL_NODES = 10
"""The default for each member on the ring of ``consistent_hash``, as in Java."""


def _for_members(strategy: Strategy) -> Strategy:
    """Give no queues to a client that is not a member, as the broker may not have listed it yet."""
    return functools.wraps(strategy)(
        lambda queues, members, own: strategy(queues, members, own) if own in members else []
    )


@_for_members
def averagely(queues: Sequence[MessageQueue], members: Sequence[str], own: str) -> list[MessageQueue]:
    """Give each member a range of adjacent queues: RocketMQ's default."""
    return [queues[at] for at in share_evenly(len(queues), len(members), members.index(own))]


@_for_members
def averagely_by_circle(queues: Sequence[MessageQueue], members: Sequence[str], own: str) -> list[MessageQueue]:
    """Assign the queues one by one, round robin."""
    return [queues[at] for at in share_in_turn(len(queues), len(members), members.index(own))]


def by_configuration(own_queues: Sequence[MessageQueue]) -> Strategy:
    """Give this member the given queues, whatever the other members."""
    return lambda *_: list(own_queues)


def by_machine_room(rooms: Collection[str]) -> Strategy:
    """Assign only the queues of brokers in some machine rooms; their broker names are ``room@name``."""

    @_for_members
    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], own: str) -> list[MessageQueue]:
        inside = [queue for queue in queues if _machine_room(queue.broker_name) in rooms]
        count, rest = divmod(len(inside), len(members))
        index = members.index(own)
        extra = [inside[count * len(members) + index]] if index < rest else []
        return inside[index * count : (index + 1) * count] + extra

    return allocate


def _machine_room(broker_name: str) -> str | None:
    room, *rest = broker_name.split("@")
    return room if len(rest) == 1 else None


def near_by(
    inner: Strategy, room_of_broker: Callable[[MessageQueue], str], room_of_client: Callable[[str], str]
) -> Strategy:
    """Assign the queues of each machine room to the members in it, by ``inner``.

    The queues of rooms without a member are shared among all members.
    """

    @_for_members
    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], own: str) -> list[MessageQueue]:
        neighbours: dict[str, list[str]] = {}
        for member in members:
            neighbours.setdefault(room_of_client(member), []).append(member)
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_room.setdefault(room_of_broker(queue), []).append(queue)
        home = room_of_client(own)
        allocated = inner(by_room[home], neighbours[home], own) if home in by_room else []
        for room in sorted(by_room.keys() - neighbours.keys()):
            allocated += inner(by_room[room], members, own)
        return allocated

    return allocate


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Give each queue to the next member on a hash ring: when a member joins or leaves, few queues move."""

    @_for_members
    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], own: str) -> list[MessageQueue]:
        ring = {_point(f"{member}-{node}"): member for member in members for node in range(virtual_nodes)}
        points = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            name = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            return ring[points[bisect.bisect_left(points, _point(name)) % len(points)]]

        return [queue for queue in queues if owner(queue) == own]

    return allocate


def _point(name: str) -> int:
    return int.from_bytes(hashlib.md5(name.encode(), usedforsecurity=False).digest()[:4], "big")


def allocate(
    strategy: Strategy, queues: Collection[MessageQueue], members: Collection[str], own: str
) -> list[MessageQueue]:
    """Return the queues of one member.

    Args:
        strategy: the same for all members of the group.
        queues: all of the topic, in any order.
        members: client ids of the group, in any order.
        own: the own client id; if it is not among the members it gets no queues, except from ``by_configuration``.

    >>> queues = [MessageQueue("T", "b", number) for number in range(8)]
    >>> [queue.queue_id for queue in allocate(averagely, queues, {"c2", "c1", "c0"}, "c1")]
    [3, 4, 5]
    """
    return strategy(sorted(queues), sorted(members, key=_java_order), own)


def _java_order(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")
