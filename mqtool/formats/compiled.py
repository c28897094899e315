"""The kernels compiled by numba: imported only where there is much to scan.

A copy of ``kernels`` whose functions are compiled when first called, and stored where numba can write.
"""

import contextlib
import ctypes
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import types as nb
from numba.extending import intrinsic

from mqtool.formats import clmul
from mqtool.formats import kernels as plain

_NAME = "mqtool.formats.kernels_compiled"


# Of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3

_INLINE = {"separators", "_note_property", "equal", "java_hash", "index_hash"}
"""Called in inner loops, where a call would cost more than they do."""


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function`` without the interpreter's lock; keep the result on disk where that is possible."""
    options = {"nogil": True, "error_model": "numpy", "forceinline": function.__name__ in _INLINE}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no place to write: read-only site-packages, no home
        compiled = numba.njit(**options)(function)
    return compiled  # type: ignore[no-any-return]


def _loader(width: int) -> Any:
    """Return an intrinsic that reads a signed big-endian number of ``width`` bits in one load."""

    @intrinsic  # type: ignore[untyped-decorator]
    def load(_typing: Any, buffer: Any, _at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            at = context.cast(builder, arguments[1], signature.args[1], nb.intp)
            integer = ir.IntType(width)
            pointer = builder.bitcast(builder.gep(array.data, [at]), integer.as_pointer())
            value = builder.load(pointer, align=1)
            if width > 8:
                value = builder.bswap(value)
            return builder.sext(value, ir.IntType(64)) if width < 64 else value

        return nb.int64(buffer, _at), generate

    return load


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(_typing: Any, buffer: Any, _at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], signature.args[1], nb.intp)
        pointer = ir.IntType(8).as_pointer()
        flag = ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        call = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), function)
        # To read, soon, data.
        place = builder.bitcast(builder.gep(array.data, [at]), pointer)
        builder.call(call, [place, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return nb.none(buffer, _at), generate


@intrinsic  # type: ignore[untyped-decorator]
def _separators(_typing: Any, buffer: Any, _at: Any) -> Any:
    """Compare sixteen bytes with both separators at once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], signature.args[1], nb.intp)
        vector = ir.VectorType(ir.IntType(8), 16)
        pointer = builder.bitcast(builder.gep(array.data, [at]), vector.as_pointer())
        data = builder.load(pointer, align=1)
        # As 1 and 2 are the only bytes that lie below 2 once 1 is taken away.
        moved = builder.sub(data, vector([1] * 16))
        hits = builder.icmp_unsigned("<", moved, vector([2] * 16))
        return builder.zext(builder.bitcast(hits, ir.IntType(16)), ir.IntType(64))

    return nb.int64(buffer, _at), generate


@intrinsic  # type: ignore[untyped-decorator]
def _lowest_bit(_typing: Any, marks: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return nb.int64(marks), generate


def separators(buffer: Any, start: int, end: int) -> int:
    """Do what ``kernels.separators`` does."""
    if start + 16 <= len(buffer):
        marks: int = _separators(buffer, start)
        return marks & (1 << end - start) - 1 if end < start + 16 else marks
    marks = 0
    for at in range(start, min(start + 16, end)):
        if 1 <= buffer[at] <= 2:
            marks |= 1 << at - start
    return marks


def _compile() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, plain.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module  # a stored kernel looks its module up by name
    spec.loader.exec_module(module)
    for name, value in list(vars(module).items()):
        if isinstance(value, types.FunctionType):
            setattr(module, name, jit(value))
    for width in (8, 16, 32, 64):
        setattr(module, f"int{width}", _loader(width))
    module.separators = jit(separators)  # type: ignore[attr-defined]
    module.lowest_bit = _lowest_bit  # type: ignore[attr-defined]
    module.prefetch = _prefetch  # type: ignore[attr-defined]
    module.body_crcs = jit(clmul.body_crcs_kernel())  # type: ignore[attr-defined]
    return module


def _keep_memory() -> None:
    """Have glibc keep what is freed: tables come and go by the thousand, and new pages cost more than filling them."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, size in ((_TRIM_THRESHOLD, 256 << 20), (_MMAP_THRESHOLD, 32 << 20), (_TOP_PAD, 16 << 20)):
            mallopt(parameter, size)


_keep_memory()
kernels: Any = _compile()


def is_stored() -> bool:
    """Tell whether an earlier run left compiled kernels for this processor behind."""
    index = getattr(kernels.hop._cache, "_cache_file", None)
    return index is not None and bool(index._load_index())
