"""Errors that reach a user of Spark as one sentence, not below the traceback of a worker process."""

import contextlib
import os
import sys
from collections.abc import Iterator

from mqtool.errors import MqtoolError


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Have PySpark pass on an error of ours without its traceback.

    A process of Spark that an error leaves ends, so this holds for no other error. To be used in a ``with`` or as a
    decorator.
    """
    try:
        yield
    except MqtoolError:
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None and spec.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
