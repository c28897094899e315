"""Consumers: how far they have read, resets, and questions that are passed on to them.

(Rules: remoting.md 3.2, 3.7. RocketMQ: ``ConsumerManageProcessor``, ``AdminBrokerProcessor``, ``Broker2Client``.)
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mqtool.engine.broker.consumer_offsets import UNKNOWN
from mqtool.engine.broker.processors.session import Then, remoting_session
from mqtool.engine.store.live_pull import is_in_memory
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.bodies import MessageQueue, build_body, by_queue, parse_body
from mqtool.formats.codes import RequestCode, ResponseCode, Version
from mqtool.formats.config_tables import Table, TopicConfig
from mqtool.formats.headers import (
    ConsumeDirectly,
    GetConsumerStatus,
    GetRunningInfo,
    OffsetResponse,
    QueryConsumerOffset,
    ResetOffset,
    UpdateConsumerOffset,
    build_header,
    parse_header,
)
from mqtool.formats.hosts import parse_message_id
from mqtool.formats.remoting import RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request

CALL_MS = 10_000
"""How long a consumer may take for an answer that is passed on."""

_NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


# Offsets


def query_offset(broker: "Broker", request: "Request") -> "Answer":
    """Return what a group reads next of a queue."""
    command = request.command
    header = parse_header(QueryConsumerOffset, command.ext_fields)
    offset = broker.offsets.get(header.consumer_group, header.topic, header.queue_id)
    if offset < 0:
        offset = _first_offset(broker, header)
    if offset < 0:
        return command.answer(ResponseCode.QUERY_NOT_FOUND, remark=_NOT_FOUND)
    return command.answer(ext_fields=build_header(OffsetResponse(offset)))


def _first_offset(broker: "Broker", header: QueryConsumerOffset) -> int:
    """Return where a group begins that has not read a queue yet: at 0 while the queue is young enough."""
    queue = broker.store.queue(header.topic, header.queue_id)
    if header.set_zero_if_not_found is False or queue is None or queue.min_offset(broker.store.log.min_offset) > 0:
        return UNKNOWN
    units = queue.units(0, 1)
    return 0 if units and is_in_memory(broker.store, units[0].physical_offset) else UNKNOWN


def update_offset(broker: "Broker", request: "Request") -> "Answer":
    """Take what a group reads next of a queue."""
    command = request.command
    group, topic, queue_id, offset = parse_header(UpdateConsumerOffset, command.ext_fields)
    if broker.groups.get(group) is None:
        remark = f"Group {group} not exist!"
        return command.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
    if (config := broker.topics.get(topic)) is None:
        return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"Topic {topic} not exist!")
    # RocketMQ takes any number; made-up ones would fill the table. A topic may have had more queues before.
    if not 0 <= queue_id < max(config.read_queue_count, config.write_queue_count) and (
        broker.offsets.get(group, topic, queue_id) == UNKNOWN
    ):
        return command.answer(ResponseCode.INVALID_PARAMETER, remark=f"Topic {topic} has no queue {queue_id}")
    if broker.offsets.has_reset(group, topic, queue_id):
        return command.answer(remark="Offset has been previously reset")
    broker.offsets.check_room(group, topic, queue_id)
    broker.offsets.commit(group, topic, queue_id, offset)
    return command.answer()


# Resets


class _ResetError(Exception):
    """A reset that cannot be; its text becomes the remark of the answer."""


def reset(broker: "Broker", request: "Request") -> "Answer":
    """Set what a group reads next of one queue or all queues of a topic.

    The next pull of each queue is told so, one that waits at once; where ``useServerSideResetOffset`` is false, the
    consumers are told to do it themselves, as brokers before 5.0 have it.
    """
    command = request.command
    header = parse_header(ResetOffset, command.ext_fields)
    topic = broker.topics.get(header.topic)
    if topic is None:
        remark = f"Topic {header.topic} does not exist"
        return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
    if broker.groups.get(header.group) is None:
        remark = f"Group {header.group} does not exist"
        return command.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
    try:
        if broker.settings.server_side_reset:
            targets = _targets(broker, header, topic)
            broker.offsets.check_room(header.group, header.topic)
            for queue_id, offset in targets.items():
                broker.offsets.reset(header.group, header.topic, queue_id, offset)
                broker.room.wake((header.topic, queue_id))
            body = build_body({"offsetTable": _by_queue(broker, header.topic, targets)})
            return command.answer(body=body)
        return _reset_by_consumers(broker, request, header, topic)
    except _ResetError as error:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))


def _targets(broker: "Broker", header: ResetOffset, topic: TopicConfig) -> dict[int, int]:
    """Return the new offset of each queue."""
    ids = range(topic.read_queue_count) if header.queue_id < 0 else [header.queue_id]
    if not ids or max(ids) >= topic.read_queue_count:
        raise _ResetError(f"the topic {header.topic} has no queue to be reset")
    targets = {}
    for queue_id in ids:
        if header.offset is None or header.offset < 0:
            targets[queue_id] = _offset_at(broker, header.topic, queue_id, header.timestamp)
            continue
        low, high = _range(broker, header.topic, queue_id)
        if not low <= header.offset <= high + 1:
            raise _ResetError(f"Target offset {header.offset} not in consume queue range [{low}-{high}]")
        targets[queue_id] = header.offset
    return targets


def _reset_by_consumers(broker: "Broker", request: "Request", header: ResetOffset, topic: TopicConfig) -> "Answer":
    targets = {}
    for queue_id in range(topic.write_queue_count):
        committed = broker.offsets.get(header.group, header.topic, queue_id)
        if committed < 0:
            raise _ResetError(f"THe consumer group <{header.group}> not exist")
        target = _offset_at(broker, header.topic, queue_id, header.timestamp)
        targets[queue_id] = target if header.is_force else min(target, committed)
    online = broker.clients.group(header.group)
    if online is None:
        remark = f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {header.topic}"
        return request.command.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
    queues = _by_queue(broker, header.topic, targets)
    fields = build_header(header._replace(queue_id=-1, offset=None))
    for client in online.members.values():
        if client.session.version >= Version.V3_0_7:
            body = build_body({"offsetTable": _for_cpp(queues) if client.session.language == "CPP" else queues})
            remoting_session(client.session).tell(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
    return request.command.answer(body=build_body({"offsetTable": queues}))


def _offset_at(broker: "Broker", topic: str, queue_id: int, timestamp: int) -> int:
    queue = broker.store.queue(topic, queue_id)
    if queue is None:
        return 0
    return queue.next_offset if timestamp < 0 else broker.store.offset_at(queue, timestamp)


def _range(broker: "Broker", topic: str, queue_id: int) -> tuple[int, int]:
    queue = broker.store.queue(topic, queue_id)
    return (queue.min_offset(broker.store.log.min_offset), queue.next_offset) if queue else (0, 0)


def _by_queue(broker: "Broker", topic: str, offsets: Mapping[int, int]) -> dict[MessageQueue, int]:
    name = broker.settings.broker_name
    return {MessageQueue(topic, name, queue_id): offset for queue_id, offset in offsets.items()}


def _for_cpp(queues: Mapping[MessageQueue, int]) -> list[Table]:
    # Clients in C++ have no reader for a map whose keys are queues.
    return [
        {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
        for queue, offset in queues.items()
    ]


# Questions that are passed on


def running_info(broker: "Broker", request: "Request") -> "Answer":
    """Let a consumer tell how it is doing."""
    header = parse_header(GetRunningInfo, request.command.ext_fields)
    return _pass_on(broker, request, header.consumer_group, header.client_id)


def consume_directly(broker: "Broker", request: "Request") -> "Answer":
    """Let a consumer consume one message now."""
    command = request.command
    header = parse_header(ConsumeDirectly, command.ext_fields)
    try:
        record = bytes(broker.store.log.record(parse_message_id(header.msg_id or "")))
    except (NotFoundError, FormatError) as error:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
    return _pass_on(broker, request, header.consumer_group, header.client_id or "", record)


def _pass_on(broker: "Broker", request: "Request", group: str, client_id: str, body: bytes = b"") -> "Answer":
    """Send a request on to a consumer, and its answer back to who asked."""
    command, session, now = request
    client = broker.clients.consumer(group, client_id)
    if client is None:
        remark = f"The Consumer <{group}> <{client_id}> not online"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    if client.session.version < Version.V3_1_8:
        remark = f"The Consumer <{client_id}> Version <{client.session.version}> too low to finish, please upgrade it"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)

    def pass_back(answer: RemotingCommand | None, now: int) -> None:
        if answer is None:
            remark = f"consumer <{group}> <{client_id}> Timeout"
            passed = command.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
        else:
            passed = command.answer(answer.code, answer.ext_fields, answer.body, answer.remark)
        session.reply(passed, now)

    asked = RemotingCommand(command.code, ext_fields=command.ext_fields, body=body)
    remoting_session(client.session).call(asked, now + CALL_MS, pass_back)
    return None


def consumer_status(broker: "Broker", request: "Request") -> "Answer":
    """Ask the consumers of a group, or the one with a client id, how far they have read a topic."""
    command, session, now = request
    header = parse_header(GetConsumerStatus, command.ext_fields)
    online = broker.clients.group(header.group)
    if online is None:
        remark = f"No Any Consumer online in the consumer group: [{header.group}]"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    clients = [
        client
        for client in online.members.values()
        if client.session.version >= Version.V3_0_7 and header.client_addr in (None, "", client.client_id)
    ]
    fields = build_header(GetConsumerStatus(header.topic, header.group))
    found: dict[str, Any] = {}
    waiting = len(clients)

    def collect(client_id: str) -> Then:
        def take(answer: RemotingCommand | None, now: int) -> None:
            nonlocal waiting
            waiting -= 1
            if answer is not None and answer.code == 0:
                table = parse_body(answer.body).get("messageQueueTable") or {}
                found[client_id] = by_queue(table, "messageQueueTable")
            if not waiting:
                session.reply(finish(), now)

        return take

    def finish() -> RemotingCommand:
        return command.answer(body=build_body({"consumerTable": found}))

    if not clients:
        return finish()
    for client in clients:
        asked = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_fields=dict(fields))
        remoting_session(client.session).call(asked, now + CALL_MS, collect(client.client_id))
    return None


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: reset,
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_status,
}
