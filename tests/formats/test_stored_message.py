"""The quick reader of one record, held against the schema."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import FormatError
from mqtool.formats import record_schemas
from mqtool.formats.stored_message import parse_stored
from tests import builders


@given(builders.logs(max_size=3))
def test_reader_and_schema_agree(records: list[bytes]) -> None:
    for record in records:
        stored, parsed = parse_stored(record), record_schemas.parse_message(record)

        assert (stored.size, stored.queue_offset) == (parsed.size, parsed.queue_offset)
        assert (stored.physical_offset, stored.store_timestamp) == (parsed.physical_offset, parsed.store_timestamp)
        message = stored.message
        for name in (*_SAME, "body", "properties"):
            assert getattr(message, name) == getattr(parsed, name)
        assert message.topic.encode("utf-8", "surrogateescape") == parsed.topic
        assert message.born_host == (parsed.born_address, parsed.born_port)
        assert message.store_host == (parsed.store_address, parsed.store_port)


_SAME = ("queue_id", "flag", "sys_flag", "born_timestamp", "reconsume_times", "prepared_transaction_offset")


@given(builders.logs(max_size=1), st.data())
def test_a_record_that_is_cut_or_too_long_is_none(records: list[bytes], data: Any) -> None:
    record = records[0]
    cut = data.draw(st.integers(0, len(record) - 1))

    for wrong in (record[:cut], record + b"\0"):
        with pytest.raises(FormatError):
            parse_stored(wrong)
