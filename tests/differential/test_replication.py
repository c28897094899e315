"""Masters and slaves of RocketMQ 5.3.3 with ``mqtool serve`` on the other end, by scenarios of ``tests/interop/ha``.

``python -m tests.campaigns.replication`` runs all of them, with all versions.
"""

from pathlib import Path

import pytest

from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from tests.differential.conftest import jars
from tests.differential.java_broker import POM
from tests.interop.replication import OURS, run_scenarios

pytestmark = pytest.mark.java

VERSION = "5.3.3"
WITH_BOTH = ("catch_up_from_empty", "master_killed", "slave_killed", "sync_acked")
OF_MASTER = ("wire_master_frames", "wire_master_idle", "wire_master_odd_reports")
OF_SLAVE = (
    "wire_slave_reports",
    "wire_slave_wrong_offset",
    "wire_slave_split_frames",
    "tables_arrive",
    "consumer_survives_master",
)


@pytest.mark.xdist_group("replication")
@pytest.mark.parametrize(
    ("master", "slave", "names", "base_port"),
    [
        (OURS, VERSION, (*OF_MASTER, *WITH_BOTH), 21_000),
        (VERSION, OURS, (*OF_SLAVE, *WITH_BOTH), 21_400),
    ],
    ids=["as master", "as slave"],
)
def test_it_replicates_with_brokers_of_rocketmq(
    master: str, slave: str, names: tuple[str, ...], base_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars(VERSION, POM)
    monkeypatch.setenv("HA_KEEP", "1")
    rows = [*run_scenarios(master, slave, tmp_path, *names, base_port=base_port)]

    assert [row for row in rows if not row["ok"]] == []
    assert len(rows) == len(names)
    settings = {"mappedFileSizeCommitLog": "4194304", "mappedFileSizeConsumeQueue": "20000"}
    settings |= {"maxHashSlotNum": "500", "maxIndexNum": "2000"}
    stores = [path.parent for path in tmp_path.glob("catch_up_from_empty-*/*/store/commitlog")]
    assert len(stores) == 2
    for store in stores:
        findings = verify_store(StoreReader(store, StoreConfig(settings)))
        worse = {one.code for one in findings if one.severity is not Severity.NOTE}
        # A real slave has no topics in its first minute, and this one was stopped in it.
        assert worse <= ({"CONFIG-NO-TOPIC"} if slave == VERSION else set())
