"""Writing report.html: what `rn50 log report` and the end of every launch share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..config.errors import UserError
from ..data.atomic import write_output
from ..logging.check import Check
from ..logging.compare import read_all
from ..logging.folder import read_subjects
from ..logging.report import judge, render_report
from .outlook import outlook


def write_report(
    path: Path,
    out: Path | None = None,
    others: Sequence[Path] = (),
    system: str | None = None,
    gpus: int | None = None,
    checks: tuple[Check, ...] | None = None,
) -> Path:
    """Write the report on `path`, compared with `others`, and say where.

    Args:
        path: a log, the folder of a run, or a submission's directory.
        out: the file; default: report.html in the folder, for a log in the current one.
        others: further logs, folders and directories.
        system: the machine to predict the recipe on; None: the run's own, where it is described.
        gpus: accelerators of it; None: the ranks of the run.
        checks: the verdicts, where somebody has them already.

    Raises:
        UserError: nothing readable there, or the file cannot be written.
    """
    subjects = read_subjects(path)
    if len(subjects) != 1:
        raise UserError(f"{path}: one run or submission expected, found {len(subjects)} below it")
    if out is None:
        out = path / "report.html" if path.is_dir() else Path("report.html")
    page = render_report(
        subjects[0],
        read_all(others),
        judge if checks is None else lambda _: checks,
        outlook(subjects[0], system, gpus),
    )
    write_output(out, page)
    return out
