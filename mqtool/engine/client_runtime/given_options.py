"""Options of a client, given as an object, a mapping, keywords, or environment variables."""

import dataclasses
import enum
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from mqtool.engine.client_runtime.instance import ClientOptions
from mqtool.errors import UsageError

O = TypeVar("O", bound=ClientOptions)  # noqa: E741
_PREFIX = "MQTOOL_"
_NAMES = {bool: "True or False", int: "a whole number", str: "a string"}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def options_of(
    kind: type[O],
    options: "O | Mapping[str, Any] | None",
    more: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> O:
    """Return the options of a client.

    Args:
        kind: of the client.
        options: an options object, which is used as is; or some options by name, the others from the environment.
        more: some options by name, which take precedence.
        environment: ``MQTOOL_`` and the name in capitals, for strings, numbers, flags, paths and enumerations.

    Raises:
        UsageError: there is no such option, or the value is invalid.
    """
    if isinstance(options, ClientOptions):
        if not isinstance(options, kind):
            raise UsageError(f"the options of this client must be {kind.__name__}, not {type(options).__name__}")
        return dataclasses.replace(options, **_checked(kind, more)) if more else options
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"options must be {kind.__name__} or a mapping, not {options!r}")
    return kind(**{**_from_environment(kind, environment), **_checked(kind, {**(options or {}), **more})})


def _checked(kind: type[ClientOptions], values: Mapping[str, Any]) -> dict[str, Any]:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name, value in values.items():
        if name not in fields:
            import difflib

            near = difflib.get_close_matches(name, fields, 1)
            hint = f": did you mean {near[0]}?" if near else f", see help(mqtool.{kind.__name__})"
            raise UsageError(f"{name} is not an option of this client{hint}")
        wanted = _kind_of(fields[name])
        if value is None and fields[name].default is None:
            continue
        if wanted in _NAMES and (not isinstance(value, wanted) or (wanted is int and isinstance(value, bool))):
            raise UsageError(f"{name} must be {_NAMES[wanted]}, not {value!r}")
    return dict(values)


def _from_environment(kind: type[ClientOptions], environment: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for field in dataclasses.fields(kind):
        name = _PREFIX + field.name.upper()
        if (text := environment.get(name)) and (wanted := _kind_of(field)):
            values[field.name] = _read(name, text, wanted)
    return values


def _kind_of(field: "dataclasses.Field[Any]") -> Any:
    """Return the type of an option that can be given as text, None for other options."""
    if isinstance(field.default, bool | int | str | enum.Enum):
        return type(field.default)
    from pathlib import Path

    return {"Path | None": Path, "pathlib.Path | None": Path, "int | None": int}.get(str(field.type))


def _read(name: str, text: str, wanted: Any) -> Any:
    if wanted is bool:
        if text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
        raise UsageError(f"{name} must be true or false, not {text!r}")
    if issubclass(wanted, enum.Enum):
        if text.upper() in wanted.__members__:
            return wanted[text.upper()]
        raise UsageError(f"{name} must be one of {', '.join(wanted.__members__)}, not {text!r}")
    try:
        return wanted(text)
    except ValueError:
        raise UsageError(f"{name} must be {_NAMES[wanted]}, not {text!r}") from None
