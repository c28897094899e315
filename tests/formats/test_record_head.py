"""Numbers of a record's head read one by one, held against the schema."""

from hypothesis import given
from hypothesis import strategies as st

from mqtool.formats import commit_log, record_head, record_schemas
from tests import builders


@given(builders.logs(max_size=3), st.integers(0, 9))
def test_each_number_is_that_of_the_schema(records: list[bytes], before: int) -> None:
    for record in records:
        parsed, data = record_schemas.parse_message(record), memoryview(bytes(before) + record)

        assert record_head.read_start(data, before) == (parsed.size, parsed.magic_code)
        for name in ("body_crc", "queue_offset", "physical_offset", "sys_flag", "store_timestamp"):
            assert getattr(record_head, name)(data, before) == parsed[name], name
        assert record_head.store_timestamp(record[: record_head.STORE_TIMESTAMP_END]) == parsed.store_timestamp


@given(st.binary(max_size=7))
def test_a_record_whose_start_is_cut_off_has_no_size_and_no_magic_code(data: bytes) -> None:
    assert record_head.read_start(data) == (0, 0)


def test_a_blank_starts_as_the_schema_says() -> None:
    assert commit_log.BLANK.schema.parse(record_head.blank(77)) == {"size": 77, "magic_code": commit_log.MAGIC_BLANK}
