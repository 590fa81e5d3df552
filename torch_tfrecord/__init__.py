"""TFRecord files to PyTorch tensors, without TensorFlow.

    >>> import torch_tfrecord as tfr

``TFRecordDataset`` reads records at random by way of a ``RecordIndex``; ``collate`` hands whole batches to torch's
``DataLoader``; ``TFRecordWriter`` writes. README.md shows them at work, ARCHITECTURE.md is the map of the code.

Names are imported when they are first used, so tools that need no tensors start without torch.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_tfrecord.batch import Batch
    from torch_tfrecord.collation import collate
    from torch_tfrecord.dataset import TFRecordDataset
    from torch_tfrecord.encode import encode_example
    from torch_tfrecord.errors import (
        CancelledError,
        DataLossError,
        NotATFRecordError,
        OutOfRangeError,
        ParseError,
        StaleIndexError,
        StateError,
        TFRecordError,
    )
    from torch_tfrecord.index import RecordIndex
    from torch_tfrecord.infer import infer_schema
    from torch_tfrecord.loader import TFRecordLoader
    from torch_tfrecord.messages import (
        BytesList,
        Example,
        Feature,
        FeatureList,
        FeatureLists,
        Features,
        FloatList,
        Int64List,
        SequenceExample,
    )
    from torch_tfrecord.mixing import measure_mixing
    from torch_tfrecord.native import backend
    from torch_tfrecord.order import BlockShuffle, QueueShuffle
    from torch_tfrecord.parsing import parse_example, parse_single_example
    from torch_tfrecord.ragged import Bytes, Ragged
    from torch_tfrecord.records import RecordIterator, read_records
    from torch_tfrecord.sampler import RecordSampler
    from torch_tfrecord.schema import DecodeImage, DecodeRaw, FixedLenFeature, Schema, VarLenFeature
    from torch_tfrecord.stats import LoaderStats
    from torch_tfrecord.stream import TFRecordIterableDataset
    from torch_tfrecord.writer import TFRecordWriter

__version__ = "0.1.0"

_MODULES = {
    "batch": ("Batch",),
    "collation": ("collate",),
    "dataset": ("TFRecordDataset",),
    "encode": ("encode_example",),
    "errors": (
        "CancelledError",
        "DataLossError",
        "NotATFRecordError",
        "OutOfRangeError",
        "ParseError",
        "StaleIndexError",
        "StateError",
        "TFRecordError",
    ),
    "index": ("RecordIndex",),
    "infer": ("infer_schema",),
    "loader": ("TFRecordLoader",),
    "messages": (
        "BytesList",
        "Example",
        "Feature",
        "FeatureList",
        "FeatureLists",
        "Features",
        "FloatList",
        "Int64List",
        "SequenceExample",
    ),
    "mixing": ("measure_mixing",),
    "native": ("backend",),
    "order": ("BlockShuffle", "QueueShuffle"),
    "parsing": ("parse_example", "parse_single_example"),
    "ragged": ("Bytes", "Ragged"),
    "records": ("RecordIterator", "read_records"),
    "sampler": ("RecordSampler",),
    "schema": ("DecodeImage", "DecodeRaw", "FixedLenFeature", "Schema", "VarLenFeature"),
    "stats": ("LoaderStats",),
    "stream": ("TFRecordIterableDataset",),
    "writer": ("TFRecordWriter",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Batch",
    "BlockShuffle",
    "Bytes",
    "BytesList",
    "CancelledError",
    "DataLossError",
    "DecodeImage",
    "DecodeRaw",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FixedLenFeature",
    "FloatList",
    "Int64List",
    "LoaderStats",
    "NotATFRecordError",
    "OutOfRangeError",
    "ParseError",
    "QueueShuffle",
    "Ragged",
    "RecordIndex",
    "RecordIterator",
    "RecordSampler",
    "Schema",
    "SequenceExample",
    "StaleIndexError",
    "StateError",
    "TFRecordDataset",
    "TFRecordError",
    "TFRecordIterableDataset",
    "TFRecordLoader",
    "TFRecordWriter",
    "VarLenFeature",
    "backend",
    "collate",
    "encode_example",
    "infer_schema",
    "measure_mixing",
    "parse_example",
    "parse_single_example",
    "read_records",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())


if not TYPE_CHECKING:  # a type checker is to find misspelt names

    def __getattr__(name: str) -> Any:
        module = _HOME.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        globals()[name] = value  # so that this runs once a name
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
