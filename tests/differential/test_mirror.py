"""``mqtool mirror`` from real brokers to ours and back: what a copy keeps there, and that none comes twice."""

from collections.abc import Iterator
from typing import Any

import pytest

import mqtool
from mqtool import ProducerMessage
from mqtool.engine.client.mirroring import HOPS, last_hop
from mqtool.errors import Status
from tests.commands.running import run
from tests.differential.java_store import VERSIONS
from tests.differential.test_python_clients import BrokerTarget, producer, running, until
from tests.differential.test_shell import _is_ready, put

JAVA = [pytest.param(one, marks=[pytest.mark.java, pytest.mark.xdist_group(f"python-{one}")]) for one in VERSIONS]
KEPT = ("body", "tags", "keys", "unique_key", "flag", "queue_id", "body_size", "body_crc")
OF_BROKERS = ("CLUSTER", "MSG_REGION", "TRACE_ON", "DELAY", "REAL_TOPIC", "REAL_QID", "WAIT", "BORN_TIMESTAMP", HOPS)


@pytest.fixture(scope="module", params=JAVA)
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerTarget]:
    with running(request.param, tmp_path_factory) as target:
        yield target


@pytest.fixture
def ours() -> Iterator[BrokerTarget]:
    with mqtool.Broker(settings={"brokerClusterName": "Ours"}) as broker:
        yield BrokerTarget(broker.name_server_address, "ours")


def mirrored(source: BrokerTarget, target: BrokerTarget, topic: str) -> int:
    addresses = ("--from", source.name_server, "--to", target.name_server)
    ran = run("mirror", *addresses, "--topic", topic, "--yes", "--idle", "2s")
    assert ran.status == Status.OK, ran
    return int(ran.rows[-1]["copied"])


def stored(target: BrokerTarget, topic: str) -> dict[int, list[dict[str, Any]]]:
    rows = run("find", "-n", target.name_server, "--topic", topic, "--limit", "1000").rows
    ids = sorted({row["queue_id"] for row in rows})
    return {
        queue_id: sorted((row for row in rows if row["queue_id"] == queue_id), key=lambda row: row["queue_offset"])
        for queue_id in ids
    }


def load(source: BrokerTarget, topic: str) -> None:
    """Send messages of every kind: 62 are to be seen."""
    assert run("topic", "create", "-n", source.name_server, topic, "--queues", "2", "--yes").status == Status.OK
    with producer(source) as sending:
        until(lambda: _is_ready(sending))
        until(lambda: len(sending.queues(topic)) == 2)
        for number in range(40):
            message = ProducerMessage(
                topic, f"{number}", f"t{number % 2}", ["all", f"k{number}"], flag=number, properties={"own": "ä"}
            )
            put(sending, message, sending.queues(topic)[number % 2])
        put(sending, ProducerMessage(topic, "y" * 9000), sending.queues(topic)[0])  # which is compressed
        put(sending, ProducerMessage(topic, "late", delay_level=1), sending.queues(topic)[1])
        sending.send_batch([ProducerMessage(topic, f"batch {number}") for number in range(20)])
    until(lambda: sum(map(len, stored(source, topic).values())) == 62)


@pytest.mark.parametrize("is_from_java", [True, False], ids=["from", "to"])
def test_copies_are_what_was_stored_and_known_again(java: BrokerTarget, ours: BrokerTarget, is_from_java: bool) -> None:
    source, target = (java, ours) if is_from_java else (ours, java)
    topic = "MirrorFrom" if is_from_java else "MirrorTo"
    name = "DefaultCluster" if is_from_java else "Ours"
    load(source, topic)

    assert mirrored(source, target, topic) == 62

    here, there = stored(source, topic), stored(target, topic)
    assert here.keys() == there.keys()
    for queue_id, origins in here.items():
        for origin, copy in zip(origins, there[queue_id], strict=True):
            assert {field: copy[field] for field in KEPT} == {field: origin[field] for field in KEPT}
            hop = last_hop(copy["properties"])
            assert hop
            assert (hop.cluster, hop.topic, hop.queue_id, hop.queue_offset, hop.store_timestamp) == (
                name, topic, queue_id, origin["queue_offset"], origin["store_timestamp"],
            )  # fmt: skip
            born = int(copy["properties"].get("BORN_TIMESTAMP", copy["born_timestamp"]))
            assert born == origin["born_timestamp"]
            assert _own(copy) == _own(origin)

    # The progress is lost, and what was read goes along.
    group = f"mqtool_mirror_{'Ours' if is_from_java else 'DefaultCluster'}"
    reset = ("offset", "reset", "-n", source.name_server, "--group", group, "--topic", topic)
    until(lambda: run(*reset, "--earliest", "--yes").status == Status.OK)
    reader = f"Reader{topic}"
    run("group", "create", "-n", source.name_server, reader, "--yes")
    for queue_id, offset in ((0, 7), (1, 12)):
        where = ("--topic", topic, "--queue", queue_id, "--offset", offset, "--yes")
        assert run("offset", "set", "-n", source.name_server, "--group", reader, *where).status == Status.OK
    assert mirrored(source, target, topic) == 0
    assert stored(target, topic) == there
    until(lambda: _offsets(target, reader) == [7, 12])
    # Back again goes nothing.
    assert mirrored(target, source, topic) == 0
    assert stored(source, topic) == here


def _own(row: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in row["properties"].items() if name not in OF_BROKERS}


def _offsets(target: BrokerTarget, group: str) -> list[int | None]:
    rows = run("offset", "list", "-n", target.name_server, "--group", group).rows
    return [row["consumer_offset"] for row in sorted(rows, key=lambda row: row["queue_id"])]
