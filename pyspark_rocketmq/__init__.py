"""What Spark looks for to know the format ``rocketmq`` without being told: a module of such a name.

An older PySpark, which looks here for any format, finds none.
"""

import pyspark

if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2):
    from mqtool.spark.brokers import RocketMQ as DefaultSource

    __all__ = ["DefaultSource"]
