"""The kernels made into machine code by numba: imported only where ``native`` finds none.

A copy of ``kernels`` whose inner loops use instructions of the processor, compiled as one object file of C functions.
"""

import types
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba.core import types as nb
from numba.extending import intrinsic

from mqtool.formats import clmul
from mqtool.formats import kernels as plain
from mqtool.formats.native import SIGNATURES, Code, Signature, source_of, target_machine

_NUMBER_TYPES = {"i8": nb.int64, "i4": nb.int32, "u4": nb.uint32, "u1": nb.uint8, "b1": nb.boolean}

_INLINE = {
    "separators",
    "copy",
    "_note_property",
    "_mix",
    "_topic",
    "_is_packed",
    "equal",
    "java_hash",
    "_letter",
    "index_hash",
    "crc_by_pairs",
    "crc_by_singles",
}
"""Called in inner loops, where a call would cost more than they do."""


def jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function`` for other compiled ones."""
    inline = function.__name__ in _INLINE
    compiled: Callable[..., Any] = numba.njit(error_model="numpy", forceinline=inline)(function)
    return compiled


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
    """Compare sixteen bytes with zero and both separators at once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], signature.args[1], nb.intp)
        vector = ir.VectorType(ir.IntType(8), 16)
        pointer = builder.bitcast(builder.gep(array.data, [at]), vector.as_pointer())
        data = builder.load(pointer, align=1)
        hits = builder.icmp_unsigned("<", data, vector([3] * 16))
        return builder.zext(builder.bitcast(hits, ir.IntType(16)), ir.IntType(64))

    return nb.int64(buffer, _at), generate


@intrinsic  # type: ignore[untyped-decorator]
def _lowest_bit(_typing: Any, marks: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return nb.int64(marks), generate


@intrinsic  # type: ignore[untyped-decorator]
def _hash_of_eight(_typing: Any, buffer: Any, _at: Any) -> Any:
    """Multiply eight letters at once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = context.cast(builder, arguments[1], signature.args[1], nb.intp)
        narrow, wide = ir.VectorType(ir.IntType(8), 8), ir.VectorType(ir.IntType(32), 8)
        pointer = builder.bitcast(builder.gep(array.data, [at]), narrow.as_pointer())
        letters = builder.zext(builder.load(pointer, align=1), wide)
        products = builder.mul(letters, wide([31**power & 0xFFFFFFFF for power in reversed(range(8))]))
        name = "llvm.vector.reduce.add.v8i32"
        form = ir.FunctionType(ir.IntType(32), [wide])
        add = builder.module.globals.get(name) or ir.Function(builder.module, form, name)
        return builder.zext(builder.call(add, [products]), ir.IntType(64))

    return nb.int64(buffer, _at), generate


def separators(buffer: Any, start: int, end: int) -> int:
    """Do what ``kernels.separators`` does."""
    if start + 16 <= len(buffer):
        marks: int = _separators(buffer, start)
        return marks & (1 << end - start) - 1 if end < start + 16 else marks
    marks = 0
    for at in range(start, min(start + 16, end)):
        if buffer[at] <= 2:
            marks |= 1 << at - start
    return marks


def copy(buffer: Any, at: int, size: int, out: Any, to: int) -> None:
    """Do what ``kernels.copy`` does."""
    for i in range(size):
        out[to + i] = buffer[at + i]


def functions() -> types.ModuleType:
    """Return the copy of ``kernels``, to be called by compiled functions."""
    module = types.ModuleType("mqtool.formats.kernels_compiled")
    exec(compile(source_of("kernels.py"), plain.__file__, "exec"), vars(module))
    for name, value in list(vars(module).items()):
        if isinstance(value, types.FunctionType):
            setattr(module, name, jit(value))
    for width in (8, 16, 32, 64):
        setattr(module, f"int{width}", _loader(width))
    module.separators = jit(separators)  # type: ignore[attr-defined]
    module.copy = jit(copy)  # type: ignore[attr-defined]
    module.lowest_bit = _lowest_bit  # type: ignore[attr-defined]
    module.hash_of_eight = _hash_of_eight  # type: ignore[attr-defined]
    module.prefetch = _prefetch  # type: ignore[attr-defined]
    module.crc32 = jit(clmul.crc32_kernel())  # type: ignore[attr-defined]
    return module


def code() -> Code:
    """Compile all kernels for this processor."""
    module = functions()
    wrappers = {name: _wrapper(getattr(module, name), signature) for name, signature in SIGNATURES.items()}
    whole = llvm.parse_assembly("")
    for wrapper in wrappers.values():
        whole.link_in(llvm.parse_assembly(wrapper.inspect_llvm()))
    missing = [value.name for value in (*whole.functions, *whole.global_variables) if value.is_declaration]
    data = target_machine().emit_object(whole)
    symbols = {name: wrapper.native_name for name, wrapper in wrappers.items()}
    return Code(symbols, [name for name in missing if not name.startswith("llvm.")], bytes(data))


def _wrapper(kernel: Any, signature: Signature) -> Any:
    """Return a C function that takes addresses and lengths, makes arrays of them and calls a kernel.

    Its last argument is where the result goes.
    """
    names, types_, call_arguments = [], [], []
    for number, argument in enumerate(signature.arguments.split()):
        name = f"a{number}"
        if argument.endswith("n"):
            parts = [f"{name}_{part}" for part in range(int(argument[:-1] or 1))]
            names += parts
            types_ += [nb.int64] * len(parts)
            call_arguments.append(parts[0] if argument == "n" else f"({', '.join(parts)})")
        else:
            dtype, _, dimensions = argument.strip(">").partition(",")
            sizes = [f"{name}_{part}" for part in range(int(dimensions or 1))]
            names += [name, *sizes]
            types_ += [nb.CPointer(_NUMBER_TYPES[dtype]), *[nb.int64] * len(sizes)]  # type: ignore[attr-defined]
            call_arguments.append(f"carray({name}, ({', '.join(sizes)},))")
    call = f"kernel({', '.join(call_arguments)})"
    lines = [f"def wrapper({', '.join([*names, 'out'])}):"]
    if signature.result is None:
        lines.append(f"    {call}")
    elif signature.result == "n":
        lines.append(f"    carray(out, (1,))[0] = {call}")
    else:
        lines.append(f"    result = {call}")
        lines += [f"    carray(out, (9,))[{part}] = result[{part}]" for part in range(int(signature.result[:-1]))]
    lines.append("    return 0")
    space: dict[str, Any] = {"kernel": kernel, "carray": numba.carray}
    exec("\n".join(lines), space)
    return numba.cfunc(nb.int64(*types_, nb.CPointer(nb.int64)), error_model="numpy")(space["wrapper"])  # type: ignore[attr-defined]
