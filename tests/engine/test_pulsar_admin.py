"""Administrators of Apache Pulsar, over HTTP; ``pulsar-admin`` itself is in ``tests/differential``."""

import json
import random
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.errors import UsageError

pulsar = pytest.importorskip("pulsar")
pytest.importorskip("uvicorn")
WAIT_MS = 30_000
EARLIEST = pulsar.InitialPosition.Earliest
TOPIC = "/admin/v2/persistent/public/default/"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[mqtool.Broker]:
    with mqtool.Broker(tmp_path / "store", pulsar=True) as running:
        yield running


@pytest.fixture
def client(broker: mqtool.Broker) -> Iterator[Any]:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = pulsar.Client(broker.pulsar_url, logger=quiet, io_threads=1, message_listener_threads=1)
    yield made
    made.close()


def ask(broker: mqtool.Broker, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Return status and answer of a page."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(broker.pulsar_admin_url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request) as response:
            text, status = response.read().decode(), response.status
    except urllib.error.HTTPError as error:
        with error:
            text, status = error.read().decode(), error.code
    return status, json.loads(text) if text[:1] in ("{", "[") else text


def test_a_topic_is_made_with_partitions_widened_and_deleted(broker: mqtool.Broker, client: Any) -> None:
    assert ask(broker, "PUT", TOPIC + "wide/partitions", 2) == (204, "")
    assert ask(broker, "PUT", TOPIC + "wide/partitions", 2)[0] == 409
    assert len(client.get_topic_partitions("wide")) == 2
    assert ask(broker, "POST", TOPIC + "wide/partitions", {"partitions": 3, "properties": {}}) == (204, "")
    assert ask(broker, "POST", TOPIC + "wide/partitions", 1)[0] == 422

    assert ask(broker, "GET", TOPIC + "wide/partitions") == (200, {"partitions": 3, "deleted": False})
    names = [f"persistent://public/default/wide-partition-{number}" for number in range(3)]
    assert ask(broker, "GET", "/admin/v2/persistent/public/default") == (200, names)
    assert ask(broker, "GET", "/admin/v2/persistent/public/default/partitioned") == (200, [names[0][:-12]])
    with mqtool.PullConsumer("billing", broker.name_server_address) as puller:
        assert len(puller.fetch_message_queues("wide")) == 3

    consumer = client.subscribe("wide", "s")
    assert ask(broker, "DELETE", TOPIC + "wide/partitions")[0] == 412
    consumer.close()
    assert ask(broker, "DELETE", TOPIC + "wide/partitions") == (204, "")
    assert ask(broker, "GET", TOPIC + "wide/partitions") == (
        404,
        {"reason": "Topic persistent://public/default/wide not found"},
    )


def test_subscriptions_are_told_skipped_reset_and_forgotten(broker: mqtool.Broker, client: Any) -> None:
    consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    producer = client.create_producer("t")
    ids = [producer.send(b"%d" % number) for number in range(6)]
    received = [consumer.receive(WAIT_MS) for _ in range(6)]
    consumer.acknowledge(received[1])
    consumer.close()
    of_s = TOPIC + "t/subscription/s"

    def backlog() -> int:
        [row] = ask(broker, "GET", TOPIC + "t/stats")[1]["subscriptions"].values()
        return int(row["msgBacklog"])

    assert ask(broker, "GET", TOPIC + "t/subscriptions") == (200, ["s"])
    assert ask(broker, "GET", TOPIC + "t/stats")[1]["msgInCounter"] == 6
    assert backlog() == 5
    assert ask(broker, "POST", of_s + "/skip/2") == (204, "")  # 0 and 2
    assert backlog() == 3
    id_of_4 = {"ledgerId": ids[4].ledger_id(), "entryId": ids[4].entry_id()}
    assert ask(broker, "POST", of_s + "/resetcursor", id_of_4) == (204, "")
    assert backlog() == 2
    assert ask(broker, "POST", of_s + "/resetcursor", {**id_of_4, "excluded": True}) == (204, "")
    assert backlog() == 1
    assert ask(broker, "POST", of_s + "/resetcursor/1") == (204, "")
    assert backlog() == 6
    assert ask(broker, "POST", of_s + "/skip_all") == (204, "")
    assert backlog() == 0
    last = {"ledgerId": ids[5].ledger_id(), "entryId": 5, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    assert ask(broker, "GET", TOPIC + "t/lastMessageId") == (200, last)

    assert ask(broker, "PUT", TOPIC + "t/subscription/made", id_of_4) == (204, "")
    assert ask(broker, "PUT", TOPIC + "t/subscription/made", id_of_4)[0] == 409
    again = client.subscribe("t", "made")
    assert [again.receive(WAIT_MS).data() for _ in range(2)] == [b"4", b"5"]
    assert ask(broker, "DELETE", TOPIC + "t/subscription/made")[0] == 412
    assert ask(broker, "DELETE", TOPIC + "t/subscription/made?force=true") == (204, "")
    assert ask(broker, "DELETE", of_s) == (204, "")
    assert ask(broker, "POST", of_s + "/skip_all")[0] == 404


def test_consumers_begin_anew_where_their_subscription_is_reset(broker: mqtool.Broker, client: Any) -> None:
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    producer = client.create_producer("t")
    for number in range(3):
        producer.send(b"%d" % number)
    for _ in range(3):
        consumer.acknowledge(consumer.receive(WAIT_MS))

    assert ask(broker, "POST", TOPIC + "t/subscription/s/resetcursor/0") == (204, "")

    assert [consumer.receive(WAIT_MS).data() for _ in range(3)] == [b"0", b"1", b"2"]


def test_messages_that_nobody_can_be_given_are_told_in_the_stats(broker: mqtool.Broker, client: Any) -> None:
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    with mqtool.Producer("shop", broker.name_server_address) as others:
        others.send(mqtool.ProducerMessage("t", random.Random(1).randbytes(4 << 20)))  # too long for Pulsar clients
        others.send(mqtool.ProducerMessage("t", b"short"))
    message = consumer.receive(WAIT_MS)
    consumer.acknowledge(message)
    status, stats = ask(broker, "GET", TOPIC + "t/stats")

    assert (message.data(), status) == (b"short", 200)
    assert stats["subscriptions"]["s"]["totalMsgExpired"] == 1


def test_a_pattern_means_topics_whatever_partitions_they_have(broker: mqtool.Broker, client: Any) -> None:
    ask(broker, "PUT", TOPIC + "first-x/partitions", 2)
    consumer = client.subscribe(re.compile("persistent://public/default/.*-x"), "s", initial_position=EARLIEST)

    client.create_producer("first-x").send(b"to a partition")

    assert consumer.receive(WAIT_MS).data() == b"to a partition"


def test_clients_find_topics_over_http(broker: mqtool.Broker) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.pulsar_admin_url, logger=quiet)
    consumer = client.subscribe("t", "s", initial_position=EARLIEST)
    client.create_producer("t").send(b"by a client that knows the pages only")

    body = consumer.receive(WAIT_MS).data()
    client.close()

    assert body == b"by a client that knows the pages only"


def test_names_with_slashes_and_percent_signs_are_those_that_clients_use(broker: mqtool.Broker, client: Any) -> None:
    for name, path in (("a/b", "a%2Fb"), ("a%2Fb", "a%252Fb"), ("\u00fc", "%C3%BC")):
        topic = f"persistent://public/default/{name}"
        client.subscribe(topic, name, initial_position=EARLIEST).close()
        client.create_producer(topic).send(b"body")

        assert ask(broker, "GET", f"{TOPIC}{path}/subscriptions")[0] == 200
        assert ask(broker, "GET", f"{TOPIC}{path}/stats")[1]["subscriptions"][name]["msgBacklog"] == 1
        assert ask(broker, "GET", f"/lookup/v2/topic/persistent/public/default/{path}")[0] == 200
        assert ask(broker, "DELETE", f"{TOPIC}{path}/subscription/{path}")[0] == 204
        assert ask(broker, "DELETE", f"{TOPIC}{path}?force=true")[0] == 204


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/admin/v2/persistent/public/none", None, 404),
        ("GET", TOPIC + "none/stats", None, 404),
        ("GET", "/admin/v2/schemas/public/default/none/schema", None, 404),
        ("PUT", TOPIC + "a b/partitions".replace(" ", "%20"), 2, 412),
        ("PUT", TOPIC + "x-partition-0/partitions", 2, 412),
        ("PUT", TOPIC + "rmq_sys_x/partitions", 2, 403),
        ("PUT", TOPIC + "t/partitions", 0, 406),
        ("PUT", TOPIC + "t/partitions", b"{", 400),
        ("PUT", TOPIC + "t/partitions", b"[" * 50_000, 400),
        ("PUT", TOPIC + "t/partitions", b" " * 100_000, 413),
        ("PUT", TOPIC + "t/partitions", "two", 400),
        ("PUT", TOPIC + "t/subscription/s", {"ledgerId": "1"}, 400),
        pytest.param("POST", f"{TOPIC}t/subscription/s/skip/{'9' * 6000}", None, 400, id="a number that is too long"),
        ("POST", TOPIC + "t/subscription/s/resetcursor/-1", None, 400),
        ("PATCH", TOPIC + "t/partitions", None, 405),
        ("GET", "/nothing", None, 404),
    ],
)
def test_what_cannot_be_done_is_told(broker: mqtool.Broker, method: str, path: str, body: Any, status: int) -> None:
    assert ask(broker, method, path, body)[0] == status


def test_a_page_of_another_site_changes_nothing(broker: mqtool.Broker) -> None:
    assert ask(broker, "PUT", TOPIC + "t/partitions", 2, Origin="http://elsewhere")[0] == 403
    assert ask(broker, "GET", TOPIC + "t/partitions")[0] == 404


def test_there_are_no_pages_without_the_port_that_they_are_of(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="pulsarPort"),
        mqtool.Broker(tmp_path / "store", settings={"pulsarAdminPort": "0"}),
    ):
        pass
