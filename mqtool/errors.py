"""Every error that mqtool raises on purpose, and the exit status it stands for.

An error words its sentence once (what, where, what to do) and keeps its facts as attributes.
"""

import enum
from collections.abc import Sequence
from typing import Any


class Status(enum.IntEnum):
    """Exit statuses of the command line."""

    OK = 0
    USAGE = 2
    DAMAGE = 3
    WARNINGS = 4
    GIVEN_UP = 5
    BAD_DATA = 65
    NO_INPUT = 66
    UNAVAILABLE = 69
    FAULT = 70
    IO_ERROR = 74
    BUSY = 75
    NOT_PERMITTED = 77
    INTERRUPTED = 130


class MqtoolError(Exception):
    """The base of all errors; its text is the sentence that a user reads.

    Attributes:
        code: the response code of RocketMQ, where a server has answered with one.
        address: of the server, where it is known which one.
        retriable: whether the same call may succeed later, as nothing is wrong with what was asked.
    """

    exit_code = Status.FAULT
    code: int | None = None
    address: str | None = None
    retriable = False


class FormatError(MqtoolError):
    """Bytes that cannot be what the format says they are."""

    exit_code = Status.BAD_DATA

    def __init__(self, reason: str, offset: int) -> None:
        self.reason = reason
        self.offset = offset
        super().__init__(f"{reason} at offset {offset:,} ({offset:#x})")


class HeaderError(MqtoolError):
    """A command whose header lacks a field that it must have, or whose field is not what it should be."""

    exit_code = Status.BAD_DATA

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"the field {field} of the header {reason}")


class FilterError(MqtoolError):
    """A tag expression or SQL92 filter that a broker would refuse; the position counts characters from 1."""

    exit_code = Status.USAGE

    def __init__(self, reason: str, position: int) -> None:
        self.reason = reason
        self.position = position
        super().__init__(f"cannot use this filter: {reason}, at character {position:,}")


class UsageError(MqtoolError):
    """Arguments that make no sense together."""

    exit_code = Status.USAGE


class BadDataError(MqtoolError):
    """A file that is there and readable, but not what it should be."""

    exit_code = Status.BAD_DATA


class NotFoundError(MqtoolError):
    """No such store, file, topic or message."""

    exit_code = Status.NO_INPUT


class LimitError(MqtoolError):
    """More of something than a server keeps for its clients."""


class ReadError(MqtoolError):
    """The system could not read or write a file."""

    exit_code = Status.IO_ERROR


class WriteError(MqtoolError):
    """The system could not write a file: the disk is full, or fails."""

    exit_code = Status.IO_ERROR


class StoreInUseError(MqtoolError):
    """A running broker, or another mend, holds the store."""

    exit_code = Status.BUSY


class RecoveryNeededError(MqtoolError):
    """A store that cannot be written to as it is: its broker did not stop cleanly, or its files disagree."""

    exit_code = Status.BAD_DATA


class StoreChangedError(MqtoolError):
    """A file of the store changed while it was read: a broker is at work, or somebody else."""

    exit_code = Status.BUSY


class NotPermittedError(MqtoolError):
    """The file system, or a server, does not let this user read or write."""

    exit_code = Status.NOT_PERMITTED


class UnavailableError(MqtoolError):
    """No broker or name server answers, or not in time."""

    exit_code = Status.UNAVAILABLE
    retriable = True

    def __init__(self, sentence: str, address: str | None = None) -> None:
        self.address = address
        super().__init__(sentence)


class AnswerTimeoutError(UnavailableError):
    """A server has not answered, read or let itself be reached in time; it may have done what it was asked."""


class RefusedError(MqtoolError):
    """A broker or name server has answered that it does not do what it was asked; the subclasses tell why."""

    exit_code = Status.UNAVAILABLE
    code: int
    address: str

    def __init__(self, address: str, code: int, remark: str | None) -> None:
        self.address = address
        self.code = code
        self.remark = remark
        super().__init__(f"{address} refuses: {(remark or f'response code {code}').strip()}")


class BusyError(RefusedError):
    """A server is overloaded, starting or stopping: later it may do it."""

    retriable = True


class AccessDeniedError(RefusedError, NotPermittedError):
    """A server does not let this client do that: its keys are wrong, or the topic may not be read or written."""

    exit_code = Status.NOT_PERMITTED


class UnknownTopicError(RefusedError, NotFoundError):
    """A server has no such topic."""

    exit_code = Status.NO_INPUT


class UnknownGroupError(RefusedError, NotFoundError):
    """A server has no such group."""

    exit_code = Status.NO_INPUT


class InvalidRequestError(RefusedError, UsageError):
    """A server cannot use what it was given: a filter, a parameter."""

    exit_code = Status.USAGE


class IllegalMessageError(RefusedError, BadDataError):
    """A broker takes no such message: it is too large, or its parts do not go together."""

    exit_code = Status.BAD_DATA


class SendError(MqtoolError):
    """A message that no broker has stored, after all attempts; it may be stored all the same where an answer was lost.

    ``errors`` holds what each attempt came to, ``brokers`` the name of the broker it went to. ``code``, ``address`` and
    ``retriable`` are those of the last attempt.
    """

    def __init__(self, topic: str, brokers: Sequence[str], errors: Sequence[MqtoolError], waited_ms: int) -> None:
        self.topic = topic
        self.brokers = [*brokers]
        self.errors = [*errors]
        last = errors[-1] if errors else UnavailableError("no attempt was made in time")
        self.exit_code, self.code, self.address = last.exit_code, last.code, last.address
        self.retriable = last.retriable
        attempts = f"{len(brokers)} attempt{'s' * (len(brokers) != 1)} in {waited_ms:,} ms"
        came_to = f"; the last: {last}" if errors else ""
        super().__init__(f"the message to {topic} could not be sent, {attempts}{came_to}")


class AcknowledgeError(MqtoolError):
    """Popped messages that were consumed but could not be acknowledged: they come again.

    ``messages`` holds them, ``errors`` why, in the same order; ``code``, ``address`` and ``retriable`` are the last's.
    """

    def __init__(self, messages: Sequence[Any], errors: Sequence[MqtoolError], count: int) -> None:
        self.messages = [*messages]
        self.errors = [*errors]
        last = errors[-1]
        self.exit_code, self.code, self.address = last.exit_code, last.code, last.address
        self.retriable = last.retriable
        super().__init__(f"{len(messages):,} of {count:,} messages could not be acknowledged, and come again; {last}")


class CallbackError(MqtoolError):
    """Code of the application raised what is no ordinary exception; ``__cause__`` is that."""

    def __init__(self, what: str, error: BaseException) -> None:
        super().__init__(f"the {what} raised {error!r}")


class MissingExtraError(MqtoolError):
    """Something needs a package that only an extra of mqtool installs."""

    exit_code = Status.UNAVAILABLE

    def __init__(self, what: str, extra: str) -> None:
        self.what = what
        self.extra = extra
        super().__init__(f"{what} needs a package that is not installed: pip install 'mqtool[{extra}]'")
