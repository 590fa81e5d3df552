"""Encoded images to uint8 arrays, by Pillow, in threads."""

from __future__ import annotations

import concurrent.futures
import io
import os
import re
import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from torch_tfrecord.schema import DecodeImage

Pixels: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
T = TypeVar("T")

# What each format begins with, and Pillow's class for it. Image.open would do, but has a limit of pixels of its own,
# where it warns: one for all of the process, so not for a library to set.
_FORMATS: dict[str, tuple[re.Pattern[bytes], Callable[[io.BytesIO], Image.Image]]] = {
    "PNG": (re.compile(rb"\x89PNG\r\n\x1a\n"), PngImagePlugin.PngImageFile),
    "JPEG": (re.compile(rb"\xff\xd8\xff"), JpegImagePlugin.JpegImageFile),
    "GIF": (re.compile(rb"GIF8[79]a"), GifImagePlugin.GifImageFile),
    "BMP": (re.compile(rb"BM"), BmpImagePlugin.BmpImageFile),
    "WEBP": (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), WebPImagePlugin.WebPImageFile),
}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}
_RESAMPLE = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
# What Pillow raises for damaged bytes; its warnings too, where the user has made errors of them.
_DAMAGED = (
    *(OSError, SyntaxError, ValueError, TypeError, IndexError, OverflowError, EOFError, struct.error),
    *(Image.DecompressionBombError, Warning),
)
_executors: dict[tuple[int, int], concurrent.futures.ThreadPoolExecutor] = {}


def open_image(encoded: bytes, spec: DecodeImage) -> Image.Image:
    """Read an image's header; its pixels are decoded later.

    Raises:
        ValueError: The bytes are no image of a known format, or it has too many pixels. Says what they look like.
    """
    if not encoded:
        raise ValueError("the value is empty, not an encoded image")
    form = next((form for form, (magic, _) in _FORMATS.items() if magic.match(encoded)), None)
    if form is None:
        raise ValueError(f"{len(encoded)} bytes that begin with {encoded[:12]!r}, no {', '.join(_FORMATS)} image")
    try:
        image = _FORMATS[form][1](io.BytesIO(encoded))
    except _DAMAGED as error:
        raise ValueError(f"a damaged {form} image ({error})") from error
    if image.width * image.height > spec.max_pixels:
        raise ValueError(f"an image of {image.width} x {image.height}, more than max_pixels={spec.max_pixels}")
    return image


def stored_mode(image: Image.Image) -> str:
    """The 8-bit mode that holds an image as it is stored: palettes expand, CMYK becomes RGB."""
    if image.mode == "P":
        return "RGBA" if "transparency" in image.info else "RGB"
    if any(tile[3] == "LA;16B" for tile in getattr(image, "tile", ())):  # Pillow opens 16-bit grey and alpha as RGBA
        return "LA"
    if image.mode in ("1", "L", "I", "F") or image.mode.startswith("I;"):
        return "L"
    return image.mode if image.mode in _CHANNELS else "RGB"


def image_shape(image: Image.Image, spec: DecodeImage) -> tuple[int, int, int]:
    """``(height, width, channels)`` of the decoded image.

    Raises:
        ValueError: It has another size than ``spec.size``, and is not to be resampled.
    """
    channels = spec.channels or _CHANNELS[stored_mode(image)]
    if spec.size is None:
        return image.height, image.width, channels
    if (image.height, image.width) != spec.size and spec.resample is None:
        raise ValueError(f"an image of height {image.height} and width {image.width}, not {spec.size}")
    return (*spec.size, channels)


def decode_into(image: Image.Image, spec: DecodeImage, out: Pixels) -> None:
    """Decode an opened image into ``uint8[height, width, channels]``.

    Raises:
        ValueError: The image is damaged or cut short.
    """
    mode = _MODES[spec.channels] if spec.channels else stored_mode(image)
    try:
        image.load()
        image = _eight_bits(image)
        if mode in ("RGB", "L") and image.mode in ("RGBA", "LA"):
            image = image.convert("RGB" if image.mode == "RGBA" else "L")  # alpha is dropped, not blended
        if image.mode != mode:
            image = image.convert(mode)
        if (image.height, image.width) != out.shape[:2]:
            image = image.resize((out.shape[1], out.shape[0]), _RESAMPLE[spec.resample or "bilinear"])
    except _DAMAGED as error:
        raise ValueError(f"a damaged {image.format or ''} image ({error})") from error
    out[...] = np.asarray(image, dtype=np.uint8).reshape(out.shape)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Keep the high byte of 16-bit grey samples (16-bit colour is reduced by Pillow itself); expand palettes."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8), mode="L")
    return image.convert(stored_mode(image)) if image.mode == "P" else image


def in_threads(function: Callable[[int], T], count: int, num_threads: int) -> Iterable[T]:
    """``function(0) .. function(count - 1)``, in order; Pillow releases the GIL while it decodes."""
    if num_threads <= 1 or count <= 1:
        return map(function, range(count))
    key = (os.getpid(), num_threads)  # a forked child has no threads of its parent's executor
    executor = _executors.get(key)
    if executor is None:
        executor = _executors.setdefault(
            key, concurrent.futures.ThreadPoolExecutor(num_threads, thread_name_prefix="torch_tfrecord-image")
        )
    return executor.map(function, range(count))
