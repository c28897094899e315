"""The settings of a name server, by RocketMQ's names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mqtool.errors import UsageError


def _setting(name: str, default: Any) -> Any:
    return field(default=default, metadata={"name": name})


@dataclass(frozen=True, slots=True)
class NameServerSettings:
    """What ``namesrv.conf`` may say; all else in such a file has no effect here."""

    kv_config_path: str = _setting("kvConfigPath", "")  # empty: kept in memory only
    order_message_enabled: bool = _setting("orderMessageEnable", False)  # routes tell the order config
    return_order_config: bool = _setting("returnOrderTopicConfigToBroker", True)
    topic_list_enabled: bool = _setting("enableTopicList", True)
    all_topic_list_enabled: bool = _setting("enableAllTopicList", True)
    delete_topic_with_registration: bool = _setting("deleteTopicWithBrokerRegistration", False)
    scan_interval_ms: int = _setting("scanNotActiveBrokerInterval", 5000)
    wait_for_service: bool = _setting("needWaitForService", False)
    wait_seconds: int = _setting("waitSecondsForService", 45)

    def updated(self, given: Mapping[str, str]) -> "tuple[NameServerSettings, list[str]]":
        """Return these settings with ``given`` laid over them, and the names that have no effect here.

        Raises:
            UsageError: a value is not of its kind.
        """
        changes = {}
        unknown = []
        for name, text in given.items():
            if name in _FIELDS:
                changes[_FIELDS[name]] = _parse(name, text, getattr(self, _FIELDS[name]))
            else:
                unknown.append(name)
        return replace(self, **changes), unknown

    def texts(self) -> dict[str, str]:
        """Return the settings by RocketMQ's names, as text."""
        return {name: _text(getattr(self, attribute)) for name, attribute in _FIELDS.items()}


_FIELDS = {attribute.metadata["name"]: name for name, attribute in NameServerSettings.__dataclass_fields__.items()}


def _parse(name: str, text: str, present: Any) -> Any:
    if isinstance(present, bool):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise UsageError(f"{name}={text} is neither true nor false")
    if isinstance(present, int):
        if text.isdecimal() and 0 < int(text[:10]) < 1 << 31:
            return int(text[:10])
        raise UsageError(f"{name}={text} is no whole number above 0")
    return text


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
