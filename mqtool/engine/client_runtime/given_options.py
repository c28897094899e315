"""Options of a client, given as an object, a mapping, keywords, or environment variables."""

import dataclasses
import enum
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from mqtool.engine.client_runtime.instance import ClientOptions
from mqtool.errors import UsageError

O = TypeVar("O", bound=ClientOptions)  # noqa: E741
_PREFIX = "MQTOOL_"
_NAMES = {bool: "True or False", int: "a whole number", str: "a string"}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_LEAST = {
    "auto_commit_interval_millis": 0,
    "compress_level": 1,
    "consume_message_batch_max_size": 1,
    "consume_thread_max": 1,
    "consume_timeout": 1,
    "default_topic_queue_nums": 1,
    "heartbeat_broker_interval_ms": 1,
    "max_message_size": 1,
    "max_reconsume_times": -1,
    "persist_consumer_offset_interval": 1,
    "poll_name_server_interval_ms": 1,
    "poll_timeout_millis": 0,
    "pop_batch_nums": 1,
    "pull_batch_size": 1,
    "pull_interval": 0,
    "retry_times_when_send_async_failed": 0,
    "retry_times_when_send_failed": 0,
    "send_msg_timeout": 1,
    "topic_metadata_check_interval_millis": 1,
}
"""Below these a client would do nothing, or nothing else."""
_MOST = {"compress_level": 9}
_FUNCTIONS = frozenset(("deserializer", "on_assigned", "on_revoked", "serializer", "strategy"))
_SEQUENCES = {"hooks": "hooks", "latency_max": "numbers", "not_available_duration": "numbers", "topics": "strings"}


def options_of(
    kind: type[O],
    options: "O | Mapping[str, Any] | None",
    more: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> O:
    """Return the options of a client.

    Args:
        kind: of the client.
        options: an options object; or some options by name, the others from the environment.
        more: some options by name, which take precedence.
        environment: ``MQTOOL_`` and the name in capitals, for strings, numbers, flags, paths and enumerations.

    Raises:
        UsageError: there is no such option, or the value is invalid.
    """
    if isinstance(options, ClientOptions):
        if not isinstance(options, kind):
            raise UsageError(f"the options of this client must be {kind.__name__}, not {type(options).__name__}")
        known = {field.name: getattr(options, field.name) for field in dataclasses.fields(kind)}
        read = _checked(kind, {**known, **more})
        changed = {name: value for name, value in read.items() if value is not known[name]}
        return dataclasses.replace(options, **changed) if changed else options
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"options must be {kind.__name__} or a mapping, not {options!r}")
    return kind(**_checked(kind, {**_from_environment(kind, environment), **(options or {}), **more}))


def _checked(kind: type[ClientOptions], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by name as a client needs them: enumerations and paths may be given as text."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    read = {}
    for name, value in values.items():
        if name not in fields:
            import difflib

            near = difflib.get_close_matches(name, fields, 1)
            hint = f": did you mean {near[0]}?" if near else f", see help(mqtool.{kind.__name__})"
            raise UsageError(f"{name} is not an option of this client{hint}")
        is_left_out = value is None and fields[name].default is None
        read[name] = None if is_left_out else _checked_value(name, value, _kind_of(fields[name]))
    return read


def _checked_value(name: str, value: Any, wanted: Any) -> Any:
    if wanted in _NAMES:
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise UsageError(f"{name} must be {_NAMES[wanted]}, not {value!r}")
        if wanted is int:
            _check_bounds(name, value)
    elif isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        if isinstance(value, str):
            return _read(name, value, wanted)
        if not isinstance(value, wanted):
            raise UsageError(f"{name} must be one of {', '.join(wanted.__members__)}, not {value!r}")
    elif wanted:
        if not isinstance(value, str | os.PathLike):
            raise UsageError(f"{name} must be a path, not {value!r}")
        return value if isinstance(value, wanted) else wanted(value)
    elif name in _FUNCTIONS and not callable(value):
        raise UsageError(f"{name} must be a function, not {value!r}")
    elif name in _SEQUENCES and (not isinstance(value, Sequence) or isinstance(value, str | bytes)):
        raise UsageError(f"{name} must be a sequence of {_SEQUENCES[name]}, not {value!r}")
    elif name == "thresholds":
        from mqtool.engine.client.consuming import Thresholds

        if not isinstance(value, Thresholds):
            raise UsageError(f"{name} must be Thresholds, not {value!r}")
    return value


def _check_bounds(name: str, value: int) -> None:
    if value < _LEAST.get(name, value):
        raise UsageError(f"{name} must be at least {_LEAST[name]}, not {value}")
    if value > _MOST.get(name, value):
        raise UsageError(f"{name} must be at most {_MOST[name]}, not {value}")


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

    name = str(field.type).rpartition(".")[2]  # Python 3.13 has paths in another module
    return {"Path | None": Path, "int | None": int}.get(name)


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
