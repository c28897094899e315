"""What Spark looks for to know the format ``rocketmq_store`` without being told: a module of such a name."""

from mqtool.spark.source import RocketMQStore as DefaultSource

__all__ = ["DefaultSource"]
