"""TensorFlow as an oracle: in an environment of its own, in a process of its own.

``make tensorflow-test`` makes that environment in ``build/tensorflow``. ``TORCH_TFRECORD_TENSORFLOW`` names the Python of
another one. Tests that need it are marked ``tensorflow``, and skipped where there is none.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "TORCH_TFRECORD_TENSORFLOW"


def tensorflow_python() -> Path:
    """The Python that has TensorFlow. Skips the test where there is none; a wrong ``VARIABLE`` fails it."""
    named = os.environ.get(VARIABLE)
    python = Path(os.path.abspath(named)) if named else ROOT / "build" / "tensorflow" / "bin" / "python"
    if python.exists():
        return python
    if named:
        pytest.fail(f"{VARIABLE}: there is no {python}", pytrace=False)
    pytest.skip(f"no TensorFlow: run make tensorflow-test, or name a Python that has it in {VARIABLE}")


def run_blocks(blocks: list[tuple[str, int, str]], folder: Path) -> list[Any]:
    """Execute blocks of code, one after another in one namespace, where TensorFlow is.

    Args:
        blocks: File, line and text of each; for tracebacks.
        folder: The working directory.

    Returns:
        What each block leaves in ``result``: numbers, lists, and None where it leaves nothing.
    """
    script, out = Path(__file__).with_name("tensorflow_pairs.py"), folder / "results.json"
    command = [str(tensorflow_python()), str(script), str(out)]
    done = subprocess.run(command, cwd=folder, input=json.dumps(blocks), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[Any] = json.loads(out.read_text())
    return results
