"""The official Python client of Apache Pulsar, and clients of RocketMQ, on the same topics of a broker."""

import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

import mqtool
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import UsageError
from tests.commands.running import run
from tests.engine.client_runtime.test_push_consumer import until
from tests.engine.remoting.test_tls import settings, with_certificate
from tests.pulsar_client import PulsarWireClient

pulsar = pytest.importorskip("pulsar")
WAIT_MS = 30_000
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[mqtool.Broker]:
    with mqtool.Broker(tmp_path / "store", pulsar=True) as running:
        yield running


def client_of(broker: mqtool.Broker) -> Any:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(broker.pulsar_url, logger=quiet, io_threads=1, message_listener_threads=1)


def bodies(consumer: Any, count: int) -> list[bytes]:
    return [consumer.receive(WAIT_MS).data() for _ in range(count)]


def test_clients_of_both_kinds_read_what_the_others_send(broker: mqtool.Broker) -> None:
    client = client_of(broker)
    producer = client.create_producer("mixed", batching_enabled=True, batching_max_publish_delay_ms=10)
    consumer = client.subscribe("mixed", "pulsar", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    for number in range(3):
        producer.send_async(b"p%d" % number, lambda *_: None, partition_key="key", properties={"TAGS": "TagA"})
    producer.flush()
    with mqtool.Producer("shop", broker.name_server_address) as others:
        others.send(mqtool.ProducerMessage("mixed", b"r", tags="TagB", keys="order-7", properties={"color": "red"}))

    received = [consumer.receive(WAIT_MS) for _ in range(4)]
    with mqtool.PullConsumer("billing", broker.name_server_address) as puller:
        [queue] = puller.fetch_message_queues("mixed")
        pulled = puller.pull(queue, 0).messages
    for one in received:
        consumer.acknowledge(one)
    client.close()

    assert [one.data() for one in received] == [b"p0", b"p1", b"p2", b"r"]
    assert [one.message_id().batch_index() for one in received] == [0, 1, 2, -1]
    assert (received[3].partition_key(), received[3].properties()["color"]) == ("order-7", "red")
    assert [(one.body, one.properties.get("TAGS"), one.properties.get("KEYS")) for one in pulled][0::3] == [
        (b"p0", "TagA", "key"),
        (b"r", "TagB", "order-7"),
    ]


def test_acknowledgements_with_gaps_survive_a_restart_and_the_store_stays_sound(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with mqtool.Broker(store, pulsar=True) as broker:
        client = client_of(broker)
        consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
        producer = client.create_producer("t")
        for number in range(6):
            producer.send(b"%d" % number)
        received = [consumer.receive(WAIT_MS) for _ in range(6)]
        for place in (0, 1, 4):
            consumer.acknowledge(received[place])
        client.close()

    assert not [finding for finding in verify_store(StoreReader(store)) if finding.severity.name != "NOTE"]
    with mqtool.Broker(store, pulsar=True) as broker:
        client = client_of(broker)
        consumer = client.subscribe("t", "s", pulsar.ConsumerType.Shared)
        assert sorted(bodies(consumer, 3)) == [b"2", b"3", b"5"]
        client.close()


def test_topics_of_rocketmq_with_several_queues_have_partitions(broker: mqtool.Broker) -> None:
    with mqtool.Producer("shop", broker.name_server_address) as others:
        others.send(mqtool.ProducerMessage("wide", b"made by sending"))
    client = client_of(broker)

    partitions = client.get_topic_partitions("wide")
    consumer = client.subscribe("wide", "s", initial_position=EARLIEST)
    body = bodies(consumer, 1)
    client.close()

    assert partitions[0] == "persistent://public/default/wide-partition-0"
    assert len(partitions) > 1
    assert body == [b"made by sending"]


@pytest.mark.parametrize("topic", ["%RETRY%billing", "%DLQ%billing"])
def test_topics_of_groups_are_refused_instead_of_created_under_another_name(broker: mqtool.Broker, topic: str) -> None:
    client = client_of(broker)

    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer(topic)
    client.close()

    with mqtool.AdminClient(broker.name_server_address) as admin:
        assert not [one for one in admin.topics() if "billing" in one.settings.topic]


def test_a_reader_comes_to_an_end_that_no_client_can_be_given(broker: mqtool.Broker) -> None:
    client = client_of(broker)
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    with mqtool.Producer("shop", broker.name_server_address) as others:
        others.send(mqtool.ProducerMessage("t", b"short"))
        others.send(mqtool.ProducerMessage("t", random.Random(1).randbytes(4 << 20)))  # too long for Pulsar clients

    bodies = []
    while reader.has_message_available():
        bodies.append(reader.read_next(WAIT_MS).data())
    client.close()

    assert bodies == [b"short"]


def test_a_client_with_tls_is_told_to_come_with_tls(tmp_path: Path) -> None:
    folder = with_certificate(tmp_path)
    with mqtool.Broker(tmp_path / "store", pulsar=True, settings=dict(settings(folder, mode="permissive"))) as broker:
        url = broker.pulsar_url.replace("pulsar://", "pulsar+ssl://")
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        trusted = str(folder / "cert.pem")
        client = pulsar.Client(url, logger=quiet, tls_trust_certs_file_path=trusted, tls_validate_hostname=False)
        consumer = client.subscribe("t", "s", initial_position=EARLIEST)
        client.create_producer("t").send(b"secret")

        assert bodies(consumer, 1) == [b"secret"]
        client.close()


def test_clients_are_told_where_to_find_the_broker(tmp_path: Path) -> None:
    advertised = {"pulsarAdvertised": "192.0.2.7:6650"}
    with mqtool.Broker(tmp_path / "store", pulsar=True, settings=advertised) as broker:
        path = "/lookup/v2/topic/persistent/public/default/t"
        with urllib.request.urlopen(broker.pulsar_admin_url + path) as response:
            assert json.load(response)["brokerUrl"] == "pulsar://192.0.2.7:6650"
    with (
        pytest.raises(UsageError, match="pulsarAdvertised"),
        mqtool.Broker(tmp_path / "store", pulsar=True, settings={"pulsarAdvertised": "nowhere"}),
    ):
        pass


def test_a_subscription_goes_on_where_its_group_was_moved_a_moment_ago(broker: mqtool.Broker) -> None:
    client = client_of(broker)
    client.subscribe("t", "s", initial_position=EARLIEST).close()
    producer = client.create_producer("t")
    for number in range(4):
        producer.send(b"%d" % number)
    place = ("--group", "s", "--topic", "t", "--queue", "0", "--offset", "2", "--yes")
    assert run("offset", "set", "-n", broker.name_server_address, *place).status == 0

    received = bodies(client.subscribe("t", "s"), 2)
    client.close()

    assert received == [b"2", b"3"]


# Where access is controlled

KEY = b"a secret of thirty-two bytes or more"
ACCOUNTS = """\
accounts:
  - {accessKey: administrator, secretKey: "12345678", admin: true}
  - {accessKey: producer, secretKey: "12345678", topicPerms: [t=PUB]}
  - {accessKey: everyone, secretKey: "12345678", defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[mqtool.Broker]:
    with mqtool.Broker(tmp_path / "store", pulsar=True, settings=with_accounts(tmp_path)) as broker:
        yield broker


def with_accounts(folder: Path) -> dict[str, str | int | bool]:
    """Write accounts and the key for tokens into a folder, and return the settings of a broker that has them."""
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    (folder / "key").write_bytes(KEY)
    return {
        "aclEnable": True,
        "rocketmq.acl.plain.file": str(folder / "plain_acl.yml"),
        "tokenSecretKey": f"file://{folder / 'key'}",
    }


def token_of(name: str, key: bytes = KEY, **claims: Any) -> str:
    return jwt.encode({"sub": name, **claims}, key, "HS256")


def client_with(broker: mqtool.Broker, token: str | Callable[[], str], seconds: int = 30) -> Any:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    authentication = pulsar.AuthenticationToken(token) if token else None
    return pulsar.Client(broker.pulsar_url, authentication, logger=quiet, operation_timeout_seconds=seconds)


def test_an_account_may_do_with_its_token_what_it_may_do_with_rocketmq(guarded: mqtool.Broker) -> None:
    everyone, producer = (client_with(guarded, token_of(name)) for name in ("everyone", "producer"))
    consumer = everyone.subscribe("t", "s", initial_position=EARLIEST)
    producer.create_producer("t").send(b"of an account")

    assert bodies(consumer, 1) == [b"of an account"]
    with pytest.raises(pulsar.AuthorizationError):
        producer.subscribe("t", "other")
    with pytest.raises(pulsar.AuthorizationError):
        producer.create_producer("another")
    everyone.close()
    producer.close()


@pytest.mark.parametrize(
    "token",
    [
        "",
        "no token",
        token_of("everyone", b"another secret of thirty-two bytes"),
        token_of("everyone", exp=1_700_000_000),
        token_of("everyone", nbf=4_000_000_000),
        token_of("nobody"),
        jwt.encode({"sub": "everyone"}, "", "none"),
    ],
)
def test_nobody_comes_in_without_a_token_that_is_valid(guarded: mqtool.Broker, token: str) -> None:
    client = client_with(guarded, token, seconds=1)  # for so long it tries again

    with pytest.raises((pulsar.AuthenticationError, pulsar.ConnectError, pulsar.Timeout)):
        client.create_producer("t")
    client.close()


def test_a_token_that_expires_is_replaced_on_the_open_connection(tmp_path: Path) -> None:
    clock = mqtool.VirtualClock()
    with mqtool.Broker(tmp_path / "store", pulsar=True, settings=with_accounts(tmp_path), clock=clock) as broker:
        made: list[str] = []

        def new_token() -> str:
            made.append(token_of("everyone", exp=clock() // 1000 + 60))
            return made[-1]

        def expire() -> None:
            before = len(made)
            clock.advance(61)
            until(lambda: len(made) > before)

        client = client_with(broker, new_token)
        producer = client.create_producer("t")
        consumer = client.subscribe("t", "s", initial_position=EARLIEST)
        for number in range(3):
            producer.send(b"%d" % number)
            assert bodies(consumer, 1) == [b"%d" % number], "no new connection: what came before does not come again"
            expire()
        client.close()


@pytest.mark.parametrize("answer", ["", "no token", token_of("producer"), token_of("everyone", exp=1_700_000_000)])
def test_a_client_without_another_token_of_its_account_is_disconnected(tmp_path: Path, answer: str) -> None:
    clock = mqtool.VirtualClock()
    with mqtool.Broker(tmp_path / "store", pulsar=True, settings=with_accounts(tmp_path), clock=clock) as broker:
        host, port = broker.pulsar_url.removeprefix("pulsar://").split(":")
        token = token_of("everyone", exp=clock() // 1000 + 60)
        own: dict[str, Any] = {"auth_method_name": "token", "auth_data": token.encode()}
        refreshing = own | {"feature_flags": {"supports_auth_refresh": True}}
        with PulsarWireClient(host, int(port), **own) as old, PulsarWireClient(host, int(port), **refreshing) as client:
            for one in (old, client):
                one.ping()
            clock.advance(61)
            assert old.is_closed()
            assert client.next("auth_challenge").body.challenge.auth_data == b"PulsarAuthRefresh"
            client.ping()
            if answer:
                response = {"auth_method_name": "token", "auth_data": answer.encode()}
                client.say("auth_response", response=response)
            else:
                clock.advance(11)
            assert client.is_closed()


def test_pages_are_for_administrators_but_for_lookups(guarded: mqtool.Broker) -> None:
    def status(path: str, name: str) -> int:
        headers = {"Authorization": f"Bearer {token_of(name)}"} if name else {}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(guarded.pulsar_admin_url + path, headers=headers)
            ) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    listing, lookup = "/admin/v2/persistent/public/default", "/lookup/v2/topic/persistent/public/default/t"

    assert [status(listing, name) for name in ("", "nobody", "everyone", "administrator")] == [401, 401, 403, 200]
    assert [status(lookup, name) for name in ("", "nobody", "producer", "administrator")] == [401, 401, 200, 200]
    assert status(lookup + "2", "producer") == 403


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "tokenSecretKey or tokenPublicKey"),
        ({"tokenSecretKey": "no base64!"}, "neither a file nor base64"),
        ({"tokenPublicKey": "YWJj", "tokenPublicAlg": "HS256"}, "HS256 is not one of"),
    ],
)
def test_there_is_no_port_for_pulsar_where_nothing_tells_who_clients_are(
    given: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "plain_acl.yml").write_text("accounts: []\n")
    acl: dict[str, str | int | bool] = {"aclEnable": True, "rocketmq.acl.plain.file": str(tmp_path / "plain_acl.yml")}

    with pytest.raises(UsageError, match=said), mqtool.Broker(tmp_path / "s", pulsar=True, settings=acl | given):
        pass
