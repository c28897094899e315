"""The public names of ``mqtool`` and their homes: each is loaded when it is first used."""

from mqtool import aio as aio
from mqtool.engine.client.consuming import ConsumeFrom as ConsumeFrom
from mqtool.engine.client.consuming import ConsumeStatus as ConsumeStatus
from mqtool.engine.client.consuming import MessageModel as MessageModel
from mqtool.engine.client.consuming import Thresholds as Thresholds
from mqtool.engine.client.incoming import ConsumerMessage as ConsumerMessage
from mqtool.engine.client.outgoing import ProducerMessage as ProducerMessage
from mqtool.engine.client.queue_choice import select_at_random as select_at_random
from mqtool.engine.client.queue_choice import select_by_hash as select_by_hash
from mqtool.engine.client.sending import SendResult as SendResult
from mqtool.engine.client.sending import SendStatus as SendStatus
from mqtool.engine.client.sending import TransactionState as TransactionState
from mqtool.engine.client_runtime.blocking.admin_client import AdminClient as AdminClient
from mqtool.engine.client_runtime.blocking.consumers import LitePullConsumer as LitePullConsumer
from mqtool.engine.client_runtime.blocking.consumers import PopConsumer as PopConsumer
from mqtool.engine.client_runtime.blocking.consumers import PullConsumer as PullConsumer
from mqtool.engine.client_runtime.blocking.consumers import PushConsumer as PushConsumer
from mqtool.engine.client_runtime.blocking.producers import Producer as Producer
from mqtool.engine.client_runtime.blocking.producers import TransactionProducer as TransactionProducer
from mqtool.engine.client_runtime.consume_services import ConsumeContext as ConsumeContext
from mqtool.engine.client_runtime.consume_services import PushConsumerOptions as PushConsumerOptions
from mqtool.engine.client_runtime.deduplicator import BoundedMemory as BoundedMemory
from mqtool.engine.client_runtime.deduplicator import Deduplicator as Deduplicator
from mqtool.engine.client_runtime.deduplicator import SqliteMemory as SqliteMemory
from mqtool.engine.client_runtime.hooks import Hook as Hook
from mqtool.engine.client_runtime.instance import ClientOptions as ClientOptions
from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumerOptions as LitePullConsumerOptions
from mqtool.engine.client_runtime.pop_consumer import PopConsumerOptions as PopConsumerOptions
from mqtool.engine.client_runtime.producer import ProducerOptions as ProducerOptions
from mqtool.engine.client_runtime.pull_consumer import PullConsumerOptions as PullConsumerOptions
from mqtool.engine.client_runtime.pull_consumer import PullResult as PullResult
from mqtool.engine.embedded import Broker as Broker
from mqtool.engine.repair.findings import Finding as Finding
from mqtool.engine.repair.findings import Severity as Severity
from mqtool.engine.repair.verify.store import verify_store as verify_store
from mqtool.engine.store.reader import StoreReader as StoreReader
from mqtool.engine.store.reader import open_store as open_store
from mqtool.engine.virtual_clock import VirtualClock as VirtualClock
from mqtool.errors import AccessDeniedError as AccessDeniedError
from mqtool.errors import AcknowledgeError as AcknowledgeError
from mqtool.errors import AnswerTimeoutError as AnswerTimeoutError
from mqtool.errors import BusyError as BusyError
from mqtool.errors import CallbackError as CallbackError
from mqtool.errors import FormatError as FormatError
from mqtool.errors import IllegalMessageError as IllegalMessageError
from mqtool.errors import InvalidRequestError as InvalidRequestError
from mqtool.errors import MqtoolError as MqtoolError
from mqtool.errors import NotFoundError as NotFoundError
from mqtool.errors import NotPermittedError as NotPermittedError
from mqtool.errors import RefusedError as RefusedError
from mqtool.errors import SendError as SendError
from mqtool.errors import UnavailableError as UnavailableError
from mqtool.errors import UnknownGroupError as UnknownGroupError
from mqtool.errors import UnknownTopicError as UnknownTopicError
from mqtool.errors import UsageError as UsageError
from mqtool.formats.bodies import MessageQueue as MessageQueue
from mqtool.formats.codes import PullStatus as PullStatus
from mqtool.formats.compression import Compression as Compression
from mqtool.formats.message import Message as Message
from mqtool.formats.scan import MessageTable as MessageTable

__version__: str
__all__: list[str]

def __dir__() -> list[str]: ...
