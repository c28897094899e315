"""One Spark session for all tests of a process."""

import contextlib
import functools
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
AWS_CONFIG = str(Path(tempfile.gettempdir(), f"mqtool-tests-aws-{os.getpid()}"))
"""What tests write there leads workers to an S3 server."""
os.environ["AWS_CONFIG_FILE"] = AWS_CONFIG  # workers have the environment of the JVM, and any test may start that
REQUIRED = "CI" in os.environ or "MQTOOL_REQUIRE_JAVA" in os.environ


def need_java() -> None:
    """Skip the test without Java; in CI it fails."""
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        message = "NOT TRIED IN SPARK: there is no java"
        if REQUIRED:
            pytest.fail(message)
        pytest.skip(message)


@functools.cache
def session() -> SparkSession:
    """Return the session; ``need_java``."""
    need_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        # As sessions of mqtool have it: a task begins in half the time, and may take its time on a busy machine.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.authenticate.socketTimeout": "120s",
        # Small jobs of many kinds: what compiles their plans, and then the code of that, takes longer than they do.
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("mqtool tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


@contextlib.contextmanager
def pushdown(spark: SparkSession, enabled: bool) -> Iterator[None]:
    """Switch the pushing of filters on or off."""
    name = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(name) or "false"
    spark.conf.set(name, str(enabled).lower())
    try:
        yield
    finally:
        spark.conf.set(name, before)


def end_session() -> None:
    """End the session, for those who need one of another kind; the next who asks gets a new one."""
    if session.cache_info().currsize:
        session().stop()
        session.cache_clear()
