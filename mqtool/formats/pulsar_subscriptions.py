"""Subscriptions of Apache Pulsar clients, as a broker tells administrators of them (GET_PULSAR_SUBSCRIPTIONS)."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from mqtool.errors import FormatError
from mqtool.formats.bodies import build_body, parse_body


class SubscriptionState(NamedTuple):
    """A subscription of one queue, by RocketMQ's names of topic and group.

    What only a running broker knows is None where a store tells of it.
    """

    topic: str
    queue_id: int
    group: str
    subscription: str
    """As Pulsar clients call it."""
    type: str | None
    """``Exclusive``, ``Failover``, ``Shared`` or ``Key_Shared``; None without consumers."""
    consumers: list[str] | None
    consumer_offset: int
    """Of the first message that is not acknowledged."""
    backlog: int
    """Messages that are not acknowledged."""
    acked_ranges: int
    """Behind that offset."""
    unacked: int | None
    """Messages that consumers have and have not acknowledged; not counted for Exclusive and Failover."""


_NOTHING: dict[str, Any] = {"type": None, "consumers": None, "unacked": None}


def build_subscriptions(states: Iterable[SubscriptionState]) -> bytes:
    """Return the body of an answer."""
    return build_body({"subscriptions": [state._asdict() for state in states]})


def parse_subscriptions(body: bytes) -> list[SubscriptionState]:
    """Return what an answer tells.

    Raises:
        FormatError: it is none.
    """
    rows: Any = parse_body(body).get("subscriptions")
    try:
        return [SubscriptionState(**_NOTHING | row) for row in rows]  # of what is None a body has nothing
    except TypeError as error:
        raise FormatError(f"it does not describe subscriptions ({error})", 0) from error
