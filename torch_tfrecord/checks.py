"""Numbers that callers give, checked."""

from __future__ import annotations

import operator


def check_integer(value: int, name: str, least: int | None = None, most: int | None = None) -> int:
    """A number as an ``int``: also one of NumPy or torch, but no bool and no float.

    Args:
        value: The number.
        name: What it is called in messages.
        least: The smallest that it may be.
        most: The largest that it may be.

    Raises:
        TypeError: It is no integer.
        ValueError: It is out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, not an integer")
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"in [{least}, {most}]"
        raise ValueError(f"{name} is {number}, and must be {bounds}")
    return number
