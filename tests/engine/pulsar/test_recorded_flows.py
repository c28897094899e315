"""Flows that were recorded between official clients and a real Apache Pulsar 4.2.4: the door says the same."""

from pathlib import Path

import pytest

from tests.engine.pulsar.flows import FOLDER, RecordedFlow


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.jsonl")))
def test_the_door_says_what_a_real_broker_said(name: str, tmp_path: Path) -> None:
    flow = RecordedFlow(name, tmp_path)

    flow.replay()

    assert flow.expected
    assert {conn: dict(told) for conn, told in flow.told.items()} == {
        conn: dict(told) for conn, told in flow.expected.items()
    }
