"""The scripts in examples/, run as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import torch_tfrecord as tfr

ROOT = Path(__file__).resolve().parent.parent
EPOCH = re.compile(r"epoch +\d+: .*, test accuracy +([\d.]+)%, +[\d,]+ records/s, +\d+% of the time waiting for data")
ACCURACIES = re.compile(r"epoch +\d+: accuracy +([\d.]+)% in training, +([\d.]+)% in testing, +[\d,]+ records/s")


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script on one thread: its networks are too small for more."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def train(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run("02_train_from_file.py", *arguments, "--workers", 0)


@pytest.fixture(scope="module")
def digits() -> dict[str, np.ndarray]:
    """400 images uint8[400, 8, 8] and their labels."""
    pixels, labels = load_digits(return_X_y=True)
    return {"image": (pixels[:400].reshape(-1, 8, 8) * 15).astype(np.uint8), "label": labels[:400]}


@pytest.mark.slow
def test_digits_from_images_to_an_accurate_network(tmp_path: Path) -> None:
    done = run("01_digits.py", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        "train: TFRecordDataset(1,500 records in 4 files)",
        "test:  TFRecordDataset(297 records in 2 files)",
    ]
    accuracies = [float(match[1]) for match in map(EPOCH.match, lines) if match]
    assert len(accuracies) == 12
    assert accuracies[-1] >= 95
    with Image.open(tmp_path / "batch.png") as picture:
        colours = np.asarray(picture.convert("L"))
    assert colours.shape == (480, 800)
    assert colours.min() == 0
    assert colours.max() == 255
    records = tmp_path / "records"
    assert len(list(records.glob("*.tfrecord"))) == 6
    assert len(list(records.glob(".*.tfrindex"))) == 2
    assert tfr.infer_schema(records) == {
        "image": tfr.FixedLenFeature((), bytes),
        "label": tfr.FixedLenFeature((), torch.int64),
    }

    done = train(records / "train@4.tfrecord", "--epochs", 3)
    assert done.returncode == 0, done.stderr
    assert "decode=tfr.DecodeImage(channels=1, size=(8, 8))" in done.stdout
    assert [float(match[2]) > 80 for match in map(ACCURACIES.match, done.stdout.splitlines()) if match] == [True] * 3


@pytest.mark.parametrize("kind", ["ints", "floats", "bytes"])
def test_train_from_a_file_of_each_kind(kind: str, digits: dict[str, np.ndarray], tmp_path: Path) -> None:
    images = digits["image"]
    pixels = {"ints": images, "floats": images / 255, "bytes": [image.tobytes() for image in images]}[kind]
    path = tmp_path / "some.tfrecord"
    with tfr.TFRecordWriter(path) as writer:
        writer.write_batch({"x": pixels, "y": digits["label"], "z": np.zeros(400)})
    done = train(path, "--epochs", 6)
    assert done.returncode == 0, done.stderr
    assert "TFRecordDataset(400 records in 1 file): images [8, 8, 1], 10 classes" in done.stdout
    assert ("decode=tfr.DecodeRaw(" if kind == "bytes" else "tfr.FixedLenFeature((8, 8, 1), ") in done.stdout
    accuracies = [float(match[2]) for match in map(ACCURACIES.match, done.stdout.splitlines()) if match]
    assert len(accuracies) == 6
    assert accuracies[-1] > 60  # by chance it would be 10


@pytest.mark.corpus
def test_train_from_a_real_file(linked_corpus: Path) -> None:
    done = train(linked_corpus / "tfx-mnist" / "mnist.tfrecord", "--epochs", 10)
    assert done.returncode == 0, done.stderr
    assert "tfr.FixedLenFeature((28, 28, 1), torch.float32, key='image_floats')" in done.stdout
    accuracies = [float(match[2]) for match in map(ACCURACIES.match, done.stdout.splitlines()) if match]
    assert accuracies[-1] > 85


def test_train_from_a_file_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "some.tfrecord"
    with tfr.TFRecordWriter(path) as writer:
        writer.write_batch({"a": np.zeros((4, 12)), "b": range(4), "c": range(4), "d": np.zeros((4, 16))})
    page = tmp_path / "page.tfrecord"
    page.write_text("<html></html>")
    cases: list[tuple[list[object], str]] = [
        ([path], "Several features could be the label: b, c. Choose one with --label NAME."),
        ([path, "--label", "b"], "There are 4 records: too few to train and test with."),
        ([path, "--shape", "3,4", "--label", "x"], "Feature 'x' is missing, or cannot be the label, which must be one"),
        (
            [path, "--shape", "5,5"],
            "No feature can be the image, which must be PNG, JPEG, or as many values as --shape",
        ),
        ([path, "--shape", "5"], "argument --shape: 5 is neither HEIGHT,WIDTH nor HEIGHT,WIDTH,CHANNELS"),
        ([page], f"NotATFRecordError: {page}: not a TFRecord file: it looks like an HTML page"),
        ([tmp_path / "none"], "FileNotFoundError: [Errno 2] No such file or directory"),
    ]
    for arguments, problem in cases:
        done = train(*arguments)
        assert done.returncode in {1, 2}
        assert problem in done.stderr
        assert "Traceback" not in done.stderr
