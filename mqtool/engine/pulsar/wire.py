"""Reads and builds the messages of Pulsar's binary protocol (``wire_messages``) with protobuf.

(Rules: pulsar.md 2.)
"""

from typing import TYPE_CHECKING, Any

from mqtool.engine.pulsar.wire_messages import TYPES
from mqtool.errors import FormatError
from mqtool.late import LateModule

__all__ = ["classes", "command", "parse", "text_of"]

if TYPE_CHECKING:
    from mqtool.engine.pulsar import wire_classes as classes
else:
    classes = LateModule("mqtool.engine.pulsar.wire_classes")


def parse(kind: Any, data: bytes) -> Any:
    """Parse a message of one of the ``classes``.

    Raises:
        FormatError: the bytes are not such a message, or lack required fields.
    """
    message = kind()
    try:
        message.ParseFromString(data)
    except (classes.DecodeError, ValueError) as error:
        raise FormatError("not a protobuf message", 0) from error
    if not message.IsInitialized():  # it may lack millions of fields
        raise FormatError("a protobuf message without fields that it must have", 0)
    return message


def text_of(value: str | bytes) -> str:
    """Return a field as text, even if its bytes are not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def command(name: str, **fields: Any) -> Any:
    """Return a command with the fields of its own message."""
    base = classes.BaseCommand(type=TYPES[name])
    body = getattr(base, name)
    body.SetInParent()
    for field, value in fields.items():
        if isinstance(value, (list, tuple)):
            getattr(body, field).extend(value)
        elif isinstance(value, classes.Message):
            getattr(body, field).CopyFrom(value)
        elif isinstance(value, dict):
            part = getattr(body, field)
            part.SetInParent()
            for key, item in value.items():
                if isinstance(item, (list, tuple)):
                    getattr(part, key).extend(item)
                else:
                    setattr(part, key, item)
        elif value is not None:
            setattr(body, field, value)
    return base
