"""What a JPEG or PNG is packed as: whether it is whole, its sides, and its transparency."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Iterator

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND\xaeB`\x82"
_PLAIN = ((0, 0, 1, 1),)
_INTERLACED = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
"""(left, top, step to the right, step down) of the pixels of each pass of a PNG."""
_CHANNELS = {
    0: 1,
    2: 3,
    3: 1,
    4: 2,
    6: 4,
}
"""By the colour type of a PNG."""
_JPEG = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
_MOST_PX = 65_535  # the sample table has 16 bits for a side, as JPEG itself
_MOST_PIXELS = 89_478_485  # 256 MiB of RGB, as Pillow's own limit


def read_image(
    image: bytes,
    *,
    decode: bool = False,
) -> tuple[bytes, int, int]:
    """(bytes to pack, height, width in pixels as stored) of a JPEG or PNG. A PNG with transparent
    pixels becomes one on white; all else is packed as it is.

    A PNG must have its end, without which Pillow decodes it but DALI does not. A JPEG without an
    end marker behind its first scan (an EXIF thumbnail lies before it) is decoded: perhaps it is
    cut off, and then neither does.

    Raises ValueError: it is neither, is cut off, is too large, or (`decode`) does not decode.
    """
    is_png = image.startswith(_PNG)  # ImageNet holds one under a .JPEG name
    if not is_png and not image.startswith(_JPEG):
        raise ValueError(f"found {image[:8]!r} at its start")
    stream = io.BytesIO(image)
    try:
        opened = PngImageFile(stream) if is_png else JpegImageFile(stream)
        width, height = opened.size
        if max(opened.size) > _MOST_PX or width * height > _MOST_PIXELS:
            raise ValueError(
                f"{width} x {height} pixels, more than {_MOST_PIXELS:,} or a side's most"
            )
        if is_png and _PNG_END not in image:
            raise ValueError("it is cut off")
        has_end = is_png or image.rfind(_JPEG_END, stream.tell()) >= 0
        if decode or not has_end:
            opened.load()
            if is_png:
                _check_rows(image, *opened.size)
        return _on_white(image, opened), height, width
    except (OSError, SyntaxError, ValueError, LookupError, zlib.error) as error:
        raise ValueError(f"found one that does not decode: {error}") from None


def _check_rows(
    image: bytes,
    width: int,
    height: int,
) -> None:
    """Raises ValueError: a PNG that Pillow has decoded lacks rows, which Pillow leaves black and
    DALI refuses."""
    bits, colour, _, _, is_interlaced = image[24:29]
    expected = 0
    for left, top, step_x, step_y in _INTERLACED if is_interlaced else _PLAIN:
        columns = len(range(left, width, step_x))
        rows = len(range(top, height, step_y))
        if columns:
            row_bytes = math.ceil(columns * bits * _CHANNELS[colour] / 8)
            expected += rows * (1 + row_bytes)
    compressed = b"".join(_png_data(image))
    held = len(zlib.decompressobj().decompress(compressed, expected))
    if held < expected:
        raise ValueError(f"{expected:,} bytes in its rows expected, found {held:,}")


def _png_data(image: bytes) -> Iterator[bytes]:
    """The content of the chunks that hold a PNG's rows."""
    start = len(_PNG)
    chunk = b""
    while chunk != _PNG_END[:4] and start < len(image):
        length = int.from_bytes(image[start : start + 4], "big")
        chunk = image[start + 4 : start + 8]
        start += 8
        if chunk == b"IDAT":
            yield image[start : start + length]
        start += length + 4


def _on_white(
    image: bytes,
    opened: Image.Image,
) -> bytes:
    """A PNG whose transparent pixels, under which any colour may lie, show white. The one
    transparent level of a 16-bit grey PNG stays as it is: Pillow cannot compose it."""
    if not opened.has_transparency_data or opened.mode.startswith("I"):
        return image
    layer = opened.convert("RGBA")
    if layer.getchannel("A").getextrema() == (255, 255):
        return image
    white = Image.new("RGBA", layer.size, "white")
    white.alpha_composite(layer)
    out = io.BytesIO()
    white.convert("RGB").save(out, "PNG")
    return out.getvalue()
