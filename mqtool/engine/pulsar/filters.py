"""Filters of subscriptions: by tags or by SQL92, as RocketMQ consumers use them.

A client sets them with properties of its subscription. Messages that do not match are acknowledged one by one.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mqtool.engine.broker.operations.filters import MAX_OF_FILTER, MAX_OF_SQL92
from mqtool.engine.pulsar.refusal import PulsarError, PulsarRefusedError
from mqtool.errors import FilterError
from mqtool.formats.filters import compile_sql92, parse_tags
from mqtool.formats.properties import parse_properties
from mqtool.formats.property_names import TAGS

_TAGS, _SQL = "mqtool.tags", "mqtool.sql"


class EntryFilter(NamedTuple):
    """Expressions, empty for everything."""

    tags: str = ""
    sql: str = ""

    def compiled(self) -> Callable[[bytes], bool] | None:
        """Return a function that tells from its stored properties whether a message matches; None if all do.

        Raises:
            PulsarRefusedError: an expression is invalid.
        """
        if not any(self):
            return None
        if len(self.tags) > MAX_OF_FILTER or len(self.sql) > MAX_OF_SQL92:
            text = f"A filter may have at most {MAX_OF_FILTER:,} characters of tags, and {MAX_OF_SQL92:,} of SQL92"
            raise PulsarRefusedError(PulsarError.NOT_ALLOWED, text)
        try:
            tags = parse_tags(self.tags)
            sql = compile_sql92(self.sql) if self.sql else None
        except FilterError as error:
            raise PulsarRefusedError(PulsarError.NOT_ALLOWED, f"Invalid filter: {error}") from None

        def is_wanted(properties: bytes) -> bool:
            pairs = parse_properties(properties)
            return tags.matches_tag(pairs.get(TAGS)) and (sql is None or sql(pairs))

        return is_wanted


EVERYTHING = EntryFilter()


def filter_of(properties: Mapping[str, str]) -> EntryFilter:
    """Return the filter that properties of a subscription ask for."""
    return EntryFilter(properties.get(_TAGS, ""), properties.get(_SQL, ""))
