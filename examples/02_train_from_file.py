"""Train a classifier from any TFRecord files that hold images as copies of MNIST do: one image and one label a record.

    python examples/02_train_from_file.py mnist.tfrecord
    python examples/02_train_from_file.py 'train-*.tfrecord' --image pixels --shape 28,28,1 --label digit

The schema is inferred. The image may be a PNG or JPEG file, raw bytes, or a list of numbers; the label is one int64.
Where a record holds several features that could be either, say which. A fifth of the records is kept for testing.
"""

import argparse
import io
import math
import re
import sys
import time
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import nn
from torch.utils.data import DataLoader, random_split

import torch_tfrecord as tfr


def parse_arguments() -> argparse.Namespace:
    def sizes(text: str) -> tuple[int, ...]:
        if not re.fullmatch(r"[1-9]\d*,[1-9]\d*(,[1-9]\d*)?", text):
            raise argparse.ArgumentTypeError(f"{text} is neither HEIGHT,WIDTH nor HEIGHT,WIDTH,CHANNELS")
        shape = tuple(int(size) for size in text.split(","))
        return shape if len(shape) == 3 else (*shape, 1)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, a directory, a glob pattern, or name@N")
    parser.add_argument("--image", metavar="NAME", help="the feature that holds the image")
    parser.add_argument("--label", metavar="NAME", help="the feature that holds the label")
    parser.add_argument("--shape", type=sizes, metavar="H,W[,C]", help="of the image; PNG and JPEG are resized to it")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2, help="processes that load data (default: 2)")
    return parser.parse_args()


def guess_shape(count: int) -> tuple[int, ...] | None:
    """Height, width and channels of an image of so many values, if it is a square, grey or coloured."""
    for channels in (1, 3):
        side = math.isqrt(count // channels)
        if side >= 4 and side * side * channels == count:
            return side, side, channels
    return None


def image_spec(name: str, spec: Any, value: Any, shape: tuple[int, ...] | None) -> tfr.FixedLenFeature | None:
    """How to read a feature as an image; None if it cannot be one.

    Args:
        name: The feature's name in the file.
        spec: What ``infer_schema`` found for it.
        value: What the first record holds.
        shape: The image's shape, if the user gave it.
    """
    if not isinstance(spec, tfr.FixedLenFeature) or (spec.dtype is bytes and spec.shape != ()):
        return None
    if spec.dtype is not bytes:
        shape = shape or guess_shape(spec.count)
        return tfr.FixedLenFeature(shape, spec.dtype, key=name) if shape and math.prod(shape) == spec.count else None
    try:
        image = Image.open(io.BytesIO(value))
    except UnidentifiedImageError:
        shape = shape or guess_shape(len(value))
        if not shape or math.prod(shape) != len(value):
            return None
        return tfr.FixedLenFeature((), bytes, decode=tfr.DecodeRaw(torch.uint8, shape), key=name)
    height, width, channels = shape or (image.height, image.width, 1 if image.mode in ("1", "L") else 3)
    decode = tfr.DecodeImage(channels=channels, size=(height, width))
    return tfr.FixedLenFeature((), bytes, decode=decode, key=name)


def choose(role: str, wanted: str | None, candidates: dict[str, Any], schema: tfr.Schema) -> Any:
    """The spec of the one candidate, or of the one that the user named. Ends the program where that cannot be."""
    if wanted is not None and wanted in candidates:
        return candidates[wanted]
    if wanted is None and len(candidates) == 1:
        return next(iter(candidates.values()))
    if wanted is None and candidates:
        sys.exit(f"Several features could be the {role}: {', '.join(candidates)}. Choose one with --{role} NAME.")
    problem = "No feature can" if wanted is None else f"Feature {wanted!r} is missing, or cannot"
    needs = "one int64" if role == "label" else "PNG, JPEG, or as many values as --shape says (without it, a square)"
    sys.exit(f"{problem} be the {role}, which must be {needs}. The file holds\n{schema}")


def find_features(options: argparse.Namespace) -> dict[str, tfr.FixedLenFeature]:
    """Look at the files, and say how to read images and labels."""
    schema = tfr.infer_schema(options.paths)
    first = tfr.TFRecordDataset(options.paths, schema)[0]
    labels = {
        name: tfr.FixedLenFeature((), torch.int64, key=name)
        for name, spec in schema.items()
        if isinstance(spec, tfr.FixedLenFeature) and spec.dtype is torch.int64 and spec.shape == ()
    }
    specs = {name: image_spec(name, spec, first[name], options.shape) for name, spec in schema.items()}
    images = {name: spec for name, spec in specs.items() if spec is not None and name not in labels}
    return {
        "image": choose("image", options.image, images, schema),
        "label": choose("label", options.label, labels, schema),
    }


def count_classes(options: argparse.Namespace, label: tfr.FixedLenFeature) -> int:
    """Read all labels, and nothing else."""
    dataset = tfr.TFRecordDataset(options.paths, {"label": label})
    if len(dataset) < 10:
        sys.exit(f"There are {len(dataset)} records: too few to train and test with.")
    labels = dataset.read_batch(range(len(dataset)))["label"]
    if labels.min() < 0 or labels.max() > 100_000:
        sys.exit(f"Labels of {label.key!r} go from {labels.min()} to {labels.max()}: these are no classes.")
    return int(labels.max()) + 1


def make_network(channels: int, num_classes: int) -> nn.Module:
    """A small one, for images of any size and scale: it normalises its input."""
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, num_classes),
    )


def run_epoch(network: nn.Module, loader: DataLoader[Any], optimizer: torch.optim.Optimizer | None) -> float:
    """Go through the data once, training if there is an optimizer. Returns the share of right answers."""
    network.train(optimizer is not None)
    hits = total = 0
    for batch in loader:
        images = batch["image"].permute(0, 3, 1, 2).float()
        outputs = network(images)
        if optimizer is not None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs, batch["label"]).backward()
            optimizer.step()
        hits += int((outputs.argmax(1) == batch["label"]).sum())
        total += len(images)
    return hits / total


def train(options: argparse.Namespace, features: dict[str, tfr.FixedLenFeature], num_classes: int) -> None:
    dataset = tfr.TFRecordDataset(options.paths, features)
    parts = random_split(dataset, [0.8, 0.2])
    settings: dict[str, Any] = {"num_workers": options.workers, "persistent_workers": options.workers > 0}
    train_loader, test_loader = (
        DataLoader(part, options.batch_size, shuffle=part is parts[0], collate_fn=tfr.collate, **settings)
        for part in parts
    )
    shape = list(dataset[0]["image"].shape)
    network = make_network(shape[2], num_classes)
    optimizer = torch.optim.Adam(network.parameters())
    print(f"{dataset}: images {shape}, {num_classes} classes", flush=True)

    for epoch in range(options.epochs):
        start = time.perf_counter()
        train_accuracy = run_epoch(network, train_loader, optimizer)
        speed = len(parts[0]) / (time.perf_counter() - start)
        with torch.inference_mode():
            test_accuracy = run_epoch(network, test_loader, None)
        accuracies = f"accuracy {train_accuracy:6.2%} in training, {test_accuracy:6.2%} in testing"
        print(f"epoch {epoch + 1:2}: {accuracies}, {speed:6,.0f} records/s", flush=True)


def main() -> None:
    options = parse_arguments()
    torch.manual_seed(0)
    try:
        features = find_features(options)
        print("features =", tfr.Schema(features))
        train(options, features, count_classes(options, features["label"]))
    except (tfr.TFRecordError, FileNotFoundError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
