"""What a producer sends, against what Java's sent when it was recorded; and what it makes of the answers."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from mqtool.engine.client import sending
from mqtool.engine.client.outgoing import Packed, ProducerMessage, pack
from mqtool.engine.client.sending import SendResult, SendStatus, TransactionState
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.codes import RequestCode
from mqtool.formats.compression import decompress
from mqtool.formats.headers import CheckTransaction, EndTransaction, Send, build_header, parse_header
from mqtool.formats.new_message import NewMessage, split_batch
from mqtool.formats.properties import parse_properties
from mqtool.formats.remoting import RemotingCommand
from tests.engine.client.test_outgoing import pack_batch
from tests.traces import exchanges

VERSIONS = ("4.9.7", "5.3.3")
OWN = ("TAGS", "KEYS", "DELAY", "UNIQ_KEY", "WAIT", "TRAN_MSG", "PGROUP")


def sends(version: str, *flows: str) -> Iterator[tuple[RemotingCommand, RemotingCommand | None]]:
    """Yield the recorded sends and their answers."""
    for flow in flows:
        for one in exchanges(f"java-{version}-{flow}", RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            yield one.request.command, one.answer.command if one.answer else None


def message_of(topic: str, flag: int, body: bytes, pairs: dict[str, str]) -> ProducerMessage:
    """Return the message that an application must have given."""
    return ProducerMessage(
        topic,
        body,
        tags=pairs.get("TAGS", ""),
        keys=pairs.get("KEYS", ""),
        delay_level=int(pairs.get("DELAY", 0)),
        flag=flag,
        wait_store_ok=pairs["WAIT"] == "true",
        properties={name: value for name, value in pairs.items() if name not in OWN},
        unique_key=pairs["UNIQ_KEY"],
    )


def ask(packed: Packed, header: Send) -> RemotingCommand:
    queue = MessageQueue(header.topic, header.broker_name or "", header.queue_id)
    count = header.default_topic_queue_nums
    return sending.send(packed, queue, header.producer_group, header.born_timestamp, count).command


def comparable(command: RemotingCommand) -> tuple[Any, ...]:
    """Return all that a broker makes of a send: the order of properties means nothing."""
    fields = {**command.ext_fields}
    properties = parse_properties(fields.pop("i").encode())
    return command.code, fields, properties, decompress(command.body, int(fields["f"]))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_is_sent_as_java_sends_it(version: str) -> None:
    flows = ("producer", "transaction")
    recorded = [request for request, _ in sends(version, *flows)]
    assert len(recorded) == 8
    for request in recorded:
        header = parse_header(Send, request.ext_fields, short=True)
        pairs = parse_properties(header.properties.encode())
        body = decompress(request.body, header.sys_flag)
        more = sending.transaction_properties(header.producer_group) if "TRAN_MSG" in pairs else None
        ours = ask(pack(message_of(header.topic, header.flag, body, pairs), header.topic, more=more), header)
        assert comparable(ours) == comparable(request)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_is_sent_as_java_sends_it(version: str) -> None:
    [(request, _)] = sends(version, "batch")
    header = parse_header(Send, request.ext_fields, short=True)
    elements = split_batch(NewMessage(header.topic, 0, request.body))
    messages = [message_of(header.topic, one.flag, one.body, parse_properties(one.properties)) for one in elements]
    unique_key = parse_properties(header.properties.encode()).get("UNIQ_KEY", "")  # that of a batch came with 5.x
    ours = ask(pack_batch(messages, header.topic, unique_key), header)
    assert comparable(ours)[:3] == comparable(request)[:3]
    again = split_batch(NewMessage(header.topic, 0, ours.body))
    assert [(one.flag, one.body, parse_properties(one.properties)) for one in again] == [
        (one.flag, one.body, parse_properties(one.properties)) for one in elements
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_says_where_the_message_is(version: str) -> None:
    for request, answer in sends(version, "producer", "batch"):
        if answer is None:  # oneway
            continue
        header = parse_header(Send, request.ext_fields, short=True)
        queue = MessageQueue(header.topic, "broker-a", header.queue_id)
        result = sending.send(Packed(header.topic, b"", "", unique_key="K"), queue, "G", 0, 4).read(answer)
        fields = answer.ext_fields
        assert result == SendResult(
            SendStatus.SEND_OK, "K", queue, int(fields["queueOffset"]), fields["msgId"], fields.get("transactionId")
        )


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_a_message_that_is_stored_and_not_safe_yet_is_no_failure(code: int, status: SendStatus) -> None:
    recorded = next(answer for _, answer in sends(VERSIONS[0], "producer") if answer)
    answer = dataclasses.replace(recorded, code=code)
    queue = MessageQueue("T", "broker-a", 0)

    result = sending.send(Packed("T", b"", "", unique_key="K"), queue, "G", 0, 4).read(answer)

    assert (result.status, result.message_id) == (status, "K")
    assert result.queue_offset == int(answer.ext_fields["queueOffset"])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_transaction_ends_as_java_ends_it(version: str) -> None:
    ends: list[RemotingCommand] = []
    checks: list[RemotingCommand] = []
    results: dict[str, SendResult] = {}
    for one in exchanges(f"java-{version}-transaction"):
        request, answer = one.request.command, one.answer.command if one.answer else None
        if request.code == RequestCode.SEND_MESSAGE_V2 and answer:
            header = parse_header(Send, request.ext_fields, short=True)
            key = parse_properties(header.properties.encode())["UNIQ_KEY"]
            queue = MessageQueue(header.topic, "broker-a", header.queue_id)
            results[key] = sending.send(Packed(header.topic, b"", "", unique_key=key), queue, "G", 0, 4).read(answer)
        elif request.code == RequestCode.END_TRANSACTION:
            ends.append(request)
        elif request.code == RequestCode.CHECK_TRANSACTION_STATE:
            checks.append(request)
    assert len(ends) >= 4 and checks
    for recorded in ends:
        said = parse_header(EndTransaction, recorded.ext_fields)
        state = TransactionState(said.commit_or_rollback)
        if said.from_transaction_check:
            asked = next(
                asked
                for asked in (parse_header(CheckTransaction, check.ext_fields) for check in checks)
                if asked.commit_log_offset == said.commit_log_offset
            )
            ours = sending.answer_check(said.producer_group, asked, said.msg_id, state)
        else:
            sent = results[said.msg_id]
            ours = sending.end_transaction(said.producer_group, sent, sent.queue.topic, state)
        theirs = {name: value for name, value in recorded.ext_fields.items() if name in build_header(said)}
        assert {**ours.ext_fields, **theirs} == ours.ext_fields
        assert ours.ext_fields.keys() - theirs.keys() <= {"topic"}  # which 4.9 does not tell
