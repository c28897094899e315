"""One layout, two readers: a construct schema and the numpy dtype that follows from it."""

import functools
import struct
from typing import Any

import numpy as np
from construct import Bytes, Construct, ConstructError, FormatField, Struct

from mqtool.errors import FormatError


def dtype_of(schema: Struct) -> np.dtype[np.void]:
    """Return the dtype with the same fields at the same offsets as ``schema``.

    >>> from construct import Int32sb, Int64sb
    >>> dtype_of(Struct("size" / Int32sb, "tags_code" / Int64sb))
    dtype([('size', '>i4'), ('tags_code', '>i8')])
    """
    return np.dtype([(field.name, *_code(field.subcon)) for field in schema.subcons])


def offset_of(dtype: np.dtype[np.void], name: str) -> int:
    """Return where a field lies, in bytes from the start of its record.

    >>> offset_of(np.dtype([("size", ">i4"), ("tags_code", ">i8")]), "tags_code")
    4
    """
    fields = dtype.fields
    assert fields is not None
    return int(fields[name][1])


def packer_of(schema: Struct) -> struct.Struct:
    """Return what packs the fields of ``schema`` in order, many times faster than ``schema.build``.

    >>> from construct import Bytes, Int32sb, Int64sb
    >>> packer_of(Struct("size" / Int32sb, "address" / Bytes(4), "tags_code" / Int64sb)).format
    '>i4sq'
    """
    return struct.Struct(">" + "".join(_letter(field.subcon) for field in schema.subcons))


def _letter(subcon: Construct) -> str:
    if isinstance(subcon, Bytes):
        return f"{subcon.sizeof()}s"
    order, letter = subcon.fmtstr[0], str(subcon.fmtstr[1])
    if order != ">":
        raise TypeError(f"{subcon!r} is not big-endian")
    # struct and construct mean the same by ">l": four bytes.
    return {"l": "i", "L": "I"}.get(letter, letter)


@functools.singledispatch
def _code(subcon: Construct) -> tuple[Any, ...]:
    raise TypeError(f"{subcon!r} has no fixed layout")


@_code.register
def _(number: FormatField) -> tuple[Any, ...]:
    # construct writes a four-byte int as ">l", which numpy reads as eight bytes,
    # so the width is taken from sizeof() and only order and sign from the letter.
    order, letter = number.fmtstr
    return (f"{order}{'i' if letter.islower() else 'u'}{number.sizeof()}",)


@_code.register
def _(raw: Bytes) -> tuple[Any, ...]:
    # numpy's "S" would drop trailing zeros.
    return ("u1", (raw.sizeof(),))


def parse(schema: Construct, data: bytes | memoryview, layout_name: str) -> Any:
    """Parse ``data`` with ``schema``.

    Raises:
        FormatError: the bytes do not fit; ``layout_name`` names what they should have been.
    """
    try:
        return schema.parse(bytes(data))
    except (ConstructError, ValueError, OverflowError) as error:
        raise FormatError(f"{layout_name} does not fit its layout ({type(error).__name__})", offset=0) from error
