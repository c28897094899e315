"""Known requests that are not served here: each is refused with the reason.

A RocketMQ broker refuses unknown requests with REQUEST_CODE_NOT_SUPPORTED; so does this one, except for requests that
every master without a controller refuses with its own text.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.remoting import RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.broker.processors.request import BrokerRequest


class RefusedRequest(NamedTuple):
    """Why a request is refused, and the code that says so."""

    reason: str
    code: ResponseCode = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


_OF_NAME_SERVERS = RefusedRequest("this is a request for name servers, not for brokers")
_OF_CLIENTS = RefusedRequest("this is a request that brokers send to clients")
_RETIRED = RefusedRequest("no release since 4.0 supports this")
_NO_ACTING_MASTER = RefusedRequest("slaves do not act as masters here (enableSlaveActingMaster)")
_NO_CONTROLLER = RefusedRequest("there is no controller here")
_NO_CONTAINER = RefusedRequest("this broker does not run in a container")
_NO_ROCKSDB = RefusedRequest("this broker has no data in RocksDB")
_NO_COLD_DATA = RefusedRequest("reads of cold data are not limited here")
_NO_ACCOUNTS_BY_REQUEST = RefusedRequest("accounts are defined in plain_acl.yml here (aclEnable)")
_NO_LITE_TOPICS = RefusedRequest("there are no lite topics here")


def _each(refusal: RefusedRequest, *codes: RequestCode) -> dict[int, RefusedRequest]:
    return dict.fromkeys(codes, refusal)


REFUSED: Mapping[int, RefusedRequest] = {
    **_each(
        _OF_NAME_SERVERS,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.GET_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.BROKER_HEARTBEAT,
    ),
    **_each(
        _OF_CLIENTS,
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
    ),
    **_each(
        _RETIRED,
        RequestCode.QUERY_BROKER_OFFSET,
        RequestCode.GET_TOPIC_CONFIG_LIST,
        RequestCode.GET_TOPIC_NAME_LIST,
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.GET_CLIENT_CONFIG,
        RequestCode.SUSPEND_CONSUMER,
        RequestCode.RESUME_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
        RequestCode.ADJUST_CONSUMER_THREAD_POOL,
        RequestCode.WHO_CONSUME_THE_MESSAGE,
    ),
    **_each(
        _NO_ACTING_MASTER,
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
    ),
    RequestCode.GET_BROKER_EPOCH_CACHE: RefusedRequest(
        "this request only for controllerMode ", ResponseCode.SYSTEM_ERROR
    ),
    **_each(
        _NO_CONTROLLER,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.UPDATE_CONTROLLER_CONFIG,
        RequestCode.GET_CONTROLLER_CONFIG,
        RequestCode.CLEAN_BROKER_DATA,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
    ),
    **_each(_NO_CONTAINER, RequestCode.ADD_BROKER, RequestCode.REMOVE_BROKER),
    **_each(_NO_ROCKSDB, RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON),
    **_each(
        _NO_COLD_DATA,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
    ),
    RequestCode.SET_COMMITLOG_READ_MODE: RefusedRequest("read-ahead is left to the system here"),
    **_each(
        _NO_ACCOUNTS_BY_REQUEST,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_GET_USER,
        RequestCode.AUTH_LIST_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
        RequestCode.AUTH_GET_ACL,
        RequestCode.AUTH_LIST_ACL,
    ),
    **_each(
        _NO_LITE_TOPICS,
        RequestCode.POP_LITE_MESSAGE,
        RequestCode.LITE_SUBSCRIPTION_CTL,
        RequestCode.ACK_LITE_MESSAGE,
        RequestCode.GET_BROKER_LITE_INFO,
        RequestCode.GET_PARENT_TOPIC_INFO,
        RequestCode.GET_LITE_TOPIC_INFO,
        RequestCode.GET_LITE_CLIENT_INFO,
        RequestCode.GET_LITE_GROUP_INFO,
        RequestCode.TRIGGER_LITE_DISPATCH,
    ),
    **_each(
        RefusedRequest("filter classes were removed in 4.3"),
        RequestCode.REGISTER_FILTER_SERVER,
        RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
    ),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: RefusedRequest("static topics span several brokers"),
    RequestCode.SWITCH_TIMER_ENGINE: RefusedRequest("there is only one engine for timer messages here"),
}
"""By request code; a processor of the same code comes first."""


def refuse(request: "BrokerRequest") -> RemotingCommand:
    """Return the answer to a request that no processor serves."""
    command = request.command
    reason, code = REFUSED.get(command.code, _UNKNOWN)
    if code is ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        reason = f" request type {command.code} not supported" + (f": {reason}" if reason else "")
    return command.answer(code, remark=reason)


_UNKNOWN = RefusedRequest("")
