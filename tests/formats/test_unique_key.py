"""Unique keys tell who made them and when, and no two are the same."""

import datetime

from hypothesis import given
from hypothesis import strategies as st

from mqtool.formats.unique_key import build_unique_key

ADDRESS = bytes((192, 0, 2, 7))


@given(st.integers(0, 4_000_000_000_000), st.integers(), st.integers(0, 0xFFFF))
def test_it_tells_its_maker_and_its_moment_in_the_month(now: int, maker: int, count: int) -> None:
    key = bytes.fromhex(build_unique_key(ADDRESS, 0x10007, maker, now, count))

    moment = datetime.datetime.fromtimestamp(now / 1000, datetime.UTC)
    month = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    assert (key[:4], key[4:6], int.from_bytes(key[6:10])) == (ADDRESS, b"\0\7", maker & 0xFFFFFFFF)
    assert int(month.timestamp()) * 1000 + int.from_bytes(key[10:14]) == now
    assert int.from_bytes(key[14:]) == count


@given(st.integers(0, 0xFFFF))
def test_within_a_millisecond_a_maker_makes_thousands(first: int) -> None:
    keys = {build_unique_key(ADDRESS, 1, 2, 1_700_000_000_000, first + number) for number in range(1000)}

    assert len(keys) == 1000
