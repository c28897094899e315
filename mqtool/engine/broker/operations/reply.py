"""Replies: pushed to the requesting client, and stored.

(Rules: remoting.md 3.2. RocketMQ: ``ReplyMessageProcessor``.)
"""

from collections.abc import Callable
from typing import NamedTuple

from mqtool.engine.broker.clients import Clients
from mqtool.engine.broker.intake import Intake
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.operations.send import NewTopic, Sends
from mqtool.engine.broker.sessions import TakeReply, Told
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.store.append_result import AppendResult
from mqtool.formats.new_message import NewMessage
from mqtool.formats.properties import find_property, probe_of
from mqtool.formats.property_names import REPLY_TO_CLIENT

PUSH_MS = 10_000
"""How long a client may take to acknowledge a reply."""
_REPLY_TO = probe_of(REPLY_TO_CLIENT)


class Replied(NamedTuple):
    """A reply that the requesting client has received."""

    result: AppendResult | None  # of storing it, None if replies are not stored
    queue_id: int


Then = Callable[[Replied | OperationRefusedError, int], None]


class Replies:
    """Replies, with the parts of a broker that they need."""

    def __init__(self, intake: Intake, state: BrokerState, sends: Sends, clients: Clients) -> None:
        self._intake = intake
        self._state = state
        self._sends = sends
        self._clients = clients

    def reply(self, message: NewMessage, like: NewTopic, producer_group: str, now: int, then: Then) -> None:
        """Push a reply to the requesting client; ``then`` is called when the client has received or refused it.

        Raises:
            OperationRefusedError: the reply is invalid, or that client is not connected.
            LimitError: there are too many topics.
            UnavailableError: too many of its answers are pending.
        """
        self._sends.prepare(message, like, now)
        asking = find_property(message.properties, _REPLY_TO).decode("utf-8", "replace")
        client = self._clients.producer(asking)
        if client is None:
            raise OperationRefusedError(
                Reason.NOT_POSSIBLE, f"push reply message fail, channel of <{asking}> not found."
            )

        def told(answer: Told | None, now: int) -> None:
            result = self._intake.put(message, now) if self._state.settings.store_replies else None
            if answer is None or answer.refusal is not None:
                then(OperationRefusedError(Reason.NOT_POSSIBLE, f"push reply message to <{asking}> fail."), now)
            else:
                then(Replied(result, message.queue_id), now)

        push = TakeReply(message, producer_group, *like, self._state.address, now)
        client.session.ask(push, now + PUSH_MS, told)
