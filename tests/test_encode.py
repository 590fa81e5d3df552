"""Encoding against protobuf: every type of value, every wrong one."""

import math
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_tfrecord.encode import encode_columns, encode_example
from torch_tfrecord.messages import Example
from torch_tfrecord.native import core

INT64_MAX = 2**63 - 1


def decode(payload: bytes) -> dict[str, Any]:
    """Kind and values of each feature, by protobuf."""
    features = Example.FromString(payload).features.feature
    result: dict[str, Any] = {}
    for name, feature in features.items():
        kind = feature.WhichOneof("kind")
        result[name] = (kind.removesuffix("_list"), list(getattr(feature, kind).value)) if kind else None
    return result


def encoded(value: Any) -> Any:
    """What becomes of one value; "absent" where the feature is left out."""
    return decode(encode_example({"f": value})).get("f", "absent")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, [7]),
        (True, [1]),
        (-1, [-1]),
        ([1, 2, 3], [1, 2, 3]),
        ((1, False), [1, 0]),
        (range(4), [0, 1, 2, 3]),
        ([[1, 2], [3, 4]], [1, 2, 3, 4]),
        ([[1], [], [2, [3]]], [1, 2, 3]),
        ([-(2**63), INT64_MAX], [-(2**63), INT64_MAX]),
        (np.int8(-3), [-3]),
        (np.uint64(5), [5]),
        (np.bool_(True), [1]),
        (np.array(9), [9]),
        (np.arange(6, dtype=np.uint16).reshape(2, 3).T, [0, 3, 1, 4, 2, 5]),
        (np.array([1, 2], ">i4"), [1, 2]),
        (np.arange(10)[::3], [0, 3, 6, 9]),
        (np.array([True, False]), [1, 0]),
        (np.array([INT64_MAX], np.uint64), [INT64_MAX]),
        (np.zeros((0, 3), np.int32), []),
        ([np.int32(1), np.int32(2)], [1, 2]),
        ([np.array([1, 2]), 3, [np.uint8(4)]], [1, 2, 3, 4]),
        (np.array([1, [2, 3]], object), [1, 2, 3]),
        (torch.tensor(5), [5]),
        (torch.arange(6).reshape(2, 3).T, [0, 3, 1, 4, 2, 5]),
        (torch.tensor([True, False]), [1, 0]),
        (torch.tensor([200], dtype=torch.uint8), [200]),
        (torch.empty(0, dtype=torch.int32), []),
        ([torch.tensor([1]), torch.tensor(2)], [1, 2]),
    ],
)
def test_ints(value: Any, expected: list[int]) -> None:
    assert encoded(value) == ("int64", expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, [0.5]),
        ([1, 2.5, True], [1.0, 2.5, 1.0]),
        ([[1], [0.25]], [1.0, 0.25]),
        (0.1, [struct.unpack("<f", struct.pack("<f", 0.1))[0]]),
        (np.float16(1.5), [1.5]),
        (np.array([1.5, -0.0], np.float64), [1.5, -0.0]),
        (np.array([1.5], ">f4"), [1.5]),
        (np.array([2.5], np.longdouble), [2.5]),
        (np.ones((2, 2), np.float32)[:, ::2], [1.0, 1.0]),
        (np.zeros(0, np.float16), []),
        (1e-300, [0.0]),
        ([math.inf, -math.inf], [math.inf, -math.inf]),
        (torch.tensor([1.5, 2.0], dtype=torch.float64), [1.5, 2.0]),
        (torch.tensor([1.5], dtype=torch.float16), [1.5]),
        (torch.tensor([1.5], dtype=torch.bfloat16), [1.5]),
        (torch.tensor([1.5], requires_grad=True), [1.5]),
        ([np.float32(1), np.float32(2)], [1.0, 2.0]),
        ([np.array([1]), np.array([0.5])], [1.0, 0.5]),
        ([torch.tensor([1]), 0.5], [1.0, 0.5]),
    ],
)
def test_floats(value: Any, expected: list[float]) -> None:
    kind, values = encoded(value)
    assert kind == "float"
    assert struct.pack(f"<{len(values)}f", *values) == struct.pack(f"<{len(expected)}f", *expected)


def test_nan_keeps_its_bits() -> None:
    odd = np.array([0x7FC12345], np.uint32).view(np.float32)
    payload = encode_example({"f": odd})
    assert payload.endswith(odd.tobytes())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"a\0b\0", [b"a\0b\0"]),
        (b"", [b""]),
        ("é", ["é".encode()]),
        (bytearray(b"x"), [b"x"]),
        (memoryview(b"abc")[1:], [b"bc"]),
        ([b"a", "b", bytearray(b"c"), memoryview(b"d")], [b"a", b"b", b"c", b"d"]),
        ([["a"], ["b", "c"]], [b"a", b"b", b"c"]),
        (["", b""], [b"", b""]),
        (np.array(["a", "éé"]), [b"a", "éé".encode()]),
        (np.array([b"a", b"bb"]), [b"a", b"bb"]),
        (np.array([b"a\0", "b"], object), [b"a\0", b"b"]),
        (np.str_("s"), [b"s"]),
        (np.bytes_(b"s"), [b"s"]),
        ([np.str_("s"), "t"], [b"s", b"t"]),
        (np.array([], "U3"), []),
    ],
)
def test_texts(value: Any, expected: list[bytes]) -> None:
    assert encoded(value) == ("bytes", expected)


@pytest.mark.parametrize("value", [None, [], (), [[], []], np.array([], object)])
def test_no_kind_is_left_out(value: Any) -> None:
    assert encoded(value) == "absent"
    assert encode_example({"f": value, "g": 1}) == encode_example({"g": 1})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (2**63, "9223372036854775808 is outside int64"),
        ([1, -(2**63) - 1], "-9223372036854775809 is outside int64"),
        (np.array([1, 2**63], np.uint64), "9223372036854775808 is outside int64"),
        ([1, [2, 2**64]], "18446744073709551616 is outside int64"),
        (1e39, "a finite float is outside float32"),
        (np.array([0, -1e300]), "a finite float is outside float32"),
        (torch.tensor([1e300], dtype=torch.float64), "a finite float is outside float32"),
        ([0.5, 10**400], "an int among floats is outside float32"),
        ("\ud800", "a str cannot be stored as UTF-8"),
    ],
)
def test_values_that_do_not_fit(value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=r"^feature 'f': ") as info:
        encode_example({"f": value})
    assert problem in str(info.value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (1j, "complex cannot be stored"),
        ({"a": 1}, "dict cannot be stored"),
        ({1, 2}, "set cannot be stored"),
        (object(), "object cannot be stored"),
        (np.array([1j]), "dtype complex128 cannot be stored"),
        (np.array(["2020-01-01"], "M8[D]"), r"dtype datetime64[D] cannot be stored"),
        (np.zeros(1, [("a", "i4")]), "cannot be stored"),
        (torch.tensor([1j]), "cannot be stored"),
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo cannot be stored"),
        ([1, "a"], "bytes and int values are mixed"),
        ([b"a", 0.5], "bytes and float values are mixed"),
        ([[1], ["a"]], "bytes and int values are mixed"),
        ([1, None], "None inside a list"),
        ([1, 1j], "complex cannot be stored"),
    ],
)
def test_values_of_other_types(value: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=r"^feature 'f': ") as info:
        encode_example({"f": value})
    assert problem in str(info.value)


def test_a_list_in_itself() -> None:
    endless: list[Any] = [1.5, []]
    endless[1] = endless
    with pytest.raises(ValueError, match="feature 'f': lists are nested more than 32 deep"):
        encode_example({"f": endless})


def test_names() -> None:
    features: dict[str | bytes, int] = {"b": 1, b"a": 2, "é": 3, b"\xff": 4, "": 5, "\udcfe": 6}
    payload = encode_example(features)
    described = core.describe(payload)
    assert isinstance(described, list)
    assert [name for name, _, _ in described] == sorted([b"", b"a", b"b", "é".encode(), b"\xfe", b"\xff"])


def test_a_name_twice() -> None:
    features: dict[str | bytes, int] = {"a": 1, b"a": 2}
    with pytest.raises(ValueError, match="feature b'a' comes twice, as str and as bytes"):
        encode_example(features)


@pytest.mark.parametrize("features", [{1: 2}, {None: 2}, [("a", 1)], None, "a"])
def test_features_must_be_a_dict_by_name(features: Any) -> None:
    with pytest.raises(TypeError, match="must be"):
        encode_example(features)


def test_no_features() -> None:
    assert decode(encode_example({})) == {}


scalars = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats(width=32, allow_nan=False)
    | st.binary()
    | st.text(st.characters(codec="utf-8"))
)
lists = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1),
    st.lists(st.binary(), min_size=1),
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), scalars | lists))
def test_any_features_like_protobuf(features: dict[str, Any]) -> None:
    message = Example()
    message.features.SetInParent()  # it is there also where it is empty
    for name, value in features.items():
        values = value if isinstance(value, list) else [value]
        feature = message.features.feature[name]
        if isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        elif isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.bytes_list.value.extend(v.encode() if isinstance(v, str) else v for v in values)
    assert Example.FromString(encode_example(features)) == message


# --- batches ---


def rows_of(batch: dict[Any, Any]) -> list[dict[str, Any]]:
    columns, rows = encode_columns(batch)
    data, offsets = core.encode_batch(columns, rows, False)
    return [decode(data[offsets[row] : offsets[row + 1]]) for row in range(rows)]


class Bytes:
    """As batches have them: one string a row, or ``shape`` of them."""

    def __init__(self, values: Any, offsets: Any, shape: tuple[int, ...] = ()) -> None:
        self.values, self.offsets, self.shape = values, offsets, shape


class Ragged:
    """As batches have them."""

    def __init__(self, values: Any, offsets: Any) -> None:
        self.values, self.offsets = values, offsets


ABC = Bytes(torch.tensor([97, 98, 99], dtype=torch.uint8), torch.tensor([0, 1, 1, 3]))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([1, 2], [("int64", [1]), ("int64", [2])]),
        ([1, 0.5], [("float", [1.0]), ("float", [0.5])]),
        (["a", b"b"], [("bytes", [b"a"]), ("bytes", [b"b"])]),
        (np.arange(4).reshape(2, 2), [("int64", [0, 1]), ("int64", [2, 3])]),
        (np.arange(8.0).reshape(2, 2, 2)[:, :, 0], [("float", [0.0, 2.0]), ("float", [4.0, 6.0])]),
        (torch.tensor([[1.5], [2.5]]), [("float", [1.5]), ("float", [2.5])]),
        (np.zeros((2, 0), np.int64), [("int64", []), ("int64", [])]),
        (np.array([["a", "bb"], ["", "c"]]), [("bytes", [b"a", b"bb"]), ("bytes", [b"", b"c"])]),
        (np.array([[1, 2], "a"], object)[:1].repeat(2), [("int64", [1, 2])] * 2),
        ([[1], [2, 3]], [("int64", [1]), ("int64", [2, 3])]),
        ([[], [2, 3]], [("int64", []), ("int64", [2, 3])]),
        ([[1], [0.5, 2]], [("float", [1.0]), ("float", [0.5, 2.0])]),
        ([["a", "b"], "c"], [("bytes", [b"a", b"b"]), ("bytes", [b"c"])]),
        ([np.ones((1, 2)), torch.zeros(1)], [("float", [1.0, 1.0]), ("float", [0.0])]),
        (range(2), [("int64", [0]), ("int64", [1])]),
        ([[], []], ["absent", "absent"]),
        (Bytes(ABC.values, ABC.offsets[:3]), [("bytes", [b"a"]), ("bytes", [b""])]),
        (Bytes(ABC.values, ABC.offsets[1:]), [("bytes", [b""]), ("bytes", [b"bc"])]),
        (
            Bytes(np.array([97, 98], np.uint8), np.array([0, 1, 1, 1, 2]), (2, 1)),
            [("bytes", [b"a", b""]), ("bytes", [b"", b"b"])],
        ),
        (Ragged(torch.tensor([1, 2, 3]), torch.tensor([0, 0, 3])), [("int64", []), ("int64", [1, 2, 3])]),
        (Ragged(torch.tensor([9, 2, 3, 9]), torch.tensor([1, 2, 3])), [("int64", [2]), ("int64", [3])]),
        (
            Ragged(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 0, 2])),
            [("float", []), ("float", [1.0, 2.0, 3.0, 4.0])],
        ),
        (Ragged(np.array([1, 2], np.uint8), np.array([0, 1, 2])), [("int64", [1]), ("int64", [2])]),
        (Ragged(ABC, torch.tensor([0, 2, 3])), [("bytes", [b"a", b""]), ("bytes", [b"bc"])]),
        (Ragged(ABC, torch.tensor([1, 1, 3])), [("bytes", []), ("bytes", [b"", b"bc"])]),
    ],
)
def test_columns(column: Any, expected: list[Any]) -> None:
    assert [row.get("f", "absent") for row in rows_of({"f": column})] == expected


def test_columns_side_by_side() -> None:
    assert rows_of({"b": [1, 2], b"a": ["x", "y"]}) == [
        {"a": ("bytes", [b"x"]), "b": ("int64", [1])},
        {"a": ("bytes", [b"y"]), "b": ("int64", [2])},
    ]


def test_no_rows() -> None:
    assert encode_columns({"f": []})[1] == 0
    assert rows_of({"f": np.zeros((0, 3)), "g": []}) == []


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (np.float32(3), "not one float32"),
        (3, "not one int"),
        ("abc", "not one str"),
        (b"abc", "not one bytes"),
        (None, "not one NoneType"),
        ({"a": 1}, "not one dict"),
        ([1, None], "row 1 is None"),
        ([[1], None], "row 1 is None"),
        ([[1], ["a"]], "bytes and int values are mixed"),
        ([[1], [1j]], "row 1: complex cannot be stored"),
        (np.zeros(2, complex), "dtype complex128"),
        (Bytes(torch.zeros(3), torch.tensor([0, 3])), "bytes must be held as uint8, not as float32"),
    ],
)
def test_wrong_types_of_columns(column: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=r"^feature 'f': ") as info:
        encode_columns({"f": column})
    assert problem in str(info.value)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (np.array(3), "has no dimension"),
        (torch.tensor(3), "has no dimension"),
        ([[1], [2**63]], "row 1: 9223372036854775808 is outside int64"),
        (Ragged(torch.arange(3), torch.tensor([0, 4])), "offsets end at 4, but there are 3 values"),
        (Ragged(torch.arange(3), torch.tensor([0, 2, 1])), "must not fall"),
        (Ragged(torch.arange(3), torch.tensor([-1, 2])), "must not be negative"),
        (Ragged(torch.arange(3), torch.tensor([0.0, 2.0])), "offsets must be ints"),
        (Ragged(torch.arange(3), torch.tensor([], dtype=torch.int64)), "offsets must be ints in one dimension"),
        (Bytes(ABC.values, torch.tensor([0, 4])), "offsets end at 4, but there are 3 bytes"),
    ],
)
def test_wrong_values_of_columns(column: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=r"^feature 'f': ") as info:
        encode_columns({"f": column})
    assert problem in str(info.value)


def test_rows_must_agree() -> None:
    with pytest.raises(ValueError, match="feature 'b' has 3 rows, but feature 'a' has 2"):
        encode_columns({"a": [1, 2], "b": np.zeros((3, 2))})


def test_batch_without_features() -> None:
    with pytest.raises(ValueError, match="no known number of rows"):
        encode_columns({})


def test_torch_is_not_imported() -> None:
    code = "import sys, torch_tfrecord.encode, torch_tfrecord.writer; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
