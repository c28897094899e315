"""``mqtool topic show --subscriptions``, ``group list`` and ``group show`` tell of subscriptions of Pulsar, too."""

from pathlib import Path

import pytest

import mqtool
from tests.commands.running import run

pulsar = pytest.importorskip("pulsar")
WAIT_MS = 30_000
EARLIEST = pulsar.InitialPosition.Earliest


def test_who_reads_a_topic_is_shown_of_both_worlds_by_a_broker_and_by_its_store(tmp_path: Path) -> None:
    with mqtool.Broker(tmp_path / "store", pulsar=True) as broker:
        client = pulsar.Client(broker.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        shared = client.subscribe(
            "t", "shop.eu", pulsar.ConsumerType.Shared, consumer_name="c1", initial_position=EARLIEST
        )
        client.subscribe("t", "left", initial_position=EARLIEST).close()
        producer = client.create_producer("t")
        for number in range(6):
            producer.send(b"%d" % number)
        received = [shared.receive(WAIT_MS) for _ in range(6)]
        for place in (0, 1, 4):
            shared.acknowledge(received[place])
        online = ("-n", broker.name_server_address)

        assert run("group", "create", "billing", "--yes", *online).status == 0
        billing = ("--group", "billing", "--topic", "t", "--queue", "0", "--offset", "2")
        assert run("offset", "set", *billing, "--yes", *online).status == 0

        def unacked() -> list[int]:
            shown = run("group", "show", "shop%2Eeu", *online)
            assert shown.status == 0, shown.remarks
            return [row["unacked"] for row in shown.rows if row["kind"] == "pulsar_subscription"]

        while unacked() != [3]:  # the client sends its acknowledgements a tenth of a second later
            pass
        readers = run("topic", "show", "t", "--subscriptions", *online)
        listed = {row["group"]: row for row in run("group", "list", *online).rows}
        shown = run("group", "show", "shop%2Eeu", *online)
        as_before = run("topic", "show", "t", *online).rows
        client.close()
    stored = run("topic", "show", "t", "--subscriptions", "-s", tmp_path / "store").rows
    stored_group = run("group", "show", "shop%2Eeu", "-s", tmp_path / "store")

    def essence(rows: list[dict[str, object]]) -> dict[object, tuple[object, ...]]:
        names = ("protocol", "type", "consumers", "consumer_offset", "backlog", "unacked")
        return {row["group"]: tuple(row[name] for name in names) for row in rows}

    assert essence(readers.rows) == {
        "billing": ("rocketmq", None, 0, 2, 4, None),
        "left": ("pulsar", None, 0, 0, 6, 0),
        "shop%2Eeu": ("pulsar", "Shared", 1, 2, 3, 3),
    }
    assert essence(stored) == {
        "billing": ("rocketmq", None, None, 2, 4, None),
        "left": ("pulsar", None, None, 0, 6, None),
        "shop%2Eeu": ("pulsar", None, None, 2, 3, None),
    }
    assert listed["shop%2Eeu"]["members"] == 1
    assert "no consumer of the group is online" not in shown.remarks
    [row] = [row for row in shown.rows if row["kind"] == "pulsar_subscription"]
    assert (row["subscription"], row["consumers"], row["acked_ranges"]) == ("shop.eu", ["c1"], 1)
    [row] = [row for row in stored_group.rows if row["kind"] == "pulsar_subscription"]
    assert (row["subscription"], row["consumers"], row["acked_ranges"]) == ("shop.eu", None, 1)
    assert [(row["queue_id"], row["messages"]) for row in as_before] == [(0, 6)]


def test_a_broker_that_serves_no_pulsar_clients_has_no_such_subscriptions(tmp_path: Path) -> None:
    with mqtool.Broker(tmp_path / "store") as broker:
        assert run("topic", "create", "t", "-n", broker.name_server_address, "--yes").status == 0
        assert run("topic", "show", "t", "--subscriptions", "-n", broker.name_server_address).rows == []
