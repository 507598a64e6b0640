"""A rule: a small function from what it judges to what breaks it, with its code and its source.

What is judged is a logged run, a config, both (a limit of the closed division, `limits.py`) or a
folder of runs. The decorator registers the rule; codes are in the order in which findings of one
severity are listed, so a rule whose findings explain others has the lower code.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from ..config import benchmark
from ..config.finding import ERROR as ERROR
from ..config.finding import NOTE as NOTE
from ..config.finding import POLICY as POLICY
from ..config.finding import Finding, number, shown
from ..logging.events import Event

CHECKER = "mlcommons/logging 4.1.68, compliance_checker"
RULES_TEXT = "training_rules.adoc"

LOG, CONFIG, BOTH, FOLDER = "log", "config", "log, config", "folder"
"""What a rule judges."""

ANY_KEY = "*"
"""Among a rule's keys: it looks at every record that the parser keeps, for whatever rule."""

CLOSED_ERROR = (ERROR, None)
CLOSED_POLICY = (POLICY, NOTE)
CLOSED_ONLY = (ERROR, NOTE)
"""Severities in the closed and in the open division; None: not a rule there."""


class Violation(NamedTuple):
    """What a rule function yields; `severity` only where it differs from the rule's. `caused_by`:
    the name of the rule whose finding explains this one; void where that rule finds nothing."""

    message: str
    line: int | None = None
    expected: str = ""
    actual: str = ""
    advice: str = ""
    severity: str | None = None
    caused_by: str = ""

    @classmethod
    def at(
        cls,
        event: Event,
        what: str,
        expected: str = "",
        actual: str = "",
        advice: str = "",
        severity: str | None = None,
        caused_by: str = "",
    ) -> "Violation":
        """About a record, whose key and line stand before `what`."""
        text = f"{event.place} {what}"
        return cls(text, event.line, expected, actual, advice, severity, caused_by)


class Setting(NamedTuple):
    """A value and where it stands: `lars_epsilon (line 12)`, `optimizer.epsilon (quick.yaml:3)`."""

    place: str
    value: Any
    line: int | None = None

    def violation(
        self, expected: str, why: str = "", *, advice: str = "", severity: str | None = None
    ) -> Violation:
        """That another value was expected."""
        actual = shown(self.value)
        message = f"{self.place} is {actual}, expected {expected}" + (f": {why}" if why else "")
        return Violation(message, self.line, expected, actual, advice, severity)


class Judged(Protocol):
    """What decides which rules apply to a logged run or a config."""

    @property
    def ruleset(self) -> str: ...

    @property
    def division(self) -> str | None: ...

    @property
    def optimizer(self) -> str | None:
        """lars or sgd; None for any other."""


class HasSettings(Judged, Protocol):
    """What the limits of the closed division ask a logged run and a config alike."""

    @property
    def batch(self) -> float | None:
        """The global batch size."""

    def settings(self, name: str) -> Iterable[Setting]:
        """Every value of a hyper-parameter, in order."""

    def absent(self, key: str, /) -> bool:
        """Is a record of this key missing?"""


class Rule(NamedTuple):
    """`open_severity`: in the open division; None: not a rule there. `keys`: of the log records
    that it reads, beside those of `logged_run.CONTEXT_KEYS`; `*` at an end stands for any text.
    `exempt_if_synthetic`: not a rule on configs whose images are not ImageNet's."""

    code: str
    name: str
    severity: str
    source: str
    keys: tuple[str, ...]
    check: Callable[[Any], Iterator[Violation]]
    judges: str
    rulesets: tuple[str, ...]
    optimizer: str | None
    open_severity: str | None
    exempt_if_synthetic: bool

    @property
    def description(self) -> str:
        """What it checks: the function's docstring."""
        return " ".join((self.check.__doc__ or "").split())

    def applies(self, run: Judged) -> bool:
        """Is it a rule for this log?"""
        return (
            run.ruleset in self.rulesets
            and (self.open_severity is not None or run.division != "open")
            and self.optimizer in (None, run.optimizer)
        )

    def findings(self, run: Judged) -> Iterator[Finding]:
        """What breaks this rule in a log to which it applies."""
        usual = self.open_severity if run.division == "open" else self.severity
        for violation in self.check(run):
            severity = violation.severity or usual or self.severity
            if run.division == "open" and severity == POLICY and self.open_severity == NOTE:
                severity = NOTE
            yield self.finding(violation, severity)

    def finding(self, violation: Violation, severity: str | None = None) -> Finding:
        """A violation as a finding; `severity` None: its own, else the rule's."""
        return Finding(
            self.code,
            severity or violation.severity or self.severity,
            violation.line,
            violation.expected,
            violation.actual,
            violation.message,
            violation.advice,
            code_of(violation.caused_by),
            self.name,
        )


def missing(
    run: HasSettings, keys: Iterable[str], expected: str = "", advice: str = "", why: str = ""
) -> Iterator[Violation]:
    """That the log has no record of keys, in one violation; nothing where none is absent."""
    names = ", ".join(key for key in keys if run.absent(key))
    if names:
        yield Violation(f"no {names} in the log{why}", None, expected or names, "none", advice)


_REGISTERED: dict[tuple[str, str], Rule] = {}
"""By code and what is judged."""
_CODES: dict[str, str] = {"": ""}
_NAMES: dict[str, str] = {}


def rule(
    code: str,
    name: str,
    severity: str | tuple[str, str | None],
    source: str,
    *,
    keys: Iterable[str] = (),
    judges: str = LOG,
    rulesets: tuple[str, ...] = benchmark.RULESETS,
    optimizer: str | None = None,
    exempt_if_synthetic: bool = False,
) -> Callable[[Callable[[Any], Iterator[Violation]]], Rule]:
    """Make a rule of a function and register it. One code may judge a log and a config by two
    functions. `severity`: of both divisions, or one for each."""
    usual, in_open = severity if isinstance(severity, tuple) else (severity, severity)

    def register(check: Callable[[Any], Iterator[Violation]]) -> Rule:
        made = Rule(
            *(code, name, usual, source, tuple(keys), check),
            *(judges, rulesets, optimizer, in_open, exempt_if_synthetic),
        )
        if _CODES.setdefault(name, code) != code or _NAMES.setdefault(code, name) != name:
            other = _NAMES.get(code, name)
            raise ValueError(f"one name for {code} expected: {name}, {other} ({_CODES[name]})")
        for subject in judges.split(", "):
            if (code, subject) in _REGISTERED:
                raise ValueError(f"{code} judges a {subject} twice")
            _REGISTERED[code, subject] = made
        return made

    return register


def rules_on(subject: str) -> tuple[Rule, ...]:
    """The registered rules on LOG, CONFIG or FOLDER, by their codes. (`log_rules`, `config_rules`
    and `submission` register theirs when they are imported.)"""
    return tuple(_REGISTERED[key] for key in sorted(_REGISTERED) if key[1] == subject)


def code_of(name: str) -> str:
    """The code of a rule."""
    return _CODES.get(name, name)


def as_official(value: object) -> float | None:
    """A finite number, true as 1 as the official checker compares it; else None."""
    return number(int(value) if isinstance(value, bool) else value)


def since(first: str) -> tuple[str, ...]:
    """The rulesets from one on."""
    return benchmark.RULESETS[benchmark.RULESETS.index(first) :]


FROM_070 = since("0.7.0")
