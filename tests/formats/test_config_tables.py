"""Config tables: every file of every golden store, what real fastjson 1.2.83 and fastjson2 2.0.59 print and take."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import FormatError
from mqtool.formats.config_tables import (
    MAX_DEPTH,
    TABLES,
    DataVersion,
    Dialect,
    SubscriptionGroup,
    TopicConfig,
    build_table,
    build_table_in_pieces,
    by_number,
    consumer_offsets,
    data_version,
    delay_offsets,
    dialect_of,
    parse_table,
    read_table,
    subscription_groups,
    topics,
)
from tests.damage import cut, flipped
from tests.golden import GOLDEN_NAMES, golden_store


def table_files(store: str) -> list[Path]:
    root = golden_store(store)
    return [path for folder in ("config", "compaction") for path in (root / folder).glob("*") if path.is_file()]


texts = st.text(st.characters(codec="utf-8"))
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
scalars = st.booleans() | i64 | texts | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner) | st.dictionaries(i64, inner), max_leaves=20
)
tables = st.dictionaries(texts | i64, values)
json_values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20)


@pytest.mark.parametrize("store", GOLDEN_NAMES)
def test_every_table_of_a_golden_store_is_built_as_its_broker_wrote_it(store: str) -> None:
    for path in table_files(store):
        if path.name != "timercheck":
            data = path.read_bytes()

            assert build_table(parse_table(data), dialect_of(data)) == data, path


@pytest.mark.parametrize("store", GOLDEN_NAMES)
def test_every_table_of_a_golden_store_is_known(store: str) -> None:
    for path in table_files(store):
        if path.name != "timercheck":
            info = TABLES[path.name.removesuffix(".bak")]

            assert info.member in parse_table(path.read_bytes()), path


ORDER_INFO: dict[str, Any] = {
    "table": {"T@G": {0: {"cm": 0, "o": [10, 1], "oc": {3: 4, 5: 6}}, 1: {"a": "x"}}, "U@G": {}}
}
STATIC_TOPICS: dict[str, Any] = {"hostedQueues": {0: [{"bname": "b0"}, {"bname": "b1"}], 2: []}}
SETS: dict[str, Any] = {"groupTopicMap": {"G": ["a", "b"]}, "bitPos": [15, 65]}


@pytest.mark.parametrize(
    ("dialect", "table", "text"),
    [
        (
            Dialect.FASTJSON_1,
            ORDER_INFO,
            '{\n\t"table":{\n\t\t"T@G":{0:{\n\t\t\t\t"cm":0,\n\t\t\t\t"o":[\n\t\t\t\t\t10,\n\t\t\t\t\t1\n\t\t\t\t],\n'
            '\t\t\t\t"oc":{3:4,5:6\n\t\t\t\t}\n\t\t\t},1:{\n\t\t\t\t"a":"x"\n\t\t\t}\n\t\t},\n\t\t"U@G":{}\n\t}\n}',
        ),
        (
            Dialect.FASTJSON_2,
            ORDER_INFO,
            '{\n\t"table":{\n\t\t"T@G":{\n\t\t\t0:{\n\t\t\t\t"cm":0,\n\t\t\t\t"o":[10,1],\n\t\t\t\t"oc":{\n\t\t\t\t\t3:4,\n'
            '\t\t\t\t\t5:6\n\t\t\t\t}\n\t\t\t},\n\t\t\t1:{\n\t\t\t\t"a":"x"\n\t\t\t}\n\t\t},\n\t\t"U@G":{}\n\t}\n}',
        ),
        (
            Dialect.ONE_LINE,
            ORDER_INFO,
            '{"table":{"T@G":{0:{"cm":0,"o":[10,1],"oc":{3:4,5:6}},1:{"a":"x"}},"U@G":{}}}',
        ),
        (
            Dialect.FASTJSON_1,
            STATIC_TOPICS,
            '{\n\t"hostedQueues":{0:[\n\t\t\t{\n\t\t\t\t"bname":"b0"\n\t\t\t},\n\t\t\t{\n\t\t\t\t"bname":"b1"\n\t\t\t}\n'
            "\t\t],2:[]\n\t}\n}",
        ),
        (
            Dialect.FASTJSON_2,
            STATIC_TOPICS,
            '{\n\t"hostedQueues":{\n\t\t0:[\n\t\t\t{\n\t\t\t\t"bname":"b0"\n\t\t\t},\n\t\t\t{\n\t\t\t\t"bname":"b1"\n\t\t\t}\n'
            "\t\t],\n\t\t2:[]\n\t}\n}",
        ),
        (Dialect.FASTJSON_1, SETS, '{\n\t"groupTopicMap":{\n\t\t"G":["a","b"]\n\t},\n\t"bitPos":[15,65]\n}'),
        (
            Dialect.FASTJSON_2,
            SETS,
            '{\n\t"groupTopicMap":{\n\t\t"G":[\n\t\t\t"a",\n\t\t\t"b"\n\t\t]\n\t},\n\t"bitPos":[15,65]\n}',
        ),
        (
            Dialect.FASTJSON_1,
            {"s": 'q"\\/\b\f\n\r\t\0\x1f\x7f\x9f\xa0é\u2028😀', "no": None},
            '{\n\t"s":"q\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001F\\u007F\\u009F\xa0é\\u2028😀"\n}',
        ),
        (
            Dialect.FASTJSON_2,
            {"s": 'q"\\/\b\f\n\r\t\0\x1f\x7f\x9f\xa0é\u2028😀', "no": None},
            '{\n\t"s":"q\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\x9f\xa0é\u2028😀"\n}',
        ),
    ],
)
def test_a_table_is_built_as_fastjson_prints_it(dialect: Dialect, table: dict[str, Any], text: str) -> None:
    assert build_table(table, dialect) == text.encode()

    assert dialect_of(text.encode()) is dialect


@given(tables, st.sampled_from(Dialect))
def test_what_is_built_is_parsed_again(table: dict[Any, Any], dialect: Dialect) -> None:
    parsed = parse_table(build_table(table, dialect))

    assert parsed == table
    assert list(parsed) == list(table)


@given(st.dictionaries(texts, scalars), texts, st.integers(0, 200), st.sampled_from(Dialect))
def test_pieces_make_the_same_text(head: dict[str, Any], member: str, count: int, dialect: Dialect) -> None:
    head.pop(member, None)
    rows = {f"row {number}": {number: {"a": [number]}} for number in range(count)}

    pieces = [*build_table_in_pieces(head, member, rows.items(), dialect)]

    assert b"".join(pieces) == build_table({**head, member: rows}, dialect)
    assert len(pieces) > count / 100


@given(st.dictionaries(texts, json_values))
def test_json_is_read_as_its_own_parser_reads_it(table: dict[str, Any]) -> None:
    data = orjson.dumps(table)

    assert parse_table(b"{0:" + data + b"}")[0] == parse_table(data) == table


def test_an_integer_key_and_its_text_are_different_keys() -> None:
    assert parse_table(b'{1:"a","1":"b"}') == {1: "a", "1": "b"}


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ('{offsetTable:{"T@G":{ 0 : 1 }},_a:1,$b:2}', {"offsetTable": {"T@G": {0: 1}}, "_a": 1, "$b": 2}),
        ("{'a':'say \"x\"',b:'it\\'s'}", {"a": 'say "x"', "b": "it's"}),
        ('{"a":{0:1,},"b":[1,2,],}', {"a": {0: 1}, "b": [1, 2]}),
        ("{1:-2,-3:4}", {1: -2, -3: 4}),
        ('{"a":3L,"b":03,"c":3.5,"d":1e3,"e":-0}', {"a": 3, "b": 3, "c": 3.5, "d": 1000.0, "e": 0}),
        ("{0:true,1:false,2:null}", {0: True, 1: False, 2: None}),
        ('{0:"a\tb\nc\x01"}', {0: "a\tb\nc\x01"}),
        (r'{0:"\x41\v\7\/\u00e9\ud83d\ude00"}', {0: "A\v\7/é😀"}),
        (r'{0:"\ud800"}', {0: "\ufffd"}),
        ('{"a":1,"a":2,0:3,0:4}', {"a": 2, 0: 4}),
        ("\ufeff{0:1} \r\n\t\f\b\0\0", {0: 1}),
        (" { } ", {}),
        ('{"a":{},0:[]}', {"a": {}, 0: []}),
    ],
)
def test_text_that_a_broker_takes_is_parsed(text: str, table: dict[Any, Any]) -> None:
    assert parse_table(text.encode()) == table


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "  ",
            "null",
            "[]",
            "[1]",
            "{",
            "}",
            '{"n":3',
            '{"n":',
            '{"n"',
            '{"n":3} x',
            '{"n":3}}',
            "{0:1}{",
            '{"n"=1}',
        ),
        *("{,}", '{,"n":3}', '{"n":3,,"s":1}', '{"a":[,]}', "{0:[1,,2]}", '{"n":3 "s":1}', "{0:[1 2]}"),
        *("{a.b:1}", "{a-b:1}", "{T@G:1}", "{1a:1}", "{é:1}", "{0.5:1}", "{0:abc}", "{0:True}", "{0:NaN}", "{0:0x10}"),
        *("{0:1.5f}", "{0:.5}", "{0:1e999}", "{0:" + "9" * 5000 + "}", "{" + "9" * 5000 + ":0}"),
        *(r'{0:"\q"}', r'{0:"\u00E"}', '{0:"', '{0:"\\"}', "{0:'x\"}"),
    ],
)
def test_other_text_is_a_format_error(text: str) -> None:
    with pytest.raises(FormatError):
        parse_table(text.encode())


def test_an_error_tells_where_it_is() -> None:
    with pytest.raises(FormatError, match="at offset 12 ") as caught:
        parse_table(b'{"a":{0:250,1;251}}')

    assert caught.value.offset == 12


def test_text_that_is_not_utf_8_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="UTF-8") as caught:
        parse_table('{"a":"ü"}'.encode("latin-1"))

    assert caught.value.offset == 6


@pytest.mark.parametrize("opening", ["[", '{"a":', "{0:"])
def test_deep_text_is_a_format_error(opening: str) -> None:
    deep = opening * (MAX_DEPTH - 1)
    closing = ("]" if opening == "[" else "}") * (MAX_DEPTH - 1)

    assert parse_table(f'{{"x":{deep.removesuffix(":")}{"" if opening == "[" else ":0"}{closing}}}'.encode())
    for count in (MAX_DEPTH, 1000, 100_000):
        with pytest.raises(FormatError, match="are nested more than"):
            parse_table(f'{{"x":{opening * count}0{closing[:1] * count}}}'.encode())


SAMPLES = [
    (golden_store("txn-533-clean") / "config/consumerOffset.json").read_bytes(),
    (golden_store("ext-533-clean") / "config/consumerFilter.json").read_bytes(),
    (golden_store("mixed-550-kill") / "config/topics.json").read_bytes(),
    (golden_store("timer-533-kill") / "config/timermetrics").read_bytes(),
]


@given(st.sampled_from(SAMPLES).flatmap(lambda data: flipped(data) | cut(data)) | st.binary())
def test_damaged_text_is_parsed_or_a_format_error(data: bytes) -> None:
    try:
        table = parse_table(data)
        for view in (topics, subscription_groups, consumer_offsets, delay_offsets, data_version):
            view(table)
    except FormatError:
        pass


@given(st.sampled_from(SAMPLES).flatmap(cut))
def test_a_cut_table_is_no_table(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_table(data)


def table_of(store: str, name: str) -> dict[Any, Any]:
    return parse_table((golden_store(store) / "config" / name).read_bytes())


def test_topics_have_their_settings() -> None:
    found = topics(table_of("batchcq-533-clean", "topics.json"))

    assert found["Inner"] == TopicConfig("Inner", 2, 2, 6, False, "SINGLE_TAG", 0, {"queue.type": "BatchCQ"})
    assert found["BenchmarkTest"].read_queue_count == 1024
    assert topics({"topicConfigTable": {"T": {}}})["T"] == TopicConfig("T", 16, 16, 6, False, "SINGLE_TAG", 0, {})


def test_subscription_groups_have_their_settings() -> None:
    found = subscription_groups(table_of("mixed-550-clean", "subscriptionGroup.json"))

    default = SubscriptionGroup("TOOLS_CONSUMER", True, True, True, False, 1, 16, 0, 1, True, 0, {})
    assert found["TOOLS_CONSUMER"] == default
    assert subscription_groups({"subscriptionGroupTable": {"TOOLS_CONSUMER": {}}}) == {"TOOLS_CONSUMER": default}


def test_consumer_offsets_are_by_topic_group_and_queue() -> None:
    assert consumer_offsets(table_of("retry-497-clean", "consumerOffset.json")) == {
        ("Retries", "GID_retry_all", 0): 23,
        ("Retries", "GID_retry_all", 1): 23,
        ("%RETRY%GID_retry", "GID_retry", 0): 3,
        ("Retries", "GID_retry", 0): 23,
        ("Retries", "GID_retry", 1): 23,
    }


def test_light_queues_have_consumer_offsets_too() -> None:
    table = {"lmqOffsetTable": {"%LMQ%a@%LMQ%g": 5}, "offsetTable": {"T@G": {"0": "1"}}}

    assert consumer_offsets(table) == {("%LMQ%a", "%LMQ%g", 0): 5, ("T", "G", 0): 1}


def test_delay_offsets_are_by_level() -> None:
    assert delay_offsets(table_of("txn-533-clean", "delayOffset.json")) == {1: 2, 2: 2, 3: 2, 4: 2, 18: 0}


def test_the_newer_of_two_tables_has_the_greater_version() -> None:
    newer = data_version(table_of("txn-533-clean", "delayOffset.json"))

    assert newer == DataVersion(state_version=0, counter=1, timestamp=1795224979736)
    assert data_version(table_of("txn-497-clean", "delayOffset.json")) == (0, 0, 0) < newer


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ({"topicConfigTable": []}, "topicConfigTable"),
        ({"topicConfigTable": {"T": 1}}, "topicConfigTable.T"),
        ({"topicConfigTable": {"T": {"perm": "six"}}}, "topicConfigTable.T.perm"),
        ({"topicConfigTable": {"T": {"perm": {}}}}, "topicConfigTable.T.perm"),
        ({"topicConfigTable": {"T": {"perm": 1 << 31}}}, "topicConfigTable.T.perm"),
        ({"topicConfigTable": {"T": {"order": "no"}}}, "topicConfigTable.T.order"),
        ({"topicConfigTable": {"T": {"attributes": 1}}}, "topicConfigTable.T.attributes"),
    ],
)
def test_a_member_of_another_kind_is_named_by_its_path(table: dict[str, Any], path: str) -> None:
    with pytest.raises(FormatError) as caught:
        topics(table)

    assert caught.value.reason.startswith(f"{path} is ")


_WHOLE = '1 "1" "1,000" 1.5 1e2 true -1 "" null "null"'
_TAKEN = {
    "readQueueNums": _WHOLE,
    "order": '1 2 1.5 true "true" "Y" "0" "" null',
    "topicFilterType": '0 1 "x" "" null',
    "attributes": '{} null {"a":1} {"a":[1]} {"a":null} {"a":true}',
}
_REFUSED = {
    "readQueueNums": '"x" " 7" [] 99999999999 9223372036854775808',
    "order": '"x" "no" "ON" [] {}',
    "topicFilterType": "true 2 [] {}",
    "attributes": '1 "x" true []',
}
"""Values that fastjson takes for settings of a topic or not: 1.2.83 and 2.0.59; 4.9 has no attributes."""


@pytest.mark.parametrize("setting", _TAKEN)
def test_a_table_with_values_of_other_types_is_read_where_brokers_read_it(setting: str) -> None:
    def text(value: str) -> bytes:
        return f'{{"topicConfigTable":{{"T":{{"{setting}":{value}}}}}}}'.encode()

    for value in _TAKEN[setting].split(" "):
        assert topics(read_table("topics.json", text(value)))
    for value in _REFUSED[setting].replace('" 7"', '"\u00a07"').split(" "):
        with pytest.raises(FormatError, match=rf"^topicConfigTable\.T\.{setting} is "):
            read_table("topics.json", text(value))


_GROUP_TAKEN = {
    "groupRetryPolicy": '{} null "" {"a":1} {"type":"x"} {"type":1} {"exponentialRetryPolicy":{"initial":true}} '
    '{"customizedRetryPolicy":""} {"customizedRetryPolicy":{"next":[1,"1",null]}}',
    "subscriptionDataSet": '[] {} null {"a":1} [{}] [null,""] [{"topic":1,"version":"1"}] [{"version":1.5}]',
}
_GROUP_REFUSED = {
    "groupRetryPolicy": '1 "x" true [1] {"type":2} {"type":[]} {"exponentialRetryPolicy":1} '
    '{"exponentialRetryPolicy":{"initial":"x"}} {"customizedRetryPolicy":{"next":1}} '
    '{"customizedRetryPolicy":{"next":[{}]}}',
    "subscriptionDataSet": '1 "x" true [1] ["x"] [[1]] [{"version":"x"}] [{"version":{}}]',
}
"""Of settings of a group, which 4.9 does not read: the same for 5.3.3 and 5.5.0."""


@pytest.mark.parametrize("setting", _GROUP_TAKEN)
def test_a_table_of_groups_with_values_of_other_types_is_read_where_brokers_read_it(setting: str) -> None:
    def text(value: str) -> bytes:
        return f'{{"subscriptionGroupTable":{{"G":{{"{setting}":{value}}}}}}}'.encode()

    for value in _GROUP_TAKEN[setting].split(" "):
        assert subscription_groups(read_table("subscriptionGroup.json", text(value)))
    for value in _GROUP_REFUSED[setting].split(" "):
        with pytest.raises(FormatError, match=rf"^subscriptionGroupTable\.G\.{setting}[.a-zA-Z]* is "):
            read_table("subscriptionGroup.json", text(value))


@pytest.mark.parametrize("text", ['{"dataVersion":1}', '{"dataVersion":{"counter":"x"}}', '{"topicConfigTable":[]}'])
def test_a_table_with_a_head_of_another_type_cannot_be_read(text: str) -> None:
    with pytest.raises(FormatError):
        read_table("topics.json", text.encode())


@pytest.mark.parametrize("name", ["TopicTest", "@G", "T@", ""])
def test_a_consumer_offset_needs_topic_and_group(name: str) -> None:
    with pytest.raises(FormatError, match="topic@group"):
        consumer_offsets({"offsetTable": {name: {0: 1}}})


def test_consumer_offsets_without_topic_and_group_are_told_where_that_is_asked_for() -> None:
    nameless: list[str] = []

    assert consumer_offsets({"offsetTable": {"T@G": {0: 1}, "TopicTest": {0: 2}}}, nameless) == {("T", "G", 0): 1}
    assert nameless == ["TopicTest"]


@pytest.mark.parametrize("value", [None, [], {"x": 1}, {0: None}, {0: ""}, {"0 ": 1}, {0: 1 << 63}])
def test_a_map_of_numbers_has_nothing_else(value: Any) -> None:
    with pytest.raises(FormatError, match=r"^offsets"):
        by_number(value, "offsets")
