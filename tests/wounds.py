"""Files with random wounds, in which every byte knows where it came from: so what a wound left whole is known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from record_files import frame

KINDS = ("flip", "overwrite", "delete", "insert", "cut")


@dataclass(frozen=True)
class Wounded:
    """A damaged file.

    Attributes:
        data: Its bytes.
        payloads: What was written.
        whole: Of each record that no wound touched, its number and where its frame begins now.
    """

    data: bytes
    payloads: list[bytes]
    whole: list[tuple[int, int]]

    def whole_places(self) -> list[int]:
        """Where the frames of the untouched records begin."""
        return [start for _, start in self.whole]


def inflict(random: Random, payloads: list[bytes], count: int, kinds: Sequence[str] = KINDS) -> Wounded:
    """Write a file of records and damage it."""
    frames = list(map(frame, payloads))
    data = bytearray(b"".join(frames))
    origins: list[tuple[int, int] | None] = [(i, j) for i, some in enumerate(frames) for j in range(len(some))]
    for _ in range(count):
        _wound(random, random.choice(kinds), data, origins)
    places = {origin: at for at, origin in enumerate(origins) if origin is not None}
    whole = []
    for i, some in enumerate(frames):
        start = places.get((i, 0))
        if start is not None and all(places.get((i, j)) == start + j for j in range(len(some))):
            whole.append((i, start))
    return Wounded(bytes(data), payloads, whole)


def _wound(random: Random, kind: str, data: bytearray, origins: list[tuple[int, int] | None]) -> None:
    at = random.randrange(len(data) + 1)
    size = random.choice((1, 2, 4, random.randrange(1, 40), random.randrange(1, 400)))
    if kind == "flip" and at < len(data):
        data[at] ^= 1 << random.randrange(8)
        origins[at] = None
    elif kind == "overwrite":
        size = min(size, len(data) - at)
        data[at : at + size] = random.choice((bytes(size), random.randbytes(size)))
        origins[at : at + size] = [None] * size
    elif kind == "delete":
        del data[at : at + size], origins[at : at + size]
    elif kind == "insert":
        data[at:at] = random.randbytes(size)
        origins[at:at] = [None] * size
    elif kind == "cut":
        end = max(len(data) - size, 0)
        del data[end:], origins[end:]
