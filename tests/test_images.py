"""Encoded images: what is stored is what is given, and whatever is no image is an error."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import torch_tfrecord as tfr

# Six pixels of three channels, no two alike.
RGB = np.array([[[200, 100, 50], [0, 0, 0], [255, 255, 255]], [[1, 2, 3], [250, 0, 9], [17, 130, 255]]], np.uint8)
GREY = RGB[:, :, 0]
ALPHA = np.array([[0, 128, 255], [7, 0, 99]], np.uint8)


def encode(pixels: np.ndarray[Any, Any] | Image.Image, form: str = "PNG", **options: Any) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    memory = io.BytesIO()
    image.save(memory, form, **options)
    return memory.getvalue()


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG made by hand. Colour types: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), *extra, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    joined = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + joined


def record(value: bytes) -> bytes:
    return tfr.encode_example({"image": value})


def spec(**options: Any) -> dict[str, Any]:
    return {"image": tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage(**options))}


def decode(value: bytes, **options: Any) -> Any:
    """One image as nested lists, height x width x channels."""
    tensor = tfr.parse_single_example(record(value), spec(**options))["image"]
    assert tensor.dtype == torch.uint8
    return tensor.tolist()


def grey_of(rgb: list[int]) -> int:
    return round(0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2])


# --- what each kind of image becomes ----------------------------------------------------------------------------------


def test_rgb_png() -> None:
    value = encode(RGB)
    assert decode(value) == decode(value, channels=0) == RGB.tolist()
    assert decode(value, channels=4) == np.dstack([RGB, np.full((2, 3), 255)]).tolist()
    assert decode(value, channels=1) == [[[grey_of(pixel)] for pixel in row] for row in RGB.tolist()]


def test_grey_png() -> None:
    value = encode(GREY)
    assert decode(value, channels=1) == decode(value, channels=0) == GREY[:, :, None].tolist()
    assert decode(value) == np.dstack([GREY] * 3).tolist()
    assert decode(value, channels=4) == np.dstack([GREY] * 3 + [np.full((2, 3), 255)]).tolist()


def test_alpha_is_dropped_not_blended() -> None:
    rgba = np.dstack([RGB, ALPHA])
    assert decode(encode(rgba), channels=4) == decode(encode(rgba), channels=0) == rgba.tolist()
    assert decode(encode(rgba), channels=3) == RGB.tolist()
    assert decode(encode(rgba), channels=1) == decode(encode(RGB), channels=1)


def test_grey_and_alpha() -> None:
    value = encode(Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)]))
    assert decode(value, channels=0) == np.dstack([GREY, ALPHA]).tolist()
    assert decode(value, channels=1) == GREY[:, :, None].tolist()
    assert decode(value, channels=3) == np.dstack([GREY] * 3).tolist()
    assert decode(value, channels=4) == np.dstack([GREY, GREY, GREY, ALPHA]).tolist()


def test_palette() -> None:
    palette = (b"PLTE", bytes([10, 20, 30, 40, 50, 60]))
    opaque = png(2, 1, 8, 3, b"\0\1\0", palette)
    assert decode(opaque, channels=0) == decode(opaque) == [[[40, 50, 60], [10, 20, 30]]]
    assert decode(opaque, channels=4) == [[[40, 50, 60, 255], [10, 20, 30, 255]]]
    clear = png(2, 1, 8, 3, b"\0\1\0", palette, (b"tRNS", b"\x07"))
    assert decode(clear, channels=0) == decode(clear, channels=4) == [[[40, 50, 60, 255], [10, 20, 30, 7]]]
    assert decode(clear) == [[[40, 50, 60], [10, 20, 30]]]
    assert decode(clear, channels=1) == [[[grey_of([40, 50, 60])], [grey_of([10, 20, 30])]]]


@pytest.mark.parametrize(("depth", "row", "levels"), [(1, 0b10100000, [255, 0, 255]), (2, 0b11011000, [255, 85, 170])])
def test_few_bits_spread_over_the_byte(depth: int, row: int, levels: list[int]) -> None:
    value = png(3, 1, depth, 0, bytes([0, row]))
    assert decode(value, channels=1) == decode(value, channels=0) == [[[level] for level in levels]]
    assert decode(value, channels=3) == [[[level] * 3 for level in levels]]


@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_sixteen_bits_keep_the_high_byte(colour: int, channels: int) -> None:
    samples = [0x1234, 0xFFFF, 0x00FF, 0x80A5][:channels]
    value = png(1, 1, 16, colour, b"\0" + struct.pack(f">{channels}H", *samples))
    assert decode(value, channels=0) == [[[sample >> 8 for sample in samples]]]
    if colour == 0:
        assert decode(value, channels=3) == [[[0x12] * 3]]
        assert decode(value, channels=4) == [[[0x12] * 3 + [255]]]
    elif colour == 6:
        assert decode(value, channels=3) == [[[0x12, 0xFF, 0x00]]]


def test_jpeg_is_as_pillow_decodes_it() -> None:
    ramp = np.add.outer(np.arange(16) * 8, np.arange(24) * 5).astype(np.uint8)
    colours = np.dstack([ramp, ramp[::-1], 255 - ramp])
    value = encode(colours, "JPEG", quality=90)
    truth = np.asarray(Image.open(io.BytesIO(value)))
    assert decode(value) == decode(value, channels=0) == truth.tolist()
    assert np.abs(truth.astype(int) - colours).mean() < 10
    grey = encode(ramp, "JPEG")
    assert decode(grey, channels=1) == np.asarray(Image.open(io.BytesIO(grey)))[:, :, None].tolist()
    assert np.array(decode(grey)).shape == (16, 24, 3)


def test_cmyk_jpeg_is_rgb() -> None:
    value = encode(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG")
    pixels = np.array(decode(value, channels=0))
    assert pixels.shape == (8, 8, 3)
    assert np.abs(pixels - [255, 0, 0]).max() < 8


def test_orientation_mark_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    value = encode(np.zeros((8, 16, 3), np.uint8), "JPEG", exif=exif.tobytes())
    assert np.array(decode(value)).shape == (8, 16, 3)


@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF", "WEBP"])
def test_format_is_told_from_the_bytes(form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    assert decode(encode(RGB, form, **options)) == RGB.tolist()


def test_first_frame_of_several() -> None:
    frames = [Image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    value = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(value) == [[[255, 0, 0]] * 2] * 2


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_images_of_one_size_are_one_tensor() -> None:
    images = [RGB, 255 - RGB, RGB[::-1]]
    batch = tfr.parse_example([record(encode(image)) for image in images], spec(size=(2, 3), resample=None))
    assert torch.equal(batch["image"], torch.from_numpy(np.stack(images)))


def test_images_of_any_size_are_ragged() -> None:
    images = [RGB, RGB[:1], np.tile(RGB, (2, 3, 1))]
    column = tfr.parse_example([record(encode(image)) for image in images], spec())["image"]
    assert type(column) is tfr.Ragged
    assert column.shapes is not None
    assert column.shapes.tolist() == [[2, 3, 3], [1, 3, 3], [4, 9, 3]]
    assert column.offsets.tolist() == [0, 18, 27, 135]
    for i, image in enumerate(images):
        assert torch.equal(column[i], torch.from_numpy(image.copy()))


def test_channels_as_stored_differ_within_a_batch() -> None:
    images = [GREY, RGB, np.dstack([RGB, ALPHA])]
    column = tfr.parse_example([record(encode(image)) for image in images], spec(channels=0))["image"]
    assert [tuple(column[i].shape) for i in range(3)] == [(2, 3, 1), (2, 3, 3), (2, 3, 4)]
    assert column[2].tolist() == images[2].tolist()


@pytest.mark.parametrize("resample", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_resampling(resample: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 6, 3), np.uint8)
    method = Image.Resampling[resample.upper()]
    truth = np.asarray(Image.fromarray(pixels).resize((4, 5), method))
    assert decode(encode(pixels), size=(5, 4), resample=resample) == truth.tolist()
    assert decode(encode(pixels), size=(9, 6), resample=resample) == pixels.tolist()


def test_another_size_is_an_error_where_it_is_not_resampled() -> None:
    records = [record(encode(RGB)), record(encode(RGB[:1]))]
    says = r"^record 1: feature 'image': expected an image, found an image of height 1 and width 3, not \(2, 3\)$"
    with pytest.raises(tfr.ParseError, match=says):
        tfr.parse_example(records, spec(size=(2, 3), resample=None))


def test_images_beside_other_columns() -> None:
    names = [b"first", b"second"]
    records = [
        tfr.encode_example({"image": encode(image), "name": name, "label": i})
        for i, (image, name) in enumerate(zip([RGB, GREY], names, strict=True))
    ]
    features = {
        "name": tfr.FixedLenFeature((), bytes),
        **spec(channels=1, size=(2, 3)),
        "raw": tfr.FixedLenFeature((), bytes, key="image"),
        "label": tfr.FixedLenFeature((), torch.int64),
    }
    batch = tfr.parse_example(records, features)
    assert batch["name"].tolist() == names
    assert batch["label"].tolist() == [0, 1]
    assert batch["raw"].tolist() == [encode(RGB), encode(GREY)]
    assert torch.equal(batch["image"][1, :, :, 0], torch.from_numpy(GREY.copy()))


def test_default_image() -> None:
    feature = tfr.FixedLenFeature((), bytes, encode(RGB), decode=tfr.DecodeImage())
    batch = tfr.parse_example([record(encode(RGB[:1])), tfr.encode_example({})], {"image": feature})
    assert batch["image"].tolist() == [RGB[:1].tolist(), RGB.tolist()]
    assert batch.num_defaulted == 1


def test_many_images_in_threads() -> None:
    images = np.random.default_rng(1).integers(0, 256, (64, 7, 5, 3), np.uint8)
    records = [record(encode(image)) for image in images]
    for options in ({}, {"size": (7, 5)}):
        column = tfr.parse_example(records, spec(**options))["image"]
        assert all(torch.equal(column[i], torch.from_numpy(images[i])) for i in range(64))


# --- what is no image -------------------------------------------------------------------------------------------------


def claims(width: int, height: int) -> bytes:
    """A small PNG whose header claims a size."""
    return png(width, height, 8, 0, b"\0")


@pytest.mark.parametrize(
    ("value", "options", "found"),
    [
        (b"", {}, "the value is empty"),
        (b"<html>", {}, "6 bytes that begin with b'<html>', no PNG, JPEG, GIF, BMP, WEBP image"),
        (bytes(100), {}, "100 bytes that begin with"),
        (encode(RGB, "TIFF"), {}, "bytes that begin with b'II"),
        (encode(RGB)[:40], {}, "a damaged PNG image"),
        (encode(np.zeros((16, 16, 3), np.uint8), "JPEG")[:-40], {}, "a damaged JPEG image"),
        (encode(RGB), {"max_pixels": 5}, "an image of 3 x 2, more than max_pixels=5"),
        (claims(20_000, 20_000), {}, "an image of 20000 x 20000, more than max_pixels=134217728"),
        (claims(12_000, 12_000), {}, "an image of 12000 x 12000, more than max_pixels=134217728"),
        (claims(2**31 - 1, 2**31 - 1), {}, "more than max_pixels=134217728"),
        (claims(0, 5), {}, "a damaged PNG image"),
    ],
    ids=range(11),
)
def test_no_image(value: bytes, options: dict[str, Any], found: str) -> None:
    good = record(encode(RGB)) if "max_pixels" not in options else record(encode(RGB[:1]))
    for size in ({}, {"size": (2, 3)}):
        with pytest.raises(tfr.ParseError, match=r"^record 1: feature 'image': expected an image, found ") as caught:
            tfr.parse_example([good, record(value), good], spec(**options, **size))
        assert found in str(caught.value)
        assert len(str(caught.value)) < 500


def test_limit_of_pixels_is_inclusive() -> None:
    assert decode(encode(RGB), max_pixels=6) == RGB.tolist()


def test_first_bad_image_of_a_batch_is_named() -> None:
    cut = encode(RGB)[:60]
    good = encode(RGB)
    with pytest.raises(tfr.ParseError, match=r"^record 5: .*a damaged PNG"):
        tfr.parse_example([record(v) for v in (*[good] * 5, cut, *[good] * 9, b"", cut)][:14], spec())


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_images_cut_or_changed_anywhere_are_errors_or_images(form: str) -> None:
    whole = encode(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3), form)
    random = np.random.default_rng(2)
    variants = [whole[:n] for n in range(0, len(whole), 1 + len(whole) // 150)]
    for _ in range(150):
        changed = bytearray(whole)
        changed[random.integers(len(whole))] ^= 1 << random.integers(8)
        variants.append(bytes(changed))
    errors = 0
    for value in variants:
        try:
            image = tfr.parse_single_example(record(value), spec(max_pixels=1 << 20))["image"]
        except tfr.ParseError as error:
            errors += 1
            assert str(error).startswith("record 0: feature 'image': expected an image, found ")  # noqa: PT017
        else:
            assert image.shape[2] == 3
    assert errors > 50


def test_nothing_is_printed_for_a_large_image() -> None:
    code = (
        "import sys, torch_tfrecord as tfr\n"
        "spec = {'image': tfr.FixedLenFeature((), bytes, decode=tfr.DecodeImage())}\n"
        "try:\n"
        "    tfr.parse_single_example(sys.stdin.buffer.read(), spec)\n"
        "except tfr.ParseError as error:\n"
        "    print(type(error).__name__)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=record(claims(10_000, 10_000)),
        capture_output=True,
        env=environment,
        check=True,
    )
    assert done.stdout == b"ParseError\n"
    assert done.stderr == b""
