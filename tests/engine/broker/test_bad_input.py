"""What no honest client sends: every request fails with an answer of its own, and the broker and its store stay sound.

``tests/campaigns/fuzz.py`` sends a million frames to a process.
"""

import contextlib
import random
import re
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.broker.topics import MAX_QUEUES
from mqtool.engine.name_server.name_server import NameServer
from mqtool.engine.name_server.remoting_door import NameServerDoor
from mqtool.engine.name_server.settings import NameServerSettings
from mqtool.engine.remoting.connection import Connection
from mqtool.engine.remoting.server import Handler
from mqtool.errors import FormatError, MqtoolError
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import Outgoing, RemotingCommand, frame_buffers
from tests import bad_input
from tests.engine.broker.asking import Asking, broker_at_work
from tests.engine.store.live import NOW, new_message
from tests.frames import parse_frame

PEERS = [Peer(number, "192.0.2.1", 4000 + number) for number in range(8)]


def sent(outgoing: Iterable[Outgoing]) -> list[RemotingCommand]:
    """Return what goes out, as whoever receives it reads it."""
    return [parse_frame(b"".join(frame_buffers(command))) for _, command in outgoing]


def feed(rules: Handler, data: bytes, peer: Peer, now: int) -> list[RemotingCommand]:
    """Give bytes to a handler as a server does; only what a server expects may be raised."""
    connection = Connection()
    connection.receive(data)
    out: list[RemotingCommand] = []
    with contextlib.suppress(FormatError):
        for command in connection.commands():
            try:
                out += sent(rules.handle(command, peer, now))
            except MqtoolError:
                out.append(command.answer(ResponseCode.SYSTEM_ERROR))
    return out


def work(rules: Handler, chance: random.Random, frames: int) -> None:
    """Have clients send frames that are wrong, come and go, while time passes."""
    now = NOW
    for _ in range(frames):
        peer = chance.choice(PEERS)
        feed(rules, bad_input.frame(chance), peer, now)
        if chance.random() < 0.1:
            feed(rules, bad_input.stream_end(chance), peer, now)
            sent(rules.closed(peer, now))
        if chance.random() < 0.1:
            now += chance.choice([10, 1000, 30_000])
            sent(rules.tick(now))
            rules.next_tick(now)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_that_comes_disturbs_a_broker(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    with broker_at_work(tmp_path_factory.mktemp("store"), may_find=bad_input.FINDINGS) as asking:
        work(asking.door, random.Random(seed), 60)

        assert asking.ask(bad_input.GOOD.code).code == ResponseCode.SUCCESS


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_that_comes_disturbs_a_name_server(seed: int) -> None:
    rules = NameServerDoor(NameServer(NameServerSettings(), NOW))
    work(rules, random.Random(seed), 60)

    [(_, answer)] = rules.handle(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), PEERS[0], NOW)
    assert answer.code == ResponseCode.SUCCESS


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(0))
def test_a_frame_cut_anywhere_is_no_command(seed: int, cut: int) -> None:
    whole = bad_input.frame(random.Random(seed))
    connection = Connection()
    connection.receive(whole[: cut % len(whole)])

    assert [*connection.commands()] == []


@pytest.mark.parametrize("name", ["../../outside", "/outside", "x" * 5000, "a\0b", ".", ".."])
def test_a_topic_to_delete_leads_nowhere_outside_the_store(name: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with broker_at_work(tmp_path / "store") as asking:
        asking.append(new_message("T"))
        asking.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name.replace("/outside", str(outside)))

    assert outside.exists()


@pytest.mark.parametrize("field", ["readQueueNums", "writeQueueNums"])
def test_nobody_makes_topics_of_countless_queues(field: str, tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        most = asking.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **{**_TOPIC, field: MAX_QUEUES})
        more = asking.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **{**_TOPIC, field: MAX_QUEUES + 1})
        answers = asking.handle(RequestCode.GET_TOPIC_STATS_INFO, topic="T")
        while not answers:
            answers = [*asking.door.tick(NOW)]
        [(_, stats)] = answers

    assert (most.code, more.code, stats.code) == (0, ResponseCode.INVALID_PARAMETER, 0)
    assert f"more than {MAX_QUEUES:,} queues" in (more.remark or "")


@pytest.mark.parametrize("count", [MAX_QUEUES + 1, -5, "7", [1]])
def test_nobody_makes_groups_with_countless_retry_queues(count: object, tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        body = orjson.dumps({"groupName": "G7", "retryQueueNums": count})
        answer = asking.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        known = asking.broker.groups.get("G7")

    assert (answer.code, known) == (ResponseCode.INVALID_PARAMETER, None)
    assert re.search("retryQueueNums", answer.remark or "")


@pytest.mark.parametrize(
    "body",
    [
        {"acks": True},
        {"acks": [5]},
        {"acks": [{"c": "G", "t": ["T"], "so": 0, "pt": 0, "q": 0, "rq": 0, "it": 0, "b": ""}]},
        {"acks": [{"c": "G", "t": "T", "so": [], "pt": 0, "q": 0, "rq": 0, "it": 0, "b": ""}]},
    ],
)
def test_acknowledgements_that_are_none_do_nothing(body: object, tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        end = asking.store.log.end_offset
        command = RemotingCommand(RequestCode.BATCH_ACK_MESSAGE, body=orjson.dumps(body))
        with contextlib.suppress(FormatError):
            assert len(answers(asking, command)) == 1

        assert asking.store.log.end_offset == end


@pytest.mark.parametrize("offset", [2**63 - 1, -(2**63)])
def test_offsets_that_nobody_has_come_to_can_be_told(offset: int, tmp_path: Path) -> None:
    with broker_at_work(tmp_path, may_find=bad_input.FINDINGS) as asking:
        asking.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **_TOPIC)
        for queue_id in (0, 1):
            fields: dict[str, Any] = {
                "consumerGroup": "TOOLS_CONSUMER",
                "topic": "T",
                "queueId": queue_id,
                "commitOffset": offset,
            }
            asking.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **fields)
        answer = asking.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")

    assert answer.code == ResponseCode.SUCCESS
    assert b'"totalDiff":%d,' % (-2 * max(offset, 0)) in answer.body


PULL = {
    "consumerGroup": "G",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "1",
    "maxMsgNums": "32",
    "sysFlag": "6",
    "commitOffset": "0",
    "suspendTimeoutMillis": "20000",
    "subVersion": "0",
    "subscription": "*",
}
POP = {
    "consumerGroup": "G",
    "topic": "T",
    "queueId": "1",
    "maxMsgNums": "32",
    "invisibleTime": "60000",
    "pollTime": "20000",
    "bornTime": str(NOW),
    "initMode": "0",
}


@pytest.mark.parametrize(
    ("code", "fields"),
    [(RequestCode.PULL_MESSAGE, PULL), (RequestCode.POP_MESSAGE, POP), (RequestCode.NOTIFICATION, POP)],
)
def test_what_waits_keeps_nothing_that_its_answer_does_not_need(
    code: int, fields: dict[str, str], tmp_path: Path
) -> None:
    with broker_at_work(tmp_path) as asking:
        asking.append(new_message("T"))
        asking.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **_TOPIC)
        tracemalloc.start()
        for opaque in range(50):
            command = RemotingCommand(code, 0, opaque, {**fields, "x": "y" * 100_000}, bytes(100_000))
            assert [*asking.door.handle(command, asking.client, NOW)] == []
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert kept < 1_000_000
        later = []
        while asking.broker.room.next_tick(NOW + 30_000) is not None:
            later += [command for _, command in asking.door.tick(NOW + 30_000) if command.is_response]
        assert {command.opaque for command in later} == {*range(50)}


_TOPIC: dict[str, Any] = {"topic": "T", "defaultTopic": "TBW102", "perm": 6, "topicFilterType": "SINGLE_TAG"}
_TOPIC |= {"readQueueNums": 2, "writeQueueNums": 2}


def test_the_requests_reach_the_work_of_the_broker(tmp_path: Path) -> None:
    """Otherwise the tests above try nothing but refusals."""
    chance, codes, stored = random.Random(1), set(), 0
    with broker_at_work(tmp_path, may_find=bad_input.FINDINGS) as asking:
        for _ in range(3000):
            command = bad_input.request(chance)
            with contextlib.suppress(MqtoolError):
                for answer in answers(asking, command):
                    codes.add((command.code, answer.code))
        stored = asking.store.log.end_offset

    assert stored > 5000
    assert len({code for code, answered in codes if answered == 0}) > 25
    assert len({answered for _, answered in codes}) > 10


def answers(asking: Asking, command: RemotingCommand) -> list[RemotingCommand]:
    """Return the answers to a command among what is sent."""
    found = [answer for _, answer in asking.door.handle(command, PEERS[0], asking.now)]
    return [answer for answer in found if answer.is_response and answer.opaque == command.opaque]
