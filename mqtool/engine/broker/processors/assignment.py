"""Queues assigned by the broker, for clients with server-side rebalancing: QUERY_ASSIGNMENT and request modes.

(Rules: remoting.md 3.3, 6.5. RocketMQ: ``QueryAssignmentProcessor``.)
"""

from typing import TYPE_CHECKING

from mqtool.errors import FormatError
from mqtool.formats.bodies import build_body, parse_body
from mqtool.formats.codes import RequestCode
from mqtool.formats.config_tables import Table

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor

_BROADCASTING = ("BROADCASTING", 0)


def query(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return the queues of a topic assigned to a consumer; without a list it asks again later."""
    asked = parse_body(request.command.body)
    topic, group, client_id = (_text(asked, name) for name in ("topic", "consumerGroup", "clientId"))
    strategy, is_broadcast = str(asked.get("strategyName")), asked.get("messageModel") in _BROADCASTING
    mode, queue_ids = broker.assignments.assigned(topic, group, client_id, strategy, is_broadcast=is_broadcast)
    body: Table = {}
    if queue_ids is not None:
        name = broker.settings.broker_name
        body["messageQueueAssignments"] = [
            {"messageQueue": {"brokerName": name, "queueId": queue_id, "topic": topic}, "mode": mode}
            for queue_id in queue_ids
        ]
    return request.command.answer(body=build_body(body))


def set_mode(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Set how a group consumes a topic."""
    asked = parse_body(request.command.body)
    topic, group = _text(asked, "topic"), _text(asked, "consumerGroup")
    broker.assignments.set_mode(topic, group, asked.get("mode"), asked.get("popShareQueueNum"), request.now)
    return request.command.answer()


def list_modes(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return how each group consumes each topic."""
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
