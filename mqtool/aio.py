"""The clients of ``mqtool`` for asyncio, under the same names; loaded when they are first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumer
    from mqtool.engine.client_runtime.pop_consumer import PopConsumer
    from mqtool.engine.client_runtime.producer import Producer, TransactionProducer
    from mqtool.engine.client_runtime.pull_consumer import PullConsumer
    from mqtool.engine.client_runtime.push_consumer import PushConsumer

__all__ = [
    "AdminClient",
    "LitePullConsumer",
    "PopConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "TransactionProducer",
]

_HOMES = {
    "AdminClient": "admin_client",
    "LitePullConsumer": "lite_pull_consumer",
    "PopConsumer": "pop_consumer",
    "Producer": "producer",
    "PullConsumer": "pull_consumer",
    "PushConsumer": "push_consumer",
    "TransactionProducer": "producer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mqtool.aio' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mqtool.engine.client_runtime.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
