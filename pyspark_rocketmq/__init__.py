"""What Spark looks for to know the format ``rocketmq`` without being told: a module of such a name."""

from mqtool.spark.brokers import RocketMQ as DefaultSource

__all__ = ["DefaultSource"]
