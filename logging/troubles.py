"""What is wrong with the records of a log: bounded, the harmful apart from the odd."""

from __future__ import annotations

import re

from .events import Problem, cut

_KEPT_PROBLEMS = 50
_KEPT_NOTES = 20
_KEPT_LOST = 200
_LIKE_MLL_RECORD = r":::MLL\s*[-+]?[\d.]+\D"
_SALVAGED_KEY = r'"key": ?"([^"]{1,100})"|:::MLL\s+[\d.+-]+\s+([A-Za-z0-9_]{1,100}) ?:'


class Troubles:
    """Problems, notes and lost keys of one log. No flood of one hides another sort."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.notes: list[Problem] = []
        self.forms: list[Problem] = []
        """What the parser of :::MLL refuses: problems only where the log is one of those."""
        self.form_count = 0
        self.lost_keys: set[str] = set()
        self.truncated = False

    @property
    def full(self) -> bool:
        """Are more problems counted alone?"""
        return self.problem_count >= _KEPT_PROBLEMS

    def problem(self, line: int, kind: str, key: str | None, message: str, lost: bool) -> None:
        """A record that is not whole."""
        self.problem_count += 1
        self.truncated = self.truncated or kind == "truncated"
        if lost and key is not None and len(self.lost_keys) < _KEPT_LOST:
            self.lost_keys.add(key)
        if len(self.problems) < _KEPT_PROBLEMS:
            self.problems.append(Problem(line, kind, key and cut(key), message, lost))

    def note(self, line: int, kind: str, key: str | None, message: str) -> None:
        """A record that is odd and whole."""
        if len(self.notes) < _KEPT_NOTES:
            self.notes.append(Problem(line, kind, key and cut(key), message, False))

    def form(self, line: int, text: str) -> None:
        """Not what the parser of v0.6 reads: an error of such a log, prose in any other."""
        self.form_count += 1
        if len(self.forms) < _KEPT_PROBLEMS:
            found = f'":::MLL SECONDS KEY: {{json}}" expected, found {text[:60]!r}'
            like_one = bool(re.match(_LIKE_MLL_RECORD, text))
            self.forms.append(Problem(line, "form", salvaged_key(text), found, like_one))

    def settle(self, *, mll: bool) -> None:
        """What the odd forms are, once it is known whether the log is one of :::MLL."""
        if mll:
            found = sorted((*self.problems, *self.forms), key=lambda problem: problem.line)
            self.problems = found[:_KEPT_PROBLEMS]
            self.problem_count += self.form_count
            self.lost_keys.update(form.key for form in self.forms if form.key is not None)
            return
        for form in self.forms:
            if form.lost:
                self.note(form.line, form.kind, form.key, form.message)

    def first(self) -> Problem | None:
        """The one that comes first in the file."""
        found = (*self.problems, *self.forms)
        return min(found, key=lambda problem: problem.line, default=None)


def salvaged_key(text: str) -> str | None:
    """The key of a record that cannot be read, where it can be seen."""
    match = re.search(_SALVAGED_KEY, text[:4000])
    return re.sub(r"\W", "", match[1] or match[2]) or None if match else None
