"""Bodies as Pulsar compresses them; what comes out is never longer than it says, nor than is allowed."""

import zlib

import lz4.block
import zstandard

from mqtool.errors import FormatError

NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)


def decompress(data: bytes, kind: int, size: int, most: int) -> bytes:
    """Return what was compressed.

    Args:
        data: as it came.
        kind: of compression, by Pulsar's numbers.
        size: of what comes out, as the producer says.
        most: what may come out, in bytes.

    Raises:
        FormatError: it is something else, or more than that.
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
    # By pieces: a frame may promise any size.
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
