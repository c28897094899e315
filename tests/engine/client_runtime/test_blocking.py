"""The clients for programs without an event loop do what those for asyncio do, with the same arguments and types."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import mqtool
from mqtool import aio

KINDS = [*aio.__all__]
_OF_PRODUCERS = {"is_batching", "is_running", "packed", "post", "ready", "to_choose_from"}
_INSIDE = {
    "AdminClient": {
        "ask_each",
        "is_running",
        "masters",
        "members_of",
        "name_servers",
        "pulsar_subscriptions",
        "request",
        "request_name_server",
    },
    "LitePullConsumer": {"is_running", "next_at_hand"},
    "PopConsumer": {"is_running"},
    "Producer": _OF_PRODUCERS,
    "PullConsumer": {"is_running"},
    "PushConsumer": {"is_running"},
    "TransactionProducer": _OF_PRODUCERS,
}
"""Methods that other modules of ours call."""


def _public(kind: type[Any]) -> dict[str, Callable[..., Any]]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", KINDS)
def test_a_blocking_client_has_the_calls_of_that_for_asyncio_with_their_arguments(name: str) -> None:
    blocking, others = getattr(mqtool, name), getattr(aio, name)

    assert _public(blocking).keys() == _public(others).keys() - _INSIDE[name]
    assert inspect.signature(blocking) == inspect.signature(others)
    for method in _public(blocking):
        ours, theirs = getattr(blocking, method), getattr(others, method)
        if callable(ours):
            assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters, method
            assert ours.__doc__, method


def test_help_shows_what_a_blocking_call_returns() -> None:
    assert "Future[SendResult]" in str(inspect.signature(mqtool.Producer.send_async).return_annotation)
    assert "asyncio" not in str(inspect.signature(mqtool.Producer.send_async).return_annotation)
    assert "AbstractContextManager[list[" in str(inspect.signature(mqtool.LitePullConsumer.batch).return_annotation)


def test_a_kind_of_client_that_has_a_call_of_its_own_is_called_by_that() -> None:
    consumer = mqtool.LitePullConsumer("G", "localhost:1")
    consumer.assign([mqtool.MessageQueue("T", "b", 0)])
    with pytest.raises(mqtool.UsageError, match="queues are assigned to this consumer"):
        consumer.subscribe("T")


def test_arguments_that_there_are_not_are_refused_as_python_does() -> None:
    producer = mqtool.Producer("P", "localhost:1")
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'"):
        producer.send_async(mqtool.ProducerMessage("T", b"1"), timeout=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'group'"):
        mqtool.Producer()  # type: ignore[call-arg]


def test_a_class_is_there_before_all_that_its_clients_need() -> None:
    program = (
        "import sys, mqtool; mqtool.Producer, mqtool.PushConsumer, mqtool.AdminClient\n"
        "print(sorted({'asyncio', 'ssl', 'inspect', 'dataclasses', 'mqtool.engine.client'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"


def test_a_class_of_ones_own_calls_what_it_has_not_changed() -> None:
    program = (
        "import mqtool\n"
        "class Mine(mqtool.Producer):\n"
        "    def __init__(self):\n"
        "        super().__init__('P', 'localhost:1')\n"
        "    def queues(self, topic):\n"
        "        return super().queues(topic + '-mine')\n"
        "try:\n"
        "    with Mine() as mine:\n"
        "        mine.queues('T')\n"
        "except mqtool.UnavailableError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot connect to localhost:1")
