"""Examples made by protobuf, and the value of one feature ``f`` in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import torch_tfrecord as tfr
from torch_tfrecord.messages import Example


def message(features: Mapping[str, Any]) -> bytes:
    """An Example made by protobuf: of lists, of None for a feature without a kind, of () for an empty list of ints."""
    result = Example()
    for name, values in features.items():
        feature = result.features.feature[name]
        if values is None:
            continue
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type((*values, 0)[0])]
        getattr(feature, kind).SetInParent()
        getattr(feature, kind).value.extend(values)
    return bytes(result.SerializeToString())


def plain(value: Any) -> Any:
    """A value as numbers, bytes and lists."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


def parse_one(record: bytes, spec: Any) -> Any:
    return tfr.parse_single_example(record, {"f": spec})["f"]


def parse(records: Sequence[bytes], spec: Any) -> Any:
    return tfr.parse_example(records, {"f": spec})["f"]
