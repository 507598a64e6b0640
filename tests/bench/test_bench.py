"""Benchmarks: what is measured, what is not possible, what cannot be resolved, what is left."""

from itertools import product
from operator import itemgetter
from pathlib import Path

import pytest

from rn50.bench import overlap
from rn50.bench.allreduce import COLUMNS, Case, allreduce_rows, plan_allreduces
from rn50.bench.harness import BenchJob, Outcome, alternate, in_turn, ratio_spread
from rn50.bench.jobs import load_ready, measure_on_ranks
from rn50.bench.loop import time_loops
from rn50.config.load import Loaded
from rn50.host.errors import UserError
from rn50.launch.run import load_for_launch
from tests.bench.conftest import Measure
from tests.conftest import refused


def plan(
    launcher: str, *cases: tuple[str, int]
) -> tuple[dict[Case, Loaded], list[str]]:
    def load(*overrides: str, ranks: int) -> Loaded:
        return load_for_launch("smoke", list(overrides), ranks)

    return plan_allreduces(
        BenchJob(lambda _: print, launcher, load), [Case(*case) for case in cases]
    )


# --- allreduce: what is not possible is reported, the rest is measured ----------------------------


def test_a_torus_of_too_few_ranks_is_reported_and_the_rest_planned() -> None:
    torus = ("torus_2d", 2)
    possible = [("ring", 2), ("ring", 4), ("torus_2d", 4)]
    cases, refused = plan("mpirun", torus, *possible)
    assert list(cases) == possible
    (reason,) = refused
    assert reason.startswith("torus_2d on 2 ranks: ")
    assert "2x2 for torus_2d" in reason


@pytest.mark.parametrize(
    ("launcher", "case", "pattern"),
    [
        (
            "gloo",
            ("recursive_halving_doubling", 2),
            "nothing to measure: .* gloo offers",
        ),
        ("mpirun", ("star", 2), r"comm\.algorithm: expected auto, ring, "),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    launcher: str, case: tuple[str, int], pattern: str
) -> None:
    with refused(pattern):
        plan(launcher, case)


def test_fewer_hosts_than_nodes_are_refused_before_anything_starts() -> None:
    loaded = load_for_launch(
        "smoke", ["system.nodes=2", "system.ranks_per_node=1"], None
    )
    job = BenchJob(lambda _: print, "mpirun", lambda **_: loaded)
    with refused("2 hosts expected"):
        load_ready(job)
    with refused("2 hosts expected"):
        measure_on_ranks(job, loaded, time_loops)


def test_the_table_is_sorted_and_has_the_bus_bandwidth() -> None:
    case = Case("ring", 4)
    seconds = {(case, 64_000): [0.001], (case, 4_000): [0.002]}
    rows = allreduce_rows(seconds)
    small, large = Outcome(figures={}, rows=rows, columns=COLUMNS).table
    assert " ".join(small) == "4 4000 ring 1 2.00 2.00 2.00 3.0"
    assert " ".join(large) == "4 64000 ring 1 1.00 1.00 1.00 96.0"


@pytest.mark.nightly
@pytest.mark.slow
def test_allreduces_of_two_ranks_end_with_their_results(measure: Measure) -> None:
    outcome, svg = measure(
        "bench allreduce --ranks 2 --sizes 4k,64k --passes 1 --rounds 1"
    )
    measured = map(itemgetter("algorithm", "bytes"), outcome["rows"])
    algorithms = ("ring", "recursive_doubling", "recursive_halving_doubling")
    assert set(measured) == set(product(algorithms, (4_000, 64_000)))
    (refused,) = outcome["figures"]["not possible"]
    assert refused.startswith("torus_2d on 2 ranks: ")
    assert "<svg" in svg


def test_the_hidden_part_of_communication() -> None:
    kinds = {
        "step": [350.0, 370.0, 360.0],
        "computing": [300.0, 300.0, 300.0],
        "communication": [150.0, 150.0, 150.0],
    }
    rows = overlap.overlap_rows({"single": kinds})
    (line,) = Outcome(figures={}, rows=rows, columns=overlap.COLUMNS).table
    assert " ".join(line) == "single 360.0 300.0 150.0 60.0 0.60 0.53 0.67 3"


# --- contenders in turn, names --------------------------------------------------------------------


def test_contenders_alternate_and_the_first_round_warms_up() -> None:
    called: list[str] = []
    contenders = {"a": lambda: called.append("a"), "b": lambda: called.append("b")}
    samples = alternate(
        contenders,
        2,
        barrier=lambda: called.append("barrier"),
        finish=lambda: called.append("finish"),
    )
    assert called[:3] == ["barrier", "b", "finish"]
    assert "".join(called[1::3]) == "baabba"
    assert len(samples["a"]) == 2
    assert len(samples["b"]) == 2


def test_jobs_in_turn_say_how_many_are_done() -> None:
    done: list[tuple[int, int]] = []
    job = BenchJob(
        lambda *_, **__: lambda *progress: done.append(progress),
        "gloo",
        load_for_launch,
    )
    assert "".join(in_turn(job, "timing", "ab", 2)) == "baab"
    assert done == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_ratio_is_of_pairs_of_the_same_round() -> None:
    ratio = ratio_spread([2.0, 9.0], [1.0, 3.0])
    assert ratio == {"median": 2.5, "min": 2.0, "max": 3.0, "n": 2}


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_failed_rank_leaves_its_reason_and_its_output(
    smoke_data: Path, tmp_path: Path
) -> None:
    overrides = [f"data.path={smoke_data}", f"system.results={tmp_path}"]
    loaded = load_for_launch("smoke", overrides, 2)
    job = BenchJob(lambda _: print, "mpirun", lambda: loaded)
    with pytest.raises(UserError) as caught:
        # rounds that are no number
        measure_on_ranks(job, loaded, time_loops, "many", 1)
    reason, _, details = str(caught.value).partition("; details: ")
    assert " failed in benchmark at step 0: TypeError: can only concat" in reason
    log = Path(details)
    assert log.parent.parent == tmp_path
    assert log.parent.name.startswith("bench_failed_")
    assert "can only concat" in log.read_text()
    assert [path.name for path in tmp_path.iterdir()] == [log.parent.name]
