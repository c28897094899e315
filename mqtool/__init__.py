"""mqtool: read, check and search the store of an Apache RocketMQ broker.

>>> import mqtool
>>> store = mqtool.open_store("fixtures/store")  # doctest: +SKIP
>>> next(store.messages()).topic  # doctest: +SKIP
'OrderEvents'

``open_store`` gives a ``StoreReader``; ``verify_store`` lists what is wrong with one. ``Broker`` runs a broker and its
name server in this process. ``Producer`` sends messages; the same for asyncio is in ``mqtool.aio``. Everything is
loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from mqtool import aio
    from mqtool.engine.client.consuming import ConsumeFrom, ConsumeStatus, MessageModel, Thresholds
    from mqtool.engine.client.incoming import ConsumerMessage
    from mqtool.engine.client.outgoing import ProducerMessage
    from mqtool.engine.client.queue_choice import select_at_random, select_by_hash
    from mqtool.engine.client.sending import SendResult, SendStatus, TransactionState
    from mqtool.engine.client_runtime.blocking.admin_client import AdminClient
    from mqtool.engine.client_runtime.blocking.consumers import (
        LitePullConsumer,
        PopConsumer,
        PullConsumer,
        PushConsumer,
    )
    from mqtool.engine.client_runtime.blocking.producers import Producer, TransactionProducer
    from mqtool.engine.client_runtime.consume_services import ConsumeContext, PushConsumerOptions
    from mqtool.engine.client_runtime.deduplicator import BoundedMemory, Deduplicator, SqliteMemory
    from mqtool.engine.client_runtime.hooks import Hook
    from mqtool.engine.client_runtime.instance import ClientOptions
    from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumerOptions
    from mqtool.engine.client_runtime.pop_consumer import PopConsumerOptions
    from mqtool.engine.client_runtime.producer import ProducerOptions
    from mqtool.engine.client_runtime.pull_consumer import PullConsumerOptions, PullResult
    from mqtool.engine.embedded import Broker
    from mqtool.engine.repair.findings import Finding, Severity
    from mqtool.engine.repair.verify.store import verify_store
    from mqtool.engine.store.reader import StoreReader
    from mqtool.engine.virtual_clock import VirtualClock
    from mqtool.errors import (
        AccessDeniedError,
        AcknowledgeError,
        AnswerTimeoutError,
        BusyError,
        CallbackError,
        FormatError,
        IllegalMessageError,
        InvalidRequestError,
        MqtoolError,
        NotFoundError,
        NotPermittedError,
        RefusedError,
        SendError,
        UnavailableError,
        UnknownGroupError,
        UnknownTopicError,
        UsageError,
    )
    from mqtool.formats.bodies import MessageQueue
    from mqtool.formats.codes import PullStatus
    from mqtool.formats.compression import Compression
    from mqtool.formats.message import Message
    from mqtool.formats.scan import MessageTable

    __version__: str

__all__ = [
    "AccessDeniedError",
    "AcknowledgeError",
    "AdminClient",
    "AnswerTimeoutError",
    "BoundedMemory",
    "Broker",
    "BusyError",
    "CallbackError",
    "ClientOptions",
    "Compression",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeStatus",
    "ConsumerMessage",
    "Deduplicator",
    "Finding",
    "FormatError",
    "Hook",
    "IllegalMessageError",
    "InvalidRequestError",
    "LitePullConsumer",
    "LitePullConsumerOptions",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageTable",
    "MqtoolError",
    "NotFoundError",
    "NotPermittedError",
    "PopConsumer",
    "PopConsumerOptions",
    "Producer",
    "ProducerMessage",
    "ProducerOptions",
    "PullConsumer",
    "PullConsumerOptions",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushConsumerOptions",
    "RefusedError",
    "SendError",
    "SendResult",
    "SendStatus",
    "Severity",
    "SqliteMemory",
    "StoreReader",
    "Thresholds",
    "TransactionProducer",
    "TransactionState",
    "UnavailableError",
    "UnknownGroupError",
    "UnknownTopicError",
    "UsageError",
    "VirtualClock",
    "aio",
    "open_store",
    "select_at_random",
    "select_by_hash",
    "verify_store",
]

_HOMES = {
    "AccessDeniedError": "mqtool.errors",
    "AcknowledgeError": "mqtool.errors",
    "AdminClient": "mqtool.engine.client_runtime.blocking.admin_client",
    "AnswerTimeoutError": "mqtool.errors",
    "BoundedMemory": "mqtool.engine.client_runtime.deduplicator",
    "Broker": "mqtool.engine.embedded",
    "BusyError": "mqtool.errors",
    "CallbackError": "mqtool.errors",
    "ClientOptions": "mqtool.engine.client_runtime.instance",
    "Compression": "mqtool.formats.compression",
    "ConsumeContext": "mqtool.engine.client_runtime.consume_services",
    "ConsumeFrom": "mqtool.engine.client.consuming",
    "ConsumeStatus": "mqtool.engine.client.consuming",
    "ConsumerMessage": "mqtool.engine.client.incoming",
    "Finding": "mqtool.engine.repair.findings",
    "FormatError": "mqtool.errors",
    "IllegalMessageError": "mqtool.errors",
    "InvalidRequestError": "mqtool.errors",
    "Hook": "mqtool.engine.client_runtime.hooks",
    "LitePullConsumer": "mqtool.engine.client_runtime.blocking.consumers",
    "LitePullConsumerOptions": "mqtool.engine.client_runtime.lite_pull_consumer",
    "Message": "mqtool.formats.message",
    "MessageModel": "mqtool.engine.client.consuming",
    "MessageQueue": "mqtool.formats.bodies",
    "MessageTable": "mqtool.formats.scan",
    "MqtoolError": "mqtool.errors",
    "NotFoundError": "mqtool.errors",
    "NotPermittedError": "mqtool.errors",
    "Deduplicator": "mqtool.engine.client_runtime.deduplicator",
    "PopConsumer": "mqtool.engine.client_runtime.blocking.consumers",
    "PopConsumerOptions": "mqtool.engine.client_runtime.pop_consumer",
    "Producer": "mqtool.engine.client_runtime.blocking.producers",
    "ProducerMessage": "mqtool.engine.client.outgoing",
    "ProducerOptions": "mqtool.engine.client_runtime.producer",
    "PullConsumer": "mqtool.engine.client_runtime.blocking.consumers",
    "PullConsumerOptions": "mqtool.engine.client_runtime.pull_consumer",
    "PullResult": "mqtool.engine.client_runtime.pull_consumer",
    "PullStatus": "mqtool.formats.codes",
    "PushConsumer": "mqtool.engine.client_runtime.blocking.consumers",
    "PushConsumerOptions": "mqtool.engine.client_runtime.consume_services",
    "RefusedError": "mqtool.errors",
    "SendError": "mqtool.errors",
    "SendResult": "mqtool.engine.client.sending",
    "SendStatus": "mqtool.engine.client.sending",
    "Severity": "mqtool.engine.repair.findings",
    "SqliteMemory": "mqtool.engine.client_runtime.deduplicator",
    "StoreReader": "mqtool.engine.store.reader",
    "Thresholds": "mqtool.engine.client.consuming",
    "TransactionProducer": "mqtool.engine.client_runtime.blocking.producers",
    "TransactionState": "mqtool.engine.client.sending",
    "UnavailableError": "mqtool.errors",
    "UnknownGroupError": "mqtool.errors",
    "UnknownTopicError": "mqtool.errors",
    "UsageError": "mqtool.errors",
    "VirtualClock": "mqtool.engine.virtual_clock",
    "select_at_random": "mqtool.engine.client.queue_choice",
    "select_by_hash": "mqtool.engine.client.queue_choice",
    "verify_store": "mqtool.engine.repair.verify.store",
}


def open_store(path: "str | PathLike[str]", settings: "Mapping[str, str] | None" = None) -> "StoreReader":
    """Open the store of a broker, or one of its files, for reading.

    Args:
        path: the directory that contains ``commitlog``, ``consumequeue`` and the other folders.
        settings: broker settings, by RocketMQ's names (``mappedFileSizeCommitLog``, ..), if they cannot be
            determined from the files.

    Raises:
        NotFoundError: there is no store.
        NotPermittedError: this user has no permission to read it.
    """
    from mqtool.engine.store.paths import StoreConfig
    from mqtool.engine.store.reader import StoreReader

    return StoreReader(path, StoreConfig(dict(settings or {})))


def __getattr__(name: str) -> Any:
    if name == "aio":
        return importlib.import_module("mqtool.aio")
    if name == "__version__":
        from importlib.metadata import version

        return version("mqtool")
    if name not in _HOMES:
        raise AttributeError(f"module 'mqtool' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
