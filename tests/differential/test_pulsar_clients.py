"""Official clients of Apache Pulsar in Java, Go and Python, also for administrators, work with ``mqtool.Broker``."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import mqtool
from mqtool.engine.repair.findings import Severity
from tests.differential.conftest import REQUIRED, jars
from tests.engine.remoting.test_tls import settings, with_certificate
from tests.engine.test_pulsar_server import token_of, with_accounts
from tests.interop import PULSAR_POM, PULSAR_VERSION, run_pulsar_scenarios

pulsar = pytest.importorskip("pulsar")
pytestmark = pytest.mark.java
PROGRAM = Path(__file__).with_name("PulsarAdministrator.java")

SHARE = {
    "java": (
        "lookup_partitions",
        "message_fields",
        "producer_batching",
        "producer_names",
        "failover_partitions",
        "shared_priority",
        "key_shared_auto",
        "key_shared_sticky",
        "ack_gaps",
        "ack_receipt",
        "pattern",
        "retry_topic",
        "reader_batch_and_partitions",
        "seek_by_id",
        "schema_auto_consume",
        "batch_index_ack",
        "dedup",
        "terminated_topic",
        "http_lookup",
        "http_admin",
        "no_auto_creation_lookup",
        "transaction_refused",
    ),
    "go": (),
    "python": (
        "produce_consume",
        "message_fields",
        "batching_and_compression",
        "partitioned_topic",
        "chunking",
        "negative_ack",
        "delayed_delivery",
        "seek",
        "reader",
        "schema",
        "table_view",
        "batch_index_ack",
    ),
}
"""Scenarios of each client, all the usual ones where none is named; the other ones take another quarter of an hour."""
GO = 22


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.xdist_group("interop")) for kind in SHARE])
def test_clients_work_with_it_and_leave_a_sound_store(kind: str, tmp_path: Path) -> None:
    if kind == "java":
        jars(PULSAR_VERSION, PULSAR_POM)
    elif kind == "go" and not shutil.which("go"):
        message = "NOT TRIED WITH PULSAR'S GO CLIENT: there is no go here"
        pytest.fail(message) if REQUIRED else pytest.skip(message)
    names = SHARE[kind]
    with mqtool.Broker(tmp_path / "store", pulsar=True) as broker:
        work = tmp_path / "work"
        rows = [*run_pulsar_scenarios(kind, broker.pulsar_url, broker.pulsar_admin_url, work, *names)]

    assert [row for row in rows if not row["ok"]] == []
    assert len(rows) == (len(names) or GO)
    findings = mqtool.verify_store(mqtool.open_store(tmp_path / "store"))
    # The queues of a topic that was deleted are gone, its messages stay in the log.
    worse = {finding.code for finding in findings if finding.severity != Severity.NOTE}
    assert worse <= ({"QUEUE-MISSING"} if "http_admin" in names else set())


@pytest.mark.xdist_group("interop")
def test_java_clients_work_where_there_is_only_a_port_for_tls(tmp_path: Path) -> None:
    jars(PULSAR_VERSION, PULSAR_POM)
    folder = with_certificate(tmp_path)
    given: dict[str, str | int | bool] = {**settings(folder), "pulsarTlsPort": 0, "pulsarAdminPort": 0}
    names = ("lookup_partitions", "message_fields", "producer_batching", "failover_partitions")
    with mqtool.Broker(tmp_path / "store", settings=given) as broker:
        url, admin_url, trusted = broker.pulsar_tls_url, broker.pulsar_admin_url, folder / "cert.pem"
        rows = [*run_pulsar_scenarios("java", url, admin_url, tmp_path / "work", *names, trusted=trusted)]

    assert {row["scenario"] for row in rows if row["ok"]} == {f"java/{name}" for name in names}, rows


@pytest.mark.xdist_group("interop")
def test_java_clients_are_let_in_with_a_token_and_refused_with_a_wrong_one_or_none(tmp_path: Path) -> None:
    jars(PULSAR_VERSION, PULSAR_POM)
    with mqtool.Broker(tmp_path / "store", pulsar=True, settings=with_accounts(tmp_path)) as broker:
        url, admin_url, token = broker.pulsar_url, broker.pulsar_admin_url, token_of("everyone")
        rows = [*run_pulsar_scenarios("java", url, admin_url, tmp_path / "work", "token_auth", token=token)]

    assert [row["ok"] for row in rows] == [True], rows


@pytest.mark.xdist_group("interop")
def test_the_client_for_administrators_makes_topics_and_moves_subscriptions(tmp_path: Path) -> None:
    classes = jars(PULSAR_VERSION, PULSAR_POM)
    with mqtool.Broker(tmp_path / "store", pulsar=True) as broker:
        client = pulsar.Client(broker.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        client.subscribe("t", "s").close()
        producer = client.create_producer("t")
        for number in range(4):
            producer.send(b"%d" % number)
        client.close()
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", classes, str(PROGRAM), broker.pulsar_admin_url]
        environment = {**os.environ, "JAVA_TOOL_OPTIONS": ""}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180)

    assert done.returncode == 0, done.stderr
    name = "persistent://public/default/"
    assert done.stdout.splitlines() == [
        "partitions: 3",
        f"list: [{name}t, {name}wide-partition-0, {name}wide-partition-1, {name}wide-partition-2]",
        f"partitioned: [{name}wide]",
        "partitioned stats: 3",
        "lookup: true",
        "subscriptions: [s]",
        "messages in: 4",
        "asked for all: 4",
        f"persistent: [{name}t, {name}wide-partition-0, {name}wide-partition-1, {name}wide-partition-2]",
        "with properties: 2",
        "backlog: 4",
        "skipped: 1",
        "reset to a time: 4",
        "reset to the last: 1",
        "reset behind the last: 0",
        "reset to the first: 4",
        "skipped all: 0",
        "unsubscribed: []",
        f"left: [{name}t]",
        f"unknown: Topic {name}none not found",
        "namespaces: [public/default]",
        "tenants: [public]",
    ]
