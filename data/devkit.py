"""ImageNet's development kit: which class each validation image has, as it is published.

`ILSVRC2012_devkit_t12.tar.gz` holds `data/ILSVRC2012_validation_ground_truth.txt`, the number of
the class of each image, and `data/meta.mat`, a MATLAB file with the WordNet ID of each number.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from ..config.errors import UserError
from ..config.reading import read_file

DEVKITS = ("ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12")
GROUND_TRUTH, META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
_MOST_BYTES = 64 << 20


def read_devkit(path: Path) -> list[str]:
    """The WordNet ID of each validation image, by its number. `path`: the kit as a tar or unpacked,
    or its ground truth beside its meta.mat. Raises UserError: it is not the kit, or is damaged."""
    from scipy.io import loadmat  # 0.3 s

    truth, meta = (_content(path, name) for name in (GROUND_TRUTH, META))
    try:
        synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        numbers = map(int, synsets["ILSVRC2012_ID"])
        names = dict(zip(numbers, map(str, synsets["WNID"]), strict=True))
        return [names[int(line)] for line in truth.split()]
    except (KeyError, ValueError, TypeError, IndexError, OSError) as error:
        expected = f"{GROUND_TRUTH} and {META} of ImageNet's development kit expected"
        raise UserError(f"{path}: {expected}, found others ({error})") from None


def is_devkit(path: Path) -> bool:
    """Whether a file or folder is the kit, by its name."""
    return path.name in (*DEVKITS, GROUND_TRUTH) or (path / "data" / META).is_file()


def _content(path: Path, name: str) -> bytes:
    try:
        if path.is_file() and path.name != GROUND_TRUTH:
            with tarfile.open(path, "r:*") as tar:
                for member in tar:
                    if member.name.rpartition("/")[2] == name and member.size < _MOST_BYTES:
                        file = tar.extractfile(member)
                        return file.read() if file else b""
            raise UserError(f"{path}: {name} in it expected, found none")
        folder = path.parent if path.is_file() else path
        inner = folder / "data" / name
        return read_file(inner if inner.exists() else folder / name, _MOST_BYTES)
    except (OSError, EOFError, tarfile.TarError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"{path}: ImageNet's development kit expected: {why}") from None
