"""Random Examples, one and many, against a plain expectation made of protobuf's messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_tfrecord as tfr
from examples import plain
from torch_tfrecord.messages import Example

FIELDS: dict[Any, str] = {bytes: "bytes_list", torch.float32: "float_list", torch.int64: "int64_list"}
_VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bytes: st.binary(max_size=5),
    torch.float32: st.floats(width=32, allow_nan=False),
    torch.int64: st.integers(-(2**63), 2**63 - 1),
}
_DTYPES = st.sampled_from([bytes, torch.float32, torch.int64])
_SHAPES = st.sampled_from([(), (1,), (2,), (2, 1), (0,)])


class MismatchError(Exception):
    """What the expectation says of a record that does not fit."""


@st.composite
def specs(draw: Any) -> Any:
    dtype = draw(_DTYPES)
    if draw(st.booleans()):
        return tfr.VarLenFeature(dtype)
    shape = draw(_SHAPES)
    count = int(np.prod(shape))
    default = draw(st.none() | st.lists(_VALUES[dtype], min_size=count, max_size=count)) if count else None
    return tfr.FixedLenFeature(shape, dtype, default)


@st.composite
def lists_for(draw: Any, spec: Any) -> tuple[str, list[Any]] | None:
    """What a record has for a spec: mostly what fits. None: no feature. A kind of "" is none."""
    whim = draw(st.integers(0, 24))
    if whim == 0:
        return None
    if whim == 1:
        return "", []
    dtype = draw(_DTYPES) if whim == 2 else spec.dtype
    count = draw(st.integers(0, 4)) if whim == 3 or isinstance(spec, tfr.VarLenFeature) else spec.count
    return FIELDS[dtype], draw(st.lists(_VALUES[dtype], min_size=count, max_size=count))


@st.composite
def cases(draw: Any) -> tuple[dict[str, Any], list[Example]]:
    features = draw(st.dictionaries(st.text(max_size=8), specs(), min_size=1, max_size=4))
    messages = []
    for _ in range(draw(st.integers(0, 4))):
        record = Example()
        for name, spec in {**features, "unasked": tfr.VarLenFeature(draw(_DTYPES))}.items():
            content = draw(lists_for(spec))
            if content is not None:
                feature = record.features.feature[name]
                if content[0]:
                    getattr(feature, content[0]).SetInParent()
                    getattr(feature, content[0]).value.extend(content[1])
        messages.append(record)
    return features, messages


def expected(record: Example, name: str, spec: Any) -> Any:
    """The value that a record has for a spec, in plain Python; or raises MismatchError."""
    kind = record.features.feature[name].WhichOneof("kind") if name in record.features.feature else None
    if kind is not None and kind != FIELDS[spec.dtype]:
        raise MismatchError
    values = list(getattr(record.features.feature[name], kind).value) if kind else []
    if isinstance(spec, tfr.VarLenFeature):
        return values
    if kind is None:
        if spec.default_value is None:
            raise MismatchError
        values = list(spec.default_value) if spec.shape else [spec.default_value]
        values = np.array(values, np.float32).tolist() if spec.dtype is torch.float32 else values
    if len(values) != spec.count:
        raise MismatchError
    nested = np.empty(spec.count, object)
    nested[:] = values
    return nested.reshape(spec.shape).tolist()


@settings(max_examples=300, deadline=None)
@given(cases())
def test_one_and_many_records_are_what_protobuf_says(case: tuple[dict[str, Any], list[Example]]) -> None:
    features, messages = case
    rows: list[dict[str, Any] | None] = []
    for record in messages:
        try:
            rows.append({name: expected(record, name, spec) for name, spec in features.items()})
        except MismatchError:
            rows.append(None)
    payloads = [bytes(record.SerializeToString()) for record in messages]
    for payload, row in zip(payloads, rows, strict=True):
        if row is None:
            with pytest.raises(tfr.ParseError, match=r"^record 0: feature "):
                tfr.parse_single_example(payload, features)
        else:
            found = tfr.parse_single_example(payload, features)
            assert {name: plain(value) for name, value in found.items()} == row
    if None in rows:
        with pytest.raises(tfr.ParseError, match=f"^record {rows.index(None)}: feature "):
            tfr.parse_example(payloads, features)
        return
    batch = tfr.parse_example(payloads, features)
    assert [{n: plain(v) for n, v in batch.row(i).items()} for i in range(len(rows))] == rows
    defaulted = [
        name
        for record in messages
        for name, spec in features.items()
        if isinstance(spec, tfr.FixedLenFeature)
        and (name not in record.features.feature or not record.features.feature[name].WhichOneof("kind"))
    ]
    assert batch.num_defaulted == len(defaulted)
    assert batch.num_duplicates == 0
