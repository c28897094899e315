"""Body CRC by carry-less multiplication: the CRC-32 of zlib over many ranges of a buffer.

The way of Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009), for
a CRC of reflected bits. Sixteen bytes, a block, are a polynomial over GF(2). Its lowest bit is the coefficient of
x^127, so its low half L is the upper one: block = L·x^64 + H. Its CRC is block·x^32 mod P, and that takes three rules:

    fold      block·x^d ≡ L·(x^(d+64) mod P) + H·(x^d mod P)      moves a block by d bits, onto a later one
    shorten   block·x^32 ≡ L·(x^96 mod P) + H·x^32 = T            96 bits are left
    Barrett   T mod P = T + floor(T / P)·P mod x^32               floor(T / P) = floor(floor(T / x^32)·M / x^64),
                                                                  M = floor(x^96 / P)

A body is folded in steps of 64 bytes, or of 16 where it is short. What it has beyond whole steps is taken at its front:
the first step is loaded with the bytes after that masked out, and folded by as many bytes as are left. So a tail costs
nothing, and nothing outside the body is read.

This module imports numba, so only compiled code asks for it; its kernels are plain functions for numba to compile.
If the processor has no such multiplication, a kernel looks up eight bytes at a time.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, register_jitable, register_model

Array = Any
Function = TypeVar("Function", bound=Callable[..., Any])

POLYNOMIAL = 0x1_04C1_1DB7  # P, its highest power in the highest bit
ONES = 0xFFFF_FFFF  # what a CRC starts with, and is inverted with at the end
STEP = 64  # bytes


def has_carryless_multiply() -> bool:
    """Return whether code that numba compiles here may multiply without carry."""
    return "pclmul" in _features()


def has_paired_multiply() -> bool:
    """Return whether it may do so for two blocks at once."""
    return _features() >= {"pclmul", "vpclmulqdq", "avx2"}


def _features() -> set[str]:
    # numba's own key: what it compiles for, which the user may set, and what its cache tells apart. So a processor
    # never gets a kernel that was compiled for a better one.
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return {name[1:] for name in features.split(",") if name[:1] == "+"} if triple.startswith("x86_64") else set()


# Constants.


def move(polynomial: int, bits: int) -> int:
    """Return polynomial·x^bits mod P, also for less than no bits.

    >>> hex(move(1, 32)), hex(move(0x04C11DB7, -32))
    ('0x4c11db7', '0x1')
    """
    for _ in range(bits):
        polynomial = polynomial << 1 ^ (polynomial >> 31) * POLYNOMIAL
    for _ in range(-bits):
        polynomial = (polynomial ^ (polynomial & 1) * POLYNOMIAL) >> 1
    return polynomial


def quotient(power: int) -> int:
    """Return floor(x^power / P).

    >>> hex(quotient(64))
    '0x104d101df'
    """
    result, rest = 0, 1 << power
    for bit in range(power - 32, -1, -1):
        if rest >> bit + 32:
            result, rest = result | 1 << bit, rest ^ POLYNOMIAL << bit
    return result


def reflect(polynomial: int, width: int) -> int:
    """Return the ``width`` bits of a polynomial in reverse.

    >>> hex(reflect(POLYNOMIAL, 33))
    '0x1db710641'
    """
    return int(f"{polynomial:0{width}b}"[::-1], 2)


def _byte_tables() -> Array:
    """Return by k and byte the CRC after that byte and k zeros, as signed numbers, which numba mixes with others."""
    table = np.arange(256)
    for _ in range(8):
        table = table >> 1 ^ (table & 1) * reflect(POLYNOMIAL & ONES, 32)
    tables = [table]
    for _ in range(7):
        tables.append(tables[-1] >> 8 ^ table[tables[-1] & 0xFF])
    return np.array(tables, np.uint32).view(np.int32)


# The factors of L and H, by bytes to fold over. The lowest bit of each is x^63, and that of their product x^126, where
# a block has x^127: so they are one power short.
FOLDS = np.array(
    [[reflect(move(1, 8 * size + 63), 64), reflect(move(1, 8 * size - 1), 64)] for size in range(STEP + 1)], np.uint64
)
# What starts the CRC of less than 16 bytes, by their number: added to the last four bytes of a block, not the first.
SEEDS = np.array([reflect(move(ONES, 8 * size - 32), 32) for size in range(16)])
# From MASK[STEP - n] on, n bytes are kept and the others cleared.
MASK = np.repeat(np.array([0xFF, 0], np.uint8), STEP)
BYTES = _byte_tables()

# The lowest bit of T is x^95 and that of L x^63, so that of this factor is x^32.
SHORTEN = reflect(move(1, 96), 33)
# The lowest bit of floor(T / x^32) is x^63. With x^64 in that of M, the low half of the product is floor(T / P); only
# the last coefficient of M does not fit, and it adds nothing to that half.
BARRETT = reflect(quotient(96) >> 1, 64)
# The last 32 coefficients of the product with P fall on those of T.
MODULUS = reflect(POLYNOMIAL, 33)


# Instructions that compiled code may use, as functions. Some blocks are a list of registers here.

HALF, PLACE, OCTET = ir.IntType(64), ir.IntType(32), ir.IntType(8)


class Blocks(types.Type):
    """Some blocks in registers that hold one or two each."""

    def __init__(self, registers: int, blocks_each: int) -> None:
        self.form = ir.ArrayType(ir.VectorType(HALF, 2 * blocks_each), registers)
        super().__init__(f"Blocks({registers}, {blocks_each})")


@register_model(Blocks)
class _BlocksModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, blocks: Blocks) -> None:
        super().__init__(manager, blocks, blocks.form)


BLOCK, FOUR_SINGLES, TWO_PAIRS = Blocks(1, 1), Blocks(4, 1), Blocks(2, 2)


def _instructions(result: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let compiled code call what emits instructions; it returns what its first argument is, or ``result``."""

    def make(emit: Callable[..., Any]) -> Callable[..., Any]:
        def generate(_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emitted = emit(builder, *(_registers(builder, argument) for argument in arguments))
            if not isinstance(emitted, list):
                return emitted
            value = ir.Constant(signature.return_type.form, ir.Undefined)
            for index, register in enumerate(emitted):
                value = builder.insert_value(value, register, index)
            return value

        def form(*arguments: Any) -> Any:
            return (result or arguments[0])(*arguments), generate

        forms: tuple[Callable[..., Any], ...] = (
            lambda _: form(),
            lambda _, a: form(a),
            lambda _, a, b: form(a, b),
            lambda _, a, b, c: form(a, b, c),
        )
        instructions: Callable[..., Any] = intrinsic(forms[len(inspect.signature(emit).parameters) - 1])
        return instructions

    return make


def _registers(builder: Any, value: Any) -> Any:
    if not isinstance(value.type, ir.ArrayType):
        return value
    return [builder.extract_value(value, index) for index in range(value.type.count)]


@_instructions(FOUR_SINGLES)
def four_singles(_: Any) -> Any:
    """Return four empty blocks."""
    return [_constant(0, 0)] * 4


@_instructions(TWO_PAIRS)
def two_pairs(_: Any) -> Any:
    """Return four empty blocks in two registers."""
    return [_constant(0, 0, 0, 0)] * 2


@_instructions(BLOCK)
def block_of(builder: Any, low: Any, high: Any) -> Any:
    """Return two numbers as a block."""
    return [builder.insert_element(builder.insert_element(_constant(0, 0), low, PLACE(0)), high, PLACE(1))]


@_instructions(types.intp)
def width(_: Any, blocks: Any) -> Any:
    """Return how many bytes there are."""
    return HALF(sum(8 * register.type.count for register in blocks))


@_instructions(types.int64)
def load_byte(builder: Any, address: Any) -> Any:
    """Return the byte at that place."""
    return builder.zext(_load(builder, OCTET, address), HALF)


@_instructions(types.int64)
def load_half(builder: Any, address: Any) -> Any:
    """Return the eight bytes at that place, the first one the lowest."""
    value = _load(builder, HALF, address)
    return value if sys.byteorder == "little" else builder.bswap(value)


@_instructions()
def load(builder: Any, like: Any, address: Any) -> Any:
    """Return the bytes at that place, as many as ``like`` has."""
    return _load_registers(builder, like, address)


@_instructions()
def load_masked(builder: Any, like: Any, address: Any, mask: Any) -> Any:
    """Return the same, but only the bits that are set at the address ``mask``."""
    pairs = zip(_load_registers(builder, like, address), _load_registers(builder, like, mask), strict=True)
    return [builder.and_(value, kept) for value, kept in pairs]


@_instructions()
def inverted(builder: Any, blocks: Any) -> Any:
    """Return the same with the first four bytes inverted, as a CRC starts."""
    return [builder.xor(blocks[0], _constant(ONES, *[0] * (blocks[0].type.count - 1))), *blocks[1:]]


@_instructions()
def fold(builder: Any, blocks: Any, factors: Any, onto: Any) -> Any:
    """Return each of ``blocks`` times the factors, added to its like in ``onto``."""
    places = _places([0, 1] * (blocks[0].type.count // 2))
    repeated = builder.shuffle_vector(factors[0], factors[0], places)
    return [_fold(builder, block, repeated, later) for block, later in zip(blocks, onto, strict=True)]


@_instructions(BLOCK)
def joined(builder: Any, blocks: Any) -> Any:
    """Return all folded onto the last."""
    *earlier, last = blocks
    for count, register in enumerate(reversed(earlier), 1):
        factors = FOLDS[8 * last.type.count * count].tolist()
        last = _fold(builder, register, _constant(*factors * (last.type.count // 2)), last)
    if last.type.count == 2:
        return [last]
    first, second = (builder.shuffle_vector(last, last, _places(places)) for places in ([0, 1], [2, 3]))
    return [_fold(builder, first, _constant(*FOLDS[16].tolist()), second)]


@_instructions(types.uint32)
def crc_of(builder: Any, block: Any) -> Any:
    """Return what is left of the block modulo P, inverted."""
    high = builder.shuffle_vector(block[0], _constant(0, 0), _places([1, 2]))
    short = builder.xor(_multiply(builder, block[0], _constant(SHORTEN, 0), 0), high)
    whole = _multiply(builder, short, _constant(BARRETT, 0), 0)
    rest = builder.xor(_multiply(builder, whole, _constant(MODULUS, 0), 0), short)
    return builder.not_(builder.trunc(builder.extract_element(rest, PLACE(1)), ir.IntType(32)))


def _constant(*halves: int) -> Any:
    return ir.Constant(ir.VectorType(HALF, len(halves)), halves)


def _places(places: list[int]) -> Any:
    return ir.Constant(ir.VectorType(PLACE, len(places)), places)


def _load_registers(builder: Any, like: Any, address: Any) -> list[Any]:
    step = 8 * like[0].type.count
    return [_load(builder, each.type, builder.add(address, HALF(step * index))) for index, each in enumerate(like)]


def _load(builder: Any, form: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, form.as_pointer()), align=1)


def _fold(builder: Any, register: Any, factors: Any, onto: Any) -> Any:
    low, high = (_multiply(builder, register, factors, half) for half in (0, 1))
    return builder.xor(builder.xor(onto, low), high)


def _multiply(builder: Any, a: Any, b: Any, half: int) -> Any:
    name = "llvm.x86.pclmulqdq" if a.type.count == 2 else "llvm.x86.pclmulqdq.256"
    form = ir.FunctionType(a.type, [a.type, a.type, OCTET])
    function = builder.module.globals.get(name) or ir.Function(builder.module, form, name)
    return builder.call(function, [a, b, OCTET(0x11 * half)])


# Kernels. `start` is an address.


def _inlined(function: Function) -> Function:
    inlined: Function = register_jitable(forceinline=True)(function)
    return inlined


@_inlined
def factors_over(size: int) -> Any:
    """Return the factors that fold over this many bytes."""
    return load(block_of(0, 0), FOLDS.ctypes.data + 16 * size)


@_inlined
def fold_body(like: Any, start: int, size: int) -> Any:
    """Return a block with the CRC of a body no smaller than ``like``."""
    step = width(like)
    head = ((size - 1) & (step - 1)) + 1
    blocks = inverted(load_masked(like, start, MASK.ctypes.data + (STEP - head)))
    factors = factors_over(head)
    for at in range(start + head, start + size, step):
        blocks = fold(blocks, factors, load(like, at))
        factors = factors_over(step)
    return joined(blocks)


@_inlined
def place_body(start: int, size: int) -> Any:
    """Return a block with the CRC of a body of less than 16 bytes: they are its last."""
    low = high = 0
    if size >= 8:
        low = load_half(start) << 8 * (15 - size) << 8
        high = load_half(start + size - 8)
    else:
        for index in range(size):
            high |= load_byte(start + index) << 8 * (8 - size + index)
    return block_of(low, high ^ SEEDS[size] << 32)


@_inlined
def crc_by_folding(like: Any, start: int, size: int) -> int:
    """Return the CRC of a body; ``like`` is what a step is loaded into."""
    if size >= STEP:
        block = fold_body(like, start, size)
    elif size >= 16:
        block = fold_body(block_of(0, 0), start, size)
    else:
        block = place_body(start, size)
    crc: int = crc_of(block)
    return crc


def crc_by_singles(buffer: Array, offset: int, size: int) -> int:
    """Do the work of ``crc32`` with a multiplication of one block at a time."""
    crc: int = crc_by_folding(four_singles(), buffer.ctypes.data + offset, size)
    return crc


def crc_by_pairs(buffer: Array, offset: int, size: int) -> int:
    """Do the work of ``crc32`` with a multiplication of two blocks at a time."""
    crc: int = crc_by_folding(two_pairs(), buffer.ctypes.data + offset, size)
    return crc


@_inlined
def look_up(eight: int) -> int:
    """Return the CRC of eight bytes."""
    early = BYTES[3, eight >> 32 & 0xFF] ^ BYTES[2, eight >> 40 & 0xFF]
    early ^= BYTES[1, eight >> 48 & 0xFF] ^ BYTES[0, eight >> 56 & 0xFF]
    late = BYTES[7, eight & 0xFF] ^ BYTES[6, eight >> 8 & 0xFF]
    late ^= BYTES[5, eight >> 16 & 0xFF] ^ BYTES[4, eight >> 24 & 0xFF]
    crc: int = (early ^ late) & ONES
    return crc


def crc_by_bytes(buffer: Array, offset: int, size: int) -> int:
    """Do the work of ``crc32`` with tables."""
    at = buffer.ctypes.data + offset
    end = at + size
    crc = ONES
    while at + 8 <= end:
        crc = look_up(load_half(at) ^ crc)
        at += 8
    while at < end:
        crc = (BYTES[0, (load_byte(at) ^ crc) & 0xFF] ^ crc >> 8) & ONES
        at += 1
    return crc ^ ONES


def crc32_kernel() -> Callable[[Array, int, int], int]:
    """Return the kernel for this processor, to be compiled.

    It takes a contiguous array of bytes, the offset and the size of a range, and returns its CRC. The range must be in
    the buffer; nothing outside of it is read.
    """
    if has_paired_multiply():
        return crc_by_pairs
    return crc_by_singles if has_carryless_multiply() else crc_by_bytes
