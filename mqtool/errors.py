"""Every error that mqtool raises on purpose, and the exit status it stands for.

An error words its sentence once (what, where, what to do) and keeps its facts as attributes.
"""

import enum


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
    """The base of all errors; its text is the sentence that a user reads."""

    exit_code = Status.FAULT


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
    """The file system does not let this user read or write."""

    exit_code = Status.NOT_PERMITTED


class UnavailableError(MqtoolError):
    """No broker or name server answers, or not in time."""

    exit_code = Status.UNAVAILABLE


class MissingExtraError(MqtoolError):
    """Something needs a package that only an extra of mqtool installs."""

    exit_code = Status.UNAVAILABLE

    def __init__(self, what: str, extra: str) -> None:
        self.what = what
        self.extra = extra
        super().__init__(f"{what} needs a package that is not installed: pip install 'mqtool[{extra}]'")
