"""Decompression of Pulsar's bodies; the result is never longer than declared, nor than allowed."""

import zlib

import lz4.block
import zstandard

from mqtool.errors import FormatError

NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)


def decompress(data: bytes, kind: int, size: int, most: int) -> bytes:
    """Return the decompressed data.

    Args:
        data: as received.
        kind: the type of compression, by Pulsar's numbers.
        size: of the decompressed data, as the producer declares it.
        most: the maximum size of the decompressed data, in bytes.

    Raises:
        FormatError: the data cannot be decompressed, does not have that size, or is larger than allowed.
    """
    if kind == NONE:
        return data
    if size > most:
        raise FormatError(f"a body of {size:,} bytes", 0)
    try:
        unpacked = _DECOMPRESS[kind](data, size)
    except (KeyError, ValueError, zlib.error, lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        raise FormatError("a body that cannot be decompressed", 0) from error
    if len(unpacked) != size:
        raise FormatError(f"a body that does not have {size:,} bytes, as it says", 0)
    return unpacked


def _lz4(data: bytes, size: int) -> bytes:
    return bytes(lz4.block.decompress(data, uncompressed_size=size)) if size else b""


def _zlib(data: bytes, size: int) -> bytes:
    return zlib.decompressobj().decompress(data, size + 1)


def _zstd(data: bytes, size: int) -> bytes:
    # In pieces: a frame may declare any size.
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data)
    return reader.read(size + 1)


def _snappy(data: bytes, size: int) -> bytes:
    import cramjam

    try:
        if cramjam.snappy.decompress_raw_len(data) != size:
            raise ValueError(f"not {size} bytes")
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from error


_DECOMPRESS = {LZ4: _lz4, ZLIB: _zlib, ZSTD: _zstd, SNAPPY: _snappy}
