"""Clients: heartbeats, lists of clients, queue locks.

(Rules: remoting.md 3.3, 3.6. RocketMQ: ``ClientManageProcessor``, ``ConsumerManageProcessor``,
``AdminBrokerProcessor``.)
"""

from typing import TYPE_CHECKING, Any

from mqtool.engine.broker.clients import ClientChannelInfo
from mqtool.engine.broker.limits import check_name
from mqtool.formats.bodies import (
    build_body,
    build_consumer_list,
    build_locked_queues,
    parse_body,
    parse_heartbeat,
    parse_queue_locks,
    parse_subscription,
    subscription_members,
)
from mqtool.formats.codes import RequestCode
from mqtool.formats.headers import ConsumerGroup, ProducerGroup, UnregisterClient, parse_header
from mqtool.formats.signing import ACCESS_KEY

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor


def heartbeat(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Register a client; the groups that it changes are notified before it gets its answer."""
    command, session, now = request
    if broker.access:  # otherwise it is a meaningless text of any length
        identity = command.ext_fields.get(ACCESS_KEY, "")
        check_name(identity, "access key")
        session.identity = identity
    is_changed = broker.client_requests.heartbeat(session, parse_heartbeat(command.body), now)
    session.language, session.version = command.language, command.version
    # Clients of 5.x may leave out known subscriptions; "changed" makes them send these again.
    fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if is_changed else "false"}
    return command.answer(ext_fields=fields)


def unregister(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Unregister a client."""
    _, producer_group, consumer_group = parse_header(UnregisterClient, request.command.ext_fields)
    broker.client_requests.unregister(request.session, producer_group, consumer_group)
    return request.command.answer()


def check_config(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Answer whether a consumer's filter works here."""
    members = parse_body(request.command.body).get("subscriptionData")
    if isinstance(members, dict):
        subscription = parse_subscription(members)
        broker.client_requests.check_filter(subscription.expression_type, subscription.expression)
    return request.command.answer()


def consumer_list(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return the ids of the members of a group."""
    group = parse_header(ConsumerGroup, request.command.ext_fields).consumer_group
    return request.command.answer(body=build_consumer_list(broker.client_requests.consumer_ids(group)))


def consumer_connections(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return the members of a group and its subscriptions."""
    group = broker.client_requests.consumers(parse_header(ConsumerGroup, request.command.ext_fields).consumer_group)
    body = {
        "connectionSet": [_connection(client) for client in group.members.values()],
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": {
            topic: subscription_members(subscription) for topic, subscription in group.subscriptions.items()
        },
    }
    return request.command.answer(body=build_body(body))


def producer_connections(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return the members of a group of producers."""
    clients = broker.client_requests.producers(parse_header(ProducerGroup, request.command.ext_fields).producer_group)
    return request.command.answer(body=build_body({"connectionSet": [_connection(client) for client in clients]}))


def _connection(client: ClientChannelInfo) -> dict[str, Any]:
    return {
        "clientAddr": client.session.address,
        "clientId": client.client_id,
        "language": client.session.language,
        "version": client.session.version,
    }


def all_producers(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return all producers by group."""
    producers = broker.client_requests.all_producers()
    data = {group: [_producer(client) for client in clients] for group, clients in producers.items()}
    return request.command.answer(body=build_body({"data": data}))


def _producer(client: ClientChannelInfo) -> dict[str, Any]:
    return {
        "clientId": client.client_id,
        "language": client.session.language,
        "lastUpdateTimestamp": client.last_heard,
        "remoteIP": f"/{client.session.address}",  # in Java's form
        "version": client.session.version,
    }


def lock(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Lock queues for a consumer, unless another one holds them."""
    granted = broker.locks.lock(parse_queue_locks(request.command.body), request.now)
    return request.command.answer(body=build_locked_queues(granted))


def unlock(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Unlock the queues of a consumer."""
    broker.locks.unlock(parse_queue_locks(request.command.body))
    return request.command.answer()


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.CHECK_CLIENT_CONFIG: check_config,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: consumer_connections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: producer_connections,
    RequestCode.GET_ALL_PRODUCER_INFO: all_producers,
    RequestCode.LOCK_BATCH_MQ: lock,
    RequestCode.UNLOCK_BATCH_MQ: unlock,
}
