"""Requests and bytes that no honest client sends: recorded ones with something changed, made up ones, broken frames.

Everything comes from a ``random.Random``, so that hypothesis can shrink it and a campaign can run quickly.
"""

import base64
import functools
import json
import random
import re
import struct
import zlib
from typing import Any, NamedTuple, get_args

from mqtool.engine.client import calls
from mqtool.formats import headers
from mqtool.formats.codes import RequestCode
from mqtool.formats.remoting import RemotingCommand, SerializeType, build_frame
from tests.traces import TRACES, exchanges

TOPICS = (
    *("Orders", "Batch", "%RETRY%G", "%DLQ%G", "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "nowhere"),
    *("RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster", "%RETRY%", "%DLQ%"),
)
GROUPS = ("G", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "unheard of", "CID_ONS-HTTP-PROXY")
NUMBERS = (
    *(
        "0",
        "1",
        "2",
        "3",
        "-1",
        "16",
        "255",
        "32767",
        "65536",
        "2147483647",
        "-2147483648",
        "2147483648",
        "1700000000000",
    ),
    *(
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775808",
        "1.5",
        "1e3",
        "0x10",
        "+5",
        " 5",
        "5 ",
        "1_0",
    ),
    *("", "-", "NaN", "null", "true", "\u0665", "9" * 5000, "-" + "9" * 400),
)
TEXTS = (
    *(
        "",
        " ",
        "*",
        "a || b",
        "||",
        "null",
        "\0",
        "\x01",
        "\x02",
        "a\x01b\x02",
        "../../etc/passwd",
        "a/b",
        "ü",
        "\U0001f600",
    ),
    *(
        "x" * 128,
        "x" * 256,
        "x" * 40_000,
        "a > 5",
        "a > 5 AND (",
        "a IN (" + "'x'," * 2000 + "'x')",
        "(" * 500,
        "NOT " * 500,
    ),
    *("a = 'b' OR " * 300 + "TRUE", "TAG", "SQL92", "CLASS", "true", "false", "%", "%s%n", "\ud800", "\r\n", "0" * 32),
    *(
        "7F0000010000000000000000",
        "0 1700000000000 60000 1 0 broker-a 0 0",
        "1 2 3",
        "0 0 0 0 0 0 0 0 0",
        "{}",
        "[]",
        "[{}]",
    ),
    *(
        '{"a":{{"b":1}:2}}',
        "+message.type=DELAY",
        "a=b\nc=d",
        "flushDiskType=SYNC_FLUSH",
        "fileReservedTime=x",
        "MULTI_TAG",
    ),
)
PROPERTIES = (
    *(
        "DELAY",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_OUT_MS",
        "TRAN_MSG",
    ),
    *("PGROUP", "UNIQ_KEY", "KEYS", "TAGS", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "POP_CK", "INNER_NUM", "CLUSTER"),
    *(
        "REPLY_TO_CLIENT",
        "TTL",
        "MSG_TYPE",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "TRANSACTION_CHECK_TIMES",
        "ORIGIN_MESSAGE_ID",
    ),
    *(
        "__transactionId__",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "1ST_POP_TIME",
        "MIN_OFFSET",
        "CONSUME_START_TIME",
        "__CRC32#",
        "a",
    ),
)
_CODES = tuple(int(code) for code in RequestCode)
_LEAVES: tuple[Any, ...] = (
    *NUMBERS[:14],
    *TEXTS[:20],
    *GROUPS,
    *TOPICS,
    None,
    True,
    False,
    0,
    1,
    -1,
    1.5,
    1e300,
    2**31,
    2**63,
)
_LEAVES += (-(2**63), [], {}, [None], [[]], {"a": 1}, {"0": 0}, {"": ""}, {"T@G": {"0": 1}})


class Request(NamedTuple):
    """What a client asks, in good order."""

    code: int
    ext_fields: dict[str, str]
    body: bytes


@functools.cache
def recorded_requests() -> list[Request]:
    """Return the requests of all traces, one a code and set of fields."""
    found = {}
    for name in TRACES:
        for one in exchanges(name):
            command = one.request.command
            found[command.code, tuple(sorted(command.ext_fields))] = Request(
                command.code, command.ext_fields, command.body
            )
    return list(found.values())


@functools.cache
def _fields_by_code() -> dict[int, list[dict[str, bool]]]:
    """Return the fields of the header tables, and whether they are numbers, by the codes that each table names.

    What no table names has any of them.
    """
    found: dict[int, list[dict[str, bool]]] = {}
    every = []
    kinds: list[Any] = [
        kind
        for name, kind in vars(headers).items()
        if isinstance(kind, type) and issubclass(kind, tuple) and not name.startswith("_")
    ]
    for kind in kinds:
        numbers = [int in _kinds_of(annotation) for annotation in kind.__annotations__.values()]
        # What is no number is a text here: only the names count.
        names = headers.build_header(kind(*(0 if is_number else "" for is_number in numbers)))
        every.append(dict(zip(names, numbers, strict=True)))
        for name in re.findall("[A-Z][A-Z0-9_]{6,}", kind.__doc__):
            if name in RequestCode.__members__:
                found.setdefault(RequestCode[name], []).append(every[-1])
    short = dict(zip("abcdefghijklmn", found[RequestCode.SEND_MESSAGE][0].values(), strict=True))
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2):
        found[code] = [short]
    return {code: found.get(code) or every for code in _CODES}


def _kinds_of(annotation: Any) -> set[Any]:
    return {kind for one in (annotation, *get_args(annotation)) for kind in (one, *get_args(one))}


def request(chance: random.Random) -> RemotingCommand:
    """Return a request that is wrong somewhere, most often."""
    if chance.random() < 0.6:
        code, fields, body = chance.choice(recorded_requests())
        fields = dict(fields)
    else:
        code = chance.choice(_CODES)
        numbers = chance.choice(_fields_by_code()[code])
        fields = {name: _value(chance, name, is_number) for name, is_number in numbers.items()}
        body = b""
    if code in _SENDS and chance.random() < 0.5:
        fields["i" if "i" in fields else "properties"] = _properties(chance)
    rate = chance.choice([0.0, 0.05, 0.3, 1.0])
    for name in list(fields) if rate else ():
        if chance.random() < rate:
            fields[name] = _value(chance, name, fields[name].isdigit(), wild=True)
        elif chance.random() < rate / 10:
            del fields[name]
    if chance.random() < 0.5:
        body = _body(chance, body)
    if chance.random() < 0.02:
        code = chance.randrange(-100_000, 100_000)
    flag = chance.choice([0, 0, 0, 0, 2, 1, 3, chance.randrange(-(2**31), 2**31)])
    version = chance.choice([409, 453, 0, -1, 2**31 - 1])
    language = chance.choice(["JAVA", "GO", "CPP", "COBOL", None, "JAVA"])
    return RemotingCommand(code, flag, chance.randrange(2**31), fields, body, None, version, language)


_LONG = zlib.compress(bytes(1 << 20))
_SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


def _value(chance: random.Random, name: str, is_number: bool, wild: bool = False) -> str:
    lower = name.lower()
    if wild and chance.random() < 0.5:
        return chance.choice(NUMBERS + TEXTS)
    if is_number:
        return chance.choice(NUMBERS) if wild else str(chance.choice([0, 0, 1, 2, 4, 32, 60_000]))
    if "topic" in lower or name in ("b", "c"):
        return chance.choice(TOPICS)
    if "group" in lower or name == "a":
        return chance.choice(GROUPS)
    return chance.choice(TEXTS) if wild else chance.choice(["", "true", "false", "a", "*", "TAG", "0"])


def _properties(chance: random.Random) -> str:
    values = (*NUMBERS[:18], "true", "false", "G", "Orders", "c1", "0" * 32, "x" * 200)
    pairs = "".join(f"{chance.choice(PROPERTIES)}\x01{chance.choice(values)}\x02" for _ in range(chance.randrange(8)))
    return (
        pairs
        if chance.random() < 0.8
        else pairs.replace(chance.choice("\x01\x02"), chance.choice(["", "\x02", "\x01"]), 1)
    )


def _body(chance: random.Random, body: bytes) -> bytes:
    match chance.randrange(8):
        case 0:
            return b""
        case 1:
            return chance.randbytes(chance.choice([1, 3, 17, 300]))
        case 2 if body:
            return body[: chance.randrange(len(body))]
        case 3 if body:
            at = chance.randrange(len(body))
            return body[:at] + chance.randbytes(1) + body[at + 1 :]
        case 4:
            return _batch(chance)
        case 5:
            return chance.choice(
                [b"[" * 10_000, b'{"a":' * 10_000, b"{" * 3000 + b"}" * 3000, b"null", b"5", b'"x"', b"[]", b"{}"]
            )
        case 6:
            return zlib.compress(
                chance.randbytes(20) if chance.random() < 0.5 else bytes(chance.choice([100, 1 << 20]))
            )
    return _json_body(chance, body)


def _batch(chance: random.Random) -> bytes:
    """Return the messages of a batch, with sizes that may be wrong."""
    pieces = []
    for _ in range(chance.randrange(1, 4)):
        body, properties = chance.randbytes(chance.randrange(5)), _properties(chance).encode("utf-8", "replace")
        sizes = [4 * 5 + len(body) + 2 + len(properties), len(body), len(properties)]
        if chance.random() < 0.3:
            sizes[chance.randrange(3)] = chance.choice([-1, 0, 1, 1000, 32767])
        head = struct.pack(">iiiii", sizes[0], 0, zlib.crc32(body) & 0x7FFFFFFF, 0, sizes[1])
        pieces.append(head + body + struct.pack(">h", max(-32768, min(sizes[2], 32767))) + properties)
    return b"".join(pieces)


_MEMBERS = (
    *(
        "clientID",
        "clientId",
        "producerDataSet",
        "consumerDataSet",
        "groupName",
        "subscriptionDataSet",
        "topic",
        "subString",
    ),
    *(
        "consumerGroup",
        "mqSet",
        "brokerName",
        "queueId",
        "topicConfigTable",
        "dataVersion",
        "offsetTable",
        "consumeType",
    ),
    *(
        "expressionType",
        "tagsSet",
        "codeSet",
        "retryQueueNums",
        "retryMaxTimes",
        "topicSubscriptionTable",
        "strategyName",
    ),
    *(
        "topicConfigSerializeWrapper",
        "filterServerList",
        "messageRequestMode",
        "popShareQueueNum",
        "messageModel",
        "acks",
    ),
    *("perm", "order", "attributes", "topicName", "readQueueNums", "counter", "timestamp", "stateVersion", "topicList"),
    *("c", "t", "q", "s", "rq", "bm", "bitSet", "i"),
)


def _json_body(chance: random.Random, body: bytes) -> bytes:
    try:
        value = json.loads(body)
    except ValueError:
        value = {name: _json(chance, 3) for name in chance.sample(_MEMBERS, chance.randrange(6))}
    else:
        for _ in range(chance.randrange(1, 4)):
            value = _changed(chance, value)
    return json.dumps(value).encode()


def _changed(chance: random.Random, value: Any) -> Any:
    """Return a JSON value with one value in it replaced."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice([*value])
        return {**value, key: _changed(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        return [*value[:at], _changed(chance, value[at]), *value[at + 1 :]]
    return _json(chance, 2)


def _json(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(4) if depth else 0
    if kind == 1:
        return [_json(chance, depth - 1) for _ in range(chance.randrange(3))]
    if kind == 2:
        return {chance.choice(_MEMBERS): _json(chance, depth - 1) for _ in range(chance.randrange(4))}
    return chance.choice(_LEAVES)


# Frames


def frame(chance: random.Random) -> bytes:
    """Return a frame that is one by its lengths, with something wrong in it perhaps."""
    command = request(chance)
    command.ext_fields = {name: _storable(value) for name, value in command.ext_fields.items()}
    kind = chance.randrange(10)
    if kind < 5:
        return build_frame(command)
    if kind < 7:
        command.version = max(-32768, min(command.version, 32767))
        command.flag = max(-(2**31), min(command.flag, 2**31 - 1))
        command.language = command.language if command.language != "COBOL" else None
        fields = {name: value for name, value in command.ext_fields.items() if len(name) < 32767}
        command.ext_fields = fields
        return build_frame(command, SerializeType.BINARY)
    if kind == 7:
        return _framed(chance.choice([0, 0, 1, 1, 2, 255]), chance.randbytes(chance.randrange(60)), command.body)
    if kind == 8:  # a binary header with bytes changed
        command.version, command.language, command.flag = 409, "JAVA", 0
        whole = bytearray(build_frame(command, SerializeType.BINARY))
        end = 8 + (int.from_bytes(whole[4:8]) & 0xFFFFFF)
        for _ in range(chance.randrange(1, 4)):
            whole[chance.randrange(8, end)] = chance.randrange(256)
        return bytes(whole)
    members: dict[str, Any] = {
        "code": command.code,
        "extFields": command.ext_fields,
        "flag": command.flag,
        "language": command.language,
        "opaque": command.opaque,
        "version": command.version,
    }
    for _ in range(chance.randrange(1, 4)):
        members[chance.choice([*members, "remark", "serializeTypeCurrentRPC"])] = _json(chance, 2)
    header = json.dumps(members, ensure_ascii=chance.random() < 0.5).encode("utf-8", "replace")
    return _framed(0, header[: chance.randrange(len(header))] if chance.random() < 0.1 else header, command.body)


def _framed(serialize_type: int, header: bytes, body: bytes) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), serialize_type << 24 | len(header)) + header + body


def _storable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def stream_end(chance: random.Random) -> bytes:
    """Return bytes after which nothing can be understood any more, or that are not all there."""
    match chance.randrange(5):
        case 0:
            return chance.randbytes(chance.randrange(1, 40))
        case 1:  # a length that is absurd
            return struct.pack(
                ">II", chance.choice([0, 3, 2**24, 2**31 - 1, 2**31, 2**32 - 1]), chance.randrange(2**32)
            )
        case 2:  # a header that is longer than its frame
            return struct.pack(">II", 20, chance.choice([17, 1000, 0xFFFFFF])) + bytes(16)
        case 3:
            return base64.b64decode("R0VUIC8gSFRUUC8xLjENCg0K")
    whole = frame(chance)
    return whole[: chance.randrange(len(whole))]


GOOD = calls.topic_configs().command
"""What an honest client asks meanwhile."""

FINDINGS = frozenset(
    {"LOG-FLAG", "LOG-PROPERTY-TEXT", "LOG-QUEUE-ORDER", "QUEUE-MISSING", "QUEUE-POSITION", "CONFIG-OFFSET"}
)
"""What ``verify`` may find of a store afterwards, as clients have asked for it: a body that is not packed as its flag
says; properties of members of a batch, which brokers store as they come; messages of a topic that was deleted, which
have no queue, or one that counts from 0 again; an offset of a group that is beyond its queue."""
