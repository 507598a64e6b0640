"""Reading records before the clock starts is noticed; what the rules allow is not."""

import os
from pathlib import Path

import pytest

from rn50.config.load import load
from rn50.config.manifest import load_manifest
from rn50.data.probe import DataProbe, drop_caches
from tests.conftest import refused
from tests.data.images import contents
from tests.data.test_pipeline import training


def test_caches_are_dropped_where_a_file_system_has_nothing_to_write_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as on squashfs: fdatasync is refused
    (tmp_path / "train.rec").symlink_to("/proc/version")
    dropped = []

    def advise(descriptor: int, *advice: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        dropped.append((path, advice))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    drop_caches(tmp_path)
    assert dropped == [(Path("/proc/version"), (0, 0, os.POSIX_FADV_DONTNEED))]


def test_building_pipelines_manifest_and_table_is_allowed_a_batch_is_not(
    small_data: Path,
) -> None:
    data = load("smoke", [f"data.path={small_data}"]).run.data
    contents_before = contents(small_data)
    drop_caches(small_data)
    assert contents(small_data) == contents_before
    probe = DataProbe(small_data)
    second = DataProbe(small_data)
    load_manifest(small_data)
    train = training(data, 2)
    probe.check_untouched()
    train.next()
    (small_data / "val.idx").open("rb").close()
    with refused(r"read before run_start: train\.rec, val\.idx opened"):
        second.check_untouched()
