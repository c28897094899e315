"""``mqtool consume``: a member of a group on the command line, and a look that nobody notices."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import mqtool
from mqtool import ConsumeFrom, ProducerMessage
from mqtool.commands._output import Output
from mqtool.errors import Status
from tests.commands.running import Ran, run
from tests.engine.client_runtime.test_push_consumer import topics_of, until

BODIES = ["one", "two", "three", "four", "five"]
IDLE = ("--idle", "300ms")


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker(settings={"enablePropertyFilter": True}) as running:
        yield running


def send(broker: mqtool.Broker, bodies: Sequence[str], queue: int | None = None, **more: Any) -> None:
    with mqtool.Producer("P", broker.name_server_address) as producer:
        place = None if queue is None else producer.queues("Orders")[queue]
        for body in bodies:
            producer.send(ProducerMessage("Orders", body.encode(), **more), place)


def consume(broker: mqtool.Broker, *arguments: str) -> Ran:
    ran = run("consume", "-n", broker.name_server_address, "--topic", "Orders", *arguments)
    assert ran.status == Status.OK, ran.remarks
    return ran


def bodies(ran: Ran) -> list[str]:
    return sorted(row["body"] for row in ran.rows)


@pytest.mark.parametrize("kind", [(), ("--orderly",)])
def test_what_a_group_has_consumed_does_not_come_again(kind: tuple[str, ...], broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    as_group = ("--group", "G", "--begin", "first", *kind)

    some = consume(broker, *as_group, "--limit", "2")
    rest = consume(broker, *as_group, "--limit", "3")
    none = consume(broker, *as_group, *IDLE)

    assert (len(some.rows), len(rest.rows), none.rows) == (2, 3, [])
    assert sorted(bodies(some) + bodies(rest)) == sorted(BODIES)
    assert some.remarks == "mqtool: 2 messages consumed\n"


def test_a_look_shows_what_would_come_and_leaves_it(broker: mqtool.Broker) -> None:
    send(broker, BODIES)
    consumed = bodies(consume(broker, "--group", "G", "--begin", "first", "--limit", "2"))

    of_group = consume(broker, "--peek", "--group", "G", "--limit", "3")
    of_all = consume(broker, "--peek", "--begin", "first", "--limit", "5")
    of_new = consume(broker, "--peek", *IDLE)

    assert sorted(bodies(of_group) + consumed) == sorted(BODIES)
    assert (bodies(of_all), of_new.rows) == (sorted(BODIES), [])
    assert of_all.remarks == "mqtool: 5 messages shown\n"
    assert bodies(consume(broker, "--group", "G", "--limit", "3")) == bodies(of_group)


@pytest.mark.parametrize("kind", [("--group", "G"), ("--group", "G", "--orderly"), ("--peek",)])
def test_a_topic_that_is_not_there_is_told(kind: tuple[str, ...], broker: mqtool.Broker) -> None:
    send(broker, ["one"])

    ran = run("consume", "-n", broker.name_server_address, "--topic", "Order", *kind, *IDLE)

    assert (ran.status, ran.output) == (Status.NO_INPUT, "")
    assert "the topic Order does not exist; similar: Orders" in ran.remarks


@pytest.mark.parametrize("tag", ["a", "a" * 100])
def test_body_and_keys_are_shown_at_80_columns(
    tag: str, broker: mqtool.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Output, "width", 80)
    send(broker, ["short", "the body that counts"], 0, tags=tag, keys=["key-of-the-order"])

    ran = consume(broker, "--peek", "--begin", "first", "--limit", "2", "-o", "table")

    assert all(len(line) <= 80 for line in ran.output.splitlines())
    for said in ("the body that counts", "key-of-the-order"):
        assert said in ran.output


@pytest.mark.parametrize(
    "command", [("pull", "--queue", "0"), ("find", "--limit", "2"), ("find", "--key", "key-of-the-order")]
)
def test_other_looks_show_the_body_at_80_columns_too(
    command: tuple[str, ...], broker: mqtool.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Output, "width", 80)
    name = "Orders_of_customers_in_the_north_and_in_the_south"
    with mqtool.Producer("P", broker.name_server_address) as producer:
        message = ProducerMessage(name, b"a body that counts", tags="t" * 100, keys=["key-of-the-order"])
        producer.send(message, producer.queues(name)[0])

    ran = run(*command, "-n", broker.name_server_address, "--topic", name, "-o", "table")

    assert all(len(line) <= 80 for line in ran.output.splitlines())
    assert "a body that counts" in ran.output
    assert "key-of-the-order" in ran.output or "--limit" in command


@pytest.mark.parametrize("group", [("--group", "G"), ("--peek",)])
@pytest.mark.parametrize("chosen", [("--filter", "A || C"), ("--sql", "a > 3")])
def test_tags_and_sql_choose(group: tuple[str, ...], chosen: tuple[str, ...], broker: mqtool.Broker) -> None:
    send(broker, ["other"], 0, tags="B", properties={"a": "1"})
    send(broker, ["wanted"], 0, tags="A", properties={"a": "5"})

    assert bodies(consume(broker, *group, *chosen, "--begin", "first", "--limit", "1")) == ["wanted"]


def test_a_message_that_a_member_sent_back_comes_here(broker: mqtool.Broker) -> None:
    send(broker, ["one"])
    later = mqtool.PushConsumerOptions(consume_from_where=ConsumeFrom.FIRST_OFFSET)

    def sent_back(_messages: Any, context: mqtool.ConsumeContext) -> mqtool.ConsumeStatus:
        context.delay_level = 1
        return mqtool.ConsumeStatus.LATER

    member = mqtool.PushConsumer("G", sent_back, broker.name_server_address, later)
    member.subscribe("Orders")
    with member:
        until(lambda: "SCHEDULE_TOPIC_XXXX" in topics_of(broker))

    [row] = consume(broker, "--group", "G", "--limit", "1").rows

    assert (row["topic"], row["body"]) == ("Orders", "one")
    assert row["reconsume_times"] >= 1
    assert consume(broker, "--group", "G", *IDLE).rows == []


def test_a_dead_letter_that_was_sent_again_moves_the_group_in_its_retries_only(broker: mqtool.Broker) -> None:
    """Its attempts are counted anew, so that nothing but the queue it was pulled from tells it is one."""
    send(broker, BODIES, 0)
    assert len(consume(broker, "--group", "G", "--begin", "first", "--limit", "5").rows) == 5
    with mqtool.AdminClient(broker.name_server_address) as admin:
        admin.create_topic("%RETRY%G", queues=1)
    with mqtool.Producer("P", broker.name_server_address) as producer:
        producer.send(ProducerMessage("%RETRY%G", b"again", properties={"RETRY_TOPIC": "Orders"}))

    [row] = consume(broker, "--group", "G", "--limit", "1").rows

    assert (row["topic"], row["body"], row["reconsume_times"]) == ("Orders", "again", 0)
    assert consume(broker, "--group", "G", *IDLE).rows == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give the group with --group; or use --peek, which needs none"),
        (("--peek", "--orderly"), "--peek locks nothing"),
        (("--peek", "--sql", "a > 1", "--filter", "A"), "a subscription has tags or an SQL92 filter, not both"),
        (("--group", "G", "--idle", "soon"), "soon is not a duration: give one like 500ms, 5s or 2h"),
        (("--group", "G", "--begin", "middle"), "middle is not a time"),
        (("--group", "no such name!"), "only letters, digits"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], sentence: str) -> None:
    ran = run("consume", "-n", "127.0.0.1:1", "--topic", "Orders", *arguments)

    assert (ran.status, ran.output) == (Status.USAGE, "")
    assert sentence in ran.remarks


def test_a_look_at_no_topic_is_refused(broker: mqtool.Broker) -> None:
    ran = run("consume", "-n", broker.name_server_address, "--topic", "Nowhere", "--peek")

    assert (ran.status, ran.remarks) == (
        Status.NO_INPUT,
        "mqtool: the topic Nowhere does not exist\n",
    )
