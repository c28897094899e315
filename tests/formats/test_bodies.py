"""JSON bodies: those of recorded clients and brokers, and the forms that different writers use."""

import zlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import FormatError
from mqtool.formats.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerData,
    Heartbeat,
    MessageQueue,
    QueueData,
    QueueLocks,
    Registration,
    Subscription,
    TopicRoute,
    build_body,
    build_cluster_info,
    build_consumer_list,
    build_heartbeat,
    build_kv_table,
    build_locked_queues,
    build_registration,
    build_route,
    build_topic_list,
    by_queue,
    parse_body,
    parse_cluster_info,
    parse_heartbeat,
    parse_queue_locks,
    parse_registration,
    parse_route,
    topic_members,
    version_members,
)
from mqtool.formats.codes import RequestCode
from mqtool.formats.config_tables import DataVersion, TopicConfig
from tests.traces import TRACES, Exchange, exchanges

QUEUE = b'{"brokerName":"b","queueId":0,"topic":"T"}'


def answered(*codes: RequestCode) -> list[Exchange]:
    found = [exchange for name in TRACES for exchange in exchanges(name, *codes)]
    return [exchange for exchange in found if exchange.answer and exchange.answer.fields["code"] == 0]


def body_of(exchange: Exchange) -> bytes:
    assert exchange.answer is not None
    return exchange.answer.body


def test_routes_are_written_byte_for_byte_as_a_real_name_server_writes_them() -> None:
    bodies = {body_of(exchange) for exchange in answered(RequestCode.GET_ROUTEINFO_BY_TOPIC)}

    assert len(bodies) > 3
    for body in bodies:
        # Clients before 4.9.4 get broker ids without quotes from the real one, but read them with quotes as well.
        assert build_route(parse_route(body)) == body.replace(b"{0:", b'{"0":')


def test_clusters_say_what_a_real_name_server_says() -> None:
    bodies = {body_of(exchange) for exchange in answered(RequestCode.GET_BROKER_CLUSTER_INFO)}

    assert bodies
    for body in bodies:
        # The real one writes broker ids without quotes, which not every client reads.
        assert build_cluster_info(parse_cluster_info(body)) == body.replace(b"{0:", b'{"0":')


@pytest.mark.parametrize("code", [RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_CONSUME_STATS])
def test_maps_of_queues_are_written_byte_for_byte_as_a_real_broker_writes_them(code: RequestCode) -> None:
    bodies = [body_of(exchange) for exchange in answered(code)]

    assert bodies
    for body in bodies:
        table = parse_body(body)
        table["offsetTable"] = by_queue(table["offsetTable"], "offsetTable")

        assert all(isinstance(queue, MessageQueue) for queue in table["offsetTable"])
        assert build_body(table) == body


@pytest.mark.parametrize(
    "text",
    [
        b'{"offsetTable":{%b:5}}' % QUEUE,
        b'{"offsetTable":{ { "brokerName" : "b", "queueId" : 0, "topic":"T" } : 5 }}',
        b'{"offsetTable":{%b:5}}' % orjson.dumps(QUEUE.decode()),
        b'{"offsetTable":[[%b,5]]}' % QUEUE,
    ],
)
def test_a_map_of_queues_is_read_in_every_form(text: bytes) -> None:
    table = parse_body(text)

    assert by_queue(table["offsetTable"], "offsetTable") == {MessageQueue("T", "b", 0): 5}


@pytest.mark.parametrize("text", [b'{"m":5}', b'{"m":{"x":5}}', b'{"m":[5]}', b'{"m":{"{}":5}}', b'{"m":{7:5}}'])
def test_what_is_no_map_of_queues_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError):
        by_queue(parse_body(text)["m"], "m")


def test_every_recorded_heartbeat_comes_back() -> None:
    beats = [exchange.request.body for name in TRACES for exchange in exchanges(name, RequestCode.HEART_BEAT)]

    assert len(beats) > 10
    for body in beats:
        heartbeat = parse_heartbeat(body)
        told = orjson.loads(body)

        assert heartbeat.client_id == told["clientID"]
        assert {*heartbeat.producer_groups} == {group["groupName"] for group in told["producerDataSet"]}
        assert len(heartbeat.consumers) == len(told["consumerDataSet"])
        for consumer, members in zip(heartbeat.consumers, told["consumerDataSet"], strict=True):
            assert consumer.message_model == members["messageModel"]
            assert [one.expression for one in consumer.subscriptions] == [
                one["subString"] for one in members["subscriptionDataSet"]
            ]
        assert parse_heartbeat(build_heartbeat(heartbeat)) == heartbeat


def test_a_heartbeat_with_numbers_for_names_and_without_sets_is_read() -> None:
    heartbeat = parse_heartbeat(
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","consumeType":1,"messageModel":0,"consumeFromWhere":4,'
        b'"subscriptionDataSet":[{"topic":"T","subString":"A || B","subVersion":"17","tagsSet":null}]}]}'
    )

    assert heartbeat == Heartbeat(
        "c",
        (),
        (
            ConsumerData(
                "G",
                "CONSUME_PASSIVELY",
                "BROADCASTING",
                "CONSUME_FROM_FIRST_OFFSET",
                (Subscription("T", "A || B", version=17),),
            ),
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"clientID":5}',
        b'{"clientID":"c","consumerDataSet":{"groupName":"G"}}',
        b'{"clientID":"c","consumerDataSet":[1]}',
    ],
)
def test_what_is_no_heartbeat_is_refused(text: bytes) -> None:
    with pytest.raises(FormatError):
        parse_heartbeat(text)


def test_locks_are_asked_for_and_granted() -> None:
    locks = parse_queue_locks(b'{"clientId":"c","consumerGroup":"G","mqSet":[%b],"onlyThisBroker":false}' % QUEUE)

    assert locks == QueueLocks("G", "c", (MessageQueue("T", "b", 0),))
    assert build_locked_queues(locks.queues) == b'{"lockOKMQSet":[%b]}' % QUEUE


def test_lists_are_compact_json() -> None:
    assert build_consumer_list(["c1", "c2"]) == b'{"consumerIdList":["c1","c2"]}'
    assert build_topic_list(["T"]) == b'{"topicList":["T"]}'
    assert build_topic_list([], "10.0.0.5:10911") == b'{"brokerAddr":"10.0.0.5:10911","topicList":[]}'
    assert build_kv_table({"k": "v\n"}) == b'{"table":{"k":"v\\n"}}'


def test_every_recorded_registration_comes_back() -> None:
    bodies = [exchange.request.body for name in TRACES for exchange in exchanges(name, RequestCode.REGISTER_BROKER)]

    assert len(bodies) == 7
    for body in bodies:
        registration = parse_registration(body, compressed=False)

        assert {*registration.topics} == {*orjson.loads(body)["topicConfigSerializeWrapper"]["topicConfigTable"]}
        assert parse_registration(build_registration(registration), compressed=False) == registration
        assert parse_registration(compressed(registration), compressed=True) == registration


def compressed(registration: Registration, *, with_mappings: bool = True) -> bytes:
    """Build a registration as a broker with ``compressedRegister`` does; order and sys flag have no place in it."""
    parts = [orjson.dumps(version_members(registration.version))]
    for config in registration.topics.values():
        attributes = orjson.dumps(dict(config.attributes)).decode()
        numbers = f"{config.read_queue_count} {config.write_queue_count} {config.perm}"
        parts.append(f"{config.topic} {numbers} {config.filter_type} {attributes}".encode())
    parts.append(orjson.dumps(registration.filter_servers))
    sized = [len(part).to_bytes(4, "big") + part for part in parts]
    count = len(registration.topics).to_bytes(4, "big")
    return zlib.compress(sized[0] + count + b"".join(sized[1:]) + (bytes(4) if with_mappings else b""))


CONFIG = TopicConfig("T", 4, 4, 6, False, "SINGLE_TAG", 0, {"message.type": "FIFO"})
REGISTRATION = Registration(DataVersion(1, 2, 3), {"T": CONFIG}, ["10.0.0.1:1"])


@pytest.mark.parametrize("with_mappings", [True, False])
def test_compressed_registrations_of_old_and_new_brokers_are_read(with_mappings: bool) -> None:
    assert parse_registration(compressed(REGISTRATION, with_mappings=with_mappings), compressed=True) == REGISTRATION


@given(st.data())
def test_a_damaged_registration_is_refused_or_read(data: st.DataObject) -> None:
    plain = bytearray(zlib.decompress(compressed(REGISTRATION)))
    plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    cut = zlib.compress(plain[: data.draw(st.integers(0, len(plain)))])
    for body in (cut, cut[: data.draw(st.integers(0, len(cut)))]):
        try:
            parse_registration(body, compressed=True)
        except FormatError:
            continue


def test_a_topic_is_written_as_a_real_broker_registers_it() -> None:
    [first, *_] = exchanges("broker_registration-5.3.3", RequestCode.REGISTER_BROKER)
    told = orjson.loads(first.request.body)["topicConfigSerializeWrapper"]["topicConfigTable"]

    registration = parse_registration(first.request.body, compressed=False)

    assert {name: topic_members(config) for name, config in registration.topics.items()} == told


names = st.text("abcXYZ_%-09", min_size=1, max_size=12)
routes = st.builds(
    TopicRoute,
    queues=st.lists(
        st.builds(QueueData, names, st.integers(0, 99), st.integers(0, 99), st.integers(0, 15), st.integers(0, 3)),
        max_size=3,
    ),
    brokers=st.lists(
        st.builds(BrokerData, names, names, st.dictionaries(st.integers(0, 9), names, max_size=3), st.booleans()),
        max_size=3,
    ),
    order_config=st.none() | names,
    filter_servers=st.dictionaries(names, st.lists(names, max_size=2), max_size=2),
)


@given(routes)
def test_a_route_comes_back(route: TopicRoute) -> None:
    assert parse_route(build_route(route)) == route


@given(routes)
def test_a_route_is_json_without_a_blank_so_that_every_client_reads_it(route: TopicRoute) -> None:
    body = build_route(route)

    assert b" " not in body
    assert orjson.dumps(orjson.loads(body)) == body


def test_clusters_come_back() -> None:
    info = ClusterInfo({"b": BrokerData("C", "b", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})}, {"C": ["b"]})

    assert parse_cluster_info(build_cluster_info(info)) == info


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_bytes_make_a_body_fail_otherwise_than_as_bad_format(data: bytes) -> None:
    for parse in (parse_route, parse_cluster_info, parse_heartbeat, parse_queue_locks):
        for text in (data, b'{"clientID":"c","mqSet":[{}],"brokerDatas":[' + data + b"]}"):
            try:
                parse(text)
            except FormatError:
                continue
