"""The native core's twin in plain Python: slow, and written to be read.

It fulfils ``_core.pyi`` name by name, so it is the tests' oracle for the native core, and the place to learn the format
from. ``TORCH_TFRECORD_BACKEND=python`` runs the whole package on it. From the bottom up:

    * ``reference_wire``: tags, varints and lengths of protobuf
    * ``reference_frames``: checksums, frames, files
    * ``reference_example``: the messages of an Example
    * ``reference_columns``: what a column takes from a record
    * ``reference_decoder``: batches of records into columns
    * ``reference_encode``: columns into records
    * ``reference_order``: permutations, and the shuffle queue
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from torch_tfrecord.native.reference_columns import FIXED, RAGGED
from torch_tfrecord.native.reference_decoder import Decoder, Job
from torch_tfrecord.native.reference_encode import encode_batch
from torch_tfrecord.native.reference_example import decode_packed, describe
from torch_tfrecord.native.reference_frames import (
    File,
    crc32c,
    crc32c_implementation,
    crc32c_implementations,
    frame,
    frame_size,
    masked_crc32c,
    scan_frames,
    set_crc32c_implementation,
    split_frames,
)
from torch_tfrecord.native.reference_order import Bijection, ShuffleQueue, permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "FIXED",
    "RAGGED",
    "Bijection",
    "Block",
    "Decoder",
    "File",
    "Job",
    "ShuffleQueue",
    "crc32c",
    "crc32c_implementation",
    "crc32c_implementations",
    "decode_packed",
    "describe",
    "encode_batch",
    "frame",
    "frame_size",
    "masked_crc32c",
    "permutation",
    "scan_frames",
    "set_crc32c_implementation",
    "split_frames",
]


def Block(nbytes: int) -> NDArray[np.uint8]:  # noqa: N802  # a class in the native core
    """A piece of memory, 64-byte aligned.

    A class written in Python has a buffer protocol only from Python 3.12 on, so this is a function, and what it returns
    an array, which has one. There is no free list.
    """
    if nbytes < 0:
        raise ValueError(f"nbytes must not be negative, but is {nbytes}")
    memory = np.empty(nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + nbytes]
