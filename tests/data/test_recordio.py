import io
import struct
from pathlib import Path

import mxnet as mx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rn50.data import recordio
from tests.conftest import refused

MAGIC = struct.pack("<I", recordio.MAGIC)
FUZZ = settings(max_examples=50)

# Bytes with the magic number strewn in, at aligned places and others.
IMAGES = st.lists(
    st.one_of(
        st.binary(max_size=9), st.just(MAGIC), st.just(MAGIC[:2]), st.just(bytes(4))
    ),
    max_size=8,
).map(b"".join)
LABELS = st.integers(0, 2**24)
IDS = st.integers(0, 2**64 - 1)


def with_hard_images(test: object) -> object:
    for image in (
        b"",
        MAGIC,
        MAGIC * 3,
        b"x" + MAGIC,
        bytes(4) + MAGIC,
        MAGIC + b"end",
        MAGIC[2:] + MAGIC + MAGIC[:2],
        b"abc" + MAGIC + b"d" + MAGIC,
    ):
        test = example(label=3, record_id=5, image=image)(test)  # type: ignore[arg-type]
    return test


def mxnet_record(
    label: int,
    record_id: int,
    image: bytes,
    path: Path,
) -> bytes:
    """The bytes that MXNet's own writer makes of one image."""
    writer = mx.recordio.MXRecordIO(str(path), "w")
    writer.write(mx.recordio.pack(mx.recordio.IRHeader(0, label, record_id, 0), image))
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordio") / "x.rec"


def joined(label: float, record_id: int, image: bytes) -> bytes:
    return b"".join(recordio.encode(label, record_id, image))


@FUZZ
@given(label=LABELS, record_id=IDS, image=IMAGES)
@with_hard_images
def test_a_record_has_mxnets_bytes_is_read_again_and_holds_its_image_at_a_fixed_place(
    scratch: Path, label: int, record_id: int, image: bytes
) -> None:
    record = joined(label, record_id, image)
    assert record == mxnet_record(label, record_id, image, scratch)
    assert recordio.read(io.BytesIO(record), 0, "x") == (label, record_id, image)
    found = record[recordio.HEADER_BYTES : recordio.HEADER_BYTES + len(image)]
    assert recordio.is_split(recordio.encode(label, record_id, image)) or found == image


@FUZZ
@given(image=IMAGES, data=st.data())
def test_a_record_cut_short_names_file_and_offset(
    image: bytes, data: st.DataObject
) -> None:
    first = joined(1, 1, b"first")
    second = joined(2, 2, image)
    padding = -len(image) % 4
    cut = len(first) + data.draw(st.integers(0, len(second) - padding - 1))
    file = io.BytesIO((first + second)[:cut])
    assert recordio.read(file, 0, "some.rec").image == b"first"
    with refused(rf"^some\.rec: .* at byte {len(first)} expected"):
        recordio.read(file, len(first), "some.rec")


@pytest.mark.parametrize(
    ("content", "offset", "told"),
    [
        *(
            (joined(1, 1, b"some image of some length"), at, "magic")
            for at in (1, 4, 8, 30)
        ),
        (MAGIC + struct.pack("<I", 8) + bytes(8), 0, "24 bytes"),
        (b"", 0, "the end of the file"),
    ],
)
def test_a_place_that_is_no_record_is_named(
    content: bytes, offset: int, told: str
) -> None:
    with refused(rf"^x: a record at byte {offset} expected: .*{told}"):
        recordio.read(io.BytesIO(content), offset, "x")
