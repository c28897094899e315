"""Subscription groups in memory and in their file."""

from pathlib import Path

import orjson
import pytest

from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.errors import FormatError
from mqtool.formats.config_tables import parse_table, subscription_groups
from tests.engine.store.live import NOW
from tests.golden import copy_of, golden_store

FILE = "subscriptionGroup.json"


def test_a_new_broker_has_and_keeps_the_groups_that_a_real_one_makes_by_itself(tmp_path: Path) -> None:
    made = subscription_groups(parse_table((golden_store("txn-533-clean") / "config" / FILE).read_bytes()))

    groups = SubscriptionGroups(tmp_path, NOW)

    own = [name for name in made if not name.startswith(("GID_", "PID_", "G_"))]
    assert len(own) == 8
    assert [groups.get(name) for name in own] == [made[name] for name in own]
    assert SubscriptionGroups(tmp_path, NOW + 9).version == groups.version


def test_a_group_that_a_client_names_is_made_and_kept(tmp_path: Path) -> None:
    groups = SubscriptionGroups(tmp_path, NOW)
    made = groups.find("G", NOW + 5)
    assert made is not None
    assert groups.find("with blank", NOW) is None
    assert groups.find("x" * 256, NOW) is None

    again = SubscriptionGroups(tmp_path, NOW + 9, creates=False)

    assert again.get("G") == made
    assert again.find("H", NOW) is None
    assert again.find("CID_RMQ_SYS_NEW", NOW) is not None
    assert again.version.timestamp == NOW


def test_a_change_leaves_what_it_does_not_name(tmp_path: Path) -> None:
    folder = copy_of("retry-533-clean", tmp_path) / "config"
    groups = SubscriptionGroups(folder, NOW)
    before = groups.members("GID_retry")

    groups.update({"groupName": "GID_retry", "retryMaxTimes": 3, "attributes": {"+a": "1"}}, NOW)
    groups.update({"groupName": "GID_retry", "attributes": {"+b": "2", "-a": ""}}, NOW)

    table = orjson.loads((folder / FILE).read_bytes())
    assert table["subscriptionGroupTable"]["GID_retry"] == {
        **(before or {}),
        "retryMaxTimes": 3,
        "attributes": {"b": "2"},
    }
    assert table["dataVersion"]["counter"] == 3 + 2
    with pytest.raises(FormatError, match="retryMaxTimes"):
        groups.update({"groupName": "GID_retry", "retryMaxTimes": "often"}, NOW)


def test_forbidden_topics_survive_a_restart(tmp_path: Path) -> None:
    groups = SubscriptionGroups(tmp_path, NOW)
    groups.find("G", NOW)
    groups.set_readable("G", "T", False, NOW)

    again = SubscriptionGroups(tmp_path, NOW)

    assert [again.is_readable(group, topic) for group, topic in (("G", "T"), ("G", "U"), ("H", "T"))] == [
        False,
        True,
        True,
    ]
    again.set_readable("G", "T", True, NOW)
    assert again.is_readable("G", "T")


def test_a_deleted_group_is_gone_from_the_file(tmp_path: Path) -> None:
    groups = SubscriptionGroups(tmp_path, NOW)
    groups.find("G", NOW)
    assert groups.delete("G", NOW)
    assert not groups.delete("G", NOW)
    assert SubscriptionGroups(tmp_path, NOW).get("G") is None
