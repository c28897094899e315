"""Compressed bodies: which codec ``sys_flag`` names, and the body it hides."""

import enum
import zlib

from mqtool.errors import FormatError
from mqtool.formats.codes import SysFlag

MAX_BODY = 256 << 20
"""No inflated body is larger: a few bytes of damage must not fill the memory."""

_ZSTD_STEP = 1 << 10

_COMPRESSED = int(SysFlag.COMPRESSED)  # a plain number takes a tenth of the time, with every message
_OLD_ZLIB = 0  # producers before 4.9.4


class Compression(enum.IntEnum):
    """How a body is compressed; RocketMQ's ``CompressionType``."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def compress(body: bytes, compression: Compression, level: int) -> tuple[bytes, int]:
    """Return the compressed body, and the bits of ``sys_flag`` that say so; the level is 1, fast, to 9, small."""
    if compression is Compression.LZ4:
        import lz4.frame

        small: bytes = lz4.frame.compress(body, compression_level=level)
    elif compression is Compression.ZSTD:
        import zstandard

        small = zstandard.ZstdCompressor(level).compress(body)
    else:
        small = zlib.compress(body, level)
    return small, int(SysFlag.COMPRESSED) | compression << 8


def decompress(body: bytes, sys_flag: int, most: int | None = None) -> bytes:
    """Return the body as the producer gave it.

    Raises:
        FormatError: the body is not what ``sys_flag`` says, or has more than ``most`` bytes, ``MAX_BODY`` if not given.
    """
    if not sys_flag & _COMPRESSED:
        return body
    codec = (sys_flag & SysFlag.COMPRESSION_MASK) >> 8
    most = MAX_BODY if most is None else most
    try:
        if codec in (_OLD_ZLIB, Compression.ZLIB):
            engine = zlib.decompressobj()
            plain = engine.decompress(body, most)
            whole = engine.eof
        elif codec == Compression.LZ4:
            import lz4.frame

            frame = lz4.frame.LZ4FrameDecompressor()
            plain = frame.decompress(body, most)
            whole = frame.eof
        elif codec == Compression.ZSTD:
            import zstandard

            # It cannot be told how much to give; of a little input it can make only so much.
            zstd = zstandard.ZstdDecompressor().decompressobj()
            grown = bytearray()
            for at in range(0, len(body), _ZSTD_STEP):
                grown += zstd.decompress(body[at : at + _ZSTD_STEP])
                if zstd.eof or len(grown) > most:
                    break
            plain = bytes(grown)
            whole = zstd.eof and len(plain) <= most
        else:
            raise FormatError(f"unknown compression type {codec}", offset=0)
    except (zlib.error, RuntimeError, ValueError, EOFError) as error:
        raise FormatError(f"cannot decompress the body ({error})", offset=0) from error
    except Exception as error:
        if type(error).__name__ == "ZstdError":
            raise FormatError(f"cannot decompress the body ({error})", offset=0) from error
        raise
    if not whole:
        raise FormatError("the compressed body is truncated or too large", offset=len(body))
    return plain
