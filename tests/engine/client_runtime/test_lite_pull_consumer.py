"""Consumers that are asked for messages: their share of topics, or the queues that are assigned to them."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import mqtool
from mqtool import ConsumeFrom, LitePullConsumer, LitePullConsumerOptions, MessageQueue, ProducerMessage
from mqtool.engine.client import calls
from mqtool.errors import MqtoolError, NotFoundError, UsageError
from mqtool.formats.config_tables import TopicConfig
from tests.commands.test_serve import ask
from tests.engine.client_runtime.test_push_consumer import BODIES, committed, send, until

FIRST: dict[str, Any] = {"consume_from_where": ConsumeFrom.FIRST_OFFSET}


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker(settings={"enablePropertyFilter": True}) as running:
        yield running


def consumer(broker: mqtool.Broker, **options: Any) -> LitePullConsumer:
    return LitePullConsumer("G", broker.name_server_address, LitePullConsumerOptions(**{**FIRST, **options}))


def subscribed(broker: mqtool.Broker, expression: str = "*", **options: Any) -> LitePullConsumer:
    made = consumer(broker, **options)
    made.subscribe("Orders", expression, is_sql92=expression.startswith("a "))
    return made


def polled(made: LitePullConsumer, count: int) -> list[bytes]:
    """Poll until so many messages have come, and return their bodies."""
    bodies: list[bytes] = []

    def are_there() -> bool:
        bodies.extend(one.body for one in made.poll(100))
        return len(bodies) >= count

    until(are_there)
    return bodies


def test_every_message_of_a_topic_is_given_once_and_counts_once_it_is_committed(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    with subscribed(broker, auto_commit=False) as one:
        assert sorted(polled(one, 100)) == sorted(BODIES)
        assert one.poll(0) == []
    assert committed(broker) <= 0
    with subscribed(broker, auto_commit=False) as one:
        assert sorted(polled(one, 100)) == sorted(BODIES)
        one.commit()
        assert committed(broker) == 100
    with subscribed(broker) as one:
        send(broker, [b"new"])
        assert polled(one, 1) == [b"new"]


def test_a_poll_commits_what_earlier_ones_gave(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    with subscribed(broker, auto_commit_interval_millis=0) as one:
        polled(one, 100)
        one.poll(0)
        until(lambda: committed(broker) == 100)


def test_members_share_the_queues(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    with subscribed(broker) as one, subscribed(broker) as other:
        until(lambda: len(one.queues()) == len(other.queues()) == 2)
        assert not {*one.queues()} & {*other.queues()}


def test_members_that_come_and_go_at_once_all_end(broker: mqtool.Broker) -> None:
    async def come_and_go() -> None:
        consumer = mqtool.aio.LitePullConsumer("G", broker.name_server_address)
        consumer.subscribe("Orders")
        async with consumer:
            pass

    async def together() -> None:
        async with asyncio.timeout(60):  # one of six did not, where it was told of another in its last turn
            await asyncio.gather(*(come_and_go() for _ in range(6)))

    send(broker, BODIES[:1])
    asyncio.run(together())


@pytest.mark.parametrize("expression", ["A || C", "a > 3"])
def test_tags_and_sql_choose(expression: str, broker: mqtool.Broker) -> None:
    send(broker, [b"wanted"], tags="A", properties={"a": "5"})
    send(broker, [b"other"], tags="B", properties={"a": "1"})
    with subscribed(broker, expression, auto_commit=False) as one:
        assert polled(one, 1) == [b"wanted"]
        assert one.poll(200) == []
    with consumer(broker) as one:
        one.assign(one.fetch_message_queues("Orders"), expression, is_sql92=expression.startswith("a "))
        assert polled(one, 1) == [b"wanted"]
        assert one.poll(200) == []


def test_assigned_queues_are_read_from_where_one_seeks(broker: mqtool.Broker) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        first, second, *_ = producer.queues("Orders")
        for body in BODIES[:10]:
            producer.send(ProducerMessage("Orders", body), first)
        producer.send(ProducerMessage("Orders", b"second"), second)
        with consumer(broker, auto_commit=False) as one:
            one.assign([first])
            assert one.assignment() == [first]
            one.seek(first, 7)
            assert polled(one, 3) == BODIES[7:10]
            one.seek_to_begin(first)
            assert polled(one, 10) == BODIES[:10]
            one.seek(first, 4)
            one.commit()
            until(lambda: one.committed(first) == 4)
            one.seek_to_end(first)
            assert one.poll(200) == []
            producer.send(ProducerMessage("Orders", b"new"), first)
            assert polled(one, 1) == [b"new"]
            with pytest.raises(UsageError, match="has offsets from 0 to 11, not 12"):
                one.seek(first, 12)
            with pytest.raises(UsageError, match="is not assigned to this consumer"):
                one.seek(second, 0)


def test_offsets_can_be_committed_by_queue_and_found_by_time(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    with consumer(broker) as one:
        queues = one.fetch_message_queues("Orders")
        one.assign(queues)
        polled(one, 100)
        one.commit({queues[0]: 5})
        until(lambda: one.committed(queues[0]) == 5)
        [message] = [one for one in mqtool.open_store(broker.store).messages() if one.body == b"50"]
        queue = MessageQueue("Orders", queues[0].broker_name, message.queue_id)
        assert one.offset_for_timestamp(queue, message.store_timestamp) <= message.queue_offset
        assert one.offset_for_timestamp(queue, message.store_timestamp + 1) > message.queue_offset - 25


def test_a_commit_for_a_queue_that_is_not_held_is_logged(
    broker: mqtool.Broker, caplog: pytest.LogCaptureFixture
) -> None:
    send(broker, BODIES)
    with consumer(broker) as one:
        first, second, *_ = one.fetch_message_queues("Orders")
        one.assign([first])
        polled(one, 1)
        one.commit({first: 1, second: 1})
        assert (one.committed(first), one.committed(second)) == (1, None)
    assert f"the offset of {second} is not committed: this consumer does not hold the queue" in caplog.messages


def test_of_paused_queues_nothing_is_pulled(broker: mqtool.Broker) -> None:
    send(broker, [b"before"])
    with consumer(broker) as one:
        queues = one.fetch_message_queues("Orders")
        one.pause(queues)
        one.assign(queues)
        assert one.poll(300) == []
        one.resume(queues)
        assert polled(one, 1) == [b"before"]


def test_no_more_is_pulled_ahead_than_the_thresholds_allow(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    with subscribed(broker, pull_threshold_for_all=20, pull_batch_size=5) as one:
        assert sorted(polled(one, 100)) == sorted(BODIES)


def test_queues_that_a_topic_gets_are_told(broker: mqtool.Broker, caplog: pytest.LogCaptureFixture) -> None:
    send(broker, [b"one"])
    told: list[list[MessageQueue]] = []
    told_later: list[list[MessageQueue]] = []

    async def later(_: str, queues: list[MessageQueue]) -> None:
        told_later.append(queues)

    with consumer(broker, topic_metadata_check_interval_millis=50, poll_name_server_interval_ms=50) as one:
        one.register_topic_message_queue_change_listener("Orders", lambda *_: one.fetch_message_queues("Orders"))
        one.register_topic_message_queue_change_listener("Orders", later)
        one.register_topic_message_queue_change_listener("Orders", lambda _, queues: told.append(queues))
        ask(broker.address, calls.put_topic(TopicConfig("Orders", 6, 6, 6, False, "SINGLE_TAG", 0, {})).command)
        until(lambda: [len(one[-1]) for one in (told, told_later) if one] == [6, 6])
        until(lambda: "a blocking call in the event loop of the clients would deadlock" in caplog.text)


def test_what_makes_no_sense_is_refused(broker: mqtool.Broker) -> None:
    one = consumer(broker)
    with pytest.raises(UsageError, match="start it first"):
        one.poll()
    one.subscribe("Orders")
    with pytest.raises(UsageError, match="this consumer subscribes to topics"):
        one.assign([])
    with one, pytest.raises(UsageError, match="is already running"):
        one.start()
    other = consumer(broker)
    other.assign([])
    with pytest.raises(UsageError, match="queues are assigned"):
        other.subscribe("Orders")
    with other, pytest.raises(NotFoundError, match="the topic Nowhere does not exist"):
        other.fetch_message_queues("Nowhere")


def test_a_commit_that_no_broker_takes_is_an_error() -> None:
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(mqtool.Broker())
        send(broker, [b"1"])
        with subscribed(broker, auto_commit=False) as one:
            assert polled(one, 1) == [b"1"]
            stack.close()
            with pytest.raises(MqtoolError):
                one.commit()


def test_the_secret_of_an_account_is_not_shown_with_the_options() -> None:
    options = LitePullConsumerOptions(access_key="reader", secret_key="12345678")
    assert "reader" in repr(options)
    assert "12345678" not in repr(options)


def test_who_wants_to_know_is_told_which_queues_come_and_go(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    told: list[tuple[str, int, int]] = []
    made: dict[int, LitePullConsumer] = {}

    def member(number: int) -> LitePullConsumer:
        def revoked(queues: list[MessageQueue]) -> None:
            made[number].commit()  # it still can
            told.extend(("revoked", number, queue.queue_id) for queue in queues)

        made[number] = subscribed(
            broker,
            auto_commit=False,
            on_assigned=lambda queues: told.extend(("assigned", number, queue.queue_id) for queue in queues),
            on_revoked=revoked,
        )
        return made[number]

    with member(1) as first:
        seen = [*polled(first, 100)]
        assert sorted(told) == [("assigned", 1, at) for at in range(4)]
        with member(2):
            until(lambda: len(told) == 8)
            moved = {at for what, number, at in told[4:] if (what, number) == ("revoked", 1)}
            assert len(moved) == 2
            assert {at for what, number, at in told[4:] if (what, number) == ("assigned", 2)} == moved
            assert committed(broker) == 100
        until(lambda: len(told) == 12)
        assert sorted(told[8:]) == sorted([("revoked", 2, at) for at in moved] + [("assigned", 1, at) for at in moved])
    assert sorted(told[12:]) == [("revoked", 1, at) for at in range(4)]
    assert sorted(seen) == sorted(BODIES)


def test_a_consumer_may_begin_where_it_likes_when_it_gets_a_queue(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    made: list[LitePullConsumer] = []

    def assigned(queues: list[MessageQueue]) -> None:
        for queue in queues:
            made[0].seek(queue, 20)

    made.append(subscribed(broker, on_assigned=assigned))
    with made[0] as one:
        assert {int(body) // 4 for body in polled(one, 20)} == {20, 21, 22, 23, 24}
        for queue in one.queues():
            one.seek(queue, 24)  # of which nobody is told
        assert {int(body) // 4 for body in polled(one, 4)} == {24}


def test_a_listener_of_queues_that_fails_stops_nothing(broker: mqtool.Broker) -> None:
    async def fails(_: list[MessageQueue]) -> None:
        raise SystemExit

    send(broker, BODIES)
    with subscribed(broker, on_assigned=fails, on_revoked=fails) as one:
        assert sorted(polled(one, 100)) == sorted(BODIES)
