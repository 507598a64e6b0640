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
MARKS = st.sampled_from([MAGIC, MAGIC[:2], bytes(4)])
PIECES = MARKS | st.binary(max_size=9)
IMAGES = st.lists(PIECES, max_size=8).map(b"".join)


def encoded(label: float, record_id: int, image: bytes) -> bytes:
    return b"".join(recordio.encode(label, record_id, image))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordio") / "x.rec"


@FUZZ
@given(label=st.integers(0, 2**24), number=st.integers(0, 2**64 - 1), image=IMAGES)
@example(label=3, number=5, image=b"")
@example(label=3, number=5, image=MAGIC * 3)
@example(label=3, number=5, image=MAGIC[2:] + MAGIC + MAGIC[:2])
@example(label=3, number=5, image=b"abc" + MAGIC + b"d" + MAGIC)
def test_a_record_has_mxnets_bytes_is_read_again_and_holds_its_image_at_a_fixed_place(
    scratch: Path, label: int, number: int, image: bytes
) -> None:
    header = mx.recordio.IRHeader(0, label, number, 0)
    writer = mx.recordio.MXRecordIO(str(scratch), "w")
    writer.write(mx.recordio.pack(header, image))
    writer.close()
    record = encoded(label, number, image)
    assert record == scratch.read_bytes()
    decoded = recordio.read(io.BytesIO(record), 0, "x")
    assert decoded == (label, image)
    pieces = recordio.encode(label, number, image)
    if not recordio.is_split(pieces):
        assert record[recordio.HEADER_BYTES :].startswith(image)


@FUZZ
@given(image=IMAGES, data=st.data())
def test_a_record_cut_short_names_file_and_offset(
    image: bytes, data: st.DataObject
) -> None:
    first = encoded(1, 1, b"first")
    second = encoded(2, 2, image)
    padding = -len(image) % 4
    longest_cut = len(second) - padding - 1
    cut = data.draw(st.integers(0, longest_cut))
    file = io.BytesIO(first + second[:cut])
    assert recordio.read(file, 0, "some.rec").image == b"first"
    with refused(rf"^some\.rec: .* at byte {len(first)} expected"):
        recordio.read(file, len(first), "some.rec")


@pytest.mark.parametrize(
    ("content", "offset", "message"),
    [
        (encoded(1, 1, b"some image of some length"), 4, "magic"),
        (MAGIC + struct.pack("<I", 8) + bytes(8), 0, "24 bytes"),
        (b"", 0, "the end of the file"),
        (b"", 2**64 - 1, "too large"),
    ],
)
def test_a_place_that_is_no_record_is_named(
    content: bytes, offset: int, message: str
) -> None:
    with refused(rf"^x: a record at byte {offset} expected: .*{message}"):
        recordio.read(io.BytesIO(content), offset, "x")
