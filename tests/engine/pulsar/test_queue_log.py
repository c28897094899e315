"""The entries of a queue, whatever its producers have sent: those of RocketMQ may write any property."""

import base64
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.pulsar import queue_log
from mqtool.engine.pulsar.entries import INDEX, OF_BATCH, RAW, ROOM, SINGLE, batch_body, entry_of, to_store, usual_batch
from mqtool.engine.pulsar.frames import PADDING, Payload, build_batch_body, build_payload, split_payload
from mqtool.engine.pulsar.queue_log import KeptEntries, QueueLog
from mqtool.engine.pulsar.wire import parse
from mqtool.engine.pulsar.wire_classes import MessageMetadata, SingleMetadata
from mqtool.engine.store.message_store import MessageStore
from mqtool.formats.codes import SysFlag
from mqtool.formats.new_message import NewMessage
from mqtool.formats.stored_message import stored_of, take_apart
from tests.engine.pulsar.flows import contents

NOW = 1_800_000_000_000
MOST = 4 << 20
HOST = bytes(4), 0


def text(message: MessageMetadata | SingleMetadata) -> bytes:
    return base64.b64encode(message.SerializeToString())


OF_ENTRY = text(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=2))
OF_CHUNK = text(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, uuid="u", chunk_id=0)).replace(
    b"A", b"/"
)
OF_ONE = text(SingleMetadata(payload_size=0))
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            INDEX: st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 2, 3, 5, 30_000])).map(
                lambda place: b"%d/%d" % place
            ),
            SINGLE: st.sampled_from([OF_ENTRY, OF_ONE, OF_CHUNK, b"!", b""]),
            OF_BATCH: st.sampled_from([OF_ENTRY, b"!"]),
            RAW: st.sampled_from([b"1", b"9"]),
        },
    ),
    min_size=1,
    max_size=8,
)


class CountedLog(QueueLog):
    """Counts the messages that it reads."""

    reads = 0

    def _record(self, offset: int):  # type: ignore[no-untyped-def]
        self.reads += 1
        return super()._record(offset)


def queue_of(root: Path, *stored: tuple[bytes, bytes, int]) -> tuple[MessageStore, CountedLog]:
    """Return a store whose queue has messages with these bodies, properties and flags."""
    store = MessageStore(root, now=NOW)
    for body, properties, sys_flag in stored:
        store.append(NewMessage("t", 0, body, properties, sys_flag, 0, NOW, HOST, HOST), NOW)
    return store, CountedLog(store, "t", 0, KeptEntries(), MOST)


@settings(max_examples=30, deadline=None)
@given(messages)
def test_each_message_is_in_one_entry_whatever_its_properties_say(
    tmp_path_factory: pytest.TempPathFactory, forged: list[dict[bytes, bytes]]
) -> None:
    joined = [b"".join(b"%b\1%b\2" % pair for pair in pairs.items()) for pairs in forged]
    store, log = queue_of(tmp_path_factory.mktemp("store"), *((b"body", properties, 0) for properties in joined))
    at = 0
    while at < log.end:
        entry = log.entry(at)
        assert entry is not None
        assert entry.offset <= at < entry.end <= log.end
        assert entry.offset == at, "nobody has been given the first messages of it"
        at = entry.end
    store.close()


@settings(max_examples=150, deadline=None)
@given(
    bodies=st.lists(st.sampled_from([b"", b"body", b"another", bytes(300)]), min_size=2, max_size=6),
    times=st.sampled_from([(0, 0), (9, 0), (0, 9)]),
    own=st.sampled_from(
        [b"", b"TAGS\1a\2", b"KEYS\1k\2", b"mine\1x\2", b"%b\1%d/2\2" % (INDEX, 1), b"%b\1!\2" % SINGLE]
    ),
    change=st.one_of(st.none(), st.tuples(st.integers(0, 4000), st.integers(0, 255))),
)
def test_a_batch_that_is_read_in_the_quick_way_is_the_one_that_is_read_message_by_message(
    bodies: list[bytes],
    times: tuple[int, int],
    own: bytes,
    change: tuple[int, int] | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("store")
    store = MessageStore(root, now=NOW)
    singles = [
        Payload(SingleMetadata(payload_size=len(body), event_time=times[number % 2]).SerializeToString(), body)
        for number, body in enumerate(bodies)
    ]
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=len(bodies))
    payload = build_payload(metadata.SerializeToString(), build_batch_body(singles))
    records = to_store(payload, MOST).records
    records[1] = records[1]._replace(properties=records[1].properties + own)
    batch = NewMessage("t", 0, batch_body(records), b"WAIT\1true\2", 0, 0, NOW, HOST, HOST)
    store.append_batch(batch, NOW)
    end = store.end_offset
    store.append(NewMessage("t", 0, b"the next", b"", 0, 0, NOW, HOST, HOST), NOW)
    if change is not None:
        with next((root / "commitlog").iterdir()).open("r+b") as file:
            file.seek(change[0] % end)
            file.write(bytes([change[1]]))

    quick = [QueueLog(store, "t", 0, KeptEntries(), MOST).entry(offset) for offset in range(len(bodies) + 1)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(queue_log, "usual_batch", lambda *_: None)
        slow = [QueueLog(store, "t", 0, KeptEntries(), MOST).entry(offset) for offset in range(len(bodies) + 1)]
    store.close()

    assert quick == slow
    if change is None and not own:
        assert quick[0] is not None
        assert contents(quick[0].payload) == contents(payload)


def test_batches_without_keys_and_properties_are_read_in_the_quick_way(tmp_path: Path) -> None:
    store = MessageStore(tmp_path, now=NOW)
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=3)
    singles = [
        Payload(SingleMetadata(payload_size=2, event_time=time).SerializeToString(), b"ab") for time in (1, 2, 2)
    ]
    split = to_store(build_payload(metadata.SerializeToString(), build_batch_body(singles)), MOST)
    store.append_batch(NewMessage("t", 0, batch_body(split.records), b"WAIT\1true\2", 0, 0, NOW, HOST, HOST), NOW)
    parts = [*take_apart(bytes(store.log.read(0, store.end_offset)))]
    store.close()

    entry = usual_batch(parts, MOST)

    assert entry is not None
    assert entry == entry_of([stored_of(one) for one in parts], MOST)
    assert usual_batch(parts[1:], MOST) is None
    assert usual_batch([parts[0], parts[2], parts[1]], MOST) is None


def test_a_batch_that_a_producer_of_rocketmq_has_made_up_is_read_once(tmp_path: Path) -> None:
    count = 300
    made_up = [(b"body", b"%b\1%d/%d\2" % (INDEX, number, count), 0) for number in range(count)]
    store, log = queue_of(tmp_path, *made_up)
    entries = [log.entry(at) for at in range(count)]
    store.close()

    assert [entry.offset for entry in entries if entry is not None] == [*range(count)]
    assert log.reads < 4 * count


def test_copies_of_a_batch_that_come_one_by_one_stay_the_entries_that_they_were(tmp_path: Path) -> None:
    own = [b"%b\1%d/2\2%b\1%b\2%b\1%b\2" % (INDEX, number, SINGLE, OF_ONE, OF_BATCH, OF_ENTRY) for number in (0, 1)]
    store, log = queue_of(tmp_path, (b"another", b"%b\x010/5\2" % INDEX, 0), (b"first", own[0], 0))
    first = log.entry(1)
    log.entry(0)  # as another subscription does
    store.append(NewMessage("t", 0, b"second", own[1], 0, 0, NOW + 1, HOST, HOST), NOW + 1)
    second = log.entry(2)
    store.close()

    assert first is not None
    assert second is not None
    assert (first.offset, first.size) == (1, 1)
    assert (second.offset, second.size) == (2, 1), "an acknowledgement of the first one is none of the second"


def test_a_body_of_rocketmq_that_would_fill_the_memory_comes_as_it_is_stored(tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(64 << 20))
    store, log = queue_of(tmp_path, (bomb, b"", int(SysFlag.COMPRESSED)))
    entry = log.entry(0)
    store.close()

    assert entry is not None
    assert split_payload(entry.payload).body == bomb


def test_a_message_of_rocketmq_that_is_too_long_for_clients_comes_compressed_or_is_none_for_them(
    tmp_path: Path,
) -> None:
    long, longest = bytes(MOST), random.Random(1).randbytes(MOST)
    store, log = queue_of(tmp_path, (long, b"", 0), (longest, b"", 0), (b"short", b"", 0))
    first, second, third = (log.entry(offset) for offset in range(3))
    store.close()

    assert first is not None
    assert second is not None
    assert third is not None
    raw, body = split_payload(first.payload)
    assert (zlib.decompress(body), parse(MessageMetadata, raw).uncompressed_size) == (long, MOST)
    assert len(first.payload) < MOST - ROOM + PADDING
    assert (second.is_marker, second.payload, second.size) == (True, b"", 1), "which is told as lost"
    assert split_payload(third.payload).body == b"short"
