"""Machine code as functions that take arrays and numbers, and run without the interpreter's lock.

Loading numba takes half a second; loading code that numba has made takes some milliseconds (``kernel_cache``).
"""

import ctypes
import os
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt


class Signature(NamedTuple):
    """What a kernel takes and returns.

    Of ``arguments`` each is ``n``, a number; ``3n``, a tuple of so many; or an array by its dtype, with ``,2`` behind
    it when it has two dimensions and ``>`` before it when the kernel writes to it. ``result`` is one of the first two.
    """

    arguments: str
    result: str | None = None


SIGNATURES = {
    "hop": Signature("u1 n n n 3n n 2n >i8", "3n"),
    "gather": Signature("u1 i8 i8,2 i8,2 4n n 3n >i4,2 >i8,2 >i8,2 >u1"),
    "intern": Signature("u1 i8 i8 >i4 >i4 >i8", "n"),
    "find_properties": Signature("u1 i8 i8 u1 i8 i8,2 >i8,2 >i8,2 >b1"),
    "list_properties": Signature("u1 i8 i8 >i4 >i8 >i8 >i8 >i8", "n"),
    "pack": Signature("u1 i8 i8 >i4 >u1"),
    "hashes": Signature("u1 i8 i8 >i8"),
    "key_hashes": Signature("u1 i4 i8 i8 i8 i8 i8 i8 i8 i8 b1 >i8 >i4 >b1", "n"),
    "check_chains": Signature("u1 n n n n n >i4 >i8 >i8", "n"),
    "agree": Signature("u1 n n 3n i4 i8 i8 n", "n"),
    "link_entries": Signature("i4 n >i4 >i4"),
    "body_crcs": Signature("u1 i8 i8 >u4"),
    "fast_path": Signature("u1 n n n 2n 10n n 5n n n >i4 >i8,2 >i8 >i4,2 >i8,2 >i8 >i4 >b1 >i8", "5n"),
    "java_hash": Signature("u1 n n n", "n"),
    "separators": Signature("u1 n n", "n"),
    "equal": Signature("u1 n u1 n n", "n"),
}


class Code(NamedTuple):
    """Machine code of all kernels."""

    symbols: Mapping[str, str]  # by kernel
    missing: list[str]  # what numba's own library would provide, for errors that no kernel raises
    data: bytes  # an object file


class Kernels:
    """The functions, by their names."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        vars(self).update(functions)


def load(code: Code) -> Kernels:
    """Return the functions of an object file."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
    for name in code.missing:
        if llvm.address_of_symbol(name) is None:
            llvm.add_symbol(name, abort)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.data))
    engine.finalize_object()
    functions = {}
    for name, symbol in code.symbols.items():
        functions[name] = _function(engine.get_function_address(symbol), SIGNATURES[name])
    kernels = Kernels(functions)
    vars(kernels)["_engine"] = engine  # which owns the code
    return kernels


def target_machine() -> llvm.TargetMachine:
    """Return what code is made for: this processor, or what numba's settings say instead."""
    name, features = processor()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=name, features=features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )


def processor() -> tuple[str, str]:
    """Return name and features of the processor that code is made for."""
    name = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        features = "" if name == "generic" else llvm.get_host_cpu_features().flatten()
    return name, features


def _function(address: int, signature: Signature) -> Callable[..., Any]:
    """Return a function that takes arrays and numbers, and passes addresses and lengths on."""
    converters = [_converter(code) for code in signature.arguments.split()]
    count = int(signature.result[:-1] or 1) if signature.result else 0
    call = ctypes.CFUNCTYPE(ctypes.c_int64)(address)

    def function(*arguments: Any) -> Any:
        words: list[Any] = []
        kept = [convert(words, argument) for convert, argument in zip(converters, arguments, strict=True)]
        out = np.zeros(max(count, 1), np.int64)
        call(*words, ctypes.c_int64(_address(out)))
        del kept  # arrays that live as long as the call
        return tuple(out.tolist()) if count > 1 else int(out[0]) if count else None

    return function


def _converter(code: str) -> Callable[[list[Any], Any], Any]:
    """Return what adds the words of one argument, and returns what must be kept until the call is over."""
    if code.endswith("n"):

        def add_numbers(words: list[Any], numbers: Any) -> Any:
            words += map(ctypes.c_int64, numbers if len(code) > 1 else (numbers,))

        return add_numbers
    is_output = code.startswith(">")
    dtype = np.dtype(code.strip(">").partition(",")[0])

    def add_array(words: list[Any], argument: Any) -> Any:
        array = np.ascontiguousarray(argument, dtype)
        if is_output and array is not argument:
            raise TypeError(f"a kernel cannot write to this array: {argument.dtype}, strides {argument.strides}")
        words.append(ctypes.c_int64(_address(array)))
        words += map(ctypes.c_int64, array.shape)
        return array

    return add_array


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def source_of(name: str) -> bytes:
    """Return the text of a file beside this one; the package may be in a zip file, as Spark ships it."""
    text = pkgutil.get_data(__package__, name)
    assert text is not None
    return text
