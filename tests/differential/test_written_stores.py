"""A store that a DataFrame was written to, served by RocketMQ's brokers."""

from pathlib import Path
from typing import Any

import pytest

from mqtool.formats.codes import RequestCode
from mqtool.spark.schemas import spark_schema
from tests.differential.java_store import each_version
from tests.differential.test_hand_over import SETTINGS, faults, in_time, theirs
from tests.spark.test_writer import batch_of, write, writer

pytestmark = pytest.mark.java

COUNT = 5000  # more than an index file or a file of a queue holds


@each_version
def test_a_broker_serves_what_was_written_and_goes_on(version: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    schema = spark_schema({"topic": "string", "queue_id": "int", "body": "binary", "tags": "string", "keys": "string"})
    rows = [
        {"topic": f"T{n % 2}", "queue_id": n // 2 % 2, "body": b"%d" % n, "tags": f"t{n % 3}", "keys": f"k{n}"}
        for n in range(COUNT)
    ]
    settings: dict[str, Any] = {f"set.{name}": str(value) for name, value in SETTINGS.items()}
    write(writer(store, schema, **settings), [[batch_of(rows[:2000], schema)], [batch_of(rows[2000:], schema)]])
    assert faults(store) == []

    async def served() -> None:
        async with theirs(version, store) as client:
            for topic in (0, 1):
                for queue in (0, 1):
                    found = await client.messages(f"T{topic}", queue)
                    wanted = [row for row in rows if (row["topic"], row["queue_id"]) == (f"T{topic}", queue)]
                    assert [one.body for one in found] == [row["body"] for row in wanted]
                    assert [one.properties["TAGS"] for one in found] == [row["tags"] for row in wanted]
            fields: dict[str, Any] = {"maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 62}
            answer = await client.ask(RequestCode.QUERY_MESSAGE, topic="T1", key="k4321", **fields)
            assert b"4321" in answer.body
            assert (await client.send(b"more", 1, topic="T1"))["queueOffset"] == str(COUNT // 4)

    in_time(version, served)
    assert faults(store) == []
