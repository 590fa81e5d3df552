"""Which core runs: TORCH_TFRECORD_BACKEND, read once, and never a silent fallback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from jobs import needs_native

SAY = "from torch_tfrecord import native; print(native.backend, native.core.__name__)"
NO_CORE = "import sys; sys.modules['torch_tfrecord.native._core'] = None; "  # as if it were not built


def python(script: str, backend: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_TFRECORD_BACKEND"}
    if backend is not None:
        environment["TORCH_TFRECORD_BACKEND"] = backend
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@needs_native
@pytest.mark.parametrize("backend", [None, "native"])
def test_native_is_the_default(backend: str | None) -> None:
    assert python(SAY, backend).stdout == "native torch_tfrecord.native._core\n"


def test_python_by_choice() -> None:
    done = python(SAY, "python")
    assert done.stdout == "python torch_tfrecord.native.reference\n"


def test_python_needs_no_extension() -> None:
    assert python(NO_CORE + SAY, "python").stdout == "python torch_tfrecord.native.reference\n"


@pytest.mark.parametrize("backend", ["", "Native", "c++"])
def test_other_names_are_refused(backend: str) -> None:
    done = python(SAY, backend)
    assert done.returncode == 1
    assert f"ValueError: TORCH_TFRECORD_BACKEND must be native or python, not {backend!r}" in done.stderr


@pytest.mark.parametrize("backend", [None, "native"])
def test_missing_extension_is_an_error_that_says_what_to_do(backend: str | None) -> None:
    done = python(NO_CORE + SAY, backend)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("ImportError: the native core of torch_tfrecord cannot be imported")
    assert "pip install ." in message
    assert "TORCH_TFRECORD_BACKEND=python" in message


def test_choice_is_made_once() -> None:
    script = "import os; from torch_tfrecord import native; os.environ['TORCH_TFRECORD_BACKEND'] = 'native'; " + SAY
    assert python(script, "python").stdout == "python torch_tfrecord.native.reference\n"
