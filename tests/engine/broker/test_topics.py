"""The topics of a broker, held against the table that a recorded broker of 5.3.3 registered."""

from pathlib import Path

import pytest

from mqtool.engine.broker.config_files import load_table
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.broker.topics import Topics
from mqtool.errors import FormatError
from mqtool.formats.bodies import parse_registration
from mqtool.formats.codes import RequestCode
from mqtool.formats.config_tables import TopicConfig
from tests.golden import golden_store
from tests.traces import exchanges

NOW = 1_700_000_000_000
TOPIC = TopicConfig("T", 4, 4, 6, False, "SINGLE_TAG", 0, {"message.type": "FIFO"})


def test_a_new_broker_has_the_topics_that_a_recorded_one_registers(tmp_path: Path) -> None:
    [first, *_] = exchanges("broker_registration-5.3.3", RequestCode.REGISTER_BROKER)

    topics = Topics(tmp_path, BrokerSettings(), NOW)

    assert topics.configs == parse_registration(first.request.body, compressed=False).topics
    assert all(topics.is_system(name) for name in topics.configs)


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    topics = Topics(tmp_path, BrokerSettings(), NOW)
    topics.put([TOPIC], NOW + 1)
    topics.put([TOPIC], NOW + 2)  # nothing new

    again = Topics(tmp_path, BrokerSettings(), NOW + 9)

    assert again.configs == topics.configs
    assert again.version == topics.version == (0, 1, NOW + 1)
    assert again.get("T") == TOPIC

    again.delete("T", NOW + 10)
    assert Topics(tmp_path, BrokerSettings(), NOW + 11).get("T") is None


@pytest.mark.parametrize("name", ["mixed-497-clean", "mixed-533-clean", "mixed-550-clean"])
def test_the_table_of_a_real_broker_is_taken_over(name: str) -> None:
    folder = golden_store(name) / "config"

    topics = Topics(folder, BrokerSettings(), NOW)

    assert {"OrderEvents", "log-x", "pay_events"} <= topics.configs.keys()
    assert topics.version.counter == load_table(folder / "topics.json", len)[0]["dataVersion"]["counter"]


def test_those_who_listen_are_told_what_changes(tmp_path: Path) -> None:
    topics = Topics(tmp_path, BrokerSettings(), NOW)
    changed: list[str] = []
    deleted: list[tuple[object, ...]] = []
    topics.on_change.append(lambda configs: changed.extend(config.topic for config in configs))
    topics.on_delete.append(lambda names, now: deleted.append((*names, now)))

    topics.put([TOPIC], NOW)
    topics.put([TOPIC], NOW)
    topics.of_group("%RETRY%G", 1, False, NOW)
    topics.delete("T", NOW + 1)

    assert changed == ["T", "%RETRY%G"]
    assert deleted == [("T", NOW + 1)]


@pytest.mark.parametrize("data", [b"{", b"\0\0\0", b'{"topicConfigTable": []}', b'{"dataVersion": 1}'])
def test_the_table_before_counts_where_a_file_cannot_be_read(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    topics = Topics(tmp_path, BrokerSettings(), NOW)
    topics.put([TOPIC], NOW + 1)
    topics.delete("T", NOW + 2)
    path.write_bytes(data)
    assert Topics(tmp_path, BrokerSettings(), NOW).get("T") == TOPIC

    path.write_bytes(data)
    path.with_name("topics.json.bak").write_bytes(data)
    with pytest.raises(FormatError, match=r"topics\.json: "):
        Topics(tmp_path, BrokerSettings(), NOW)
    path.unlink()
    with pytest.raises(FormatError, match=r"topics\.json\.bak: "):
        Topics(tmp_path, BrokerSettings(), NOW)
