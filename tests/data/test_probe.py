"""Reading records before the clock starts is noticed; what the rules allow is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rn50.config.load import load
from rn50.config.manifest import load_manifest
from rn50.config.plan import Plan, Segment
from rn50.data.dataset import load_table
from rn50.data.probe import DataProbe, drop_caches
from tests.conftest import refused


@pytest.mark.parametrize("name", ["train.rec", "val.rec", "train.idx", "val.idx"])
def test_opening_records_or_index_is_named(small_data: Path, name: str) -> None:
    probe = DataProbe(small_data)
    (small_data / name).open("rb").close()
    with refused(f"read before run_start: {name} opened"):
        probe.check_untouched()


def test_caches_are_dropped_where_a_file_system_has_nothing_to_write_back(
    tmp_path: Path,
) -> None:
    # as on squashfs: fdatasync is refused
    (tmp_path / "train.rec").symlink_to("/proc/version")
    drop_caches(tmp_path)


def test_building_pipelines_manifest_and_table_is_allowed_a_batch_is_not(
    small_data: Path,
) -> None:
    from rn50.data.pipeline import build_train_source

    folder = small_data
    data = load("smoke", [f"data.path={small_data}"]).run.data
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    drop_caches(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    probe = DataProbe(folder)
    second = DataProbe(folder)
    load_manifest(folder)
    load_table(folder, "train")
    plan = Plan(
        1, data.train_samples, "mix", (Segment(1, 0, 0, per_rank=2, active_ranks=1),)
    )
    train = build_train_source(
        data, plan, rank=0, seeds={"shuffle": 1, "augment": 2, "flip": 3}
    )
    probe.check_untouched()
    train.next()
    with refused(r"train\.rec opened"):
        second.check_untouched()
