"""A name server: what it answers to brokers, clients and administrators.

(RocketMQ: ``DefaultRequestProcessor``, ``ClientRequestProcessor``, ``KVConfigManager``.)
"""

import contextlib
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from mqtool.engine.name_server.route_table import SILENCE_MS, LiveBroker, RouteTable
from mqtool.engine.name_server.settings import NameServerSettings
from mqtool.errors import FormatError, UsageError
from mqtool.formats.bodies import (
    BrokerData,
    Registration,
    build_body,
    build_cluster_info,
    build_kv_table,
    build_route,
    build_topic_list,
    parse_registration,
    parse_route,
    version_members,
)
from mqtool.formats.codes import RequestCode, ResponseCode, TopicSysFlag
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

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
_PROTECTED = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
"""Settings that no request may change: a path in them would be a way to write files."""


class _Request(NamedTuple):
    command: RemotingCommand
    peer: Peer
    now: int


MOST_KV, MOST_OF_KV, MOST_OF_ALL_KV = 10_000, 1 << 14, 1 << 22
"""How many kv configs are kept, how long a name or value of one may be, and how many characters there are in all."""
MOST_OF_BODY, MOST_OF_REGISTRATION = 1 << 20, 1 << 22
"""Bytes of a request's body: it is parsed while all others wait."""


class NameServer:
    """The rules of a name server; what they need of the outside is the time in ms.

    Every request is answered at once. Routes and brokers live in memory only and come back with the next registrations;
    the kv config is kept in the file ``kvConfigPath`` where that is set.
    """

    def __init__(self, settings: NameServerSettings, now: int) -> None:
        self.settings = settings
        self.routes = RouteTable()
        self._kv = _load_kv(settings.kv_config_path)
        self._kv_size = sum(
            len(namespace) + len(key) + len(value)
            for namespace, pairs in self._kv.items()
            for key, value in pairs.items()
        )
        self._started = now
        self._next_scan = now + settings.scan_interval_ms
        self.processors: dict[int, Callable[[_Request], RemotingCommand]] = {
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._get_kv_list,
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._get_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._get_cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._get_member_group,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._get_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._get_topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._get_system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._get_unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._get_unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._get_unit_sub_only_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }

    def handle(self, command: RemotingCommand, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Return the answer to a request."""
        if command.is_response:
            return ()
        most = MOST_OF_REGISTRATION if command.code == RequestCode.REGISTER_BROKER else MOST_OF_BODY
        if len(command.body) > most:
            remark = f"the body of this request has at most {most:,} bytes"
            return ((peer, command.answer(ResponseCode.INVALID_PARAMETER, remark=remark)),)
        processor = self.processors.get(command.code)
        if processor is None:
            remark = f" request type {command.code} not supported"
            return ((peer, command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)),)
        return ((peer, processor(_Request(command, peer, now))),)

    def closed(self, peer: Peer, now: int) -> Iterable[Outgoing]:  # noqa: ARG002
        """Forget the brokers of a connection that has ended."""
        self.routes.drop_peer(peer)
        return ()

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Forget the brokers that are silent."""
        if now >= self._next_scan:
            self._next_scan = now + self.settings.scan_interval_ms
            self.routes.expire(now)
        return ()

    def next_tick(self, now: int) -> int:  # noqa: ARG002
        """Return when ``tick`` has something to do."""
        return self._next_scan

    # Brokers

    def _register_broker(self, request: _Request) -> RemotingCommand:
        header = parse_header(RegisterBroker, request.command.ext_fields)
        if header.body_crc32 and zlib.crc32(request.command.body) & 0x7FFFFFFF != header.body_crc32:
            return request.command.answer(ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        registration = parse_registration(request.command.body, compressed=header.compressed)
        if not self.register(header, registration, request.peer, request.now):
            return request.command.answer(ResponseCode.SYSTEM_ERROR, remark="register broker failed")
        master = self.routes.master(header.cluster_name, header.broker_name) if header.broker_id else None
        response = RegisterBrokerResponse(master[1], master[0]) if master else RegisterBrokerResponse()
        order = self._kv.get(ORDER_NAMESPACE) if self.settings.return_order_config else None
        return request.command.answer(ext_fields=build_header(response), body=build_kv_table(order) if order else b"")

    def register(
        self, header: RegisterBroker, registration: Registration, peer: Peer, now: int, *, is_own: bool = False
    ) -> bool:
        """Take a broker's registration in and tell whether it counts.

        Raises:
            LimitError: there are too many already; one of the same process (``is_own``) always has room.
        """
        return self.routes.register(
            BrokerData(
                header.cluster_name,
                header.broker_name,
                {header.broker_id: header.broker_addr},
                bool(header.enable_acting_master),
            ),
            header.broker_id,
            LiveBroker(
                peer,
                now,
                header.heartbeat_timeout_millis or SILENCE_MS,
                registration.version,
                header.ha_server_addr,
            ),
            registration,
            delete_others=self.settings.delete_topic_with_registration,
            is_limited=not is_own,
        )

    def _unregister_broker(self, request: _Request) -> RemotingCommand:
        header = parse_header(BrokerIdentity, request.command.ext_fields)
        self.routes.unregister(header.cluster_name, header.broker_addr, header.broker_name)
        return request.command.answer()

    def _heartbeat(self, request: _Request) -> RemotingCommand:
        header = parse_header(BrokerHeartbeat, request.command.ext_fields)
        self.routes.heard((header.cluster_name, header.broker_addr), request.now, header.heartbeat_timeout_mills)
        return request.command.answer()

    def _query_data_version(self, request: _Request) -> RemotingCommand:
        header = parse_header(BrokerIdentity, request.command.ext_fields)
        key = header.cluster_name, header.broker_addr
        known = self.routes.version(key)
        changed = known is None or known != data_version({"dataVersion": parse_table(request.command.body)})
        if not changed:
            self.routes.heard(key, request.now)
        body = build_body(version_members(known)) if known else b""
        return request.command.answer(ext_fields=build_header(QueryDataVersionResponse(changed)), body=body)

    def _get_cluster_info(self, request: _Request) -> RemotingCommand:
        return request.command.answer(body=build_cluster_info(self.routes.cluster_info()))

    def _get_member_group(self, request: _Request) -> RemotingCommand:
        header = parse_header(BrokerMemberGroup, request.command.ext_fields)
        broker = self.routes.broker(header.broker_name)
        addresses = broker.addresses if broker and broker.cluster == header.cluster_name else {}
        group = {"brokerAddrs": addresses, "brokerName": header.broker_name, "cluster": header.cluster_name}
        return request.command.answer(body=build_body({"brokerMemberGroup": group}))

    def _wipe_write_perm(self, request: _Request) -> RemotingCommand:
        count = self.routes.set_writable(parse_header(BrokerName, request.command.ext_fields).broker_name, False)
        return request.command.answer(ext_fields={"wipeTopicCount": str(count)})

    def _add_write_perm(self, request: _Request) -> RemotingCommand:
        count = self.routes.set_writable(parse_header(BrokerName, request.command.ext_fields).broker_name, True)
        return request.command.answer(ext_fields={"addTopicCount": str(count)})

    # Topics

    def _get_route(self, request: _Request) -> RemotingCommand:
        topic = parse_header(GetRoute, request.command.ext_fields).topic
        settings = self.settings
        if settings.wait_for_service and request.now - self._started < settings.wait_seconds * 1000:
            return request.command.answer(ResponseCode.SYSTEM_ERROR, remark="name server not ready")
        route = self.routes.route(topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}"
            return request.command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
        if settings.order_message_enabled:
            route.order_config = self._kv.get(ORDER_NAMESPACE, {}).get(topic)
        # Peers before 4.9.4 are used to another dialect, but read this one as well.
        return request.command.answer(body=build_route(route))

    def _get_topics(self, request: _Request) -> RemotingCommand:
        if not self.settings.all_topic_list_enabled:
            return _disabled(request)
        return request.command.answer(body=build_topic_list(self.routes.topics()))

    def _get_topics_of_cluster(self, request: _Request) -> RemotingCommand:
        cluster = parse_header(ClusterName, request.command.ext_fields).cluster
        return self._topic_list(request, self.routes.topics_of_cluster(cluster))

    def _get_system_topics(self, request: _Request) -> RemotingCommand:
        info = self.routes.cluster_info()
        names = [name for cluster, brokers in info.clusters.items() for name in (cluster, *brokers)]
        addresses = [address for broker in info.brokers.values() for address in broker.addresses.values()]
        return self._topic_list(request, names, addresses[0] if addresses else None)

    def _get_unit_topics(self, request: _Request) -> RemotingCommand:
        return self._topic_list(request, self.routes.topics_by_flag(lambda flag: bool(flag & TopicSysFlag.UNIT)))

    def _get_unit_sub_topics(self, request: _Request) -> RemotingCommand:
        return self._topic_list(request, self.routes.topics_by_flag(lambda flag: bool(flag & TopicSysFlag.UNIT_SUB)))

    def _get_unit_sub_only_topics(self, request: _Request) -> RemotingCommand:
        both = TopicSysFlag.UNIT | TopicSysFlag.UNIT_SUB
        return self._topic_list(request, self.routes.topics_by_flag(lambda flag: flag & both == TopicSysFlag.UNIT_SUB))

    def _topic_list(
        self, request: _Request, names: Iterable[str], broker_address: str | None = None
    ) -> RemotingCommand:
        if not self.settings.topic_list_enabled:
            return _disabled(request)
        return request.command.answer(body=build_topic_list(names, broker_address))

    def _delete_topic(self, request: _Request) -> RemotingCommand:
        header = parse_header(DeleteTopicInNameServer, request.command.ext_fields)
        self.routes.delete_topic(header.topic, header.cluster_name or None)
        return request.command.answer()

    def _register_topic(self, request: _Request) -> RemotingCommand:
        topic = parse_header(TopicName, request.command.ext_fields).topic
        self.routes.add_queues(topic, parse_route(request.command.body).queues)
        return request.command.answer()

    # Kv config and settings

    def _put_kv(self, request: _Request) -> RemotingCommand:
        header = parse_header(PutKvConfig, request.command.ext_fields)
        texts = header.namespace, header.key, header.value
        before = self._kv.get(header.namespace, {}).get(header.key)
        size = sum(map(len, texts)) - (0 if before is None else len(header.namespace) + len(header.key) + len(before))
        if (
            max(map(len, texts)) > MOST_OF_KV
            or (before is None and sum(1 + len(one) for one in self._kv.values()) >= MOST_KV)
            or self._kv_size + max(size, 0) > MOST_OF_ALL_KV
        ):
            sizes = f"{MOST_OF_KV:,} characters each and {MOST_OF_ALL_KV:,} in all"
            remark = f"at most {MOST_KV:,} kv configs are kept, of {sizes}"
            return request.command.answer(ResponseCode.INVALID_PARAMETER, remark=remark)
        self._kv_size += size
        self._kv.setdefault(header.namespace, {})[header.key] = header.value
        self._keep_kv()
        return request.command.answer()

    def _get_kv(self, request: _Request) -> RemotingCommand:
        header = parse_header(KvConfigKey, request.command.ext_fields)
        value = self._kv.get(header.namespace, {}).get(header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return request.command.answer(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return request.command.answer(ext_fields={"value": value})

    def _delete_kv(self, request: _Request) -> RemotingCommand:
        header = parse_header(KvConfigKey, request.command.ext_fields)
        if (value := self._kv.get(header.namespace, {}).pop(header.key, None)) is not None:
            self._kv_size -= len(header.namespace) + len(header.key) + len(value)
            self._keep_kv()
        return request.command.answer()

    def _get_kv_list(self, request: _Request) -> RemotingCommand:
        namespace = parse_header(KvNamespace, request.command.ext_fields).namespace
        if namespace not in self._kv:
            remark = f"No config item, Namespace: {namespace}"
            return request.command.answer(ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return request.command.answer(body=build_kv_table(self._kv[namespace]))

    def _keep_kv(self) -> None:
        if self.settings.kv_config_path:
            path = Path(self.settings.kv_config_path)
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f"{path.name}.tmp")
            beside.write_bytes(build_body({"configTable": self._kv}))
            beside.replace(path)

    def _update_config(self, request: _Request) -> RemotingCommand:
        given = parse_settings(request.command.body.decode("utf-8", "replace"))
        if any(name in given for name in _PROTECTED):
            return request.command.answer(ResponseCode.NO_PERMISSION, remark="Can not update config in black list.")
        try:
            settings, unknown = self.settings.updated(given)
            if unknown:
                raise UsageError(f"no effect here: {', '.join(sorted(unknown))}")
            self.settings = settings
        except UsageError as error:
            return request.command.answer(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return request.command.answer()

    def _get_config(self, request: _Request) -> RemotingCommand:
        return request.command.answer(body=build_settings(self.settings.texts()).encode())


def _disabled(request: _Request) -> RemotingCommand:
    return request.command.answer(ResponseCode.SYSTEM_ERROR, remark="disable")


def _load_kv(path: str) -> dict[str, dict[str, str]]:
    """Return the kv config that a file keeps, by namespace; nothing where there is none yet.

    Raises:
        FormatError: the file is no kv config.
    """
    with contextlib.suppress(FileNotFoundError):
        if path:
            table = parse_table(Path(path).read_bytes()).get("configTable") or {}
            try:
                return {
                    str(namespace): {str(key): str(value) for key, value in pairs.items()}
                    for namespace, pairs in table.items()
                }
            except AttributeError as error:
                raise FormatError(f"{path} is no kv config", offset=0) from error
    return {}
