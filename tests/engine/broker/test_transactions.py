"""Transactions: what a producer decides, what becomes of what it does not, stores of RocketMQ taken over."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.broker.consumer_offsets import UNKNOWN as NO_OFFSET
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.headers import CheckTransaction, Send, build_header, parse_header
from mqtool.formats.new_message import NewMessage
from mqtool.formats.peer import Peer
from mqtool.formats.properties import parse_properties
from mqtool.formats.remoting import ONEWAY, Outgoing, RemotingCommand
from mqtool.formats.stored_message import StoredMessage, parse_stored
from mqtool.formats.topics import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from tests.cost import counted
from tests.engine.broker.asking import Asking, broker_at_work
from tests.golden import copy_of, manifest
from tests.traces import exchanges

UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
GROUP = "PG"
TIMEOUT, INTERVAL = 6000, 30_000
PRODUCER = Peer(7, "192.0.2.7", 4007)


def begin(asking: Asking, name: str, group: str = GROUP, **pairs: str) -> dict[str, str]:
    """Send a half message; return the answer's ext fields."""
    given = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": name, "TAGS": "A", **pairs}
    text = "".join(f"{key}\x01{value}\x02" for key, value in given.items())
    header = Send(group, "Orders", "TBW102", 4, 1, 4, asking.now, 0, text)
    fields: dict[str, Any] = {**build_header(header)}
    answer = asking.ask(RequestCode.SEND_MESSAGE, name.encode(), **fields)
    assert answer.code == 0
    return answer.ext_fields


def end(asking: Asking, offset: int, queue_offset: int, decision: int, **given: Any) -> RemotingCommand | None:
    """End a transaction."""
    fields = {
        "producerGroup": GROUP,
        "tranStateTableOffset": queue_offset,
        "commitLogOffset": offset,
        "commitOrRollback": decision,
        "msgId": "",
        **given,
    }
    answers = asking.handle(RequestCode.END_TRANSACTION, **fields)
    return answers[0][1] if answers else None


def end_sent(asking: Asking, sent: dict[str, str], decision: int, **given: Any) -> RemotingCommand | None:
    """End a transaction as the producer does that has just sent the half message."""
    return end(asking, int(sent["msgId"][-16:], 16), int(sent["queueOffset"]), decision, **given)


def open_count(asking: Asking) -> int:
    """Return how many transactions have not come to their end: several half messages may be copies of one."""
    return len({id(copies) for copies in asking.broker.transactions._open.values()})


def messages(asking: Asking, topic: str, queue_id: int = 0) -> Iterator[StoredMessage]:
    """Yield the messages of a queue."""
    queue = asking.store.queue(topic, queue_id)
    for offset in range(queue.next_offset if queue else 0):
        assert queue is not None
        [unit] = queue.units(offset, 1)
        yield parse_stored(asking.store.log.record(unit.physical_offset))


def bodies(asking: Asking, topic: str, queue_id: int = 0) -> list[str]:
    """Return the bodies of a queue as text."""
    return [one.message.body.decode() for one in messages(asking, topic, queue_id)]


def register(asking: Asking, group: str = GROUP) -> None:
    """Have a producer of the group."""
    asking.broker.clients.register_producer(group, asking.client_of(PRODUCER, "p"))


def checks(asking: Asking) -> list[RemotingCommand]:
    """Let time pass up to the next round of checks; return what the producer is asked."""
    asking.now += INTERVAL
    sent: list[Outgoing] = [*asking.door.tick(asking.now)]
    while asking.broker.transactions.next_tick(asking.now) == asking.now:
        sent += asking.door.tick(asking.now)
    asked = [(peer, command) for peer, command in sent if command.code == RequestCode.CHECK_TRANSACTION_STATE]
    assert {peer for peer, _ in asked} <= {PRODUCER}
    assert {command.flag for _, command in asked} <= {ONEWAY}
    return [command for _, command in asked]


# Ends


def test_a_committed_message_is_delivered_where_it_belongs(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        sent = begin(asking, "one")
        assert (sent["queueId"], sent["queueOffset"], sent["transactionId"]) == ("1", "0", "one")
        assert bodies(asking, "Orders", 1) == []

        answer = end_sent(asking, sent, COMMIT)

        assert answer is not None
        assert answer.code == 0
        [half] = messages(asking, HALF_TOPIC)
        [delivered] = messages(asking, "Orders", 1)
        assert (half.message.sys_flag, delivered.message.sys_flag) == (0, COMMIT)
        assert delivered.message.prepared_transaction_offset == half.physical_offset
        assert delivered.message.born_timestamp == half.message.born_timestamp
        assert delivered.message.properties == half.message.properties
        assert parse_properties(half.message.properties).items() >= {
            ("REAL_TOPIC", "Orders"),
            ("REAL_QID", "1"),
            ("__transactionId__", "one"),
        }
        assert bodies(asking, OP_TOPIC) == ["0"]


def test_what_is_rolled_back_is_never_delivered(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        sent = begin(asking, "one")
        end_sent(asking, sent, ROLLBACK)
        end_sent(asking, sent, COMMIT)  # too late

        assert bodies(asking, "Orders", 1) == []
        assert open_count(asking) == 0


def test_a_delayed_message_of_a_transaction_is_delayed_once_it_is_committed(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        end_sent(asking, begin(asking, "one", DELAY="1"), COMMIT)
        assert (bodies(asking, "SCHEDULE_TOPIC_XXXX"), bodies(asking, "Orders", 1)) == (["one"], [])

        asking.now += 1000
        assert [*asking.door.tick(asking.now)] == []

        assert bodies(asking, "Orders", 1) == ["one"]


@pytest.mark.parametrize(
    "wrong",
    [{"producerGroup": "Other"}, {"tranStateTableOffset": 1}, {"commitLogOffset": 1}, {"commitLogOffset": 1 << 40}],
)
def test_an_end_that_names_another_transaction_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        answer = end_sent(asking, begin(asking, "one"), COMMIT, **wrong)

        assert answer is not None
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert open_count(asking) == 1


def test_a_producer_that_does_not_know_gets_no_answer(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        assert end_sent(asking, begin(asking, "one"), UNKNOWN) is None
        assert open_count(asking) == 1


def test_behind_its_own_time_only_the_answer_to_a_check_counts(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        sent = begin(asking, "one", CHECK_IMMUNITY_TIME_IN_SECONDS="10")
        asking.now += 10_001

        late = end_sent(asking, sent, COMMIT)
        assert late is not None
        assert late.code == ResponseCode.ILLEGAL_OPERATION
        assert bodies(asking, "Orders", 1) == []

        end_sent(asking, sent, COMMIT, fromTransactionCheck="true")
        assert bodies(asking, "Orders", 1) == ["one"]


# Checks


@pytest.mark.parametrize("name", ["java-4.9.7-transaction", "java-5.3.3-transaction"])
def test_a_check_asks_what_a_recorded_broker_asks(name: str, tmp_path: Path) -> None:
    [*_, sending] = exchanges(name, RequestCode.SEND_MESSAGE_V2)
    [recorded] = exchanges(name, RequestCode.CHECK_TRANSACTION_STATE)
    with broker_at_work(tmp_path) as asking:
        asking.client = Peer(1, *_born_host(recorded.request.body))
        asking.broker.listens_at("127.0.0.1:30911")
        asking.now = int(sending.request.command.ext_fields["g"])
        register(asking, sending.request.command.ext_fields["a"])
        answer = asking.replay(sending)
        assert sending.answer is not None
        assert answer.ext_fields.keys() == sending.answer.command.ext_fields.keys()

        [asked] = checks(asking)

    ours, theirs = asked.ext_fields, recorded.request.command.ext_fields
    assert ours.keys() == theirs.keys()
    for field in ("bname", "topic", "msgId", "transactionId"):
        assert ours[field] == theirs[field]
    mine, other = parse_stored(asked.body), parse_stored(recorded.request.body)
    for field in ("topic", "queue_id", "body", "flag", "sys_flag", "born_timestamp", "born_host", "store_host"):
        assert getattr(mine.message, field) == getattr(other.message, field)
    assert parse_properties(mine.message.properties) == parse_properties(other.message.properties)
    header = parse_header(CheckTransaction, ours)
    assert (mine.queue_offset, mine.physical_offset) == (header.tran_state_table_offset, header.commit_log_offset)
    assert header.offset_msg_id is not None
    assert int(header.offset_msg_id[16:], 16) == header.commit_log_offset


def _born_host(record: bytes) -> tuple[str, int]:
    address, port = parse_stored(record).message.born_host
    return ".".join(map(str, address)), port


def test_a_young_half_message_is_not_asked_for(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        register(asking)
        asking.now += INTERVAL - TIMEOUT
        begin(asking, "young")
        begin(asking, "patient", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        asking.now -= INTERVAL - TIMEOUT
        assert checks(asking) == []

        assert [parse_stored(asked.body).message.body for asked in checks(asking)] == [b"young"]
        assert [parse_stored(asked.body).message.body for asked in checks(asking)] == [b"patient", b"young"]


def test_a_half_message_is_put_aside_after_so_many_checks(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        begin(asking, "one")

        counts = []
        for _ in range(17):
            register(asking)
            counts.append(len(checks(asking)))

        assert counts == [1] * 15 + [0, 0]

        [given_up] = messages(asking, GIVEN_UP_TOPIC)
        assert parse_properties(given_up.message.properties)["TRANSACTION_CHECK_TIMES"] == "15"
        assert asking.broker.topics.get(GIVEN_UP_TOPIC) is not None
        assert open_count(asking) == 0


def test_a_half_message_that_was_put_aside_can_be_checked_again(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        begin(asking, "t")
        for _ in range(17):
            checks(asking)
        [aside] = messages(asking, GIVEN_UP_TOPIC)
        assert open_count(asking) == 0

        def resume(offset: int) -> int:
            return asking.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=f"7F00000100002A9F{offset:016X}").code

        assert resume(aside.physical_offset) == 0
        register(asking)
        [asked] = checks(asking)
        again = parse_header(CheckTransaction, asked.ext_fields)
        end(asking, again.commit_log_offset, again.tran_state_table_offset, COMMIT)
        assert bodies(asking, "Orders", 1) == ["t"]
        assert open_count(asking) == 0

        # Nothing but half messages becomes one.
        [delivered] = messages(asking, "Orders", 1)
        op = next(messages(asking, OP_TOPIC))
        assert resume(op.physical_offset) == ResponseCode.SYSTEM_ERROR
        assert resume(1 << 40) == ResponseCode.SYSTEM_ERROR
        assert delivered.message.topic == "Orders"


def test_the_producers_of_a_group_are_asked_in_turn(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        peers = [Peer(number, "192.0.2.9", number) for number in range(3)]
        for peer in peers:
            asking.broker.clients.register_producer(GROUP, asking.client_of(peer, str(peer.id), "GO", 317))
        for name in "abcdef":
            begin(asking, name)

        asking.now += INTERVAL
        asked = Counter[Peer]()
        while (due := asking.broker.transactions.next_tick(asking.now)) is not None and due <= asking.now:
            asked += Counter(peer for peer, _ in asking.door.tick(asking.now))

        assert asked == dict.fromkeys(peers, 2)


def test_no_tick_looks_at_all_half_messages(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        transactions, count = asking.broker.transactions, 3000
        for _ in range(count):
            asking.store.append(NewMessage(HALF_TOPIC, 0, b"half", b"", born_timestamp=asking.now), asking.now)

        def steps() -> int:
            with counted() as counting:
                transactions.tick(asking.now)
            return counting.total

        # All are open.
        asking.now += INTERVAL
        most = steps()
        # All are closed, and so are their marks, in the middle of a round and at its end.
        for number in range(count):
            if number in transactions._open:
                transactions._done(number, asking.now)
        while transactions.next_tick(asking.now) == asking.now:
            most = max(most, steps())
        asking.now += INTERVAL
        while transactions.next_tick(asking.now) == asking.now:
            most = max(most, steps())

        assert most < 3 * count
        assert open_count(asking) == 0
        assert not transactions._marks


def test_half_messages_that_wait_longer_stay_in_order_and_hold_up_the_progress(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        register(asking)
        patient = begin(asking, "patient", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        for name in "ab":
            begin(asking, name)
        begin(asking, "also patient", CHECK_IMMUNITY_TIME_IN_SECONDS="600")

        asked = [[parse_stored(command.body).message.body for command in checks(asking)] for _ in range(3)]

        assert asked == [[b"a", b"b"]] * 3
        offsets = asking.broker.offsets
        assert offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == NO_OFFSET
        end_sent(asking, patient, COMMIT)
        assert len(checks(asking)) == 2
        asking.store.flush()
        asking.broker.transactions.tick(asking.now)
        assert offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) == 3
        asking.now += 600_000
        register(asking)
        assert [parse_stored(command.body).message.body for command in checks(asking)] == [b"also patient", b"a", b"b"]


# Anything at any time


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 0)),
        st.tuples(
            st.sampled_from(["commit", "roll back", "commit an older copy", "roll back late"]), st.integers(0, 9)
        ),
        st.tuples(st.sampled_from(["check", "restart"]), st.integers(0, 0)),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=25)
@given(actions=ACTIONS)
def test_what_is_committed_is_delivered_once_whatever_happens_between(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    root = tmp_path_factory.mktemp("store")
    copies: dict[str, list[tuple[int, int]]] = {}  # address and queue offset, by name
    known: dict[str, int] = {}  # how many copies at the front were forgotten by a restart
    committed: list[str] = []
    rolled_back: list[str] = []
    now = 1_700_000_000_000
    parts: list[list[tuple[str, int]]] = [[]]
    for action in actions:
        if action[0] == "restart":
            parts.append([])
        else:
            parts[-1].append(action)
    for part in parts:
        with broker_at_work(root, now) as asking:
            register(asking)
            open_names = [name for name in copies if name not in (*committed, *rolled_back)]
            assert open_count(asking) == len(open_names)
            for name in copies:
                known[name] = len(copies[name]) - 1
            for kind, pick in part:
                open_names = [name for name in copies if name not in (*committed, *rolled_back)]
                if kind == "begin":
                    name = str(len(copies))
                    sent = begin(asking, name)
                    copies[name] = [(int(sent["msgId"][-16:], 16), int(sent["queueOffset"]))]
                    known[name] = 0
                elif kind == "check":
                    for asked in checks(asking):
                        header = parse_header(CheckTransaction, asked.ext_fields)
                        name = parse_stored(asked.body).message.body.decode()
                        copies[name].append((header.commit_log_offset, header.tran_state_table_offset))
                elif kind == "roll back late" and copies:
                    name = [*copies][pick % len(copies)]
                    if name not in open_names:
                        end(asking, *copies[name][-1], ROLLBACK)
                        end(asking, *copies[name][-1], COMMIT)
                elif open_names:
                    name = open_names[pick % len(open_names)]
                    older = known[name] if kind == "commit an older copy" else -1
                    end(asking, *copies[name][older], ROLLBACK if kind == "roll back" else COMMIT)
                    (rolled_back if kind == "roll back" else committed).append(name)
            assert bodies(asking, "Orders", 1) == committed
            now = asking.now
            asking.broker.stop(now)
    shutil.rmtree(root)


# Stores of RocketMQ


@pytest.mark.parametrize("name", ["txn-497-clean", "txn-533-clean"])
def test_the_open_transactions_of_a_recorded_store_are_taken_over(name: str, tmp_path: Path) -> None:
    root = copy_of(name, tmp_path)
    stored = manifest(name)["messages"]
    config = {key: str(value) for key, value in manifest(name)["config"].items()}
    delivered = {one["keys"] for one in stored if one["topic"] == "TxOrders" and one["sys_flag"] == COMMIT}
    with broker_at_work(root, max(one["store_timestamp"] for one in stored) + 1, **config) as asking:
        register(asking, "PID_txn_GID_tx")
        assert open_count(asking) == 3

        asked = [parse_properties(parse_stored(one.body).message.properties) for one in checks(asking)]

        assert {one["KEYS"] for one in asked} == {"tx2-pending", "tx6-pending", "tx10-pending"}
        assert not delivered & {one["KEYS"] for one in asked}
