"""The classes of the messages in ``wire_messages``, made by protobuf: imported when the first of them is used.

Importing protobuf takes a twelfth of a start of ``serve``, which needs none of them until a client connects.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from mqtool.engine.pulsar.wire_messages import MESSAGES

__all__ = ["BaseCommand", "DecodeError", "Message", "MessageMetadata", "SingleMetadata"]

_PACKAGE = "mqtool.pulsar"
_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "s": _FIELD.TYPE_STRING,
    "b": _FIELD.TYPE_BYTES,
    "u64": _FIELD.TYPE_UINT64,
    "i64": _FIELD.TYPE_INT64,
    "u32": _FIELD.TYPE_UINT32,
    "i32": _FIELD.TYPE_INT32,
    "bool": _FIELD.TYPE_BOOL,
}


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="mqtool_pulsar.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in filter(None, fields.split(", ")):
            number, field_name, kind = text.split()
            kind, _, default = kind.partition("=")
            field = message.field.add(name=field_name, number=int(number))
            field.label = (
                _FIELD.LABEL_REQUIRED
                if kind.endswith("!")
                else _FIELD.LABEL_REPEATED
                if kind.endswith("*")
                else _FIELD.LABEL_OPTIONAL
            )
            kind = kind.rstrip("!*")
            if default:
                field.default_value = default
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def _class_of(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


BaseCommand = _class_of("BaseCommand")
MessageMetadata = _class_of("MessageMetadata")
SingleMetadata = _class_of("SingleMetadata")
