"""CRC-32C: every implementation against the standard's vectors, the others and the crc32c package."""

import ctypes
import mmap
import threading
from collections.abc import Iterator
from typing import Any

import crc32c as crc32c_package
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.native import _core, reference

IMPLEMENTATIONS = _core.crc32c_implementations()
VECTORS = {
    b"": (0x00000000, 0xA282EAD8),
    b"a": (0xC1D04330, 0x28E46E78),
    b"123456789": (0xE3069283, 0xC78AB0E5),
    bytes(32): (0x8A9136AA, 0x0FD7FFFA),
    b"\xff" * 32: (0x62A8AB43, 0xF909B029),
    bytes(range(32)): (0x46DD794E, 0x951F7892),
}
NOISE = np.random.default_rng(1).bytes(300_000)


@pytest.fixture(autouse=True)
def restore_implementation() -> Iterator[None]:
    before = _core.crc32c_implementation()
    yield
    _core.set_crc32c_implementation(before)


def by_each_implementation(data: bytes | memoryview) -> set[int]:
    answers = set()
    for name in IMPLEMENTATIONS:
        _core.set_crc32c_implementation(name)
        answers.add(_core.crc32c(data))
    return answers


def test_the_fastest_implementation_is_in_use() -> None:
    assert IMPLEMENTATIONS[-1] == "portable"
    assert len(set(IMPLEMENTATIONS)) == len(IMPLEMENTATIONS) <= 2
    assert _core.crc32c_implementation() == IMPLEMENTATIONS[0]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_an_implementation_can_be_chosen(name: str) -> None:
    _core.set_crc32c_implementation(name)
    assert _core.crc32c_implementation() == name


@pytest.mark.parametrize("name", ["", "SSE42", "sse4", "fastest"])
def test_an_unknown_implementation_is_refused(name: str) -> None:
    before = _core.crc32c_implementation()
    with pytest.raises(ValueError, match="portable"):
        _core.set_crc32c_implementation(name)
    assert _core.crc32c_implementation() == before


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("data", VECTORS)
def test_vectors(data: bytes, name: str) -> None:
    _core.set_crc32c_implementation(name)
    assert (_core.crc32c(data), _core.masked_crc32c(data)) == VECTORS[data]


# The hardware loop takes 24 bytes a step and joins its three parts after at most 12 KiB.
@pytest.mark.parametrize("start", [0, 24 * 512 - 40, 2 * 24 * 512 - 40, 3 * 24 * 512 - 40])
def test_every_size_near_the_edges_of_the_loops(start: int) -> None:
    for size in range(start, start + 200):
        data = NOISE[:size]
        assert by_each_implementation(data) == {crc32c_package.crc32c(data)}, size


@given(size=st.integers(0, 40_000), offset=st.integers(0, 70))
def test_any_size_and_alignment(size: int, offset: int) -> None:
    data = memoryview(NOISE)[offset : offset + size]
    assert by_each_implementation(data) == {crc32c_package.crc32c(data)}


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    assert by_each_implementation(data) == {crc32c_package.crc32c(data)}


def test_a_large_input() -> None:
    assert by_each_implementation(NOISE) == {crc32c_package.crc32c(NOISE)}


def test_nothing_is_read_beyond_the_input() -> None:
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 4 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    # After this any access to the last page ends the process.
    assert libc.mprotect(ctypes.c_void_p(address + 3 * page), ctypes.c_size_t(page), 0) == 0
    try:
        for size in [*range(300), page, 3 * page - 1, 3 * page]:
            assert len(by_each_implementation(memoryview(memory)[3 * page - size : 3 * page])) == 1
    finally:
        assert libc.mprotect(ctypes.c_void_p(address + 3 * page), ctypes.c_size_t(page), 3) == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_taken(kind: type) -> None:
    assert _core.crc32c(kind(b"123456789")) == 0xE3069283
    assert _core.masked_crc32c(kind(b"123456789")) == 0xC78AB0E5


def test_arrays_count_by_their_bytes() -> None:
    values: Any = np.arange(50, dtype=np.float32).reshape(5, 10)
    assert _core.crc32c(values) == crc32c_package.crc32c(values.tobytes())


def test_text_is_no_buffer() -> None:
    text: Any = "123456789"
    with pytest.raises(TypeError):
        _core.crc32c(text)


def test_threads_get_right_answers_while_the_choice_changes() -> None:
    expected = crc32c_package.crc32c(NOISE)
    answers: list[set[int]] = []

    def work() -> None:
        answers.append({_core.crc32c(NOISE) for _ in range(100)})

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(400):
        _core.set_crc32c_implementation(IMPLEMENTATIONS[turn % len(IMPLEMENTATIONS)])
    for thread in threads:
        thread.join()
    assert answers == [{expected}] * 4


@given(st.binary(max_size=500), st.data())
def test_goes_on_where_it_stopped(content: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(content)))
    for core in (_core, reference):
        before = core.crc32c(content[:cut])
        assert core.crc32c(content[cut:], before) == core.crc32c(content)
        assert core.masked_crc32c(content[cut:], crc=before) == core.masked_crc32c(content)
