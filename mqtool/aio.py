"""The clients of ``mqtool`` for asyncio, under the same names."""

from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumer
from mqtool.engine.client_runtime.pop_consumer import PopConsumer
from mqtool.engine.client_runtime.producer import Producer, TransactionProducer
from mqtool.engine.client_runtime.pull_consumer import PullConsumer
from mqtool.engine.client_runtime.push_consumer import PushConsumer

__all__ = ["LitePullConsumer", "PopConsumer", "Producer", "PullConsumer", "PushConsumer", "TransactionProducer"]
