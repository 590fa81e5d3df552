"""TensorFlow's own reader: ``tf.data`` with ``parse_example`` on whole batches."""

# ruff: noqa: D102  protocol.System says what the methods are for

import os
from typing import Any

import numpy as np
from protocol import BATCH, Dataset, Epoch, Setting, UnsupportedError, serve

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
BUFFER_BYTES = 8 << 20


class TensorFlowData:
    """Delivers eager tensors, as a TensorFlow user would get them; nothing is copied to torch."""

    crc = "yes"

    def __init__(self) -> None:
        import tensorflow as tf

        self.tf = tf

    def versions(self) -> dict[str, str]:
        return {"tensorflow": self.tf.__version__}

    def settings(self, dataset: Dataset, job: str) -> list[Setting]:
        del dataset
        if job != "stream":
            raise UnsupportedError("no random access")
        # parallel_calls -1 is AUTOTUNE; "interleave" reads and parses two files at a time, each batch from one file.
        return [
            {"reads": 1, "parallel_calls": 2},
            {"reads": 1, "parallel_calls": -1},
            {"reads": 2, "parallel_calls": 2},
            {"reads": 2, "parallel_calls": -1},
            {"interleave": 2},
        ]

    def features(self, dataset: Dataset) -> dict[str, Any]:
        tf = self.tf
        features = {}
        for name, column in dataset["columns"].items():
            dtype = tf.as_dtype(column["kind"])
            if column["raw"]:
                features[name] = tf.io.FixedLenFeature((), tf.string)
            elif column["shape"] is None:
                features[name] = tf.io.RaggedFeature(dtype)
            else:
                features[name] = tf.io.FixedLenFeature(column["shape"], dtype)
        return features

    def open(self, dataset: Dataset, job: str, setting: Setting) -> Epoch:
        del job
        tf = self.tf
        features = self.features(dataset)

        def parse(serialized: Any) -> dict[str, Any]:
            batch: dict[str, Any] = tf.io.parse_example(serialized, features)
            for name, column in dataset["columns"].items():
                if column["raw"]:
                    batch[name] = tf.reshape(tf.io.decode_raw(batch[name], tf.float32), [-1, *column["shape"]])
            return batch

        def batches(paths: Any, reads: int | None, parallel_calls: int | None) -> Any:
            records = tf.data.TFRecordDataset(paths, buffer_size=BUFFER_BYTES, num_parallel_reads=reads)
            return records.batch(BATCH).map(parse, num_parallel_calls=parallel_calls)

        if "interleave" in setting:
            pipeline = tf.data.Dataset.from_tensor_slices(dataset["paths"]).interleave(
                lambda path: batches(path, None, None),
                cycle_length=setting["interleave"],
                num_parallel_calls=setting["interleave"],
            )
        else:
            reads = setting["reads"] if setting["reads"] > 1 else None
            pipeline = batches(dataset["paths"], reads, setting["parallel_calls"])
        pipeline = pipeline.prefetch(tf.data.AUTOTUNE)
        return lambda: pipeline

    def touch(self, batch: dict[str, Any]) -> tuple[int, int]:
        rows = elements = 0
        for tensor in batch.values():
            values = getattr(tensor, "flat_values", tensor)
            # The public shape costs 20 times as much, which 40 columns would feel.
            elements += values._num_elements()  # noqa: SLF001
            rows = tensor.nrows() if values is not tensor else len_of(tensor)
        return int(rows), elements

    def arrays(self, batch: dict[str, Any]) -> dict[str, np.ndarray]:
        return {name: getattr(tensor, "flat_values", tensor).numpy() for name, tensor in batch.items()}


def len_of(tensor: Any) -> int:
    return int(tensor._shape_tuple()[0])  # noqa: SLF001  as above


if __name__ == "__main__":
    serve(TensorFlowData)
