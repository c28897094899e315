"""What commands that choose messages share."""

from typing import TYPE_CHECKING

from mqtool.commands._options import matching
from mqtool.commands._output import counted
from mqtool.errors import NotFoundError

if TYPE_CHECKING:
    from mqtool.engine.store.reader import StoreReader
    from mqtool.engine.store.search import Search

_LISTED = 5


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


def unread_remarks(search: "Search") -> list[str]:
    """Return what a search, when it is over, says of the index and of what could not be read."""
    remarks = search.remarks[:_LISTED]
    if len(search.remarks) > _LISTED:
        remarks.append(f"{len(search.remarks) - _LISTED:,} more like this; `mqtool verify` lists them")
    if search.gaps:
        first = search.gaps[0]
        size = sum(gap.end - gap.start for gap in search.gaps)
        remarks.append(
            f"{size:,} bytes of log in {counted(len(search.gaps), 'gap')} hold no message that can be read, "
            f"the first at {first.start_offset:,}: see `mqtool verify`"
        )
    remarks += map(str, search.holes[:_LISTED])
    if len(search.holes) > _LISTED:
        remarks.append(f"{len(search.holes) - _LISTED:,} more such ranges")
    if search.faulty_count:
        remarks.append(f"{counted(search.faulty_count, 'damaged record')} skipped: see `mqtool verify`")
    return remarks
