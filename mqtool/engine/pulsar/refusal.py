"""Why a request is refused, by Pulsar's error numbers."""

import enum


class PulsarError(enum.IntEnum):
    """Errors that clients know (Pulsar: ``ServerError``)."""

    UNKNOWN = 0
    METADATA = 1
    AUTHENTICATION = 3
    AUTHORIZATION = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    CHECKSUM = 9
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    TOPIC_TERMINATED = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN = 19
    NOT_ALLOWED = 22
    PRODUCER_FENCED = 25


class PulsarRefusedError(Exception):
    """A request that is refused; the text is for people."""

    def __init__(self, error: PulsarError, text: str) -> None:
        self.error = error
        self.text = text
        super().__init__(text)
