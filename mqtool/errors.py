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
    """The base of all errors; its text is the message shown to the user.

    Attributes:
        code: RocketMQ's response code, if a server answered with one.
        address: of the server, if known.
        retriable: whether the same call may succeed later, because nothing is wrong with the request.
    """

    exit_code = Status.FAULT
    code: int | None = None
    address: str | None = None
    retriable = False


class FormatError(MqtoolError):
    """Bytes that do not match the format."""

    exit_code = Status.BAD_DATA

    def __init__(self, reason: str, offset: int) -> None:
        self.reason = reason
        self.offset = offset
        super().__init__(f"{reason} at offset {offset:,} ({offset:#x})")


class HeaderError(MqtoolError):
    """A command whose header lacks a required field, or has a field with an invalid value."""

    exit_code = Status.BAD_DATA

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"header field {field} {reason}")


class FilterError(MqtoolError):
    """A tag expression or SQL92 filter that a broker would refuse; ``position`` counts characters from 1."""

    exit_code = Status.USAGE

    def __init__(self, reason: str, position: int) -> None:
        self.reason = reason
        self.position = position
        super().__init__(f"cannot use this filter: {reason}, at character {position:,}")


class UsageError(MqtoolError):
    """Invalid arguments, or a combination of them."""

    exit_code = Status.USAGE


class BadDataError(MqtoolError):
    """A file that exists and is readable, but has unexpected contents."""

    exit_code = Status.BAD_DATA


class NotFoundError(MqtoolError):
    """No such store, file, topic or message."""

    exit_code = Status.NO_INPUT


class LimitError(MqtoolError):
    """A limit of a server on what it stores for its clients."""


class ReadError(MqtoolError):
    """The system could not read or write a file."""

    exit_code = Status.IO_ERROR


class WriteError(MqtoolError):
    """The system could not write a file: the disk is full, or fails."""

    exit_code = Status.IO_ERROR


class StoreInUseError(MqtoolError):
    """A running broker, or another repair, holds the store."""

    exit_code = Status.BUSY


class RecoveryNeededError(MqtoolError):
    """A store that cannot be written to as it is: its broker did not stop cleanly, or its files are inconsistent."""

    exit_code = Status.BAD_DATA


class StoreChangedError(MqtoolError):
    """A file of the store changed while it was being read: by a running broker, or by another program."""

    exit_code = Status.BUSY


class NotPermittedError(MqtoolError):
    """This user has no permission for a file, or on a server."""

    exit_code = Status.NOT_PERMITTED


class UnavailableError(MqtoolError):
    """No broker or name server answers, or not in time."""

    exit_code = Status.UNAVAILABLE
    retriable = True

    def __init__(self, sentence: str, address: str | None = None) -> None:
        self.address = address
        super().__init__(sentence)


class AnswerTimeoutError(UnavailableError):
    """A server could not be reached, did not read, or did not answer in time; it may have carried out the request."""


class RefusedError(MqtoolError):
    """A broker or name server refused the request; the subclasses say why."""

    exit_code = Status.UNAVAILABLE
    code: int
    address: str

    def __init__(self, address: str, code: int, remark: str | None) -> None:
        self.address = address
        self.code = code
        self.remark = remark
        super().__init__(f"{address} refused the request: {(remark or f'response code {code}').strip()}")


class BusyError(RefusedError):
    """A server is overloaded, starting or stopping; the request may succeed later."""

    retriable = True


class AccessDeniedError(RefusedError, NotPermittedError):
    """A server denies access to this client: its keys are wrong, or the topic is not readable or writable."""

    exit_code = Status.NOT_PERMITTED


class UnknownTopicError(RefusedError, NotFoundError):
    """A server does not have the topic."""

    exit_code = Status.NO_INPUT


class UnknownGroupError(RefusedError, NotFoundError):
    """A server does not have the group."""

    exit_code = Status.NO_INPUT


class InvalidRequestError(RefusedError, UsageError):
    """A server refused a parameter: for example, a filter."""

    exit_code = Status.USAGE


class IllegalMessageError(RefusedError, BadDataError):
    """A broker refused a message: it is too large, or its parts are inconsistent."""

    exit_code = Status.BAD_DATA


class SendError(MqtoolError):
    """A message that no broker has stored, after all attempts; it may be stored anyway if an answer was lost.

    ``errors`` holds the error of each attempt, ``brokers`` the name of the broker it was sent to. ``code``,
    ``address`` and ``retriable`` are those of the last attempt.
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
        super().__init__(f"could not send the message to {topic}: {attempts}{came_to}")


class AcknowledgeError(MqtoolError):
    """Popped messages that were consumed but could not be acknowledged, and will be delivered again.

    ``messages`` holds them, ``errors`` why, in the same order; ``code``, ``address`` and ``retriable`` are the
    last's.
    """

    def __init__(self, messages: Sequence[Any], errors: Sequence[MqtoolError], count: int) -> None:
        self.messages = [*messages]
        self.errors = [*errors]
        last = errors[-1]
        self.exit_code, self.code, self.address = last.exit_code, last.code, last.address
        self.retriable = last.retriable
        super().__init__(
            f"{len(messages):,} of {count:,} messages could not be acknowledged and will be delivered again; {last}"
        )


class CallbackError(MqtoolError):
    """Code of the application raised something that is not an ordinary exception; ``__cause__`` is that."""

    def __init__(self, callback_name: str, error: BaseException) -> None:
        super().__init__(f"the {callback_name} raised {error!r}")


class MissingExtraError(MqtoolError):
    """A package that an extra of mqtool installs is missing."""

    exit_code = Status.UNAVAILABLE

    def __init__(self, what: str, extra: str) -> None:
        self.what = what
        self.extra = extra
        super().__init__(f"{what} needs a package that is not installed: pip install 'mqtool[{extra}]'")
