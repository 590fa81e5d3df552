"""torch_tfrecord: its map-style data set under torch's DataLoader, in this process."""

# ruff: noqa: D102  protocol.System says what the methods are for

import importlib.metadata
from typing import Any

import numpy as np
from protocol import BATCH, Dataset, Epoch, Setting, UnsupportedError, random_batches, serve

NUM_THREADS = 2


def features_of(tfr: Any, torch: Any, dataset: Dataset) -> dict[str, Any]:
    """The feature specs of a data set."""
    features = {}
    for name, column in dataset["columns"].items():
        dtype = getattr(torch, column["kind"])
        if column["raw"]:
            decode = tfr.DecodeRaw(dtype, tuple(column["shape"]))
            features[name] = tfr.FixedLenFeature((), bytes, decode=decode)
        elif column["shape"] is None:
            features[name] = tfr.VarLenFeature(dtype)
        else:
            features[name] = tfr.FixedLenFeature(tuple(column["shape"]), dtype)
    return features


class Ours:
    """Delivers a Batch: a dict of torch tensors, and Ragged columns."""

    crc = "yes"

    def __init__(self) -> None:
        import torch

        import torch_tfrecord as tfr

        torch.set_num_threads(NUM_THREADS)  # the native threads follow it
        self.torch, self.tfr = torch, tfr

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__, "torch_tfrecord": package_version()}

    def settings(self, dataset: Dataset, job: str) -> list[Setting]:
        del dataset
        if job not in ("stream", "random"):
            raise UnsupportedError("no such job")
        return [{"num_workers": 0}]

    def open(self, dataset: Dataset, job: str, setting: Setting) -> Epoch:
        data = self.tfr.TFRecordDataset(dataset["paths"], features_of(self.tfr, self.torch, dataset))
        how: dict[str, Any] = {"batch_size": BATCH}
        if job == "random":
            how = {"batch_sampler": random_batches(len(data))}
        loader = self.torch.utils.data.DataLoader(data, collate_fn=self.tfr.collate, **how, **setting)
        return lambda: loader

    def touch(self, batch: Any) -> tuple[int, int]:
        elements = 0
        for name in batch:
            column = batch[name]
            elements += (column if isinstance(column, self.torch.Tensor) else column.values).numel()
        return batch.num_records, elements

    def arrays(self, batch: Any) -> dict[str, np.ndarray]:
        return {
            name: (column if isinstance(column, self.torch.Tensor) else column.values).numpy()
            for name, column in batch.items()
        }


def package_version() -> str:
    try:
        return importlib.metadata.version("torch_tfrecord")
    except importlib.metadata.PackageNotFoundError:
        return "checkout"


if __name__ == "__main__":
    serve(Ours)
