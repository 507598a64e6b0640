"""A folder of runs as a submission: every log by itself, then what they must have in common."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..config import benchmark
from ..config.load import load_system
from ..config.names import list_systems
from ..host.finding import ERROR, NOTE, POLICY, SEVERITIES, Finding, number, shown
from ..host.reading import Ambiguous, JsonObject, parse_json, read_file
from ..logging.places import is_one_run, no_logs, results_in
from ..logging.records import PASS, POLICY_VERDICT, is_valid
from .check_log import Check, check_log, own_target, verdict_of
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
_COUNTED = ("number_of_nodes", "accelerators_per_node", "host_processors_per_node")
_IS_COUNT = re.compile(r"[0-9]{1,9}")
# a platform such as "4xNAME", with the quotes that `shown` gives it
_COUNT = re.compile(r'"(\d{1,9})x')
# A100, L40S, H100
_MODEL = re.compile(r"[A-Z]+\d+[A-Z]*")


class Machine(NamedTuple):
    """What all nodes have; without accelerators the processors compute."""

    nodes: int
    accelerators: int
    processors: int


@dataclass(frozen=True)
class Submission:
    """Runs of one benchmark on one system."""

    folder: Path
    checks: tuple[Check, ...]
    system: JsonObject | None
    system_path: Path | None
    """The path at which a system description belongs; None: the folder lies in no package."""
    is_run: bool
    """One run of this harness."""
    system_fault: str = ""
    """Why there is no description, in words."""

    @property
    def runs(self) -> list[tuple[str, LoggedRun]]:
        """(file name, run) of the logs that can be read."""
        return [(c.path.name, c.run) for c in self.checks if c.run]

    @cached_property
    def alike(self) -> list[Alike]:
        """The pairs of its logs that are of one run."""
        return [*find_alike(traces_of(self.checks))]

    @property
    def closed(self) -> bool:
        """Any log that says closed makes it a closed submission."""
        return any(run.division != "open" for _, run in self.runs)

    @property
    def machine(self) -> Machine | None:
        """What the description counts; None where it cannot be read."""
        nodes, accelerators, processors = (
            _count(self.described(key)) for key in _COUNTED
        )
        if not nodes or not processors or accelerators is None:
            return None
        return Machine(nodes, nodes * accelerators, nodes * processors)

    def described(self, key: str) -> Any:
        """A field of the system description; None where there is none."""
        return (self.system or {}).get(key)


def judge_path(
    path: Path, ruleset: str | None = None, *, official: bool | None = None
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
        check_log(file, ruleset, official=official, target=target) for file in files
    )
    system, system_path, system_fault = _read_system(path)
    submission = Submission(
        path, checks, system, system_path, is_one_run(path), system_fault
    )
    findings = find_in(submission, FOLDER)
    verdict, cause = _conclusion(submission, findings)
    of_round = next(check for check in checks if check.ruleset == newest(checks))
    return (
        *checks,
        Check(
            path,
            verdict,
            cause,
            of_round.ruleset,
            of_round.ruleset_source,
            findings=findings,
            kind=FOLDER,
            is_miss=submission.is_run
            and cause == checks[0].cause
            and checks[0].is_miss,
        ),
    )


def as_one(checks: Sequence[Check]) -> Check:
    """The judgement on a run's log and folder as one."""
    log = checks[0]
    folder_check = checks[-1]
    if folder_check is log:
        return log
    serious = (finding for finding in folder_check.findings if finding.severity != NOTE)
    return log._replace(
        verdict=folder_check.verdict,
        cause=folder_check.cause,
        findings=(*serious, *log.findings),
        is_miss=folder_check.is_miss,
    )


def find_in(subject: object, kind: str) -> tuple[Finding, ...]:
    """What breaks the rules on folders or on rounds, worst first."""
    findings = [
        registered.finding(broken)
        for registered in rules_on(kind)
        for broken in registered.check(subject)
    ]
    return tuple(sorted(findings, key=lambda broken: SEVERITIES.index(broken.severity)))


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
    with_policy = [check for check in checks if check.verdict == POLICY_VERDICT]
    if not with_policy:
        return PASS, cause
    return POLICY_VERDICT, f"{cause}, with policy findings ({_causes(with_policy)})"


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
    allowed = benchmark.RUNS_THAT_MAY_FAIL if count >= benchmark.RUNS else 0
    if failed:
        names = ", ".join(check.path.name for check in failed)
        yield against(
            f"{len(failed)} of {count} runs",
            f"are not valid ({names})",
            f"at most {allowed}",
            _causes(failed),
            severity=only_if(len(failed) <= allowed, NOTE),
        )


def invalid(checks: Sequence[Check]) -> list[Check]:
    """The logs that are no valid run."""
    return [check for check in checks if not is_valid(check.verdict)]


def _causes(checks: Sequence[Check]) -> str:
    """Why logs have their verdicts: each kind of cause with its count, the most frequent first, in
    the words of the first log that has it."""
    kinds: dict[str, list[Check]] = {}
    for check in checks:
        kinds.setdefault(check.cause_name, []).append(check)
    return "; ".join(
        f"{len(alike)} x {name} ({alike[0].path.name}: {alike[0].cause})"
        for name, alike in sorted(kinds.items(), key=lambda kind: -len(kind[1]))
    )


def _together(
    submission: Submission, same: Callable[[LoggedRun, LoggedRun], bool], what: str
) -> Violations:
    """The first pair of runs of which something is the same, but for those of one run."""
    copies = {(pair.first.name, pair.second.name) for pair in submission.alike}
    # pairs grow with the square: 20 logs have 190
    for (name, run), (twin, twin_run) in combinations(submission.runs[:_MOST_RUNS], 2):
        if (name, twin) not in copies and same(run, twin_run):
            yield against(f"{name} and {twin}", what, "two runs", _ANEW)
            return


class HasCopies(Protocol):
    """A folder or a round."""

    @property
    def folder(self) -> Path:
        """The folder in which all of its logs lie."""

    @property
    def alike(self) -> list[Alike]:
        """The pairs of its logs that are of one run."""


def _copies(subject: HasCopies, *, by_clock: bool) -> Violations:
    """Each pair of logs of one run, once: by their clocks or by their accuracies alone."""
    pairs = [pair for pair in subject.alike if pair.by_clock == by_clock]
    for pair in pairs[:_MOST_PAIRS]:
        logs = (pair.first, pair.second)
        yield against(
            " and ".join(os.path.relpath(log, subject.folder) for log in logs),
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
    return _copies(subject, by_clock=True)


@copy_rule(
    "MLP903", "copied-accuracies", ERROR, f"{RULES_TEXT} lines 166-183, 509, 954"
)
def _same_accuracies(subject: HasCopies) -> Violations:
    """No two logs are of one run by their accuracies: three or more and a third of those of the
    shorter one are in the other too, or three quarters of them (five or more) lie within ten
    images. Of 193,715 pairs of published logs of one round none did but 21 that shared all. With
    another evaluation set than ImageNet's, five of six are the same (three or more)."""
    return _copies(subject, by_clock=False)


@folder_rule("MLP911", "shared-moments", POLICY, f"{RULES_TEXT} lines 220, 509, 954")
def _own_moments(submission: Submission) -> Violations:
    """No two runs take equally long to the millisecond; runs after one another do not share the
    stamp of one cache_clear; three or more runs do not all end with one accuracy."""

    yield from _together(submission, _as_long, "take equally long, to the millisecond")
    yield from _together(
        submission, _share_a_clearing, "share one cache_clear and do not overlap"
    )
    runs = submission.runs
    ends = {run.target and run.target.accuracy for _, run in runs}
    if len(runs) >= _FEWEST and len(ends) == 1 and None not in ends:
        yield against(f"all {len(runs)} runs", "end with one accuracy", "several")


def _as_long(run: LoggedRun, twin: LoggedRun) -> bool:
    if max(run.coarse_ms, twin.coarse_ms) >= COARSE_MS:
        return False
    return 0 < round(run.run_ms or 0) == round(twin.run_ms or 0)


def _share_a_clearing(run: LoggedRun, twin: LoggedRun) -> bool:
    stamps = {event.time_ms for event in run.all("cache_clear") if event.time_ms}
    shared = any(event.time_ms in stamps for event in twin.all("cache_clear"))
    return shared and not _overlap(run, twin)


def _overlap(run: LoggedRun, twin: LoggedRun) -> bool:
    """Whether two runs train at one time; true where one has no clock."""
    starts = [logged.start.time_ms for logged in (run, twin) if logged.start]
    stops = [logged.stop.time_ms for logged in (run, twin) if logged.stop]
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
    if not verdict or verdict.passed:
        return
    too_many = len(invalid(submission.checks)) > benchmark.RUNS_THAT_MAY_FAIL
    if verdict.mean is not None or not too_many:  # five-runs says it
        yield against(
            "RCP test:",
            verdict.reason,
            "a reference convergence point, and not fewer epochs than it",
            advice="supply a reference with at least 10 runs",
        )


@folder_rule("MLP905", "mixed-rounds", POLICY, f"{RULES_TEXT} line 62")
def _one_round(submission: Submission) -> Violations:
    """All logs are of one round; the rules of the newest apply to the set."""
    # reversed: the first log of each round gives its name
    rounds = {run.ruleset: name for name, run in reversed(submission.runs)}
    if len(rounds) > 1:
        named_rounds = [
            f"{name} is of {ruleset}" for ruleset, name in sorted(rounds.items())
        ]
        yield against(
            "logs of several rounds:",
            " and ".join(named_rounds),
            "one round",
            f"the set is held to {newest(submission.checks)}",
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
    name_of_seed: dict[tuple[object, ...], str] = {}
    for name, run in runs:
        for event in run.all("seed"):
            source = [shown(event.metadata.get(key)) for key in ("file", "lineno")]
            value = _integer(event.value)
            seed = (*source, value)
            subject = f"{name} line {event.line}: seed"
            actual = f"is {shown(event.value)}"
            line = event.line
            if value is None:
                yield against(subject, actual, "an integer", line=line)
            elif seed in name_of_seed:
                actual += f", as in {name_of_seed[seed]}"
                yield against(
                    subject,
                    actual,
                    "a fresh one each",
                    line=line,
                    advice="draw it from the clock or from urandom",
                )
            name_of_seed[seed] = name
    without = ", ".join(name for name, run in runs if not run.all("seed"))
    if without:
        yield against(
            "no seed in",
            without,
            "the root seed under the key seed in every log",
            "the official package checker fails it, unless it is told to bypass seeds",
            severity=POLICY,
        )


def _integer(value: Any) -> int | None:
    """The integer that the official checker makes of a value, a text too; None: it has none."""
    try:
        integer = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    # of 7.5 `int` makes 7; of a text it takes whole numbers alone
    return integer if isinstance(value, str) or integer == value else None


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
            different_values = [
                f"{value} in {name}" for value, name in sorted(name_of.items())
            ]
            yield against(
                f"{key} is", " and ".join(different_values), "one value in all runs"
            )
    declared = submission.described("division")
    for name, run in submission.runs:
        division = run.value("submission_division")
        if declared not in (None, division):
            yield against(
                "submission_division",
                f"is {shown(division)} in {name}",
                f"{shown(declared)} as in the system description",
            )
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
        yield against("system description:", actual, where, severity=NOTE)
    elif system is None:
        yield against(
            "system description:",
            submission.system_fault,
            "a JSON object",
            severity=only_if(not checked, POLICY),
        )
    elif checked:
        absent = [field for field in benchmark.SYSTEM_FIELDS if field not in system]
        if absent:
            yield against(
                path.name, f"has no {', '.join(absent[:5])}", "every field of a system"
            )
        for field in benchmark.SYSTEM_TEXTS:
            if not isinstance(system.get(field, ""), str):
                yield against(
                    f"{path.name}: {field}", f"is {shown(system[field])}", "a text"
                )


@folder_rule(
    "MLP912",
    "system-counts",
    POLICY,
    "none of 320 published descriptions from 1.0.0 on breaks it",
)
def _counted(submission: Submission) -> Violations:
    """From 1.0.0 on, number_of_nodes and host_processors_per_node of the system description are
    integers above 0, accelerators_per_node one from 0 on: the rules that count by them hold."""
    if submission.system is None or submission.machine:
        return
    if benchmark.at_least(newest(submission.checks), "1.0.0"):
        values = [f"{key} {shown(submission.described(key))}" for key in _COUNTED]
        yield against(
            "system description:",
            ", ".join(values),
            "integers, nodes and processors above 0",
        )


@folder_rule("MLP913", "system-status", ERROR, f"{_PACKAGE}, system_desc_checker")
def _available(submission: Submission) -> Violations:
    """From 4.0.0 on, the status of the system description is one of four texts, spelled so. (The
    checker of that round did not look: 26 of its 36 descriptions have another.)"""
    status = submission.described("status")
    allowed = benchmark.AVAILABILITY.values()
    if submission.system is None or status in (*allowed, None):
        return
    if benchmark.at_least(newest(submission.checks), "4.0.0"):
        yield against(
            "system description: status",
            f"is {shown(status)}",
            " or ".join(map(shown, allowed)),
        )


@folder_rule("MLP914", "incomplete-power", ERROR, f"{_PACKAGE}, power_checker")
def _power(submission: Submission) -> Violations:
    """A folder `power` has a folder for each log, with node_0, node_1, ... and sw_0, ..., as many
    in each. (One log that breaks this, or is no valid run, is allowed.)"""
    folder = submission.folder / "power"
    if not folder.is_dir():
        return
    measured = {
        check.path.name: _power_files(folder / check.path.stem)
        for check in submission.checks
    }
    # most logs are right: what they have is expected of the others
    ((usual, _),) = Counter(measured.values()).most_common(1)
    bad = [name for name, files in measured.items() if files is None or files != usual]
    failed = {check.path.name for check in invalid(submission.checks)}.union(bad)
    if bad:
        yield against(
            "power:",
            f"{', '.join(bad)} without as many files as the others",
            "a folder for each log, with node_0, node_1, ... and sw_0, ...",
            severity=only_if(len(failed) <= benchmark.RUNS_THAT_MAY_FAIL, NOTE),
        )


def _power_files(folder: Path) -> tuple[int, int] | None:
    """How many nodes and switches a run's power is measured of; None: there is no such folder, or
    their numbers are not 0, 1, ..."""
    try:
        names = [path.stem for path in folder.iterdir()]
    except OSError:
        return None
    counts = []
    for kind in ("node", "sw"):
        ends = [name.rpartition("_")[2] for name in names if name.startswith(kind)]
        if not all(map(_IS_COUNT.fullmatch, ends)):
            return None
        if sorted(map(int, ends)) != list(range(len(ends))):
            return None
        counts.append(len(ends))
    return counts[0], counts[1]


@folder_rule("MLP910", "another-system", POLICY, f"{RULES_TEXT} line 62")
def _as_described(submission: Submission) -> Violations:
    """The logs are of the system that is described: each accelerator has whole images of the batch,
    and a platform such as 4xNAME counts its nodes or its accelerators (and names no others: a
    note)."""
    machine = submission.machine
    if not machine:
        return
    nodes = machine.nodes
    accelerators = machine.accelerators or nodes
    models = _models(shown(submission.described("accelerator_model_name")))
    for name, run in submission.runs:
        if run.batch is not None and run.batch % accelerators:
            yield against(
                f"{name}:",
                f"{run.batch:g} images on {accelerators} accelerators",
                "as many on each",
            )
            return
        platform = shown(run.value("submission_platform"))
        subject = f"{name}: submission_platform"
        count = _COUNT.match(platform)
        if count and int(count[1]) not in (nodes, accelerators):
            yield against(
                subject,
                f"is {count[1]}x...",
                f"{nodes} nodes or {accelerators} accelerators, as described",
            )
            return
        named = _models(platform)
        if named and models and named.isdisjoint(models):
            yield against(
                subject, f"is {platform}", " or ".join(sorted(models)), severity=NOTE
            )
            return


@folder_rule(
    "MLP909",
    "impossible-accelerator-rate",
    POLICY,
    "data sheets of config/system/*.yaml; 24.6 GFLOP an image; config/benchmark.py",
)
def _possible_on_accelerators(submission: Submission) -> Violations:
    """The system that is described can have trained so fast: at most at the peak of its data
    sheets' tensor cores; without a sheet at ten times the fastest published accelerator or
    processor."""
    machine = submission.machine
    if not machine:
        return
    kind = "accelerator" if machine.accelerators else "processor"
    chips = machine.accelerators or machine.processors
    key = (
        "accelerator_model_name"
        if machine.accelerators
        else "host_processor_model_name"
    )
    name = shown(submission.described(key))
    highest_rate = chips * float(benchmark.IMPOSSIBLE_IMAGES_PER_S_OF[kind])
    why = "ten times the fastest published"
    if flops_per_s := _peak_flops_per_s(name):
        highest_rate = chips * flops_per_s / benchmark.TRAINING_FLOPS_PER_IMAGE
        why = "the peak of the data sheet"
    for file, run in submission.runs:
        samples = run.value("train_samples")
        epochs = run.convergence_epoch
        if not epochs or not run.run_ms or samples != benchmark.IMAGENET_TRAIN_SAMPLES:
            continue
        rate = epochs * samples / (run.run_ms / 1000)
        if rate > highest_rate:
            yield against(
                f"{file}:",
                f"{rate:.2g} images/s with {chips} x {name}",
                f"up to {highest_rate:.2g}",
                why,
            )
            return


def _peak_flops_per_s(accelerator: str) -> float:
    """The highest tensor rate of the data sheets of an accelerator; 0: no such sheet."""
    return max((_sheets()[model] for model in _models(accelerator)), default=0.0)


def _models(name: str) -> set[str]:
    """The words of a name that are accelerators with a data sheet: A100, L40S, H100."""
    return _sheets().keys() & _MODEL.findall(name.upper())


@cache
def _sheets() -> dict[str, float]:
    """The tensor rates of the data sheets in `config/system/`, the highest of an accelerator."""
    rates: dict[str, float] = {}
    for system in map(load_system, list_systems()):
        performance = system.performance
        for model in _MODEL.findall(system.accelerator)[:1]:
            rate = (performance and performance.tensor_flops_per_s) or 0.0
            rates[model] = max(rate, rates.get(model, 0.0))
    return rates


def _count(value: Any) -> int | None:
    """A count, as text or number; None: it is none."""
    if isinstance(value, str) and _IS_COUNT.fullmatch(value):
        return int(value)
    count = number(value)
    fits = count is not None and count.is_integer() and 0 <= count < 1e9
    return int(value) if fits else None


def _read_system(folder: Path) -> tuple[JsonObject | None, Path | None, str]:
    """The system description of ORG/results/SYSTEM/resnet, where it belongs, and why there is none
    that can be read."""
    # of ORG/results/SYSTEM/resnet: SYSTEM, results and ORG
    parents = folder.absolute().parents
    if len(parents) < 3 or parents[1].name != "results":
        return None, None, ""
    systems = parents[2] / "systems"
    if folder.name != benchmark.BENCHMARK and not systems.is_dir():
        return None, None, ""  # a run of this harness: results/NAME/TIME
    path = systems / f"{parents[0].name}.json"
    fault = f"no {path.name} in {path.parent}"
    try:
        content = parse_json(read_file(path, _SYSTEM_BYTES, within=parents[2]))
        if isinstance(content, dict):
            return content, path, ""
        fault = f"no JSON object in {path}"
    except Ambiguous as error:
        fault = f"{path} has {error}"
    except (ValueError, RecursionError):
        fault = f"no JSON in {path}"
    except OSError:
        pass
    return None, path, fault
