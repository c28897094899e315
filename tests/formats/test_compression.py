"""Compressed bodies: those of golden stores by every codec, frames as other writers make them, and bombs."""

import contextlib
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import FormatError
from mqtool.formats import compression
from mqtool.formats.commit_log import COMPRESSED, COMPRESSION_MASK
from mqtool.formats.compression import decompress
from mqtool.formats.record_schemas import parse_message
from tests.damage import cut, flipped
from tests.formats.golden_bytes import records
from tests.golden import GOLDEN_NAMES

LZ4, ZSTD, ZLIB = 0x100 | COMPRESSED, 0x200 | COMPRESSED, 0x300 | COMPRESSED
OLD_ZLIB = COMPRESSED


def zstd_without_size(plain: bytes) -> bytes:
    """Return a frame that does not tell how much is in it, as Java's stream writes it."""
    engine = zstandard.ZstdCompressor().compressobj()
    return engine.compress(plain) + engine.flush()


CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "zlib of producers before 4.9.4": (OLD_ZLIB, zlib.compress),
    "zlib": (ZLIB, lambda plain: zlib.compress(plain, 9)),
    "lz4": (LZ4, lz4.frame.compress),
    "lz4 with checksums": (LZ4, lambda plain: lz4.frame.compress(plain, content_checksum=True, block_checksum=True)),
    "zstd": (ZSTD, zstandard.ZstdCompressor().compress),
    "zstd without size": (ZSTD, zstd_without_size),
}
codecs = pytest.mark.parametrize(("sys_flag", "compress"), CODECS.values(), ids=CODECS)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_body_is_what_java_inflates(name: str) -> None:
    for told, raw in records(name):
        body = parse_message(raw).body

        plain = decompress(body, told["sys_flag"])

        if told["sys_flag"] & COMPRESSED:
            assert (len(plain), zlib.crc32(plain) & 0x7FFFFFFF) == (told["plain_body_len"], told["plain_body_crc32"])
        else:
            assert plain is body


def test_golden_stores_have_bodies_of_every_codec() -> None:
    flags = {told["sys_flag"] for name in GOLDEN_NAMES for told, _ in records(name)}

    assert {(flag & COMPRESSION_MASK) >> 8 for flag in flags if flag & COMPRESSED} == {1, 2, 3}


@codecs
@given(plain=st.binary(max_size=5000) | st.binary(max_size=20).map(lambda part: part * 500))
def test_a_body_comes_back(sys_flag: int, compress: Callable[[bytes], bytes], plain: bytes) -> None:
    assert decompress(compress(plain), sys_flag) == plain


@codecs
@given(data=st.data())
def test_a_body_that_is_cut_is_a_format_error(
    sys_flag: int, compress: Callable[[bytes], bytes], data: st.DataObject
) -> None:
    with pytest.raises(FormatError, match="compressed body"):
        decompress(data.draw(cut(compress(bytes(range(256))))), sys_flag)


@codecs
@given(data=st.data())
def test_a_damaged_body_is_a_body_or_a_format_error(
    sys_flag: int, compress: Callable[[bytes], bytes], data: st.DataObject
) -> None:
    with contextlib.suppress(FormatError):
        decompress(data.draw(flipped(compress(bytes(range(256))))), sys_flag)


@pytest.mark.parametrize("sys_flag", [OLD_ZLIB, LZ4, ZSTD, ZLIB])
@given(body=st.binary(max_size=200))
def test_any_bytes_are_a_body_or_a_format_error(sys_flag: int, body: bytes) -> None:
    with contextlib.suppress(FormatError):
        decompress(body, sys_flag)


@pytest.mark.parametrize("codec", [4, 5, 6, 7])
def test_a_codec_that_does_not_exist_is_a_format_error(codec: int) -> None:
    with pytest.raises(FormatError, match=f"unknown compression type {codec}"):
        decompress(b"", COMPRESSED | codec << 8)


@codecs
def test_a_body_that_swells_is_given_up_where_it_is_too_large(
    sys_flag: int, compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "MAX_BODY", 1 << 20)
    bomb = compress(bytes(1 << 20 | 1))
    assert len(bomb) < 10_000

    with pytest.raises(FormatError, match="too large"):
        decompress(bomb, sys_flag)


@codecs
def test_a_body_may_be_as_large_as_the_limit(
    sys_flag: int, compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "MAX_BODY", 1 << 20)

    assert decompress(compress(bytes(1 << 20)), sys_flag) == bytes(1 << 20)


@pytest.mark.parametrize(
    ("sys_flag", "engine"),
    [
        (ZLIB, zlib.compressobj()),
        (LZ4, lz4.frame.LZ4FrameCompressor()),
        (ZSTD, zstandard.ZstdCompressor().compressobj()),
    ],
    ids=["zlib", "lz4", "zstd"],
)
def test_a_bomb_that_hides_its_size_takes_little_memory(
    sys_flag: int, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "MAX_BODY", 1 << 20)
    head = engine.begin() if sys_flag == LZ4 else b""
    bomb = head + b"".join(engine.compress(bytes(1 << 20)) for _ in range(256)) + engine.flush()
    assert len(bomb) < 2 << 20

    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="too large"):
            decompress(bomb, sys_flag)
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()
