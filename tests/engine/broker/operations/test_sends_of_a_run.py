"""Messages of a run, stored together, against the same messages sent one by one."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqtool.engine.broker.operations.refusal import OperationRefusedError
from mqtool.engine.broker.operations.send import NewTopic, Sends
from mqtool.engine.store.append_result import AppendResult
from mqtool.formats.new_message import BatchElement, NewMessage, one_of
from tests.damage import snapshot
from tests.engine.broker.asking import broker_at_work
from tests.engine.store.live import NOW, new_message

LIKE = NewTopic("TBW102", 1, False)
PLAIN = b"PULSAR\x01abc\x02"
OTHERS = [
    b"",
    b"KEYS\x01a b\x02TAGS\x01t\x02",
    b"KEYS\x01a",  # no separator ends it
    b"UNIQ_KEY\x01its own\x02",
    b"UNIQ_KEY\x01\x02",
    b"WAIT\x01false\x02",
    b"DELAY\x012\x02",
    b"INNER_NUM\x012\x02",
    b"MSG_REGION\x01another\x02TRACE_ON\x01false\x02",  # it was consumed before
    b"without a value\x02\x02=\x01\x01\x02",
    b"zeros\0\x01\0a\x02UNIQ\0_KEY\x01b\x02",
    b"TRAN_MSG\x01true\x02PGROUP\x01g\x02",
    b"long\x01" + b"x" * 32_700,
]
element = st.tuples(
    st.builds(
        BatchElement,
        st.integers(-5, 5),
        st.sampled_from([b"", b"body", bytes(3000), bytes(5000)]),
        st.sampled_from([PLAIN, PLAIN, *OTHERS]),
        st.integers(0, NOW) | st.just(1 << 63),
    ),
    st.booleans(),
)
"""A message, and whether it is told that its properties are plain, if they are."""
Run = Sequence[tuple[BatchElement, bool]]
TOGETHER = [BatchElement(number, b"body", PLAIN, NOW - number) for number in range(4)]


def sent_together(sends: Sends, common: NewMessage, run: Run) -> list[AppendResult] | str:
    """Return the results, or the text of the refusal."""
    are_plain = [is_told and one.properties == PLAIN for one, is_told in run]
    try:
        return sends.send_each(common, [one for one, _ in run], are_plain, LIKE, NOW)
    except OperationRefusedError as refused:
        return str(refused)


def sent_one_by_one(sends: Sends, common: NewMessage, run: Run) -> list[AppendResult] | str:
    try:
        return [sends.send(one_of(common, one), LIKE, NOW).result for one, _ in run]
    except OperationRefusedError as refused:
        return str(refused)


@given(
    runs=st.lists(st.lists(element, min_size=1, max_size=6), max_size=6),
    topic=st.sampled_from(["TopicTest", "TopicTest", "%RETRY%Group", "SCHEDULE_TOPIC_XXXX"]),
    queue_id=st.sampled_from([0, 0, 0, -1, 7]),
    store_settings=st.sampled_from(
        [{}, {"flushDiskType": "SYNC_FLUSH"}, {"enabledAppendPropCRC": "true"}, {"maxMessageSize": "4000"}]
    ),
)
@example([[(one, True) for one in TOGETHER]] * 3, "TopicTest", 0, {})
@example([[(TOGETHER[0], True)], [(one, bool(one.flag)) for one in TOGETHER]], "TopicTest", 0, {})
@example([[(TOGETHER[0], True)], [(one._replace(properties=b""), False) for one in TOGETHER]], "TopicTest", 0, {})
@settings(max_examples=120, deadline=None)
def test_messages_of_a_run_are_stored_as_if_sent_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[Run],
    topic: str,
    queue_id: int,
    store_settings: dict[str, Any],
) -> None:
    root = tmp_path_factory.mktemp("stores")
    with (
        broker_at_work(root / "together", **store_settings) as together,
        broker_at_work(root / "apart", **store_settings) as apart,
    ):
        for run in runs:
            common = NewMessage(topic, queue_id, b"", born_host=new_message().born_host)
            expected = sent_one_by_one(apart.broker.sends, common, run)
            assert sent_together(together.broker.sends, common, run) == expected
    one, other = snapshot(root / "together"), snapshot(root / "apart")
    assert {path: state[:2] for path, state in one.items()} == {path: state[:2] for path, state in other.items()}


def test_where_one_of_a_run_is_refused_none_is_stored(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        broker, common = asking.broker, NewMessage("TopicTest", 0, b"", born_host=new_message().born_host)
        broker.sends.send(one_of(common, TOGETHER[0]), LIKE, NOW)
        broker.state.settings = dataclasses.replace(broker.settings, refuse_transactions=True)
        run = [TOGETHER[1], TOGETHER[2]._replace(properties=b"TRAN_MSG\x01true\x02"), TOGETHER[3]]
        end = broker.store.end_offset

        with pytest.raises(OperationRefusedError, match="transaction message is forbidden"):
            broker.sends.send_each(common, run, [True, False, True], LIKE, NOW)

        assert broker.store.end_offset == end
