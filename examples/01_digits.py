"""From images to a trained network, by way of TFRecord files: scikit-learn's handwritten digits.

    python examples/01_digits.py [FOLDER]

Writes the data and ``batch.png``, a picture of one batch, to FOLDER (``demo_output`` without it). Ends with status 1 if
the network does not reach 95 % on the test images.
"""

import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

import torch_tfrecord as tfr

EPOCHS = 12
FEATURES = {
    "image": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage(channels=1, size=(8, 8))),
    "label": tfr.FixedLenFeature((), torch.int64),
}


def to_png(pixels: np.ndarray) -> bytes:
    """Encode uint8[height, width]."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_shards(stem: Path, images: np.ndarray, labels: np.ndarray, num_shards: int) -> None:
    """Write ``stem-00000-of-00004.tfrecord`` and the other shards: record i goes to shard ``i % num_shards``."""
    for shard in range(num_shards):
        with tfr.TFRecordWriter(f"{stem}-{shard:05d}-of-{num_shards:05d}.tfrecord") as writer:
            for image, label in zip(images[shard::num_shards], labels[shard::num_shards], strict=True):
                writer.write_example({"image": to_png(image), "label": label})


def make_loader(dataset: tfr.TFRecordDataset, *, shuffle: bool = False) -> DataLoader[Any]:
    """Load whole batches in two worker processes."""
    return DataLoader(dataset, 64, shuffle, collate_fn=tfr.collate, num_workers=2, persistent_workers=True)


def save_picture(batch: tfr.Batch, path: Path) -> None:
    """Draw the first images of a batch, each under its label."""
    mpl.use("Agg")
    _, axes = plt.subplots(4, 8, figsize=(8, 4.8), layout="constrained")
    for axis, image, label in zip(axes.flat, batch["image"], batch["label"], strict=False):
        axis.imshow(image[:, :, 0].numpy(), cmap="gray")
        axis.set_title(str(label.item()))
        axis.axis("off")
    plt.savefig(path)


def batches(loader: DataLoader[Any], waited: list[float]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images as the network takes them, with their labels; notes the seconds that each batch was waited for."""
    start = time.perf_counter()
    for batch in loader:
        waited.append(time.perf_counter() - start)
        yield batch["image"].permute(0, 3, 1, 2).float().div(255), batch["label"]
        start = time.perf_counter()


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo_output")
    records = folder / "records"
    records.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is so small that threads would mostly wait for each other

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels.reshape(-1, 8, 8) * 15.9375).astype(np.uint8)  # 0..16 to 0..255
    order = torch.randperm(len(images)).numpy()
    write_shards(records / "train", images[order[:1500]], labels[order[:1500]], num_shards=4)
    write_shards(records / "test", images[order[1500:]], labels[order[1500:]], num_shards=2)

    train = tfr.TFRecordDataset(f"{records}/train@4.tfrecord", FEATURES)  # this also makes the index of the files
    test = tfr.TFRecordDataset(f"{records}/test@2.tfrecord", FEATURES)
    print(f"train: {train}\ntest:  {test}")
    train_loader, test_loader = make_loader(train, shuffle=True), make_loader(test)
    save_picture(next(iter(train_loader)), folder / "batch.png")
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.25), nn.Linear(64 * 4 * 4, 10))
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    accuracy = 0.0
    for epoch in range(EPOCHS):
        waited: list[float] = []
        losses, start = [], time.perf_counter()
        for inputs, wanted in batches(train_loader, waited):
            loss = nn.functional.cross_entropy(network(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - start

        network.eval()
        with torch.inference_mode():
            hits = sum(int((network(inputs).argmax(1) == wanted).sum()) for inputs, wanted in batches(test_loader, []))
        network.train()
        accuracy = hits / len(test)
        speed = f"{len(train) / seconds:6,.0f} records/s, {sum(waited) / seconds:3.0%} of the time waiting for data"
        print(f"epoch {epoch + 1:2}: loss {np.mean(losses):.4f}, test accuracy {accuracy:6.2%}, {speed}", flush=True)

    print(f"a batch with its labels is drawn in {folder / 'batch.png'}")
    return 0 if accuracy >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
