"""Numbers that callers give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torch_tfrecord.checks import check_integer


@pytest.mark.parametrize("five", [5, np.int64(5), np.uint8(5), torch.tensor(5), torch.tensor([5])])
def test_integers_of_all_kinds(five: Any) -> None:
    number = check_integer(five, "epoch", 5, 5)
    assert type(number) is int
    assert number == 5


@pytest.mark.parametrize("wrong", [1.5, 64.0, "1", None, True, np.float32(2), torch.tensor(1.0), [1]])
def test_what_is_no_integer_is_named(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"batch_size is .*, not an integer"):
        check_integer(wrong, "batch_size", 1)


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"^n is 0, and must be at least 1$"):
        check_integer(0, "n", 1)
    for wrong in (1, 4):
        with pytest.raises(ValueError, match=f"^n is {wrong}, and must be in .2, 3.$"):
            check_integer(wrong, "n", 2, 3)
