from __future__ import annotations

from pathlib import Path

import pytest

from rn50.cli import large_batch
from rn50.cli.large_batch import (
    BATCHES,
    CURVES,
    EPOCHS,
    SEEDS,
    WARMUP_EPOCHS,
    Case,
    Row,
    append_row,
    base_lr,
    draw,
    missing,
    overrides,
    read_rows,
    summarise,
    sweep,
    table,
)
from rn50.config.errors import UserError
from rn50.config.load import load
from rn50.config.plan import build_plan


def row(case: Case, accuracy: float) -> Row:
    curve = CURVES[case.curve]
    return Row(*case, base_lr(curve, case.batch), curve.eta, EPOCHS, accuracy, 9.5)


def test_learning_rate_follows_the_batch() -> None:
    assert [base_lr(CURVES["sgd"], b) for b in (20, 50, 500)] == pytest.approx([0.05, 0.125, 1.25])
    for name in ("sgd_sqrt", "lars"):
        assert base_lr(CURVES[name], 20) == 0.05
        assert base_lr(CURVES[name], 500) == pytest.approx(0.25)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("batch", BATCHES)
def test_every_run_is_a_valid_config_of_the_same_length(name: str, batch: int) -> None:
    given = overrides(Case(name, batch, 3), "elsewhere")
    run = load("smoke", [*given, "system.ranks_per_node=1"]).run
    plan = build_plan(run)
    assert (plan.global_batch_size, plan.epochs, plan.eval_epochs) == (batch, EPOCHS, (EPOCHS,))
    assert plan.total_steps == EPOCHS * 1000 / batch
    assert plan.warmup_steps == WARMUP_EPOCHS * 1000 / batch
    assert run.optimizer.base_lr == base_lr(CURVES[name], batch)
    assert CURVES[name].eta in (None, run.optimizer.eta)
    assert (run.seed, run.system.results) == (3, "elsewhere")


def test_rows_come_back_and_runs_done_are_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    done = [row(Case("sgd", 20, 1), 0.975), row(Case("lars", 500, 2), 0.5)]
    for each in done:
        append_row(path, each)
    assert read_rows(path) == done
    asked: list[Case] = []

    def train(case: Case) -> Row:
        asked.append(case)
        return row(case, 0.25)

    rows = sweep(path, list(CURVES), train)
    assert len(asked) == len(CURVES) * len(BATCHES) * len(SEEDS) - 2
    assert not {Case(*each[:3]) for each in done} & set(asked)
    assert read_rows(path) == rows
    assert missing(rows, CURVES) == []


def test_an_interrupted_sweep_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"

    def train(case: Case) -> Row:
        if case.seed == 2:
            raise KeyboardInterrupt
        return row(case, 0.5)

    with pytest.raises(KeyboardInterrupt):
        sweep(path, ["sgd"], train)
    assert [r.batch for r in read_rows(path)] == list(BATCHES)


def test_rows_of_other_settings_are_neither_done_nor_drawn() -> None:
    old = row(Case("lars", 20, 1), 0.9)._replace(eta=7.0)
    assert Case("lars", 20, 1) in missing([old], ["lars"])
    assert summarise([old], "lars") == []


@pytest.mark.parametrize("text", ["", "a,b\n", "{header}\nsgd,20,one,,,,,\n", "{header}\nsgd\n"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text.format(header=",".join(Row._fields)))
    with pytest.raises(UserError, match="expected"):
        read_rows(path)


def test_table_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [row(Case("sgd", b, s), a) for b, s, a in [(20, 1, 0.9), (20, 2, 1.0), (500, 1, 0.3)]]
    assert [tuple(point) for point in summarise(rows, "sgd")] == [
        (20, pytest.approx(0.95), 0.9, 1.0, 2),
        (500, 0.3, 0.3, 0.3, 1),
    ]
    assert "| 20 | 0.950 (0.900 to 1.000) | - | - |" in table(rows).splitlines()
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    draw(rows, first)
    draw(rows, second)
    assert "<svg" in first.read_text()
    assert first.read_bytes() == second.read_bytes()


def test_the_published_rows_are_complete_and_the_page_shows_them(root: Path) -> None:
    rows = read_rows(root / "docs" / "large_batch.csv")
    assert missing(rows, CURVES) == []
    assert table(rows) in (root / "docs" / "large_batch.md").read_text()


def test_ctrl_c_keeps_the_rows_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(case: Case, *_: object) -> Row:
        if case.batch == BATCHES[2]:
            raise KeyboardInterrupt("SIGTERM")
        return row(case, 0.5)

    monkeypatch.setattr(large_batch, "run_case", train)
    out = tmp_path / "rows.csv"
    with pytest.raises(SystemExit) as caught:
        large_batch.main(["--out", str(out), "--curves", "sgd"])
    assert caught.value.code == 130
    assert len(read_rows(out)) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"large_batch: stopped; rows kept: 2: {out}; go on with: "
        f"python -m rn50.cli.large_batch --out {out} --curves sgd"
    )
    assert not out.with_suffix(".svg").exists()
