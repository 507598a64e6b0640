"""A folder of runs as a submission: every log by itself, then what they must have in common."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from ..config import benchmark
from ..config.finding import ERROR, NOTE, POLICY, SEVERITIES, shown
from ..config.load import load_system
from ..config.names import list_systems
from ..config.reading import JsonObject, read_file
from ..logging.places import job_of, no_logs, results_in, run_folders
from .check_log import POLICY_VERDICT, Check, check_log, is_valid, verdict_of
from .logged_run import LoggedRun
from .rule import (
    FOLDER,
    RULES_TEXT,
    Violations,
    against,
    only_if,
    rule,
    rules_on,
)
from .run_scores import judge_convergence, newest

folder_rule = partial(rule, judges=FOLDER)
_SYSTEM_BYTES = 1 << 20
_PACKAGE = "mlcommons/logging 4.1.68, package_checker"
_MOST_RUNS = 20
_FEWEST = 3
"""Equal evaluations that are no chance."""
_COUNTED = ("number_of_nodes", "accelerators_per_node")
_IS_COUNT = re.compile(r"[0-9]{1,9}")
_COUNT = re.compile(r'"(\d{1,9})x')
_MODEL = re.compile(r"[A-Z]+\d+[A-Z]*")
_COARSE_MS = 10
"""If all stamps are multiples of so much or more, equal intervals prove nothing: published runs
with stamps in units of 50 ms have equal ones (v1.0 Shampoo). With 20 ms none had."""


@dataclass(frozen=True)
class Submission:
    """Runs of one benchmark on one system."""

    folder: Path
    checks: tuple[Check, ...]
    system: JsonObject | None
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
    def machine(self) -> tuple[int, int]:
        """Nodes and accelerators (of nodes without, nodes) of the description; 0: not known."""
        counts = [self.described(key) for key in _COUNTED]
        if not all(_IS_COUNT.fullmatch(str(count)) for count in counts):
            return 0, 0
        nodes, accelerators = map(int, counts)
        return nodes, nodes * max(1, accelerators)

    def described(self, key: str) -> Any:
        """A field of the system description; None where there is none."""
        return (self.system or {}).get(key)


def check_folder(
    folder: Path,
    ruleset: str | None = None,
    *,
    official: bool | None = None,
) -> tuple[Check, ...]:
    """Every result file of a folder, and last the folder itself as a submission. Raises UserError:
    there is none."""
    files = results_in(folder)
    if not files:
        raise no_logs(folder)
    checks = tuple(check_log(path, ruleset, official=official) for path in files)
    system, system_path = _read_system(folder)
    submission = Submission(
        folder,
        checks,
        system,
        system_path,
    )
    findings = [
        each.finding(broken) for each in SET_RULES for broken in each.check(submission)
    ]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    good = sum(is_valid(check.verdict) for check in checks)
    cause = f"{good} of {len(checks)} runs pass"
    verdict = verdict_of(findings)
    odd = next((check for check in checks if check.verdict == POLICY_VERDICT), None)
    if findings and findings[0].severity != NOTE:
        cause = findings[0].message
    elif odd is not None:
        verdict = POLICY_VERDICT
        cause += f", with policy findings ({odd.path.name}: {odd.cause})"
    of_round = next(check for check in checks if check.ruleset == newest(checks))
    return (
        *checks,
        Check(
            path=folder,
            verdict=verdict,
            cause=cause,
            ruleset=of_round.ruleset,
            ruleset_source=of_round.ruleset_source,
            official=None,
            findings=tuple(findings),
        ),
    )


@folder_rule("MLP901", "five-runs", ERROR, f"{RULES_TEXT} lines 509, 954; {_PACKAGE}")
def _five_runs(submission: Submission) -> Violations:
    """Five result_*.txt, of which at most one is no valid run."""
    count = len(submission.checks)
    if count != benchmark.RUNS:
        alone = count == 1 and _is_ours(submission.folder)
        yield against(
            "runs of the submission:",
            str(count),
            str(benchmark.RUNS),
            advice="rn50 submit --runs 5",
            severity=only_if(alone, NOTE),  # one run of this harness, not a submission
        )
    failed = invalid(submission.checks)
    allowed = benchmark.RUNS_THAT_MAY_FAIL * (count >= benchmark.RUNS)
    if failed:
        names = ", ".join(check.path.name for check in failed)
        yield against(
            f"{len(failed)} of {count} runs",
            f"are not valid ({names})",
            f"at most {allowed}",
            failed[0].cause,
            severity=only_if(len(failed) <= allowed, NOTE),
        )


def invalid(checks: Sequence[Check]) -> list[Check]:
    """The logs that are no valid run."""
    return [check for check in checks if not is_valid(check.verdict)]


def _is_ours(folder: Path) -> bool:
    """Whether a run of this harness left its log here: in its own folder or in its job's."""
    job = job_of(folder)
    in_job = job is not None and bool(run_folders(job))
    return in_job or (folder / "result.json").is_file()


def _together(
    submission: Submission,
    same: Callable[[LoggedRun, LoggedRun], bool],
    what: str,
) -> Violations:
    """The first pair of runs of which something is the same."""
    for (name, run), (twin, other) in combinations(submission.runs[:_MOST_RUNS], 2):
        if same(run, other):
            why = "every run of a submission is trained anew, with a seed of its own"
            yield against(f"{name} and {twin}", what, "two runs", why)
            return


@folder_rule("MLP902", "copied-run", ERROR, f"{RULES_TEXT} lines 509, 954: five runs")
def _same_stamps(submission: Submission) -> Violations:
    """No two logs have the same stamps, nor stamps that are the same after a shift: three or more
    evaluations, not all stamped in a unit of 10 ms or more."""

    what = "are one run: their evaluations are equally far apart"
    yield from _together(submission, _as_far_apart, what)


def _as_far_apart(run: LoggedRun, other: LoggedRun) -> bool:
    intervals_ms = _intervals_ms(run)
    return len(intervals_ms) >= _FEWEST and intervals_ms == _intervals_ms(other)


def _intervals_ms(run: LoggedRun) -> list[int]:
    """From the first evaluation to each; none where stamps are coarse."""
    if run.coarse_ms >= _COARSE_MS:
        return []
    stamps = [e.time_ms for e in run.timed_evaluations if e.time_ms > 0]
    return [round(stamp - stamps[0]) for stamp in stamps]


@folder_rule(
    "MLP903", "copied-accuracies", ERROR, f"{RULES_TEXT} lines 166-183, 509, 954"
)
def _same_accuracies(submission: Submission) -> Violations:
    """No two logs have the same accuracies at all evaluations that both have, three or more."""

    what = "are one run: all their accuracies are the same"
    yield from _together(submission, _as_accurate, what)


def _as_accurate(run: LoggedRun, other: LoggedRun) -> bool:
    pairs = zip(run.timed_evaluations, other.timed_evaluations, strict=False)
    accuracies = [(mine.accuracy, theirs.accuracy) for mine, theirs in pairs]
    differ = any(mine != theirs for mine, theirs in accuracies)
    return not differ and len(set(accuracies)) >= _FEWEST


@folder_rule("MLP911", "shared-moments", POLICY, f"{RULES_TEXT} lines 220, 509, 954")
def _own_moments(submission: Submission) -> Violations:
    """No two runs take equally long to the millisecond; runs after one another do not share the
    stamp of one cache_clear; three or more runs do not all end with one accuracy."""

    yield from _together(submission, _as_long, "take equally long, to the millisecond")
    what = "share one cache_clear and do not overlap"
    yield from _together(submission, _share_a_clearing, what)
    runs = submission.runs
    ends = {run.target and run.target.accuracy for _, run in runs}
    if len(runs) >= _FEWEST and len(ends) == 1 and None not in ends:
        yield against(f"all {len(runs)} runs", "end with one accuracy", "several")


def _as_long(run: LoggedRun, other: LoggedRun) -> bool:
    if max(run.coarse_ms, other.coarse_ms) >= _COARSE_MS:
        return False
    return 0 < round(run.run_ms or 0) == round(other.run_ms or 0)


def _share_a_clearing(run: LoggedRun, other: LoggedRun) -> bool:
    stamps = {event.time_ms for event in run.all("cache_clear") if event.time_ms}
    shared = any(event.time_ms in stamps for event in other.all("cache_clear"))
    return shared and not _overlap(run, other)


def _overlap(run: LoggedRun, other: LoggedRun) -> bool:
    """Whether two runs train at one time; true where one has no clock."""
    starts = [each.start.time_ms for each in (run, other) if each.start]
    stops = [each.stop.time_ms for each in (run, other) if each.stop]
    return len(starts + stops) < 4 or max(starts) < min(stops)


@folder_rule(
    "MLP904", "faster-than-reference", ERROR, "mlcommons/logging 4.1.68, rcp_checker"
)
def _rcp(submission: Submission) -> Violations:
    """Closed, from 1.0.0 on: the runs have one batch and do not converge faster than the reference
    allows."""
    if not submission.closed or len(submission.checks) < benchmark.RUNS:
        return
    verdict = judge_convergence(submission.checks)
    if verdict is None or verdict.passed:
        return
    too_many = len(invalid(submission.checks)) > benchmark.RUNS_THAT_MAY_FAIL
    if verdict.mean is not None or not too_many:  # five-runs says it
        advice = "supply a reference with at least 10 runs"
        expected = "a reference convergence point, and not fewer epochs than it"
        yield against(
            "RCP test:",
            verdict.reason,
            expected,
            advice=advice,
        )


@folder_rule("MLP905", "mixed-rounds", POLICY, f"{RULES_TEXT} line 62")
def _one_round(submission: Submission) -> Violations:
    """All logs are of one round; the rules of the newest apply to the set."""
    rounds = {run.ruleset: name for name, run in reversed(submission.runs)}
    if len(rounds) > 1:
        each = [f"{name} is of {ruleset}" for ruleset, name in sorted(rounds.items())]
        why = f"the set is held to {newest(submission.checks)}"
        yield against(
            "logs of several rounds:",
            " and ".join(each),
            "one round",
            why,
        )


@folder_rule(
    "MLP906",
    "seed-not-fresh",
    ERROR,
    f"{RULES_TEXT} lines 166-183; {_PACKAGE}, seed_checker",
)
def _seeds(submission: Submission) -> Violations:
    """Closed, from 1.0.0 on: each run logs a seed (if none it is policy: submitters could bypass
    the package checker), an integer, and no seed comes twice from one place in the sources."""
    if not submission.closed:
        return
    runs = [(name, run) for name, run in submission.runs if run.at_least("1.0.0")]
    taken: dict[tuple[object, ...], str] = {}
    for name, run in runs:
        for event in run.all("seed"):
            source = [shown(event.metadata.get(key)) for key in ("file", "lineno")]
            value = _integer(event.value)
            seed = (*source, value)
            subject = f"{name} line {event.line}: seed"
            actual = f"is {shown(event.value)}"
            line = event.line
            if value is None:
                yield against(
                    subject,
                    actual,
                    "an integer",
                    line=line,
                )
            elif seed in taken:
                actual += f", as in {taken[seed]}"
                advice = "draw it from the clock or from urandom"
                yield against(
                    subject, actual, "a fresh one each", line=line, advice=advice
                )
            taken[seed] = name
    without = ", ".join(name for name, run in runs if not run.all("seed"))
    if without:
        expected = "the root seed under the key seed in every log"
        why = "the official package checker fails it, unless it is told to bypass seeds"
        yield against(
            "no seed in",
            without,
            expected,
            why,
            severity=POLICY,
        )


def _integer(value: Any) -> int | None:
    """The integer that the official checker makes of a value, a text too; None: it has none."""
    try:
        integer = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return integer if isinstance(value, str) or integer == value else None


_SAME_IN_ALL = (
    "submission_division",
    "submission_org",
    "submission_platform",
    "global_batch_size",
    "gradient_accumulation_steps",
    "opt_name",
    "opt_base_learning_rate",
    "opt_learning_rate_decay_from",
    "opt_learning_rate_decay_shape",
    *benchmark.LARS_KEYS,
    *benchmark.SGD_KEYS,
)


@folder_rule("MLP907", "different-hyperparameters", POLICY, f"{RULES_TEXT} line 62")
def _same_hyperparameters(submission: Submission) -> Violations:
    """All runs have one division, organisation, platform, batch, optimizer and hyper-parameters,
    and the division of the system description."""
    for key in _SAME_IN_ALL:
        name_of: dict[str, str] = {}
        for name, run in submission.runs:
            if run.all(key):
                name_of.setdefault(shown(run.value(key)), name)
        if len(name_of) > 1:
            each = [f"{value} in {name}" for value, name in sorted(name_of.items())]
            yield against(
                f"{key} is",
                " and ".join(each),
                "one value in all runs",
            )
    declared = submission.described("division")
    for name, run in submission.runs:
        division = run.value("submission_division")
        if declared not in (None, division):
            actual = f"is {shown(division)} in {name}"
            expected = f"{shown(declared)} as in the system description"
            yield against("submission_division", actual, expected)
            return


@folder_rule("MLP908", "system-description", ERROR, f"{_PACKAGE}, system_desc_checker")
def _system(submission: Submission) -> Violations:
    """The system description is there (before 1.0.0 policy) and, from then on, has every field."""
    path = submission.system_path
    system = submission.system
    checked = benchmark.at_least(newest(submission.checks), "1.0.0")
    if path is None:
        actual = "the folder lies in no package"
        where = "ORG/systems/SYSTEM.json beside ORG/results/SYSTEM/resnet"
        yield against(
            "system description:",
            actual,
            where,
            severity=NOTE,
        )
    elif system is None:
        actual = f"no {path.name} in {path.parent}"
        severity = only_if(not checked, POLICY)
        yield against(
            "system description:",
            actual,
            "a JSON object",
            severity=severity,
        )
    elif checked:
        absent = [field for field in benchmark.SYSTEM_FIELDS if field not in system]
        if absent:
            actual = f"has no {', '.join(absent[:5])}"
            yield against(path.name, actual, "every field of a system")


@folder_rule("MLP910", "another-system", POLICY, f"{RULES_TEXT} line 62")
def _as_described(submission: Submission) -> Violations:
    """The logs are of the system that is described: each accelerator has whole images of the batch,
    and a platform such as 4xNAME counts its nodes or its accelerators."""
    nodes, accelerators = submission.machine
    if not accelerators:
        return
    for name, run in submission.runs:
        if run.batch is not None and run.batch % accelerators:
            actual = f"{run.batch:g} images on {accelerators} accelerators"
            yield against(f"{name}:", actual, "as many on each")
            return
        platform = _COUNT.match(shown(run.value("submission_platform")))
        if platform and int(platform[1]) not in (nodes, accelerators):
            actual = f"is {platform[1]}x..."
            expected = f"{nodes} nodes or {accelerators} accelerators, as described"
            yield against(f"{name}: submission_platform", actual, expected)
            return


@folder_rule(
    "MLP909",
    "impossible-accelerator-rate",
    POLICY,
    "data sheets of config/system/*.yaml; 24.6 GFLOP an image",
)
def _possible_on_accelerators(submission: Submission) -> Violations:
    """The accelerators of the system description can have trained so fast: at most at the peak of
    their data sheets' tensor cores."""
    _, chips = submission.machine
    name = shown(submission.described("accelerator_model_name"))
    flops_per_s = chips and chips * _peak_flops_per_s(name)
    if not flops_per_s:
        return
    most = flops_per_s / benchmark.TRAINING_FLOPS_PER_IMAGE
    for file, run in submission.runs:
        samples = run.value("train_samples")
        epochs = run.convergence_epoch
        if not epochs or not run.run_ms or samples != benchmark.IMAGENET_TRAIN_SAMPLES:
            continue
        rate = epochs * samples / (run.run_ms / 1000)
        if rate > most:
            actual = f"{rate:.2g} images/s with {chips} x {name}"
            why = "the peak of the data sheet"
            yield against(f"{file}:", actual, f"up to {most:.2g}", why)
            return


def _peak_flops_per_s(accelerator: str) -> float:
    """The highest tensor rate of the data sheets in `config/system/` of an accelerator, known by
    a word of its name (A100, L40S, H100); 0: no such sheet."""
    words = set(_MODEL.findall(accelerator.upper()))
    rates = [0.0]
    for system in map(load_system, list_systems()):
        model = _MODEL.findall(system.accelerator)[:1]
        if system.performance and words.intersection(model):
            rates.append(system.performance.tensor_flops_per_s or 0.0)
    return max(rates)


SET_RULES = rules_on(FOLDER)


def _read_system(folder: Path) -> tuple[JsonObject | None, Path | None]:
    """The system description of ORG/results/SYSTEM/resnet, and where it belongs."""
    parents = folder.absolute().parents
    if len(parents) < 3 or parents[1].name != "results":
        return None, None
    systems = parents[2] / "systems"
    if folder.name != benchmark.BENCHMARK and not systems.is_dir():
        return None, None  # a run of this harness: results/NAME/TIME
    path = systems / f"{parents[0].name}.json"
    try:
        content = json.loads(
            read_file(
                path,
                _SYSTEM_BYTES,
                within=parents[2],
            )
        )
    except (OSError, ValueError, RecursionError):
        content = None
    return content if isinstance(content, dict) else None, path
