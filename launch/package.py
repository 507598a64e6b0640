"""A submission package: ORG/{benchmarks,results,systems}, from the folders of its runs.

The layout is that of MLCommons' training_results repositories; mlperf-logging's package_checker
reads it.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import jinja2

from ..config import benchmark
from ..config.load import Loaded, load_system
from ..config.recorded import load_recorded
from ..host.atomic import copy_file, new_folder, write_json
from ..host.errors import UserError, failing_as, show
from ..host.programs import ask
from ..host.reading import read_file
from ..logging.run_folder import JobFolder, RunFolder
from ..report.reproduction import without_places
from .system_description import UNKNOWN, describe_system, system_id

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
_CODE = (
    "run_and_time.sh",
    "Dockerfile",
    "Makefile",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "requirements.txt",
    "requirements-gpu.txt",
    "requirements",
    "docs",
    "rn50",
)
"""What a rebuild needs beside the rooms, which are the links in rn50/."""
_NOT_CODE = ("__pycache__", "notebook")
_IMPLEMENTATION = "rn50"
_SUCCESS = "PACKAGE CHECKER FOUND NO ERRORS"
_MOST_BYTES = 256 << 20
"""The longest log or config that is copied."""
_CHECK_S = 600.0


class Package(NamedTuple):
    """What is in a package that was written."""

    folder: Path
    system: str
    missing: tuple[str, ...]
    """Fields of the machine's page that are empty."""
    passes: bool
    messages: tuple[str, ...]
    """Errors and warnings of the official package checker."""


def runs_in(paths: Sequence[Path]) -> list[Path]:
    """The folders of the runs that `paths` name, which are runs or jobs. Raises UserError: a folder
    holds neither, or there are not as many runs as a submission has."""
    runs = []
    for path in paths:
        runs += [run.path for run in JobFolder(path).runs] or [path]
    for run in runs:
        for path in (RunFolder(run).config, RunFolder(run).log):
            if not path.is_file():
                raise UserError(f"{run}: a run with {path.name} expected, found none")
    if len(runs) != benchmark.RUNS:
        names = ", ".join(map(str, paths))
        make = f"rn50 submit CONFIG --runs {benchmark.RUNS} log.org=ORG makes them"
        raise UserError(
            f"{names}: {benchmark.RUNS} runs expected, found {len(runs)}; {make}"
        )
    return runs


def write_package(
    runs: Sequence[Path],
    out: Path,
    org: str,
    machine: str | None,
    ask: Callable[[str], str],
) -> Package:
    """Write `out/ORG` with the five `runs` and let the official checker judge it.

    `machine`: a name or YAML file whose `description` fills the machine's page; None: that of the
    runs' config. `ask`: returns the text of a field of the page that neither knows. Raises
    UserError: the runs are of several configs or organisations, a file of theirs is a link out of
    their folder, `org` is no folder's name, or the folder cannot be written.
    """
    if org != Path(org).name or org.startswith("."):
        raise UserError(
            f"--org: the name of a folder to make in {out} expected, found {show(org)}"
        )
    loaded = _common(runs, org, machine)
    run = loaded.run
    environment = RunFolder(runs[0]).read_environment()
    page = describe_system(run, environment)
    system = system_id(run)
    with new_folder(out / org) as folder:
        page |= {key: ask(key) for key, value in page.items() if value == UNKNOWN}
        results = folder / "results" / system / benchmark.BENCHMARK
        results.mkdir(parents=True)
        for number, source in enumerate(runs):
            _copy(RunFolder(source).log, results / f"result_{number}.txt")
        (folder / "systems").mkdir()
        write_json(folder / "systems" / f"{system}.json", page)
        context = {"run": run, "page": page, "git": environment.git}
        _write_code(
            folder / "benchmarks" / benchmark.BENCHMARK, runs[0], system, context
        )
    lines = _check(out / org, run.ruleset)
    messages = tuple(line for line in lines if line.startswith(("ERROR", "WARNING")))
    missing = tuple(key for key, value in page.items() if value == UNKNOWN)
    passes = any(_SUCCESS in line for line in lines)
    return Package(out / org, system, missing, passes, messages)


def _copy(source: Path, target: Path) -> None:
    """Copy a file of a run, which may be another user's: what a link points to is not published."""
    with failing_as(f"{source}: cannot read"):
        content = read_file(source, _MOST_BYTES, within=source.parent)
    target.write_bytes(content)


def _common(runs: Sequence[Path], org: str, machine: str | None) -> Loaded:
    """The config of runs that differ in nothing but their seeds."""
    configs = [load_recorded(RunFolder(path).config, keys=()) for path in runs]
    first = without_places(configs[0])
    for path, config in zip(runs, configs, strict=True):
        values = without_places(config)
        for key in {**first, **values}:
            if key != "seed" and first.get(key) != values.get(key):
                expected = f"{first.get(key)} as in {runs[0]}"
                raise UserError(
                    f"{path}: {key}: {expected} expected, found {values.get(key)}"
                )
    named = configs[0].run.log.org
    if named != org:
        raise UserError(
            f"{RunFolder(runs[0]).log}: submission_org {org} expected (--org), found {named}; "
            "log.org=NAME sets it before a run"
        )
    overrides = []
    if machine is not None:
        description = load_system(machine).description.model_dump(exclude_none=True)
        overrides = [f"system.description={json.dumps(description)}"]
    return load_recorded(RunFolder(runs[0]).config, overrides, keys=())


def _write_code(
    folder: Path, run: Path, system: str, context: Mapping[str, object]
) -> None:
    """The program, the config of the runs, and how to repeat them. `context`: for the README."""
    implementation = folder / "implementations" / _IMPLEMENTATION
    code = implementation / "code"
    code.mkdir(parents=True)
    rooms = [link.name for link in (ROOT / "rn50").iterdir() if link.is_symlink()]
    for name in (*_CODE, *rooms):
        _copy_code(ROOT / name, code / name)
    config = f"config_{system}.yaml"
    _copy(RunFolder(run).config, implementation / config)
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), undefined=jinja2.StrictUndefined
    )
    (implementation / "README.md").write_text(
        templates.get_template("submission_readme.md.j2").render(context, config=config)
    )


def _copy_code(source: Path, target: Path) -> None:
    """Names, contents and links; modes where the file system has them."""
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir()
        for path in source.iterdir():
            if path.name not in _NOT_CODE:
                _copy_code(path, target / path.name)
    elif source.is_file():
        copy_file(source, target)
        with suppress(OSError):
            shutil.copymode(source, target)


def _check(package: Path, ruleset: str) -> list[str]:
    """What mlperf-logging's package_checker prints of `package`."""
    log = package.with_name("package_checker.log")
    command = [
        sys.executable,
        "-m",
        "mlperf_logging.package_checker",
        str(package),
        "training",
        ruleset,
        "--log_output",
        str(log),
    ]
    done = ask(command, _CHECK_S)
    if done.code:  # a traceback; it has no exit code for errors
        last = done.err.strip().rpartition("\n")[2]
        return [f"ERROR - the package checker crashed: {done.ended}: {done.said(last)}"]
    return done.err.splitlines()
