"""Feature specs: what they accept, what they hold, and that they print as the code that makes them."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import torch_tfrecord as tfr
from torch_tfrecord import schema
from torch_tfrecord.plan import compile_features

RAW = tfr.DecodeRaw(torch.int16, (2,))
ANY_RAW = tfr.DecodeRaw(torch.int16, (-1,))

SPECS: list[Any] = [
    tfr.FixedLenFeature((), torch.int64),
    tfr.FixedLenFeature((2, 3), torch.float32, [[0, 1, 2], [3, 4, 5]], key="other"),
    tfr.FixedLenFeature((3,), torch.float32, [math.inf, -math.inf, math.nan]),
    tfr.FixedLenFeature((1,), torch.int64, [-(2**63)]),
    tfr.FixedLenFeature((), bytes, b"\x00'\""),
    tfr.FixedLenFeature((2,), bytes, ["ä", b""], key="k'"),
    tfr.FixedLenFeature((), bytes, decode=RAW),
    tfr.FixedLenFeature((4,), bytes, [b"abcd"] * 4, decode=RAW),
    tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.complex64, (-1, 2), little_endian=False)),
    tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage()),
    tfr.FixedLenFeature(
        (), bytes, decode=tfr.DecodeImage(channels=1, size=(2, 3), resample=None, max_pixels=6), key="x"
    ),
    tfr.VarLenFeature(torch.int64),
    tfr.VarLenFeature(bytes, key="\udcff"),
]
NAMES = {"tfr": tfr, "torch": torch}


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_printed_spec_is_code_that_makes_it(spec: Any) -> None:
    here = {name: getattr(tfr, name) for name in tfr.__all__}
    assert eval(repr(spec), {"torch": torch, **here}) == spec


def test_printed_schema_is_code_that_makes_it() -> None:
    features = tfr.Schema({f"name {i}": spec for i, spec in enumerate(SPECS)})
    assert eval(repr(features), NAMES) == features
    assert eval(repr(tfr.Schema()), NAMES) == {}
    assert repr(tfr.Schema(n=SPECS[0])) == "{\n    'n': tfr.FixedLenFeature((), torch.int64),\n}"


def test_schema_is_a_dict_that_survives_pickling() -> None:
    features = tfr.Schema(n=SPECS[0])
    copy = pickle.loads(pickle.dumps(features))
    assert type(copy) is tfr.Schema
    assert copy == {"n": SPECS[0]}


@pytest.mark.parametrize("spec", [spec for spec in SPECS if "nan" not in repr(spec)], ids=repr)
def test_pickled_spec_is_equal_and_hashes_alike(spec: Any) -> None:
    copy = pickle.loads(pickle.dumps(spec))
    assert copy == spec
    assert hash(copy) == hash(spec)


def test_specs_are_equal_where_all_they_hold_is_equal() -> None:
    assert len({repr(spec) for spec in SPECS}) == len(set(SPECS)) == len(SPECS)
    assert tfr.FixedLenFeature((2,), torch.int64, [1, 2]) == tfr.FixedLenFeature([2], torch.int64, np.array([1, 2]))
    assert tfr.FixedLenFeature((), torch.int64) != tfr.FixedLenFeature((1,), torch.int64)
    assert tfr.FixedLenFeature((), bytes, decode=RAW) != tfr.FixedLenFeature((), bytes, decode=ANY_RAW)
    assert tfr.VarLenFeature(bytes) != tfr.VarLenFeature(bytes, key="x")


def test_specs_cannot_be_changed() -> None:
    for spec, name in [(SPECS[0], "shape"), (SPECS[-1], "key"), (RAW, "shape"), (tfr.DecodeImage(), "size")]:
        with pytest.raises(AttributeError):
            setattr(spec, name, None)


# --- shapes, dtypes, keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), ()),
        ([], ()),
        (3, (3,)),
        ([2, 3], (2, 3)),
        (torch.Size([4]), (4,)),
        (np.array([5, 6]), (5, 6)),
        ((0,), (0,)),
    ],
)
def test_shapes(shape: Any, expected: tuple[int, ...]) -> None:
    spec = tfr.FixedLenFeature(shape, torch.int64)
    assert spec.shape == expected
    assert spec.count == math.prod(expected)


@pytest.mark.parametrize("shape", [None, (None,), (-1,), -1, (2, None), (2, -1), (-2,)])
def test_unknown_shapes_are_refused(shape: Any) -> None:
    with pytest.raises(ValueError, match="shape"):
        tfr.FixedLenFeature(shape, torch.int64)


def test_unknown_size_names_the_feature_that_can_read_it() -> None:
    with pytest.raises(ValueError, match=r"shape \(None, 2\) is not fully known; use VarLenFeature"):
        tfr.FixedLenFeature((None, 2), torch.int64)


@pytest.mark.parametrize("shape", [1.5, "ab", (2.0,), ("2",)])
def test_sizes_that_are_no_integers(shape: Any) -> None:
    with pytest.raises(TypeError):
        tfr.FixedLenFeature(shape, torch.int64)


@pytest.mark.parametrize("make", [lambda dtype: tfr.FixedLenFeature((), dtype), tfr.VarLenFeature])
def test_dtypes(make: Callable[[Any], Any]) -> None:
    assert [make(dtype).dtype for dtype in (torch.int64, torch.float32, bytes)] == [torch.int64, torch.float32, bytes]
    assert make(str).dtype is bytes
    for dtype in (torch.int32, torch.float64, torch.uint8, torch.bool, int, float, None, "int64", np.int64):
        with pytest.raises(ValueError, match="which an Example holds"):
            make(dtype)


@pytest.mark.parametrize("make", [lambda dtype: tfr.FixedLenFeature((), dtype), tfr.VarLenFeature])
@pytest.mark.parametrize(
    ("dtypes", "advice"),
    [
        ([int, np.int64, np.dtype("i8"), "int64"], "; say torch.int64$"),
        ([np.int32, np.dtype("i4"), "int32"], r"; say torch.int64, and cast .* by .to\(torch.int32\)"),
        ([torch.bool, torch.uint8], "; say torch.int64, and cast .*; for bytes that are such numbers, .*DecodeRaw"),
        ([bool, np.bool_, "bool"], "; say torch.int64, and cast"),
        ([float, np.float32, np.dtype("f4"), "float32"], "; say torch.float32$"),
        ([np.float64, torch.float16, torch.bfloat16], "; say torch.float32, and cast"),
        (["bytes", "str", "string", np.bytes_, np.str_, np.dtype("S5"), object], "; say bytes$"),
        ([None, torch.complex64, 3], " holds$"),
    ],
    ids=str,
)
def test_other_dtypes_are_told_which_to_use(make: Callable[[Any], Any], dtypes: list[Any], advice: str) -> None:
    for dtype in dtypes:
        with pytest.raises(ValueError, match="which an Example holds" + advice.removeprefix(" holds")):
            make(dtype)


def test_swapped_arguments() -> None:
    for first, second in [(torch.int64, ()), (int, (2,)), (np.dtype("i8"), [2]), (bytes, bytes), ((), ())]:
        with pytest.raises(TypeError, match="FixedLenFeature: takes the shape first, then the dtype, not"):
            tfr.FixedLenFeature(first, second)
    for shape, dtype in [((), torch.int64), ([2], int), (torch.uint8, torch.uint8)]:
        with pytest.raises(TypeError, match="DecodeRaw: takes the dtype first, then the shape, not"):
            tfr.DecodeRaw(shape, dtype)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"VarLenFeature: dtype is \(2,\); give .* \(and no shape\)"):
        tfr.VarLenFeature((2,))
    for shape in ("int64", b"x", {2}, 1.5):
        with pytest.raises(TypeError, match=r"shape is .*, not a tuple of ints"):
            tfr.FixedLenFeature(shape, torch.int64)


def test_key_must_be_a_str() -> None:
    for make in (
        lambda key: tfr.FixedLenFeature((), torch.int64, key=key),
        lambda key: tfr.VarLenFeature(bytes, key=key),
    ):
        with pytest.raises(TypeError, match="key is b'x', not a str"):
            make(b"x")


# --- defaults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "given", "held"),
    [
        ((), torch.int64, 3, 3),
        ((1,), torch.int64, 3, (3,)),
        ((3, 1), torch.int64, [1, 2, 3], (1, 2, 3)),  # reshaped, as tf.io does
        ((2, 2), torch.int64, [[1, 2], [3, 4]], (1, 2, 3, 4)),
        ((2,), torch.int64, torch.tensor([5, 6]), (5, 6)),
        ((2,), torch.int64, [np.int64(5), np.int32(6)], (5, 6)),
        ((), torch.int64, 2**63 - 1, 2**63 - 1),
        ((), torch.float32, 3, 3.0),
        ((2,), torch.float32, np.array([0.5, 1.5], np.float32), (0.5, 1.5)),
        ((2,), torch.float32, [np.float32(0.5), 1], (0.5, 1.0)),
        ((), torch.float32, -math.inf, -math.inf),
        ((), bytes, b"ab", b"ab"),
        ((), bytes, "ä", "ä".encode()),
        ((2,), bytes, [b"a", "b"], (b"a", b"b")),
        ((2,), bytes, np.array([b"a", b"bc"]), (b"a", b"bc")),
        ((0,), torch.int64, [], ()),
    ],
)
def test_defaults(shape: Any, dtype: Any, given: Any, held: Any) -> None:
    default = tfr.FixedLenFeature(shape, dtype, given).default_value
    assert default == held
    assert type(default) is type(held)


@pytest.mark.parametrize(
    ("shape", "given"), [((3,), 1), ((2,), [1, 2, 3]), ((), [1, 2]), ((2,), []), ((), []), ((0,), 1)]
)
def test_default_has_as_many_values_as_the_shape(shape: Any, given: Any) -> None:
    count = len(given) if isinstance(given, list) else 1
    with pytest.raises(ValueError, match=f"default_value has {count} values, but shape .* takes {math.prod(shape)}"):
        tfr.FixedLenFeature(shape, torch.int64, given)


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (torch.int64, 1.0),
        (torch.int64, 2**63),
        (torch.int64, -(2**63) - 1),
        (torch.int64, b"1"),
        (torch.int64, torch.tensor(1.0)),
        (torch.float32, "1"),
        (torch.float32, b"1"),
        (torch.float32, 1j),
        (bytes, 1),
        (bytes, bytearray(b"1")),
    ],
)
def test_default_of_another_type(dtype: Any, given: Any) -> None:
    with pytest.raises(TypeError, match=r"default_value holds .*, which is not of dtype"):
        tfr.FixedLenFeature((), dtype, given)


@pytest.mark.parametrize("given", [1e39, -1e300, 10**400], ids=["1e39", "-1e300", "10**400"])
def test_finite_default_outside_float32(given: float) -> None:
    with pytest.raises(ValueError, match="outside float32"):
        tfr.FixedLenFeature((), torch.float32, given)


def test_default_of_raw_bytes_has_their_size() -> None:
    assert tfr.FixedLenFeature((), bytes, b"abcd", decode=RAW).default_value == b"abcd"
    assert tfr.FixedLenFeature((), bytes, b"abc", decode=ANY_RAW).default_value == b"abc"
    with pytest.raises(ValueError, match="not of the 4 bytes"):
        tfr.FixedLenFeature((), bytes, b"abc", decode=RAW)


# --- decode= ----------------------------------------------------------------------------------------------------------


def test_decode_is_for_bytes() -> None:
    with pytest.raises(ValueError, match=r"decode= is for dtype bytes, not torch\.int64"):
        tfr.FixedLenFeature((), torch.int64, decode=RAW)
    with pytest.raises(TypeError, match="not a DecodeRaw or DecodeImage"):
        tfr.FixedLenFeature((), bytes, decode=bytes)  # type: ignore[arg-type]


def test_values_of_varying_size_stand_alone() -> None:
    for decode in (ANY_RAW, tfr.DecodeImage(), tfr.DecodeImage(size=4)):
        with pytest.raises(ValueError, match=r"need shape \(\)"):
            tfr.FixedLenFeature((2,), bytes, decode=decode)


def test_decode_raw() -> None:
    assert (RAW.item_size, RAW.swap_size, RAW.nbytes) == (2, 2, 4)
    complex_pairs = tfr.DecodeRaw(torch.complex64, (None, 3))
    assert complex_pairs.shape == (-1, 3)
    assert (complex_pairs.item_size, complex_pairs.swap_size, complex_pairs.nbytes) == (8, 4, 24)
    assert tfr.DecodeRaw(torch.uint8, ()).nbytes == 1


@pytest.mark.parametrize("shape", [None, (-1, -1), (-2,), (0, -1)])
def test_decode_raw_shapes(shape: Any) -> None:
    with pytest.raises(ValueError, match="shape"):
        tfr.DecodeRaw(torch.uint8, shape)


def test_decode_raw_dtypes() -> None:
    for dtype in (bytes, int, torch.qint8, None):
        with pytest.raises(ValueError, match="not a plain torch number type"):
            tfr.DecodeRaw(dtype, ())  # type: ignore[arg-type]
    others: list[tuple[Any, str]] = [
        (int, "int64"),
        (np.uint8, "uint8"),
        (np.dtype("f8"), "float64"),
        ("int16", "int16"),
    ]
    for other, advice in others:
        with pytest.raises(ValueError, match=f"not a plain torch number type; say torch.{advice}"):
            tfr.DecodeRaw(other, ())


def test_decode_image() -> None:
    assert tfr.DecodeImage(size=5).size == (5, 5)
    assert tfr.DecodeImage(size=[2, 3]).size == (2, 3)
    assert tfr.DecodeImage() == tfr.DecodeImage(channels=3, size=None, resample="bilinear", max_pixels=1 << 27)


@pytest.mark.parametrize(
    "options",
    [{"channels": 2}, {"channels": 5}, {"size": (1, 2, 3)}, {"size": (0, 2)}, {"size": -1}, {"resample": "box"}],
    ids=str,
)
def test_decode_image_refuses(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"DecodeImage: {next(iter(options))} is"):
        tfr.DecodeImage(**options)


def test_images_of_one_size_have_one_number_of_channels() -> None:
    with pytest.raises(ValueError, match="say how many channels"):
        tfr.DecodeImage(channels=0, size=4)


# --- whole descriptions -----------------------------------------------------------------------------------------------


def test_features_must_be_specs_by_name() -> None:
    with pytest.raises(ValueError, match="features is empty"):
        compile_features({})
    with pytest.raises(TypeError, match="the name 3 is not a str"):
        compile_features({3: SPECS[0]})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"features\['x'\] is torch\.int64, not a FixedLenFeature or VarLenFeature"):
        compile_features({"x": torch.int64})


def test_equal_features_are_compiled_once() -> None:
    first, second = (
        {"x": tfr.FixedLenFeature((2,), torch.int64, [1, 2]), "y": tfr.VarLenFeature(bytes)} for _ in range(2)
    )
    assert compile_features(first) is compile_features(second)
    assert compile_features(first) is not compile_features(dict(reversed(second.items())))


def test_encoded_defaults() -> None:
    encoded = schema.encoded_default
    assert encoded(tfr.FixedLenFeature((), torch.int64)) is None
    assert encoded(tfr.FixedLenFeature((2,), torch.int64, [1, -1])) == b"\1" + 7 * b"\0" + 8 * b"\xff"
    assert encoded(tfr.FixedLenFeature((), torch.float32, 1)) == b"\x00\x00\x80\x3f"
    assert encoded(tfr.FixedLenFeature((2,), bytes, [b"a", b""])) == (b"a", b"")
    assert encoded(tfr.FixedLenFeature((2,), bytes, [b"abcd", b"efgh"], decode=RAW)) == b"abcdefgh"
    assert encoded(tfr.FixedLenFeature((), bytes, b"ab", decode=ANY_RAW)) == (b"ab",)
