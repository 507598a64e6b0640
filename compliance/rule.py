"""A rule: a small function from what it judges to what breaks it, with its code and its source.

What is judged is a logged run, a config, both (a limit of the closed division, `limits.py`) or a
folder of runs. The decorator registers the rule; codes are in the order in which findings of one
severity are listed, so a rule whose findings explain others has the lower code.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..config import benchmark
from ..host.finding import ERROR, MISSING, NOTE, POLICY, Finding, shown
from ..logging.events import Event

CHECKER = "mlcommons/logging 4.1.68, compliance_checker"
RULES_TEXT = "training_rules.adoc"
NO_LOG = "none of 1,765 published logs breaks it"
"""A source: counted over the readable ResNet logs of v0.6 to v4.0, so that a rule may be strict."""

LOG = "log"
CONFIG = "config"
BOTH = "log, config"
FOLDER = "folder"
ROUND = "round"
"""What a rule judges; a round is several folders or logs."""

CLOSED_ERROR = (ERROR, None)
CLOSED_POLICY = (POLICY, NOTE)
CLOSED_ONLY = (ERROR, NOTE)
"""Severities in the closed and in the open division; None: not a rule there."""


violation = partial(Finding, id="", severity="", line=None, expected="", found="")
"""What a rule function yields; its code and name come from the rule, as the severity does where it
is empty."""


def against(
    subject: Event | str,
    actual: str,
    expected: str,
    why: str = "",
    *,
    line: int | None = None,
    actual_value: str = "",
    advice: str = "",
    severity: str = "",
) -> Finding:
    """That one thing was found and another expected: `SUBJECT ACTUAL, expected EXPECTED: WHY`.

    Args:
        subject: the record, or what the message begins with.
        actual: what is found; with the subject before it a sentence.
        expected: what is right.
        why: the reason, or a hint, at the end of the message.
        line: where it stands; None: the record's own line.
        actual_value: what is found, without a verb; empty: `actual`.
        advice: what to do.
        severity: where it is not the rule's.
    """
    name = subject
    if isinstance(subject, Event):
        name = subject.place
        line = line or subject.line
    message = f"{name} {actual}, expected {expected}"
    if why:
        message += f": {why}"
    return violation(
        message=message,
        expected=expected,
        found=actual_value or actual,
        line=line,
        advice=advice,
        severity=severity,
    )


Violations: TypeAlias = Iterator[Finding]
"""What a rule function gives."""


def only_if(condition: object, severity: str) -> str:
    """A severity of a violation that under a condition alone differs from the rule's."""
    return severity if condition else ""


class Setting(NamedTuple):
    """A value and its `subject`: `lars_epsilon (line 12)`, `optimizer.epsilon (quick.yaml:3)`."""

    subject: str
    value: Any
    line: int | None = None

    def violation(
        self, expected: str, why: str = "", *, advice: str = "", severity: str = ""
    ) -> Finding:
        """That another value was expected.

        Args:
            expected: what is right.
            why: the reason, or a hint, at the end of the message.
            advice: what to do.
            severity: where it is not the rule's.
        """
        value = shown(self.value)
        return against(
            self.subject,
            f"is {value}",
            expected,
            why,
            line=self.line,
            actual_value=value,
            advice=advice,
            severity=severity,
        )


class HasSettings(Protocol):
    """What rules ask a logged run and a config alike."""

    @property
    def ruleset(self) -> str:
        """The round whose rules hold."""

    @property
    def division(self) -> str | None:
        """The division, closed or open; None: it is not known."""

    @property
    def optimizer(self) -> str | None:
        """lars or sgd; None for any other."""

    @property
    def batch(self) -> float | None:
        """The global batch size."""

    def settings(self, name: str) -> Iterable[Setting]:
        """Every value of a hyper-parameter, in order."""

    def absent(self, key: str, /) -> bool:
        """Whether a record of this key is missing."""


LOST = "broken-record"
"""The rule of records that cannot be read: without a lost one others stand alone, counts are short.
"""
CLOCK = (
    "impossible-stamp",
    "zero-stamp",
    "two-runs",
    "several-clocks",
    "run-time-not-positive",
)
"""The rules on what is wrong with the clock. Each explains what is stamped by it, and each later
one of these."""


class Rule(NamedTuple):
    """A rule and what is known of it.

    `open_severity`: in the open division; None: not a rule there. `keys`: of the log records
    that it reads, beside `logged_run.READ_KEYS`. `exempt_if_synthetic`: not a rule on configs whose
    images are not ImageNet's. `follows_from`: names of the rules that explain its findings where
    they are broken too; the first counts. `why`, `example`: the reason for it, and what breaks it,
    of the rules with a section of their own in docs/rules.md."""

    code: str
    name: str
    severity: str
    open_severity: str | None
    source: str
    check: Callable[[Any], Violations]
    keys: tuple[str, ...] = ()
    judges: str = LOG
    rulesets: tuple[str, ...] = benchmark.RULESETS
    optimizer: str | None = None
    exempt_if_synthetic: bool = False
    follows_from: tuple[str, ...] = ()
    why: str = ""
    example: str = ""

    @property
    def description(self) -> str:
        """What it checks: the function's docstring."""
        return " ".join(str(self.check.__doc__).split())

    def applies(self, run: HasSettings) -> bool:
        """Whether it is a rule for this log."""
        return (
            run.ruleset in self.rulesets
            and (self.open_severity is not None or run.division != "open")
            and self.optimizer in (None, run.optimizer)
        )

    def findings(self, run: HasSettings) -> Iterator[Finding]:
        """What breaks this rule in a log to which it applies."""
        in_open = run.division == "open" and self.open_severity
        for broken in self.check(run):
            severity = broken.severity or in_open or self.severity
            # a note there stays one, even where the function makes its finding policy
            if in_open == NOTE and severity == POLICY:
                severity = NOTE
            yield self.finding(broken, severity)

    def finding(self, broken: Finding, severity: str | None = None) -> Finding:
        """What a rule function has yielded, whole; `severity` None: its own, else the rule's."""
        severity = severity or broken.severity or self.severity
        return broken._replace(id=self.code, name=self.name, severity=severity)


def missing(
    run: HasSettings,
    keys: Iterable[str],
    expected: str = "",
    advice: str = "",
    why: str = "",
) -> Violations:
    """That the log has no record of keys, in one violation; nothing where none is absent.

    Args:
        run: the run.
        keys: those that the log should have.
        expected: what is right; empty: the keys that are absent.
        advice: what to do.
        why: the end of the message.
    """
    names = ", ".join(filter(run.absent, keys))
    if names:
        yield violation(
            message=f"no {names} in the log{why}",
            expected=expected or names,
            found="none",
            advice=advice,
            about=MISSING,
        )


_REGISTERED: dict[tuple[str, str], Rule] = {}
"""Every rule by its code and what it judges."""


def rule(
    code: str,
    name: str,
    severity: str | tuple[str, str | None],
    source: str,
    **options: Any,
) -> Callable[[Callable[[Any], Violations]], Rule]:
    """Make a rule of a function and register it. One code may judge a log and a config by two
    functions.

    Args:
        code: such as MLP401.
        name: what people call it.
        severity: that of both divisions, or one for each.
        source: where the rule is written.
        **options: the fields of `Rule` that have a default.
    """
    severities: tuple[str, str | None]
    severities = (severity, severity) if isinstance(severity, str) else severity

    def register(check: Callable[[Any], Violations]) -> Rule:
        """Make the rule of its function."""
        new_rule = Rule(code, name, *severities, source, check, **options)
        for subject in new_rule.judges.split(", "):
            if (code, subject) in _REGISTERED:
                raise ValueError(f"{code} judges a {subject} twice")
            _REGISTERED[code, subject] = new_rule
        return new_rule

    return register


def rules_on(subject: str) -> tuple[Rule, ...]:
    """The registered rules on LOG, CONFIG, FOLDER or ROUND, by their codes. (`log_rules`,
    `config_rules` and `submission` register theirs when they are imported.)"""
    return tuple(_REGISTERED[key] for key in sorted(_REGISTERED) if key[1] == subject)


def since(first: str) -> tuple[str, ...]:
    """The rulesets from one on."""
    return benchmark.RULESETS[benchmark.RULESETS.index(first) :]


FROM_070 = since("0.7.0")
