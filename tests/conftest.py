"""What all tests share: two threads, Hypothesis settings, the GPU's absence, and the corpus of real files.

Environment variables:
    CI                     what is missing fails instead of being skipped, and Hypothesis draws the same examples each time
    TORCH_TFRECORD_CORPUS  where the corpus lies; without it ``shared/corpus`` beside the repository
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
from hypothesis import settings

IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("TORCH_TFRECORD_CORPUS") or ROOT.parent / "shared" / "corpus")

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if IN_CI else "local")


@functools.cache
def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_report_header() -> str:
    from torch_tfrecord import native

    where = getattr(native.core, "__file__", None)
    corpus = CORPUS if CORPUS.is_dir() else "none"
    return f"core: {native.backend}, {where}\ncorpus: {corpus}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.skip("needs a CUDA device")
    if item.get_closest_marker("corpus"):
        require_corpus()


def require_corpus() -> Path:
    """Skip the test where the corpus is not there; in CI, fail it."""
    if not (CORPUS / "MANIFEST.json").is_file():
        reason = f"there is no corpus of real files at {CORPUS}; TORCH_TFRECORD_CORPUS says where else it is"
        if IN_CI:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return CORPUS


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The folder of real TFRecord files. It is read in place, and nothing may be written there."""
    return require_corpus()


@pytest.fixture
def linked_corpus(corpus: Path, tmp_path: Path) -> Path:
    """A folder of links to the corpus, file by file, beside which a data set can put its indexes."""
    mirror = tmp_path / "corpus"
    for file in corpus.glob("*/*"):
        link = mirror / file.relative_to(corpus)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    return mirror


@pytest.fixture(scope="session", autouse=True)
def two_threads() -> None:
    """As many as every machine of CI has, so that tests take equally long and split batches alike."""
    import torch

    torch.set_num_threads(2)
