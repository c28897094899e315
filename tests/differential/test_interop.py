"""Clients in Java, Go and node work with ``mqtool.Broker``, by the scenarios of ``tests/interop``."""

import shutil
from pathlib import Path

import pytest

import mqtool
from mqtool.engine.repair.findings import Severity
from tests.differential.conftest import REQUIRED, jars
from tests.differential.java_broker import POM
from tests.differential.java_store import VERSIONS
from tests.interop import ACCOUNTS, run_scenarios

pytestmark = pytest.mark.java

QUICK = (
    "send_admin_topic",
    "send_batch",
    "message_fields",
    "query_and_view",
    "delay_level",
    "transaction_commit_rollback",
    "pull_statuses",
    "lite_pull_subscribe",
    "push_clustering",
    "push_tag_filter",
    "mqadmin_cluster_list",
)
"""What the versions could differ in and that takes a minute in all; 5.3.3 does everything, without accounts."""


def guarded(folder: Path) -> dict[str, str | int | bool]:
    """Return the settings of a broker that controls access, with its accounts in a folder."""
    path = folder / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    return {"aclEnable": True, "rocketmq.acl.plain.file": str(path)}


COUNTS = {"go": 15, "node": 3}
"""Scenarios of the clients that come in one version, by the program that they need."""


@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=pytest.mark.xdist_group("interop")) for version in VERSIONS]
)
def test_java_clients_work_with_it_and_leave_a_sound_store(version: str, tmp_path: Path) -> None:
    jars(version, POM)
    names = () if version == "5.3.3" else QUICK
    has_accounts = version != "5.3.3"
    with mqtool.Broker(tmp_path / "store", settings=guarded(tmp_path) if has_accounts else None) as broker:
        address, work = broker.name_server_address, tmp_path / "work"
        rows = [*run_scenarios("java", version, address, work, *names, with_accounts=has_accounts)]

    assert [row for row in rows if not row["ok"]] == []
    assert len(rows) == (len(names) or 30)
    findings = mqtool.verify_store(mqtool.open_store(tmp_path / "store"))
    # The queues of a topic that was deleted are gone, its messages stay in the log.
    worse = {finding.code for finding in findings if finding.severity != Severity.NOTE}
    assert worse == ({"QUEUE-MISSING"} if "mqadmin_topic" in {row["scenario"][5:] for row in rows} else set())


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.xdist_group("interop")) for kind in COUNTS])
def test_go_and_node_clients_work_with_it(kind: str, tmp_path: Path) -> None:
    if not shutil.which(kind):
        message = f"NOT TRIED WITH THE {kind.upper()} CLIENT: there is no {kind} here"
        pytest.fail(message) if REQUIRED else pytest.skip(message)
    with mqtool.Broker(tmp_path / "store", settings=guarded(tmp_path)) as broker:
        rows = [*run_scenarios(kind, "", broker.name_server_address, tmp_path / "work", with_accounts=True)]

    assert [row for row in rows if not row["ok"]] == []
    assert len(rows) == COUNTS[kind]
