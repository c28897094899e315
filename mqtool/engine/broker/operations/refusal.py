"""Why a broker refuses a request."""

import enum


class Reason(enum.Enum):
    """Kinds of reasons, for programs; each door has its own codes for them."""

    NOT_ALLOWED = enum.auto()
    NOT_POSSIBLE = enum.auto()
    UNAVAILABLE = enum.auto()
    NOT_SUPPORTED = enum.auto()
    BAD_ARGUMENT = enum.auto()
    NO_TOPIC = enum.auto()
    NO_GROUP = enum.auto()
    NO_MESSAGE = enum.auto()
    NOT_FOUND = enum.auto()
    NOT_ONLINE = enum.auto()
    NO_ANSWER = enum.auto()
    BAD_MESSAGE = enum.auto()
    NOT_SUBSCRIBED = enum.auto()
    OLD_SUBSCRIPTION = enum.auto()
    NO_FILTER = enum.auto()
    BAD_FILTER = enum.auto()
    BAD_HANDLE = enum.auto()
    TOO_LATE = enum.auto()
    ONLY_BY_CHECK = enum.auto()


class Forbids(enum.IntEnum):
    """What forbids reading (RocketMQ: ``ForbiddenType``)."""

    BROKER = 1
    GROUP = 2
    TOPIC = 3
    BROADCAST = 4
    SUBSCRIPTION = 5


class OperationRefusedError(Exception):
    """A refused operation; its text says why, for people. RocketMQ clients match on some of these texts."""

    def __init__(self, reason: Reason, text: str, forbids: Forbids | None = None) -> None:
        self.reason = reason
        self.text = text
        self.forbids = forbids
        super().__init__(text)
