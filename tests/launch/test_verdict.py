"""What is said of a finished run: its own target counts, and the rules that apply to its set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rn50.compliance.check_log import check_log
from rn50.config.load import load
from rn50.launch.verdict import errors_of, is_good, verdict_lines

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


ABORTED = ('"status": "success"', '"status": "aborted"')
MOMENTUM = ('("key": "sgd_opt_momentum", "value": )0.9', r"\g<1>0.95")
SIZES = tuple(
    (f'("key": "{key}_samples", "value": ){old}', rf"\g<1>{new}")
    for key, (old, new) in zip(("eval", "train"), IMAGENET, strict=True)
)
LOW = {"overrides": ("eval.target=0.7",), "eval_accuracy": 0.725}
ALL_RIGHT = {"overrides": ("eval.target=0.7",), "eval_accuracy": 1.0}


@pytest.mark.parametrize(
    ("edits", "values", "good", "first", "is_imagenet"),
    [
        ((), {}, True, "check: PASS by every rule that applies", False),
        ((MOMENTUM,), {}, True, "check: POLICY: sgd_opt_momentum (line ", False),
        (SIZES, {}, True, "check: PASS: converged: 0.895 at epoch 4", True),
        ((accuracy("0.725"),), LOW, True, "check: this config's target 0.7 is reached", False),
        ((accuracy("1.0"),), ALL_RIGHT, True, "check: this config's target 0.7 is", False),
        ((accuracy("0.725"), (".*cache_clear.*\n", "")), LOW, False, "official checker: ", False),
        ((ABORTED,), {"status": "aborted"}, False, "check: FAIL: run_stop (line 39) says", True),
        (
            (ABORTED,),
            {"status": "aborted", "stopped": "asked to stop at step 9"},
            False,
            "check: none: the run was stopped before its end",
            True,
        ),
    ],
)
def test_its_own_target_counts_and_the_rules_that_apply_to_its_set(
    tmp_path: Path,
    edits: tuple[tuple[str, str], ...],
    values: dict[str, Any],
    good: bool,
    first: str,
    is_imagenet: bool,
) -> None:
    lines, found = judged(tmp_path, *edits, **values)
    assert (lines[0][: len(first)], found) == (first, good)
    assert ("the set is not ImageNet: eval-samples and" in lines[-1]) != is_imagenet
