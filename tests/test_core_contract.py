"""What ``_core.pyi`` promises beside the decoding itself: names, arguments that are refused, order of calls, resources."""

from __future__ import annotations

import ast
import errno
import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import both_cores, fill, part_sizes, place
from strategies import Column
from wire import entry, example, ints, tag, texts

import torch_tfrecord.native
from torch_tfrecord.native import reference
from torch_tfrecord.native.reference import FIXED, RAGGED

STUB = ast.parse((Path(torch_tfrecord.native.__file__).parent / "_core.pyi").read_text())
RECORD = example(entry(b"i", ints(1, 2)), entry(b"s", texts(b"ab", b"", b"cde")))
NUMBERS: Column = (b"i", 3, FIXED, 2, -1, None)
RAGGED_TEXT: Column = (b"s", 1, RAGGED, 0, -1, None)


def int64s(*values: int) -> Any:
    return np.array(values, np.int64)


# --- names ------------------------------------------------------------------------------------------------------------


def arguments(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args if argument.arg != "self"]


def test_reference_has_every_function_of_the_stub() -> None:
    functions = [node for node in STUB.body if isinstance(node, ast.FunctionDef)]
    assert len(functions) >= 10
    for function in functions:
        parameters = inspect.signature(getattr(reference, function.name)).parameters
        assert list(parameters) == arguments(function), function.name


def test_reference_has_every_class_of_the_stub() -> None:
    classes = [node for node in STUB.body if isinstance(node, ast.ClassDef)]
    assert {node.name for node in classes} == {"Bijection", "Block", "Decoder", "File", "Job", "ShuffleQueue"}
    for node in classes:
        twin = getattr(reference, node.name)
        for method in (child for child in node.body if isinstance(child, ast.FunctionDef)):
            if node.name == "Block":  # a function that returns an array
                assert hasattr(twin(8), method.name) or method.name == "__buffer__"
            elif isinstance(getattr(twin, method.name), property):
                assert any(ast.unparse(decorator) == "property" for decorator in method.decorator_list)
            elif (node.name, method.name) != ("Job", "__init__"):  # jobs come from a decoder
                parameters = list(inspect.signature(getattr(twin, method.name)).parameters)[1:]
                assert parameters == arguments(method), (node.name, method.name)


@both_cores
def test_core_has_every_name_of_the_stub(core: Any) -> None:
    names = {node.name for node in STUB.body if isinstance(node, ast.FunctionDef | ast.ClassDef)} | {"FIXED", "RAGGED"}
    assert names <= set(dir(core))
    assert (core.FIXED, core.RAGGED) == (0, 1)


# --- columns ----------------------------------------------------------------------------------------------------------


@both_cores
@pytest.mark.parametrize(
    "column",
    [
        (b"k", 4, FIXED, 1, -1, None),
        (b"k", -1, FIXED, 1, -1, None),
        (b"k", 3, 2, 1, -1, None),
        (b"k", 3, FIXED, -1, -1, None),
        (b"k", 3, RAGGED, 1, -1, None),
        (b"k", 3, FIXED, 1, 8, None),
        (b"k", 2, FIXED, 1, 0, None),
        (b"k", 1, RAGGED, 0, 3, None),
        (b"k", 1, FIXED, 1, -2, None),
        (b"k", 3, RAGGED, 0, -1, b""),
        (b"k", 1, RAGGED, 0, -1, ()),
        (b"k", 3, FIXED, 1, -1, b"7 bytes"),
        (b"k", 2, FIXED, 2, -1, b"four"),
        (b"k", 3, FIXED, 1, -1, (b"8 bytes.",)),
        (b"k", 1, FIXED, 2, -1, (b"one",)),
        (b"k", 1, FIXED, 2, -1, b"ab"),
        (b"k", 1, FIXED, 2, 3, b"five."),
        (b"k", 1, FIXED, 2, 3, (b"abc", b"def")),
        (b"k", 0, FIXED, 1, -1, (b"x",)),
        (b"k", 0, RAGGED, 0, -1, None),
        (b"k", 0, FIXED, 2, -1, None),
        (b"k", 3, FIXED, 2**40, -1, None),
        (b"k", 1, FIXED, 2, 2**62, None),
    ],
)
def test_columns_that_contradict_the_rules(core: Any, column: Column) -> None:
    with pytest.raises(ValueError):
        core.Decoder([NUMBERS, column])


@both_cores
@pytest.mark.parametrize(
    ("columns", "sized"),
    [
        ([], True),
        ([NUMBERS, (b"i", 3, FIXED, 0, -1, b""), (b"x", 1, FIXED, 2, 3, b"abcdef")], True),
        ([NUMBERS, RAGGED_TEXT], False),
        ([NUMBERS, (b"s", 1, FIXED, 3, -1, None)], False),
        ([(b"i", 3, RAGGED, 0, -1, None)], False),
        ([(b"", 0, FIXED, 1, -1, None)], False),
    ],
)
def test_jobs_know_whether_they_are_sized(core: Any, columns: list[Column], sized: bool) -> None:
    job = core.Decoder(columns).parse([RECORD] * 3)
    assert (job.rows, job.sized) == (3, sized)
    if sized:
        assert sum(job.num_bytes(i) for i in range(len(columns))) == (0 if not columns else 3 * (16 + 0 + 6))


# --- the course of a job ----------------------------------------------------------------------------------------------


@both_cores
def test_calls_out_of_order(core: Any) -> None:
    columns = [NUMBERS, RAGGED_TEXT]
    job = core.Decoder(columns).parse([RECORD])
    assert (job.num_values(0), job.num_bytes(0)) == (2, 16)  # known from the start
    for too_early in (job.num_values, job.num_bytes, job.values):
        with pytest.raises(ValueError):
            too_early(1)
    with pytest.raises(ValueError):
        job.fill(np.empty(256, np.uint8), int64s(0, -1, -1, 16, 32, 64), 1)
    assert job.measure(1) is None
    assert (job.num_values(1), job.num_bytes(1), job.values(1)) == (3, 5, [b"ab", b"", b"cde"])
    with pytest.raises(ValueError):
        job.values(0)
    for no_column in (-1, 2):
        with pytest.raises(IndexError):
            job.num_values(no_column)
    assert fill(job, columns)[0] is None
    with pytest.raises((ValueError, RuntimeError)):
        fill(job, columns)


def measured(core: Any) -> Any:
    job = core.Decoder([NUMBERS, RAGGED_TEXT]).parse([RECORD])
    assert job.measure(1) is None
    return job


@both_cores
def test_arena_has_the_documented_parts(core: Any) -> None:
    arena = np.full(128, 0xA5, np.uint8)
    assert measured(core).fill(arena, int64s(0, -1, -1, 16, 24, 64), 1) is None
    assert arena[:16].view(np.int64).tolist() == [1, 2]
    assert arena[16:24].tobytes() == b"abcde" + b"\xa5" * 3
    assert arena[24:56].view(np.int64).tolist() == [0, 2, 2, 5]
    assert arena[64:80].view(np.int64).tolist() == [0, 3]
    assert set(arena[56:64].tolist() + arena[80:].tolist()) == {0xA5}


@both_cores
def test_unwanted_columns_are_not_written(core: Any) -> None:
    arena = np.full(128, 0xA5, np.uint8)
    assert measured(core).fill(arena, int64s(8, -1, -1, -1, -1, -1), 1) is None
    assert arena[8:24].view(np.int64).tolist() == [1, 2]
    assert set(arena[:8].tolist() + arena[24:].tolist()) == {0xA5}


@both_cores
@pytest.mark.parametrize(
    ("placements", "nbytes"),
    [
        ([0, -1, -1, 16, 24, 56], 71),
        ([0, -1, -1, 16, 24, 2**62], 72),
        ([0, -1, -1, 16, 24, 2**63 - 8], 72),
        ([0, -1, -1, 16, 24, 57], 80),
        ([1, -1, -1, 24, 32, 64], 128),
        ([0, -1, -1, 16, 44, 80], 128),
        ([0, -1, -1, 16, -1, 56], 128),
        ([0, -1, -1, 16, 24], 128),
        ([], 128),
    ],
)
def test_parts_must_lie_inside_the_arena(core: Any, placements: list[int], nbytes: int) -> None:
    arena = np.full(nbytes, 0xA5, np.uint8)
    with pytest.raises(ValueError):
        measured(core).fill(arena, int64s(*placements), 1)
    assert set(arena.tolist()) == {0xA5}
    assert measured(core).fill(np.empty(72, np.uint8), int64s(0, -1, -1, 16, 24, 56), 1) is None


@both_cores
def test_arena_must_be_writable(core: Any) -> None:
    with pytest.raises((ValueError, BufferError)):
        measured(core).fill(bytes(128), int64s(0, -1, -1, 16, 24, 64), 1)
    with pytest.raises(TypeError):
        measured(core).fill(None, int64s(0, -1, -1, 16, 24, 64), 1)


@both_cores
def test_buffers_of_any_kind_can_be_parsed(core: Any) -> None:
    payloads = [RECORD, bytearray(RECORD), memoryview(RECORD), np.frombuffer(RECORD, np.uint8)]
    job = core.Decoder([RAGGED_TEXT]).parse(payloads)
    assert job.measure(2) is None
    assert job.values(0) == [b"ab", b"", b"cde"] * 4
    with pytest.raises(TypeError):
        core.Decoder([RAGGED_TEXT]).parse(["text"])


@both_cores
def test_jobs_of_one_decoder_are_apart(core: Any) -> None:
    decoder = core.Decoder([NUMBERS])
    jobs = [decoder.parse([example(entry(b"i", ints(i, i)))] * i) for i in range(1, 4)]
    arenas = []
    for job in jobs:
        placements, nbytes = place(part_sizes(job, [NUMBERS]))
        arenas.append(np.zeros(nbytes, np.uint8))
        assert job.fill(arenas[-1], int64s(*placements), 3) is None
    found = [arena[8:-8].view(np.int64).tolist() for arena in arenas]
    assert found == [[1, 1], [2, 2, 2, 2], [3, 3, 3, 3, 3, 3]]


@both_cores
def test_deep_nesting_is_a_fault_and_no_crash(core: Any) -> None:
    assert core.describe(tag(1, 3) * 10**6) == ("bad_group", 0, -1, 100, 0, 0)


# --- the rest ---------------------------------------------------------------------------------------------------------


@both_cores
def test_blocks(core: Any) -> None:
    for nbytes in (0, 1, 64, 10**6):
        block = core.Block(nbytes)
        array = np.frombuffer(memoryview(block), np.uint8)
        assert len(block) == array.nbytes == nbytes
        assert nbytes == 0 or array.ctypes.data % 64 == 0
        array[:] = 7
        assert bytes(memoryview(block)[:3]) == b"\x07" * min(nbytes, 3)
    with pytest.raises((ValueError, MemoryError)):
        core.Block(-1)


@both_cores
def test_files_close_their_descriptor(core: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    file = core.File(fd)
    assert (file.size(), file.read(2, 3), file.read(8, 2**40), file.read(11, 1)) == (10, b"234", b"89", b"")
    for offset, size in ((-1, 1), (0, -1)):
        with pytest.raises(ValueError):
            file.read(offset, size)
    del file
    with pytest.raises(OSError) as caught:
        os.fstat(fd)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(ValueError):
        core.File(-1)


@both_cores
def test_checksum_implementations(core: Any) -> None:
    names = core.crc32c_implementations()
    chosen = core.crc32c_implementation()
    assert chosen in names
    try:
        for name in names:
            core.set_crc32c_implementation(name)
            assert core.crc32c_implementation() == name
    finally:
        core.set_crc32c_implementation(chosen)
    with pytest.raises(ValueError):
        core.set_crc32c_implementation("abacus")


@both_cores
@pytest.mark.parametrize(("verify", "limit"), [(3, -1), (-1, -1), (2, -2), (2, 15)])
def test_split_frames_refuses(core: Any, verify: int, limit: int) -> None:
    for take in (core.split_frames, core.scan_frames):
        with pytest.raises(ValueError):
            take(reference.frame(b""), verify, limit)


@both_cores
@pytest.mark.parametrize(
    ("limit", "code"), [(16, None), (17, "truncated_header"), (27, "truncated_header"), (28, None)]
)
def test_split_frames_knows_the_end_of_the_file(core: Any, limit: int, code: str | None) -> None:
    """Also of bytes that are not in the buffer yet."""
    payloads, size, fault = core.split_frames(reference.frame(b""), 2, limit)
    assert (payloads, size) == ([b""], 16)
    assert fault == (None if code is None else (code, 1, -1, 16, 12, limit - 16))


@both_cores
@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ([(b"k", 3, int64s(1, 2), 1, None, None)], 3),
        ([(b"k", 3, int64s(1, 2), 1, None, None)], -1),
        ([(b"k", 3, int64s(1), 1, None, None)] * 2, 1),
        ([(b"k", 4, int64s(1), 1, None, None)], 1),
        ([(b"k", 3, np.ones(1, np.int32), 1, None, None)], 1),
        ([(b"k", 2, np.ones(1), 1, None, None)], 1),
        ([(b"k", 3, int64s(1, 2), 0, int64s(0, 3), None)], 1),
        ([(b"k", 3, int64s(1, 2), 0, int64s(1, 2), None)], 1),
        ([(b"k", 3, int64s(1, 2), 0, int64s(0, 2, 1, 2), None)], 3),
        ([(b"k", 3, int64s(1, 2), 0, int64s(0, 2), None)], 2),
        ([(b"k", 3, int64s(1, 2), 2, None, int64s(0, 1, 2))], 1),
        ([(b"k", 1, np.ones(2, np.uint8), 1, None, None)], 1),
        ([(b"k", 1, np.ones(2, np.uint8), 1, None, int64s(0, 3))], 1),
        ([(b"k", 1, np.ones(2, np.uint8), 1, None, int64s(0, -1, 2))], 2),
    ],
)
def test_encode_batch_refuses(core: Any, columns: list[Any], rows: int) -> None:
    with pytest.raises(ValueError):
        core.encode_batch(columns, rows, False)


@both_cores
def test_encode_batch_by_hand(core: Any) -> None:
    columns = [
        (b"s", 1, np.frombuffer(b"abc", np.uint8), 0, int64s(0, 0, 2), int64s(0, 1, 3)),
        (b"i", 3, int64s(1, -1), 1, None, None),
        (b"f", 2, np.zeros(0, np.float32), 0, None, None),
    ]
    encoded, offsets = core.encode_batch(columns, 2, False)
    floats = entry(b"f", b"\x12\x00")
    first = example(floats, entry(b"i", ints(1)), entry(b"s", texts()))
    second = example(floats, entry(b"i", ints(-1)), entry(b"s", texts(b"a", b"bc")))
    assert encoded == first + second
    assert offsets.tolist() == [0, len(first), len(first + second)]
    framed, offsets = core.encode_batch(columns, 2, True)
    assert framed == reference.frame(first) + reference.frame(second)
    assert offsets.tolist() == [0, len(first) + 16, len(first + second) + 32]
    assert core.encode_batch([], 2, False)[0] == b"\x0a\x00" * 2
