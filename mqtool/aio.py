"""The clients of ``mqtool`` for asyncio, under the same names."""

from mqtool.engine.client_runtime.producer import Producer, TransactionProducer

__all__ = ["Producer", "TransactionProducer"]
