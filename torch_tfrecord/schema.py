"""What to read of a record: feature specs with ``tf.io``'s names and meaning, and how bytes become tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import torch

from torch_tfrecord.dtypes import KINDS, DType, checked_dtype, is_dtype, name_of

_NUMPY: dict[Any, str] = {torch.float32: "<f4", torch.int64: "<i8"}

# Types that DecodeRaw can make, with their size in bytes, and the size of the unit whose bytes big-endian data swaps.
_RAW_TYPES: dict[torch.dtype, tuple[int, int]] = {
    torch.bool: (1, 1),
    torch.uint8: (1, 1),
    torch.int8: (1, 1),
    torch.uint16: (2, 2),
    torch.int16: (2, 2),
    torch.float16: (2, 2),
    torch.bfloat16: (2, 2),
    torch.uint32: (4, 4),
    torch.int32: (4, 4),
    torch.float32: (4, 4),
    torch.uint64: (8, 8),
    torch.int64: (8, 8),
    torch.float64: (8, 8),
    torch.complex64: (8, 4),
    torch.complex128: (16, 8),
}


def _checked_shape(shape: Any, owner: str, *, unknown: int = 0) -> tuple[int, ...]:
    """Normalise a shape; at most ``unknown`` of its sizes may be -1."""
    if shape is None:
        raise ValueError(f"{owner}: shape is None; give a shape such as () for one value or (28, 28)")
    if isinstance(shape, str | bytes) or not isinstance(shape, Sequence | np.ndarray | SupportsIndex):
        raise TypeError(f"{owner}: shape is {shape!r}, not a tuple of ints such as (), for one value, or (28, 28)")
    sizes = shape if isinstance(shape, Sequence | torch.Size | np.ndarray) else (shape,)
    result = []
    for size in sizes:
        number = -1 if size is None else operator.index(size)
        if number < 0:
            unknown -= 1
            if number < -1 or unknown < 0:
                advice = "use VarLenFeature for a number of values that varies"
                raise ValueError(f"{owner}: shape {tuple(sizes)} is not fully known; {advice}")
        result.append(number)
    return tuple(result)


def _checked_key(key: Any, owner: str) -> str | None:
    if key is not None and not isinstance(key, str):
        raise TypeError(f"{owner}: key is {key!r}, not a str")
    return key


@dataclass(frozen=True)
class DecodeRaw:
    """Bytes of a feature as the elements of a tensor, for ``FixedLenFeature(..., decode=)``.

    As ``tf.io.decode_raw`` and the reshape that follows it. One size may be -1: it is found from the number of bytes,
    and a batch of such records is a `Ragged`. Big-endian data is swapped element by element; ``torch.bool`` is "byte
    is not 0".

    Args:
        dtype: Element type: any torch integer, float, complex or bool type.
        shape: Shape of one value, row-major.
        little_endian: Byte order of the data.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> spec = {"x": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.int16, (2,)))}
        >>> tfr.parse_single_example(tfr.encode_example({"x": bytes([1, 0, 2, 0])}), spec)["x"]
        tensor([1, 2], dtype=torch.int16)
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    little_endian: bool = True

    def __init__(self, dtype: torch.dtype, shape: Any, *, little_endian: bool = True) -> None:
        if is_dtype(shape) or isinstance(dtype, tuple | list):
            raise TypeError(f"DecodeRaw: takes the dtype first, then the shape, not ({dtype!r}, {shape!r})")
        if dtype not in _RAW_TYPES:
            named = getattr(torch, name_of(dtype), None)
            python: dict[Any, torch.dtype] = {int: torch.int64, float: torch.float64}
            meant = python.get(dtype, named)
            advice = f"; say {meant}" if meant in _RAW_TYPES else ", such as torch.uint8"
            raise ValueError(f"DecodeRaw: dtype {dtype!r} is not a plain torch number type{advice}")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", _checked_shape(shape, "DecodeRaw", unknown=1))
        object.__setattr__(self, "little_endian", bool(little_endian))
        if -1 in self.shape and 0 in self.shape:
            raise ValueError(f"DecodeRaw: shape {self.shape} has a size of 0 beside one that is to be found")

    @property
    def item_size(self) -> int:
        """Bytes an element."""
        return _RAW_TYPES[self.dtype][0]

    @property
    def swap_size(self) -> int:
        """Bytes of the unit whose order big-endian data reverses: the element, or half a complex one."""
        return _RAW_TYPES[self.dtype][1]

    @property
    def nbytes(self) -> int:
        """Bytes a value; with a size of -1, bytes that each step along it takes."""
        return abs(math.prod(self.shape)) * self.item_size


@dataclass(frozen=True)
class DecodeImage:
    """Encoded images of a feature (PNG, JPEG, GIF's first frame, BMP, WebP), for ``FixedLenFeature(..., decode=)``.

    Gives uint8 ``[height, width, channels]``, as stored: EXIF orientation is ignored, as TensorFlow does. The format is
    told from the bytes. 16-bit samples keep their high byte; alpha is dropped, not blended, when fewer channels are
    asked for.

    Args:
        channels: 1 grey, 3 RGB, 4 RGBA; 0 as stored (then all images of a batch may differ).
        size: ``(height, width)`` of every image. None: images keep their size, and a batch of them is a `Ragged`.
        resample: How an image of another size becomes ``size``: "nearest", "bilinear", "bicubic" or "lanczos". None:
            such an image is an error.
        max_pixels: Larger images are refused before they are decoded.

    Example:
        >>> import torch_tfrecord as tfr
        >>> tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage(channels=1, size=(28, 28)))
        FixedLenFeature((), bytes, decode=DecodeImage(channels=1, size=(28, 28)))
    """

    channels: int = 3
    size: tuple[int, int] | None = None
    resample: str | None = "bilinear"
    max_pixels: int = 1 << 27

    def __init__(
        self,
        *,
        channels: int = 3,
        size: Sequence[int] | int | None = None,
        resample: str | None = "bilinear",
        max_pixels: int = 1 << 27,
    ) -> None:
        if channels not in (0, 1, 3, 4):
            raise ValueError(f"DecodeImage: channels is {channels}, not 0, 1, 3 or 4")
        if isinstance(size, int):
            size = (size, size)
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ValueError(f"DecodeImage: size is {size}, not (height, width)")
        if size is not None and channels == 0:
            raise ValueError("DecodeImage: with size=, say how many channels: 1, 3 or 4")
        if resample not in (None, "nearest", "bilinear", "bicubic", "lanczos"):
            raise ValueError(
                f'DecodeImage: resample is {resample!r}, not "nearest", "bilinear", "bicubic", "lanczos" or None'
            )
        object.__setattr__(self, "channels", channels)
        object.__setattr__(self, "size", None if size is None else (operator.index(size[0]), operator.index(size[1])))
        object.__setattr__(self, "resample", resample)
        object.__setattr__(self, "max_pixels", operator.index(max_pixels))

    def __repr__(self) -> str:
        parts = [f"channels={self.channels}"]
        if self.size is not None:
            parts.append(f"size={self.size}")
        if self.resample != "bilinear":
            parts.append(f"resample={self.resample!r}")
        if self.max_pixels != 1 << 27:
            parts.append(f"max_pixels={self.max_pixels}")
        return f"DecodeImage({', '.join(parts)})"


@dataclass(frozen=True)
class FixedLenFeature:
    """A feature with the same number of values in every record.

    Args:
        shape: Shape of one record's value, fully known; ``()`` is a scalar. The number of values must equal its
            product.
        dtype: ``torch.float32``, ``torch.int64`` or ``bytes``. Nothing is converted. ``str`` means ``bytes``, too:
            values arrive as ``bytes``, and ``.decode()`` makes text of them.
        default_value: Value of a record where the feature is absent or has no kind, with exactly the shape's number of
            values (a scalar is not repeated). None: such a record is an error. A list that is set, but empty, is never
            replaced by the default.
        decode: `DecodeRaw` or `DecodeImage`, to make tensors of bytes values.
        key: The feature's name in the file, where it differs from the column's.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> features = {"label": tfr.FixedLenFeature((), torch.int64), "w": tfr.FixedLenFeature((), torch.float32, 1.0)}
        >>> tfr.parse_single_example(tfr.encode_example({"label": 3}), features)
        {'label': tensor(3), 'w': tensor(1.)}
    """

    shape: tuple[int, ...]
    dtype: DType
    default_value: Any = None
    decode: DecodeRaw | DecodeImage | None = None
    key: str | None = None

    def __init__(
        self,
        shape: Any,
        dtype: Any,
        default_value: Any = None,
        *,
        decode: DecodeRaw | DecodeImage | None = None,
        key: str | None = None,
    ) -> None:
        if is_dtype(shape) or isinstance(dtype, tuple | list):
            raise TypeError(f"FixedLenFeature: takes the shape first, then the dtype, not ({shape!r}, {dtype!r})")
        set_field = object.__setattr__
        set_field(self, "shape", _checked_shape(shape, "FixedLenFeature"))
        set_field(self, "dtype", checked_dtype(dtype, "FixedLenFeature"))
        set_field(self, "key", _checked_key(key, "FixedLenFeature"))
        if decode is not None and self.dtype is not bytes:
            raise ValueError(f"FixedLenFeature: decode= is for dtype bytes, not {self.dtype}")
        if decode is not None and not isinstance(decode, DecodeRaw | DecodeImage):
            raise TypeError(f"FixedLenFeature: decode is {decode!r}, not a DecodeRaw or DecodeImage")
        set_field(self, "decode", decode)
        if decode is not None and self.shape != () and (isinstance(decode, DecodeImage) or -1 in decode.shape):
            raise ValueError(f"FixedLenFeature: shape {self.shape} with {decode}: values of varying size need shape ()")
        set_field(self, "default_value", _checked_default(self, default_value))

    @property
    def count(self) -> int:
        """Values a record."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return self.code("")

    def code(self, prefix: str) -> str:
        """The Python code that makes this spec, where this package's names are reached by ``prefix``."""
        parts = [repr(self.shape), _dtype_name(self.dtype)]
        if self.default_value is not None:
            parts.append(f"default_value={_default_code(self.default_value)}")
        if self.decode is not None:
            parts.append(f"decode={prefix}{self.decode!r}")
        if self.key is not None:
            parts.append(f"key={self.key!r}")
        return f"{prefix}FixedLenFeature({', '.join(parts)})"


@dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values, none where it is absent. A batch of it is a `Ragged`.

    Args:
        dtype: ``torch.float32``, ``torch.int64`` or ``bytes``. ``str`` means ``bytes``, too.
        key: The feature's name in the file, where it differs from the column's.

    Example:
        >>> import torch, torch_tfrecord as tfr
        >>> records = [tfr.encode_example({"t": [1, 2]}), tfr.encode_example({"t": [3]}), tfr.encode_example({})]
        >>> tfr.parse_example(records, {"t": tfr.VarLenFeature(torch.int64)})["t"].to_padded(-1)
        tensor([[ 1,  2],
                [ 3, -1],
                [-1, -1]])
    """

    dtype: DType
    key: str | None = None

    def __init__(self, dtype: Any, *, key: str | None = None) -> None:
        object.__setattr__(self, "dtype", checked_dtype(dtype, "VarLenFeature"))
        object.__setattr__(self, "key", _checked_key(key, "VarLenFeature"))

    def __repr__(self) -> str:
        return self.code("")

    def code(self, prefix: str) -> str:
        """The Python code that makes this spec, where this package's names are reached by ``prefix``."""
        key = "" if self.key is None else f", key={self.key!r}"
        return f"{prefix}VarLenFeature({_dtype_name(self.dtype)}{key})"


Feature: TypeAlias = FixedLenFeature | VarLenFeature


class Schema(dict[str, Feature]):
    """Specs by column name; a plain ``dict`` that prints as the Python code that makes it."""

    def __repr__(self) -> str:
        if not self:
            return "{}"
        return "{\n" + "".join(f"    {name!r}: {spec.code('tfr.')},\n" for name, spec in self.items()) + "}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (dict(self),)


def kind_of(dtype: DType) -> int:
    """The number of a dtype's list in the ``Feature`` message: 1 bytes, 2 float32, 3 int64."""
    return KINDS[dtype]


def checked_features(features: Mapping[str, Any]) -> tuple[tuple[str, Feature], ...]:
    """Check a mapping of specs and freeze it, so that it can be compared and kept.

    Raises:
        ValueError: It is empty.
        TypeError: A name is not a str, or a spec not one of this module's.
    """
    if not features:
        raise ValueError("features is empty: name at least one feature, or use features=None for raw records")
    for name, spec in features.items():
        if not isinstance(name, str):
            raise TypeError(f"features: the name {name!r} is not a str")
        if not isinstance(spec, FixedLenFeature | VarLenFeature):
            raise TypeError(f"features[{name!r}] is {spec!r}, not a FixedLenFeature or VarLenFeature")
    return tuple(features.items())


def encoded_default(spec: FixedLenFeature) -> bytes | tuple[bytes, ...] | None:
    """A spec's default as the native core takes it."""
    if spec.default_value is None:
        return None
    if spec.dtype is not bytes:
        return np.asarray(spec.default_value, dtype=_NUMPY[spec.dtype]).tobytes()
    values = _flat(spec.default_value)
    if isinstance(spec.decode, DecodeRaw) and -1 not in spec.decode.shape:
        return b"".join(values)
    return tuple(values)


def _dtype_name(dtype: DType) -> str:
    return "bytes" if dtype is bytes else str(dtype)


def _default_code(value: Any) -> str:
    """The Python code of a default; that of infinities and NaN is not their repr."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_default_code, value))}{',' * (len(value) == 1)})"
    return repr(value) if not isinstance(value, float) or math.isfinite(value) else f"float({str(value)!r})"


def _flat(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return [item for part in value for item in _flat(part)]
    return [value]


def _checked_default(spec: FixedLenFeature, value: Any) -> Any:
    """A default with the right type and number of values, as a number, bytes, or flat tuple of them (so: hashable)."""
    if value is None:
        return None
    values = [item.encode() if isinstance(item, str) and spec.dtype is bytes else item for item in _flat(value)]
    if len(values) != spec.count:
        raise ValueError(
            f"FixedLenFeature: default_value has {len(values)} values, but shape {spec.shape} takes {spec.count}"
        )
    for item in values:
        if spec.dtype is bytes:
            good = isinstance(item, bytes)
        elif spec.dtype is torch.int64:
            good = isinstance(item, int) and -(1 << 63) <= item < 1 << 63
        else:
            good = isinstance(item, int | float)
        if not good:
            raise TypeError(
                f"FixedLenFeature: default_value holds {item!r}, which is not of dtype {_dtype_name(spec.dtype)}"
            )
    decode = spec.decode
    if isinstance(decode, DecodeRaw) and -1 not in decode.shape and any(len(item) != decode.nbytes for item in values):
        raise ValueError(f"FixedLenFeature: default_value is not of the {decode.nbytes} bytes that {decode} takes")
    if spec.dtype is torch.float32:
        values = [_checked_float(item) for item in values]
    return values[0] if spec.shape == () else tuple(values)


def _checked_float(item: Any) -> float:
    try:
        value = float(item)
    except OverflowError:
        value = math.inf
    with np.errstate(over="ignore"):
        narrow = np.float32(value)
    if math.isinf(narrow) and item not in (math.inf, -math.inf):
        raise ValueError(f"FixedLenFeature: default_value holds {item!r}, which is outside float32")
    return value if value == value else math.nan  # noqa: PLR0124 - one NaN, so that equal specs compare equal
