"""Bytes as the elements of tensors: all types, both byte orders, fixed shapes and one size to be found."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torch_tfrecord as tfr
from examples import message, parse, parse_one

RAW_DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.float16, torch.uint32, torch.int32),
    *(torch.float32, torch.uint64, torch.int64, torch.float64, torch.complex64, torch.complex128),
]


@pytest.mark.parametrize("little_endian", [True, False])
@pytest.mark.parametrize("dtype", RAW_DTYPES, ids=str)
def test_raw_bytes_as_numpy_reads_them(dtype: torch.dtype, little_endian: bool) -> None:
    kind = torch.empty(0, dtype=dtype).numpy().dtype
    values = np.array([[0, 1, 2], [3, 100, 1], [1, 0, 77]])
    values = (values * (1 - 2j) if kind.kind == "c" else -values if kind.kind in "if" else values).astype(kind)
    stored = values.astype(kind.newbyteorder("<" if little_endian else ">"))
    records = [message({"f": [row.tobytes()]}) for row in stored]
    found, ragged = (
        parse(records, tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(dtype, shape, little_endian=little_endian)))
        for shape in ((3,), (-1,))
    )
    for tensor in (found, ragged.values.view(3, 3)):
        assert tensor.dtype == dtype
        np.testing.assert_array_equal(tensor.numpy(), values)
    assert ragged.offsets.tolist() == [0, 3, 6, 9]


@pytest.mark.parametrize("little_endian", [True, False])
def test_raw_bfloat16(little_endian: bool) -> None:
    values = torch.tensor([1.0, -2.5, 3e38], dtype=torch.bfloat16)
    bits = values.view(torch.uint16).numpy()
    record = message({"f": [(bits if little_endian else bits.byteswap()).tobytes()]})
    decode = tfr.DecodeRaw(torch.bfloat16, (3,), little_endian=little_endian)
    assert torch.equal(parse_one(record, tfr.FixedLenFeature((), bytes, decode=decode)), values)


def test_raw_bool_is_any_byte_but_zero() -> None:
    record = message({"f": [bytes([0, 1, 2, 255])]})
    for shape in ((4,), (-1,), (2, -1)):
        found = parse_one(record, tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.bool, shape)))
        assert found.flatten().tolist() == [False, True, True, True]
        assert found.view(torch.uint8).flatten().tolist() == [0, 1, 1, 1]


def test_raw_bytes_of_a_shape() -> None:
    values = np.arange(24, dtype="<i2")
    records = [message({"f": [part.tobytes() for part in np.split(row, 2)]}) for row in np.split(values, 2)]
    spec = tfr.FixedLenFeature((2,), bytes, decode=tfr.DecodeRaw(torch.int16, (2, 3)))
    assert torch.equal(parse(records, spec), torch.arange(24, dtype=torch.int16).view(2, 2, 2, 3))


def test_raw_bytes_with_a_size_to_be_found() -> None:
    records = [message({"f": [np.arange(n, dtype=">i4").tobytes()]}) for n in (4, 0, 8)]
    spec = tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.int32, (2, -1, 2), little_endian=False))
    column = parse(records, spec)
    assert [tuple(column[i].shape) for i in range(3)] == [(2, 1, 2), (2, 0, 2), (2, 2, 2)]
    assert column.shapes.tolist() == [[2, 1, 2], [2, 0, 2], [2, 2, 2]]
    assert column.lengths.tolist() == [4, 0, 8]
    assert torch.equal(column[2], torch.arange(8, dtype=torch.int32).view(2, 2, 2))
    assert torch.equal(parse_one(records[0], spec), torch.arange(4, dtype=torch.int32).view(2, 1, 2))


def test_raw_defaults() -> None:
    big = tfr.FixedLenFeature((), bytes, b"\0\1\0\2", decode=tfr.DecodeRaw(torch.int16, (2,), little_endian=False))
    assert parse([message({}), message({"f": [b"\0\3\0\4"]})], big).tolist() == [[1, 2], [3, 4]]
    unsized = tfr.FixedLenFeature((), bytes, b"\1\2\3", decode=tfr.DecodeRaw(torch.uint8, (-1,)))
    assert parse([message({"f": [b"x"]}), message({})], unsized).tolist() == [[120], [1, 2, 3]]


def test_raw_bytes_of_another_size() -> None:
    records = [message({"f": [bytes(8)]}), message({"f": [bytes(6)]}), message({"f": [bytes(7)]})]
    decode = tfr.DecodeRaw(torch.int16, (4,))
    with pytest.raises(
        tfr.ParseError, match=r"^record 1: feature 'f': expected values of 8 bytes for DecodeRaw.*, found one of 6$"
    ):
        parse(records, tfr.FixedLenFeature((), bytes, decode=decode))
    with pytest.raises(
        tfr.ParseError, match=r"^record 2: feature 'f': expected a multiple of 2 bytes for DecodeRaw.*, found 7$"
    ):
        parse(records, tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.int16, (-1,))))
