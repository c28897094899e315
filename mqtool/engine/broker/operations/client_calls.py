"""What administrators have a broker ask its consumers.

Each call takes a ``then``, which is told later: what the consumer has said, or an ``OperationRefusedError`` where it
says nothing in time or cannot do it. All members of a group are asked at once.
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
    """Questions to consumers, on the parts of a broker that they need."""

    def __init__(self, store: "MessageStore", clients: Clients) -> None:
        self._store = store
        self._clients = clients

    def running_info(self, client_call: TellRunningInfo, now: int, then: ThenText) -> None:
        """Have a consumer say how it is doing, in JSON.

        Raises:
            OperationRefusedError: it is not there, or too old.
            UnavailableError: too many answers of it are expected already.
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
        """Have a consumer consume one message now, and tell in JSON what came of it.

        Args:
            group: of the consumer.
            client_id: of the consumer.
            message_id: of the message, with its address.
            names: of the broker and the topic, as the consumer is told.
            now: the time, in ms.
            then: is told.

        Raises:
            OperationRefusedError: there is no such message, or the consumer is not there, or too old.
            UnavailableError: too many answers of it are expected already.
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
        """Have the consumers of a group, or the one with a client id, say how far they have read a topic.

        Those that do not say are left out.

        Raises:
            OperationRefusedError: nobody is there.
            UnavailableError: too many answers of one of them are expected already.
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
