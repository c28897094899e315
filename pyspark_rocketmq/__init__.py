"""The module that Spark looks for to find the format ``rocketmq`` without registration.

Older versions of PySpark, which look here for any format, find none.
"""

import pyspark

if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2):
    from mqtool.spark.brokers import RocketMQ as DefaultSource

    __all__ = ["DefaultSource"]
