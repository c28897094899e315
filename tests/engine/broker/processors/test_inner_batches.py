"""Topics whose queues keep several messages in a unit, held against the store of a broker of 5.3.3."""

from pathlib import Path
from typing import Any

import pytest

from mqtool.formats import inner_batch
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.message import message_of
from mqtool.formats.peer import Peer
from mqtool.formats.properties import build_properties, parse_properties
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.stored_message import StoredMessage, parse_stored
from tests.engine.broker.asking import Asking, body_of, broker_at_work
from tests.engine.broker.processors.test_pull import fields
from tests.engine.broker.processors.test_send import send
from tests.engine.store.live import NOW
from tests.engine.store.test_message_store import settings_of
from tests.formats.golden_bytes import records
from tests.golden import golden_store

NAME = "batchcq-533-clean"
OF_BROKER = ("INNER_BASE", "INNER_NUM", "MSG_REGION", "TRACE_ON", "CLUSTER")


def make_topic(asking: Asking, topic: str, attributes: str) -> RemotingCommand:
    return asking.ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=2,
        writeQueueNums=2,
        perm=6,
        topicFilterType="SINGLE_TAG",
        order="false",
        attributes=attributes,
    )


def send_again(asking: Asking, recorded: StoredMessage) -> RemotingCommand:
    """Send what led to a recorded message, from where and when it came."""
    message, *_, asking.now = recorded
    pairs = parse_properties(message.properties)
    given: dict[str, Any] = {
        "queueId": message.queue_id,
        "bornTimestamp": message.born_timestamp,
        "flag": message.flag,
        "properties": build_properties(
            {name: value for name, value in pairs.items() if name not in OF_BROKER}
        ).decode(),
        "batch": "true" if "INNER_NUM" in pairs else "false",
    }
    asking.client = Peer(1, "127.0.0.1", message.born_host[1])
    return send(asking, message.topic, message.body, **given)


def bodies_of(record: bytes | memoryview) -> list[bytes]:
    message = message_of(bytes(record), 0)
    messages = inner_batch.inner_messages(message) if inner_batch.is_inner_batch(message) else [message]
    return [one.body for one in messages]


def pulled(asking: Asking, topic: str, queue_id: int) -> list[bytes]:
    found: list[bytes] = []
    while True:
        at = {"topic": topic, "queueId": queue_id, "queueOffset": len(found)}
        wanted = {"sysFlag": 4, "subscription": "*", "expressionType": "TAG"}
        answer = asking.ask(RequestCode.PULL_MESSAGE, **fields(**at, **wanted))
        if answer.code:
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            return found
        body = body_of(answer)
        while body:
            size = int.from_bytes(body[:4], "big")
            found += bodies_of(body[:size])
            body = body[size:]


def test_batches_of_a_real_client_are_stored_and_served_as_a_recorded_broker_did(tmp_path: Path) -> None:
    recorded = [(told["phy"], parse_stored(record)) for told, record in records(NAME)]
    expected: dict[tuple[str, int], list[bytes]] = {}
    with broker_at_work(tmp_path, NOW, (), **settings_of(NAME)) as asking:
        asking.broker.listens_at("127.0.0.1:20911")
        for topic in ("Inner", "Inner2"):
            assert make_topic(asking, topic, "+queue.type=BatchCQ").code == 0
        for at, theirs in recorded:
            answer = send_again(asking, theirs)
            record = asking.store.log.record(at)
            ours, pairs = parse_stored(record), parse_properties(theirs.message.properties)
            assert answer.ext_fields.get("batchUniqId") == (pairs["UNIQ_KEY"] if "INNER_NUM" in pairs else None)
            assert parse_properties(ours.message.properties) == pairs
            ours.message.properties = theirs.message.properties  # in another order
            assert ours == theirs
            expected.setdefault((ours.message.topic, ours.message.queue_id), []).extend(bodies_of(record))
        served = {place: pulled(asking, *place) for place in expected}

    assert served == expected
    for path in golden_store(NAME).glob("batchconsumequeue/**/*"):
        if path.is_file():
            assert (tmp_path / path.relative_to(golden_store(NAME))).read_bytes() == path.read_bytes()


def test_a_broker_that_starts_again_goes_on_with_such_queues(tmp_path: Path) -> None:
    _, first, *_ = (parse_stored(record) for _, record in records(NAME))
    with broker_at_work(tmp_path) as asking:
        make_topic(asking, first.message.topic, "+queue.type=BatchCQ")
        send_again(asking, first)
    with broker_at_work(tmp_path) as asking:
        again = send_again(asking, first)
        elsewhere = send(asking, first.message.topic, queueId=1)
        bodies = pulled(asking, first.message.topic, 0)
        queues = [asking.store.queue(first.message.topic, queue_id) for queue_id in (0, 1)]
        assert all(queue and queue.is_batch for queue in queues)

    assert (again.ext_fields["queueOffset"], elsewhere.ext_fields["queueOffset"]) == ("4", "0")
    assert len(bodies) == 8
    assert bodies[:4] == bodies[4:]


@pytest.mark.parametrize("before", ["", "+queue.type=BatchCQ"])
def test_a_topic_keeps_its_type_of_queue(before: str, tmp_path: Path) -> None:
    after = "-queue.type" if before else "+queue.type=BatchCQ"
    with broker_at_work(tmp_path) as asking:
        make_topic(asking, "T", before)
        refused = make_topic(asking, "T", after)
        assert (refused.code, "queue.type of the existing topic T cannot be changed" in str(refused.remark)) == (
            1,
            True,
        )
        assert make_topic(asking, "T", before).code == 0
