"""The log of another broker, appended as its bytes come: the files are those that the other broker has."""

import contextlib
import itertools
import re
import shutil
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.append_result import PutStatus
from mqtool.engine.store.disk import Disk, DiskFullError, OpenFile
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, FormatError
from mqtool.formats import commit_log, consume_queue, record_schemas
from mqtool.formats.new_message import build_record, record_size, topic_field
from mqtool.formats.stored_message import parse_stored
from tests.engine.store.live import NOW, half_full, new_message, opened
from tests.engine.store.test_message_store import REPLAYED, findings, segment, settings_of
from tests.formats.golden_bytes import log
from tests.golden import golden_store, manifest

MASTERS = [*REPLAYED, "ext-533-clean"]
QUEUES = ("consumequeue", "batchconsumequeue")


def log_of(name: str) -> bytes:
    """Return the log of a golden store, blank ends of segments included, up to its last message."""
    last = manifest(name)["messages"][-1]
    return b"".join(log(name)[1])[: last["phy"] + last["size"]]


def slave(name: str, root: Path) -> MessageStore:
    """Open a store with the settings of a golden one."""
    batch_topics = {topic for topic, _ in StoreReader(golden_store(name)).batch_consume_queues}
    if not root.exists():
        root.mkdir()
        if "-550-" in name:
            (root / "rocksdbstore").mkdir()
    return MessageStore(root, StoreConfig(settings_of(name)), now=0, usage=half_full, batch_topics=batch_topics)


def files(root: Path, *kinds: str) -> dict[Path, bytes]:
    """Return the files in some folders of a store."""
    return {
        path.relative_to(root): path.read_bytes()
        for kind in kinds
        for path in sorted(root.glob(f"{kind}/**/*"))
        if path.is_file()
    }


def contents(root: Path, kind: str) -> list[bytes]:
    """Return the files of a folder without their names."""
    return [*files(root, kind).values()]


@pytest.mark.parametrize("name", MASTERS)
@settings(max_examples=6)
@given(data=st.data())
def test_a_log_that_comes_in_any_pieces_gives_the_files_of_the_broker_that_wrote_it(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    stream, root = log_of(name), tmp_path_factory.mktemp("slave") / "store"
    ends = data.draw(st.lists(st.integers(1, len(stream) - 1), max_size=30, unique=True).map(sorted))
    after = data.draw(st.lists(st.sampled_from(["", "", "tick", "flush", "close", "kill"]), min_size=31, max_size=31))

    store = slave(name, root)
    for number, (start, end) in enumerate(itertools.pairwise([0, *ends, len(stream)])):
        # As a slave reports it: half a record that was cut off comes again, what is zero of a blank one need not come.
        at = store.log.end_offset
        assert not any(stream[start:at])
        store.append_bytes(at, stream[at:end])
        if after[number] == "tick":
            store.tick(NOW)
        elif after[number] == "flush":
            store.flush()
            store.flush_queues()
        elif after[number] == "close":
            store.close()
            store = slave(name, root)
        elif after[number] == "kill":
            left = root.with_name(f"left{number}")
            shutil.copytree(root, left)
            store.close()
            root, store = left, slave(name, left)
            assert store.was_recovered
    store.close()

    theirs = golden_store(name)
    if name != "ext-533-clean":  # whose units are in part in an extension, which this broker does not write
        assert files(root, *QUEUES) == files(theirs, *QUEUES)
    assert contents(root, "index") == contents(theirs, "index")
    ours = b"".join(contents(root, "commitlog*")) if "multipath" not in name else joined(root)
    assert ours[: len(stream)] == stream
    assert not any(ours[len(stream) :])
    assert findings(root, StoreConfig(settings_of(name))) == []


def joined(root: Path) -> bytes:
    """Return the log of a store with several folders."""
    return b"".join(path.read_bytes() for path in sorted(root.glob("commitlog*/*"), key=lambda path: path.name))


@pytest.mark.parametrize("name", ["mixed-533-clean", "many-497-clean", "propcrc-533-clean", "mixed-550-clean"])
@settings(max_examples=6)
@given(data=st.data())
def test_a_log_that_begins_with_a_later_segment_has_filler_for_what_is_not_there(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    stream, root, size = log_of(name), tmp_path_factory.mktemp("slave") / "store", segment(name)
    begin = size * data.draw(st.integers(1, len(stream) // size))
    step = data.draw(st.integers(100, 40_000))

    with contextlib.closing(slave(name, root)) as store:
        for at in range(begin, len(stream), step):
            store.append_bytes(at, stream[at : at + step])
        assert (store.log.min_offset, store.log.end_offset) == (begin, len(stream))
        for (topic, queue_id), units in _units_behind(name, begin).items():
            queue = store.queue(topic, queue_id)
            assert queue is not None
            assert queue.min_offset(begin) == units[0][0]
            assert queue.next_offset == units[-1][0] + 1

    assert findings(root, StoreConfig(settings_of(name))) == []
    theirs = StoreReader(golden_store(name)).consume_queues
    for key, units in _units_behind(name, begin).items():
        ours = StoreReader(root, StoreConfig(settings_of(name))).consume_queues[key]
        kept = ours.units(units[0][0], len(units))
        assert kept.tolist() == theirs[key].units(units[0][0], len(units)).tolist()
        before = ours.units(ours.segments[0].start_offset // consume_queue.UNIT_SIZE, units[0][0])
        filler = [unit for unit in before.tolist() if unit[0] < begin]
        assert set(filler) <= {(0, consume_queue.PRE_BLANK_SIZE, 0)}
    with contextlib.closing(slave(name, root)) as store:  # it is continued like any other
        assert store.append(new_message(), NOW).status is PutStatus.PUT_OK


def _units_behind(name: str, begin: int) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Return queue offset and address of the messages of each queue of a golden store from an address on."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for key, queue in StoreReader(golden_store(name)).consume_queues.items():
        rows = [
            (number, int(unit["physical_offset"]))
            for number, unit in enumerate(queue.units(0, queue.max_offset()))
            if unit["physical_offset"] >= begin
        ]
        if rows:
            found[key] = rows
    return found


@pytest.mark.parametrize("step", [100, 1 << 20])
def test_a_topic_that_its_master_deleted_and_made_again_begins_anew(tmp_path: Path, step: int) -> None:
    with opened(tmp_path / "master") as master:
        for number in range(20):
            master.append(new_message("Gone", queue_id=number % 3), NOW + number)
            master.append(new_message("Stays"), NOW + number)
        remove = master.let_go_topic("Gone")
        assert remove is not None
        master.write_units()
        remove()
        for number in range(5):
            master.append(new_message("Gone", queue_id=number % 2), NOW + 100 + number)
        size, end = master.log.file_size, master.log.end_offset
        stream = b"".join(bytes(master.log.read(at, end - at)) for at in range(0, end, size))
    with opened(tmp_path / "slave") as copy:
        for at in range(0, len(stream), step):
            copy.append_bytes(at, stream[at : at + step])
            copy.tick(NOW)
    assert files(tmp_path / "slave", *QUEUES) == files(tmp_path / "master", *QUEUES)
    assert contents(tmp_path / "slave", "index") == contents(tmp_path / "master", "index")


def test_bytes_that_do_not_follow_the_log_are_refused_and_change_nothing(tmp_path: Path) -> None:
    stream = log_of("mixed-533-clean")
    with contextlib.closing(slave("mixed-533-clean", tmp_path / "store")) as store:
        with pytest.raises(BadDataError, match="the bytes for 100 do not continue the log, which ends at 0"):
            store.append_bytes(100, stream[100:200])
        store.append_bytes(0, stream[:1000])
        for at in (0, 999, 1001, 65536):
            with pytest.raises(
                BadDataError, match=f"the bytes for {at:,} do not continue the log, which ends at 1,000"
            ):
                store.append_bytes(at, stream[at : at + 10])
        store.append_bytes(1000, b"")  # which tells that there is nothing new
        assert store.log.end_offset == 1000
        store.append_bytes(1000, stream[1000:])
    assert contents(tmp_path / "store", "consumequeue") == contents(golden_store("mixed-533-clean"), "consumequeue")


@pytest.mark.parametrize("position", [0, 4, 20, 28, 88])
@pytest.mark.parametrize("step", [60_000, 50])
def test_what_is_no_message_is_cut_off_again_and_the_log_goes_on_from_the_last_that_is_one(
    tmp_path: Path, position: int, step: int
) -> None:
    stream = log_of("mixed-533-clean")
    damaged = bytearray(stream[:60_000])
    third = manifest("mixed-533-clean")["messages"][2]["phy"]
    damaged[third + position] ^= 0x55
    root = tmp_path / "store"

    with contextlib.closing(slave("mixed-533-clean", root)) as store:
        with pytest.raises(BadDataError, match=f"{third:,}"):
            for at in range(0, len(damaged), step):
                store.append_bytes(at, bytes(damaged[at : at + step]))
        assert store.log.end_offset == third
        assert store.failure is None
        store.append_bytes(third, stream[third:])

    assert contents(root, "commitlog") == contents(golden_store("mixed-533-clean"), "commitlog")
    assert contents(root, "consumequeue") == contents(golden_store("mixed-533-clean"), "consumequeue")


@pytest.mark.parametrize("name", MASTERS)
@settings(max_examples=20)
@given(data=st.data())
def test_a_record_with_a_wrong_byte_is_refused_unless_the_schema_sees_another_message_of_a_queue(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    stream, messages = log_of(name), manifest(name)["messages"]
    in_first = [one for one in messages if one["phy"] < segment(name)]
    message = data.draw(st.sampled_from([one for one in in_first if "INNER_MULTI_DISPATCH" not in one["properties"]]))
    at, size = message["phy"], message["size"]
    record = bytearray(stream[at : at + size])
    place = data.draw(st.integers(4, size - 1) | st.just(size - 1))
    record[place] = data.draw((st.integers(0, 255) | st.just(0)).filter(lambda byte: byte != record[place]))

    with contextlib.closing(slave(name, tmp_path_factory.mktemp("slave") / "store")) as store:
        store.append_bytes(0, stream[:at])
        may_be = is_message(bytes(record), at, store)
        if may_be:
            store.append_bytes(at, bytes(record))
            assert store.dispatcher.next_offset == at + size
        else:
            with pytest.raises(BadDataError, match=f"{at:,}"):
                store.append_bytes(at, bytes(record))
            assert store.log.end_offset == store.dispatcher.next_offset == at


def is_message(record: bytes, at: int, store: MessageStore) -> bool:
    """Return whether a record is one by the schema, and the next of its queue, or the first of one that begins anew."""
    try:
        message = record_schemas.parse_message(record)
    except FormatError:
        return False
    crc = zlib.crc32(message.body) & 0x7FFFFFFF
    is_sound = (
        message.size == len(record) == len(record_schemas.MESSAGE.build(message))
        and message.magic_code in commit_log.MESSAGE_MAGICS
        and message.physical_offset == at
        and (message.body_crc == crc or not message.body)
        and b"\0" not in message.topic != b""
        and not message.properties.endswith(b"\0")
    )
    if not is_sound or message.sys_flag & commit_log.TRANSACTION_MASK not in (0, commit_log.TRANSACTION_COMMIT):
        return is_sound
    try:
        topic = message.topic.decode()
    except UnicodeDecodeError:
        return False
    if topic in store.dispatcher.queues.batch_topics and message.sys_flag & commit_log.INNER_BATCH:
        stated = re.search(rb"(?:^|\x02)INNER_NUM\x01([^\x02]+)", message.properties)
        if not (stated and re.fullmatch(rb"[+-]?\d+", stated[1]) and int(stated[1]) > 0):
            return False
    queue = store.queue(topic, message.queue_id)
    if queue is None:
        is_name = "/" not in topic and topic not in (".", "..")
        return is_name and message.queue_offset == 0 <= message.queue_id
    return message.queue_offset in (0, queue.next_offset)


@pytest.mark.parametrize("count", [b"32768", b"99999", b"-99999"])
def test_a_batch_that_states_more_messages_than_a_unit_can_hold_is_refused(tmp_path: Path, count: bytes) -> None:
    name = "batchcq-533-clean"
    stream, batch = log_of(name), next(one for one in manifest(name)["messages"] if "INNER_NUM" in one["properties"])
    stored = parse_stored(stream[batch["phy"] : batch["phy"] + batch["size"]])
    wrong, stated = stored.message, b"INNER_NUM\x01" + batch["properties"]["INNER_NUM"].encode()
    assert stated in wrong.properties
    wrong.properties = wrong.properties.replace(stated, b"INNER_NUM\x01" + count)
    topic, size = topic_field(wrong.topic), record_size(wrong, topic_field(wrong.topic), len(wrong.properties))
    record = build_record(wrong, topic, wrong.properties, size, stored.queue_offset, batch["phy"], NOW)

    with contextlib.closing(slave(name, tmp_path / "store")) as store:
        store.append_bytes(0, stream[: batch["phy"]])
        assert store.append(wrong, NOW).status is PutStatus.MESSAGE_ILLEGAL
        with pytest.raises(BadDataError, match=f"the batch at {batch['phy']:,} does not state how many"):
            store.append_bytes(batch["phy"], record)
        assert store.log.end_offset == batch["phy"]
    with contextlib.closing(slave(name, tmp_path / "store")) as store:
        store.append_bytes(batch["phy"], stream[batch["phy"] :])
    assert files(tmp_path / "store", *QUEUES) == files(golden_store(name), *QUEUES)


@pytest.mark.parametrize(
    ("topic", "queue_id"), [("../../elsewhere", 0), ("..", 0), ("a/b", 0), ("TopicTest", -1), ("t\0t", 0), ("", 0)]
)
def test_a_message_for_a_queue_that_cannot_be_makes_no_file_anywhere(tmp_path: Path, topic: str, queue_id: int) -> None:
    message, name = new_message(topic, queue_id=queue_id), topic_field(topic)
    record = build_record(message, name, b"", record_size(message, name, 0), 0, 0, NOW)
    with contextlib.closing(slave("mixed-533-clean", tmp_path / "store")) as store:
        with pytest.raises(BadDataError, match=r"the message at 0|no message starts at 0"):
            store.append_bytes(0, record)
        assert store.log.end_offset == 0
    assert not (tmp_path / "elsewhere").exists()
    assert not list((tmp_path / "store").rglob("b"))


def test_the_unused_end_of_a_segment_is_cut_off_where_the_master_has_lost_it_and_nothing_else(tmp_path: Path) -> None:
    stream, size = log_of("many-497-clean"), segment("many-497-clean")
    messages = [one for one in manifest("many-497-clean")["messages"] if one["phy"] < size]
    blank = messages[-1]["phy"] + messages[-1]["size"]
    with contextlib.closing(slave("many-497-clean", tmp_path / "store")) as store:
        store.append_bytes(0, stream[:size])
        for other in (blank - 1, messages[-1]["phy"], size, 0):
            assert not store.cut_blank(other)
        assert store.end_offset == size
        assert store.cut_blank(blank)
        assert store.end_offset == blank
        # The master writes it again, or a message that fits there.
        store.append_bytes(blank, stream[blank:])
    assert files(tmp_path / "store", *QUEUES) == files(golden_store("many-497-clean"), *QUEUES)


@pytest.mark.parametrize("name", MASTERS)
@pytest.mark.parametrize("half", [0, 1, 70])
def test_the_last_records_of_a_log_are_those_that_were_stored_last(tmp_path: Path, name: str, half: int) -> None:
    stream, messages = log_of(name), manifest(name)["messages"]
    end = messages[-1]["phy"] + half
    with contextlib.closing(slave(name, tmp_path / "store")) as store:
        store.append_bytes(0, stream[:end])
        found = store.last_records(16)
    expected = [(one["phy"], stream[one["phy"] : one["phy"] + one["size"]]) for one in messages[:-1]][-16:]
    if half:
        expected.append((messages[-1]["phy"], stream[messages[-1]["phy"] : end]))
    assert found == expected


class DiskWithoutRoom(Disk):
    """A disk without room for the log beyond an address of a segment."""

    room = 1 << 60

    def open(self, path: Path) -> OpenFile:
        file = super().open(path)
        if path.parent.name == "commitlog":
            write = file.write

            def refuse(at: int, data: bytes | bytearray) -> None:
                if any(data) and at + len(data) > self.room:
                    raise DiskFullError(f"no space left for {path}")
                write(at, data)

            file.write = refuse  # type: ignore[method-assign]
        return file


def test_a_full_disk_stops_the_bytes_that_come_until_there_is_room(tmp_path: Path) -> None:
    name, disk = "mixed-533-clean", DiskWithoutRoom()
    stream = log_of(name)
    config = StoreConfig(settings_of(name))
    with contextlib.closing(MessageStore(tmp_path / "store", config, now=0, usage=half_full, disk=disk)) as store:
        store.append_bytes(0, stream[:30_000])
        disk.room = 40_000
        with pytest.raises(DiskFullError):
            store.append_bytes(30_000, stream[30_000:50_000])
        assert store.log.end_offset == 30_000
        disk.room = 1 << 60
        store.tick(NOW)
        store.append_bytes(30_000, stream[30_000:])
    assert files(tmp_path / "store", *QUEUES) == files(golden_store(name), *QUEUES)
    assert [one for one in verify_store(StoreReader(tmp_path / "store", config)) if one.code != "CONFIG-MISSING"] == []


class DiskWithoutRoomForQueues(Disk):
    """A disk that is full whenever a unit of a queue is written, as long as that is so."""

    is_full = False

    def open(self, path: Path) -> OpenFile:
        file = super().open(path)
        if "consumequeue" in path.parts:
            write = file.write

            def refuse(at: int, data: bytes | bytearray) -> None:
                if self.is_full:
                    raise DiskFullError(f"no space left for {path}")
                write(at, data)

            file.write = refuse  # type: ignore[method-assign]
        return file


def test_where_units_cannot_be_written_no_more_bytes_are_taken_until_they_can(tmp_path: Path) -> None:
    name, disk = "mixed-533-clean", DiskWithoutRoomForQueues()
    stream, config = log_of(name), StoreConfig(settings_of(name))
    with contextlib.closing(MessageStore(tmp_path / "store", config, now=0, usage=half_full, disk=disk)) as store:
        store.append_bytes(0, stream[:30_000])
        store.tick(NOW)
        disk.is_full = True
        store.append_bytes(30_000, stream[30_000:40_000])
        store.tick(NOW + 1000)
        with pytest.raises(DiskFullError, match="disk is full"):
            store.append_bytes(40_000, stream[40_000:50_000])
        assert store.log.end_offset == 40_000
        disk.is_full = False
        store.tick(NOW + 2000)
        store.append_bytes(40_000, stream[40_000:])
    assert files(tmp_path / "store", *QUEUES) == files(golden_store(name), *QUEUES)


@pytest.mark.parametrize("half", [0, 1, 50, 80])
def test_a_message_that_is_stored_behind_bytes_that_came_is_the_next_of_its_queue(tmp_path: Path, half: int) -> None:
    with opened(tmp_path / "master") as master:
        for number in range(30):
            master.append(new_message(body=b"%d" % number), NOW + number)
        stream = bytes(master.log.read(0, master.log.end_offset))
    with opened(tmp_path / "slave") as promoted:
        promoted.append_bytes(0, stream + stream[:half])
        promoted.cut_half()
        result = promoted.append(new_message(body=b"of the slave"), NOW + 99)
        assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 30)
        assert result.physical_offsets == (len(stream),)
