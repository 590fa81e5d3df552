"""Uses an installed package once, far from its source: what `make wheel-test` runs in a fresh environment."""

import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import torch_tfrecord as tfr

FEATURES = {"n": tfr.FixedLenFeature((), torch.int64), "word": tfr.FixedLenFeature((), bytes)}


def main() -> None:
    assert "site-packages" in tfr.__file__, tfr.__file__
    assert tfr.backend == "native"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "numbers.tfrecord")
        with tfr.TFRecordWriter(path) as writer:
            writer.write_batch({"n": range(100), "word": [f"word {n}" for n in range(100)]})
        assert tfr.infer_schema(path) == FEATURES
        dataset = tfr.TFRecordDataset(path, FEATURES)
        batches = list(DataLoader(dataset, 32, collate_fn=tfr.collate, num_workers=1))
    assert torch.cat([batch["n"] for batch in batches]).tolist() == list(range(100))
    assert batches[-1]["word"][3] == b"word 99"
    print(f"{tfr.__file__} works: {batches[0]!r}")  # noqa: T201


if __name__ == "__main__":
    main()
