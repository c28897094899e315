"""The names of ``mqtool.aio`` and their homes: each is loaded when it is first used."""

from mqtool.engine.client_runtime.admin_client import AdminClient as AdminClient
from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumer as LitePullConsumer
from mqtool.engine.client_runtime.pop_consumer import PopConsumer as PopConsumer
from mqtool.engine.client_runtime.producer import Producer as Producer
from mqtool.engine.client_runtime.producer import TransactionProducer as TransactionProducer
from mqtool.engine.client_runtime.pull_consumer import PullConsumer as PullConsumer
from mqtool.engine.client_runtime.push_consumer import PushConsumer as PushConsumer

__all__: list[str]

def __dir__() -> list[str]: ...
