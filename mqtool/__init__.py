"""mqtool: read, check and search the store of an Apache RocketMQ broker.

>>> import mqtool
>>> store = mqtool.open_store("fixtures/store")  # doctest: +SKIP
>>> next(store.messages()).topic  # doctest: +SKIP
'OrderEvents'

``open_store`` gives a ``StoreReader``; ``verify_store`` lists what is wrong with one. ``Broker`` runs a broker and its
name server in this process. Everything is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from mqtool.engine.embedded import Broker
    from mqtool.engine.repair.findings import Finding, Severity
    from mqtool.engine.repair.verify import verify_store
    from mqtool.engine.store.reader import StoreReader
    from mqtool.engine.virtual_clock import VirtualClock
    from mqtool.errors import MqtoolError
    from mqtool.formats.message import Message
    from mqtool.formats.scan import MessageTable

__all__ = [
    "Broker",
    "Finding",
    "Message",
    "MessageTable",
    "MqtoolError",
    "Severity",
    "StoreReader",
    "VirtualClock",
    "open_store",
    "verify_store",
]

_HOMES = {
    "Broker": "mqtool.engine.embedded",
    "Finding": "mqtool.engine.repair.findings",
    "Message": "mqtool.formats.message",
    "MessageTable": "mqtool.formats.scan",
    "MqtoolError": "mqtool.errors",
    "Severity": "mqtool.engine.repair.findings",
    "StoreReader": "mqtool.engine.store.reader",
    "VirtualClock": "mqtool.engine.virtual_clock",
    "verify_store": "mqtool.engine.repair.verify",
}


def open_store(path: "str | PathLike[str]", settings: "Mapping[str, str] | None" = None) -> "StoreReader":
    """Open the store of a broker, or one file of it, for reading.

    Args:
        path: the directory that holds ``commitlog``, ``consumequeue`` and the rest.
        settings: of the broker, by RocketMQ's names (``mappedFileSizeCommitLog``, ..), where files do not tell them.

    Raises:
        NotFoundError: there is no store.
        NotPermittedError: this user may not read it.
    """
    from mqtool.engine.store.paths import StoreConfig
    from mqtool.engine.store.reader import StoreReader

    return StoreReader(path, StoreConfig(dict(settings or {})))


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mqtool' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
