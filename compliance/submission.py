"""A folder of runs as a submission: every log by itself, then what they must have in common."""

from __future__ import annotations

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
from .rule import FOLDER, RULES_TEXT, Violations, against, only_if, rule, rules_on
from .run_scores import judge_convergence, newest

folder_rule = partial(rule, judges=FOLDER)
_SYSTEM_BYTES = 1 << 20
_PACKAGE = "mlcommons/logging 4.1.68, package_checker"
_MOST_RUNS = 20
_FEWEST = 3
"""Equal evaluations that are no chance."""
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
        system = self.system or {}
        counts = [
            str(system.get(key)) for key in ("number_of_nodes", "accelerators_per_node")
        ]
        if not all(
            count.isascii() and count.isdigit() and len(count) < 10 for count in counts
        ):
            return 0, 0
        return int(counts[0]), int(counts[0]) * max(1, int(counts[1]))


def check_folder(
    folder: Path, ruleset: str | None = None, *, official: bool | None = None
) -> tuple[Check, ...]:
    """Every result file of a folder, and last the folder itself as a submission. Raises UserError:
    there is none."""
    files = results_in(folder)
    if not files:
        raise no_logs(folder)
    checks = tuple(check_log(path, ruleset, official=official) for path in files)
    system, system_path = _read_system(folder)
    submission = Submission(folder, checks, system, system_path)
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
    return (folder / "result.json").is_file() or (
        job is not None and bool(run_folders(job))
    )


def _together(
    submission: Submission, same: Callable[[LoggedRun, LoggedRun], bool], what: str
) -> Violations:
    """The first pair of runs of which something is the same."""
    for (name, one), (other, two) in combinations(submission.runs[:_MOST_RUNS], 2):
        if same(one, two):
            why = "every run of a submission is trained anew, with a seed of its own"
            yield against(f"{name} and {other}", what, "two runs", why)
            return


@folder_rule("MLP902", "copied-run", ERROR, f"{RULES_TEXT} lines 509, 954: five runs")
def _same_stamps(submission: Submission) -> Violations:
    """No two logs have the same stamps, nor stamps that are the same after a shift: three or more
    evaluations, not all stamped in a unit of 10 ms or more."""

    def intervals_ms(run: LoggedRun) -> list[int]:
        if run.coarse_ms >= _COARSE_MS:
            return []
        stamps = [one.time_ms for one in run.timed_evaluations if one.time_ms > 0]
        return [round(stamp - stamps[0]) for stamp in stamps]

    def same(run: LoggedRun, other: LoggedRun) -> bool:
        return len(intervals_ms(run)) >= _FEWEST and intervals_ms(run) == intervals_ms(
            other
        )

    yield from _together(
        submission, same, "are one run: their evaluations are equally far apart"
    )


@folder_rule(
    "MLP903", "copied-accuracies", ERROR, f"{RULES_TEXT} lines 166-183, 509, 954"
)
def _same_accuracies(submission: Submission) -> Violations:
    """No two logs have the same accuracies at all evaluations that both have, three or more."""

    def same(run: LoggedRun, other: LoggedRun) -> bool:
        pairs = list(zip(run.timed_evaluations, other.timed_evaluations, strict=False))
        distinct = {mine.accuracy for mine, _ in pairs}
        return len(distinct) >= _FEWEST and all(
            a.accuracy == b.accuracy for a, b in pairs
        )

    yield from _together(
        submission, same, "are one run: all their accuracies are the same"
    )


@folder_rule("MLP911", "shared-moments", POLICY, f"{RULES_TEXT} lines 220, 509, 954")
def _own_moments(submission: Submission) -> Violations:
    """No two runs take equally long to the millisecond; runs after one another do not share the
    stamp of one cache_clear; three or more runs do not all end with one accuracy."""

    def as_long(run: LoggedRun, other: LoggedRun) -> bool:
        coarse = max(run.coarse_ms, other.coarse_ms) >= _COARSE_MS
        lengths = {round(each.run_ms or 0) for each in (run, other)}
        return len(lengths) == 1 and min(lengths) > 0 and not coarse

    def one_clearing(run: LoggedRun, other: LoggedRun) -> bool:
        shared = _clearings(run) & _clearings(other)
        return bool(shared) and not _overlap(run, other)

    yield from _together(submission, as_long, "take equally long, to the millisecond")
    yield from _together(
        submission, one_clearing, "share one cache_clear and do not overlap"
    )
    ends = {run.target and run.target.accuracy for _, run in submission.runs}
    if len(submission.runs) >= _FEWEST and len(ends) == 1 and None not in ends:
        yield against(
            f"all {len(submission.runs)} runs", "end with one accuracy", "several"
        )


def _clearings(run: LoggedRun) -> set[float]:
    return {event.time_ms for event in run.all("cache_clear") if event.time_ms}


def _overlap(run: LoggedRun, other: LoggedRun) -> bool:
    """Whether two runs train at one time; true where one has no clock."""
    if (
        run.start is None
        or run.stop is None
        or other.start is None
        or other.stop is None
    ):
        return True
    begin_ms = max(run.start.time_ms, other.start.time_ms)
    return begin_ms < min(run.stop.time_ms, other.stop.time_ms)


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
        yield against("RCP test:", verdict.reason, expected, advice=advice)


@folder_rule("MLP905", "mixed-rounds", POLICY, f"{RULES_TEXT} line 62")
def _one_round(submission: Submission) -> Violations:
    """All logs are of one round; the rules of the newest apply to the set."""
    rounds = {run.ruleset: name for name, run in reversed(submission.runs)}
    if len(rounds) > 1:
        found = " and ".join(
            f"{name} is of {ruleset}" for ruleset, name in sorted(rounds.items())
        )
        why = f"the set is held to {newest(submission.checks)}"
        yield against("logs of several rounds:", found, "one round", why)


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
    taken: dict[tuple[str, str, str], str] = {}
    for name, run in runs:
        for event in run.all("seed"):
            seed = str(event.value)
            metadata = event.metadata  # the checker takes "1" for 1
            place = (shown(metadata.get("file")), shown(metadata.get("lineno")), seed)
            subject = f"{name} line {event.line}: seed"
            found = f"is {shown(event.value)}"
            if not _is_integer(event.value):
                yield against(subject, found, "an integer", line=event.line)
            elif place in taken:
                found += f", as in {taken[place]}"
                advice = "draw it from the clock or from urandom"
                yield against(
                    subject, found, "a fresh one each", line=event.line, advice=advice
                )
            taken[place] = name
    without = ", ".join(name for name, run in runs if not run.all("seed"))
    if without:
        expected = "the root seed under the key seed in every log"
        why = "the official package checker fails it, unless it is told to bypass seeds"
        yield against("no seed in", without, expected, why, severity=POLICY)


def _is_integer(value: Any) -> bool:
    try:
        return int(value) == value or not isinstance(value, float)
    except (TypeError, ValueError, OverflowError):
        return False


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
    for key in dict.fromkeys(_SAME_IN_ALL):
        logged = [
            (shown(run.value(key)), name)
            for name, run in submission.runs
            if run.all(key)
        ]
        name_of = dict(reversed(logged))
        if len(name_of) > 1:
            values = " and ".join(
                f"{value} in {name}" for value, name in sorted(name_of.items())
            )
            yield against(f"{key} is", values, "one value in all runs")
    declared = (submission.system or {}).get("division")
    for name, run in submission.runs:
        logged_division = run.value("submission_division")
        if declared not in (None, logged_division):
            found_here = f"is {shown(logged_division)} in {name}"
            expected = f"{shown(declared)} as in the system description"
            yield against("submission_division", found_here, expected)
            return


@folder_rule("MLP908", "system-description", ERROR, f"{_PACKAGE}, system_desc_checker")
def _system(submission: Submission) -> Violations:
    """The system description is there (before 1.0.0 policy) and, from then on, has every field."""
    path = submission.system_path
    checked = benchmark.at_least(newest(submission.checks), "1.0.0")
    absent = [
        field
        for field in benchmark.SYSTEM_FIELDS
        if field not in (submission.system or {})
    ]
    if path is None:
        where = "ORG/systems/SYSTEM.json beside ORG/results/SYSTEM/resnet"
        yield against(
            "system description:", "the folder lies in no package", where, severity=NOTE
        )
    elif submission.system is None:
        found = f"no {path.name} in {path.parent}"
        severity = only_if(not checked, POLICY)
        yield against("system description:", found, "a JSON object", severity=severity)
    elif checked and absent:
        yield against(
            path.name, f"has no {', '.join(absent[:5])}", "every field of a system"
        )


@folder_rule("MLP910", "another-system", POLICY, f"{RULES_TEXT} line 62")
def _as_described(submission: Submission) -> Violations:
    """The logs are of the system that is described: each accelerator has whole images of the batch,
    and a platform such as 4xNAME counts its nodes or its accelerators."""
    counts = submission.machine
    if not all(counts):
        return
    for name, run in submission.runs:
        if run.batch is not None and run.batch % counts[1]:
            found = f"{run.batch:g} images on {counts[1]} accelerators"
            yield against(f"{name}:", found, "as many on each")
            return
        platform = _COUNT.match(shown(run.value("submission_platform")))
        if platform is not None and int(platform[1]) not in counts:
            found = f"is {platform[1]}x..."
            expected = f"{counts[0]} nodes or {counts[1]} accelerators, as described"
            yield against(f"{name}: submission_platform", found, expected)
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
    chips = submission.machine[1]
    name = shown((submission.system or {}).get("accelerator_model_name", ""))
    flops_per_s = chips and _peak_flops_per_s(name)
    if not flops_per_s:
        return
    for file, run in submission.runs:
        samples = run.value("train_samples")
        epochs = run.convergence_epoch
        if not epochs or not run.run_ms or samples != benchmark.IMAGENET_TRAIN_SAMPLES:
            continue
        rate = epochs * samples / (run.run_ms / 1000)
        most = chips * flops_per_s / benchmark.TRAINING_FLOPS_PER_IMAGE
        if rate > most:
            found = f"{rate:.2g} images/s with {chips} x {name}"
            yield against(
                f"{file}:", found, f"up to {most:.2g}", "the peak of the data sheet"
            )
            return


def _peak_flops_per_s(accelerator: str) -> float:
    """The highest tensor rate of the data sheets in `config/system/` of an accelerator, known by
    a word of its name (A100, L40S, H100); 0: no such sheet."""
    words = set(_MODEL.findall(accelerator.upper()))
    systems = map(load_system, list_systems())
    named = (
        one
        for one in systems
        if words.intersection(_MODEL.findall(one.accelerator)[:1])
    )
    rates = (one.performance.tensor_flops_per_s for one in named if one.performance)
    return max(filter(None, rates), default=0.0)


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
        content = json.loads(read_file(path, _SYSTEM_BYTES, within=parents[2]))
    except (OSError, ValueError, RecursionError):
        return None, path
    if not isinstance(content, dict):
        return None, path
    return content, path
