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
Where the processor has no such multiplication, the kernel looks eight bytes up at a time.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, register_jitable, register_model

Array = Any
Function = TypeVar("Function", bound=Callable[..., Any])

POLYNOMIAL = 0x1_04C1_1DB7  # P, its highest power in the highest bit
ONES = 0xFFFF_FFFF  # what a CRC starts with, and is inverted with at the end
STEP = 64  # bytes


def has_carryless_multiply() -> bool:
    """Tell whether code that numba compiles here may multiply without carry."""
    return "pclmul" in _features()


def has_paired_multiply() -> bool:
    """Tell whether it may do so for two blocks at once."""
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
    """Return the lowest ``width`` bits in reverse.

    >>> hex(reflect(POLYNOMIAL, 33))
    '0x1db710641'
    """
    return int(f"{polynomial:0{width}b}"[::-1], 2)


def _byte_tables() -> Array:
    """Return by k and byte the CRC register after that byte and k zeros."""
    table = np.arange(256)
    for _ in range(8):
        table = table >> 1 ^ (table & 1) * reflect(POLYNOMIAL, 33) // 2
    tables = [table]
    for _ in range(7):
        tables.append(tables[-1] >> 8 ^ table[tables[-1] & 0xFF])
    return np.array(tables)
