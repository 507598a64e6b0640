"""A folder of runs as a submission: every log by itself, then what they must have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..config import benchmark
from ..config.errors import UserError
from ..config.finding import ERROR, NOTE, POLICY, number, plain, printable, shown
from ..config.names import PRESETS, list_systems
from ..config.reading import read_file
from ..logging.places import RESULT_FILES, RESULT_NAME, job_of, results_in, run_folders
from . import rcp as convergence
from . import same_run  # noqa: F401 (registers its rules)
from .check_log import CANNOT_READ, FAIL, POLICY_VERDICT, Check, check_log, verdict_of
from .logged_run import LoggedRun
from .rule import FOLDER, RULES_TEXT, Violation, rule, rules_on
from .run_scores import judge_convergence, newest

folder_rule = partial(rule, judges=FOLDER)
_OF_COPIES = ("copied-accuracies", "shared-moments")
_SYSTEM_BYTES = 1 << 20
_EPOCH_IMAGES = benchmark.IMAGENET_TRAIN_SAMPLES
_SHEET = re.compile(r"^accelerator: (.+?)$.*?^  tensor_flops_per_s: ([\d.e]+)", re.M | re.S)
_MODEL = re.compile(r"[A-Z]+\d+[A-Z]*")
_PACKAGE = "mlcommons/logging 4.1.68, package_checker"


@dataclass(frozen=True)
class Submission:
    """Runs of one benchmark on one system."""

    folder: Path
    checks: tuple[Check, ...]
    system: dict[str, Any] | None
    system_path: Path | None
    """Where a system description belongs, if the folder lies in a submission package."""

    @property
    def runs(self) -> list[tuple[str, LoggedRun]]:
        """(file name, run) of the logs that can be read."""
        return [(c.path.name, c.run) for c in self.checks if c.run is not None]

    @property
    def closed(self) -> bool:
        """Any log that says closed makes it a closed submission."""
        return any(run.division != "open" for _, run in self.runs)

    @property
    def chips(self) -> int | None:
        """Accelerators (of nodes without, nodes) of the description; None: no counts, or none."""
        system = self.system or {}
        counts = [str(system.get(key)) for key in ("number_of_nodes", "accelerators_per_node")]
        if not all(count.isascii() and count.isdigit() and len(count) < 10 for count in counts):
            return None
        return int(counts[0]) * max(1, int(counts[1])) or None


def find_results(folder: Path) -> list[Path]:
    """The result files of a folder by number. Raises UserError where there is none."""
    files = results_in(folder)
    if not files:
        below = len({path.parent for path in folder.glob(f"*/{RESULT_FILES}")})
        hint = f"; {below} below it have them: {folder}/*" if below else ""
        raise UserError(f"{folder}: {RESULT_FILES} expected in it, found none{hint}")
    return files


def check_folder(
    folder: Path, ruleset: str | None = None, *, official: bool | None = None
) -> tuple[Check, ...]:
    """Every result file of a folder, and last the folder itself as a submission."""
    checks = tuple(_check_each(find_results(folder), ruleset, official))
    system, system_path = _read_system(folder)
    submission = Submission(folder, checks, system, system_path)
    findings = tuple(
        each.finding(violation) for each in SET_RULES for violation in each.check(submission)
    )
    copied = next((finding for finding in findings if finding.name == "copied-run"), None)
    if copied is not None:
        findings = tuple(
            f._replace(caused_by=copied.id) if f.name in _OF_COPIES else f for f in findings
        )
    order = (ERROR, POLICY, NOTE)
    findings = tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))
    good = sum(check.verdict not in (FAIL, CANNOT_READ) for check in checks)
    cause = f"{good} of {len(checks)} runs pass"
    verdict = verdict_of(findings)
    first_policy_violation = next(
        (check for check in checks if check.verdict == POLICY_VERDICT), None
    )
    if findings and findings[0].severity != NOTE:
        cause = findings[0].message
    elif first_policy_violation is not None:
        verdict = POLICY_VERDICT
        where, why = first_policy_violation.path.name, first_policy_violation.cause
        cause += f", with policy findings ({where}: {why})"
    ruleset_by = next(check for check in checks if check.ruleset == newest(checks))
    source = ruleset_by.ruleset_source
    whole = Check(folder, verdict, cause, ruleset_by.ruleset, source, None, findings)
    return (*checks, whole)


def _check_each(
    paths: Sequence[Path], ruleset: str | None, official: bool | None
) -> Iterator[Check]:
    """Each log's verdict; a file under several names is read once, and kept once in memory."""
    known: dict[tuple[int, int], Check] = {}
    for path in paths:
        about = path.stat()
        place = (about.st_dev, about.st_ino)
        if place not in known:
            known[place] = check_log(path, ruleset, official=official)
        yield known[place]._replace(path=path)


@folder_rule("MLP905", "mixed-rounds", POLICY, f"{RULES_TEXT} line 62")
def _one_round(submission: Submission) -> Iterator[Violation]:
    """All logs are of one round; the rules of the newest apply to the set."""
    first = submission.runs[:1]
    other = [pair for pair in submission.runs if pair[1].ruleset != first[0][1].ruleset][:1]
    for (name, run), (other_name, other_run) in zip(first, other, strict=False):
        text = (
            f"{name} is of ruleset {run.ruleset}, {other_name} of {other_run.ruleset}: the set "
            f"is held to {newest(submission.checks)}"
        )
        expected = "logs of one round"
        actual = f"{run.ruleset} and {other_run.ruleset}"
        yield Violation(text, None, expected, actual, "--ruleset decides for all of them")


@folder_rule("MLP901", "five-runs", ERROR, f"{RULES_TEXT} lines 509, 954; {_PACKAGE}")
def _five_runs(submission: Submission) -> Iterator[Violation]:
    """Five result_*.txt, numbered from 0, of which at most one is no valid run."""
    count = len(submission.checks)
    others = sorted(
        path.name
        for path in submission.folder.glob(RESULT_FILES)
        if not RESULT_NAME.fullmatch(path.name)
    )
    if others:
        listed = printable(", ".join(others[:4])) + (" ..." if len(others) > 4 else "")
        text = f"{listed}: no runs of a submission, which are result_0.txt, result_1.txt ..."
        yield Violation(text, severity=NOTE)
    if count != benchmark.RUNS:
        alone = count == 1 and _is_ours(submission.folder)
        more = ""
        if count > benchmark.RUNS:
            more = "; of more the window of five with the median score is submitted (log score)"
        yield Violation(
            f"{count} run{'s' if count > 1 else ''}, expected {benchmark.RUNS}{more}",
            None,
            str(benchmark.RUNS),
            str(count),
            "rn50 submit --runs 5" if alone else "a submission has result_0.txt to result_4.txt",
            NOTE if alone else None,  # one run of this harness, not a submission
        )
    failed = _invalid(submission)
    allowed = benchmark.RUNS_THAT_MAY_FAIL if count >= benchmark.RUNS else 0
    if len(failed) > allowed:
        names = ", ".join(c.path.name for c in failed)
        runs = "1 run is" if len(failed) == 1 else f"{len(failed)} runs are"
        text = f"{runs} not valid ({names}), {allowed} of {count} may fail: {failed[0].cause}"
        yield Violation(text, None, f"at most {allowed}", str(len(failed)))
    elif failed:
        text = (
            f"{failed[0].path.name} is not a valid run and counts as the slowest: {failed[0].cause}"
        )
        yield Violation(text, severity=NOTE)


def _invalid(submission: Submission) -> list[Check]:
    return [c for c in submission.checks if c.verdict in (FAIL, CANNOT_READ)]


def _is_ours(folder: Path) -> bool:
    """Whether a run of this harness left its log here: in its own folder or in its job's."""
    job = job_of(folder)
    return (folder / "result.json").is_file() or (job is not None and bool(run_folders(job)))


@folder_rule(
    *("MLP906", "seed-not-fresh", POLICY, f"{RULES_TEXT} lines 166-183; {_PACKAGE}, seed_checker"),
    keys=("seed",),
)
def _seeds(submission: Submission) -> Iterator[Violation]:
    """Closed, from 1.0.0 on: each run logs an integer seed, no two runs the same in one place."""
    if not submission.closed:
        return
    taken: dict[tuple[str, str, int], str] = {}
    without = []
    for name, run in submission.runs:
        if not run.at_least("1.0.0"):
            continue
        events = run.all("seed")
        if not events:
            without.append(name)
        own = set()
        for event in events:
            try:
                seed = int(event.value)
                if seed != event.value and isinstance(event.value, float):
                    raise ValueError
            except (TypeError, ValueError, OverflowError):
                text = f"{name} line {event.line}: seed {shown(event.value)} is no integer"
                yield Violation(text, event.line, "an integer", shown(event.value))
                continue
            place = (shown(event.metadata.get("file")), shown(event.metadata.get("lineno")), seed)
            own.add(place)
            if place in taken and taken[place] != name:
                text = f"{taken[place]} and {name} have the same seed {seed}"
                advice = "draw it from the clock or from urandom"
                yield Violation(text, event.line, "a fresh seed for every run", str(seed), advice)
        taken |= dict.fromkeys(own, name)
    if without:
        text = f"no seed in {', '.join(without)}"
        advice = "log the root seed under the key seed"
        yield Violation(text, None, "a seed in every log", "none", advice)


_SAME_IN_ALL = (
    "submission_division",
    "submission_org",
    "submission_platform",
    "global_batch_size",
    "gradient_accumulation_steps",
    "opt_name",
    "opt_base_learning_rate",
    *benchmark.LARS_KEYS,
    *benchmark.SGD_KEYS,
)


@folder_rule(
    "MLP907", "different-hyperparameters", POLICY, f"{RULES_TEXT} line 62", keys=_SAME_IN_ALL
)
def _same_hyperparameters(submission: Submission) -> Iterator[Violation]:
    """All runs have one division, organisation, platform, batch, optimizer and hyper-parameters,
    and the division of the system description."""
    runs = submission.runs
    for key in dict.fromkeys(_SAME_IN_ALL):
        values = [(name, run.value(key)) for name, run in runs if run.all(key)]
        other = next((pair for pair in values if not _equal(pair[1], values[0][1])), None)
        if other is not None:
            yield Violation(
                f"{key} is {shown(values[0][1])} in {values[0][0]} and {shown(other[1])} in "
                f"{other[0]}",
                None,
                "one value in all runs",
                f"{shown(values[0][1])} and {shown(other[1])}",
            )
    if submission.system is None:
        return
    declared = submission.system.get("division")
    if not isinstance(declared, str):
        text = f"division of the system description is {shown(declared)}, expected closed or open"
        yield Violation(text, severity=NOTE)
    else:
        for name, run in runs:
            logged = run.value("submission_division")
            if logged != declared:
                text = (
                    f"submission_division is {shown(logged)} in {name}, the system description "
                    f"says {shown(declared)}"
                )
                yield Violation(text, None, shown(declared), shown(logged))
                break


def _equal(one: Any, other: Any) -> bool:
    """Values of a record; NaN is one value, which no number equals."""
    return bool(one == other) or (one != one and other != other)


@folder_rule(
    *("MLP908", "system-description", POLICY, f"{_PACKAGE}, system_desc_checker"),
    keys=("global_batch_size",),
)
def _system(submission: Submission) -> Iterator[Violation]:
    """The system description is there, and its accelerators divide the global batch."""
    if submission.system is None:
        if submission.system_path is not None:
            text = (
                f"no system description {submission.system_path.name} in "
                f"{submission.system_path.parent}"
            )
            yield Violation(text, None, "a JSON object", "none")
        else:
            yield Violation(
                "no system description: the folder lies in no submission package "
                "(ORG/results/SYSTEM/resnet, ORG/systems/SYSTEM.json)",
                severity=NOTE,
            )
        return
    chips = submission.chips
    if chips is None:
        counts = [submission.system.get(k) for k in ("number_of_nodes", "accelerators_per_node")]
        yield Violation(
            "number_of_nodes and accelerators_per_node of the system description are "
            f"{shown(counts[0])} and {shown(counts[1])}, expected counts",
            severity=NOTE,
        )
        return
    for name, run in submission.runs:
        if run.batch is not None and chips > 0 and run.batch % chips:
            text = (
                f"global_batch_size {plain(run.batch)} ({name}) is no multiple of the "
                f"{chips} accelerators of the system description"
            )
            yield Violation(text, None, f"a multiple of {chips}", plain(run.batch), severity=NOTE)
            return


@folder_rule(
    *("MLP909", "impossible-accelerator-rate", POLICY),
    "data sheets of config/system/*.yaml; 24.6 GFLOP an image",
    keys=("train_samples",),
)
def _chips(submission: Submission) -> Iterator[Violation]:
    """The accelerators of the system description can have trained so fast: at most at the peak of
    their data sheets' tensor cores, or at 2.5e15 FLOP/s each if they have none here."""
    chips, system = submission.chips, submission.system or {}
    name = shown(system.get("accelerator_model_name", "accelerators"))
    flops = peak_flops_per_s(name) or benchmark.IMPOSSIBLE_FLOPS_PER_CHIP
    for file, run in submission.runs if chips else ():
        epochs = run.convergence_epoch
        if not epochs or not run.run_ms or run.value("train_samples") != _EPOCH_IMAGES:
            continue
        rate = epochs * _EPOCH_IMAGES / (run.run_ms / 1000)
        most = (chips or 0) * flops / benchmark.TRAINING_FLOPS_PER_IMAGE
        if rate > most:
            yield Violation(
                message=f"{file}: {rate:.2g} images/s; the tensor cores of {chips} x {name} allow "
                f"{most:.2g} at their peak",
                expected=f"up to {most:.2g} images/s",
                actual=f"{rate:.2g} images/s",
                advice="the system description is of the machine that ran",
            )
            return


def peak_flops_per_s(accelerator: str) -> float | None:
    """The highest tensor rate of the data sheets in `config/system/` of an accelerator, known by
    a word of its name (A100, L40S, H100); None: no such sheet."""
    words = set(_MODEL.findall(accelerator.upper()))
    rates = []
    for name in list_systems():
        sheet = _SHEET.search((PRESETS / f"system/{name}.yaml").read_text())
        if sheet is not None and words.intersection(_MODEL.findall(sheet[1])[:1]):
            rates.append(float(sheet[2]))
    return max(rates, default=None)


@folder_rule(
    *("MLP904", "faster-than-reference", ERROR, "mlcommons/logging 4.1.68, rcp_checker"),
    keys=("global_batch_size",),
)
def _rcp(submission: Submission) -> Iterator[Violation]:
    """Closed, from 1.0.0 on: the runs do not converge faster than the reference allows."""
    if not submission.closed or len(submission.checks) < benchmark.RUNS:
        return
    verdict = judge_convergence(submission.checks)
    if verdict is None or verdict.passed or verdict.reference is None:
        return
    if verdict.mean is None and len(_invalid(submission)) > benchmark.RUNS_THAT_MAY_FAIL:
        return  # five-runs says it
    text = f"RCP test: {verdict.reason}"
    expected = "a reference convergence point, and not fewer epochs than it"
    actual = "none" if verdict.mean is None else f"{verdict.mean:g} epochs"
    yield Violation(text, None, expected, actual, "supply a reference with at least 10 runs")


@folder_rule(
    *("MLP910", "differs-from-reference", NOTE, f"{RULES_TEXT} lines 541-546"),
    keys=("global_batch_size", *benchmark.LARS_KEYS),
)
def _matched(submission: Submission) -> Iterator[Violation]:
    """Where the batch has a reference point, differences to its hyper-parameters are shown."""
    if not submission.runs or not submission.closed:
        return
    name, run = submission.runs[0]
    points = convergence.kept_points(run.ruleset)
    point = next((p for p in points if p.batch == run.batch), None)
    if point is None or run.optimizer != "lars":
        return
    logged = {
        "lars_opt_base_learning_rate": point.base_lr,
        "lars_opt_learning_rate_warmup_epochs": point.warmup_epochs,
        "lars_opt_momentum": point.momentum,
        "lars_opt_weight_decay": point.weight_decay,
    }
    parts = [
        f"{key} {shown(run.value(key))} against {plain(expected)}"
        for key, expected in logged.items()
        if number(run.value(key)) != expected
    ]
    if parts:
        yield Violation(f"the reference point of batch {point.batch} ({name}): {', '.join(parts)}")


SET_RULES = rules_on(FOLDER)


def _read_system(folder: Path) -> tuple[dict[str, Any] | None, Path | None]:
    """The system description of ORG/results/SYSTEM/resnet, and where it belongs."""
    parents = folder.absolute().parents
    if len(parents) < 3 or parents[1].name != "results":
        return None, None
    systems = parents[2] / "systems"
    if folder.name != benchmark.BENCHMARK and not systems.is_dir():
        return None, None  # a run of this harness: results/NAME/TIME
    path = systems / f"{parents[0].name}.json"
    try:
        content = json.loads(read_file(path, _SYSTEM_BYTES, within=parents[2]))
    except (OSError, ValueError, RecursionError):
        return None, path
    return (content, path) if isinstance(content, dict) else (None, path)
