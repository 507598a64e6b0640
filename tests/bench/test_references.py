"""Rates of a machine: written into its YAML, compared by the benchmark and at the end of a run."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rn50.bench import scaling
from rn50.bench.curves import Case, Timing
from rn50.bench.harness import BenchJob
from rn50.bench.scaling import save_reference
from rn50.compliance.check_log import Check
from rn50.config.load import Loaded, load_system
from rn50.config.load import load as load_config
from rn50.launch.launch_plan import Options
from rn50.launch.run import judge
from rn50.logging.records import ReferenceRate, Result, Verdict, write
from rn50.logging.run_folder import RunFolder
from tests import mpi
from tests.conftest import refused

MACHINE = "# ours\nbase: local  # two cores\nname: mine\n"
SHORT = ("--passes", "1", "--rounds", "1", "--steps", "4")


def test_a_rate_is_written_beside_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"{MACHINE}references:\n  quick: {{images_per_s: 200, tolerance: 0.1}}\n"
    )
    save_reference(path, "smoke", 765.2345)
    save_reference(path, "quick", 207.0)
    assert path.read_text().startswith(MACHINE)
    references = load_system(str(path)).references
    smoke = references["smoke"]
    quick = references["quick"]
    assert (smoke.images_per_s, smoke.tolerance) == (765.2, 0.05)
    assert (quick.images_per_s, quick.tolerance) == (207.0, 0.1)
    assert quick.passes(186.3)
    assert not quick.passes(186.2)
    assert quick.line("quick", 150.0).startswith(
        "reference of quick: FAIL: 150.0 images/s, -27.5%"
    )
    with refused("nothing"):
        save_reference(tmp_path / "nothing.yaml", "quick", 207.0)


def test_what_is_measured_against_a_reference_is_the_config_as_a_run_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All nodes of the config. A machine that is not there or cannot be written is named before
    anything is measured."""

    def load(*overrides: str, ranks: int | None = None) -> Loaded:
        assert ranks is None
        return load_config("dgxa100_n128", overrides)

    def measure_curves(
        job: BenchJob, curves: dict[str, list[Case]], load: Any, _: Any
    ) -> None:
        ((case,),) = curves.values()
        assert case.ranks == load(case).run.system.world_size == 1024
        raise KeyboardInterrupt

    monkeypatch.setattr(scaling, "measure_curves", measure_curves)
    job = BenchJob(lambda _: print, "gloo", load)
    measure = partial(scaling.measure_reference, job, Timing(2, 3, 10), check=False)
    with refused(r"found '/.*/nothing'"):
        measure(tmp_path / "nothing")
    (tmp_path / "mine.yaml").write_text(MACHINE)
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path / "mine.yaml")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    with refused("mine.yaml: cannot write"):
        measure(tmp_path / "mine.yaml")


def test_a_slow_run_is_not_a_good_one() -> None:
    passed = Verdict("PASS")
    result = Result("success", official_checker=passed, check=passed)
    fast = ReferenceRate(200.0, 0.1, passes=True)
    slow = ReferenceRate(200.0, 0.1, passes=False)
    assert result.is_good
    assert replace(result, reference=fast).is_good
    assert not replace(result, reference=slow).is_good


@pytest.mark.parametrize(
    ("preset", "images_per_s", "utilisation"),
    [("dgxh100_8", 20_000.0, 24.5e9 * 20_000 / (8 * 989e12)), ("quick", 300.0, None)],
)
def test_a_result_says_the_share_of_a_peak_that_is_known(
    tmp_path: Path, preset: str, images_per_s: float, utilisation: float | None
) -> None:
    run = load_config(preset).run
    ranks = run.system.world_size
    write(
        tmp_path / "result.json",
        Result("success", images_per_s=images_per_s, ranks=ranks),
    )
    check = Check(tmp_path, "PASS", "", "4.0.0", "", Verdict("PASS"), ())
    result = judge(run, RunFolder(tmp_path), Options(), check)
    assert result.mfu == (utilisation and pytest.approx(utilisation, rel=0.01))


@pytest.mark.nightly
@mpi.NEEDED
@pytest.mark.slow
def test_the_benchmark_saves_and_checks(rn50: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MACHINE)
    command = f"bench scaling smoke --system {path}"
    bench = (*command.split(), *SHORT)
    missing = rn50.error(*bench, "--check", f"system.results={tmp_path}")
    assert "system.references: one of smoke expected" in missing
    rn50.output(*bench, "--save", str(path), f"system.results={tmp_path}")
    rate = load_system(str(path)).references["smoke"].images_per_s
    path.write_text(path.read_text().replace(f"{rate:g}", f"{100 * rate:g}"))
    slow = rn50(*bench, "--check", f"system.results={tmp_path}")
    assert slow.returncode == 1
    assert "reference of smoke: FAIL" in slow.stdout
