"""A folder of runs as a submission: every log by itself, then what they must have in common."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

from ..config import benchmark
from ..config.finding import ERROR, NOTE, POLICY, SEVERITIES, Finding, shown
from ..config.load import load_system
from ..config.names import list_systems
from ..config.reading import JsonObject, read_file
from ..logging.places import is_one_run, no_logs, results_in
from .check_log import (
    PASS,
    POLICY_VERDICT,
    Check,
    check_log,
    is_valid,
    own_target,
    verdict_of,
)
from .likeness import COARSE_MS, Alike, find_alike, traces_of
from .logged_run import LABEL_SMOOTHING_KEYS, LoggedRun
from .rule import (
    FOLDER,
    ROUND,
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
_MOST_PAIRS = 100
_FEWEST = 3
_ANEW = "every run of a submission is trained anew, with a seed of its own"
_COUNTED = ("number_of_nodes", "accelerators_per_node")
_IS_COUNT = re.compile(r"[0-9]{1,9}")
_COUNT = re.compile(r'"(\d{1,9})x')
_MODEL = re.compile(r"[A-Z]+\d+[A-Z]*")


@dataclass(frozen=True)
class Submission:
    """Runs of one benchmark on one system."""

    folder: Path
    checks: tuple[Check, ...]
    system: JsonObject | None
    system_path: Path | None
    """Where a system description belongs, if the folder lies in a submission package."""
    is_run: bool
    """One run of this harness."""

    @property
    def runs(self) -> list[tuple[str, LoggedRun]]:
        """(file name, run) of the logs that can be read."""
        return [(c.path.name, c.run) for c in self.checks if c.run is not None]

    @cached_property
    def alike(self) -> list[Alike]:
        """The pairs of its logs that are of one run."""
        return [*find_alike(traces_of(self.checks))]

    def name_of(self, log: Path) -> str:
        """The name of a log in it."""
        return log.name

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


def judge_path(
    path: Path,
    ruleset: str | None = None,
    *,
    official: bool | None = None,
) -> tuple[Check, ...]:
    """The judgement on a path, the same for every command: on each of its logs and, of a folder,
    last on the run or the submission in it. Raises UserError: a folder without logs (NoLogs), or a
    ruleset without ResNet."""
    if not path.is_dir():
        return (check_log(path, ruleset, official=official),)
    files = results_in(path)
    if not files:
        raise no_logs(path)
    target = own_target(path)
    checks = tuple(
        check_log(
            file,
            ruleset,
            official=official,
            target=target,
        )
        for file in files
    )
    system, system_path = _read_system(path)
    submission = Submission(
        path,
        checks,
        system,
        system_path,
        is_one_run(path),
    )
    findings = find_in(submission, FOLDER)
    verdict, cause = _conclusion(submission, findings)
    of_round = next(check for check in checks if check.ruleset == newest(checks))
    return (
        *checks,
        Check(
            path=path,
            verdict=verdict,
            cause=cause,
            ruleset=of_round.ruleset,
            ruleset_source=of_round.ruleset_source,
            official=None,
            findings=findings,
            kind=FOLDER,
        ),
    )


def as_one(checks: Sequence[Check]) -> Check:
    """The judgement on a run's log and folder as one."""
    log = checks[0]
    whole = checks[-1]
    if whole is log:
        return log
    serious = (finding for finding in whole.findings if finding.severity != NOTE)
    return log._replace(
        verdict=whole.verdict,
        cause=whole.cause,
        findings=(*serious, *log.findings),
    )


def find_in(subject: object, kind: str) -> tuple[Finding, ...]:
    """What breaks the rules on folders or on rounds, worst first."""
    findings = [
        each.finding(broken)
        for each in rules_on(kind)
        for broken in each.check(subject)
    ]
    return tuple(sorted(findings, key=lambda each: SEVERITIES.index(each.severity)))


def _conclusion(
    submission: Submission, findings: tuple[Finding, ...]
) -> tuple[str, str]:
    """Verdict and cause: those of its log where a folder holds one run of ours."""
    checks = submission.checks
    verdict = verdict_of(findings)
    first = checks[0]
    if submission.is_run and (verdict == PASS or not is_valid(first.verdict)):
        return first.verdict, first.cause
    if verdict != PASS:
        return verdict, findings[0].message
    good = sum(is_valid(check.verdict) for check in checks)
    cause = f"{good} of {len(checks)} runs pass"
    odd = next((check for check in checks if check.verdict == POLICY_VERDICT), None)
    if odd is None:
        return PASS, cause
    why = f"{cause}, with policy findings ({odd.path.name}: {odd.cause})"
    return POLICY_VERDICT, why


@folder_rule("MLP901", "five-runs", ERROR, f"{RULES_TEXT} lines 509, 954; {_PACKAGE}")
def _five_runs(submission: Submission) -> Violations:
    """Five result_*.txt, of which at most one is no valid run."""
    count = len(submission.checks)
    if count != benchmark.RUNS:
        yield against(
            "runs of the submission:",
            str(count),
            str(benchmark.RUNS),
            advice="rn50 submit --runs 5",
            severity=only_if(submission.is_run, NOTE),
        )
    failed = invalid(submission.checks)
    if submission.is_run:
        return  # whose log has the verdict
    allowed = benchmark.RUNS_THAT_MAY_FAIL * (count >= benchmark.RUNS)
    if failed:
        names = ", ".join(check.path.name for check in failed)
        yield against(
            f"{len(failed)} of {count} runs",
            f"are not valid ({names})",
            f"at most {allowed}",
            _usual_cause(failed),
            severity=only_if(len(failed) <= allowed, NOTE),
        )


def _usual_cause(failed: Sequence[Check]) -> str:
    """The cause of the first log that fails by what most of them fail by."""
    names = [check.findings[0].name for check in failed]
    usual = max(names, key=names.count)
    return failed[names.index(usual)].cause


def invalid(checks: Sequence[Check]) -> list[Check]:
    """The logs that are no valid run."""
    return [check for check in checks if not is_valid(check.verdict)]


def _together(
    submission: Submission,
    same: Callable[[LoggedRun, LoggedRun], bool],
    what: str,
) -> Violations:
    """The first pair of runs of which something is the same, but for those of one run."""
    copies = {(pair.first.name, pair.second.name) for pair in submission.alike}
    for (name, run), (twin, other) in combinations(submission.runs[:_MOST_RUNS], 2):
        if (name, twin) not in copies and same(run, other):
            yield against(f"{name} and {twin}", what, "two runs", _ANEW)
            return


class HasCopies(Protocol):
    """A folder or a round."""

    @property
    def alike(self) -> list[Alike]:
        """The pairs of its logs that are of one run."""

    def name_of(self, log: Path, /) -> str: ...


def _copies(subject: HasCopies, *, by_clock: bool) -> Violations:
    """Each pair of logs of one run, once: by their clocks or by their accuracies alone."""
    pairs = [pair for pair in subject.alike if pair.by_clock == by_clock]
    for pair in pairs[:_MOST_PAIRS]:
        names = map(subject.name_of, (pair.first, pair.second))
        yield against(
            " and ".join(names),
            f"are one run: {pair.what}",
            "two runs",
            _ANEW,
            severity=pair.severity,
        )
    if more := len(pairs[_MOST_PAIRS:]):
        yield against(f"{more} more pairs of logs", "are one run each", "two runs")


copy_rule = partial(rule, judges=f"{FOLDER}, {ROUND}")


@copy_rule("MLP902", "copied-run", ERROR, f"{RULES_TEXT} lines 509, 954: five runs")
def _same_stamps(subject: HasCopies) -> Violations:
    """No two logs are of one run by their clocks: the evaluations of two are not equally far apart,
    whatever the shift (two thirds of the stamps, three or more) or the scale of one clock (nine
    tenths of six or more); stamps that are all in a unit of 10 ms or more prove nothing. Between
    the entries of a round it is policy where nothing was edited: 20 published pairs are of systems
    that were submitted again with their power."""
    yield from _copies(subject, by_clock=True)


@copy_rule(
    "MLP903", "copied-accuracies", ERROR, f"{RULES_TEXT} lines 166-183, 509, 954"
)
def _same_accuracies(subject: HasCopies) -> Violations:
    """No two logs are of one run by their accuracies: three or more and a third of those of the
    shorter one are in the other too, or three quarters of them (five or more) lie within ten
    images. Of 193,715 pairs of published logs of one round none did but 21 that shared all. With
    another evaluation set than ImageNet's, five of six are the same (three or more)."""
    yield from _copies(subject, by_clock=False)


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
    if max(run.coarse_ms, other.coarse_ms) >= COARSE_MS:
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
    taken: dict[tuple[str, ...], str] = {}
    for name, run in runs:
        for event in run.all("seed"):
            source = [shown(event.metadata.get(key)) for key in ("file", "lineno")]
            # the checker takes "1" for 1
            seed = (*source, str(event.value))
            subject = f"{name} line {event.line}: seed"
            actual = f"is {shown(event.value)}"
            line = event.line
            if not _is_integer(event.value):
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


def _is_integer(value: Any) -> bool:
    try:
        return int(value) == value or not isinstance(value, float)
    except (TypeError, ValueError, OverflowError):
        return False


_SAME_IN_ALL = (
    "submission_division",
    "submission_org",
    "submission_platform",
    "submission_status",
    "global_batch_size",
    "gradient_accumulation_steps",
    "opt_name",
    "opt_base_learning_rate",
    "opt_learning_rate_decay_from",
    "opt_learning_rate_decay_shape",
    *benchmark.LARS_KEYS,
    *benchmark.SGD_KEYS,
    *LABEL_SMOOTHING_KEYS,
)


@folder_rule("MLP907", "different-hyperparameters", POLICY, f"{RULES_TEXT} line 62")
def _same_hyperparameters(submission: Submission) -> Violations:
    """All runs have one division, organisation, platform, status, batch, optimizer and
    hyper-parameters, and the division of the system description."""
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
