"""Typed headers: what recorded clients and brokers sent, and what is refused."""

import inspect
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import HeaderError
from mqtool.formats import headers
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.headers import (
    Pull,
    PullResponse,
    RegisterBroker,
    SearchOffset,
    Send,
    SendResponse,
    UnregisterClient,
    build_header,
    parse_header,
)
from tests.traces import TRACES, exchanges

CLASSES: list[Any] = [
    kind
    for name, kind in inspect.getmembers(headers, inspect.isclass)
    if kind.__module__ == headers.__name__ and hasattr(kind, "_fields") and not name.startswith("_")
]

REQUESTS: dict[int, type[NamedTuple]] = {
    RequestCode.SEND_MESSAGE: headers.Send,
    RequestCode.SEND_MESSAGE_V2: headers.Send,
    RequestCode.SEND_BATCH_MESSAGE: headers.Send,
    RequestCode.SEND_REPLY_MESSAGE_V2: headers.Send,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: headers.PushReply,
    RequestCode.PULL_MESSAGE: headers.Pull,
    RequestCode.QUERY_MESSAGE: headers.QueryMessage,
    RequestCode.QUERY_CONSUMER_OFFSET: headers.QueryConsumerOffset,
    RequestCode.UPDATE_CONSUMER_OFFSET: headers.UpdateConsumerOffset,
    RequestCode.UPDATE_AND_CREATE_TOPIC: headers.CreateTopic,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: headers.SearchOffset,
    RequestCode.GET_MAX_OFFSET: headers.Queue,
    RequestCode.GET_MIN_OFFSET: headers.Queue,
    RequestCode.GET_EARLIEST_MSG_STORETIME: headers.Queue,
    RequestCode.VIEW_MESSAGE_BY_ID: headers.ViewMessage,
    RequestCode.UNREGISTER_CLIENT: headers.UnregisterClient,
    RequestCode.END_TRANSACTION: headers.EndTransaction,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: headers.ConsumerGroup,
    RequestCode.CHECK_TRANSACTION_STATE: headers.CheckTransaction,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: headers.ConsumerGroup,
    RequestCode.DELETE_KV_CONFIG: headers.KvConfigKey,
    RequestCode.REGISTER_BROKER: headers.RegisterBroker,
    RequestCode.UNREGISTER_BROKER: headers.BrokerIdentity,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: headers.GetRoute,
    RequestCode.GET_TOPIC_STATS_INFO: headers.TopicName,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: headers.ConsumerGroup,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: headers.DeleteGroup,
    RequestCode.GET_CONSUME_STATS: headers.GetConsumeStats,
    RequestCode.DELETE_TOPIC_IN_BROKER: headers.TopicName,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: headers.DeleteTopicInNameServer,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: headers.ResetOffset,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: headers.TopicName,
    RequestCode.GET_TOPIC_CONFIG: headers.TopicName,
    RequestCode.RECALL_MESSAGE: headers.RecallMessage,
    RequestCode.POP_MESSAGE: headers.Pop,
    RequestCode.ACK_MESSAGE: headers.Ack,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: headers.ChangeInvisibleTime,
    RequestCode.PEEK_MESSAGE: headers.Peek,
    RequestCode.NOTIFICATION: headers.Notification,
    RequestCode.POLLING_INFO: headers.PollingInfo,
}
SHORT = {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
WITHOUT_HEADER = {
    RequestCode.HEART_BEAT,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.BATCH_ACK_MESSAGE,
}
# Fields that clients send besides, and nobody needs to know.
BESIDES = {"ReqT", "_UNIQUE_KEY_QUERY", "bname", "ns", "nsd", "lo", "force", "maxMsgBytes", "requestSource"}
SEND = {"a": "G", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}


@pytest.mark.parametrize("name", TRACES)
def test_every_recorded_request_is_read_and_written_again(name: str) -> None:
    for exchange in exchanges(name):
        if exchange.code in WITHOUT_HEADER:
            continue
        sent = exchange.request.command.ext_fields
        short = exchange.code in SHORT

        header = parse_header(REQUESTS[exchange.code], sent, short=short)
        built = build_header(header, short=short)

        assert {key: value for key, value in sent.items() if key not in built and key not in BESIDES} == {}
        # What clients leave out has the default that Java gives it.
        assert {key: built[key] for key in sent if key in built} == {key: sent[key] for key in sent if key in built}


@pytest.mark.parametrize("name", TRACES)
def test_every_recorded_answer_to_a_send_or_pull_is_read_and_written_again(name: str) -> None:
    kinds: dict[int, type[NamedTuple]] = {310: SendResponse, 320: SendResponse, 10: SendResponse, 11: PullResponse}
    for exchange in exchanges(name, *map(RequestCode, kinds)):
        if exchange.answer is None or exchange.answer.fields["code"] == ResponseCode.SUBSCRIPTION_NOT_LATEST:
            continue
        sent = exchange.answer.command.ext_fields

        built = build_header(parse_header(kinds[exchange.code], sent))

        assert built | {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"} == sent | {
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }


def values_of(kind: type[NamedTuple]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: _value(annotation) for name, annotation in kind.__annotations__.items()})


def _value(annotation: Any) -> st.SearchStrategy[Any]:
    if type(None) in get_args(annotation):
        return st.none() | _value(get_args(annotation)[0])
    if annotation is bool:
        return st.booleans()
    for mark in getattr(annotation, "__metadata__", ()):
        if isinstance(mark, int):
            return st.integers(-(1 << mark - 1), (1 << mark - 1) - 1)
    return st.text(max_size=20)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_header_comes_back(kind: type[NamedTuple], data: st.DataObject) -> None:
    header = data.draw(values_of(kind))

    again = parse_header(kind, build_header(header))

    # None is left out, and comes back as the default.
    defaults = kind._field_defaults
    for name, before, after in zip(kind._fields, header, again, strict=True):
        assert after == (defaults[name] if before is None else before)


@pytest.mark.parametrize("missing", sorted(SEND))
def test_a_missing_field_is_named(missing: str) -> None:
    fields = {key: value for key, value in SEND.items() if key != missing}

    with pytest.raises(HeaderError, match=f"^header field {missing} is missing$"):
        parse_header(Send, fields, short=True)


def test_the_only_field_that_must_be_there_is_named_too() -> None:
    with pytest.raises(HeaderError, match="header field clientID is missing"):
        parse_header(UnregisterClient, {"producerGroup": "G"})


@pytest.mark.parametrize("text", ["", "x", "1.5", "2147483648", "-2147483649", "9" * 5000])
def test_what_is_no_int_is_refused(text: str) -> None:
    with pytest.raises(HeaderError, match="header field e is not a number"):
        parse_header(Send, SEND | {"e": text}, short=True)


def test_what_is_no_long_is_refused() -> None:
    with pytest.raises(HeaderError, match="timestamp"):
        parse_header(SearchOffset, {"topic": "T", "queueId": "0", "timestamp": "9223372036854775808"})


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False)]
)
def test_booleans_are_read_as_java_reads_them(text: str, value: bool) -> None:
    ext_fields = {"brokerName": "b", "brokerAddr": "a", "clusterName": "c", "haServerAddr": "h", "brokerId": "0"}

    assert parse_header(RegisterBroker, ext_fields | {"compressed": text}).compressed is value


def test_a_pull_without_subscription_has_none() -> None:
    numbers = ("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion")

    header = parse_header(Pull, {"consumerGroup": "G", "topic": "T"} | dict.fromkeys(numbers, "5"))

    assert (header.subscription, header.expression_type, header.sub_version) == (None, None, 5)
