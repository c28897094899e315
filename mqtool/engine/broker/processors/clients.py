"""Clients that come and go: heartbeats, the lists of who is there, locks of queues.

(Rules: remoting.md 3.3, 3.6. RocketMQ: ``ClientManageProcessor``, ``ConsumerManageProcessor``,
``AdminBrokerProcessor``.)
"""

from typing import TYPE_CHECKING, Any

from mqtool.engine.broker.clients import Client, size_of
from mqtool.engine.broker.limits import (
    MOST_GROUPS_IN_ALL,
    MOST_MEMBERS,
    MOST_OF_SUBSCRIPTIONS,
    MOST_TOPICS,
    check_name,
    check_room,
)
from mqtool.engine.broker.operations.filters import MOST_OF_FILTER, wanted_by_expression
from mqtool.engine.broker.operations.refusal import RefusedError
from mqtool.engine.broker.processors.refusals import refusal
from mqtool.engine.broker.sessions import Session
from mqtool.errors import LimitError
from mqtool.formats.bodies import (
    Heartbeat,
    build_body,
    build_consumer_list,
    build_locked_queues,
    parse_body,
    parse_heartbeat,
    parse_queue_locks,
    parse_subscription,
    subscription_members,
)
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.headers import ConsumerGroup, ProducerGroup, UnregisterClient, parse_header
from mqtool.formats.signing import ACCESS_KEY
from mqtool.formats.topics import RETRY_PREFIX

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request


MOST_GROUPS = 256
"""Groups of one client, of producers and of consumers each: every new one makes topics and is written down."""
MOST_SUBSCRIPTIONS = 1 << 12
"""Of all groups in a heartbeat."""


def heartbeat(broker: "Broker", request: "Request") -> "Answer":
    """Take note of a client; the groups that it changes are told before it gets its answer."""
    command, session, now = request
    beat = parse_heartbeat(command.body)
    try:
        fault = _too_much(broker, beat, session)
    except LimitError as error:
        fault = str(error)
    if fault:
        return command.answer(ResponseCode.INVALID_PARAMETER, remark=fault)
    session.identity = command.ext_fields.get(ACCESS_KEY, "")
    session.language, session.version = command.language, command.version
    client = Client(session, beat.client_id, now)
    is_changed = not beat.fingerprint
    groups = broker.groups.find_all([data.group for data in beat.consumers], now)
    known = [(data, group) for data, group in zip(beat.consumers, groups, strict=True) if group]
    broker.topics.of_groups(
        (
            (RETRY_PREFIX + data.group, group.retry_queue_count, data.unit_mode)
            for data, group in known
            if group.retry_queue_count > 0
        ),
        now,
    )
    for data, _ in known:
        broker.clients.register_consumer(data, client, keeps_subscriptions=beat.without_subscriptions)
        if beat.fingerprint:
            is_changed |= broker.clients.take_fingerprint(data.group, beat.fingerprint)
    for producer_group in beat.producer_groups:
        broker.clients.register_producer(producer_group, client)
    # Clients of 5.x may leave out subscriptions that are known; "changed" has them sent again.
    fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if is_changed else "false"}
    return command.answer(ext_fields=fields)


def _too_much(broker: "Broker", beat: Heartbeat, session: Session) -> str | None:
    """Return what there is too much of in a heartbeat, None where all of it is taken."""
    producers, consumers = broker.clients.groups_of(session)
    if (
        max(len(producers | {*beat.producer_groups}), len(consumers | {one.group for one in beat.consumers}))
        > MOST_GROUPS
    ):
        return f"a client has at most {MOST_GROUPS} groups of producers and of consumers each"
    subscriptions = [one for consumer in beat.consumers for one in consumer.subscriptions]
    for name in (beat.client_id, *beat.producer_groups, *(one.group for one in beat.consumers)):
        check_name(name, "name")
    for one in subscriptions:
        check_name(one.topic, "topic")
        check_name(one.expression_type, "expression type")
    clients, groups = broker.clients, {one.group for one in beat.consumers}
    new = len({*beat.producer_groups} - producers) + len(groups - consumers)
    check_room(clients.member_count, new, MOST_MEMBERS, "clients in groups")
    before = sum(size_of(online.subscriptions.values()) for one in groups if (online := clients.group(one)))
    size = max(0, size_of(subscriptions) - before)
    check_room(clients.subscription_size, size, MOST_OF_SUBSCRIPTIONS, "characters of subscriptions")
    check_room(len(broker.groups), sum(broker.groups.get(one) is None for one in groups), MOST_GROUPS_IN_ALL, "groups")
    new_topics = sum(broker.topics.get(RETRY_PREFIX + one) is None for one in groups)
    check_room(len(broker.topics.configs), new_topics, MOST_TOPICS, "topics")
    if len(subscriptions) > MOST_SUBSCRIPTIONS:
        return f"a heartbeat has at most {MOST_SUBSCRIPTIONS:,} subscriptions"
    for one in subscriptions:
        if max(len(one.expression), len(one.tags_codes), len(one.tags)) > MOST_OF_FILTER:
            return f"the filter for the topic [{one.topic[:200]}] is longer than {MOST_OF_FILTER:,} characters"
    return None


def unregister(broker: "Broker", request: "Request") -> "Answer":
    """Forget a client that says good-bye."""
    header = parse_header(UnregisterClient, request.command.ext_fields)
    if header.producer_group:
        broker.clients.unregister_producer(header.producer_group, request.session)
    if header.consumer_group:
        broker.clients.unregister_consumer(header.consumer_group, request.session)
    return request.command.answer()


def check_config(broker: "Broker", request: "Request") -> "Answer":
    """Tell a consumer whether its filter will work here."""
    members = parse_body(request.command.body).get("subscriptionData")
    answer = request.command.answer()
    if isinstance(members, dict):
        subscription = parse_subscription(members)
        kind = subscription.expression_type
        if kind != "TAG" and not broker.settings.sql92_enabled:
            remark = f"The broker does not support consumer to filter message by {kind}"
            answer = request.command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        elif kind != "TAG":
            try:
                wanted_by_expression(kind, subscription.expression)
            except RefusedError as refused:
                answer = refusal(request.command, refused)
    return answer


def consumer_list(broker: "Broker", request: "Request") -> "Answer":
    """Return the ids of the members of a group."""
    name = parse_header(ConsumerGroup, request.command.ext_fields).consumer_group
    group = broker.clients.group(name)
    if group is None:
        remark = f"no consumer for this group, {name}"
        answer = request.command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    else:
        body = build_consumer_list(dict.fromkeys(client.client_id for client in group.members.values()))
        answer = request.command.answer(body=body)
    return answer


def consumer_connections(broker: "Broker", request: "Request") -> "Answer":
    """Return the members of a group and what it has subscribed to."""
    name = parse_header(ConsumerGroup, request.command.ext_fields).consumer_group
    group = broker.clients.group(name)
    if group is None:
        remark = f"the consumer group[{name}] not online"
        return request.command.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark=remark)
    body = {
        "connectionSet": [_connection(client) for client in group.members.values()],
        "consumeFromWhere": group.consume_from_where,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": {topic: subscription_members(one) for topic, one in group.subscriptions.items()},
    }
    return request.command.answer(body=build_body(body))


def producer_connections(broker: "Broker", request: "Request") -> "Answer":
    """Return the members of a group of producers."""
    name = parse_header(ProducerGroup, request.command.ext_fields).producer_group
    clients = broker.clients.producers(name)
    if not clients:
        remark = f"the producer group[{name}] not exist"
        return request.command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    body = build_body({"connectionSet": [_connection(client) for client in clients]})
    return request.command.answer(body=body)


def all_producers(broker: "Broker", request: "Request") -> "Answer":
    """Return all producers by group."""
    producers = {
        group: [
            {
                "clientId": client.client_id,
                "language": client.session.language,
                "lastUpdateTimestamp": client.last_heard,
                "remoteIP": f"/{client.session.address}",  # as Java tells an address
                "version": client.session.version,
            }
            for client in broker.clients.producers(group)
        ]
        for group in broker.clients.producer_groups()
    }
    return request.command.answer(body=build_body({"data": producers}))


def _connection(client: Client) -> dict[str, Any]:
    return {
        "clientAddr": client.session.address,
        "clientId": client.client_id,
        "language": client.session.language,
        "version": client.session.version,
    }


def lock(broker: "Broker", request: "Request") -> "Answer":
    """Lock queues for a consumer, those that no other holds."""
    granted = broker.locks.lock(parse_queue_locks(request.command.body), request.now)
    return request.command.answer(body=build_locked_queues(granted))


def unlock(broker: "Broker", request: "Request") -> "Answer":
    """Let go of the queues of a consumer."""
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
