"""What it costs to bring a batch of 40 columns from a DataLoader's worker process to the training process.

Each setting is one case; they are compared with each other, not with peers. ``one tensor`` is the least that torch
can do for that many bytes, ``dict of tensors`` is what a stock data set would send.
"""

# ruff: noqa: D102  protocol.System says what the methods are for

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ours import features_of
from protocol import BATCH, Dataset, Epoch, Setting, UnsupportedError, serve
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

MANY = 1_000_000  # batches an epoch: more than the clock lets through
CASES = (
    "one tensor, 1 worker",
    "dict of tensors, 1 worker",
    "our batch, 1 worker",
    "our batch, in process",
)


class Clones(TorchDataset[Any]):
    """Gives clones of a template: one tensor or a dict of tensors."""

    def __init__(self, template: Any) -> None:
        self.template = template

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.template, dict):
            return {name: tensor.clone() for name, tensor in self.template.items()}
        return self.template.clone()


class Sweeps:
    """A batch sampler that goes over the data in order, again and again."""

    def __init__(self, records: int) -> None:
        self.batches = [list(range(start, start + BATCH)) for start in range(0, records - BATCH + 1, BATCH)]

    def __len__(self) -> int:
        return MANY

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(MANY):
            yield self.batches[step % len(self.batches)]


class Workers:
    """The cases, as settings of one system."""

    crc = "yes"

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    def settings(self, dataset: Dataset, job: str) -> list[Setting]:
        del dataset
        if job != "workers":
            raise UnsupportedError("no such job")
        return [{"case": case} for case in CASES]

    def open(self, dataset: Dataset, job: str, setting: Setting) -> Epoch:
        del job
        torch.set_num_threads(1)  # as in a worker, so that decoding in process costs the same
        case = setting["case"]
        workers = 1 if "worker" in case else 0
        loader: DataLoader[Any]
        if "our" in case:
            import torch_tfrecord as tfr

            data = tfr.TFRecordDataset(dataset["paths"], features_of(tfr, torch, dataset))
            sweeps: Any = Sweeps(dataset["records"])
            loader = DataLoader(data, batch_sampler=sweeps, num_workers=workers, collate_fn=tfr.collate)
        else:
            kinds = [getattr(torch, column["kind"]) for column in dataset["columns"].values()]
            columns = {
                name: torch.ones(BATCH, dtype=kind) for name, kind in zip(dataset["columns"], kinds, strict=True)
            }
            num_bytes = sum(column.nbytes for column in columns.values())
            template = torch.ones(num_bytes, dtype=torch.uint8) if case.startswith("one") else columns
            loader = DataLoader(Clones(template), batch_size=None, num_workers=workers)
        return lambda: loader

    def touch(self, batch: Any) -> tuple[int, int]:
        tensors = batch.values() if isinstance(batch, dict) else (batch,)
        return BATCH, sum(tensor.numel() for tensor in tensors)

    def arrays(self, batch: Any) -> dict[str, np.ndarray]:
        raise UnsupportedError(f"only the transport of {type(batch).__name__} is measured")


if __name__ == "__main__":
    serve(Workers)
