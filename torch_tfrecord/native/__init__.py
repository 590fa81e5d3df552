"""Chooses, once, what decodes records: the native core, or its twin in plain Python.

The environment variable ``TORCH_TFRECORD_BACKEND`` says which: ``native``, as is the case without it, or ``python``. A
native core that cannot be imported is an error: the plain one is some hundred times slower, so it is never a silent
replacement.

Attributes:
    core: The module in use; ``_core.pyi`` describes both.
    backend: ``"native"`` or ``"python"``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

__all__ = ["backend", "core"]

backend: str = os.environ.get("TORCH_TFRECORD_BACKEND", "native")

if TYPE_CHECKING:
    from torch_tfrecord.native import _core as core
elif backend == "native":
    try:
        from torch_tfrecord.native import _core as core
    except ImportError as error:
        here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        raise ImportError(
            f"the native core of torch_tfrecord cannot be imported ({error}). The package was taken from {here}: if "
            "that is its source tree, and it was installed elsewhere, change to another folder. Else build the core "
            "with `pip install .`, or in a source tree with `python setup.py build_ext --inplace`, which need a C++17 "
            "compiler. To do without it, at a fraction of the speed, set TORCH_TFRECORD_BACKEND=python."
        ) from error
elif backend == "python":
    from torch_tfrecord.native import reference as core
else:
    raise ValueError(f"TORCH_TFRECORD_BACKEND must be native or python, not {backend!r}")
