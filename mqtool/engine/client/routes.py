"""What a client derives from a route: which queues it may use, and where their brokers are.

(Rules: remoting.md 2.2. RocketMQ: ``MQClientInstance``.)
"""

from mqtool.formats.bodies import MessageQueue, TopicRoute
from mqtool.formats.codes import Perm

MASTER = 0
"""The id of a master among the brokers of one name."""


def masters(route: TopicRoute) -> dict[str, str]:
    """Return the addresses of masters by broker name."""
    return {broker.broker_name: broker.addresses[MASTER] for broker in route.brokers if MASTER in broker.addresses}


def readable_queues(route: TopicRoute, topic: str) -> list[MessageQueue]:
    """Return the queues that may be read, in order."""
    known = {broker.broker_name for broker in route.brokers if broker.addresses}
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queues
        if data.perm & Perm.READ and data.broker_name in known
        for queue_id in range(data.read_queue_count)
    )


def writable_queues(route: TopicRoute, topic: str, most: int | None = None) -> list[MessageQueue]:
    """Return the queues that may be written to, in order; at most ``most`` of each broker."""
    known = masters(route)
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queues
        if data.perm & Perm.WRITE and data.broker_name in known
        for queue_id in range(data.write_queue_count if most is None else min(most, data.write_queue_count))
    )


def broker_to_read(route: TopicRoute, broker_name: str, wished_id: int = MASTER) -> tuple[int, str] | None:
    """Return id and address of a readable broker with a broker name, None if there is none.

    It is the requested one; else, if a slave was requested, the next one; else the master, or the slave with the lowest
    id.
    """
    for broker in route.brokers:
        if broker.broker_name == broker_name and (addresses := broker.addresses):
            if wished_id in addresses:
                return wished_id, addresses[wished_id]
            next_slave = wished_id + 1 if wished_id != MASTER else MASTER
            broker_id = next_slave if next_slave in addresses else min(addresses)
            return broker_id, addresses[broker_id]
    return None
