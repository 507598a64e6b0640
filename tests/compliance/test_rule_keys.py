"""A rule reads the keys that it declares: the parser keeps those, so nothing is hidden from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rn50.compliance import rule as rule_module
from rn50.compliance.log_rules import RULES, checked_keys
from rn50.compliance.logged_run import CONTEXT_KEYS, LoggedRun
from rn50.compliance.rule import ANY_KEY, NOTE, Rule, Violation, rule
from rn50.compliance.submission import SET_RULES, Submission, check_folder
from rn50.config import benchmark
from rn50.logging.checked_keys import READ_METADATA, CheckedKeys
from rn50.logging.events import Event, Log
from rn50.logging.parse import read_log
from tests.compliance.log_text import drop, good_run, last, put, shift, vary, write


class RecordedMetadata(dict[str, Any]):
    """Metadata that remembers which of its names were asked for."""

    def __init__(self, content: dict[str, Any], asked: set[str]) -> None:
        super().__init__(content)
        self.asked = asked

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


class RecordedRun(LoggedRun):
    """A logged run that remembers which keys, and names of metadata, were asked for."""

    def __init__(self, log: Log, ruleset: str) -> None:
        super().__init__(log, ruleset)
        self.asked: set[str] = set()
        self.asked_metadata: set[str] = set()
        self.watched: dict[str, list[Event]] = {}

    def all(self, key: str) -> list[Event]:
        self.asked.add(key)
        if key not in self.watched:
            self.watched[key] = [
                event._replace(metadata=RecordedMetadata(event.metadata, self.asked_metadata))
                for event in super().all(key)
            ]
        return self.watched[key]


def forget_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A register of its own for a test."""
    for name in ("_REGISTERED", "_NAMES"):
        monkeypatch.setattr(rule_module, name, {})
    monkeypatch.setattr(rule_module, "_CODES", {"": ""})


def undeclared(each: Rule, log: Log, ruleset: str) -> set[str]:
    """Keys that a rule reads in a log and does not declare."""
    run = RecordedRun(log, ruleset)
    list(each.findings(run))
    if ANY_KEY in each.keys:
        return set()
    declared = CheckedKeys((*each.keys, *CONTEXT_KEYS))
    own = {key for key in run.asked if not key.startswith("None_")}  # of no known optimizer
    return {key for key in own if key not in declared}


def logs(folder: Path) -> Iterator[tuple[Log, str]]:
    """Logs of several rounds: whole, without a key, with an odd value, at another time."""
    for ruleset, division, optimizer in (
        ("4.0.0", "closed", "lars"),
        ("2.0.0", "open", "sgd"),
        ("1.0.0", "closed", "sgd"),
        ("0.7.0", "closed", "lars"),
        ("0.6.0", "closed", "lars"),
    ):
        keys = sorted({record.key for record in good_run(ruleset, division, optimizer)})
        edits = [lambda run: None, shift("run_stop", -1e9), shift("run_start", 1e6, later=False)]
        edits += [drop(key) for key in keys]
        edits += [put(key, value) for key in keys for value in ("x", 0.5)]
        edits.append(lambda run: last(run, "run_stop").metadata.update(status="aborted"))
        edits.append(lambda run: run.extend(good_run()[:3]))
        for edit in edits:
            run = good_run(ruleset, division, optimizer)
            edit(run)
            path = write(folder / "log.txt", run, ruleset)
            yield read_log(path, checked_keys(), others=False), ruleset


@pytest.mark.slow
def test_no_rule_reads_a_key_that_it_does_not_declare(tmp_path: Path) -> None:
    found: dict[str, set[str]] = {}
    for log, ruleset in logs(tmp_path):
        for each in RULES:
            if each.applies(LoggedRun(log, ruleset)):
                found.setdefault(each.name, set()).update(undeclared(each, log, ruleset))
    assert {name: keys for name, keys in found.items() if keys} == {}
    assert len(found) == len(RULES)


def test_an_undeclared_key_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_rules(monkeypatch)

    def check(run: LoggedRun) -> Iterator[Violation]:
        yield from (Violation(event.key) for event in run.all("mystery_key"))

    path = write(tmp_path / "log.txt", good_run())
    log = read_log(path, checked_keys(), others=False)
    forgetful = rule("MLP999", "forgetful", NOTE, "a test")(check)
    assert undeclared(forgetful, log, "4.0.0") == {"mystery_key"}
    honest = rule("MLP998", "honest", NOTE, "a test", keys=("mystery_key",))(check)
    assert undeclared(honest, log, "4.0.0") == set()


def test_every_declared_key_is_kept() -> None:
    declared = {key.replace("*", "x") for each in (*RULES, *SET_RULES) for key in each.keys}
    assert {key for key in declared if key not in checked_keys() and key != "x"} == set()
    assert "tracked_stats" not in checked_keys()


@pytest.mark.slow
def test_no_rule_reads_metadata_that_long_records_lose(tmp_path: Path) -> None:
    asked: set[str] = set()
    for log, ruleset in logs(tmp_path):
        for each in RULES:
            run = RecordedRun(log, ruleset)
            if each.applies(run):
                list(each.findings(run))
                asked |= run.asked_metadata
    assert asked <= READ_METADATA


@pytest.mark.parametrize("each", SET_RULES, ids=lambda each: str(each.name))
def test_no_folder_rule_reads_a_key_that_it_does_not_declare(tmp_path: Path, each: Rule) -> None:
    system = tmp_path / "us/systems/box.json"
    folder = tmp_path / "us/results/box/resnet"
    system.parent.mkdir(parents=True)
    folder.mkdir(parents=True)
    for number in range(5):
        write(folder / f"result_{number}.txt", vary(good_run(), number))
    checks = check_folder(folder, official=False)[:-1]
    recorded = [
        check._replace(run=RecordedRun(check.run.log, check.ruleset))
        for check in checks
        if check.run
    ]
    description = {"number_of_nodes": "1", "accelerators_per_node": "8", "division": "closed"}
    list(each.check(Submission(folder, tuple(recorded), description, system)))
    asked = set().union(
        *(check.run.asked for check in recorded if isinstance(check.run, RecordedRun))
    )
    assert asked <= {*each.keys, *CONTEXT_KEYS}


def test_a_code_has_one_name_and_one_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_rules(monkeypatch)

    def check(_: object) -> Iterator[Violation]:
        yield from ()

    def register(code: str, name: str, judges: str = "log") -> Callable[[], Rule]:
        return lambda: rule(code, name, NOTE, "a test", judges=judges)(check)

    register("MLP999", "one")()
    register("MLP999", "one", "config")()
    for again in (register("MLP999", "two"), register("MLP998", "one"), register("MLP999", "one")):
        with pytest.raises(ValueError, match=r"expected|twice"):
            again()


def test_rules_are_listed_by_code_and_apply_in_that_order() -> None:
    codes = [each.code for each in RULES]
    assert codes == sorted(codes)
    assert len({each.name for each in RULES}) == len(RULES)
    assert all(set(each.rulesets) <= set(benchmark.RULESETS) for each in RULES)
