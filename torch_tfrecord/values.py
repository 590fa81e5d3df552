"""Values of one feature: from what a caller may hold to the flat arrays that the core encodes.

torch is not imported here: a value can be a tensor only where torch has been imported already.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torch_tfrecord.native._core import Int64s

BYTES, FLOAT, INT64 = 1, 2, 3  # the core's kinds
_KIND_NAMES = {BYTES: "bytes", FLOAT: "float", INT64: "int"}
_INT64_MAX = 2**63 - 1
_MAX_NESTING = 32
_INTS = frozenset((int, bool))
_NUMBERS = frozenset((int, bool, float))
_TEXTS = frozenset((bytes, str, bytearray, memoryview))


@dataclasses.dataclass(frozen=True)
class Values:
    """The values of a feature, flat.

    Attributes:
        kind: 1 bytes, 2 float32, 3 int64.
        items: float32[n] or int64[n]; for bytes uint8, all values end to end.
        ends: For bytes int64[n + 1], where in ``items`` each value starts and the last one ends; else None.
    """

    kind: int
    items: NDArray[Any]
    ends: Int64s | None

    @property
    def count(self) -> int:
        """How many values these are."""
        return len(self.items) if self.ends is None else len(self.ends) - 1


def to_values(value: object, *, nesting: int = 0) -> Values | None:
    """Flatten a value of a feature. None, and lists that hold nothing, have no kind and give None.

    Raises:
        ValueError: An int outside int64, a finite float outside float32, a str that UTF-8 cannot hold.
        TypeError: Something that no feature can hold, or bytes mixed with numbers.
    """
    if value is None:
        return None
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return _from_texts([value])
    if isinstance(value, (np.ndarray, np.generic)):
        return from_array(np.asarray(value))
    if isinstance(value, int):
        return _from_ints([value])
    if isinstance(value, float):
        return _from_floats([value])
    if is_tensor(value):
        return from_array(tensor_to_array(value))
    if isinstance(value, Sequence):
        return _from_sequence(value, nesting)
    raise TypeError(
        f"{type(value).__name__} cannot be stored: give ints, floats, bytes, str, or lists or arrays of them"
    )


def from_array(array: NDArray[Any]) -> Values | None:
    """Flatten an array, row-major. Only an object array without values gives None."""
    dtype = array.dtype
    if dtype.kind in "bi":
        return Values(INT64, np.ascontiguousarray(array, np.int64).reshape(-1), None)
    if dtype.kind == "u":
        if dtype.itemsize == 8 and array.size and int(array.max()) > _INT64_MAX:
            raise ValueError(f"{int(array.max())} is outside int64")
        return Values(INT64, np.ascontiguousarray(array.astype(np.int64)).reshape(-1), None)
    # The names are of the ml_dtypes package, whose types are neither floats nor anything else to NumPy.
    if dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8")):
        return Values(FLOAT, np.ascontiguousarray(_to_float32(array)).reshape(-1), None)
    if dtype.kind in "SUOT":
        flat = array.reshape(-1).tolist()
        return _from_texts(flat) if dtype.kind in "SU" else to_values(flat)
    raise TypeError(f"an array of dtype {dtype} cannot be stored: convert it to ints, floats or bytes")


def from_scalars(items: Sequence[Any]) -> Values | None:
    """Values of a list of plain scalars, or None where it holds anything else. Mixed ints and floats are floats."""
    types = set(map(type, items))
    if types <= _INTS:
        return _from_ints(items)
    if types <= _NUMBERS:
        return _from_floats(items)
    if types <= _TEXTS:
        return _from_texts(items)
    if len(types) == 1 and issubclass(next(iter(types)), (np.number, np.bool_)):
        return from_array(np.array(items))
    return None


def join(parts: Sequence[Values]) -> Values:
    """One after the other. Ints become floats where both occur.

    Raises:
        TypeError: Bytes and numbers are mixed.
    """
    kinds = {part.kind for part in parts}
    if BYTES in kinds and len(kinds) > 1:
        names = " and ".join(sorted(_KIND_NAMES[kind] for kind in kinds))
        raise TypeError(f"{names} values are mixed, but a feature holds one kind")
    if len(parts) == 1:
        return parts[0]
    if BYTES not in kinds:
        kind = FLOAT if FLOAT in kinds else INT64
        dtype = np.float32 if kind == FLOAT else np.int64
        return Values(kind, np.concatenate([part.items for part in parts], dtype=dtype, casting="same_kind"), None)
    sizes = np.concatenate([np.diff(part.ends) for part in parts if part.ends is not None])
    return Values(BYTES, np.concatenate([part.items for part in parts]), offsets_of(sizes))


def offsets_of(sizes: Int64s) -> Int64s:
    """Where each of some consecutive pieces starts, and where the last one ends: int64[n + 1]."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def is_tensor(value: object) -> bool:
    """Whether a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def tensor_to_array(tensor: Any) -> NDArray[Any]:
    """A dense tensor on any device as an array; the short float types, which NumPy lacks in part, as float32."""
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex():
        raise TypeError(
            f"a tensor of {tensor.dtype} and layout {tensor.layout} cannot be stored: make it dense numbers"
        )
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.float()
    array: NDArray[Any] = tensor.resolve_neg().numpy()
    return array


def _from_sequence(items: Sequence[Any], nesting: int) -> Values | None:
    if nesting > _MAX_NESTING:
        raise ValueError(f"lists are nested more than {_MAX_NESTING} deep")
    if not len(items):
        return None
    values = from_scalars(items)
    if values is not None:
        return values
    if any(item is None for item in items):
        raise TypeError("None inside a list: a feature holds values only")
    parts = [to_values(item, nesting=nesting + 1) for item in items]
    known = [part for part in parts if part is not None]
    return join(known) if known else None


def _from_ints(items: Sequence[Any]) -> Values:
    try:
        return Values(INT64, np.array(items, np.int64), None)
    except OverflowError:
        wide = next(item for item in items if not -_INT64_MAX - 1 <= item <= _INT64_MAX)
        raise ValueError(f"{wide} is outside int64") from None


def _from_floats(items: Sequence[Any]) -> Values:
    try:
        doubles = np.array(items, np.float64)
    except OverflowError:
        raise ValueError("an int among floats is outside float32, which ends at 3.4e38") from None
    return Values(FLOAT, _to_float32(doubles), None)


def _from_texts(items: Sequence[Any]) -> Values:
    try:
        encoded = [item.encode() if isinstance(item, str) else bytes(item) for item in items]
    except UnicodeEncodeError as error:
        raise ValueError(f"a str cannot be stored as UTF-8 ({error.reason}): give bytes instead") from None
    sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return Values(BYTES, np.frombuffer(b"".join(encoded), np.uint8), offsets_of(sizes))


def _to_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    try:
        with np.errstate(over="raise", under="ignore", invalid="ignore"):
            return array.astype(np.float32, copy=False)
    except FloatingPointError:
        raise ValueError("a finite float is outside float32, which ends at 3.4e38") from None
