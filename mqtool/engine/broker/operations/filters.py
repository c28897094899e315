"""Filters of consumers, built from expressions."""

import functools

from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.store.live_pull import MAX_UNITS, PullFilter
from mqtool.errors import FilterError
from mqtool.formats.bodies import Subscription
from mqtool.formats.filters import compile_sql92, parse_tags

MAX_OF_FILTER = 1 << 14
"""Characters of a filter: it is parsed while all other clients wait."""
MAX_OF_SQL92 = 1 << 11
"""Characters of an SQL92 filter, which takes much longer to evaluate."""
_SHORT_SQL92 = 64
"""Characters up to which a pull examines the full number of messages; with twice as many it examines half of them."""
_MAX_KEPT, _MAX_CODES_KEPT = 1 << 10, 1 << 6
"""Characters, and hashes of tags, up to which a parsed filter is cached for the next pull."""


def wanted_by_subscription(subscription: Subscription) -> PullFilter:
    """Return the filter of a subscription; raises ``OperationRefusedError``."""
    if subscription.expression_type == "TAG":
        if subscription.expression == "*":
            return _EVERYTHING
        return PullFilter(
            _codes(subscription.tags_codes) if subscription.tags_codes else _tags(subscription.expression)
        )
    wanted = _sql92(subscription.expression_type, subscription.expression)
    if isinstance(wanted, str):  # the heartbeat could not register it
        remark = f"the broker's consumer filter data is not exist: {wanted}"
        raise OperationRefusedError(Reason.NO_FILTER, remark)
    return wanted


def wanted_by_expression(kind: str, expression: str) -> PullFilter:
    """Return the filter for an expression of one kind, TAG or SQL92.

    Raises:
        OperationRefusedError: it is invalid.
    """
    if len(expression) > MAX_OF_FILTER:
        remark = f"parse the consumer's subscription failed: it is longer than {MAX_OF_FILTER:,} characters"
        raise OperationRefusedError(Reason.BAD_FILTER, remark)
    if kind == "TAG":
        try:
            return PullFilter(_tags(expression))
        except FilterError as error:
            wanted: PullFilter | str = str(error)
    else:
        wanted = _sql92(kind, expression)
    if isinstance(wanted, str):
        raise OperationRefusedError(Reason.BAD_FILTER, f"parse the consumer's subscription failed: {wanted}")
    return wanted


_EVERYTHING = PullFilter()


def _codes(codes: tuple[int, ...]) -> frozenset[int]:
    return (_kept_codes if len(codes) <= _MAX_CODES_KEPT else frozenset)(codes)


def _tags(expression: str) -> frozenset[int] | None:
    return (_kept_tags if len(expression) <= _MAX_KEPT else _parse_tags)(expression)


def _sql92(kind: str, expression: str) -> PullFilter | str:
    """Return the filter for an expression that is not a tag filter, or what is wrong with it."""
    return (_kept_sql92 if len(expression) <= _MAX_KEPT else _compile_sql92)(kind, expression)


def _parse_tags(expression: str) -> frozenset[int] | None:
    tags = parse_tags(expression)
    return None if tags.expression == "*" else tags.codes


def _compile_sql92(kind: str, expression: str) -> PullFilter | str:
    if kind != "SQL92":
        return f"there is no expression type {kind}"
    if len(expression) > MAX_OF_SQL92:
        return f"it is longer than {MAX_OF_SQL92:,} characters"
    try:
        units = MAX_UNITS * _SHORT_SQL92 // max(len(expression), _SHORT_SQL92)
        return PullFilter(sql92=compile_sql92(expression), most_units=units)
    except FilterError as error:
        return str(error)


_kept_codes = functools.lru_cache(1024)(frozenset[int])
_kept_tags = functools.lru_cache(1024)(_parse_tags)
_kept_sql92 = functools.lru_cache(256)(_compile_sql92)
