"""The sides of an image from its header; and whether it decodes."""

from __future__ import annotations

import io
import warnings

from PIL import Image

_END = b"\xff\xd9"
_FORMATS = ("JPEG", "PNG")  # ImageNet holds a PNG under a .JPEG name
_MOST_PX = 65_535  # the sample table has 16 bits for a side, as JPEG itself
_TOO_LARGE = (Image.DecompressionBombError, Image.DecompressionBombWarning)


def read_size(image: bytes, *, decode: bool = False) -> tuple[int, int]:
    """(height, width) in pixels as stored of a JPEG or PNG. A JPEG without an end marker is
    decoded: perhaps it is cut off, and then neither Pillow nor DALI decodes it.

    Raises ValueError: it is neither, is cut off, has more pixels than Pillow's limit of 89,478,485,
    or (`decode`) does not decode.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(image), formats=_FORMATS)
        if decode or (opened.format != "PNG" and _END not in image[-4096:]):
            opened.load()
    except Image.UnidentifiedImageError:
        raise ValueError(f"found {image[:8]!r} at its start") from None
    except (OSError, SyntaxError, ValueError, *_TOO_LARGE) as error:
        raise ValueError(f"found one that does not decode: {error}") from None
    if max(opened.size) > _MOST_PX:
        raise ValueError(f"found {opened.width} x {opened.height} pixels")
    return opened.height, opened.width
