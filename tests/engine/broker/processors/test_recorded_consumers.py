"""Recorded lives of consumers: what a real broker 5.3.3 answered them is what ours answers."""

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from mqtool.engine.broker.remoting_door import RemotingDoor
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import RemotingCommand
from tests.engine.broker.asking import Asking, body_of, broker_at_work
from tests.engine.store.live import NOW, of_record
from tests.traces import Recorded, recorded

CODES = {
    RequestCode.PULL_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CHECK_CLIENT_CONFIG,
}
HELD_MS = 60_000

Answered = dict[tuple[int, int], RemotingCommand]
"""Answers by connection and opaque."""


def records(body: bytes) -> list[bytes]:
    found = []
    while body:
        size = int.from_bytes(body[:4], "big")
        found.append(body[:size])
        body = body[size:]
    return found


def frames(name: str) -> list[Recorded]:
    return [frame for frame in recorded(name) if frame.server == "broker"]


def fill(asking: Asking, name: str) -> None:
    """Store the messages that the recorded broker had."""
    held = {}
    for frame in frames(name):
        if frame.direction == "<" and frame.fields["code"] == 0 and frame.fields.get("remark") == "FOUND":
            for record in records(frame.body):
                message, timestamp = of_record(record)
                held[timestamp, message.topic, message.queue_id, message.body] = message
    for (timestamp, *_), message in sorted(held.items()):
        asking.now = timestamp
        asking.append(message)
    for topic in {message.topic for message in held.values()}:
        asking.broker.topics.put([TopicConfig(topic, 2, 2, 6, False, "SINGLE_TAG", 0, {})], asking.now)


def replay(broker: RemotingDoor, name: str, start: int) -> tuple[Answered, list[tuple[int, RemotingCommand]]]:
    """Hand the recorded requests to a broker; return its answers, and what else it sends on which connection."""
    peers: dict[int, Peer] = {}
    numbers: dict[Peer, int] = {}
    answered: Answered = {}
    notes: list[tuple[int, RemotingCommand]] = []

    def keep(outgoing: Any) -> None:
        for peer, command in outgoing:
            if command.is_response:
                answered[numbers[peer], command.opaque] = command
            else:
                notes.append((numbers[peer], command))

    now = start
    for frame in frames(name):
        now = start + int(frame.fields["t"])
        keep(broker.tick(now))
        if frame.direction == ">" and frame.fields["code"] in CODES:
            peer = peers.setdefault(frame.connection, Peer(frame.connection, "192.0.2.2", 4000))
            numbers[peer] = frame.connection
            keep(broker.handle(frame.command, peer, now))
    keep(broker.tick(now + HELD_MS))
    return answered, notes


@pytest.mark.parametrize(
    "name",
    [
        "java-5.3.3-push",
        "java-4.9.7-push",
        "java-5.3.3-pull",
        "java-4.9.7-pull",
        "java-5.3.3-sql92",
        "java-5.3.3-push_two",
        "java-5.3.3-orderly",
        "java-4.9.7-orderly",
        "java-5.3.3-broadcast",
    ],
)
def test_a_recorded_consumer_gets_the_answers_that_it_got(name: str, tmp_path: Path) -> None:
    with broker_at_work(tmp_path, NOW) as asking:
        fill(asking, name)
        answered, notes = replay(asking.door, name, asking.now)

        opened = {
            (frame.connection, frame.fields["opaque"]): frame.fields["code"]
            for frame in frames(name)
            if frame.direction == ">"
        }
        seen = set()
        for frame in frames(name):
            key = frame.connection, frame.fields["opaque"]
            if frame.direction != "<" or not frame.fields["flag"] & 1 or opened[key] not in CODES:
                continue
            ours, theirs = answered.pop(key), frame.command
            seen.add(opened[key])
            if theirs.code == ResponseCode.SUBSCRIPTION_NOT_LATEST:  # the pull had overtaken a heartbeat in the broker
                assert ours.code == ResponseCode.PULL_NOT_FOUND
                continue
            assert (ours.code, ours.remark) == (theirs.code, theirs.remark)
            assert ours.ext_fields == theirs.ext_fields
            if opened[key] == RequestCode.PULL_MESSAGE:
                assert [of_record(one) for one in records(body_of(ours))] == [
                    of_record(one) for one in records(theirs.body)
                ]
            elif theirs.body:
                assert _in_any_order(ours.body) == _in_any_order(theirs.body)
            else:
                assert ours.body == b""
        assert seen >= {RequestCode.HEART_BEAT, RequestCode.PULL_MESSAGE, RequestCode.UNREGISTER_CLIENT}
        # What is left was never answered because the consumer went while its pulls were held.
        assert {opened[key] for key in answered} <= {
            RequestCode.PULL_MESSAGE,
            RequestCode.UPDATE_CONSUMER_OFFSET,  # sent as one-way: the server drops the answer
        }
        recorded_notes = [frame.connection for frame in frames(name) if frame.fields["code"] == 40]
        assert Counter(connection for connection, _ in notes) == Counter(recorded_notes)
        assert {note.code for _, note in notes} <= {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
        assert all(note.is_oneway for _, note in notes)


def _in_any_order(body: bytes) -> Any:
    table = orjson.loads(body)
    return {key: sorted(map(str, value)) for key, value in table.items()}
