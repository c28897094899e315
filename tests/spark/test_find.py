"""What ``find`` gives back for its items, without a JVM."""

from pathlib import Path

from mqtool.engine.store.search import Query, Search
from mqtool.spark.find import find, plan
from mqtool.spark.messages import CORRUPT
from mqtool.spark.stores import Store
from tests.laws.cases import case_of


def test_a_message_whose_properties_are_damaged_is_found_as_by_the_command(tmp_path: Path) -> None:
    store, query = Store(str(case_of(1).build(tmp_path))), Query(texts=("1",))
    rows = [
        row
        for item in plan([(store, query)], 20_000, True).items
        for batch in find(item)
        for row in batch.to_pylist()
        if row[CORRUPT] is None
    ]

    positions = [message.position for message in Search(store.open(), query).messages()]
    assert sorted(row["position"] for row in rows) == positions
