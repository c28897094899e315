"""``mqtool mirror`` between brokers of ours: what a copy keeps, kills, loops, groups, and what cannot be mirrored."""

import asyncio
import collections
import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool import ConsumerMessage, ProducerMessage, TransactionState
from mqtool.engine.client.mirroring import HOPS, last_hop
from mqtool.engine.client_runtime import mirror
from mqtool.engine.remoting.clock import wall_clock
from mqtool.errors import Status, UnavailableError
from tests.commands.running import Ran, run
from tests.engine.client_runtime.test_push_consumer import until
from tests.engine.remoting.test_tls import settings, with_certificate

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a mirror find out soon that nothing is left."""
    monkeypatch.setattr(mirror, "_TICK_S", 0.02)


@pytest.fixture
def pair() -> Iterator[tuple[mqtool.Broker, mqtool.Broker]]:
    with (
        mqtool.Broker(settings={"brokerClusterName": "A"}) as source,
        mqtool.Broker(settings={"brokerClusterName": "B"}) as target,
    ):
        yield source, target


def mirrored(source: mqtool.Broker, target: mqtool.Broker, *arguments: object, status: Status = Status.OK) -> Ran:
    """Mirror what there is, and return when nothing is left."""
    addresses = ("--from", source.name_server_address, "--to", target.name_server_address)
    ran = run("mirror", *addresses, "--topic", "Ord*", "--yes", "--idle", "50ms", *arguments)
    assert ran.status == status, ran
    return ran


def topic(broker: mqtool.Broker, name: str = "Orders", queues: int = 2) -> None:
    with mqtool.AdminClient(broker.name_server_address) as admin:
        admin.create_topic(name, queues=queues)


def send(broker: mqtool.Broker, *messages: ProducerMessage, queue_id: int | None = None) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        for message in messages:
            queues = [one for one in producer.queues(message.topic) if queue_id in (None, one.queue_id)]
            producer.send(message, queues[0] if queue_id is not None else None)


def stored(broker: mqtool.Broker, name: str = "Orders") -> dict[int, list[dict[str, Any]]]:
    """Return the messages of a topic by queue, as `mqtool find` shows them."""
    rows = run("find", "-n", broker.name_server_address, "--topic", name, "--limit", "100000").rows
    queues: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["queue_offset"]):
        queues.setdefault(row["queue_id"], []).append(row)
    return queues


def bodies(broker: mqtool.Broker, name: str = "Orders") -> dict[int, list[object]]:
    return {queue_id: [row["body"] for row in rows] for queue_id, rows in sorted(stored(broker, name).items())}


KEPT = ("body", "tags", "keys", "unique_key", "flag", "queue_id", "body_size", "body_crc")


def test_a_copy_keeps_what_its_producer_gave_it_and_its_queue(pair: tuple[mqtool.Broker, mqtool.Broker]) -> None:
    source, target = pair
    topic(source)
    for number in range(70):
        message = ProducerMessage(
            "Orders", f"{number}", f"t{number % 3}", [f"k{number}", "all"], flag=number, properties={"own": f"{number}"}
        )
        send(source, message, queue_id=number % 2)
    send(source, ProducerMessage("Orders", "x" * 20_000, shard_key="s"), queue_id=0)  # which is compressed

    ran = mirrored(source, target)

    here, there = stored(source), stored(target)
    for queue_id in (0, 1):
        for origin, copy in zip(here[queue_id], there[queue_id], strict=True):
            assert {name: copy[name] for name in KEPT} == {name: origin[name] for name in KEPT}
            properties = dict(copy["properties"])
            hop = last_hop(properties)
            assert hop == ("A", "broker-a", "Orders", queue_id, origin["queue_offset"], origin["store_timestamp"])
            born = int(properties.pop("BORN_TIMESTAMP", copy["born_timestamp"]))
            assert born == origin["born_timestamp"]
            del properties[HOPS]
            assert properties == {**origin["properties"], "CLUSTER": "B"}
    assert [row["kind"] for row in ran.rows] == ["plan", "progress"]
    assert ran.rows[0]["lag"] == ran.rows[1]["copied"] == 71
    assert "71 messages copied" in ran.remarks


def test_it_goes_on_where_it_ended_and_takes_in_topics_that_come_later(
    pair: tuple[mqtool.Broker, mqtool.Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_LOOK_S", 0.1)
    source, target = pair
    topic(source)
    send(source, *(ProducerMessage("Orders", f"{number}") for number in range(5)))
    mirrored(source, target)
    send(source, ProducerMessage("Orders", "later"))
    again = mirrored(source, target)
    assert again.rows[-1]["copied"] == 1

    with running(source, target):
        topic(source, "OrdersNew", 3)
        send(source, *(ProducerMessage("OrdersNew", f"{number}") for number in range(7)))
        until(lambda: sum(map(len, bodies_or_none(target, "OrdersNew").values())) == 7)
    assert bodies(source, "OrdersNew") == bodies(target, "OrdersNew")
    assert bodies(source) == bodies(target)


def test_what_was_copied_is_known_again_though_the_progress_is_lost(pair: tuple[mqtool.Broker, mqtool.Broker]) -> None:
    source, target = pair
    topic(source)
    topic(target, queues=1)
    send(source, *(ProducerMessage("Orders", f"{number}") for number in range(100)))
    mirrored(source, target)
    send(target, *(ProducerMessage("Orders", "of the target's own") for number in range(50)))
    reset = ("offset", "reset", "--group", "mqtool_mirror_B", "--topic", "Orders", "--earliest", "--yes")
    assert run(*reset, "-n", source.name_server_address).status == Status.OK
    send(source, ProducerMessage("Orders", "new"))

    assert mirrored(source, target).rows[-1]["copied"] == 1
    assert sum(map(len, bodies(target).values())) == 151


def bodies_or_none(broker: mqtool.Broker, name: str) -> dict[int, list[object]]:
    with mqtool.AdminClient(broker.name_server_address) as admin:
        has = name in {config.topic for _, config in admin.topics()}
    return bodies(broker, name) if has else {}


@contextlib.contextmanager
def running(source: mqtool.Broker, target: mqtool.Broker, *words: object) -> Iterator[subprocess.Popen[bytes]]:
    """Have a process mirror until the end of the block, and kill it then."""
    command = [
        sys.executable, "-m", "mqtool", "mirror", "--from", source.name_server_address, "--to",
        target.name_server_address, "--topic", "Ord*", "--yes", *map(str, words),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_mirror_killed_at_any_time_loses_nothing_and_sends_nothing_twice(
    pair: tuple[mqtool.Broker, mqtool.Broker],
) -> None:
    source, target = pair
    topic(source)
    topic(target)
    count = itertools.count()
    with mqtool.Producer("P", source.name_server_address) as producer:
        for _ in range(2):
            with running(source, target) as process:
                before = sum(map(len, bodies(target).values()))
                deadline = time.monotonic() + PATIENCE
                while sum(map(len, bodies(target).values())) < before + 40:
                    for _ in range(40):
                        producer.send(ProducerMessage("Orders", f"{next(count)}"))
                    assert process.poll() is None
                    assert time.monotonic() < deadline
    mirrored(source, target)

    assert bodies(source) == bodies(target)


@pytest.mark.parametrize("count", [4, 15])  # fewer than there were, and more
@pytest.mark.parametrize(
    "committed", [0, 10]
)  # brokers of 5.x forget the offsets of a topic that is deleted, 4.9 does not
def test_a_topic_that_was_made_again_is_copied_whole_and_nothing_of_it_twice(
    count: int, committed: int, pair: tuple[mqtool.Broker, mqtool.Broker]
) -> None:
    source, target = pair
    place = mqtool.MessageQueue("Orders", "broker-a", 0)

    def commit(offset: int) -> None:
        with mqtool.PullConsumer("mqtool_mirror_B", source.name_server_address) as consumer:
            consumer.commit(place, offset)

    topic(source, queues=1)
    send(source, *(ProducerMessage("Orders", f"first {number}") for number in range(10)))
    mirrored(source, target)
    with mqtool.AdminClient(source.name_server_address) as admin:
        admin.delete_topic("Orders")
        admin.create_topic("Orders", queues=1)
    send(source, *(ProducerMessage("Orders", f"second {number}") for number in range(count)))
    for _ in range(2):
        commit(committed)  # of the topic before, or killed before it could commit
        mirrored(source, target)
    send(source, ProducerMessage("Orders", "last"))
    mirrored(source, target)

    names = [f"{name} {number}" for name, most in (("first", 10), ("second", count)) for number in range(most)]
    assert bodies(target) == {0: [*names, "last"]}


def test_a_topic_made_again_while_a_broker_cannot_be_reached_is_copied_whole(
    pair: tuple[mqtool.Broker, mqtool.Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    copy_on = mirror.Mirror._copy_on

    def make_again() -> None:
        with mqtool.AdminClient(source.name_server_address) as admin:
            admin.delete_topic("Orders")
            admin.create_topic("Orders", queues=1)
        send(source, *(ProducerMessage("Orders", f"second {number}") for number in range(15)))

    async def cut_off(self: mirror.Mirror, lane: mirror._SourceQueue) -> None:
        copying = asyncio.create_task(copy_on(self, lane))
        while lane.at < 10:
            await asyncio.sleep(0.01)
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)
        monkeypatch.setattr(mirror.Mirror, "_copy_on", copy_on)
        lane.is_waiting = True  # so that nobody takes it for idle, however long the next line takes
        await asyncio.to_thread(make_again)
        raise UnavailableError(f"cannot connect to {lane.address}", lane.address)

    monkeypatch.setattr(mirror.Mirror, "_copy_on", cut_off)
    monkeypatch.setattr(mirror, "_AFTER_FAILURE_S", 0.01)
    topic(source, queues=1)
    send(source, *(ProducerMessage("Orders", f"first {number}") for number in range(10)))
    mirrored(source, target)

    names = [f"{name} {number}" for name, most in (("first", 10), ("second", 15)) for number in range(most)]
    assert bodies(target) == {0: names}


@pytest.mark.parametrize("committed", [3, 6])  # killed before it could commit the last, and not
def test_a_clock_of_the_source_that_was_set_back_has_nothing_copied_twice(committed: int) -> None:
    ahead_ms = 3_600_000
    with (
        mqtool.Broker(settings={"brokerClusterName": "A"}, clock=lambda: wall_clock() + ahead_ms) as source,
        mqtool.Broker(settings={"brokerClusterName": "B"}) as target,
    ):
        topic(source, queues=1)
        for _ in range(2):
            send(source, *(ProducerMessage("Orders", f"{ahead_ms} {number}") for number in range(3)))
            ahead_ms = 0
        mirrored(source, target)
        with mqtool.PullConsumer("mqtool_mirror_B", source.name_server_address) as consumer:
            consumer.commit(mqtool.MessageQueue("Orders", "broker-a", 0), committed)
        mirrored(source, target)

        assert bodies(target) == bodies(source)


def test_a_and_b_mirror_each_other_and_come_to_an_end(pair: tuple[mqtool.Broker, mqtool.Broker]) -> None:
    one, other = pair
    for broker, name in ((one, "a"), (other, "b")):
        topic(broker)
        send(broker, *(ProducerMessage("Orders", f"{name}{number}") for number in range(5)))
    for _ in range(2):
        mirrored(one, other)
        mirrored(other, one)

    wanted = sorted(f"{name}{number}" for name in "ab" for number in range(5))
    for broker in (one, other):
        assert sorted(str(body) for queue in bodies(broker).values() for body in queue) == wanted


def test_a_ring_of_three_clusters_ends(pair: tuple[mqtool.Broker, mqtool.Broker]) -> None:
    with mqtool.Broker(settings={"brokerClusterName": "C"}) as third:
        ring = [*pair, third]
        topic(ring[0])
        send(ring[0], ProducerMessage("Orders", "x"))
        for _ in range(2):
            for source, target in zip(ring, (*ring[1:], ring[0]), strict=True):
                mirrored(source, target)
        assert [sum(map(len, bodies(broker).values())) for broker in ring] == [1, 1, 1]
        [[row]] = [rows for rows in stored(third).values() if rows]
        assert [text.split(":")[0] for text in dict(row["properties"])[HOPS].split()] == ["A", "B"]


def test_groups_are_where_they_were_by_the_copies_of_what_they_have_read(
    pair: tuple[mqtool.Broker, mqtool.Broker],
) -> None:
    source, target = pair
    topic(source)
    topic(target, queues=1)  # so that both queues are copied to one
    send(target, ProducerMessage("Orders", "of the target's own"))
    for queue_id in (0, 1):
        send(source, *(ProducerMessage("Orders", f"{queue_id}-{number}") for number in range(50)), queue_id=queue_id)
    with mqtool.AdminClient(source.name_server_address) as admin:
        for group in ("G", "H"):
            admin.create_group(group)
    for queue_id, offset in ((0, 30), (1, 45)):
        where = ("--topic", "Orders", "--queue", queue_id, "--offset", offset, "--yes")
        assert run("offset", "set", "-n", source.name_server_address, "--group", "G", *where).status == Status.OK

    mirrored(source, target, "--group", "G")

    [copies] = bodies(target).values()
    [at] = [
        row["consumer_offset"] for row in run("offset", "list", "-n", target.name_server_address, "--group", "G").rows
    ]
    last_read = [
        max(copies.index(f"{queue_id}-{offset - 1}") for queue_id, offset in [one]) for one in ((0, 30), (1, 45))
    ]
    assert at == min(last_read) + 1

    run("offset", "set", "-n", source.name_server_address, "--group", "G", "--topic", "Orders", "--queue", 0,
        "--offset", 40, "--yes")  # fmt: skip
    mirrored(source, target)  # which knows nothing of where the copies are but what they tell
    [later] = [
        row["consumer_offset"] for row in run("offset", "list", "-n", target.name_server_address, "--group", "G").rows
    ]
    assert later == min(copies.index("0-39"), copies.index("1-44")) + 1


def test_delayed_and_transactional_messages_are_copied_as_they_become_visible(
    pair: tuple[mqtool.Broker, mqtool.Broker],
) -> None:
    source, target = pair
    topic(source, queues=1)
    send(source, ProducerMessage("Orders", "late", delay_level=1), ProducerMessage("Orders", "now"))

    class Decides:
        def execute_local_transaction(self, _: ProducerMessage, argument: object) -> TransactionState:
            return TransactionState.COMMIT if argument else TransactionState.ROLLBACK

        def check_local_transaction(self, _: ConsumerMessage) -> TransactionState:
            return TransactionState.ROLLBACK

    with mqtool.TransactionProducer("T", Decides(), source.name_server_address) as producer:
        producer.send_in_transaction(ProducerMessage("Orders", "kept"), True)
        producer.send_in_transaction(ProducerMessage("Orders", "dropped"), False)
    until(lambda: sorted(map(str, bodies(source)[0])) == ["kept", "late", "now"])

    mirrored(source, target)

    assert bodies(target) == bodies(source)


def test_one_mirror_at_a_time_copies(
    pair: tuple[mqtool.Broker, mqtool.Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_JOIN_S", 0.2)
    source, target = pair
    topic(source)
    with running(source, target):
        until(lambda: "mqtool_mirror_B" in online(source))
        second = mirrored(source, target, status=Status.BUSY)
    assert "is already mirroring to B" in second.remarks


def online(broker: mqtool.Broker) -> set[str]:
    return {row["group"] for row in run("group", "list", "-n", broker.name_server_address).rows if row["members"]}


# Clusters as they are: who may ask, over what, and several brokers

ACL = """
accounts:
- accessKey: administrator
  secretKey: 12345678
  admin: true
"""


def test_clusters_of_several_brokers_that_want_keys_and_tls_lose_nothing_by_a_kill_or_a_broker_that_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_LOOK_S", 0.2)
    (tmp_path / "plain_acl.yml").write_text(ACL)
    secured: dict[str, Any] = {"aclEnable": True, "rocketmq.acl.plain.file": str(tmp_path / "plain_acl.yml")}
    secured |= settings(with_certificate(tmp_path), mode="enforcing")
    secured |= {"tls.enable": True, "tls.client.trustCertPath": str(tmp_path / "cert.pem")}
    known: dict[str, Any] = {"access_key": "administrator", "secret_key": "12345678"}
    known |= {"tls": True, "authorities": tmp_path / "cert.pem"}
    words = ("--access-key", "administrator", "--secret-key", "12345678", "--ca", tmp_path / "cert.pem")

    def found(name_server: str) -> collections.Counter[str]:
        rows = run("find", "-n", name_server, "--topic", "Orders", "--limit", "100000", *words).rows
        return collections.Counter(str(row["body"]) for row in rows)

    with contextlib.ExitStack() as stack:

        def broker(cluster: str, name: str, *name_servers: str) -> mqtool.Broker:
            named = {"brokerClusterName": cluster, "brokerName": name, **secured}
            return stack.enter_context(mqtool.Broker(settings=named, name_servers=name_servers))

        source, target = broker("A", "broker-a"), broker("B", "broker-a")
        source_names, target_names = source.name_server_address, target.name_server_address
        broker("B", "broker-b", target_names)
        admin = stack.enter_context(mqtool.AdminClient(source_names, **known))
        admin.create_topic("Orders", queues=2)
        sending = stack.enter_context(mqtool.Producer("P", source_names, poll_name_server_interval_ms=100, **known))
        bodies = itertools.count()
        sent = [f"{next(bodies)}" for _ in range(60)]
        for body in sent:
            sending.send(ProducerMessage("Orders", body))
        with running(source, target, *words):
            until(lambda: len(found(target_names)) > 20)

        ended = stack.enter_context(ThreadPoolExecutor(1)).submit(mirrored, source, target, "--idle", "1s", *words)
        broker("A", "broker-0", source_names)  # the first by name: what is copied goes to other brokers now
        admin.create_topic("Orders", queues=2)
        until(lambda: len(sending.queues("Orders")) == 4)
        for queue in sending.queues("Orders"):
            for _ in range(10):
                sent.append(f"{next(bodies)}")
                sending.send(ProducerMessage("Orders", sent[-1]), queue)
        ended.result()
        mirrored(source, target, *words)

        assert found(source_names) == found(target_names) == collections.Counter(sent)


def test_an_outage_is_told_once_though_other_work_goes_on_and_so_is_its_end() -> None:
    told: list[str] = []
    nobody: Any = None
    copying = mirror.Mirror(nobody, nobody, "A", "B", lambda _: True, tell=told.append)

    async def look(error: UnavailableError | None) -> None:
        if error:
            raise error

    async def run_for_a_while() -> None:
        for _ in range(3):
            await copying._patiently("look", look(UnavailableError("cannot connect to a:1", "a:1")))
            await copying._patiently("commit", look(None))
        await copying._patiently("look", look(None))

    asyncio.run(run_for_a_while())
    assert told == ["cannot connect to a:1; retrying", "a:1 is answering again"]
