"""What commands that choose messages share."""

from typing import TYPE_CHECKING

from mqtool.commands._options import matching
from mqtool.errors import NotFoundError

if TYPE_CHECKING:
    from mqtool.engine.store.reader import StoreReader


def topics_of(store: "StoreReader", patterns: tuple[str, ...]) -> frozenset[str] | None:
    """Return the topics that patterns select, None without a pattern.

    Raises:
        NotFoundError: a pattern selects none, or nothing says what it could.
    """
    from mqtool.engine.store.search import is_glob, known_topics

    if not patterns:
        return None
    known, complete = known_topics(store)
    if known and complete:
        return frozenset(matching(patterns, known, "topic"))
    for pattern in patterns:
        if is_glob(pattern):
            raise NotFoundError(
                f"the names of the topics that {pattern} selects cannot be determined here: write them out"
            )
    return frozenset(patterns)
