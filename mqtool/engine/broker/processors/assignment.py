"""Queues shared out by the broker, for clients that leave that to it: QUERY_ASSIGNMENT and the modes that go with it.

(Rules: remoting.md 3.3, 6.5. RocketMQ: ``QueryAssignmentProcessor``.)
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.refusal import Reason, RefusedError
from mqtool.engine.broker.processors.refusals import refusal
from mqtool.engine.broker.request_modes import BY_PULL, POP, PULL, RequestMode
from mqtool.errors import FormatError
from mqtool.formats.allocation import share_evenly, share_in_turn
from mqtool.formats.bodies import MessageQueue, build_body, parse_body
from mqtool.formats.codes import RequestCode
from mqtool.formats.config_tables import Table
from mqtool.formats.topics import RETRY_PREFIX

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request

_BROADCASTING = ("BROADCASTING", 0)
_ALL_QUEUES = -1
"""In place of a queue id: a pop may be given messages of any queue."""


STRATEGIES: dict[str, Callable[[int, int, int], Sequence[int]]] = {
    "AVG": share_evenly,
    "AVG_BY_CIRCLE": share_in_turn,
}
"""By the names that clients use: how many queues, how many members, which of them."""


def query(broker: "Broker", request: "Request") -> "Answer":
    """Tell a consumer which queues of a topic are its own; no list at all has it ask again later."""
    asked = parse_body(request.command.body)
    topic, group, client_id = (_text(asked, name) for name in ("topic", "consumerGroup", "clientId"))
    mode = BY_PULL if topic.startswith(RETRY_PREFIX) else broker.request_modes.get(topic, group)
    queues = _assigned(broker, topic, group, client_id, asked, mode)
    body: Table = {}
    if queues is not None:
        body["messageQueueAssignments"] = [
            {
                "messageQueue": {"brokerName": one.broker_name, "queueId": one.queue_id, "topic": topic},
                "mode": mode.mode,
            }
            for one in queues
        ]
    return request.command.answer(body=build_body(body))


def _assigned(
    broker: "Broker", topic: str, group: str, client_id: str, asked: Table, mode: RequestMode
) -> list[MessageQueue] | None:
    config = broker.topics.get(topic)
    if config is None:
        return None
    queues = [MessageQueue(topic, broker.settings.broker_name, one) for one in range(config.read_queue_count)]
    if asked.get("messageModel") in _BROADCASTING:
        return queues
    online = broker.clients.group(group)
    strategy = STRATEGIES.get(str(asked.get("strategyName")))
    if online is None or strategy is None:
        return None
    members = sorted({client.client_id for client in online.members.values()})
    if client_id not in members:
        return []
    index = members.index(client_id)
    if mode.mode != POP:
        return [queues[at] for at in strategy(len(queues), len(members), index)]
    if not 0 < mode.share_count < len(members) - 1:
        return [MessageQueue(topic, broker.settings.broker_name, _ALL_QUEUES)]
    if len(members) > len(queues):
        return [queues[index % len(queues)]]
    shared = ((index + step) % len(members) for step in range(mode.share_count + 1))
    return [queues[at] for member in shared for at in strategy(len(queues), len(members), member)]


def set_mode(broker: "Broker", request: "Request") -> "Answer":
    """Set how a group consumes a topic."""
    asked = parse_body(request.command.body)
    topic, group = _text(asked, "topic"), _text(asked, "consumerGroup")
    answer = request.command.answer()
    try:
        if topic.startswith(RETRY_PREFIX):
            raise RefusedError(Reason.NOT_ALLOWED, "retry topic is not allowed to set mode")
        if broker.topics.get(topic) is None:
            raise RefusedError(Reason.NO_TOPIC, f"topic[{topic}] not exist")
        if broker.groups.find(group, request.now) is None:
            raise RefusedError(Reason.NO_GROUP, f"subscription group [{group}] not exist")
        mode, share_count = asked.get("mode"), asked.get("popShareQueueNum")
        if mode not in (PULL, POP) or not isinstance(share_count or 0, int):
            raise RefusedError(Reason.BAD_ARGUMENT, f"there is no mode {mode}, {share_count}")
        broker.request_modes.set(topic, group, RequestMode(mode, share_count or 0))
    except RefusedError as refused:
        answer = refusal(request.command, refused)
    return answer


def list_modes(broker: "Broker", request: "Request") -> "Answer":
    """Tell which group consumes which topic how."""
    return request.command.answer(body=build_body(broker.request_modes.table()))


def _text(table: Table, name: str) -> str:
    value = table.get(name)
    if isinstance(value, str):
        return value
    raise FormatError(f"the body has no {name}", offset=0)


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.QUERY_ASSIGNMENT: query,
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_mode,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: list_modes,
}
