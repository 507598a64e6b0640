"""Every kind of image file is packed, and then trained and evaluated on in bounded memory, or it is
refused by name. `kinds/` has what Pillow cannot write (12 x 16 pixels, by libjpeg-turbo's cjpeg,
imagecodecs and charls)."""

import json
import os
import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from rn50.data.dataset import verify
from rn50.data.pack import pack_images
from tests.conftest import write_file
from tests.data.images import encode, image_folder, noise
from tests.waiting import output_of

STORED = Path(__file__).parent / "kinds"
JPEG = noise(1)
PNG = noise(1, "PNG")
GREY = Image.new("L", (90, 90))
PROGRESSIVE = encode(GREY, progressive=True)
CMYK = encode(Image.new("CMYK", (20, 16)))


def stored(name: str) -> bytes:
    return (STORED / f"{name}.jpg").read_bytes()


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def inserted(content: bytes) -> bytes:
    """A JPEG with an EXIF segment in front."""
    return JPEG[:2] + segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0" + content) + JPEG[2:]


def changed(marker: int, offset: int, new: int) -> bytes:
    """A JPEG with another byte so far behind the first such marker."""
    content = bytearray(JPEG)
    content[content.index(bytes([0xFF, marker])) + offset] = new
    return bytes(content)


def without(image: bytes, marker: int) -> bytes:
    """A JPEG without its segments of this marker."""
    begin = bytes([0xFF, marker])
    while begin in image:
        start = image.index(begin)
        (length,) = struct.unpack_from(">H", image, start + 2)
        image = image[:start] + image[start + 2 + length :]
    return image


def png_of(rows: bytes, *, interlaced: bool) -> bytes:
    """A grey PNG of 5 x 6 pixels from its rows, each with a byte for its filter."""
    header = struct.pack(">IIBBBBB", 5, 6, 8, 0, 0, 0, interlaced)
    png = PNG[:8]
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    for kind, content in chunks:
        checked = kind + content
        png += struct.pack(">I", len(content)) + checked
        png += struct.pack(">I", zlib.crc32(checked))
    return png


def black(mode: str, width: int, height: int) -> bytes:
    kind = "PNG" if mode == "1" else "JPEG"
    return encode(Image.new(mode, (width, height)), kind)


PACKED = {
    "baseline": JPEG,
    "progressive": PROGRESSIVE,
    "extended": changed(0xC0, 1, 0xC1),
    "arithmetic": stored("arithmetic"),
    "arithmetic progressive": stored("arithmetic_progressive"),
    "lossless colours": stored("lossless_rgb"),
    "CMYK": CMYK,
    "CMYK without Adobe's marker": without(CMYK, 0xEE),
    "more behind the end": JPEG + bytes(5000),
    "whole thumbnail": inserted(bytes(6) + JPEG),
    "EXIF cut off": inserted(b"\x03\0\x1a\x01\x05\0\x01\0"),
    "PNG": PNG,
    "PNG with more behind its end": PNG + bytes(5000),
    "PNG of rows and more": png_of(bytes(40), interlaced=False),
    "PNG interlaced": png_of(bytes(42), interlaced=True),
    "1 x 10,000 pixels": black("RGB", 1, 10_000),
    "3 x 65,500 pixels": black("RGB", 3, 65_500),
    "65,500 x 1 pixels": black("RGB", 65_500, 1),
}
REFUSED: dict[str, tuple[bytes | Callable[[Path], object], str]] = {
    "text": (b"hello world", "b'hello wo' at its start"),
    "GIF": (noise(1, "GIF"), "b'GIF"),
    "no regular file": (os.mkfifo, "a regular file expected"),
    "lossless grey": (stored("lossless_grey"), "Pillow decodes but not DALI"),
    "12 bits": (stored("twelve_bits"), "12-bit"),
    "JPEG-LS": (stored("jpeg_ls"), ""),
    "two components": (changed(0xC0, 9, 2), "2-layer"),
    "no quantisation": (without(JPEG, 0xDB), ""),
    "scan of another component": (changed(0xDA, 5, 9), ""),
    "headers alone": (JPEG[:20], ""),
    "JPEG cut off": (JPEG[:-2], "truncated"),
    "cut off behind a thumbnail": (inserted(bytes(6) + JPEG)[:-40], "truncated"),
    "progressive cut off": (PROGRESSIVE[:-60], "truncated"),
    "PNG without its end": (PNG[:-12], "not DALI"),
    "PNG that lacks rows": (png_of(bytes(30), interlaced=False), "not DALI"),
    "PNG interlaced that lacks rows": (png_of(bytes(36), interlaced=True), "not DALI"),
    "a side too long": (black("1", 70_000, 1), "70000 x 1 pixels"),
    "too many pixels": (black("1", 10_000, 9_000), "10000 x 9000 pixels, .*89,478,485"),
    "a bomb": (black("1", 20_000, 20_000), "20000 x 20000 pixels"),
}
TRAIN = """
import json, resource, sys
from rn50.config.plan import Plan, Segment
from rn50.config.schema import Data
from rn50.data.pipeline import build_eval_source, build_train_source
seeds = dict.fromkeys(("shuffle", "augment", "flip", "operations"), 1)
for settings in sys.argv[1:]:
    data = Data(**json.loads(settings), crop_px=224, eval_resize_px=256)
    plan = Plan(1, data.train_samples, "mix", (Segment(1, 0, 0, 8, 1),))
    train = build_train_source(data, plan, rank=0, seeds=seeds)
    evaluation = build_eval_source(data, batch_per_rank=8, rank=0, ranks=1)
    for source in (train, evaluation):
        for _ in range(6):
            source.next()
    del train, evaluation, source
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def pack(folder: Path, images: dict[str, bytes]) -> str:
    """Settings, as JSON, of a set with these images in train and val."""
    for name, image in images.items():
        for subfolder in ("train/a", "train/b", "val/a"):
            write_file(folder / "images" / subfolder / f"{name}.jpg", image)
    manifest = pack_images(folder / "images", folder / "set")
    assert manifest.counts == (2, 2 * len(images), len(images))
    assert verify(folder / "set") == manifest
    return json.dumps(manifest.counts._asdict() | {"path": str(folder / "set")})


def test_what_is_packed_is_trained_and_evaluated_on_in_the_memory_of_ordinary_photos(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """1 x 10,000 pixels, resized whole as evaluation resizes, would take 2,000 MB."""
    photos = dict.fromkeys(PACKED, black("RGB", 500, 375))
    ordinary = pack(tmp_path / "ordinary", photos)
    capfd.readouterr()
    kinds = pack(tmp_path / "kinds", PACKED)
    _, err = capfd.readouterr()
    assert {line.partition(": ")[2][:9] for line in err.splitlines()} == {
        "photos of",
        "photos th",
    }
    peaks_mb = output_of([sys.executable, "-c", TRAIN, ordinary, kinds]).split()
    usual_mb, peak_mb = map(int, peaks_mb)
    assert peak_mb < usual_mb + 100


def test_what_training_does_not_decode_is_refused_by_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    images = image_folder(tmp_path / "images", {"train/a": 1, "train/b": 2, "val/a": 1})
    (images / "train/b/0.JPEG").unlink()
    for name, (content, _) in REFUSED.items():
        path = images / f"train/a/{name}.jpg"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)
    manifest = pack_images(images, tmp_path / "out", skip_bad=len(REFUSED))
    descriptions = {Path(file.path).stem: file.found for file in manifest.odd_files}
    assert descriptions.keys() == REFUSED.keys()
    for name, (_, reason) in REFUSED.items():
        assert re.match(
            f"a JPEG or PNG image expected, .*{reason}", descriptions[name]
        ), name
    (line,) = capfd.readouterr().err.splitlines()
    assert "photos of val" in line
