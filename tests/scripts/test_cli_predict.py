"""`rn50 predict` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

LINE = ':::MLLOG {{"time_ms": {time}, "event_type": "{kind}", "key": "{key}", "value": {value}, "metadata": {{{more}}}}}\n'  # noqa: E501


def write_log(
    file: Path, *, batch: int, epoch_s: float, samples: int = 12_800, blocks: int = 4
) -> Path:
    """A log of blocks of four epochs with an evaluation of one second inside each."""
    clock = 1_700_000_000_000

    def line(key: str, kind: str = "POINT_IN_TIME", value: object = "null", more: str = "") -> str:
        return LINE.format(time=clock, kind=kind, key=key, value=value, more=more)

    text = line("init_start") + line("global_batch_size", value=batch)
    text += line("train_samples", value=samples)
    clock += 10_000
    text += line("init_stop") + line("run_start")
    clock += 2_000
    for block in range(blocks):
        text += line("block_start", more=f'"first_epoch_num": {4 * block + 1}, "epoch_count": 4')
        clock += round(4 * epoch_s * 1000)
        text += line("eval_start")
        clock += 1_000
        text += line("eval_stop") + line("block_stop")
    text += line("run_stop", more='"status": "success"')
    file.write_text(text)
    return file


def test_help_teaches(rn50) -> None:
    done = rn50("predict", "--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "Example: rn50 predict abci_2048_open" in text
    assert "--calibrate" in text and "--validate" in text and "--simulate" in text


def test_a_config_is_answered_with_where_the_time_goes(rn50) -> None:
    done = rn50("predict", "abci_2048_open")
    assert done.returncode == 0, done.stderr
    for word in ("step", "images/s", "time to train", "backward", "straggler", "calibrated on"):
        assert word in done.stdout


def test_a_system_is_answered_in_json_whatever_the_case_of_its_name(rn50) -> None:
    arguments = ["--gpus", "1024", "--batch-per-gpu", "35", "--json"]
    done = rn50("predict", "--system", "DGX-A100", *arguments)
    figures = json.loads(done.stdout)
    assert figures == {
        **json.loads(rn50("predict", "--system", "dgxa100", *arguments).stdout),
        "system": "DGX-A100",
    }
    assert figures["step_time_ms"] == pytest.approx(15.17, rel=0.05)
    assert figures["interval"][0] < figures["time_to_train_s"] < figures["interval"][1]
    assert set(figures["breakdown"]) == {"step_ms", "run_s"}


def test_choices_change_the_answer(rn50) -> None:
    base = ["predict", "--system", "abci", "--gpus", "1024", "--batch-per-gpu", "32", "--json"]
    epochs = json.loads(rn50(*base, "--epochs", "60").stdout)
    assert epochs["epochs"] == 60
    ring = json.loads(rn50(*base, "--algorithm", "ring").stdout)
    tree = json.loads(rn50(*base, "--algorithm", "double_tree").stdout)
    assert ring["step_time_ms"] > tree["step_time_ms"]
    single = json.loads(rn50(*base, "--groups", "single").stdout)
    assert single["step_time_ms"] != tree["step_time_ms"]
    older = json.loads(rn50(*base, "--ruleset", "0.6").stdout)
    assert older["epochs"] > json.loads(rn50(*base).stdout)["epochs"]


def test_plots_are_the_same_each_time(rn50, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        done = rn50("predict", "dgxh100_8", "--plots", str(tmp_path / folder))
        assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "one").iterdir()}
    assert names == {"time_to_train.svg", "step.svg", "algorithms.svg", "overlap.svg"}
    for name in names:
        text = (tmp_path / "one" / name).read_text()
        assert text.startswith("<?xml") and "</svg>" in text
        assert text == (tmp_path / "two" / name).read_text()


def test_validation_prints_every_row_and_its_mean(rn50) -> None:
    done = rn50("predict", "--validate")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    errors = [abs(float(x.split()[0][:-1])) for x in lines if x.startswith(("+", "-"))]
    assert len(errors) > 400 and errors == sorted(errors, reverse=True)
    assert sum("calibrated" in line for line in lines) > 40
    assert any(line.startswith("step: mean absolute error") for line in lines)
    assert any(line.startswith("left out:") for line in lines)
    figures = json.loads(rn50("predict", "--validate", "--json").stdout)
    assert len(figures["rows"]) == len(errors)


def test_calibration_from_logs_predicts_and_writes_the_machine(rn50, tmp_path: Path) -> None:
    """12,800 images: 100 steps of 128 in 2 s, 50 steps of 256 in 1.6 s an epoch."""
    small = write_log(tmp_path / "small.txt", batch=128, epoch_s=2.0)
    large = write_log(tmp_path / "large.txt", batch=256, epoch_s=1.6)
    out = tmp_path / "mine.yaml"
    logs = [f"{small}:8", f"{large}:8"]
    done = rn50("predict", "--calibrate", *logs, "--system", "dgx1", "--json")
    fit = json.loads(done.stdout)
    assert [run["step_s"] for run in fit["runs"]] == [pytest.approx(0.02), pytest.approx(0.032)]
    assert fit["runs"][0]["startup_s"] == pytest.approx(2)
    assert fit["runs"][0]["evaluation_s"] == pytest.approx(1)
    assert fit["per_image_ms"] == pytest.approx((32 - 20) / 16, rel=0.05)
    both = ["--gpus", "8", "--batch-per-gpu", "32"]
    done = rn50("predict", "--calibrate", *logs, "--system", "dgx1", "--out", str(out), *both)
    assert done.returncode == 0, done.stderr
    again = json.loads(rn50("predict", "--system", str(out), *both, "--json").stdout)
    assert again["step_time_ms"] == pytest.approx(32, rel=1e-3)


def test_simulation_is_beside_the_closed_form(rn50) -> None:
    arguments = ["predict", "dgxa100_n128", "--simulate", "--steps", "5", "--json"]
    figures = json.loads(rn50(*arguments).stdout)
    assert figures["ranks"] == 1024
    assert figures["step_ms"] == pytest.approx(figures["closed_form_ms"], rel=0.02)
    assert "step ms" in rn50(*arguments[:-1]).stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "CONFIG or --system NAME expected"),
        (["abci_2048_opne"], "no such file, and no preset"),
        (["--system", "cray", "--gpus", "8", "--batch-per-gpu", "8"], "one of a100_pcie, "),
        (["--system", "abci"], "--gpus and --batch-per-gpu expected"),
        (["abci_2048_open", "--system", "dgxa100", "--gpus", "12"], "--gpus: a multiple of 8"),
        (["quick"], "ResNet-50"),
        (["base"], "performance section in its YAML expected"),
        (["dgx1_8", "--gpus", "12"], "--gpus: a multiple of 8"),
        (["dgx1_8", "--algorithm", "star"], "one of ring"),
        (["dgx1_8", "--ruleset", "5"], "--ruleset: 0.5.0 or one of"),
        (["dgx1_8", "--precision", "int8"], "precision one of fp16, fp32 expected, found int8"),
        (["--calibrate"], "one log or more expected"),
        (["--calibrate", "{folder}/none.txt:8"], "cannot read"),
        (["--calibrate", "{folder}/log.txt"], "LOG:GPUS expected"),
        (["--calibrate", "{folder}/log.txt:7"], "no multiple of 7"),
        (["--calibrate", "{folder}/log.txt:0"], "from 1 expected, found 0"),
        (["dgx1_8", "--plots", "/proc/plots"], "a folder expected"),
    ],
)
def test_bad_input_is_one_clear_line(
    rn50, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    write_log(tmp_path / "log.txt", batch=128, epoch_s=2.0)
    done = rn50("predict", *(text.format(folder=tmp_path) for text in arguments))
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("rn50: error: ")]
    assert len(errors) == 1, done.stderr
    assert expected in errors[0]
    assert "Traceback" not in done.stderr
