"""Calls to consumers that administrators make through a broker.

Each call takes a ``then``, which is called later with the consumer's answer, or with an ``OperationRefusedError`` if it
does not answer in time or cannot do it. All members of a group are asked at once.
(Rules: remoting.md 3.7. RocketMQ: ``AdminBrokerProcessor``, ``Broker2Client``.)
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mqtool.engine.broker.clients import Clients
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.sessions import ClientCall, Consume, TellOffsets, TellRunningInfo, Told
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.hosts import parse_message_id

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore

CALL_MS = 10_000
"""How long a consumer may take for an answer."""

ThenText = Callable[[bytes | OperationRefusedError, int], None]
OffsetsByClient = dict[str, Mapping[MessageQueue, Any]]
ThenOffsets = Callable[[OffsetsByClient, int], None]


class ClientCalls:
    """Calls to consumers, with the parts of a broker that they need."""

    def __init__(self, store: "MessageStore", clients: Clients) -> None:
        self._store = store
        self._clients = clients

    def running_info(self, client_call: TellRunningInfo, now: int, then: ThenText) -> None:
        """Request the running information of a consumer, in JSON.

        Raises:
            OperationRefusedError: it is not online, or too old.
            UnavailableError: too many of its answers are pending.
        """
        self._ask(client_call, now, then)

    def consume(
        self,
        group: str,
        client_id: str,
        message_id: str,
        names: tuple[str | None, str | None],
        now: int,
        then: ThenText,
    ) -> None:
        """Let a consumer consume one message now, and report the result in JSON.

        Args:
            group: of the consumer.
            client_id: of the consumer.
            message_id: of the message, with its address.
            names: of the broker and the topic, as sent to the consumer.
            now: the time, in ms.
            then: called with the result.

        Raises:
            OperationRefusedError: there is no such message, or the consumer is not online, or too old.
            UnavailableError: too many of its answers are pending.
        """
        try:
            record = bytes(self._store.log.record(parse_message_id(message_id)))
        except (NotFoundError, FormatError) as error:
            raise OperationRefusedError(Reason.NOT_POSSIBLE, str(error)) from None
        self._ask(Consume(group, client_id, message_id, *names, record), now, then)

    def _ask(self, client_call: TellRunningInfo | Consume, now: int, then: ThenText) -> None:
        group, client_id = client_call.group, client_call.client_id
        client = self._clients.consumer(group, client_id)
        if client is None:
            raise OperationRefusedError(Reason.NOT_POSSIBLE, f"The Consumer <{group}> <{client_id}> not online")
        session = client.session
        if not session.understands(client_call):
            text = f"The Consumer <{client_id}> Version <{session.version}> too low to finish, please upgrade it"
            raise OperationRefusedError(Reason.NOT_POSSIBLE, text)

        def told(answer: Told | None, now: int) -> None:
            if answer is None:
                then(OperationRefusedError(Reason.NO_ANSWER, f"consumer <{group}> <{client_id}> Timeout"), now)
            else:
                then(answer.refusal or answer.value, now)

        session.ask(client_call, now + CALL_MS, told)

    def offsets(self, group: str, topic: str, client_id: str | None, now: int, then: ThenOffsets) -> None:
        """Request the offsets in a topic from the consumers of a group, or from the one with a client id.

        Consumers that do not answer are left out.

        Raises:
            OperationRefusedError: no consumer is online.
            UnavailableError: too many answers of one of them are pending.
        """
        online = self._clients.group(group)
        if online is None:
            raise OperationRefusedError(Reason.NOT_POSSIBLE, f"No Any Consumer online in the consumer group: [{group}]")
        client_call: ClientCall = TellOffsets(group, topic)
        clients = [
            client
            for client in online.members.values()
            if client.session.understands(client_call) and client_id in (None, "", client.client_id)
        ]
        offsets_by_client: OffsetsByClient = {}
        waiting = len(clients)

        def collect(client_id: str) -> Callable[[Told | None, int], None]:
            def told(answer: Told | None, now: int) -> None:
                nonlocal waiting
                waiting -= 1
                if answer is not None and answer.refusal is None:
                    offsets_by_client[client_id] = answer.value
                if not waiting:
                    then(offsets_by_client, now)

            return told

        for client in clients:
            client.session.ask(client_call, now + CALL_MS, collect(client.client_id))
        if not clients:
            then(offsets_by_client, now)
