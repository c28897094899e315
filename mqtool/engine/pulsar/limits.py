"""Limits of the port for Pulsar clients: whatever they can make a broker keep is bounded.

What is in a store is taken; only what comes in addition is refused. The table of all limits is in docs/serve.md.
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
"""Ranges of hashes that one consumer brings."""
MAX_OF_WISHES = 1 << 24
"""Characters of the filters of all consumers; a range of hashes counts as 64 of them."""
MAX_WAITING = 1000
"""Requests that wait whether another client is still there."""
MAX_NAMES = 100_000
"""Topics in one list, each partition by itself; a client takes no answer that is much longer."""
MAX_WATCHED = 1_000_000
"""Topics that all clients together are told the changes of."""
MAX_WATCHERS = 100
"""Of a connection."""
FEW_GAPS = 1000
"""That a subscription may have in any case."""
MAX_HELD = 1_000_000
"""Messages that consumers have, or are to be given again, and gaps, of all subscriptions."""
MAX_OF_SCHEMAS = 1 << 24
"""Bytes of all schemas as text, with their properties and some for each: their table is written whole."""


def check_list(count: int) -> None:
    """See that a list of topics has no more than that; raises ``LimitError``."""
    if count > MAX_NAMES:
        raise LimitError(f"a list has at most {MAX_NAMES:,} topics")
