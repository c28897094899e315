"""A recorded round of pops, acknowledgements, recalls and heartbeats: what a broker 5.3.3 answered, ours answers."""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import pytest

from mqtool.engine.broker.settings import BrokerSettings
from mqtool.errors import FormatError
from mqtool.formats.codes import RequestCode
from mqtool.formats.pop import CHECK_POINT_TAG, parse_ack
from mqtool.formats.properties import parse_properties
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.stored_message import StoredMessage, parse_stored
from mqtool.formats.topics import REVIVE_PREFIX, TIMER_TOPIC
from tests.engine.broker.asking import Asking, body_of, broker_at_work
from tests.engine.broker.test_transactions import messages
from tests.traces import Exchange, exchanges

NAME = "java-5.3.3-pop"
TIMES = ("popTime", "reviveQid", "startOffsetInfo", "msgOffsetInfo", "restNum")
"""Fields of a pop that depend on when it was answered; the recorded broker looks at those that wait now and then."""
UNSAID = "not set any response code"
"""Remark of some answers of RocketMQ without an error."""

Answered = tuple[Exchange, RemotingCommand | None]


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    with broker_at_work(tmp_path_factory.mktemp("pops")) as found:
        found.broker.configure(BrokerSettings(broker_name="broker-java"))
        yield found


@pytest.fixture(scope="module")
def answered(asking: Asking) -> list[Answered]:
    """Hand the recorded requests to our broker at the times they came; give each with our answer."""
    recorded = exchanges(NAME)
    first = next(one for one in recorded if one.code == RequestCode.SEND_MESSAGE_V2)
    start = int(first.request.command.ext_fields["g"]) - first.request.fields["t"]
    asking.now = start
    answers: dict[int, RemotingCommand] = {}
    for one in recorded:
        command = one.request.command
        if one.code == RequestCode.UPDATE_BROKER_CONFIG:
            asking.broker.configure(BrokerSettings(broker_name="broker-java", recall_enabled=True))
            continue
        keep(answers, until(asking, start + one.request.fields["t"] if not is_later(one) else pop_time(one)))
        if is_timed(one):
            keep(answers, until(asking, pop_time(one)))
        try:
            keep(answers, asking.door.handle(command, asking.client, asking.now))
        except FormatError:  # which the server answers with code 1
            answers[command.opaque] = command.answer(1)
    keep(answers, until(asking, asking.now + 20_000))
    return [(one, answers.get(one.request.command.opaque)) for one in recorded]


def until(asking: Asking, time: int) -> list[Any]:
    """Let the broker tick whenever something is due; return what it sends."""
    out: list[Any] = []
    while (due := asking.door.next_tick(asking.now)) <= time:
        asking.now = max(asking.now, due)
        out += asking.door.tick(asking.now)
    asking.now = max(asking.now, time)
    return out


def keep(answers: dict[int, RemotingCommand], outgoing: Any) -> None:
    answers |= {command.opaque: command for _, command in outgoing if command.is_response}


def pop_time(exchange: Exchange) -> int:
    assert exchange.answer is not None
    return int(exchange.answer.command.ext_fields["popTime"])


def is_held(exchange: Exchange) -> bool:
    """Tell whether a request had to wait."""
    return int(exchange.request.command.ext_fields.get("pollTime", 0)) > 0


def is_later(exchange: Exchange) -> bool:
    """Tell whether a pop waited for messages that came back; here it comes when the recorded one was answered."""
    fields = exchange.request.command.ext_fields
    return is_held(exchange) and fields["topic"] in ("PopOne", "PopOrder")


def is_timed(exchange: Exchange) -> bool:
    """Tell whether the answer says exactly when the request came."""
    answer = exchange.answer
    return (
        (is_later(exchange) or not is_held(exchange))
        and answer is not None
        and int(answer.command.ext_fields.get("popTime", 0)) > 0
    )


def has_chance(exchange: Exchange) -> bool:
    """Tell whether the recorded broker chose a queue to begin with by chance, and there were several."""
    return exchange.code == RequestCode.POP_MESSAGE and exchange.request.command.ext_fields["topic"] == "PopFour"


def records(command: RemotingCommand) -> list[StoredMessage]:
    found, body = [], body_of(command)
    while body:
        size = int.from_bytes(body[:4], "big")
        found.append(parse_stored(body[:size]))
        body = body[size:]
    return found


def essence(stored: StoredMessage) -> tuple[Any, ...]:
    """Return what a consumer sees of a message, but for when and where it was stored."""
    message = stored.message
    pairs = parse_properties(message.properties)
    pairs.pop("POP_CK", None)
    return message.topic, message.queue_id, message.body, message.reconsume_times, message.flag, pairs


def in_any_order(found: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(found, key=str)


def test_every_recorded_request_has_the_answer_that_it_had(answered: list[Answered]) -> None:
    compared = set()
    for one, ours in answered:
        if one.answer is None or one.code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.PULL_MESSAGE):
            continue
        theirs = one.answer.command
        assert ours is not None, one.request.command
        assert ours.code == theirs.code, (one.request.command, ours)
        fields, known = dict(ours.ext_fields), dict(theirs.ext_fields)
        if has_chance(one) and not is_held(one):
            for name in TIMES[2:]:
                fields[name], known[name] = ("" for _ in range(2))
        for name in (*(TIMES if not is_timed(one) else ()), "msgId", "queueOffset", "reviveQid"):
            if name in known:
                assert fields.pop(name) is not None
                known.pop(name)
        if one.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:  # of a pop in order: how long since then
            fields["invisibleTime"] = known["invisibleTime"] = ""
        assert fields == known, one.request.command
        compared.add(one.code)
    assert compared >= {
        *(RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE, RequestCode.PEEK_MESSAGE),
        *(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.NOTIFICATION, RequestCode.POLLING_INFO),
        *(RequestCode.RECALL_MESSAGE, RequestCode.HEART_BEAT, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
        *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.SET_MESSAGE_REQUEST_MODE),
    }


@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE])
def test_the_messages_are_those_that_were_given_out(answered: list[Answered], code: RequestCode) -> None:
    ours: dict[tuple[str, str, bool], list[tuple[Any, ...]]] = {}
    theirs: dict[tuple[str, str, bool], list[tuple[Any, ...]]] = {}
    for one, answer in answered:
        if one.code == code and one.answer is not None and answer is not None:
            fields = one.request.command.ext_fields
            key = fields["topic"], fields["consumerGroup"], is_held(one)
            ours.setdefault(key, []).extend(map(essence, records(answer)))
            theirs.setdefault(key, []).extend(map(essence, records(one.answer.command)))

    assert {key: in_any_order(found) for key, found in ours.items()} == {
        key: in_any_order(found) for key, found in theirs.items()
    }


def test_who_consumes_what_how_is_told_alike(answered: list[Answered]) -> None:
    codes = (RequestCode.QUERY_ASSIGNMENT, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    for one, ours in answered:
        if one.code in codes and ours is not None and one.answer is not None:
            mine, known = orjson.loads(ours.body), orjson.loads(one.answer.body)
            if one.code == RequestCode.QUERY_ASSIGNMENT:
                mine, known = (sorted(map(str, body["messageQueueAssignments"])) for body in (mine, known))
            assert mine == known


def test_the_revive_log_has_the_form_of_the_recorded_one(answered: list[Answered], asking: Asking) -> None:
    exact = {pop_time(one) for one, _ in answered if is_timed(one) and not is_held(one) and not has_chance(one)}
    recorded: dict[str, list[StoredMessage]] = {}
    for one, _ in answered:
        if one.code == RequestCode.PULL_MESSAGE and one.answer is not None:
            recorded.setdefault(one.request.command.ext_fields["topic"], []).extend(records(one.answer.command))
    for topic in (TIMER_TOPIC, f"{REVIVE_PREFIX}DefaultCluster"):
        ours = [
            stored
            for name, queue_id in asking.store.queues()
            if name == topic
            for stored in messages(asking, topic, queue_id)
        ]
        theirs = in_any_order(_form(stored) for stored in recorded[topic] if _time(stored) in exact)
        assert len(theirs) >= 5
        assert in_any_order(_form(stored) for stored in ours if _time(stored) in exact) == theirs


def _time(stored: StoredMessage) -> int:
    body = stored.message.body
    return int(orjson.loads(body)["pt"]) if body.startswith(b"{") else 0


def _form(stored: StoredMessage) -> tuple[Any, ...]:
    """Return what a broker reads in a message of the log, but for when it was moved there."""
    message = stored.message
    pairs = parse_properties(message.properties)
    for name in ("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"):
        pairs.pop(name, None)
    if pairs["TAGS"] == CHECK_POINT_TAG:
        return message.body, message.queue_id, sorted(pairs.items())
    # One message of several acknowledged at once has another tag in RocketMQ, and a key that others share.
    del pairs["TAGS"], pairs["UNIQ_KEY"]
    return parse_ack(message.body), message.queue_id, sorted(pairs.items())
