"""Limits of a broker for its clients: each table that they can make grow is bounded.

Everything in an existing store is accepted; only new entries are refused. The table of all limits
is in docs/serve.md.
"""

from mqtool.errors import LimitError

MAX_TOPICS = 20_000
"""Beyond this limit, only retry and dead letter topics of existing groups are created."""
MAX_GROUPS_IN_ALL = 20_000
MAX_OF_SETTINGS = 1 << 14
"""Characters of the settings of one topic or group, as text."""
MAX_QUEUES_IN_ALL = 100_000
"""Queues with files, which the first message creates."""
MAX_QUEUES_OF_ANSWER = 100_000
"""Queues in the answer to one request: more do not fit into a frame, and all others wait for it."""
MAX_OFFSETS = 500_000
"""Queues of which a group has an offset, of all groups together."""
MAX_LOCKS = 100_000
MAX_MODES = 20_000
"""Pairs of a topic and a group with a request mode."""
MAX_FORBIDDEN = 20_000
"""Pairs of a group and a topic that it may not read."""
MAX_COUNTED = 10_000
"""Pairs of a topic and a group with their own statistics."""
MAX_TIMERS = 1_000_000
"""Timer messages that wait."""
MAX_OF_POPS = 4_000_000
"""Check points and acknowledgements of pops that wait for their time, as timer messages do."""
MAX_OPEN = 1_000_000
"""Half messages whose transaction is open."""
MAX_MEMBERS = 100_000
"""Clients in groups, each counted in each of its groups."""
MAX_OF_SUBSCRIPTIONS = 1 << 24
"""Total characters of subscriptions."""
MAX_NAME = 255
"""Characters of a group, a topic or a client id that a client names."""
MAX_OF_SETTING = 255
"""Characters of a setting that is changed at runtime: some are in each message, or each answer."""
MAX_OF_BODY = 1 << 20
"""Bytes of a request without messages: it is parsed while all others wait."""


def check_room(present: int, new: int, most: int, noun: str) -> None:
    """Check that new entries are within a limit.

    Raises:
        LimitError: they are not.
    """
    if new and present + new > most:  # an existing store may have more
        raise LimitError(f"there are already {present:,} {noun}, the maximum is {most:,}")


def check_name(name: str, noun: str) -> None:
    """Check that a name is not too long.

    Raises:
        LimitError: it is too long.
    """
    if len(name) > MAX_NAME:
        raise LimitError(f"the {noun} [{name[:40]}..] is longer than {MAX_NAME} characters")
