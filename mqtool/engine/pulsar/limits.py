"""Limits of the port for Pulsar clients: whatever they can make a broker keep is bounded.

Whatever a store already contains is loaded; only additions are refused. docs/serve.md lists all limits.
"""

from mqtool.errors import LimitError

MAX_CLIENTS = 100_000
"""Producers and consumers of all connections."""
MAX_OF_CONNECTION = 10_000
"""Producers, and consumers, of one connection."""
MAX_OF_SUBSCRIPTION = 1000
"""Consumers of a subscription, and producers that wait to be the only one of a topic."""
MAX_NAME = 255
"""Characters of a subscription, a consumer or a producer."""
MAX_RANGES = 1000
"""Hash ranges of one consumer."""
MAX_OF_WISHES = 1 << 24
"""Characters of the filters of all consumers; a hash range counts as 64 characters."""
MAX_WAITING = 1000
"""Requests that wait until it is known whether another client is still alive."""
MAX_NAMES = 100_000
"""Topics in one list, counting each partition; clients accept no answer that is much longer."""
MAX_WATCHED = 1_000_000
"""Topics that all clients together watch for changes."""
MAX_WATCHERS = 100
"""Of a connection."""
FEW_GAPS = 1000
"""Gaps that a subscription may always have."""
MAX_HELD = 1_000_000
"""Messages that consumers have or that are to be redelivered, and gaps, of all subscriptions."""
MAX_OF_SCHEMAS = 1 << 24
"""Bytes of all schemas as text, with their properties and an overhead: their table is written as a whole."""


def check_list(count: int) -> None:
    """Check the length of a list of topics; raises ``LimitError``."""
    if count > MAX_NAMES:
        raise LimitError(f"a list has at most {MAX_NAMES:,} topics")
