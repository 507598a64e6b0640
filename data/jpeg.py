"""What kind of image some bytes are, from their header; and whether they decode."""

from __future__ import annotations

import io
import warnings
from typing import NamedTuple

import simplejpeg
from PIL import Image

from .recordio import MOST_PIXELS

_MOST_SCANNED = 10 * MOST_PIXELS
"""Pixels times scans: a progressive JPEG has about ten, and may have thousands of empty ones."""
_MOST_PROGRESSIVE = MOST_PIXELS // 2
"""Pixels of an image whose coefficients are kept while it is decoded, 6 bytes a pixel."""
_SCAN, _END = b"\xff\xda", b"\xff\xd9"

UNENDED = "JPEG without an end marker"
"""Perhaps cut off: if it is, neither Pillow nor DALI decodes it."""
_UNUSUAL = "unusual JPEG header"
_FORMATS = ("JPEG", "PNG")  # ImageNet holds a PNG under a .JPEG name
_MAX_PX = 65_535  # the sample table has 16 bits for a side, as JPEG itself
_BROKEN = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class Header(NamedTuple):
    """Sides in pixels as stored, and what is not an ordinary JPEG about it ("" for one)."""

    height: int
    width: int
    oddity: str


def read_header(image: bytes) -> Header:
    """The header of a JPEG or PNG. Raises ValueError if it is neither, or far too large.

    Pillow takes 40 us for what takes libjpeg 2, half of the time of packing a small image. It reads
    whatever libjpeg does not.
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(image)
        oddity = "CMYK JPEG" if colours in ("CMYK", "YCCK") else ""
    except ValueError:
        height, width, oddity = _read_with_pillow(image)
    if problem := too_large(height, width):
        raise ValueError(problem)
    if oddity in ("", _UNUSUAL) and image[-2:] != _END and _END not in image[-4096:]:
        oddity = UNENDED
    return Header(height, width, oddity)


def decode_error(image: bytes) -> str | None:
    """Why an image does not decode, or None where it does."""
    try:
        with _opened(image) as opened:
            if problem := too_large(opened.height, opened.width) or _too_costly(opened, image):
                return problem
            opened.load()
    except _BROKEN as error:
        return str(error)
    return None


def too_large(height: int, width: int) -> str:
    """Why an image of these sides is not decoded, in words; "" where it is."""
    if max(height, width) > _MAX_PX:
        return f"found {width} x {height} pixels, more than {_MAX_PX} along a side"
    if height * width > MOST_PIXELS:
        return f"found {width} x {height} pixels, more than {MOST_PIXELS:,}"
    return ""


def _too_costly(opened: Image.Image, image: bytes) -> str:
    """Why a JPEG would take too much memory or time to decode, in words; "" where it does not."""
    pixels, scans = opened.height * opened.width, image.count(_SCAN)
    if opened.format == "JPEG" and pixels * scans > _MOST_SCANNED:
        return f"found {opened.width} x {opened.height} pixels in {scans} scans"
    if opened.info.get("progressive") and pixels > _MOST_PROGRESSIVE:
        return (
            f"found {opened.width} x {opened.height} pixels in a progressive JPEG, "
            f"more than {_MOST_PROGRESSIVE:,}"
        )
    return ""


def _opened(image: bytes) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own limit: ours is below it
        return Image.open(io.BytesIO(image), formats=_FORMATS)


def _read_with_pillow(image: bytes) -> Header:
    if not image:
        raise ValueError("found an empty file")
    try:
        opened = _opened(image)
        width, height = opened.size
    except Image.DecompressionBombError:
        raise ValueError(f"found more than {MOST_PIXELS:,} pixels") from None
    except _BROKEN:
        raise ValueError(f"found {image[:8]!r} at its start") from None
    return Header(height, width, "PNG" if opened.format == "PNG" else _UNUSUAL)
