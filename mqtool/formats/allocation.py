"""How queues are shared out by number: what brokers and consumers agree on.

(Rules: remoting.md 6.5. RocketMQ: ``AllocateMessageQueueAveragely``, ``AllocateMessageQueueAveragelyByCircle``.)
"""


def share_evenly(count: int, members: int, index: int) -> range:
    """Return the queues of one member where each gets a run of neighbours.

    >>> [list(share_evenly(8, 3, index)) for index in range(3)]
    [[0, 1, 2], [3, 4, 5], [6, 7]]
    """
    size, rest = divmod(count, members)
    start = index * size + min(index, rest)
    return range(start, start + size + (index < rest))


def share_in_turn(count: int, members: int, index: int) -> range:
    """Return the queues of one member where they are dealt out one by one.

    >>> [list(share_in_turn(8, 3, index)) for index in range(3)]
    [[0, 3, 6], [1, 4, 7], [2, 5]]
    """
    return range(index, count, members)
