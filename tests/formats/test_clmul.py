import contextlib
import ctypes
import io
import mmap
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba.core.registry import cpu_target

from mqtool.commands._output import Output
from mqtool.formats import clmul, kernel_cache, scan

Crcs = Callable[[Any, list[tuple[int, int]]], list[int]]

KERNELS = [
    pytest.param(clmul.crc_by_bytes, id="bytes"),
    pytest.param(
        clmul.crc_by_singles,
        id="singles",
        marks=pytest.mark.skipif(not clmul.has_carryless_multiply(), reason="the processor cannot"),
    ),
    pytest.param(
        clmul.crc_by_pairs,
        id="pairs",
        marks=pytest.mark.skipif(not clmul.has_paired_multiply(), reason="the processor cannot"),
    ),
]
NOISE = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)


@pytest.fixture(scope="module", params=KERNELS)
def crcs(request: pytest.FixtureRequest) -> Crcs:
    """The CRCs of some ranges, (offset, size) each, by each kernel."""
    kernel = numba.njit(nogil=True, error_model="numpy")(request.param)

    def run(buffer: Any, ranges: list[tuple[int, int]]) -> list[int]:
        return [int(kernel(buffer, offset, size)) for offset, size in ranges]

    return run


def expected(buffer: Any, ranges: list[tuple[int, int]]) -> list[int]:
    return [zlib.crc32(buffer[offset : offset + size]) for offset, size in ranges]


def remainder(polynomial: int) -> int:
    while (excess := polynomial.bit_length() - 33) >= 0:
        polynomial ^= clmul.POLYNOMIAL << excess
    return polynomial


def product(a: int, b: int) -> int:
    result = 0
    for bit in range(b.bit_length()):
        result ^= (b >> bit & 1) * (a << bit)
    return result


def test_every_size_at_every_alignment(crcs: Crcs) -> None:
    ranges = [(alignment, size) for alignment in range(16) for size in range(601)]

    assert crcs(NOISE, ranges) == expected(NOISE, ranges)


@pytest.mark.parametrize("size", [4095, 4096, 4097, 65535, 65536, 65537, 1 << 20])
def test_large_bodies(crcs: Crcs, size: int) -> None:
    ranges = [(0, size), (len(NOISE) - size, size)]

    assert crcs(NOISE, ranges) == expected(NOISE, ranges)


@given(st.data())
def test_any_ranges_also_of_a_buffer_that_cannot_be_written(crcs: Crcs, data: st.DataObject) -> None:
    text = data.draw(st.binary(max_size=300))
    offsets = data.draw(st.lists(st.integers(0, len(text))))
    ranges = [(offset, data.draw(st.integers(0, len(text) - offset))) for offset in offsets]

    assert crcs(np.frombuffer(text, np.uint8), ranges) == expected(text, ranges)


@given(st.integers(1, 200), st.sampled_from([0x00, 0xFF]))
def test_bytes_that_are_all_alike(crcs: Crcs, size: int, byte: int) -> None:
    buffer = np.full(size, byte, np.uint8)

    assert crcs(buffer, [(0, size)]) == expected(buffer, [(0, size)])


@pytest.mark.skipif(os.name != "posix", reason="needs mprotect")
def test_nothing_outside_a_range_is_read(crcs: Crcs) -> None:
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 3 * page)
    memory[page : 2 * page] = NOISE[:page].tobytes()
    buffer = np.frombuffer(memory, np.uint8)
    for forbidden in (0, 2 * page):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(buffer.ctypes.data + forbidden), page, 0) == 0  # PROT_NONE
    sizes = [*range(601), page]
    ranges = [(page, size) for size in sizes] + [(2 * page - size, size) for size in sizes]

    assert crcs(buffer, ranges) == expected(buffer, ranges)


def test_a_range_may_end_where_a_mapped_file_ends(crcs: Crcs, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(NOISE[: mmap.PAGESIZE].tobytes())
    with file.open("rb") as opened:
        buffer = np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    ranges = [(len(buffer) - size, size) for size in range(601)]

    assert crcs(buffer, ranges) == expected(buffer, ranges)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, clmul.STEP))
@example((1 << 64) - 1, 0)
def test_folds_move_either_half_of_a_block(half: int, size: int) -> None:
    # What the multiplication makes of two numbers of 64 reflected bits is x times their product.
    low, high = (clmul.reflect(int(factor), 64) for factor in clmul.FOLDS[size])

    assert remainder(product(half, low) << 1) == remainder(half << 8 * size + 64)
    assert remainder(product(half, high) << 1) == remainder(half << 8 * size)


@given(st.integers(0, (1 << 96) - 1))
def test_barrett_divides_96_bits(polynomial: int) -> None:
    m = clmul.reflect(clmul.BARRETT, 64) << 1

    quotient = product(polynomial >> 32, m) >> 64

    rest = polynomial ^ product(quotient, clmul.POLYNOMIAL)
    assert rest == remainder(polynomial)


@given(st.integers(1, (1 << 32) - 1), st.integers(0, 500))
def test_moving_back_undoes_moving(polynomial: int, bits: int) -> None:
    moved = clmul.move(polynomial, bits)

    assert moved == remainder(polynomial << bits)
    assert clmul.move(moved, -bits) == polynomial


def test_constants_that_others_have_published() -> None:
    # zlib's table; k4 and P' that Intel's paper gives for gzip.
    assert int(clmul.BYTES[0, 1]) & clmul.ONES == 0x77073096
    assert clmul.SHORTEN == 0x0CCAA009E
    assert clmul.MODULUS == 0x1DB710641


@pytest.mark.parametrize(
    ("features", "kernel"),
    [
        ("", clmul.crc_by_bytes),
        ("+avx2,-pclmul", clmul.crc_by_bytes),
        ("+pclmul,-vpclmulqdq", clmul.crc_by_singles),
        ("+pclmul,+vpclmulqdq,-avx2", clmul.crc_by_singles),
        ("+avx2,+pclmul,+vpclmulqdq", clmul.crc_by_pairs),
    ],
)
def test_the_kernel_is_the_best_that_numba_may_compile(
    monkeypatch: pytest.MonkeyPatch, features: str, kernel: Any
) -> None:
    codegen = cpu_target.target_context.codegen()
    monkeypatch.setattr(type(codegen), "magic_tuple", lambda _: ("x86_64-unknown-linux-gnu", "any", features))

    assert clmul.crc32_kernel() is kernel


def test_no_instruction_of_x86_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    codegen = cpu_target.target_context.codegen()
    monkeypatch.setattr(type(codegen), "magic_tuple", lambda _: ("aarch64-apple-darwin", "any", "+aes,+pclmul"))

    assert clmul.crc32_kernel() is clmul.crc_by_bytes


PROGRAM = """
import sys, numpy
from mqtool.formats import kernel_cache, native

native.SIGNATURES = {"body_crcs": native.SIGNATURES["body_crcs"]}  # to compile all takes ten times as long
was_stored = kernel_cache.is_stored()
out = numpy.zeros(1, numpy.uint32)
kernel_cache.kernels().body_crcs(numpy.arange(200, dtype=numpy.uint8), numpy.array([1]), numpy.array([150]), out)
print(was_stored, "numba" in sys.modules, out[0])
"""


def run_program(cache: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(cache), **environment, "XDG_CACHE_HOME": str(cache)},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.split()


CRC = str(zlib.crc32(bytes(range(1, 151))))


def test_a_cache_serves_each_processor_its_own_code_without_numba(tmp_path: Path) -> None:
    for stored in ("False", "True"):
        compiled = "False" if stored == "True" else "True"
        assert run_program(tmp_path) == [stored, compiled, CRC]
        assert run_program(tmp_path, NUMBA_CPU_NAME="generic") == [stored, compiled, CRC]


def test_code_that_is_not_whole_is_made_again(tmp_path: Path) -> None:
    run_program(tmp_path)
    (file,) = (tmp_path / "mqtool").iterdir()
    whole = file.read_bytes()

    for damaged in (whole[:-1], whole[: len(whole) // 2] + b"!" + whole[len(whole) // 2 + 1 :], b""):
        file.write_bytes(damaged)
        assert run_program(tmp_path) == ["False", "True", CRC]
        assert run_program(tmp_path) == ["True", "False", CRC]


def test_where_the_cache_cannot_be_used_code_is_kept_among_temporary_files_if_they_are_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mqtool").write_bytes(b"no folder")
    folder = tmp_path / f"mqtool-{os.geteuid()}"

    assert run_program(tmp_path) == ["False", "True", CRC]
    assert run_program(tmp_path) == ["True", "False", CRC]
    assert folder.stat().st_mode & 0o777 == 0o700

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for mode, is_stored in ((0o700, True), (0o777, False)):  # what others may write to is not run
        folder.chmod(mode)
        kernel_cache._stored.cache_clear()
        assert kernel_cache.is_stored() is is_stored
    kernel_cache._stored.cache_clear()


def test_a_cache_that_cannot_keep_anything_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "good"))
    assert kernel_cache.why_not_kept() is None

    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kernel_cache.why_not_kept() is None  # among temporary files

    second = tmp_path / f"mqtool-{os.geteuid()}"
    second.rmdir()
    second.symlink_to(tmp_path / "good")
    why = kernel_cache.why_not_kept()
    assert why is not None
    assert str(tmp_path / "file/mqtool") in why
    assert str(second) in why
    assert "XDG_CACHE_HOME" in why
    output = Output("jsonl")
    kernel_cache._stored.cache_clear()  # what another test found in another place
    with contextlib.redirect_stderr(io.StringIO()) as remarks:
        output.tell_compiling(scan.COMPILE_FROM)
    kernel_cache._stored.cache_clear()
    assert why in remarks.getvalue()
    assert "in every run" in remarks.getvalue()


def test_code_that_is_not_whole_does_not_count_as_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_program(tmp_path)
    (file,) = (tmp_path / "mqtool").iterdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel_cache._stored.cache_clear()
    assert kernel_cache.is_stored()

    file.write_bytes(file.read_bytes()[:-1])
    kernel_cache._stored.cache_clear()

    assert not kernel_cache.is_stored()
