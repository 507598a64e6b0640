"""The figures of one log: clocks, curve, hyper-parameters; `rn50 log show`."""

from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from rn50.cli import log as log_commands
from rn50.report.compare import read_all
from rn50.report.run_summary import RunSummary, show
from tests.compliance.log_text import (
    Record,
    Run,
    again,
    all_of,
    drop,
    good_run,
    last,
    meta,
    put,
    write,
)
from tests.compliance.test_expected import LOGS, REAL
from tests.compliance.test_rules import after_the_clock


def line(time_ms: float, key: str, value: object = None, **metadata: object) -> str:
    """A record of a log."""
    return Record(key, value, time_ms, **metadata).text("4.0.0") + "\n"


RUN = (
    line(1_000, "init_start")
    + line(1_500, "global_batch_size", 64)
    + line(2_000, "init_stop")
    + line(3_500, "run_start")
    + line(3_500, "train_samples", 1000)
    + line(3_600, "block_start", first_epoch_num=1, epoch_count=2)
    + line(4_000, "epoch_start", epoch_num=1)
    + line(6_000, "epoch_stop", epoch_num=1)
    + line(6_000, "epoch_start", epoch_num=2)
    + line(9_000, "epoch_stop", epoch_num=2)
    + line(9_000, "eval_start", epoch_num=2)
    + line(10_000, "eval_stop", epoch_num=2)
    + line(10_000, "eval_accuracy", 0.5, epoch_num=2)
    + line(10_000, "epoch_start", epoch_num=3)
    + line(15_000, "epoch_stop", epoch_num=3)
    + line(17_500, "eval_accuracy", 0.76, epoch_num=3)
    + line(18_250, "run_stop", status="success")
)
NOISE = "mpirun: hello\n\n[1,0]<stdout>: :::MLL\n:::MLLOG {broken\n:::MLLOG [1, 2]\n"


def shown(path: Path) -> dict[str, Any]:
    """The object that `rn50 log show --json` prints."""
    (subject,) = read_all([path])
    return log_commands.shown(subject.runs[0], subject)


def figures_of(folder: Path, log_text: str) -> dict[str, Any]:
    path = folder / "result_0.txt"
    path.write_text(log_text)
    return shown(path)


@pytest.mark.parametrize(
    "log_text",
    [
        NOISE + RUN.replace("\n", "\n" + NOISE),
        RUN.replace(":::MLLOG", "[1,0]<stdout>:::MLLOG"),
    ],
    ids=["between other lines", "behind a prefix"],
)
def test_the_figures_of_a_run(tmp_path: Path, log_text: str) -> None:
    assert figures_of(tmp_path, log_text) == {
        "benchmark": "resnet",
        "status": "success",
        "time_to_train_s": 14.75,
        "init_s": 1.0,
        "epochs": 3,
        "eval_accuracy": 0.76,
        "global_batch_size": 64,
        "images_per_s": 3 * 1000 / 10,
        "clock": {
            "interruptions_s": 0.0,
            "saves_s": 0.0,
            "evaluations_s": 1.0,
            "epochs_s": 10.0,
            "gaps_s": 3.75,
        },
        "evaluations": [(2, 0.5, 6.5), (3, 0.76, 14.0)],
        "target": None,
    }


RESNET = line(900, "submission_benchmark", "resnet")
BERT = RESNET.replace("resnet", "bert")
COUNTLESS = RUN.replace(line(3_500, "train_samples", 1000), "")
MISSED = RUN.replace("0.76", "0.75")
EMPTY_EPOCH = line(16_000, "epoch_start", epoch_num=4)
INTERRUPTION = line(3_600, "checkpoint_start") + line(18_000, "run_resumed")


@pytest.mark.parametrize(
    ("log_text", "expected"),
    [
        # as in round v0.6, whose rules need no count; epochs of BERT count samples
        (RESNET + COUNTLESS, {"images_per_s": 3 * 1_281_167 / 10}),
        (BERT + COUNTLESS, {"images_per_s": None, "epochs": None, "evaluations": []}),
        (
            RUN[: RUN.rindex(":::MLLOG")],
            {"status": None, "time_to_train_s": None, "eval_accuracy": 0.76},
        ),
        # of another benchmark than ours, whose accuracy may be no fraction, its status counts
        (MISSED, {"time_to_train_s": None}),
        (RUN.replace("0.76", "0.759"), {"time_to_train_s": 14.75}),
        (BERT + MISSED, {"benchmark": "bert", "time_to_train_s": 14.75}),
        (BERT + MISSED.replace("success", "aborted"), {"time_to_train_s": None}),
        # some published logs stamp records with 0: nobody started a run in 1970
        (
            RUN.replace("3500", "0").replace("1000,", "0,"),
            {"time_to_train_s": None, "init_s": None},
        ),
        # a log of round v0.6 has most of its blocks so
        (
            RUN + EMPTY_EPOCH + EMPTY_EPOCH.replace("_start", "_stop"),
            {"images_per_s": 300},
        ),
        # all of its epochs lie in an interruption
        (RUN + INTERRUPTION, {"images_per_s": None}),
    ],
    ids=range(10),
)
def test_the_figures_of_an_odd_run(
    tmp_path: Path, log_text: str, expected: dict[str, Any]
) -> None:
    assert figures_of(tmp_path, log_text).items() >= expected.items()


def summary_of(path: Path) -> RunSummary:
    (subject,) = read_all([path])
    return subject.runs[0]


def of(
    tmp_path: Path, *edits: Callable[[Run], object], ruleset: str = "4.0.0"
) -> RunSummary:
    run = good_run(ruleset)
    for edit in edits:
        edit(run)
    return summary_of(write(tmp_path / "log.txt", run, ruleset))


@pytest.mark.parametrize("ruleset", ["0.6.0", "0.7.0", "4.0.0"])
def test_clocks_are_seconds_in_every_format(tmp_path: Path, ruleset: str) -> None:
    run = of(tmp_path, ruleset=ruleset)
    assert run.init_s == pytest.approx(60, abs=0.3)
    assert run.epoch_s == pytest.approx(1.0)
    assert run.eval_s == pytest.approx(0.5)
    assert run.run_s == pytest.approx(35 * 1.0 + 9 * 0.5, abs=0.2)
    reached = run.reached
    assert reached is not None
    assert reached.epoch == 35
    assert reached.accuracy == 0.7592
    assert reached.time_s == pytest.approx(run.run_s, abs=0.01)
    epochs = [point.epoch for point in run.evaluations]
    assert epochs == list(range(3, 36, 4))


def test_optimizers_share_the_names_of_their_parameters(tmp_path: Path) -> None:
    path = write(tmp_path / "sgd.txt", good_run(optimizer="sgd"))
    sgd = set(summary_of(path).parameters)
    older = set(of(tmp_path, ruleset="0.6.0").parameters)
    lars = set(of(tmp_path).parameters)
    assert lars - sgd == {"epsilon"}
    assert sgd - lars == {"model_bn_span"}
    shared = {"base_learning_rate", "weight_decay", "optimizer"}
    assert shared <= sgd & lars & older


def test_parameters_that_no_rule_reads_are_shown(tmp_path: Path) -> None:
    sgd = good_run(optimizer="sgd")
    akiba = good_run(optimizer="sgd")
    for record in akiba:
        record.key = record.key.replace("sgd_", "akiba_")
    akiba.append(Record("global_batch_size_change", 3264, 0))
    logs = [write(tmp_path / "sgd.txt", sgd), write(tmp_path / "akiba.txt", akiba)]
    of_sgd, of_akiba = [summary_of(log).parameters for log in logs]
    assert of_akiba == of_sgd | {"global_batch_size_change": 3264}


def test_copies_by_other_ranks_change_nothing(tmp_path: Path) -> None:
    def figures(*edits: Callable[[Run], object]) -> object:
        """What is shown of a log, without the lines at which it stands."""
        run = of(tmp_path, *edits)
        curve = [(e.epoch, e.accuracy, e.time_s) for e in run.evaluations]
        return run._replace(evaluations=(), reached=None), curve

    single = figures()

    def by_four_ranks(run: Run) -> None:
        run[:] = [record for record in run for _ in range(4)]

    def by_a_slower_rank(run: Run) -> None:
        _, *starts = all_of(run, "epoch_start")
        for stop, start in zip(all_of(run, "epoch_stop"), starts, strict=False):
            late = stop.later(start.time_ms + 1 - stop.time_ms)
            run.insert(run.index(start) + 1, late)

    assert figures(by_four_ranks) == single
    assert figures(by_a_slower_rank) == single


def test_ranks_that_disagree_are_all_shown(tmp_path: Path) -> None:
    disagree = again("global_batch_size", value=1536)
    batch = of(tmp_path, disagree).parameters["global_batch_size"]
    assert batch == [3264, 1536]


@pytest.mark.parametrize("value", ["0.7", float("nan"), 75.9, -0.1, True])
def test_an_accuracy_that_is_no_fraction_is_no_evaluation(
    tmp_path: Path, value: object
) -> None:
    run = of(tmp_path, put("eval_accuracy", value))
    assert run.evaluations == ()
    assert run.best is None


def test_an_evaluation_after_run_stop_does_not_count(tmp_path: Path) -> None:
    run = of(tmp_path, after_the_clock)
    assert run.evaluations[-1].accuracy == 0.7592
    assert run.reached is None


def test_figures_are_of_the_first_run(tmp_path: Path) -> None:
    """The verdict is that of the first run, too."""

    def go_on(run: Run) -> None:
        second = [record.later(600_000) for record in run]
        last(second, "eval_accuracy").metadata["epoch_num"] = 36
        put("seed", 1)(second)
        run += second

    assert of(tmp_path, go_on) == of(tmp_path)


@pytest.mark.parametrize(("gone", "epoch_s"), [("block", 1.0), ("epoch", 1.125)])
def test_time_per_epoch_from_what_the_log_has(
    tmp_path: Path, gone: str, epoch_s: float
) -> None:
    run = of(tmp_path, drop(f"{gone}_start", f"{gone}_stop"))
    assert sum(part.epochs for part in run.time.epochs) == 35
    assert run.epoch_s == pytest.approx(epoch_s, abs=0.01)


def test_no_epoch_numbers_at_all(tmp_path: Path) -> None:
    keys = ("eval_accuracy", "eval_start")
    run = of(tmp_path, *(meta(key, "epoch_num", ...) for key in keys))
    epochs = [point.epoch for point in run.evaluations]
    assert epochs == [None] * 9


def deep() -> Any:
    value: Any = 0
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (38.0, "38"),
        (None, "null"),
        ("a\x1b[31mb\u202ec\nd", "a\\x1b[31mb\\u202ec\\nd"),
        ("x" * 500, "x" * 199 + "…"),
        (10**5000, "(int that cannot be shown)"),
        (deep(), "(list that cannot be shown)"),
    ],
    ids=range(6),
)
def test_values_for_people(value: object, expected: str) -> None:
    assert show(value) == expected


PUBLISHED = [row for row in REAL if row[1] >= "0.7"]


@pytest.mark.skipif(not REAL, reason="no published logs beside this checkout")
@pytest.mark.parametrize("row", PUBLISHED, ids=itemgetter(0))
def test_the_figures_of_published_logs(row: list[str]) -> None:
    """Against a table that was made by another program."""
    status, accuracy, epochs, seconds, batch = row[6:11]
    log = LOGS / row[0]
    figures = shown(log)
    assert (figures["status"] or "-") == status
    assert figures["eval_accuracy"] == pytest.approx(float(accuracy), abs=1e-6)
    assert figures["global_batch_size"] == int(batch)
    run_s = summary_of(log).run_s
    if seconds != "-":
        assert run_s == pytest.approx(float(seconds), abs=1e-3)
        assert figures["epochs"] == float(epochs)
    assert figures["time_to_train_s"] == (run_s if status == "success" else None)
    assert len(figures["evaluations"]) > 3
