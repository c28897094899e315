"""Official Java clients of RocketMQ and of Apache Pulsar on the same topics of ``mqtool.Broker``, at the same time."""

import os
import subprocess
from pathlib import Path

import pytest

import mqtool
from mqtool.engine.repair.findings import Severity
from tests.differential.conftest import jars
from tests.differential.java_broker import POM
from tests.interop import PULSAR_POM, PULSAR_VERSION

pytest.importorskip("google.protobuf")
pytestmark = pytest.mark.java
PROGRAM = Path(__file__).with_name("MixedClients.java")
SCENARIOS = 16


@pytest.mark.xdist_group("interop")
def test_clients_of_both_worlds_work_together_and_leave_a_sound_store(tmp_path: Path) -> None:
    classes = os.pathsep.join((jars(PULSAR_VERSION, PULSAR_POM), jars("5.3.3", POM)))  # the newer libraries first
    with mqtool.Broker(tmp_path / "store", pulsar=True) as broker:
        command = [
            "java",
            "-XX:TieredStopAtLevel=1",
            f"-Duser.home={tmp_path}",
            f"-Drocketmq.client.logRoot={tmp_path}",
            "-Drocketmq.client.rebalance.waitInterval=1000",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            classes,
            str(PROGRAM),
            broker.name_server_address,
            broker.pulsar_url,
        ]
        environment = {**os.environ, "JAVA_TOOL_OPTIONS": ""}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)

    outcomes = dict(line.split("\t")[:2] for line in done.stdout.splitlines() if "\t" in line)
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "ok"} == {}, done.stderr[-4000:]
    assert len(outcomes) == SCENARIOS, done.stderr[-4000:]
    findings = mqtool.verify_store(mqtool.open_store(tmp_path / "store"))
    assert [one.code for one in findings if one.severity != Severity.NOTE] == []
