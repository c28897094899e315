"""What ``recover`` says of older brokers, held against one of them and what RocketMQ read in the stores."""

import re
from pathlib import Path

import pytest

from mqtool.engine.repair.java_recovery.older_versions import remarks
from mqtool.engine.store.reader import StoreReader
from mqtool.formats.commit_log import MAGIC_V2
from mqtool.formats.topics import TIMER_TOPIC
from tests import damage
from tests.commands.running import run
from tests.golden import GOLDEN_NAMES, golden_store, manifest

CASES = {case.name: case for case in damage.cases()}


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_each_store_that_an_older_broker_cannot_read_is_named_for_what_is_in_it(name: str) -> None:
    messages = manifest(name)["messages"]
    reader = StoreReader(golden_store(name))

    said = list(remarks(reader, (), reader.commit_log.end_offset))

    second = [one["phy"] for one in messages if one["magic"] == MAGIC_V2]
    assert [
        line.split(" the message at ")[1].split(" ")[0].replace(",", "") for line in said if "before 5.1" in line
    ] == [str(position) for position in second[:1]]
    assert any("cannot serve Inner" in line for line in said) == name.startswith("batchcq")
    assert any("timer messages" in line for line in said) == any(one["topic"] == TIMER_TOPIC for one in messages)


def test_4_9_7_cut_the_log_where_it_is_said(tmp_path: Path) -> None:
    case = CASES["special-533-clean/control-abort"]

    ran = run("recover", "-s", case.store(tmp_path), "--dry-run")

    (said,) = re.findall(r"a broker before 5\.1 cannot read this store: the message at ([\d,]+) ", ran.remarks)
    assert int(said.replace(",", "")) == case.verdicts["4.9.7"]["after_load"]["max_phy_offset"]
    assert case.verdicts["5.3.3"]["after_load"]["max_phy_offset"] > int(said.replace(",", ""))


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(("/control", "/control-abort"))])
def test_it_is_said_of_no_store_that_4_9_7_read_to_its_end(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    ends = {version: verdict["after_load"]["max_phy_offset"] for version, verdict in case.verdicts.items()}

    ran = run("recover", "-s", case.store(tmp_path), "--dry-run", "--abnormal")

    if ends["4.9.7"] == ends["5.5.0"]:
        assert "a broker before" not in ran.remarks
    else:
        assert "a broker before 5.1 cannot read this store" in ran.remarks


def test_of_a_log_that_is_cut_before_them_nothing_is_said() -> None:
    reader = StoreReader(golden_store("special-533-clean"))

    assert list(remarks(reader, (), 1155)) == []
