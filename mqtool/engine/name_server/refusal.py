"""Why a name server does not do what it is asked for."""

import enum


class NameServerReason(enum.Enum):
    """Kinds of reasons, for programs; each door has a word for them."""

    NOT_ALLOWED = enum.auto()
    NOT_POSSIBLE = enum.auto()
    BAD_ARGUMENT = enum.auto()
    NO_TOPIC = enum.auto()


class NameServerRefusedError(Exception):
    """Something that is not done; its text says why, for people. Clients of RocketMQ match on some of these texts."""

    def __init__(self, reason: NameServerReason, text: str) -> None:
        self.reason = reason
        self.text = text
        super().__init__(text)
