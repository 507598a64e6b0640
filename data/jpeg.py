"""What a JPEG or PNG is packed as: its bytes, which training can decode, and its sides."""

from __future__ import annotations

import io

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from .decoder import check_decodes, quiet_pillow

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
_ADOBE = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
"""The segment that says of four components: CMYK, inverted."""
_MOST_PX = 65_535  # the sample table has 16 bits for a side, as JPEG itself
_MOST_PIXELS = 89_478_485  # 256 MiB of RGB, as Pillow's own limit


def read_image(image: bytes) -> tuple[bytes, int, int]:
    """(bytes to pack, height, width in pixels as stored) of a JPEG or PNG. A PNG with transparent
    pixels becomes one on white, and a CMYK JPEG without Adobe's marker gets one: browsers and
    Pillow take its inks as inverted, DALI only with the marker. All else is packed as it is.

    DALI decodes the first pixel of a JPEG whose end marker lies behind its first scan (an EXIF
    thumbnail lies before it), and all others whole: perhaps they are cut off.

    Raises ValueError: it is neither, is too large, or does not decode.
    """
    is_png = image.startswith(_PNG)  # ImageNet holds one under a .JPEG name
    if not is_png and not image.startswith(_JPEG):
        raise ValueError(f"found {image[:8]!r} at its start")
    stream = io.BytesIO(image)
    with quiet_pillow():
        opened = PngImageFile(stream) if is_png else JpegImageFile(stream)
        width, height = opened.size
        if max(opened.size) > _MOST_PX or width * height > _MOST_PIXELS:
            raise ValueError(
                f"{width} x {height} pixels, more than {_MOST_PIXELS:,} or a side's most"
            )
        has_end = not is_png and image.rfind(_JPEG_END, stream.tell()) >= 0
        packed = _on_white(image, opened)
    if opened.mode == "CMYK" and "adobe" not in opened.info:
        packed = image[:2] + _ADOBE + image[2:]
    seen = (1, 1) if has_end else (height, width)
    check_decodes(packed, *seen)
    return packed, height, width


def _on_white(image: bytes, opened: Image.Image) -> bytes:
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
