"""The rules on logs, one file a topic: a new file in this folder is found by itself."""

import os
from functools import cache
from importlib import import_module

from ...host.finding import SEVERITIES, Finding
from ..causes import explain
from ..logged_run import READ_KEYS, LoggedRun
from ..rule import LOG, rules_on

for _file in sorted(os.listdir(__path__[0])):  # noqa: PTH208 (a glob takes 3 ms)
    if _file.endswith(".py") and not _file.startswith("_"):
        import_module(f".{_file.removesuffix('.py')}", __name__)

RULES = rules_on(LOG)


@cache
def checked_keys() -> frozenset[str]:
    """The keys of records that a rule reads: what the parser has to keep."""
    return READ_KEYS.union(*(each.keys for each in RULES))


def apply(run: LoggedRun) -> list[Finding]:
    """What breaks any rule: errors first, of one severity causes before what they explain, else in
    the order of `RULES`."""
    findings = [
        finding for rule in RULES if rule.applies(run) for finding in rule.findings(run)
    ]
    findings = explain(run, findings)
    return sorted(
        findings, key=lambda f: (SEVERITIES.index(f.severity), f.caused_by != "")
    )
