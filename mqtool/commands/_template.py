"""``--format``: rows of messages by a template, as kcat writes them; bodies as their exact bytes."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from mqtool.errors import UsageError

_FIELDS = {
    "t": "topic",
    "q": "queue_id",
    "o": "queue_offset",
    "k": "keys",
    "g": "tags",
    "b": "body",
    "s": "body_size",
    "u": "unique_key",
    "i": "message_id",
    "T": "store_timestamp",
    "n": "broker_name",
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_PIECE = re.compile(
    r"%\{(?P<property>[^}]+)\}|%(?P<field>.?)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.?)|[^%\\]+", re.DOTALL
)

Part = bytes | Callable[[Mapping[str, Any]], bytes]


class Template:
    r"""A template: text, escapes as in C, ``%`` and a letter for a field, ``%{NAME}`` for a property.

    >>> Template(r"%t %o %{a}\n").render({"topic": "T", "queue_offset": 7, "body": b"", "properties": {"a": "red"}})
    b'T 7 red\n'
    """

    def __init__(self, text: str) -> None:
        """Read a template.

        Raises:
            UsageError: it has a field or an escape that there is not.
        """
        self._parts: list[Part] = [_part(piece) for piece in _PIECE.finditer(text)]

    def render(self, row: Mapping[str, Any]) -> bytes:
        """Return what a row of a message comes to.

        Raises:
            UsageError: it is not a row of a message.
        """
        if not isinstance(row.get("body"), bytes):
            raise UsageError("--format and --body raw apply to messages only: these rows are not messages")
        return b"".join(part if isinstance(part, bytes) else part(row) for part in self._parts)


def _part(piece: "re.Match[str]") -> Part:
    if name := piece["property"]:
        return lambda row: _bytes((row.get("properties") or {}).get(name))
    if piece["hex"]:
        return bytes.fromhex(piece["hex"])
    if piece["escape"] is not None:
        if piece["escape"] not in _ESCAPES:
            raise UsageError(f"--format: unknown escape {piece[0]}: use \\n \\t \\r \\0 \\xHH and \\\\")
        return _ESCAPES[piece["escape"]].encode()
    if piece["field"] is None:
        return piece[0].encode("utf-8", "surrogateescape")
    if piece["field"] == "%":
        return b"%"
    if piece["field"] not in _FIELDS:
        known = ", ".join(f"%{letter} {field}" for letter, field in _FIELDS.items())
        raise UsageError(f"--format: unknown field {piece[0]}: use {known}, %{{NAME}} for a property, and %%")
    field = _FIELDS[piece["field"]]
    return lambda row: _bytes(row.get(field))


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return b"" if value is None else str(value).encode("utf-8", "surrogateescape")


def read_template(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Template | None:
    """Return the template that ``--format`` names."""
    return None if value is None else Template(value)
