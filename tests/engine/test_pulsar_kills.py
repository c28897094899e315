"""Kills of a broker with 100 subscriptions that have holes; the long form is ``tests.campaigns.pulsar_kills``."""

from pathlib import Path

import pytest

from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.reader import StoreReader

pytest.importorskip("google.protobuf")
from tests.campaigns.pulsar_kills import PulsarKills


def test_after_a_kill_all_comes_that_is_not_acknowledged_and_of_the_rest_only_what_no_file_has(tmp_path: Path) -> None:
    campaign = PulsarKills(tmp_path / "store", seed=7)

    campaign.life()
    first = campaign.life()
    second = campaign.life(is_last=True)

    assert first.messages < second.messages
    assert second.holes > 100
    assert [one.code for one in verify_store(StoreReader(tmp_path / "store")) if one.severity != Severity.NOTE] == []
