"""The three dtypes that an Example can hold, and what somebody meant who gives another."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import numpy as np
import torch

# The three dtypes that an Example can hold. ``bytes`` stands for strings: torch has no string tensor.
DType: TypeAlias = "torch.dtype | type[bytes]"

KINDS: dict[Any, int] = {bytes: 1, torch.float32: 2, torch.int64: 3}
_MEANT = {"int|uint|bool": "torch.int64", "float|bfloat|double|half": "torch.float32", "bytes|str|object": "bytes"}


def is_dtype(value: Any) -> bool:
    """Whether a value is a dtype of torch or NumPy, or a type such as ``int``."""
    return isinstance(value, torch.dtype | np.dtype | type)


def checked_dtype(dtype: Any, owner: str) -> DType:
    """The dtype of a spec, or an error that says which was meant."""
    if dtype is str:
        dtype = bytes
    if isinstance(dtype, tuple | list):
        raise TypeError(f"{owner}: dtype is {dtype!r}; give torch.float32, torch.int64 or bytes (and no shape)")
    if not isinstance(dtype, torch.dtype | type) or dtype not in KINDS:
        known = "torch.float32, torch.int64 or bytes, which an Example holds"
        raise ValueError(f"{owner}: dtype {dtype!r} is not {known}{_advice(dtype)}")
    result: DType = dtype
    return result


def name_of(dtype: Any) -> str:
    """The bare name of anybody's dtype: "int32" of torch's, NumPy's, TensorFlow's, Python's, or of a str."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype
    return str(name).removeprefix("torch.").rstrip("_")


def _advice(dtype: Any) -> str:
    """Which of the three dtypes was meant."""
    name = name_of(dtype)
    meant = next((kind for pattern, kind in _MEANT.items() if re.match(pattern, name)), None)
    if meant is None:
        return ""
    cast = None if dtype is int else getattr(torch, name, None)  # torch.int has 32 bits
    if not isinstance(cast, torch.dtype) or str(cast) == meant:
        return f"; say {meant}"
    raw = "; for bytes that are such numbers, say bytes and decode=DecodeRaw" if isinstance(dtype, torch.dtype) else ""
    return f"; say {meant}, and cast the tensors by .to({cast}) where you need it{raw}"
