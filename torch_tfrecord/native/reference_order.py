"""Orders of record numbers in plain Python: ``permutation``, ``Bijection`` and ``ShuffleQueue`` of ``_core.pyi``.

All draw from splitmix64, and by the same rule, so that the native core gives the same numbers for the same key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from torch_tfrecord.native.reference_frames import Int64s

    UInt64s = NDArray[np.uint64]

MAX_SIZE = 2**62
MIN_KEYS = 8
_MAX_ARRAY = (2**63 - 1) // 8  # numbers that memory has addresses for
_MASK = 2**64 - 1


def mix64(x: int) -> int:
    """The finaliser of splitmix64: 64 bits that look random where neighbouring ones go in."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def _mix64_all(x: UInt64s) -> UInt64s:
    """`mix64` of each number."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: UInt64s = x ^ x >> np.uint64(31)
    return mixed


class Random:
    """splitmix64."""

    def __init__(self, key: int) -> None:
        self._state = _checked_key(key)

    def next(self) -> int:
        """64 random bits."""
        self._state = self._state + 0x9E3779B97F4A7C15 & _MASK
        return mix64(self._state)

    def below(self, bound: int) -> int:
        """A number in [0, bound), each with the same probability.

        2**64 numbers cannot be dealt evenly to ``bound`` ones; those that would be too many are drawn again.
        """
        while True:
            product = self.next() * bound
            if (product & _MASK) >= 2**64 % bound:
                return product >> 64


def permutation(size: int, key: int) -> Int64s:
    """A random permutation, see ``_core.pyi``."""
    if _checked_size(size) > _MAX_ARRAY:
        raise MemoryError
    random = Random(key)
    ids = np.arange(size, dtype=np.int64)
    for last in range(size - 1, 0, -1):
        other = random.below(last + 1)
        ids[last], ids[other] = ids[other], ids[last]
    return ids


class Bijection:
    """A permutation that is computed point by point, see ``_core.pyi``.

    Numbers of just enough bits are cut in two halves, of which the upper one has a bit more where they are uneven. Each
    round changes one half by a function of the other and a key, which the same round can undo. Where the result is
    not below ``size``, it goes through all rounds again.
    """

    def __init__(self, size: int, keys: Sequence[int]) -> None:
        self._size = _checked_size(size)
        self._keys = [_checked_key(key) for key in keys]
        if len(self._keys) < MIN_KEYS:
            raise ValueError(f"a bijection needs {MIN_KEYS} keys or more, not {len(self._keys)}")
        bits = max(size - 1, 0).bit_length()
        self._low_bits = np.uint64(bits // 2)
        self._low_mask = np.uint64(2 ** (bits // 2) - 1)
        self._high_mask = np.uint64(2 ** (bits - bits // 2) - 1)

    def ids(self, positions: Int64s) -> Int64s:
        """What comes at each position."""
        return self._walk(positions, range(len(self._keys)))

    def positions(self, ids: Int64s) -> Int64s:
        """Where each number comes: the inverse of ``ids``."""
        return self._walk(ids, range(len(self._keys))[::-1])

    def _walk(self, numbers: Int64s, rounds: range) -> Int64s:
        if not np.can_cast(numbers.dtype, np.int64):
            raise TypeError(f"expected int64, not {numbers.dtype}")
        if numbers.ndim != 1:
            raise ValueError(f"expected one dimension, not {numbers.ndim}")
        for bad in numbers[(numbers < 0) | (numbers >= self._size)]:
            raise IndexError(f"{bad} is outside a bijection of {self._size}")
        walked = numbers.astype(np.uint64)
        outside = np.arange(len(walked))
        while len(outside):
            walked[outside] = self._apply(walked[outside], rounds)
            outside = outside[walked[outside] >= np.uint64(self._size)]
        return walked.astype(np.int64)

    def _apply(self, numbers: UInt64s, rounds: range) -> UInt64s:
        for i in rounds:
            key = np.uint64(self._keys[i])
            if i % 2 == 0:
                change = (_mix64_all((numbers & self._low_mask) + key) & self._high_mask) << self._low_bits
            else:
                change = _mix64_all((numbers >> self._low_bits) + key) & self._low_mask
            numbers = numbers ^ change
        return numbers


class ShuffleQueue:
    """TF1's shuffle queue on numbers, see ``_core.pyi``."""

    def __init__(self, size: int, capacity: int, key: int) -> None:
        self._size = _checked_size(size)
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, but is {capacity}")
        if min(size, capacity) > _MAX_ARRAY:
            raise MemoryError
        self._random = Random(key)
        self._buffer = np.arange(min(size, capacity), dtype=np.int64)
        self._held = len(self._buffer)
        self._position = 0

    @property
    def position(self) -> int:
        """Numbers drawn so far."""
        return self._position

    def take(self, count: int) -> Int64s:
        """The next draws."""
        self._check(count)
        return np.fromiter((self._draw() for _ in range(count)), np.int64, count)

    def skip(self, count: int) -> None:
        """Draw without a look."""
        self._check(count)
        for _ in range(count):
            self._draw()

    def _check(self, count: int) -> None:
        left = self._size - self._position
        if not 0 <= count <= left:
            raise ValueError(f"count must be 0 to the {left} that are left of {self._size}, but is {count}")

    def _draw(self) -> int:
        place = self._random.below(self._held)
        drawn = int(self._buffer[place])
        entering = self._position + self._held
        if entering < self._size:
            self._buffer[place] = entering
        else:
            self._held -= 1
            self._buffer[place] = self._buffer[self._held]
        self._position += 1
        return drawn


def _checked_size(size: int) -> int:
    if not 0 <= size <= MAX_SIZE:
        raise ValueError(f"size must be 0 to 2**62, but is {size}")
    return size


def _checked_key(key: int) -> int:
    if not 0 <= key <= _MASK:
        raise TypeError(f"a key has 64 bits, but is {key}")
    return key
