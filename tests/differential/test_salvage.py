"""Brokers start on what ``salvage`` made, cut nothing off, and find every message at its place in its queue."""

from collections.abc import Callable

import pytest

from mqtool.engine.repair.salvage.plan import plan_salvage, salvage
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import commit_log
from tests.damage import DamageCase, cases
from tests.differential.java_store import JavaStore, each_version, scratch, settings
from tests.golden import manifest

pytestmark = pytest.mark.java

OF_THE_LOG = [case for case in cases() if any("commitlog" in str(op) for op in case.ops)]


@each_version
@pytest.mark.parametrize("case", OF_THE_LOG, ids=lambda case: case.name)
def test_a_broker_serves_every_message_of_a_salvaged_store(
    java_store: Callable[[str], JavaStore], case: DamageCase, version: str
) -> None:
    config = manifest(case.base)["config"]
    with scratch() as folder:
        store, new = case.store(folder), folder / "new"
        salvage(plan_salvage(StoreReader(store, StoreConfig(settings(store, config)))), new, Disk())
        reader = StoreReader(new)
        end = max(one.position + one.size for one in reader.messages())
        places = [
            (one.topic, one.queue_id, one.queue_offset)
            for one in reader.messages()
            if one.sys_flag & commit_log.TRANSACTION_MASK in (0, commit_log.TRANSACTION_COMMIT)
        ]

        answer = java_store(version).ask(new, config, reads=places)

    assert answer["load_result"]
    assert answer["after_load"]["max_phy_offset"] == end
    assert [(row[0], row[2]) for row in answer["reads"]] == [("FOUND", offset) for _, _, offset in places]
