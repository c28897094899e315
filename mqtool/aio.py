"""The clients of ``mqtool`` for asyncio, under the same names."""

from mqtool.engine.client_runtime.producer import Producer, TransactionProducer
from mqtool.engine.client_runtime.push_consumer import PushConsumer

__all__ = ["Producer", "PushConsumer", "TransactionProducer"]
