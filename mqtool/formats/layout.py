"""One layout, many readers: the fields of a record, and the schema, dtype and packer that follow from them."""

import functools
import struct
from typing import TYPE_CHECKING, Any

from mqtool.errors import FormatError
from mqtool.late import np

if TYPE_CHECKING:
    from construct import Construct, Struct

# The fields of files and streams are big-endian, and signed.
I16, I32, I64 = "h", "i", "q"


def raw(size: int) -> str:
    """Return the code of a field of bytes that are no number."""
    return f"{size}s"


class Layout:
    """The fields of a record of fixed size, in order: each with the code that ``struct`` has for it.

    Libraries load when what they read is first asked for: a start waits for none of them.

    >>> unit = Layout(size=I32, address=raw(4), tags_code=I64)
    >>> unit.size, unit.offset_of("tags_code")
    (16, 8)
    """

    def __init__(self, **fields: str) -> None:
        for name, code in fields.items():
            if code not in (I16, I32, I64) and not (code[-1:] == "s" and code[:-1].isdecimal()):
                raise TypeError(f"{name}: {code!r} has no fixed layout")
        self.fields = fields
        self.size = _size("".join(fields.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(self.fields)

    def offset_of(self, name: str) -> int:
        """Return where a field lies, in bytes from the start of its record."""
        at = 0
        for field, code in self.fields.items():
            if field == name:
                return at
            at += _size(code)
        raise KeyError(name)

    def size_of(self, name: str) -> int:
        """Return how many bytes a field takes."""
        return _size(self.fields[name])

    @functools.cached_property
    def packer(self) -> struct.Struct:
        """What packs the fields in order, many times faster than ``schema.build``.

        >>> Layout(size=I32, address=raw(4), tags_code=I64).packer.format
        '>i4sq'
        """
        return struct.Struct(">" + "".join(self.fields.values()))

    @functools.cached_property
    def dtype(self) -> "np.dtype[np.void]":
        """The numpy dtype with the same fields at the same offsets.

        >>> Layout(size=I32, tags_code=I64).dtype
        dtype([('size', '>i4'), ('tags_code', '>i8')])
        """
        # Not numpy's "S" for bytes: it would drop trailing zeros.
        numbers = {I16: ">i2", I32: ">i4", I64: ">i8"}
        return np.dtype(
            [
                (name, numbers[code]) if code in numbers else (name, "u1", (_size(code),))
                for name, code in self.fields.items()
            ]
        )

    @functools.cached_property
    def schema(self) -> "Struct":
        """The construct schema, which parses and builds single records field by field.

        >>> Layout(size=I32, tags_code=I64).schema.parse(bytes(11) + b"7").tags_code
        55
        """
        from construct import Bytes, Int16sb, Int32sb, Int64sb, Struct

        numbers = {I16: Int16sb, I32: Int32sb, I64: Int64sb}
        return Struct(*(name / numbers.get(code, Bytes(_size(code))) for name, code in self.fields.items()))


def _size(codes: str) -> int:
    return struct.calcsize(f">{codes}")


def parse(schema: "Construct", data: bytes | memoryview, layout_name: str) -> Any:
    """Parse ``data`` with ``schema``.

    Raises:
        FormatError: the bytes do not fit; ``layout_name`` names what they should have been.
    """
    from construct import ConstructError

    try:
        return schema.parse(bytes(data))
    except (ConstructError, ValueError, OverflowError) as error:
        raise FormatError(f"{layout_name} does not fit its layout ({type(error).__name__})", offset=0) from error
