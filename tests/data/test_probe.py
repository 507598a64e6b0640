import os
import subprocess
import sys
from pathlib import Path

import pytest

from rn50.config.errors import UserError
from rn50.config.manifest import load_manifest
from rn50.config.plan import Plan, Segment
from rn50.config.schema import Data, Synthetic
from rn50.data.cache import drop_caches
from rn50.data.dataset import load_table
from rn50.data.prepare import prepare
from rn50.data.probe import DataProbe


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    settings = Data(
        path=str(tmp_path_factory.mktemp("probe") / "set"),
        synthetic=Synthetic(classes=2, train_samples=8, eval_samples=4),
        classes=2,
        train_samples=8,
        eval_samples=4,
        crop_px=16,
        eval_resize_px=20,
    )
    prepare(settings, lambda name: lambda done, total: None)
    return settings


@pytest.fixture
def folder(data: Data) -> Path:
    return Path(data.path)


@pytest.fixture
def probe(folder: Path) -> DataProbe:
    probe = DataProbe(folder)
    if not probe.active:
        pytest.skip("this kernel gives no inotify")
    return probe


@pytest.mark.parametrize("name", ["train.rec", "val.rec", "train.idx", "val.idx"])
def test_reading_records_or_index_is_caught_and_named(
    probe: DataProbe, folder: Path, name: str
) -> None:
    with (folder / name).open("rb") as file:
        file.read(1)
    with pytest.raises(UserError, match=f"data set read before run_start: {name} opened"):
        probe.check_untouched()


def test_opening_alone_is_caught(probe: DataProbe, folder: Path) -> None:
    os.close(os.open(folder / "train.rec", os.O_RDONLY))
    assert probe.touched() == ["train.rec"]


def test_another_process_is_caught(probe: DataProbe, folder: Path) -> None:
    subprocess.run(["cat", str(folder / "val.rec")], stdout=subprocess.DEVNULL, check=True)
    assert probe.touched() == ["val.rec"]


def test_a_file_mapped_after_being_opened_before_is_caught(folder: Path) -> None:
    """Reads through a descriptor from before the probe count as well."""
    with (folder / "train.rec").open("rb", buffering=0) as file:
        probe = DataProbe(folder)
        if not probe.active:
            pytest.skip("this kernel gives no inotify")
        assert probe.touched() == []
        file.read(4)
        assert probe.touched() == ["train.rec"]


def test_what_was_read_before_the_probe_does_not_count(folder: Path) -> None:
    (folder / "train.rec").read_bytes()
    DataProbe(folder).check_untouched()


def test_manifest_and_table_may_be_read(probe: DataProbe, folder: Path) -> None:
    load_manifest(folder)
    load_table(folder, "train")
    (folder / "train.rec").stat()
    list(folder.iterdir())
    probe.check_untouched()


def test_each_look_starts_afresh_and_names_each_file_once(probe: DataProbe, folder: Path) -> None:
    for name in ("val.rec", "train.rec", "val.rec"):
        (folder / name).read_bytes()
    assert probe.touched() == ["train.rec", "val.rec"]
    assert probe.touched() == []


def test_the_watch_ends_with_the_check(probe: DataProbe, folder: Path) -> None:
    def watches() -> int:
        files = Path("/proc/self/fd").iterdir()
        return sum("inotify" in str(file.readlink()) for file in files if file.is_symlink())

    before = watches()
    probe.check_untouched()
    assert watches() == before - 1
    (folder / "train.rec").read_bytes()
    assert probe.touched() == []


def test_dropping_caches_is_seen_so_it_must_come_first(probe: DataProbe, folder: Path) -> None:
    drop_caches(folder)
    assert {"train.rec", "val.rec"} <= set(probe.touched())


def test_pipelines_read_records_with_their_first_batch_alone(probe: DataProbe, data: Data) -> None:
    from rn50.data.pipeline import build_eval_source, build_train_source

    seeds = {"shuffle": 1, "augment": 2, "flip": 3}
    plan = Plan(1, data.train_samples, "mix", (Segment(1, 0, 0, per_rank=2, active_ranks=1),))
    train = build_train_source(data, plan, rank=0, seeds=seeds)
    evaluation = build_eval_source(data, batch_per_rank=2, rank=0, ranks=1)
    assert probe.touched() == []
    train.next()
    assert probe.touched() == ["train.rec"]
    evaluation.next()
    assert probe.touched() == ["val.rec"]


def test_dropping_caches_needs_no_more_than_reading(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    drop_caches(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_the_probe_loads_no_framework() -> None:
    code = "import sys, rn50.data.probe; assert not {'mxnet', 'nvidia.dali'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
