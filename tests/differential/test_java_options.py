"""The table of the Java client's options leaves none of them out."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.differential.conftest import jars
from tests.differential.java_broker import POM

VERSION = "5.5.0"
CLASSES = (
    "ClientConfig",
    "producer.DefaultMQProducer",
    "producer.TransactionMQProducer",
    "consumer.DefaultMQPushConsumer",
    "consumer.DefaultLitePullConsumer",
    "consumer.DefaultMQPullConsumer",
)
OF_THE_CLIENT_ITSELF = {
    "acquireBackPressureForAsyncSendNumLock",
    "acquireBackPressureForAsyncSendSizeLock",
    "buildMQClientId",
    "buildSubscriptionsForHeartbeat",
    "changeInstanceNameToPID",
    "cloneClientConfig",
    "queueWithNamespace",
    "queuesWithNamespace",
    "releaseBackPressureForAsyncSendNumLock",
    "releaseBackPressureForAsyncSendSizeLock",
    "resetClientConfig",
    "toString",
    "withNamespace",
    "withoutNamespace",
}
"""Public, but for its own classes."""


@pytest.mark.java
@pytest.mark.xdist_group(f"java-{VERSION}")
@pytest.mark.parametrize("name", CLASSES)
def test_each_public_method_of_the_java_client_is_in_the_table(name: str) -> None:
    command = ["javap", "-public", "-cp", jars(VERSION, POM), f"org.apache.rocketmq.client.{name}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    methods = set(re.findall(r" (\w+)\(", told)) - OF_THE_CLIENT_ITSELF
    settings = {one for one in methods if not re.match(r"(get|is)[A-Z]", one)}
    table = (Path(__file__).parents[2] / "docs" / "java_options.md").read_text()
    assert settings
    assert sorted(settings - set(re.findall(r"\w+", table))) == []
