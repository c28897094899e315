"""The remoting protocol: frames, their headers in JSON or binary, and the command that both hold.

    4 bytes  how many follow: 4 + header size + body size
    1 byte   how the header is written: 0 JSON, 1 binary (RocketMQ: ``SerializeType``)
    3 bytes  header size
    header, body

Both forms of header are read. Written is JSON: some clients take nothing else, and every one takes it.
(RocketMQ: ``RemotingCommand``, ``RemotingSerializable``, ``RocketMQSerializable``, ``NettyDecoder``.)
"""

import enum
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mqtool.errors import FormatError
from mqtool.formats import json_library as orjson
from mqtool.formats.codes import LANGUAGES, Version
from mqtool.formats.config_tables import parse_table
from mqtool.formats.peer import Buffer, Peer

MAX_FRAME = 1 << 24
"""Bytes of the longest frame, its first four included; RocketMQ's peers close the connection on a longer one."""
MAX_HEADER = 1 << 20
"""Bytes of a header: it is parsed in one go, and what it may hold is far less."""

RESPONSE = 1
ONEWAY = 2
"""Bits of ``flag``. An answer with both, as C++ clients send it, is an answer all the same."""

LANGUAGE = "PYTHON"
VERSION = Version.V4_9_8
"""What our commands say of us. A Java client trusts brokers from V4_1_0 on with SQL92."""

Outgoing = tuple[Peer, "RemotingCommand"]
"""A command and its recipient."""

_PREFIX = struct.Struct(">iI")
_BINARY_HEAD = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, remark size
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_LANGUAGE_NUMBERS = {name: number for number, name in enumerate(LANGUAGES)}
_DIALECT_SIZE = 1 << 18  # a header that is not a plain JSON is read by a slower parser, up to this size


class SerializeType(enum.IntEnum):
    """How a header is written."""

    JSON = 0
    BINARY = 1


@dataclass(slots=True)
class RemotingCommand:
    """A request or an answer.

    ``opaque`` pairs an answer with its request, per connection and direction. ``parts`` is a body in pieces, in place
    of ``body``: what is read from a store is sent without a copy, and must not change until it is sent.
    """

    code: int
    flag: int = 0
    opaque: int = 0
    ext_fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    version: int = VERSION
    language: str | None = LANGUAGE  # None: one that is not in the table
    parts: Sequence[Buffer] = ()

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return self.flag & RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether this is a request that wants no answer."""
        return self.flag & (RESPONSE | ONEWAY) == ONEWAY

    def answer(
        self, code: int = 0, ext_fields: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None
    ) -> "RemotingCommand":
        """Return the answer to this request."""
        return RemotingCommand(code, RESPONSE, self.opaque, {} if ext_fields is None else ext_fields, body, remark)

    def release_body(self) -> None:
        """Release everything that answering does not need, in a request that is kept for later."""
        self.body, self.ext_fields = b"", {}


# Bytes to commands


def parse_command(serialize_type: int, header: bytes | bytearray, body: bytes) -> RemotingCommand:
    """Return the command of a header and a body.

    As lenient as Java clients: an unknown language is None; numbers and booleans among the ext fields become text,
    nulls are dropped; what else is missing is zero.

    Raises:
        FormatError: the header cannot be read.
    """
    if serialize_type == SerializeType.JSON:
        return _parse_json(header, body)
    if serialize_type == SerializeType.BINARY:
        return _parse_binary(header, body)
    raise FormatError(f"unknown header type {serialize_type}", offset=4)


def _parse_json(header: bytes | bytearray, body: bytes) -> RemotingCommand:
    try:
        fields = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        if len(header) > _DIALECT_SIZE:
            raise FormatError("the header is not valid JSON", offset=8) from error
        fields = parse_table(bytes(header))
    if type(fields) is not dict:
        raise FormatError("the header is not a JSON object", offset=8)
    get = fields.get
    ext_fields = get("extFields")
    if ext_fields is None:
        ext_fields = {}
    elif type(ext_fields) is not dict:
        raise FormatError("extFields of the header is not an object", offset=8)
    else:
        for value in ext_fields.values():
            if type(value) is not str:
                ext_fields = {str(key): _text(value) for key, value in ext_fields.items() if value is not None}
                break
    remark = get("remark")
    language = get("language", LANGUAGES[0])
    if language not in LANGUAGES:
        language = LANGUAGES[language] if type(language) is int and 0 <= language < len(LANGUAGES) else None
    code, flag, opaque, version = get("code"), get("flag"), get("opaque"), get("version")
    if not type(code) is type(flag) is type(opaque) is type(version) is int:
        code, flag, opaque, version = (_number(value) for value in (code, flag, opaque, version))
    return RemotingCommand(
        code, flag, opaque, ext_fields, body, remark if remark is None else _text(remark), version, language
    )


def _number(value: Any) -> int:
    if type(value) is int:
        return value
    if value is None:
        return 0
    if isinstance(value, str) and len(value) < 12 and re.fullmatch(r"-?[0-9]+", value):
        return int(value)
    raise FormatError(f"code, flag, opaque or version of the header is not a number: {str(value)[:40]}", offset=8)


def _text(value: Any) -> str:
    """Return what Java makes of a JSON value where it wants a string."""
    if type(value) is str:
        return value
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise FormatError("a value in the header is nested too deeply", offset=8) from error


def _parse_binary(header: bytes | bytearray, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, size = _BINARY_HEAD.unpack_from(header)
        remark, at = _binary_text(header, _BINARY_HEAD.size, size)
        (size,) = _INT.unpack_from(header, at)
        at += _INT.size
        end = at + max(size, 0)
        if end > len(header):
            raise FormatError("the ext fields are longer than the header", at)
        ext_fields = {}
        while at < end:
            (size,) = _SHORT.unpack_from(header, at)
            key, at = _binary_text(header, at + _SHORT.size, size)
            (size,) = _INT.unpack_from(header, at)
            ext_fields[key], at = _binary_text(header, at + _INT.size, size)
    except struct.error as error:
        raise FormatError("the header is truncated", offset=8 + len(header)) from error
    name = LANGUAGES[language] if language < len(LANGUAGES) else None
    return RemotingCommand(code, flag, opaque, ext_fields, body, remark or None, version, name)


def _binary_text(header: bytes | bytearray, at: int, size: int) -> tuple[str, int]:
    if size <= 0:
        return "", at
    end = at + size
    if end > len(header):
        raise FormatError("a string is longer than the header", at)
    return header[at:end].decode("utf-8", "replace"), end


# Commands to bytes


def build_frame(command: RemotingCommand, serialize_type: SerializeType = SerializeType.JSON) -> bytes:
    """Return the frame of a command.

    >>> build_frame(RemotingCommand(40, ONEWAY, 7))[8:]
    b'{"code":40,"flag":2,"language":"PYTHON","opaque":7,"serializeTypeCurrentRPC":"JSON","version":409}'
    """
    return b"".join(frame_buffers(command, serialize_type))


def frame_buffers(command: RemotingCommand, serialize_type: SerializeType = SerializeType.JSON) -> list[Buffer]:
    """Return the frame of a command in pieces: its head, then the body or its parts as they are."""
    if serialize_type is SerializeType.JSON:
        header = _json(command)
        size = mark = len(header)
    else:
        header = _binary(command)
        size = len(header)
        mark = serialize_type << 24 | size
    if command.parts:
        length = 4 + size + sum([part.nbytes if type(part) is memoryview else len(part) for part in command.parts])
        return [_PREFIX.pack(length, mark) + header, *command.parts]
    body = command.body
    prefix = _PREFIX.pack(4 + size + len(body), mark)
    return [prefix + header, body] if body else [prefix + header]


def _json(command: RemotingCommand) -> bytes:
    # In the order of Java's writer; null members and empty ext fields are left out, as there.
    fields: dict[str, Any] = {"code": command.code}
    if command.ext_fields:
        fields["extFields"] = command.ext_fields
    fields["flag"] = command.flag
    if command.language is not None:
        fields["language"] = command.language
    fields["opaque"] = command.opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError:  # half of a surrogate pair, from the name of a file perhaps
        fields["extFields"] = {_clean(key): _clean(value) for key, value in command.ext_fields.items()}
        fields["remark"] = _clean(command.remark or "")
        return orjson.dumps(fields)


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _binary(command: RemotingCommand) -> bytes:
    remark = (command.remark or "").encode("utf-8", "replace")
    entries = b"".join(
        _SHORT.pack(len(key)) + key + _INT.pack(len(value)) + value
        for key, value in (
            (key.encode("utf-8", "replace"), value.encode("utf-8", "replace"))
            for key, value in command.ext_fields.items()
        )
    )
    # RocketMQ cuts a code to 16 bits too; codes above 32767 work in JSON only.
    code = (command.code + 0x8000 & 0xFFFF) - 0x8000
    language = _LANGUAGE_NUMBERS[command.language or "OTHER"]
    head = _BINARY_HEAD.pack(code, language, command.version, command.opaque, command.flag, len(remark))
    return head + remark + _INT.pack(len(entries)) + entries
