"""The admin client: what it tells and changes is what other clients find; the blocking form is that for asyncio."""

import asyncio
import inspect
from collections.abc import Iterator

import pytest

import mqtool
from mqtool.engine.client_runtime.admin_client import AdminClient
from mqtool.engine.client_runtime.blocking.background import BlockingClient
from mqtool.engine.client_runtime.offset_moves import KeptOffset

# What only our commands call, in an event loop of their own.
_OF_COMMANDS = ("ask_each", "request_name_server", "masters", "members_of", "pulsar_subscriptions")


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        yield running


def test_topics_groups_and_offsets_are_made_read_moved_and_deleted(broker: mqtool.Broker) -> None:
    name_server = broker.name_server_address
    with mqtool.AdminClient(name_server) as admin, mqtool.Producer("P", name_server) as producer:
        [made] = admin.create_topic("Orders", queues=2).changes
        assert (made.what, made.topic, made.reason) == ("create", "Orders", "2 queues, perm 6")
        assert admin.create_topic("Orders", queues=2).changes == []
        for queue in producer.queues("Orders"):
            for number in range(3):
                producer.send(mqtool.ProducerMessage("Orders", b"%d" % number), queue)
        assert [(one.queue_id, one.min_offset, one.max_offset) for one in admin.topic_queues("Orders")] == [
            (0, 0, 3),
            (1, 0, 3),
        ]
        admin.create_group("billing", retries=3)
        [group] = admin.groups(["billing"])
        assert (group.settings.retry_max_times, group.members, group.lag) == (3, 0, None)

        plan = admin.set_offset("billing", "Orders", 1, 2, dry_run=True)
        assert admin.offsets("billing") == []
        admin.apply(plan)
        assert [(one.queue_id, one.consumer_offset, one.lag) for one in admin.offsets("billing")] == [
            (0, None, 3),
            (1, 2, 1),
        ]
        admin.reset_offsets("billing", ["Orders"], -1)
        with mqtool.PullConsumer("billing", name_server) as consumer:
            assert [consumer.committed(queue) for queue in consumer.fetch_message_queues("Orders")] == [3, 3]
        [state] = admin.group("billing")
        assert (state.online, state.holders, [one.lag for one in state.offsets]) == (None, {}, [0, 0])

        admin.delete_group("billing")
        admin.delete_topic("Orders")
        assert "Orders" not in {one.settings.topic for one in admin.topics()}
        with pytest.raises(mqtool.NotFoundError, match="no group matches billing"):
            admin.group("billing")


def test_what_makes_no_sense_is_refused_and_changes_nothing(broker: mqtool.Broker) -> None:
    with mqtool.AdminClient(broker.name_server_address) as admin:
        admin.create_topic("Orders", queues=1)
        admin.create_group("billing")
        with pytest.raises(mqtool.NotFoundError, match="no topic matches Order; similar: Orders"):
            admin.topic_queues("Order")
        with pytest.raises(mqtool.UsageError, match="not a pattern"):
            admin.delete_topic("Order*")
        with pytest.raises(mqtool.UsageError, match="perm must be one of rw, r, w"):
            admin.create_topic("Orders", perm="x")
        with pytest.raises(mqtool.NotFoundError, match="Orders has no queue 7"):
            admin.set_offset("billing", "Orders", 7, 0)
        with pytest.raises(mqtool.UsageError, match="9 is outside"):
            admin.set_offset("billing", "Orders", 0, 9)
        with pytest.raises(mqtool.NotFoundError, match="there is no broker nobody; the brokers are"):
            admin.create_topic("Orders", broker_name="nobody")
        assert admin.offsets() == []
    with pytest.raises(mqtool.UsageError, match="this admin client is not running"):
        admin.topics()


def test_a_broker_that_is_gone_is_told_with_its_error(broker: mqtool.Broker) -> None:
    async def stats() -> list[tuple[bool, str]]:
        async with AdminClient(broker.name_server_address) as admin:
            [place] = await admin.brokers()
            gone = place._replace(address="127.0.0.1:1")
            return [(bool(one.stats), str(one.error)) for one in await admin.broker_stats([place, gone])]

    [here, gone] = asyncio.run(stats())
    assert here == (True, "None")
    assert not gone[0]
    assert "cannot connect to 127.0.0.1:1" in gone[1]


def test_the_blocking_form_has_every_call_with_its_arguments() -> None:
    ours = set(dir(BlockingClient))
    for name, method in inspect.getmembers(AdminClient, inspect.iscoroutinefunction):
        if name.startswith("_") or name in ours or name in _OF_COMMANDS:
            continue
        assert inspect.signature(getattr(mqtool.AdminClient, name)) == inspect.signature(method), name


def test_offsets_of_retries_that_another_cluster_lacks_are_left_out_and_told(broker: mqtool.Broker) -> None:
    def of(topic: str) -> KeptOffset:
        return KeptOffset("G", topic, "broker-a", 0, 0, 1, False)

    with mqtool.AdminClient(broker.name_server_address) as admin:
        admin.create_topic("Orders", queues=1)
        admin.create_group("G")
        admin.create_topic("%RETRY%G", queues=1)
        plan = admin.import_offsets([of("%RETRY%Gone"), of("Orders"), of("%RETRY%G")], 1, dry_run=True)
        assert sorted(one.topic or "" for one in plan.changes) == ["%RETRY%G", "Orders"]
        assert plan.remarks == ["%RETRY%Gone does not exist here: its offsets are left out"]
        with pytest.raises(mqtool.NotFoundError, match="no topic matches Gone"):
            admin.import_offsets([of("Gone")], 1, dry_run=True)


def test_what_waits_on_a_broker_where_a_group_has_committed_nothing_is_lag() -> None:
    with (
        mqtool.Broker() as one,
        mqtool.Broker(name_servers=[one.name_server_address], settings={"brokerName": "broker-b"}),
        mqtool.AdminClient(one.name_server_address) as admin,
        mqtool.Producer("P", one.name_server_address) as producer,
    ):
        admin.create_topic("Orders", queues=2)
        admin.create_topic("Unread", queues=2)
        admin.create_group("G")
        for queue in (*producer.queues("Orders"), *producer.queues("Unread")):
            producer.send(mqtool.ProducerMessage(queue.topic, b"x"), queue)
        admin.set_offset("G", "Orders", 0, 1, broker_name="broker-a")

        wanted = {("broker-a", 0): 0, ("broker-a", 1): 1, ("broker-b", 0): 1, ("broker-b", 1): 1}
        for offsets in (admin.offsets("G"), [offset for state in admin.group("G") for offset in state.offsets]):
            found = {(offset.broker_name, offset.queue_id): offset.lag for offset in offsets}
            assert ({offset.topic for offset in offsets}, found) == ({"Orders"}, wanted)
        assert {on.broker_name: on.lag for on in admin.groups(["G"])} == {"broker-a": 1, "broker-b": 2}
