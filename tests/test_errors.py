"""The family of exceptions that programs act on, and what a program hears that sets up no logging."""

import logging
import subprocess
import sys

import pytest

import mqtool
from mqtool import errors
from mqtool.engine.client.calls import refusal

SILENT = """
import logging, sys
import mqtool, mqtool.engine.client_runtime.producer
assert not logging.root.handlers
logging.getLogger("mqtool.engine.client_runtime.consumer").warning("heard")
"""


@pytest.mark.parametrize(
    ("code", "remark", "kind", "retriable", "also"),
    [
        (2, "busy", mqtool.BusyError, True, mqtool.RefusedError),
        (14, "stopping", mqtool.BusyError, True, mqtool.RefusedError),
        (13, "too large", mqtool.IllegalMessageError, False, errors.BadDataError),
        (16, "no right", mqtool.AccessDeniedError, False, mqtool.NotPermittedError),
        (1, "org.apache..AclException: signature", mqtool.AccessDeniedError, False, mqtool.NotPermittedError),
        (17, "no topic", mqtool.UnknownTopicError, False, mqtool.NotFoundError),
        (26, "no group", mqtool.UnknownGroupError, False, mqtool.NotFoundError),
        (23, "no filter", mqtool.InvalidRequestError, False, mqtool.UsageError),
        (1, None, mqtool.RefusedError, False, mqtool.MqtoolError),
    ],
)
def test_a_refusal_is_an_exception_of_its_own(
    code: int, remark: str | None, kind: type[Exception], retriable: bool, also: type[Exception]
) -> None:
    error = refusal("host:10911", code, remark)

    assert type(error) is kind
    assert isinstance(error, also)
    assert (error.code, error.address, error.retriable) == (code, "host:10911", retriable)
    assert str(error) == f"host:10911 refused the request: {remark or f'response code {code}'}"


def test_all_that_clients_raise_is_in_both_modules() -> None:
    ours = {name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")}
    public = {name for name in mqtool.__all__ if name.endswith("Error")}

    assert public <= ours
    assert all(getattr(mqtool, name) is getattr(errors, name) for name in public)
    assert all(issubclass(getattr(errors, name), mqtool.MqtoolError) for name in ours)


def test_a_server_that_does_not_answer_is_named_and_worth_another_try() -> None:
    with (
        mqtool.Producer("P", "127.0.0.1:1") as producer,
        pytest.raises(mqtool.UnavailableError, match=r"cannot connect to 127.0.0.1:1") as refused,
    ):
        producer.send(mqtool.ProducerMessage("Orders", b"x"))

    assert (refused.value.code, refused.value.address, refused.value.retriable) == (None, "127.0.0.1:1", True)


def test_a_program_without_logging_hears_nothing() -> None:
    ran = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, check=True)

    assert ran.stderr == ""
    assert any(isinstance(one, logging.NullHandler) for one in logging.getLogger("mqtool").handlers)
