"""Settings as RocketMQ keeps and sends them: Java properties, one ``key=value`` a line."""

import re
from collections.abc import Mapping

_SETTING = re.compile(r"([^=:\s]*)\s*[=:]?\s*(.*)")


def parse_settings(text: str) -> dict[str, str]:
    """Return the settings of a ``broker.conf`` or ``namesrv.conf``, or of a request that changes some.

    >>> parse_settings("listenPort = 10911")
    {'listenPort': '10911'}
    """
    settings = {}
    for line in text.splitlines():
        line = line.strip()
        if line and line[0] not in "#!":
            key, value = _SETTING.fullmatch(line).groups()  # type: ignore[union-attr]
            settings[key] = value
    return settings


def build_settings(settings: Mapping[str, str]) -> str:
    """Return the text of settings, a line each."""
    return "".join(f"{key}={value}\n" for key, value in settings.items())
