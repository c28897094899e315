"""Messages with a time of delivery of their own: on time, once, and stores of RocketMQ taken over."""

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mqtool
from mqtool.engine.store.append_result import PutStatus
from mqtool.formats import timer
from mqtool.formats.properties import parse_properties
from mqtool.formats.topics import TIMER_TOPIC
from tests.engine.broker.asking import Asking, broker_at_work
from tests.engine.broker.test_transactions import bodies, messages
from tests.engine.store.live import NOW, new_message
from tests.golden import copy_of, manifest

DAY_MS = 86_400_000


def send(asking: Asking, body: str, **pairs: Any) -> str:
    """Send a message; return what became of it."""
    texts = {"UNIQ_KEY": body, **{name: str(value) for name, value in pairs.items()}}
    return asking.broker.intake.put(new_message("T", body.encode(), pairs=texts, queue_id=1), asking.now).status


def pass_time(asking: Asking, until: int) -> None:
    """Let the broker tick whenever something is due."""
    timers = asking.broker.timers
    while (due := timers.next_tick(asking.now)) is not None and due <= until:
        asking.now = max(asking.now, due)
        timers.tick(asking.now)
    asking.now = until


def delivered(asking: Asking) -> dict[str, int]:
    """Return when each message was delivered."""
    return {one.message.body.decode(): one.store_timestamp for one in messages(asking, "T", 1)}


@pytest.mark.parametrize(
    ("pairs", "wanted"),
    [
        ({"TIMER_DELAY_SEC": 3}, NOW + 3000),
        ({"TIMER_DELAY_MS": 2200}, NOW + 2200),
        ({"TIMER_DELIVER_MS": NOW + 5500}, NOW + 5500),
        ({"TIMER_DELAY_SEC": 3, "TIMER_DELAY_MS": 1, "TIMER_DELIVER_MS": 1}, NOW + 3000),
    ],
)
def test_a_message_comes_within_the_second_after_its_time_and_never_before(
    pairs: dict[str, int], wanted: int, tmp_path: Path
) -> None:
    with broker_at_work(tmp_path) as asking:
        assert send(asking, "one", **pairs) == PutStatus.PUT_OK
        assert (bodies(asking, TIMER_TOPIC), bodies(asking, "T", 1)) == (["one"], [])

        pass_time(asking, wanted + 10_000)

        [message] = messages(asking, "T", 1)
        assert wanted <= message.store_timestamp < wanted + 1000
        assert parse_properties(message.message.properties).keys() >= {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}


@pytest.mark.parametrize("name", ["timer-533-clean", "timer-550-clean"])
def test_times_are_kept_as_in_a_recorded_store(name: str, tmp_path: Path) -> None:
    stored = [one for one in manifest(name)["messages"] if one["topic"] == TIMER_TOPIC]
    with broker_at_work(tmp_path) as asking:
        for one in stored:
            pairs = {key: value for key, value in one["properties"].items() if key != "TIMER_OUT_MS"}
            waiting = new_message(pairs["REAL_TOPIC"], pairs=pairs, queue_id=int(pairs["REAL_QID"]))
            # A relative time counts from when the broker took the message, a little before it was stored.
            asking.broker.intake.put(waiting, one["store_timestamp"] - 1)

        ours = [parse_properties(one.message.properties)["TIMER_OUT_MS"] for one in messages(asking, TIMER_TOPIC)]

    assert ours == [one["properties"]["TIMER_OUT_MS"] for one in stored]


@pytest.mark.parametrize("name", ["timer-533-clean", "timer-533-kill", "timer-550-clean"])
def test_what_waits_in_a_recorded_store_is_delivered_and_nothing_else(name: str, tmp_path: Path) -> None:
    known = manifest(name)
    config = {key: str(value) for key, value in known["config"].items()}
    done = {one["uniq_key"] for one in known["messages"] if "TIMER_DEQUEUE_MS" in one["properties"]}
    waiting = {
        one["uniq_key"]: int(one["properties"]["TIMER_OUT_MS"])
        for one in known["messages"]
        if one["topic"] == TIMER_TOPIC
        and one["uniq_key"] not in done
        and one["properties"].get("TIMER_DELAY_SEC") != "4600"  # this one was recalled
        and "TIMER_DEL_UNIQKEY" not in one["properties"]
    }
    root = copy_of(name, tmp_path)
    (root / "abort").unlink(missing_ok=True)
    start = max(one["store_timestamp"] for one in known["messages"]) + 1
    with broker_at_work(root, start, **config) as asking:
        before = {key: queue.next_offset for key in asking.store.queues() if (queue := asking.store.queue(*key))}

        pass_time(asking, start + 4 * DAY_MS)

        found = {}
        for topic, queue_id in asking.store.queues():
            for one in list(messages(asking, topic, queue_id))[before.get((topic, queue_id), 0) :]:
                found[parse_properties(one.message.properties)["UNIQ_KEY"]] = one.store_timestamp
    assert found == {key: out + 1000 for key, out in waiting.items()}


@pytest.mark.parametrize("form", ["one", "T+one"])
def test_a_recalled_message_is_not_delivered(form: str, tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        send(asking, "one", TIMER_DELAY_SEC=10)
        send(asking, "two", TIMER_DELAY_SEC=10)
        send(asking, "recall", TIMER_DELAY_SEC=10, TIMER_DEL_UNIQKEY=form)

        pass_time(asking, NOW + 20_000)

        assert [*delivered(asking)] == ["two"]


def test_a_time_that_has_passed_is_now_and_one_too_far_ahead_is_refused(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        assert send(asking, "past", TIMER_DELIVER_MS=NOW - 5) == PutStatus.PUT_OK
        assert send(asking, "before", TIMER_DELAY_SEC="-5") == PutStatus.PUT_OK
        assert [*delivered(asking)] == ["past", "before"]

        assert send(asking, "far", TIMER_DELIVER_MS=NOW + 3 * DAY_MS + 1) == PutStatus.MESSAGE_ILLEGAL
        assert send(asking, "recall", TIMER_DELIVER_MS=NOW - 5, TIMER_DEL_UNIQKEY="x") == PutStatus.MESSAGE_ILLEGAL


def test_a_delay_level_counts_more_than_a_time(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        send(asking, "one", DELAY=1, TIMER_DELAY_SEC=60)

        assert bodies(asking, "SCHEDULE_TOPIC_XXXX") == ["one"]


@settings(max_examples=20, deadline=None)
@given(delays=st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_the_first_message_that_waits_is_known_whatever_is_delivered_before_it(
    tmp_path_factory: pytest.TempPathFactory, delays: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch, broker_at_work(tmp_path_factory.mktemp("store")) as asking:
        patch.setattr("mqtool.engine.broker.timers._BLOCK", 8)
        for number, delay in enumerate(delays):
            send(asking, str(number), TIMER_DELAY_SEC=delay)
        for seconds in range(12):
            pass_time(asking, NOW + seconds * 1000)
            waiting = [number for number in range(len(delays)) if str(number) not in delivered(asking)]
            check = np.frombuffer(asking.broker.timers.check_point() + bytes(5000), timer.TIMER_CHECK.dtype, 1)[0]
            assert check["last_timer_queue_offset"] == min(waiting, default=len(delays))


@settings(deadline=None, max_examples=20)
@given(
    delays=st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    stops=st.lists(st.integers(0, 7000), max_size=3).map(sorted),
)
def test_restarts_neither_lose_a_message_nor_deliver_it_twice(
    tmp_path_factory: pytest.TempPathFactory, delays: list[int], stops: list[int]
) -> None:
    root = tmp_path_factory.mktemp("store")
    now = NOW
    for number, stop in enumerate([*stops, 20_000]):
        with broker_at_work(root, now) as asking:
            if not number:
                for name, delay in enumerate(delays):
                    send(asking, str(name), TIMER_DELAY_MS=delay)
            pass_time(asking, max(NOW + stop, now))
            now = asking.now
            asking.broker.stop(now)
            found = delivered(asking)
            count = len(bodies(asking, "T", 1))

    assert count == len(delays)
    for name, delay in enumerate(delays):
        assert found[str(name)] >= NOW + delay


def test_a_stop_right_after_a_kill_does_not_forget_what_was_delivered_before_it(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    with broker_at_work(tmp_path / "store") as asking:
        for name in ("one", "two"):
            send(asking, name, TIMER_DELAY_MS=1000)
        pass_time(asking, NOW + 3000)
        assert sorted(delivered(asking)) == ["one", "two"]
        shutil.copytree(asking.broker.store.root, killed)
    (killed / "config" / "timercheck").unlink(missing_ok=True)  # as it was not written yet
    for _ in range(2):
        with broker_at_work(killed, now=NOW + 3000) as asking:
            asking.broker.stop(NOW + 3000)
    with broker_at_work(killed, now=NOW + 3000) as asking:
        pass_time(asking, NOW + 9000)
        assert sorted(bodies(asking, "T", 1)) == ["one", "two"]


def test_what_rocketmq_delivered_while_it_stopped_is_not_delivered_again(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        for name in ("one", "two"):
            send(asking, name, TIMER_DELAY_MS=1000)
        pass_time(asking, NOW + 3000)
        asking.broker.stop(asking.now)
    with (tmp_path / "config" / "timercheck").open("r+b") as file:
        file.write(struct.pack(">q", NOW - 1000))  # RocketMQ notes a second after its messages, or not any more
    with broker_at_work(tmp_path, NOW + 3000) as asking:
        pass_time(asking, NOW + 9000)

        assert sorted(bodies(asking, "T", 1)) == ["one", "two"]


def wheel_of(root: Path) -> dict[int, list[tuple[int, ...]]]:
    """Return what a wheel has for each second that is to come: kind, address, size and hash of each unit."""
    reader = mqtool.open_store(root)
    log, check = reader.timer_log, reader.timer_check
    assert log is not None and check is not None
    slots = np.fromfile(root / "timerwheel", timer.SLOT.dtype)
    found = {}
    for slot in slots[slots["time"] * 1000 >= max(1, check.last_read_timestamp)]:
        units = []
        position = int(slot["last_position"])
        while position >= 0:
            [unit] = np.frombuffer(log.read(position, timer.LOG_UNIT_SIZE), timer.LOG_UNIT.dtype)
            units.append(tuple(int(unit[name]) for name in _OF_A_UNIT))
            position = int(unit["previous_position"])
        found[int(slot["time"])] = units
    return found


_OF_A_UNIT = ("magic_code", "physical_offset", "message_size", "topic_hash")


@pytest.mark.parametrize("name", ["timer-533-clean", "timer-550-clean"])
def test_a_stop_leaves_the_wheel_that_rocketmq_left(name: str, tmp_path: Path) -> None:
    root = copy_of(name, tmp_path)
    theirs = wheel_of(root)
    last = max(one["store_timestamp"] for one in manifest(name)["messages"])
    with broker_at_work(root, last, **{key: str(value) for key, value in manifest(name)["config"].items()}) as asking:
        asking.broker.stop(last)

    ours = wheel_of(root)

    assert len(ours) == 3
    for second, units in ours.items():
        if units[0][0] == timer.MAGIC_DEFAULT:
            assert units == theirs.pop(second)
    # What is further ahead than the wheel turns has come nearer since; what was recalled waits no more.
    assert [[kind for kind, *_ in units] for units in theirs.values()] == [[5, 1], [3]]


@pytest.mark.parametrize("file_size", [200, 1000, 104_857_600])
def test_the_files_that_a_stop_leaves_are_sound_in_any_size(file_size: int, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"mappedFileSizeTimerLog": str(file_size)}
    with broker_at_work(tmp_path, **sizes) as asking:
        for number, days in enumerate((0, 0, 1, 2, 2.5, 2.9)):
            send(asking, str(number), TIMER_DELAY_MS=int(days * DAY_MS) + 3000 - 5 * number)
        send(asking, "recall", TIMER_DELAY_MS=DAY_MS + 3000 - 10, TIMER_DEL_UNIQKEY="2")
        pass_time(asking, NOW + 10_000)
        asking.broker.stop(asking.now)
    for _ in range(2):
        assert sum(map(len, wheel_of(tmp_path).values())) == 4  # three that wait, and the last of the queue
        with broker_at_work(tmp_path, asking.now, **sizes) as asking:
            asking.broker.stop(asking.now)


@pytest.mark.parametrize(("beyond", "comes"), [(0, True), (1000, False)])
def test_the_second_that_timercheck_names_is_the_next_to_be_read(beyond: int, comes: bool, tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        send(asking, "before", TIMER_DELAY_MS=1000)
        pass_time(asking, NOW + 3000)
        send(asking, "one", TIMER_DELAY_MS=5000)
        [_, waiting] = messages(asking, TIMER_TOPIC)
        asking.broker.stop(asking.now)
    out = int(parse_properties(waiting.message.properties)["TIMER_OUT_MS"])
    with (tmp_path / "config" / "timercheck").open("r+b") as file:
        file.write(struct.pack(">q", out + beyond))  # RocketMQ's ``lastReadTimeMs``: where it reads on
    with broker_at_work(tmp_path, now=NOW + 3000) as asking:
        pass_time(asking, NOW + 20_000)
        assert ("one" in bodies(asking, "T", 1)) == comes
