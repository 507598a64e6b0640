"""The rules on logs, one file a topic: a new file in this folder is found by itself."""

import os
from functools import cache
from importlib import import_module

from ...host.finding import MISSING, NOTE, SEVERITIES, Finding
from ..logged_run import READ_KEYS, LoggedRun
from ..rule import LOG, LOST, rules_on

for _file in sorted(os.listdir(__path__[0])):  # noqa: PTH208 (a glob takes 3 ms)
    if _file.endswith(".py") and not _file.startswith("_"):
        import_module(f".{_file.removesuffix('.py')}", __name__)

RULES = rules_on(LOG)
_BY_NAME = {rule.name: rule for rule in RULES}


@cache
def checked_keys() -> frozenset[str]:
    """The keys of records that a rule reads: what the parser has to keep."""
    return READ_KEYS.union(*(log_rule.keys for log_rule in RULES))


def apply(run: LoggedRun) -> list[Finding]:
    """What breaks any rule: errors first, of one severity causes before what they explain, else in
    the order of `RULES`."""
    findings = _explain(
        run,
        [
            finding
            for rule in RULES
            if rule.applies(run)
            for finding in rule.findings(run)
        ],
    )
    # sorted is stable: the order of RULES, by code, stays within a group
    return sorted(
        findings, key=lambda f: (SEVERITIES.index(f.severity), f.caused_by != "")
    )


def _explain(run: LoggedRun, findings: list[Finding]) -> list[Finding]:
    """Mark what follows from another finding."""
    problems = run.log.problems
    broken = {finding.name for finding in findings if finding.severity != NOTE}
    # A lost record of a known key is not missed by the rules: they ask `LoggedRun.absent`.
    if run.log.truncated or any(problem.lost for problem in problems):
        broken.add(LOST)
    else:
        broken.discard(LOST)
    unknown = run.log.truncated or any(p.lost and p.key is None for p in problems)

    def cause(finding: Finding) -> str:
        """The code of the rule that explains a finding; empty: none does."""
        # the record that is missing may be the one that cannot be read
        if unknown and finding.about == MISSING:
            return _BY_NAME[LOST].code
        for name in _BY_NAME[finding.name].follows_from:
            if name in broken:
                # a rule of CLOCK is explained by those before it in CLOCK alone
                return "" if name == finding.name else _BY_NAME[name].code
        return ""

    return [finding._replace(caused_by=cause(finding)) for finding in findings]
