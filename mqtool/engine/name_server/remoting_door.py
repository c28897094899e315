"""The door between remoting commands and a name server: a row for each request code.

(Rules: remoting.md 2. RocketMQ: ``DefaultRequestProcessor``, ``ClientRequestProcessor``.)
"""

import hashlib
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from mqtool.engine.name_server.name_server import NameServer, Registering
from mqtool.engine.name_server.refusal import NameServerReason, NameServerRefusedError
from mqtool.formats.bodies import (
    build_body,
    build_cluster_info,
    build_kv_table,
    build_route,
    build_topic_list,
    parse_registration,
    parse_route,
    version_members,
)
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import data_version, parse_table
from mqtool.formats.headers import (
    BrokerHeartbeat,
    BrokerIdentity,
    BrokerMemberGroup,
    BrokerName,
    ClusterName,
    DeleteTopicInNameServer,
    GetRoute,
    KvConfigKey,
    KvNamespace,
    PutKvConfig,
    QueryDataVersionResponse,
    RegisterBroker,
    RegisterBrokerResponse,
    TopicName,
    build_header,
    parse_header,
)
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import Outgoing, RemotingCommand
from mqtool.formats.settings import build_settings, parse_settings

MAX_OF_BODY, MAX_OF_REGISTRATION = 1 << 20, 1 << 22
"""Bytes of a request's body: it is parsed while all others wait."""

_CODES = {
    NameServerReason.NOT_ALLOWED: ResponseCode.NO_PERMISSION,
    NameServerReason.NOT_POSSIBLE: ResponseCode.SYSTEM_ERROR,
    NameServerReason.BAD_ARGUMENT: ResponseCode.INVALID_PARAMETER,
    NameServerReason.NO_TOPIC: ResponseCode.TOPIC_NOT_EXIST,
}


class NameServerRequest(NamedTuple):
    """A command, who sends it, and when (ms)."""

    command: RemotingCommand
    peer: Peer
    now: int


class NameServerDoor:
    """Stands between remoting commands and a name server: what a server asks of a handler."""

    def __init__(self, rules: NameServer) -> None:
        self.rules = rules
        self._waiting: deque[tuple[int, Outgoing]] = deque()  # answers, by changes of the kv config

    def handle(self, command: RemotingCommand, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Return the answer to a request."""
        if command.is_response:
            return ()
        changes = self.rules.kv.changes
        answer = self._answer(NameServerRequest(command, peer, now))
        if self.rules.kv.changes == changes:
            return ((peer, answer),)
        if not command.is_oneway:
            self._waiting.append((self.rules.kv.changes, (peer, answer)))
        return ()

    def kept_kv(self, changes: int, failure: str) -> Iterable[Outgoing]:
        """Return the answers to the first changes of the kv config, which are written; or why they are not."""
        answers: list[Outgoing] = []
        while self._waiting and self._waiting[0][0] <= changes:
            peer, answer = self._waiting.popleft()[1]
            if failure:
                answer.code, answer.remark = ResponseCode.SYSTEM_ERROR, failure
            answers.append((peer, answer))
        return answers

    def _answer(self, request: NameServerRequest) -> RemotingCommand:
        command = request.command
        most = MAX_OF_REGISTRATION if command.code == RequestCode.REGISTER_BROKER else MAX_OF_BODY
        if len(command.body) > most:
            remark = f"the body of this request has at most {most:,} bytes"
            return command.answer(ResponseCode.INVALID_PARAMETER, remark=remark)
        processor = PROCESSORS.get(command.code)
        if processor is None:
            remark = f" request type {command.code} not supported"
            return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            return processor(self.rules, request)
        except NameServerRefusedError as refused:
            return command.answer(_CODES[refused.reason], remark=refused.text)

    def closed(self, peer: Peer, now: int) -> Iterable[Outgoing]:  # noqa: ARG002
        """Note that a connection has ended."""
        self.rules.closed(peer)
        return ()

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Do what is due."""
        self.rules.tick(now)
        return ()

    def next_tick(self, now: int) -> int:  # noqa: ARG002
        """Return when something is due."""
        return self.rules.next_tick()


# Brokers


def _register_broker(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    command = request.command
    header = parse_header(RegisterBroker, command.ext_fields)
    if header.body_crc32 and zlib.crc32(command.body) & 0x7FFFFFFF != header.body_crc32:
        return command.answer(ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
    broker = Registering(
        header.broker_name,
        header.broker_addr,
        header.cluster_name,
        header.broker_id,
        header.ha_server_addr,
        header.heartbeat_timeout_millis,
        bool(header.enable_acting_master),
    )
    digest = hashlib.sha256(command.body, usedforsecurity=False)
    digest.update(repr((broker, header.compressed)).encode("utf-8", "replace"))
    registered = rules.register_again(broker, request.peer, request.now, digest.digest())
    if registered is None:
        registration = parse_registration(command.body, compressed=header.compressed)
        registered = rules.register(broker, registration, request.peer, request.now, digest=digest.digest())
    master, order = registered
    response = RegisterBrokerResponse(master.ha_address, master.address) if master else RegisterBrokerResponse()
    return command.answer(ext_fields=build_header(response), body=build_kv_table(order) if order else b"")


def _unregister_broker(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    header = parse_header(BrokerIdentity, request.command.ext_fields)
    rules.routes.unregister(header.cluster_name, header.broker_addr, header.broker_name)
    return request.command.answer()


def _heartbeat(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    header = parse_header(BrokerHeartbeat, request.command.ext_fields)
    rules.routes.heard((header.cluster_name, header.broker_addr), request.now, header.heartbeat_timeout_mills)
    return request.command.answer()


def _query_data_version(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    command = request.command
    header = parse_header(BrokerIdentity, command.ext_fields)
    version = data_version({"dataVersion": parse_table(command.body)}) if command.body else None
    changed, known = rules.check_version(header.cluster_name, header.broker_addr, version, request.now)
    body = build_body(version_members(known)) if known else b""
    return command.answer(ext_fields=build_header(QueryDataVersionResponse(changed)), body=body)


def _get_cluster_info(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    return request.command.answer(body=build_cluster_info(rules.routes.cluster_info()))


def _get_member_group(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    cluster, name = parse_header(BrokerMemberGroup, request.command.ext_fields)
    group = {"brokerAddrs": rules.members(cluster, name), "brokerName": name, "cluster": cluster}
    return request.command.answer(body=build_body({"brokerMemberGroup": group}))


def _set_writable(
    rules: NameServer, request: NameServerRequest, is_writable: bool, count_field: str
) -> RemotingCommand:
    name = parse_header(BrokerName, request.command.ext_fields).broker_name
    return request.command.answer(ext_fields={count_field: str(rules.routes.set_writable(name, is_writable))})


# Topics


def _get_route(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    route = rules.route(parse_header(GetRoute, request.command.ext_fields).topic, request.now)
    # Peers before 4.9.4 are used to another dialect, but read this one as well.
    return request.command.answer(body=build_route(route))


def _get_topics(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    return request.command.answer(body=build_topic_list(rules.topics()))


def _get_topics_of_cluster(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    cluster = parse_header(ClusterName, request.command.ext_fields).cluster
    return request.command.answer(body=build_topic_list(rules.topics_of_cluster(cluster)))


def _get_system_topics(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    return request.command.answer(body=build_topic_list(*rules.system_topics()))


def _get_unit_topics(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    return request.command.answer(body=build_topic_list(rules.unit_topics()))


def _get_unit_sub_topics(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    return request.command.answer(body=build_topic_list(rules.unit_sub_topics()))


def _get_unit_sub_only_topics(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    return request.command.answer(body=build_topic_list(rules.unit_sub_only_topics()))


def _delete_topic(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    header = parse_header(DeleteTopicInNameServer, request.command.ext_fields)
    rules.delete_topic(header.topic, header.cluster_name or None)
    return request.command.answer()


def _register_topic(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    topic = parse_header(TopicName, request.command.ext_fields).topic
    rules.register_topic(topic, parse_route(request.command.body).queues)
    return request.command.answer()


# Kv config and settings


def _put_kv(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    header = parse_header(PutKvConfig, request.command.ext_fields)
    rules.kv.put(header.namespace, header.key, header.value)
    return request.command.answer()


def _get_kv(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    header = parse_header(KvConfigKey, request.command.ext_fields)
    value = rules.kv.get(header.namespace, header.key)
    if value is None:
        remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
        return request.command.answer(ResponseCode.QUERY_NOT_FOUND, remark=remark)
    return request.command.answer(ext_fields={"value": value})


def _delete_kv(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    header = parse_header(KvConfigKey, request.command.ext_fields)
    rules.kv.delete(header.namespace, header.key)
    return request.command.answer()


def _get_kv_list(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    namespace = parse_header(KvNamespace, request.command.ext_fields).namespace
    pairs = rules.kv.of(namespace)
    if pairs is None:
        remark = f"No config item, Namespace: {namespace}"
        return request.command.answer(ResponseCode.QUERY_NOT_FOUND, remark=remark)
    return request.command.answer(body=build_kv_table(pairs))


def _update_config(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    rules.update_settings(parse_settings(request.command.body.decode("utf-8", "replace")))
    return request.command.answer()


def _get_config(rules: NameServer, request: NameServerRequest) -> RemotingCommand:
    return request.command.answer(body=build_settings(rules.settings.texts()).encode())


PROCESSORS: Mapping[int, Callable[[NameServer, NameServerRequest], RemotingCommand]] = {
    RequestCode.PUT_KV_CONFIG: _put_kv,
    RequestCode.GET_KV_CONFIG: _get_kv,
    RequestCode.DELETE_KV_CONFIG: _delete_kv,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _get_kv_list,
    RequestCode.REGISTER_BROKER: _register_broker,
    RequestCode.UNREGISTER_BROKER: _unregister_broker,
    RequestCode.BROKER_HEARTBEAT: _heartbeat,
    RequestCode.QUERY_DATA_VERSION: _query_data_version,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _get_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: _get_cluster_info,
    RequestCode.GET_BROKER_MEMBER_GROUP: _get_member_group,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: partial(_set_writable, is_writable=False, count_field="wipeTopicCount"),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: partial(_set_writable, is_writable=True, count_field="addTopicCount"),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _get_topics,
    RequestCode.GET_TOPICS_BY_CLUSTER: _get_topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _get_system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: _get_unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _get_unit_sub_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _get_unit_sub_only_topics,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _register_topic,
    RequestCode.UPDATE_NAMESRV_CONFIG: _update_config,
    RequestCode.GET_NAMESRV_CONFIG: _get_config,
}
"""By request code."""
