"""Several logs and folders, judged one by one and then together as a round."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

from ..host.finding import POLICY
from ..host.progress import Progress, silent
from ..logging.places import NoLogs, is_one_run
from .check_log import CANNOT_READ, MISSED, VERDICTS, Check, verdict_of
from .likeness import Alike, Trace, find_alike, traces_of
from .rule import FOLDER, ROUND
from .submission import find_in, judge_path

_WORDS = (*VERDICTS[:2], MISSED, *VERDICTS[2:])
"""A run that missed its target is better than one that failed."""


class Round:
    """What is kept of its entries: a log has megabytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.verdicts: list[str] = []
        self.words: list[str] = []
        """The verdicts as people read them."""
        self._traces: dict[Path, list[Trace]] = {}
        """The traces of each submission; one run of ours, which its seed repeats, is none."""

    def add(self, checks: Sequence[Check]) -> None:
        """Add the judgement on an entry."""
        *logs, overall_check = checks
        self.verdicts.append(overall_check.verdict)
        self.words.append(overall_check.word)
        if overall_check.kind == FOLDER and not is_one_run(overall_check.path):
            self._traces[overall_check.path.resolve()] = traces_of(logs)

    @cached_property
    def alike(self) -> list[Alike]:
        """The logs of different entries that are of one run. What was not edited is policy: systems
        are submitted again with their power."""
        pairs = find_alike([*chain.from_iterable(self._traces.values())])
        return [
            pair._replace(severity=POLICY if pair.is_same else "")
            for pair in pairs
            if pair.first.parent != pair.second.parent
        ]

    @property
    def summary(self) -> str:
        """`18 entries: 8 POLICY, 10 FAIL`."""
        counts = Counter(self.words)
        counted = [
            f"{counts[verdict]} {verdict}" for verdict in _WORDS if counts[verdict]
        ]
        return f"{len(self.words)} entries: {', '.join(counted)}"

    def judge(self) -> Check:
        """The judgement on all together."""
        findings = find_in(self, ROUND)
        worst = max((*self.verdicts, verdict_of(findings)), key=VERDICTS.index)
        return Check(self.folder, worst, self.summary, findings=findings, kind=ROUND)


def judge_all(
    paths: Sequence[Path],
    ruleset: str | None = None,
    *,
    official: bool | None = None,
    top: Path | None = None,
    advance: Progress = silent,
) -> Iterator[tuple[Check, ...]]:
    """The judgement on each path and, of several, last that on the round.

    Raises UserError: as `judge_path`, but that a folder of several may have no logs.

    Args:
        paths: logs and folders of logs.
        ruleset: None: found from the logs.
        official: whether the official checker judges too; None: logs that are not huge.
        top: the folder of the round; None: the one that all lie in.
        advance: told how many are judged.
    """
    if top is None:
        top = Path(os.path.commonpath([path.absolute() for path in paths]))
    entries = Round(top)
    for number, path in enumerate(paths):
        advance(number, len(paths))
        try:
            checks = judge_path(path, ruleset, official=official)
        except NoLogs as error:
            if len(paths) == 1:
                raise
            checks = (_without_logs(path, error),)
        entries.add(checks)
        yield checks
    advance(len(paths), len(paths))
    if len(paths) > 1:
        yield (entries.judge(),)


def _without_logs(folder: Path, error: NoLogs) -> Check:
    return Check(
        folder, CANNOT_READ, str(error).removeprefix(f"{folder}: "), kind=FOLDER
    )
