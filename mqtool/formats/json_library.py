"""``orjson``, loaded when it is first used: it takes a third of the time in which a producer loads."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orjson import *  # noqa: F403


def __getattr__(name: str) -> Any:
    import orjson

    value = globals()[name] = getattr(orjson, name)
    return value
