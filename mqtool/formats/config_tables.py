"""The JSON tables under ``config/``: text in fastjson's dialect, Python values, and what the tables mean.

A map with integer keys is written without quotes around them, ``{0:250,1:251}``, which no JSON parser takes; here such
keys are ``int``, all others ``str``; an object in the place of a key, ``{{"queueId":0}:7}``, becomes its own text.
Brokers also take names without quotes, single quotes and a comma after the last member, so people write such files.
(RocketMQ: ``ConfigManager``; fastjson 1.2.83 up to 5.3, fastjson2 from 5.4.)
"""

import enum
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mqtool.errors import FormatError
from mqtool.formats import json_library as orjson

Table = dict[Any, Any]
"""One parsed file: a dict of dicts, lists, ``str``, ``int``, ``float``, ``bool`` and None."""

_ROWS_OF_PIECE = 64

MAX_DEPTH = 64
"""How deep objects and lists may be nested; the tables of a broker need seven."""


class TableInfo(NamedTuple):
    """What a file keeps, and the member that holds it."""

    content: str
    member: str


TABLES = {
    "topics.json": TableInfo("topics", "topicConfigTable"),
    "subscriptionGroup.json": TableInfo("subscription groups", "subscriptionGroupTable"),
    "consumerOffset.json": TableInfo("consumer offsets", "offsetTable"),
    "lmqConsumerOffset.json": TableInfo("consumer offsets, light queues included", "lmqOffsetTable"),
    "delayOffset.json": TableInfo("offsets of the delay levels", "offsetTable"),
    "consumerFilter.json": TableInfo("filters of SQL consumers", "filterDataByTopic"),
    "consumerOrderInfo.json": TableInfo("messages held by orderly pop consumers", "table"),
    "messageRequestMode.json": TableInfo("pull or pop, by group", "messageRequestModeMap"),
    "topicQueueMapping.json": TableInfo("queues of static topics", "topicQueueMappingInfoMap"),
    "timermetrics": TableInfo("timer messages by topic", "timingCount"),
    "transactionMetrics": TableInfo("half messages by topic", "transactionCount"),
    "position-checkpoint": TableInfo("compaction progress of each queue", "queueOffsetMap"),
}
"""The tables of a store by file name; all are under ``config/``, except the last one, under ``compaction/``."""


class Dialect(enum.Enum):
    """How a writer lays out the same values."""

    FASTJSON_1 = enum.auto()  # 4.x and up to 5.3: integer keys begin on the line of the brace
    FASTJSON_2 = enum.auto()  # 5.4 and later: each member has its own line
    ONE_LINE = enum.auto()  # the metrics files


# Text to values

_BLANK = rb"[\0\b\t\n\f\r ]*+"
_STRING = rb""" "(?P<double>(?:[^"\\]++|\\.)*+)" | '(?P<single>(?:[^'\\]++|\\.)*+)' """
_MEMBER = re.compile(
    rb"%b(?: (?P<integer>-?\d{1,19}+) | (?P<name>[A-Za-z_$][\w$]*+) | %b ) %b :" % (_BLANK, _STRING, _BLANK),
    re.VERBOSE | re.DOTALL,
)
_VALUE = re.compile(
    rb"%b(?: (?P<opening>[{\[]) | (?P<integer>-?\d{1,19}+)L?+(?![\w.]) | (?P<word>true|false|null)\b"
    rb"| (?P<decimal>-?\d{1,40}+(?:\.\d{0,40}+)?(?:[eE][+-]?\d{1,3})?)(?![\w.]) | %b )" % (_BLANK, _STRING),
    re.VERBOSE | re.DOTALL,
)
_COMMA = re.compile(_BLANK + b",")
_OBJECT_KEY = re.compile(_BLANK + rb"\{")
_COLON = re.compile(_BLANK + b":")
_CLOSING = {"{": re.compile(_BLANK + b"}"), "[": re.compile(_BLANK + b"]")}
_END = re.compile(_BLANK + rb"\Z")

_WORDS = {b"true": True, b"false": False, b"null": None}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_SHORT_ESCAPES = dict(zip("bfnrtv01234567\"'/\\", "\b\f\n\r\t\v\0\1\2\3\4\5\6\7\"'/\\", strict=True))


def parse_table(data: bytes) -> Table:
    """Return the object that ``data`` holds: integer keys as ``int``, the last of equal keys.

    Takes what the brokers of one version or another take of hand-written files.

    >>> parse_table(b'{"offsetTable":{"T@G":{0:250,1:251}}}')
    {'offsetTable': {'T@G': {0: 250, 1: 251}}}

    Raises:
        FormatError: the text is not such an object, or nested deeper than ``MAX_DEPTH``.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        pass  # integer keys, mostly
    else:
        if isinstance(value, dict) and _is_shallow(value):
            return value

    opening = _VALUE.match(data)
    if opening is None or opening["opening"] != b"{":
        raise FormatError("a table starts with {, and this text does not", offset=0)
    table, at = _parse_object(data, opening.end(), depth=1)
    if not _END.match(data, at):
        raise FormatError("there is something after the end of the table", at)
    return table


_NESTED = (dict, list)


def _is_shallow(value: Table) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        members = (item.values() if isinstance(item, dict) else item for item in level)
        level = [member for each in members for member in each if isinstance(member, _NESTED)]
        if not level:
            return True
    return False


def _parse_object(data: bytes, at: int, depth: int) -> tuple[Table, int]:
    table: Table = {}
    while True:
        if member := _MEMBER.match(data, at):
            key, at = _key(member), member.end()
        elif opening := _OBJECT_KEY.match(data, at):
            key, at = _parse_object_key(data, opening.end(), depth)
        else:
            break
        table[key], at = _parse_value(data, at, depth)
        if not (comma := _COMMA.match(data, at)):
            break
        at = comma.end()
    return table, _close(data, at, "{")


def _parse_object_key(data: bytes, at: int, depth: int) -> tuple[str, int]:
    """Return a key that is itself an object, as the text that other writers put in quotes there."""
    if depth == MAX_DEPTH:
        raise FormatError(f"objects and lists are nested more than {MAX_DEPTH} deep", at - 1)
    key, at = _parse_object(data, at, depth + 1)
    if not (colon := _COLON.match(data, at)):
        raise FormatError("a colon is missing", at)
    return orjson.dumps(key, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS).decode(), colon.end()


def _parse_list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    while not (closing := _CLOSING["["].match(data, at)):
        item, at = _parse_value(data, at, depth)
        items.append(item)
        if not (comma := _COMMA.match(data, at)):
            return items, _close(data, at, "[")
        at = comma.end()
    return items, closing.end()


def _close(data: bytes, at: int, opening: str) -> int:
    if closing := _CLOSING[opening].match(data, at):
        return closing.end()
    expected = "a member, a comma or }" if opening == "{" else "a comma or ]"
    raise FormatError(f"{expected} is missing", at)


def _parse_value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    match = _VALUE.match(data, at)
    if match is None:
        raise FormatError("a value is missing or malformed", at)
    kind, end = match.lastgroup, match.end()
    if kind == "opening":
        if depth == MAX_DEPTH:
            raise FormatError(f"objects and lists are nested more than {MAX_DEPTH} deep", end - 1)
        return (_parse_object if match["opening"] == b"{" else _parse_list)(data, end, depth + 1)
    if kind == "integer":
        return int(match["integer"]), end
    if kind == "word":
        return _WORDS[match["word"]], end
    if kind == "decimal":
        number = float(match["decimal"])
        if math.isinf(number):
            raise FormatError("a number is too large", match.start("decimal"))
        return number, end
    return _text(match), end


def _key(member: re.Match[bytes]) -> int | str:
    if member["integer"]:
        return int(member["integer"])
    if member["name"]:
        return member["name"].decode()
    return _text(member)


def _text(match: re.Match[bytes]) -> str:
    group = match.lastgroup or ""
    start = match.start(group)
    try:
        text = match[group].decode()
    except UnicodeDecodeError as error:
        raise FormatError("the text is not UTF-8", start + error.start) from error
    if "\\" not in text:
        return text
    try:
        text = _ESCAPE.sub(_unescape, text)
    except KeyError as error:
        raise FormatError(f"the escape \\{error.args[0]} is unknown", start) from error
    # Half of a surrogate pair is not a character: Java would write "?" for it.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _unescape(match: re.Match[str]) -> str:
    digits = match[1] or match[2]
    return chr(int(digits, 16)) if digits else _SHORT_ESCAPES[match[3]]


# Values to text

_SHORT = {ord(letter): f"\\{name}" for letter, name in zip('\b\t\n\f\r"\\', 'btnfr"\\', strict=True)}
_CONTROLS = range(0x20)
_ESCAPES = {
    Dialect.FASTJSON_1: {c: f"\\u{c:04X}" for c in (*_CONTROLS, *range(0x7F, 0xA0), 0x2028, 0x2029)} | _SHORT,
    Dialect.FASTJSON_2: {c: f"\\u{c:04x}" for c in _CONTROLS} | _SHORT,
}
_ESCAPES[Dialect.ONE_LINE] = _ESCAPES[Dialect.FASTJSON_1]

# fastjson 1 gives each item of a Java List a line and keeps arrays and sets on one; these members are Lists.
_LISTS = {"o", "hostedQueues"}


def build_table(table: Table, dialect: Dialect) -> bytes:
    r"""Return the text that a broker would write: members in the order of the dict, those that are None left out.

    >>> build_table({"offsetTable": {3: 12, 4: 7}}, Dialect.FASTJSON_1)
    b'{\n\t"offsetTable":{3:12,4:7\n\t}\n}'
    """
    line = "" if dialect is Dialect.ONE_LINE else "\n"
    return _build(table, dialect, line, "").encode("utf-8", "replace")


def build_table_in_pieces(
    head: Table, member: str, rows: Iterable[tuple[str, Any]], dialect: Dialect = Dialect.FASTJSON_1
) -> Iterator[bytes]:
    r"""Yield the text that ``build_table`` returns for ``head`` and one last member with many rows, none of them None.

    A piece takes about a millisecond, so that others may have their turn in between.

    >>> b"".join(build_table_in_pieces({}, "offsetTable", [("T@G", {0: 5})]))
    b'{\n\t"offsetTable":{\n\t\t"T@G":{0:5\n\t\t}\n\t}\n}'
    """
    line = "" if dialect is Dialect.ONE_LINE else "\n"
    inner = line and f"{line}\t"
    before = _build({**head, member: {}}, dialect, line, "")
    rest = f"{{}}{line}}}"
    yield before.removesuffix(rest).encode("utf-8", "replace")
    separator = "{"
    remaining = iter(rows)
    while piece := dict(itertools.islice(remaining, _ROWS_OF_PIECE)):
        text = _build(piece, dialect, inner, member)
        yield f"{separator}{text[1 : -1 - len(inner)]}".encode("utf-8", "replace")
        separator = ","
    yield (rest if separator == "{" else f"{inner}}}{line}}}").encode()


def dialect_of(data: bytes) -> Dialect:
    """Return the dialect that builds exactly ``data``, the older one where two do or, in hand-written text, none does.

    Raises:
        FormatError: as ``parse_table``.
    """
    table = parse_table(data)
    return next((dialect for dialect in Dialect if build_table(table, dialect) == data), Dialect.FASTJSON_1)


def _build(value: Any, dialect: Dialect, line: str, member: str) -> str:
    # ``line`` ends a line and indents the next one like the value; it is empty where there is but one line.
    inner = line and f"{line}\t"
    match value:
        case dict():
            parts = [
                f"{inner}{_quote(key, dialect)}:{_build(item, dialect, inner, key)}"
                if isinstance(key, str)
                else f"{inner if dialect is Dialect.FASTJSON_2 else ''}{key}:"
                f"{item if type(item) is int else _build(item, dialect, inner, member)}"  # most are numbers
                for key, item in value.items()
                if item is not None
            ]
            return f"{{{','.join(parts)}{line}}}" if parts else "{}"
        case list():
            if member in _LISTS if dialect is Dialect.FASTJSON_1 else not all(isinstance(item, int) for item in value):
                parts = [f"{inner}{_build(item, dialect, inner, '')}" for item in value]
                return f"[{','.join(parts)}{line}]" if parts else "[]"
            return f"[{','.join(_build(item, dialect, line, '') for item in value)}]"
        case str():
            return _quote(value, dialect)
        case None | bool():
            return orjson.dumps(value).decode()
        case _:
            return repr(value)


def _quote(text: str, dialect: Dialect) -> str:
    return f'"{text.translate(_ESCAPES[dialect])}"'


# What the tables mean


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of a topic; what a file leaves out has RocketMQ's default."""

    topic: str
    read_queue_count: int
    write_queue_count: int
    perm: int  # bits: 1 inherited, 2 write, 4 read, 8 priority
    order: bool
    filter_type: str  # SINGLE_TAG or MULTI_TAG
    sys_flag: int
    attributes: Mapping[str, str]

    @property
    def is_batch(self) -> bool:
        """Whether its queues hold several messages in a unit (5.x)."""
        return self.attributes.get("queue.type") == "BatchCQ"


_MAX_INT = (1 << 31) - 1
_NO_ATTRIBUTES: Table = {}


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """The rules for a group of consumers; what a file leaves out has RocketMQ's default."""

    group: str
    consume_enabled: bool
    consume_from_min_enabled: bool
    consume_broadcast_enabled: bool
    consume_orderly: bool
    retry_queue_count: int
    retry_max_times: int
    broker_id: int
    slow_consumer_broker_id: int  # where a consumer that lags behind is sent
    notify_changes_enabled: bool  # consumers are told when one of them comes or goes
    sys_flag: int
    attributes: Mapping[str, str]


class DataVersion(NamedTuple):
    """How new a table is; of two versions the greater is newer."""

    state_version: int
    counter: int
    timestamp: int


OffsetKey = tuple[str, str, int]
"""Topic, group and queue id."""


def topics(table: Table) -> dict[str, TopicConfig]:
    """Return the topics of ``topics.json`` by name.

    Raises:
        FormatError: a member is not what it should be; the sentence has its path.
    """
    configs = {}
    for name, settings in _member(table, "topicConfigTable").items():
        if (config := _plain_topic(name, settings)) is not None:
            configs[name] = config
            continue
        topic, path = str(name), f"topicConfigTable.{name}"
        settings = _object(settings, path)
        configs[topic] = TopicConfig(
            topic=topic,
            read_queue_count=_integer(settings, "readQueueNums", 16, path),
            write_queue_count=_integer(settings, "writeQueueNums", 16, path),
            perm=_integer(settings, "perm", 6, path),
            order=_boolean(settings, "order", False, path),
            filter_type=_filter_type(settings, path),
            sys_flag=_integer(settings, "topicSysFlag", 0, path),
            attributes=_attributes(settings, path),
        )
    return configs


def _plain_topic(name: Any, settings: Any) -> TopicConfig | None:
    """Return a topic as brokers write most, which takes a fraction of the time; None for any other."""
    if type(name) is not str or type(settings) is not dict:
        return None
    get = settings.get
    read, write, perm, flag = get("readQueueNums"), get("writeQueueNums"), get("perm"), get("topicSysFlag")
    order, filter_type = get("order"), get("topicFilterType")
    if (
        type(read) is type(write) is type(perm) is type(flag) is int
        and 0 <= read <= _MAX_INT
        and 0 <= write <= _MAX_INT
        and 0 <= perm <= _MAX_INT
        and 0 <= flag <= _MAX_INT
        and type(order) is bool
        and type(filter_type) is str
        and filter_type
        and get("attributes", _NO_ATTRIBUTES) == _NO_ATTRIBUTES
    ):
        return TopicConfig(name, read, write, perm, order, filter_type, flag, {})
    return None


def subscription_groups(table: Table) -> dict[str, SubscriptionGroup]:
    """Return the groups of ``subscriptionGroup.json`` by name; raises like ``topics``."""
    groups = {}
    for group, settings, path in _named(table, "subscriptionGroupTable"):
        groups[group] = SubscriptionGroup(
            group=group,
            consume_enabled=_boolean(settings, "consumeEnable", True, path),
            consume_from_min_enabled=_boolean(settings, "consumeFromMinEnable", True, path),
            consume_broadcast_enabled=_boolean(settings, "consumeBroadcastEnable", True, path),
            consume_orderly=_boolean(settings, "consumeMessageOrderly", False, path),
            retry_queue_count=_integer(settings, "retryQueueNums", 1, path),
            retry_max_times=_integer(settings, "retryMaxTimes", 16, path),
            broker_id=_integer(settings, "brokerId", 0, path, 64),
            slow_consumer_broker_id=_integer(settings, "whichBrokerWhenConsumeSlowly", 1, path, 64),
            notify_changes_enabled=_boolean(settings, "notifyConsumerIdsChangedEnable", True, path),
            sys_flag=_integer(settings, "groupSysFlag", 0, path),
            attributes=_attributes(settings, path),
        )
        _check_retry_policy(settings.get("groupRetryPolicy"), f"{path}.groupRetryPolicy")
        _check_subscriptions(settings.get("subscriptionDataSet"), f"{path}.subscriptionDataSet")
    return groups


OFFSET_TABLES = ("consumerOffset.json", "lmqConsumerOffset.json")
"""Where offsets of groups are kept: in the second by a broker with light queues."""


def consumer_offsets(table: Table, nameless: list[str] | None = None) -> dict[OffsetKey, int]:
    """Return the consumer offsets of ``consumerOffset.json`` or ``lmqConsumerOffset.json``.

    The queue offset a group reads next, by topic, group and queue id; a light queue has queue id 0.
    Raises like ``topics``.

    Args:
        table: the whole table.
        nameless: takes the names of entries that name no topic and group, which brokers keep and skip; without it
            such an entry is an error.
    """
    offsets = {}
    for name, by_queue, path in _named(table, "offsetTable"):
        if nameless is not None and not all(str(name).partition("@")):
            nameless.append(str(name))
            continue
        topic, group = _topic_and_group(name, path)
        for queue_id, consumer_offset in by_number(by_queue, path).items():
            offsets[topic, group, queue_id] = consumer_offset
    light = _member(table, "lmqOffsetTable")
    for name in light:
        path = f"lmqOffsetTable.{name}"
        if nameless is not None and not all(str(name).partition("@")):
            nameless.append(str(name))
            continue
        offsets[*_topic_and_group(name, path), 0] = _needed(light[name], path, 64)
    return offsets


def delay_offsets(table: Table) -> dict[int, int]:
    """Return the next queue offset of each delay level in ``delayOffset.json``; raises like ``topics``."""
    return by_number(_member(table, "offsetTable"), "offsetTable")


def read_table(name: str, data: bytes) -> Table:
    """Parse a table as brokers load it: where it cannot be read they take its backup.

    A value of a wrong type is one that cannot be read, unless fastjson makes the right one of it.

    Args:
        name: of its file, without ``.bak``.
        data: the whole file.

    Raises:
        FormatError: it cannot be read.
    """
    table = parse_table(data)
    if name in _MEANINGS:
        _MEANINGS[name](table)
    return table


def data_version(table: Table) -> DataVersion:
    """Return the version of any table, zeros if it has none; raises like ``topics``."""
    version = _member(table, "dataVersion")
    return DataVersion(
        *(_integer(version, name, 0, "dataVersion", 64) for name in ("stateVersion", "counter", "timestamp"))
    )


def by_number(value: Any, path: str) -> dict[int, int]:
    """Return a map of integers whose keys may be quoted, as ``BrowserCompatible`` writers have it.

    Raises:
        FormatError: it is not such a map; ``path`` says where it is.
    """
    numbers = {}
    for key, item in _object(value, path).items():
        number = _PLAIN_KEYS.get(key)
        if number is None:
            number = _needed(key, f"{path}: the key {key}", 32)
        if type(item) is not int or not -(1 << 63) <= item < 1 << 63:
            item = _needed(item, f"{path}.{key}", 64)
        numbers[number] = item
    return numbers


def _member(table: Table, name: str) -> Table:
    return _object(_value(table, name, {}), name)


def _named(table: Table, member: str) -> Iterator[tuple[str, Table, str]]:
    """Yield name, settings and path of each object in a member of the table."""
    for name, value in _member(table, member).items():
        path = f"{member}.{name}"
        yield str(name), _object(value, path), path


def _topic_and_group(name: Any, path: str) -> tuple[str, str]:
    topic, separator, group = str(name).partition("@")
    if not (topic and separator and group):
        raise _unfit(path, "is not of the form topic@group")
    return topic, group


def _attributes(settings: Table, path: str) -> dict[str, str]:
    attributes = _object(_value(settings, "attributes", {}), f"{path}.attributes")
    return {
        str(name): value if isinstance(value, str) else _build(value, Dialect.ONE_LINE, "", "")
        for name, value in attributes.items()
    }


# Values of other types than they should be: what fastjson, of 5.3 where versions differ, makes of them


def _integer(settings: Table, name: str, default: int, path: str, bits: int = 32) -> int:
    value = _number(settings.get(name), f"{path}.{name}", bits)
    return default if value is None else value


def _boolean(settings: Table, name: str, default: bool, path: str) -> bool:
    value = settings.get(name)
    if isinstance(value, str):
        value = _BOOLEANS.get(value.lower(), value)
    elif isinstance(value, int | float) and abs(value) < 1 << 31:
        value = int(value) == 1
    if value is None or isinstance(value, bool):
        return default if value is None else value
    raise _unfit(f"{path}.{name}", "is neither true nor false")


def _check_retry_policy(value: Any, path: str) -> None:
    """Raise ``FormatError`` for a policy that brokers cannot read; those before 5.0 read none."""
    policy = _settings(value, path)
    kind = policy.get("type")
    if not (kind is None or isinstance(kind, str) or (type(kind) is int and kind in (0, 1))):
        raise _unfit(f"{path}.type", "is not a string")
    exponential = _settings(policy.get("exponentialRetryPolicy"), f"{path}.exponentialRetryPolicy")
    for name in ("initial", "max", "multiplier"):
        _number(exponential.get(name), f"{path}.exponentialRetryPolicy.{name}", 64)
    delays = _settings(policy.get("customizedRetryPolicy"), f"{path}.customizedRetryPolicy").get("next")
    for delay in _items(delays, f"{path}.customizedRetryPolicy.next") if delays != "" else ():
        _number(delay, f"{path}.customizedRetryPolicy.next", 64)


def _check_subscriptions(value: Any, path: str) -> None:
    """Raise ``FormatError`` for subscriptions of a group that brokers cannot read; those before 5.0 read none."""
    for item in _items(value, path) if not isinstance(value, dict) else ():
        _number(_settings(item, path).get("version"), f"{path}.version", 64)


def _settings(value: Any, path: str) -> Table:
    """Return a nested object, empty if there is none."""
    return {} if value is None or value in ("", []) else _object(value, path)


def _items(value: Any, path: str) -> list[Any]:
    if value is None or isinstance(value, list):
        return value or []
    raise _unfit(path, "is not a list")


def _filter_type(settings: Table, path: str) -> str:
    value = settings.get("topicFilterType")
    if isinstance(value, int) and not isinstance(value, bool) and value in range(len(_FILTER_TYPES)):
        value = _FILTER_TYPES[value]
    if value is None or isinstance(value, str):
        return value or _FILTER_TYPES[0]
    raise _unfit(f"{path}.topicFilterType", "is not a string")


def _value(settings: Table, name: str, default: Any) -> Any:
    value = settings.get(name)
    return default if value is None else value


def _needed(value: Any, path: str, bits: int) -> int:
    number = _number(value, path, bits)
    if number is None:
        raise _unfit(path, f"is not a {bits}-bit integer")
    return number


def _number(value: Any, path: str, bits: int) -> int | None:
    """Return a whole number, None for text that means none."""
    if isinstance(value, str):
        text = value.replace(",", "")
        if value in _NOTHING:
            return None
        value = int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else value
    elif isinstance(value, bool | float) and abs(value) < 1 << 63:
        value = int(value)
    if value is None or (isinstance(value, int) and -(1 << (bits - 1)) <= value < 1 << (bits - 1)):
        return value
    raise _unfit(path, f"is not a {bits}-bit integer")


def _object(value: Any, path: str) -> Table:
    if isinstance(value, dict):
        return value
    raise _unfit(path, "is not an object")


def _unfit(path: str, problem: str) -> FormatError:
    return FormatError(f"{path} {problem}", offset=0)


_NOTHING = ("", "null")
_PLAIN_KEYS = {str(number): number for number in range(1024)}
"""Queue ids as nearly all tables have them, which a large table says often."""
_BOOLEANS: dict[str, bool | None] = {
    **dict.fromkeys(_NOTHING),
    **dict.fromkeys(("true", "1", "y", "t"), True),
    **dict.fromkeys(("false", "0", "n", "f"), False),
}
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


def _with_version(parse: Callable[[Table], object]) -> Callable[[Table], object]:
    return lambda table: (parse(table), data_version(table))


_MEANINGS: dict[str, Callable[[Table], object]] = {
    "topics.json": _with_version(topics),
    "subscriptionGroup.json": _with_version(subscription_groups),
    "consumerOffset.json": lambda table: consumer_offsets(table, []),
    "lmqConsumerOffset.json": lambda table: consumer_offsets(table, []),
    "delayOffset.json": delay_offsets,
}
"""How each table whose values are checked is read."""
