"""The list of RocketMQ's settings leaves none of them out."""

import re
import subprocess

import pytest

from mqtool.formats.setting_names import KNOWN
from tests.differential.conftest import jars
from tests.differential.java_broker import POM

CLASSES = (
    "common.BrokerConfig",
    "common.namesrv.NamesrvConfig",
    "store.config.MessageStoreConfig",
    "remoting.netty.NettyServerConfig",
    "remoting.netty.NettyClientConfig",
)


@pytest.mark.java
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3", "5.5.0"])
def test_each_setter_of_a_configuration_is_a_known_setting(version: str) -> None:
    classes = [f"org.apache.rocketmq.{name}" for name in CLASSES]
    command = ["javap", "-public", "-cp", jars(version, POM), *classes]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    names = {first.lower() + rest for first, rest in re.findall(r"void set(\w)(\w*)\(", told)}

    assert len(names) > 150
    assert sorted(names - KNOWN) == []
