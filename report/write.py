"""Writing report.html: what `rn50 log report` and the end of every launch share."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ..compliance.check_log import Check
from ..config.atomic import write_output
from ..config.errors import UserError
from ..config.manifest import load_manifest
from ..data.describe import describe_data
from .html import render_report
from .run_folder import Subject, read_subjects


def write_report(
    path: Path, out: Path | None = None, checks: tuple[Check, ...] | None = None
) -> Path:
    """Write the report on `path` (a log, a run's folder, a submission) and say where: by default
    report.html in the folder. `checks`: the verdicts, where they are known.

    Raises UserError: nothing readable there, or the file cannot be written.
    """
    subjects = read_subjects(path)
    if len(subjects) != 1:
        raise UserError(f"{path}: one run or submission expected, found {len(subjects)} below it")
    if out is None:
        out = path / "report.html" if path.is_dir() else Path("report.html")
    if out.exists() and any(out.samefile(log) for log in subjects[0].files):
        raise UserError(f"{out}: another file than the log that is reported on expected")
    page = render_report(subjects[0], checks, data=_describe_set(subjects[0]))
    write_output(out, page)
    return out


def _describe_set(subject: Subject) -> str | None:
    """The image set of a run's config; by its manifest, where the set is still within reach."""
    if subject.folder is None or subject.folder.config is None:
        return None
    data = subject.folder.config.run.data
    manifest = None
    with suppress(UserError, OSError):
        found = load_manifest(Path(data.path))
        if found.counts == (data.classes, data.train_samples, data.eval_samples):
            manifest = found  # else another set that came to lie there
    return describe_data(data, manifest)
