"""Sessions of remoting clients, and the requests that a broker sends to them."""

from collections.abc import Callable, Mapping

from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.outbox import Outbox
from mqtool.engine.broker.processors.refusals import REASONS
from mqtool.engine.broker.saves import Saves
from mqtool.engine.broker.sessions import (
    ClientCall,
    Consume,
    ConsumersChanged,
    Notice,
    OffsetsReset,
    Session,
    TakeReply,
    TellOffsets,
    TellRunningInfo,
    ThenTold,
    Told,
    TransactionCheck,
)
from mqtool.engine.broker.waiting_room import CALLS, Waiting, WaitingRoom
from mqtool.errors import FormatError, MqtoolError, UnavailableError
from mqtool.formats.bodies import MessageQueue, build_body, by_queue, parse_body
from mqtool.formats.codes import RequestCode, ResponseCode, Version
from mqtool.formats.headers import (
    CheckTransaction,
    ConsumeDirectly,
    ConsumerGroup,
    GetConsumerStatus,
    GetRunningInfo,
    PushReply,
    ResetOffset,
    build_header,
)
from mqtool.formats.hosts import host_text, parse_host
from mqtool.formats.new_message import Host, build_record, record_size, topic_field
from mqtool.formats.peer import Peer
from mqtool.formats.properties import add_property
from mqtool.formats.property_names import PUSH_REPLY_TIME
from mqtool.formats.remoting import ONEWAY, RemotingCommand
from mqtool.formats.topics import HALF_TOPIC

Then = Callable[[RemotingCommand | None, int], None]
"""What to do with an answer, None if none has come in time, and the time in ms."""

_NOBODY: Host = (bytes(4), 0)
_NO_ANSWER = object()


class RemotingOutbox(Outbox[RemotingCommand]):
    """Commands to send, and the numbers of the requests among them."""

    def __init__(self, room: WaitingRoom, broker_name: Callable[[], str]) -> None:
        super().__init__()
        self.room = room
        self.broker_name = broker_name
        self._opaque = 0

    def next_opaque(self) -> int:
        """Return a number for another request."""
        self._opaque = self._opaque % 0x7FFFFFFF + 1  # some clients treat 0 as missing
        return self._opaque


class RemotingSession(Session):
    """A connection of a client."""

    __slots__ = ("_outbox", "born_host", "peer")

    def __init__(self, peer: Peer, outbox: RemotingOutbox) -> None:
        super().__init__(peer.host, peer.address)
        self.peer = peer
        self._outbox = outbox
        try:
            self.born_host = parse_host(peer.address)
        except ValueError:  # a client that is already gone has no address
            self.born_host = _NOBODY

    def reply(self, answer: RemotingCommand, now: int) -> None:  # noqa: ARG002 - a ``Then`` of the waiting room
        """Send a delayed answer."""
        self._outbox.put(self.peer, answer)

    def reply_when_saved(
        self, saves: Saves, command: RemotingCommand, answer: RemotingCommand, changes: int, now: int
    ) -> None:
        """Send the answer to a command when the first ``changes`` of tables are on disk, or an error.

        Args:
            saves: of the broker.
            command: the command to answer.
            answer: sent on success.
            changes: how many; 0 for none.
            now: the time, in ms.
        """

        def then(failure: MqtoolError | None, now: int) -> None:
            failed = command.answer(ResponseCode.SYSTEM_ERROR, remark=str(failure)) if failure else None
            self.reply(failed or answer, now)

        saves.wait(changes, self, then, now)

    def tell(self, code: int, ext_fields: Mapping[str, str], body: bytes = b"") -> None:
        """Send a request without an answer."""
        request = RemotingCommand(code, ONEWAY, self._outbox.next_opaque(), dict(ext_fields), body)
        self._outbox.put(self.peer, request)

    def call(self, request: RemotingCommand, due: int, then: Then) -> None:
        """Send a request; ``then`` gets its answer, or None if it has not come by ``due`` (ms).

        Raises:
            UnavailableError: too many answers of this client are pending.
        """
        key, room = ("call", self), self._outbox.room
        if not room.has_room(CALLS, key):
            raise UnavailableError(f"{self.address} has {CALLS.most_of_key} unanswered requests: try again later")
        request.opaque = self._outbox.next_opaque()

        def ended(answer: object, now: int) -> None:
            then(answer if isinstance(answer, RemotingCommand) else None, now)

        room.add(Waiting(CALLS, key, self, due, _give_up, ended, offset=request.opaque))
        self._outbox.put(self.peer, request)

    def answered(self, answer: RemotingCommand, now: int) -> None:
        """Handle the answer to a request; unexpected ones are dropped."""
        waiting = self._outbox.room.take(("call", self), answer.opaque)
        if waiting is not None and waiting.then is not None:
            waiting.then(answer, now)

    def notify(self, notice: Notice) -> None:
        """Send a notification."""
        if isinstance(notice, ConsumersChanged):
            self.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, build_header(ConsumerGroup(notice.group)))
        elif isinstance(notice, OffsetsReset):
            if self.version >= Version.V3_0_7:
                fields = build_header(ResetOffset(notice.topic, notice.group, notice.timestamp, notice.is_forced))
                self.tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, self._reset_body(notice))
        else:
            fields = {**build_header(_check_header(notice)), "bname": self._outbox.broker_name()}
            self.tell(RequestCode.CHECK_TRANSACTION_STATE, fields, _check_body(notice))

    def understands(self, client_call: ClientCall) -> bool:
        """Return whether a client of this version supports a call."""
        return self.version >= _SINCE[type(client_call)]

    def ask(self, client_call: ClientCall, due: int, then: ThenTold) -> None:
        """Make a call."""
        request = _request_of(client_call)

        def ended(answer: RemotingCommand | None, now: int) -> None:
            then(None if answer is None else _told(client_call, answer), now)

        self.call(request, due, ended)

    def _reset_body(self, notice: OffsetsReset) -> bytes:
        queues = by_queue_of(notice.topic, self._outbox.broker_name(), notice.offsets)
        if self.language == "CPP":  # clients in C++ have no reader for a map whose keys are queues
            listed = [
                {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
                for queue, offset in queues.items()
            ]
            return build_body({"offsetTable": listed})
        return build_body({"offsetTable": queues})


def by_queue_of(topic: str, broker_name: str, offsets: Mapping[int, int]) -> dict[MessageQueue, int]:
    """Return offsets by queue, in the form of bodies."""
    return {MessageQueue(topic, broker_name, queue_id): offset for queue_id, offset in offsets.items()}


def _give_up(is_due: bool, now: int) -> object:  # noqa: ARG001
    return _NO_ANSWER if is_due else None


def _check_header(check: TransactionCheck) -> CheckTransaction:
    half = check.half
    return CheckTransaction(
        half.queue_offset, half.physical_offset, HALF_TOPIC, check.unique_key, check.transaction_id, check.message_id
    )


def _check_body(check: TransactionCheck) -> bytes:
    message, _, queue_offset, physical_offset, store_timestamp = check.half
    topic, properties = topic_field(message.topic), message.properties
    size = record_size(message, topic, len(properties))
    return build_record(message, topic, properties, size, queue_offset, physical_offset, store_timestamp)


# Calls

_SINCE = {
    TellRunningInfo: Version.V3_1_8,
    Consume: Version.V3_1_8,
    TellOffsets: Version.V3_0_7,
    TakeReply: 0,  # a client that requests replies accepts them
}
"""The first version of clients that can handle each call."""


def _request_of(client_call: ClientCall) -> RemotingCommand:
    match client_call:
        case TellRunningInfo():
            return RemotingCommand(
                RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields=build_header(GetRunningInfo(*client_call))
            )
        case Consume(record=record):
            fields = build_header(ConsumeDirectly(*client_call[:-1]))
            return RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields=fields, body=record)
        case TellOffsets(group, topic):
            fields = build_header(GetConsumerStatus(topic, group))
            return RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_fields=fields)
        case TakeReply(message=message):
            fields = build_header(_push_header(client_call))
            return RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext_fields=fields, body=message.body)


def _push_header(push: TakeReply) -> PushReply:
    message = push.message
    return PushReply(
        push.producer_group,
        message.topic,
        push.default_topic,
        push.default_queue_count,
        message.queue_id,
        message.sys_flag,
        message.born_timestamp,
        message.flag,
        host_text(*message.born_host),
        push.broker_address,
        push.pushed_at,
        add_property(message.properties, PUSH_REPLY_TIME, str(push.pushed_at)).decode(),
        message.reconsume_times,
        push.is_of_unit,
    )


def _told(client_call: ClientCall, answer: RemotingCommand) -> Told:
    if answer.code:
        return Told(refusal=OperationRefusedError(REASONS.get(answer.code, Reason.NOT_POSSIBLE), answer.remark or ""))
    if isinstance(client_call, TellOffsets):
        try:
            return Told(by_queue(parse_body(answer.body).get("messageQueueTable") or {}, "messageQueueTable"))
        except FormatError as error:  # the caller waits for the others, not for this client
            return Told(refusal=OperationRefusedError(Reason.NOT_POSSIBLE, str(error)))
    return Told(answer.body)
