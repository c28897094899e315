"""Which broker of a name a client reads from."""

import pytest

from mqtool.engine.client.routes import broker_to_read
from mqtool.formats.bodies import BrokerData, TopicRoute


def route(*ids: int) -> TopicRoute:
    broker = BrokerData("C", "a", {number: f"host-{number}:10911" for number in ids})
    return TopicRoute([], [broker])


@pytest.mark.parametrize(
    ("ids", "wished", "read"),
    [
        ((0, 1, 2), 0, 0),
        ((0, 1, 2), 1, 1),
        ((0, 2), 1, 2),  # Java: the next slave
        ((0, 3), 1, 0),
        ((1, 2), 0, 1),  # without a master
        ((3,), 1, 3),
    ],
)
def test_the_broker_that_is_wished_for_is_read_else_one_that_there_is(
    ids: tuple[int, ...], wished: int, read: int
) -> None:
    assert broker_to_read(route(*ids), "a", wished) == (read, f"host-{read}:10911")


def test_without_brokers_there_is_none_to_read() -> None:
    assert broker_to_read(route(), "a") is None
    assert broker_to_read(route(0), "b") is None
