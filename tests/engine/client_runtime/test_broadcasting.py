"""Broadcasting consumers go on where they were: the offsets in their file outlast a restart and a rebalance."""

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool import ConsumeFrom, MessageModel, PushConsumerOptions
from mqtool.engine.client_runtime.offset_store import FileOffsets
from tests.engine.client_runtime.test_push_consumer import Listener, consumer, send, until


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        yield running


@pytest.mark.parametrize("begin", [ConsumeFrom.FIRST_OFFSET, ConsumeFrom.LAST_OFFSET])
def test_a_broadcasting_consumer_goes_on_where_it_was_after_a_restart(
    begin: ConsumeFrom, broker: mqtool.Broker, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "message_model": MessageModel.BROADCASTING,
        "offsets_folder": tmp_path,
        "consume_from_where": begin,
    }
    send(broker, [b"before"] * 8)
    first = Listener()
    with consumer(broker, first, **options) as running:
        if begin is ConsumeFrom.LAST_OFFSET:
            until(lambda: len(running.queues()) == 4)
            send(broker, [b"before"] * 8)
        first.wait_for(8)

    send(broker, [b"while it was away"] * 8)
    second = Listener()
    with consumer(broker, second, **options):
        assert second.wait_for(8) == [b"while it was away"] * 8


def test_a_broadcasting_consumer_that_began_at_the_end_goes_on_there_though_nothing_came(
    broker: mqtool.Broker, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "message_model": MessageModel.BROADCASTING,
        "offsets_folder": tmp_path,
        "consume_from_where": ConsumeFrom.LAST_OFFSET,
    }
    send(broker, [b"before"] * 8)
    first, second = Listener(), Listener()
    with consumer(broker, first, **options) as running:
        until(lambda: len(running.queues()) == 4)
    send(broker, [b"while it was away"] * 8)
    with consumer(broker, second, **options):
        assert second.wait_for(8) == [b"while it was away"] * 8
    assert not first.seen


def test_a_broadcasting_consumer_goes_on_where_it_was_when_a_queue_comes_back(
    broker: mqtool.Broker, tmp_path: Path
) -> None:
    listener = Listener()
    options = PushConsumerOptions(
        message_model=MessageModel.BROADCASTING, offsets_folder=tmp_path, consume_from_where=ConsumeFrom.FIRST_OFFSET
    )
    send(broker, [b"before"] * 8)
    running = mqtool.PushConsumer("G", listener, broker.name_server_address, options)
    running.subscribe("Orders")
    running.subscribe("Others")
    with running:
        listener.wait_for(8)
        running.unsubscribe("Orders")
        until(lambda: not [one for one in running.queues() if one.topic == "Orders"])
        send(broker, [b"while it was away"] * 8)
        running.subscribe("Orders")
        listener.wait_for(16)
    assert collections.Counter(one.body for one in listener.seen) == {b"before": 8, b"while it was away": 8}


@pytest.mark.parametrize("text", ["", "[]", '{"offsetTable":{"{\\"topic\\":\\"T\\",\\"brokerName\\":\\"b\\"}":"x"}}'])
def test_a_file_of_offsets_that_cannot_be_read_is_passed_over_for_the_one_before(text: str, tmp_path: Path) -> None:
    queue = mqtool.MessageQueue("T", "b", 0)
    before = FileOffsets("client", "G", tmp_path)
    for offset in (5, 6):  # the first becomes the one before
        before.update(queue, offset, increase_only=True)
        before._write()
    before.path.write_text(text)
    assert FileOffsets("client", "G", tmp_path).known(queue) == 5
