"""How much a broker keeps for its clients: each table that they can make grow ends somewhere.

What a store brings along is taken whatever there is of it; only what would be new is refused. The table of all limits
is in docs/serve.md.
"""

from mqtool.errors import LimitError

MAX_TOPICS = 20_000
"""Beyond it only the retry and dead letter topics of groups that there are."""
MAX_GROUPS_IN_ALL = 20_000
MAX_OF_SETTINGS = 1 << 14
"""Characters of the settings of one topic or group, as text."""
MAX_QUEUES_IN_ALL = 100_000
"""With files of their own, which the first message makes."""
MAX_OFFSETS = 500_000
"""Queues of which a group has an offset, of all groups together."""
MAX_LOCKS = 100_000
MAX_MODES = 20_000
"""Pairs of a topic and a group with a request mode."""
MAX_FORBIDDEN = 20_000
"""Pairs of a group and a topic that it may not read."""
MAX_COUNTED = 10_000
"""Pairs of a topic and a group with figures of their own."""
MAX_TIMERS = 1_000_000
"""Timer messages that wait."""
MAX_OF_POPS = 4_000_000
"""Check points and acknowledgements of pops that wait for their time, as timer messages do."""
MAX_OPEN = 1_000_000
"""Half messages whose transaction is open."""
MAX_MEMBERS = 100_000
"""Clients in groups, each counted in each of its groups."""
MAX_OF_SUBSCRIPTIONS = 1 << 24
"""Characters of all subscriptions."""
MAX_NAME = 255
"""Characters of a group, a topic or a client id that a client names."""
MAX_OF_SETTING = 255
"""Characters of a setting of the broker that is changed while it runs: some are in each message, or each answer."""
MAX_OF_BODY = 1 << 20
"""Bytes of a request that carries no messages: it is parsed while all others wait."""


def check_room(present: int, new: int, most: int, noun: str) -> None:
    """Check that there is room for some more.

    Raises:
        LimitError: there is not.
    """
    if new and present + new > most:  # a store may have brought more along
        raise LimitError(f"there are already {present:,} {noun}, the maximum is {most:,}")


def check_name(name: str, noun: str) -> None:
    """Check that a name is not too long.

    Raises:
        LimitError: it is.
    """
    if len(name) > MAX_NAME:
        raise LimitError(f"the {noun} [{name[:40]}..] is longer than {MAX_NAME} characters")
