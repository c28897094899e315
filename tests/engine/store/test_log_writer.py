"""The log of a new store, held against logs that brokers would write."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.store.commit_log import CommitLog, Gap
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.log_writer import LogWriter
from mqtool.errors import BadDataError
from mqtool.formats import kernels as plain
from mqtool.formats import scan
from tests import builders
from tests.damage import snapshot

SEGMENT = 4096


def written(folder: Path, records: list[bytes], start_offset: int = 0, at_once: int = 5) -> LogWriter:
    folder.mkdir(parents=True)
    log = LogWriter(Disk(), folder, SEGMENT, start_offset)
    for first in range(0, len(records), at_once):
        batch = records[first : first + at_once]
        sizes = np.array([len(one) for one in batch], np.int64)
        log.append(np.frombuffer(bytearray().join(batch), np.uint8), sizes)
    log.finish()
    return log


@given(drafts=builders.drafts, start=st.sampled_from([0, 2 * SEGMENT]), at_once=st.integers(1, 50))
def test_a_log_is_laid_out_as_a_broker_would(
    tmp_path_factory: pytest.TempPathFactory, drafts: list[builders.Draft], start: int, at_once: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("log")
    stored = builders.write_store(tmp_path / "store", drafts, builders.StoreSizes(SEGMENT), start)
    displaced = [one.record[:28] + bytes(8) + one.record[36:] for one in stored]

    log = written(tmp_path / "new", displaced, start, at_once)

    expected = {name: state[:2] for name, state in snapshot(tmp_path / "store" / "commitlog").items()}
    assert {name: state[:2] for name, state in snapshot(tmp_path / "new").items()} == expected
    if stored:
        assert log.last_start == stored[-1].physical_offset
        assert log.end_offset == stored[-1].physical_offset + len(stored[-1].record)


@pytest.mark.parametrize("left", range(7, 11))
def test_a_record_leaves_room_for_a_blank_one(tmp_path: Path, left: int) -> None:
    size = SEGMENT - left
    whole = builders.record(body=bytes(size - len(builders.record())))
    assert len(whole) == size

    if left < 8:
        with pytest.raises(BadDataError, match="does not fit into a segment of 4,096"):
            written(tmp_path / "log", [whole])
        return
    written(tmp_path / "log", [whole, builders.record()])

    raw = (tmp_path / "log" / f"{0:020}").read_bytes()
    assert raw[size : size + 8] == builders.blank(left)[:8]
    assert (tmp_path / "log" / f"{SEGMENT:020}").exists()


def test_a_crc_property_covers_the_new_address(tmp_path: Path) -> None:
    records = [builders.with_crc_property(77, body=bytes([n]) * 900) for n in range(8)]

    written(tmp_path / "log", records)

    log = CommitLog([tmp_path / "log"])
    found = 0
    for table in (one for segment in log.segments for one in log.walk(segment, 0, segment.size, plain)):
        if not isinstance(table, Gap):
            for row in range(len(table)):
                record = table.record(row)
                crc = zlib.crc32(record[:-20]) & 0x7FFFFFFF
                assert record[-11:-1] == f"{crc:010}"[::-1].encode()
                assert table.column("physical_offset")[row] == table.column("position")[row]
                found += 1
    assert found == len(records)


def test_a_body_that_looks_like_a_crc_property_stays_as_it_is(tmp_path: Path) -> None:
    text = b"__CRC32#\x010123456789\x02"
    record = builders.record(body=text, topic="")

    written(tmp_path / "log", [record])

    (table,) = (
        one for one in CommitLog([tmp_path / "log"]).tables(0, SEGMENT, plain) if isinstance(one, scan.MessageTable)
    )
    assert table.bytes_of(plain.BODY, 0) == text
