"""What is promised of values and batches holds for the plain-Python core as well."""

import os
import subprocess
import sys

import pytest

import torch_tfrecord as tfr

HERE = os.path.dirname(__file__)


@pytest.mark.slow
@pytest.mark.skipif(tfr.backend == "python", reason="it is the one in use")
def test_values_and_batches_with_the_plain_core() -> None:
    names = [
        "parsing",
        "parsing_rules",
        "decode_raw",
        "images",
        "decoding",
        "batch",
        "ragged",
        "collation",
        "dataset",
        "damage",
        "corpus",
    ]
    files = [os.path.join(HERE, f"test_{name}.py") for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=os.path.dirname(HERE),
        env={**os.environ, "TORCH_TFRECORD_BACKEND": "python", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
