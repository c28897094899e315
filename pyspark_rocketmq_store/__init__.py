"""The module that Spark looks for to find the format ``rocketmq_store`` without registration.

Older versions of PySpark, which look here for any format, find none.
"""

import pyspark

if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2):
    from mqtool.spark.source import RocketMQStore as DefaultSource

    __all__ = ["DefaultSource"]
