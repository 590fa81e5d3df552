"""What columns take from a record, in plain Python: the rules for ``Column`` of ``_core.pyi``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from torch_tfrecord.native.reference_example import BYTES, FLOAT32, INT64, ITEM_BYTES, KINDLESS, Feature, Values

Column: TypeAlias = tuple[bytes, int, int, int, int, bytes | tuple[bytes, ...] | None]

FIXED, RAGGED = range(2)
WHOLE_PAYLOAD = 0  # a column's kind
MAX_ROW_BYTES = 2**40  # of a sized column; keeps products of rows and sizes within 64 bits


@dataclass(frozen=True)
class Spec:
    """A column with names to its parts. ``default`` holds one record's values, as a Feature would."""

    key: bytes
    kind: int
    layout: int
    count: int
    nbytes: int
    default: Values | None

    @classmethod
    def compile(cls, column: Column) -> Spec:
        """Check a column. Raises ValueError where its parts contradict one another."""
        key, kind, layout, count, nbytes, default = column
        spec = cls(*column)

        def require(condition: bool, rule: str) -> None:
            if not condition:
                raise ValueError(f"column {key!r}: {rule}, but it is {column!r}")

        require(kind in (WHOLE_PAYLOAD, BYTES, FLOAT32, INT64), "kind must be 0, 1, 2 or 3")
        require(layout in (FIXED, RAGGED), "layout must be FIXED or RAGGED")
        require(nbytes == -1 or (kind == BYTES and layout == FIXED), "only FIXED bytes have nbytes")
        require(-1 <= nbytes <= MAX_ROW_BYTES, f"nbytes must be -1 or a size up to {MAX_ROW_BYTES}")
        require(
            0 <= count <= MAX_ROW_BYTES // max(spec.item_bytes, 1), f"count must be 0 to {MAX_ROW_BYTES} bytes' worth"
        )
        if kind == WHOLE_PAYLOAD:
            require(layout == FIXED and count == 1 and default is None, "kind 0 is FIXED with count 1 and no default")
        if layout == RAGGED:
            require(count == 0 and default is None, "RAGGED has count 0 and no default")
        if default is None:
            return spec
        if spec.item_bytes < 0:
            require(isinstance(default, tuple) and len(default) == count, f"default must be a tuple of {count} bytes")
            return spec
        size = spec.item_bytes
        require(isinstance(default, bytes) and len(default) == count * size, f"default must be {count * size} bytes")
        if kind == BYTES:
            assert isinstance(default, bytes)
            default = tuple(default[i * size : (i + 1) * size] for i in range(count))
        return replace(spec, default=default)

    @property
    def item_bytes(self) -> int:
        """Bytes of one value, or -1 where they vary."""
        return ITEM_BYTES.get(self.kind, self.nbytes)

    @property
    def is_sized(self) -> bool:
        """Whether the column's size follows from the number of rows alone."""
        return self.layout == FIXED and self.item_bytes >= 0

    @property
    def has_value_offsets(self) -> bool:
        """Whether the size of a value varies."""
        return self.item_bytes < 0

    @property
    def has_row_offsets(self) -> bool:
        """Whether the number of values varies."""
        return self.layout == RAGGED

    def num_values(self, values: Values) -> int:
        """How many values these are."""
        return len(Feature(self.kind, values))


class FitError(Exception):
    """A whole record does not fit a column: a code of ``_core.pyi``, what was expected, what was found."""

    def __init__(self, code: str, expected: int = 0, found: int = 0) -> None:
        super().__init__(code, expected, found)
        self.code = code
        self.expected = expected
        self.found = found


def take(spec: Spec, feature: Feature | None) -> Values | None:
    """A feature's values, checked; or None where it is missing and its default is to be used.

    Raises:
        FitError: It does not fit, or is missing and there is no default.
    """
    if feature is None or feature.kind == KINDLESS:
        if spec.layout == RAGGED:
            return () if spec.kind == BYTES else b""
        if spec.default is None:
            raise FitError("missing")
        return None
    if feature.kind != spec.kind:
        raise FitError("kind", spec.kind, feature.kind)
    if spec.layout == FIXED and len(feature) != spec.count:
        raise FitError("count", spec.count, len(feature))
    if isinstance(feature.values, tuple) and spec.nbytes >= 0:
        for value in feature.values:
            if len(value) != spec.nbytes:
                raise FitError("nbytes", spec.nbytes, len(value))
    return feature.values
