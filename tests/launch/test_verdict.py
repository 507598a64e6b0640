"""What is said of a finished run: its own target counts, and the rules that apply to its set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rn50.compliance.check_log import check_log
from rn50.compliance.config_rules import check_config
from rn50.config.load import load
from rn50.launch.verdict import check_note, errors_of, is_good, target_note, verdict_lines

GOLDEN = Path(__file__).parent.parent / "golden" / "smoke_result_0.txt"
IMAGENET = (("400", "50000"), ("1000", "1281167"))


def judged(
    tmp_path: Path, *edits: tuple[str, str], overrides: tuple[str, ...] = (), **values: object
) -> tuple[list[str], bool]:
    """(lines, good?) of the golden log after some edits, by the real official checker."""
    text = GOLDEN.read_text()
    for pattern, new in edits:
        text, count = re.subn(pattern, new, text)
        assert count, pattern
    log = tmp_path / "result_0.txt"
    log.write_text(text)
    check = check_log(log, "4.0.0", official=True)
    assert check.official is not None
    result: dict[str, object] = {
        "status": "success",
        "eval_accuracy": 0.895,
        "official_checker": check.official._asdict(),
        "check": {"errors": errors_of(check)},
        **values,
    }
    run = load("smoke", overrides).run
    return verdict_lines(run, check, result, Path("F")), is_good(result)


def accuracy(value: str) -> tuple[str, str]:
    return ('("key": "eval_accuracy", "value": )[0-9.]+', rf"\g<1>{value}")


def test_a_first_success_is_no_warning(tmp_path: Path) -> None:
    lines, good = judged(tmp_path)
    assert good
    assert lines == [
        "check: PASS by every rule that applies (events, clock, hyper-parameters: ruleset 4.0.0, "
        "closed); the set is not ImageNet, so eval-samples and train-samples (its size) do not "
        "(rn50 log check F)"
    ]


def test_what_does_apply_is_said(tmp_path: Path) -> None:
    wrong = ('("key": "sgd_opt_momentum", "value": )0.9', r"\g<1>0.95")
    lines, good = judged(tmp_path, wrong)
    assert lines[0].startswith("check: POLICY: sgd_opt_momentum (line ")
    assert lines[1].startswith("of the rules all others apply; the set is not ImageNet")
    assert good  # the official checker passes it


def test_imagenet_is_held_to_everything(tmp_path: Path) -> None:
    sizes = [
        (f'("key": "{key}_samples", "value": ){old}', rf"\g<1>{new}")
        for key, (old, new) in zip(("eval", "train"), IMAGENET, strict=True)
    ]
    lines, _ = judged(tmp_path, *sizes)
    assert len(lines) == 1 and lines[0].startswith("check: PASS: converged: 0.895 at epoch 4")


def test_the_configs_own_target_is_a_success(tmp_path: Path) -> None:
    lines, good = judged(
        tmp_path, accuracy("0.725"), overrides=("eval.target=0.7",), eval_accuracy=0.725
    )
    assert good
    assert lines == [
        "check: this config's target 0.7 is reached; the official checker says FAIL, since the "
        "closed division's is 0.759 (division=open leaves it free) (rn50 log check F)"
    ]
    open_one = ('"value": "closed"', '"value": "open"')
    lines, good = judged(
        tmp_path,
        accuracy("0.725"),
        open_one,
        overrides=("eval.target=0.7", "division=open"),
        eval_accuracy=0.725,
    )
    assert good and lines[0].startswith("check: PASS by every rule that applies")


@pytest.mark.parametrize("division", ["closed", "open"])
def test_every_image_right_is_a_success(tmp_path: Path, division: str) -> None:
    lines, good = judged(
        tmp_path, accuracy("1.0"), ('"value": "closed"', f'"value": "{division}"'),
        overrides=(f"division={division}",), eval_accuracy=1.0,
    )  # fmt: skip
    assert good
    assert "takes an accuracy of 1 for an error" in lines[0]


def test_a_log_with_another_error_is_no_success(tmp_path: Path) -> None:
    lines, good = judged(
        tmp_path,
        accuracy("0.725"),
        (".*cache_clear.*\n", ""),
        overrides=("eval.target=0.7",),
        eval_accuracy=0.725,
    )
    assert not good
    assert any("cache_clear" in line for line in lines)


def test_what_did_not_end_well(tmp_path: Path) -> None:
    aborted = ('"status": "success"', '"status": "aborted"')
    lines, good = judged(tmp_path, aborted, status="aborted")
    assert not good
    assert lines == ["check: FAIL: run_stop (line 37) says aborted (rn50 log check F)"]
    stopped, good = judged(tmp_path, aborted, status="aborted", stopped="asked to stop at step 9")
    assert not good
    assert stopped == ["check: none: the run was stopped before its end (rn50 log check F)"]


def test_a_low_target_is_said_beforehand() -> None:
    said = target_note(load("smoke", ["eval.target=0.7"]).run)
    assert "eval.target 0.7 is below 0.759" in said and "division=open" in said
    assert target_note(load("smoke", ["eval.target=0.7", "division=open"]).run) == ""
    assert target_note(load("smoke").run) == ""


def test_what_config_check_objects_to_is_said_beforehand() -> None:
    assert check_note(check_config(load("smoke"))) == ""
    assert check_note(check_config(load("smoke", ["eval.target=0.7"]))) == ""
    note = check_note(check_config(load("base", ["system.ranks_per_node=8"])))
    assert note.startswith("config check: optimizer.base_lr (default) is 10.5, expected about 2.")
    note = check_note(
        check_config(load("smoke", ["optimizer.weight_decay=3.0e-4", "schedule.end_lr=0.1"]))
    )
    assert note.endswith(" (and 1 more: rn50 config check)")
