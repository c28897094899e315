"""Tables of a master, taken over by its slave."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.store.message_store import MessageStore
from mqtool.formats.bodies import build_body
from mqtool.formats.config_tables import parse_table
from tests.engine.store.live import half_full

NOW = 1_700_000_000_000
VERSION = {"counter": 1, "stateVersion": 0, "timestamp": NOW}
TOPICS = build_body(
    {
        "dataVersion": VERSION,
        "topicConfigTable": {"T": {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}},
    }
)
GROUPS = build_body({"dataVersion": VERSION, "subscriptionGroupTable": {"G": {"groupName": "G"}}})


def test_topics_and_groups_are_parsed_again_only_where_something_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def counted(body: bytes) -> Any:
        parsed.append(body)
        return parse_table(body)

    monkeypatch.setattr("mqtool.engine.broker.copied_tables.parse_table", counted)
    settings, _ = BrokerSettings().updated({"brokerRole": "SLAVE", "brokerId": "1"})
    with contextlib.closing(MessageStore(tmp_path, now=NOW, usage=half_full)) as store:
        broker = BrokerController(store, NOW, settings)
        tables, topics, groups = broker.copied_tables, broker.topics, broker.groups
        for _ in range(3):
            tables.take_topics(TOPICS)
            tables.take_groups(GROUPS)
        assert parsed == [TOPICS, GROUPS]
        assert [*topics.configs] == ["T"]
        assert groups.names() == ["G"]

        topics.of_groups([("%RETRY%mine", 1, False)], NOW)  # of a consumer here
        assert groups.find("mine", NOW) is not None
        topics.delete("T", NOW)
        for _ in range(2):
            tables.take_topics(TOPICS)
            tables.take_groups(GROUPS)
        assert [*topics.configs] == ["T"]
        assert groups.names() == ["G"]
        assert parsed == [TOPICS, GROUPS] * 2

        tables.take_topics(TOPICS.replace(b'"counter":1', b'"counter":2'))
        assert (len(parsed), topics.version.counter) == (5, 2)
