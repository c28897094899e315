"""The kernels compiled by numba: imported only where there is much to scan.

A copy of ``kernels`` whose functions are compiled when first called, and stored where numba can write.
"""

import importlib.util
import types
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import types as nb
from numba.extending import intrinsic

from mqtool.formats import clmul
from mqtool.formats import kernels as plain


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function`` without the interpreter's lock; keep the result on disk where that is possible."""
    try:
        compiled = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # no place to write: read-only site-packages, no home
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled  # type: ignore[no-any-return]


def _loader(width: int) -> Any:
    """Return an intrinsic that reads a signed big-endian number of ``width`` bits in one load."""

    @intrinsic
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


def _compile() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("mqtool.formats.kernels_compiled", plain.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in list(vars(module).items()):
        if isinstance(value, types.FunctionType):
            setattr(module, name, jit(value))
    for width in (8, 16, 32, 64):
        setattr(module, f"int{width}", _loader(width))
    module.body_crcs = clmul.body_crcs  # type: ignore[attr-defined]
    return module


kernels: Any = _compile()
