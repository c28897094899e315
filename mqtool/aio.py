"""The clients of ``mqtool`` for asyncio, under the same names; loaded when they are first used."""

from typing import Any

from mqtool.public_names import homes_of, load


def __getattr__(name: str) -> Any:
    return load(__name__, name)


def __dir__() -> list[str]:
    return [*homes_of(__name__)]
