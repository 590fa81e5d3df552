"""NVIDIA DALI's TFRecord reader with its CPU backend: no GPU is asked for or used."""

# ruff: noqa: D102  protocol.System says what the methods are for

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from protocol import BATCH, Dataset, Epoch, Setting, UnsupportedError, serve, write_index


class Dali:
    """Delivers dense tensors for columns of fixed shape and tensor lists for the others, both on the CPU."""

    crc = "no"

    def __init__(self) -> None:
        from nvidia import dali  # type: ignore[import-not-found]
        from nvidia.dali import fn, tfrecord, types  # type: ignore[import-not-found]

        self.dali, self.fn, self.tfrecord, self.types = dali, fn, tfrecord, types
        self.folder = tempfile.TemporaryDirectory(prefix="bench-dali-")

    def versions(self) -> dict[str, str]:
        return {"nvidia-dali": self.dali.__version__}

    def settings(self, dataset: Dataset, job: str) -> list[Setting]:
        del dataset
        if job != "stream":
            raise UnsupportedError("no random access")
        return [{"num_threads": threads, "prefetch": prefetch} for threads, prefetch in ((1, 2), (2, 2), (2, 4))]

    def features(self, dataset: Dataset) -> dict[str, Any]:
        reader = self.tfrecord
        features = {}
        for name, column in dataset["columns"].items():
            dtype, default = (reader.int64, 0) if column["kind"] == "int64" else (reader.float32, 0.0)
            if column["raw"]:
                features[name] = reader.FixedLenFeature((), reader.string, "")
            elif column["shape"] is None:
                features[name] = reader.VarLenFeature([], dtype, default)
            else:
                features[name] = reader.FixedLenFeature(column["shape"] or [1], dtype, default)
        return features

    def open(self, dataset: Dataset, job: str, setting: Setting) -> Epoch:
        del job
        indexes = [write_index(path, Path(self.folder.name)) for path in dataset["paths"]]
        columns = dataset["columns"]

        @self.dali.pipeline_def(  # type: ignore[untyped-decorator]
            batch_size=BATCH,
            num_threads=setting["num_threads"],
            prefetch_queue_depth=setting["prefetch"],
            device_id=None,
        )
        def reader() -> tuple[Any, ...]:
            outputs = self.fn.readers.tfrecord(
                path=dataset["paths"], index_path=indexes, features=self.features(dataset)
            )
            for name, column in columns.items():
                if column["raw"]:
                    outputs[name] = self.fn.reinterpret(outputs[name], dtype=self.types.FLOAT, shape=column["shape"])
            return tuple(outputs[name] for name in columns)

        pipeline = reader()
        pipeline.build()
        dense = [column["shape"] is not None for column in columns.values()]

        def epoch() -> Iterator[tuple[dict[str, Any], int]]:
            # Each batch is full: the last one goes on with the first records again.
            for start in range(0, dataset["records"], BATCH):
                outputs = pipeline.run()
                batch = {
                    name: output.as_tensor() if is_dense else output
                    for name, output, is_dense in zip(columns, outputs, dense, strict=True)
                }
                yield batch, min(BATCH, dataset["records"] - start)

        return epoch

    def touch(self, batch: tuple[dict[str, Any], int]) -> tuple[int, int]:
        elements = 0
        for output in batch[0].values():
            shape = output.shape()
            elements += sum(size for (size,) in shape) if isinstance(shape[0], tuple) else math.prod(shape)
        return BATCH, elements

    def arrays(self, batch: tuple[dict[str, Any], int]) -> dict[str, np.ndarray]:
        outputs, rows = batch
        return {
            name: np.asarray(output)[:rows]
            if hasattr(output, "__array_interface__")
            else np.concatenate([np.asarray(output.at(row)) for row in range(rows)])
            for name, output in outputs.items()
        }


if __name__ == "__main__":
    serve(Dali)
