"""Tables of an image set that are none: what random bytes have found."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest

from rn50.data.dataset import TABLE, load_table
from tests.conftest import refused

_SHAPED = "{'descr': %r, 'fortran_order': False, 'shape': %s, }\n"


def _npy(header: str) -> bytes:
    length = struct.pack("<H", len(header))
    return b"\x93NUMPY\x01\x00" + length + header.encode()


def _saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        _saved(np.zeros(3)),
        _saved(np.zeros((3, 1), TABLE)),
        _saved(np.array([{"an": "object"}], object)),
        _saved(np.zeros(3, TABLE))[:-1],
        _npy("(" * 900),
        _npy(_SHAPED % (TABLE.descr, "(1000000000000,)")),
        _npy(_SHAPED % (TABLE.descr, "(-1,)")),
    ],
    ids=range(8),
)
def test_a_table_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.npy").write_bytes(content)
    with refused(r"train\.npy"):
        load_table(tmp_path, "train")
