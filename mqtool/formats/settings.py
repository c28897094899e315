"""Settings as RocketMQ keeps and sends them: Java properties, one ``key=value`` a line; and tables of such settings."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from mqtool.errors import UsageError

_BLANK = " \t\f"
_LINE_END = re.compile(r"\r\n|[\r\n]")
_SETTING = re.compile(rf"((?:\\.|[^=:{_BLANK}\\])*)[{_BLANK}]*[=:]?[{_BLANK}]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_TO_ESCAPE = {ord(text): f"\\{name}" for name, text in {**_ESCAPED, "\\": "\\"}.items()}


def parse_settings(text: str) -> dict[str, str]:
    """Return the settings of a ``broker.conf`` or ``namesrv.conf``, or of a request that changes some.

    >>> parse_settings("listenPort = 10911")
    {'listenPort': '10911'}
    """
    settings = {}
    for line in _lines(text):
        key, value = _SETTING.fullmatch(line).groups()  # type: ignore[union-attr]
        settings[_unescape(key)] = _unescape(value)
    return settings


def _lines(text: str) -> Iterator[str]:
    """Yield the lines with settings; one that ends with a backslash continues in the next."""
    begun = ""
    for line in _LINE_END.split(text):
        line = line.lstrip(_BLANK)
        if not begun and line[:1] in ("", "#", "!"):
            continue
        begun += line
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield begun.rstrip(_BLANK)
        begun = ""
    if begun:
        yield begun.rstrip(_BLANK)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    text = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _ESCAPED.get(match[2], match[2]), text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of pairs make one


def build_settings(settings: Mapping[str, str]) -> str:
    """Return the text of settings, a line each."""
    return "".join(f"{key}={value.translate(_TO_ESCAPE)}\n" for key, value in settings.items())


def setting(name: str, default: Any, least: int = 1) -> Any:
    """Return a field of ``Settings``: RocketMQ's name, and the least value of a whole number."""
    return field(default=default, metadata={"name": name, "least": least})


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one kind of server: a subclass is the table of those that have an effect, each made by ``setting``.

    A setting has the type of its default: true or false, a whole number, or text.
    """

    def updated(self, overrides: Mapping[str, str]) -> tuple[Self, list[str]]:
        """Return these settings overridden by ``overrides``, and the names that have no effect here.

        Raises:
            UsageError: a value is not of its kind.
        """
        changes = {}
        unknown = []
        known = _fields(self)
        for name, text in overrides.items():
            if name in known:
                attribute, least = known[name]
                changes[attribute] = _parse(name, text, getattr(self, attribute), least)
            else:
                unknown.append(name)
        return replace(self, **changes), unknown

    def texts(self) -> dict[str, str]:
        """Return the settings by RocketMQ's names, as text."""
        return {name: _text(getattr(self, attribute)) for name, (attribute, _) in _fields(self).items()}


def _fields(settings: Settings) -> dict[str, tuple[str, int]]:
    return {
        definition.metadata["name"]: (definition.name, definition.metadata["least"]) for definition in fields(settings)
    }


def _parse(name: str, text: str, present: Any, least: int) -> Any:
    if isinstance(present, bool):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise UsageError(f"{name}={text} is neither true nor false")
    if isinstance(present, int):
        if text.isdecimal() and least <= int(text[:10]) < 1 << 31 and len(text) <= 10:
            return int(text)
        raise UsageError(f"{name}={text} is not a whole number {f'above {least - 1}' if least else 'of 0 or more'}")
    return text


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
