"""DLedger's log and index: every entry and unit of the golden store, and records that stand inside made-up ones."""

import itertools
import struct

from hypothesis import given

from mqtool.formats import dledger
from mqtool.formats.record_schemas import parse_message
from tests import builders
from tests.formats.golden_bytes import log, records
from tests.golden import golden_store, manifest

NAME = "dledger-497-clean"


def entries() -> list[tuple[int, bytes, bytes]]:
    """Return position, head and body of each entry of the golden log."""
    found = []
    for start, data in zip(*log(NAME), strict=True):
        at = 0
        while struct.unpack_from(">i", data, at) == (dledger.MAGIC,):
            head = data[at : at + dledger.ENTRY_HEAD_SIZE]
            size = struct.unpack_from(">i", head, 4)[0]
            found.append((start + at, head, data[at + dledger.ENTRY_HEAD_SIZE : at + size]))
            at += size
    return found


def test_every_entry_is_parsed_and_built_back() -> None:
    assert dledger.ENTRY_HEAD_SIZE == 48
    for number, (position, raw, body) in enumerate(entries()):
        head = dledger.ENTRY_HEAD.schema.parse(raw)

        assert dledger.ENTRY_HEAD.schema.build(head) == raw
        assert (head.index, head.position) == (number, position)
        assert head.size == dledger.ENTRY_HEAD_SIZE + len(body)
        assert head.body_size == len(body)


def test_entries_hold_the_messages_that_java_reads() -> None:
    bodies = {position + dledger.ENTRY_HEAD_SIZE: body for position, _, body in entries()}

    assert bodies == {told["phy"]: raw for told, raw in records(NAME)}
    assert len(bodies) == len(manifest(NAME)["messages"]) == 180


def test_the_rest_of_a_file_is_marked_as_unused() -> None:
    (position, raw, body) = next(
        first for first, second in itertools.pairwise(entries()) if second[0] != first[0] + 48 + len(first[2])
    )
    starts, contents = log(NAME)
    end = position + len(raw) + len(body)

    assert struct.unpack_from(">i", contents[0], end - starts[0]) == (dledger.MAGIC_BLANK,)


def test_every_unit_of_the_index_is_parsed_and_built_back_and_finds_its_entry() -> None:
    (file,) = (golden_store(NAME) / "dledger-n0/index").iterdir()
    found = entries()
    size = dledger.INDEX_UNIT_SIZE
    with file.open("rb") as opened:  # 160 MiB, nearly all of it a hole
        data = opened.read(size * (len(found) + 1))

    for number, (position, head, body) in enumerate(found):
        raw = data[size * number : size * (number + 1)]
        unit = dledger.INDEX_UNIT.schema.parse(raw)
        assert dledger.INDEX_UNIT.schema.build(unit) == raw
        assert (unit.index, unit.position, unit.size) == (number, position, len(head) + len(body))
        assert unit.term == dledger.ENTRY_HEAD.schema.parse(head).term
    assert not any(data[size * len(found) :])


@given(builders.dledger_logs)
def test_made_up_entries_hold_records_that_lie_where_they_say(built: list[bytes]) -> None:
    at = 0
    for number, entry in enumerate(built):
        head = dledger.ENTRY_HEAD.schema.parse(entry)
        message = parse_message(entry[dledger.ENTRY_HEAD_SIZE :])
        assert (head.index, head.position, head.size) == (number, at, len(entry))
        assert message.physical_offset == at + dledger.ENTRY_HEAD_SIZE
        at += len(entry)
