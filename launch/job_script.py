"""A job's script: a pure function of the resolved config, its system and where things lie."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from ..config.errors import UserError
from ..config.schema import Run
from .engine_environment import backend_of, engine_environment
from .schedulers import SCHEDULERS, Scheduler, array, is_watched, word

CONTAINER = "rn50"
"""Pyxis keeps the unpacked image under this name from step to step."""


class Place(NamedTuple):
    """Where things lie, on every node (in the container: inside it). None: as the script is run."""

    config: tuple[str, ...]
    """CONFIG and overrides, as `rn50 launch` takes them."""
    start: str | None = None
    """Absolute: relative paths of the config begin here. None: where it was submitted."""
    folder: str | None = None
    """Of the job: job.log, run_N/, results/, systems/; from `start` on or absolute. None: new."""
    home: str | None = None
    """The checkout of this repository. None: `start`."""
    python: str | None = None
    """The interpreter of its virtual environment. None: the checkout's."""
    name: str = "job.sh"
    """Of the script, as it is submitted."""


def job_script(run: Run, scheduler: str, place: Place, runs: int = 1) -> str:
    """The text to submit, which may be edited and submitted by hand as well.

    Raises:
        UserError: what the scheduler or the container cannot express.
    """
    dialect = SCHEDULERS[scheduler]
    _check(run, scheduler, place, runs)
    sections = (
        _head(run, dialect, place),
        _names(run, dialect, place, runs),
        _start(dialect),
        _begin(run),
        _environment(run),
        _launchers(run, dialect),
        _data(run),
        _runs(run, dialect, runs),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def system_id(run: Run) -> str:
    """The machine's name as a submission's folders have it: `ABCI_n512`."""
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', run.system.name)}_n{run.system.nodes}"


def _check(run: Run, scheduler: str, place: Place, runs: int) -> None:
    job = run.system.job
    if runs > 1 and run.seed is not None:
        expected = f"none for {runs} runs (each draws its own)"
        raise UserError(f"seed: {expected} expected, found {run.seed}")
    if job.container and job.engine == "pyxis" and scheduler != "slurm":
        raise UserError(f"system.job.engine: singularity expected with {scheduler}, found pyxis")
    if job.container and re.search(r"[:,\n]", place.start or ""):
        raise UserError(f"a folder without : and , expected for a container, found {place.start!r}")


def _head(run: Run, dialect: Scheduler, place: Place) -> Iterator[str]:
    system = run.system
    yield "#!/usr/bin/env bash"
    yield from dialect.directives(run)
    yield "#"
    shape = f"{system.nodes} node{'s' * (system.nodes > 1)} x {system.ranks_per_node} ranks"
    yield f"# {word(run.name)}: {shape}, on {dialect.name}."
    if place.folder is None:
        yield "# As `rn50 submit` writes it. Edit what differs; submit it from the checkout:"
        command = shlex.join([*dialect.command, *run.system.job.options])
        yield f"#   {command} {'<' * dialect.from_stdin}{place.name}"
    else:
        yield "# Written by `rn50 submit`; may be edited and submitted by hand."
    yield "# shellcheck disable=SC2016,SC2317,SC2329  # dollars meant as such; traps call functions"
    yield "set -euo pipefail"


def _names(run: Run, dialect: Scheduler, place: Place, runs: int) -> Iterator[str]:
    new = f"results/{run.name}/$(date -u +%Y%m%dT%H%M%SZ)-$$"
    for name, value, by_hand in (
        ("start", place.start, dialect.submitted_from),
        ("folder", place.folder, new),
        ("home", place.home, "$start"),
        ("python", place.python, "$start/.venv/bin/python"),
        *([] if run.system.job.stage else [("data", run.data.path, "")]),
        ("system", system_id(run), ""),
    ):
        yield f"{name}={by_hand if value is None else shlex.quote(value)}"
    yield array("config", [shlex.quote(token) for token in place.config])
    yield f"runs={runs}"
    if run.system.job.stage:
        yield "staged=''  # the nodes have a copy of the data, or the beginnings of one"


def _start(dialect: Scheduler) -> Iterator[str]:
    """Which start of this job it is, and its folder: nothing of another is written over."""
    yield 'cd -- "$start"'
    yield "# After a start whose runs have all ended (exit code 0 or 1) the next gets a folder of"
    yield "# its own; after an interruption it goes on in the same, beside the log of that start."
    yield "first=$folder starts=1"
    yield 'while code=$(cat -- "$folder/exit_code" 2>/dev/null) && [[ $code =~ ^[01]$ ]]; do'
    yield "  starts=$((starts + 1))"
    yield "  folder=$first.$starts"
    yield "done"
    yield 'mkdir -p -- "$folder"'
    yield "# One start at a time: the lock goes with this script and what it started."
    yield 'exec 9>>"$folder/.job.lock"'
    yield "locked=0"
    yield "flock -n 9 || locked=$?"
    yield "if ((locked == 1)); then"
    yield '  echo "rn50: error: $folder: in use by $(<"$folder/.job.lock")" >&2'
    yield "  exit 2"
    yield "fi"
    job = f", job {dialect.job_id}" if dialect.job_id else ""
    yield f'echo "process $$ on $HOSTNAME{job}, since $(date -u +%FT%TZ)" >"$folder/.job.lock"'
    yield "past=1"
    yield "while [[ -e $folder/job.$past.log ]]; do past=$((past + 1)); done"
    for file, kept in (("job.log", "job.$past.log"), ("exit_code", "exit_code.$past")):
        yield f"if [[ -e $folder/{file} ]]; then"
        yield f'  mv -- "$folder/{file}" "$folder/{kept}"'
        yield "fi"
    yield 'exec >"$folder/job.log" 2>&1 </dev/null'


def _begin(run: Run) -> Iterator[str]:
    yield "# shellcheck disable=SC2329  # called by the trap"
    yield "finish() {"
    yield "  code=$?"
    if run.system.job.stage:
        yield '  [[ -z $staged ]] || "${on_each[@]}" "${staging[@]}" --remove || true'
    yield "  # In place: a full disk has room for that."
    yield '  echo "$code" 1<>"$folder/exit_code" || true'
    yield '  truncate -s "$((${#code} + 1))" "$folder/exit_code" || true'
    yield "}"
    yield "trap finish EXIT"
    yield 'echo running >"$folder/exit_code"'
    yield "# Asked to stop: the ranks are, they close their log, and the run is recorded as failed."
    yield "stopped='' child=''"
    yield "# shellcheck disable=SC2329  # called by the trap"
    yield "stop() {"
    yield "  stopped=$1"
    yield '  if [[ -n $child ]]; then kill -TERM "$child" || true; else exit 143; fi'
    yield "}"
    yield "trap 'stop TERM' TERM"
    yield "trap 'stop INT' INT"
    if run.system.job.modules:
        yield "set +u  # modules are not written for it"
        yield "# shellcheck source=/dev/null"
        yield '[[ -n $(type -t module) ]] || source "${MODULESHOME:-/usr/share/modules}/init/bash"'
        yield f"module load {' '.join(map(word, run.system.job.modules))}"
        yield "set -u"


def _settings(run: Run) -> dict[str, str]:
    """What the engines read."""
    return engine_environment(run, backend_of(run, "mpi"), {}).settings


def _environment(run: Run) -> Iterator[str]:
    yield "# What the engines read. A variable that is set already stays, and the run says so."
    yield 'default() { export "$1=${!1-$2}"; }'
    for name, value in sorted(_settings(run).items()):
        yield f"default {name} {shlex.quote(value)}"
    yield 'export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"'


def _launchers(run: Run, dialect: Scheduler) -> Iterator[str]:
    """Arrays that start a command: `ranks`, `per_node` (outside a container), `once`, `on_each`."""
    job, system = run.system.job, run.system
    yield from dialect.setup(run)
    if job.stage:
        yield f"stage={_stage(job.stage)}/rn50_data"
    every, node = dialect.ranks(run), dialect.per_node(run)
    once, inside = ["env"], []
    mounts = ['"$start:$start"', *(shlex.quote(mount) for mount in job.mounts)]
    if job.stage:
        mounts.append('"${stage%/*}:${stage%/*}"')
    yield f"dataset=${'stage' if job.stage else 'data'}"
    if job.container and job.engine == "pyxis":
        yield f"mounts={','.join(mounts)}"
        pyxis = [
            f"--container-image={shlex.quote(job.container)}",
            *(f"--container-name={CONTAINER}", '--container-mounts="$mounts"'),
            '--container-workdir="$start"',
        ]
        yield array("container", pyxis)
        inside = ['"${container[@]}"']
        once = ["srun", "--nodes=1", "--ntasks=1", *inside]
    elif job.container:
        tokens = ["singularity", "exec", *(["--nv"] if system.device == "gpu" else [])]
        tokens += [token for mount in mounts for token in ("--bind", mount)]
        yield array("container", [*tokens, "--pwd", '"$start"', shlex.quote(job.container)])
        inside = once = ['"${container[@]}"']
    bind = {"auto": ['"$home/scripts/bind.sh"'], "none": []}.get(job.bind)
    if bind is None:
        bind = ['"$home/scripts/bind.sh"', "--table", shlex.quote(job.bind)]
    yield array("ranks", [*every, *inside, *bind])
    if job.stage or job.drop_caches:
        yield array("per_node", node)
    yield array("once", once)
    if job.stage:
        yield array("on_each", [*node, *inside])


def _stage(value: str) -> str:
    """A folder as a shell word; $NAME between slashes is that variable, and has to be set."""
    parts = []
    for part in value.split("/"):
        if match := re.fullmatch(r"\$([A-Z][A-Z0-9_]*)", part):
            parts.append(f'"${{{match[1]}:?a node-local folder expected}}"')
        else:
            parts.append(shlex.quote(part) if part else "")
    return "/".join(parts)


def _data(run: Run) -> Iterator[str]:
    staged = run.system.job.stage
    if staged:
        yield '"${per_node[@]}" mkdir -p -- "${stage%/*}"'
    yield '"${once[@]}" "$python" -m rn50.cli.entry data prepare "${config[@]}"'
    if staged:
        yield "# Once a node: copied to its own disk, every byte checked there."
        yield array(
            "staging",
            ['"$python" -m rn50.cli.entry data stage "${config[@]}"', '--to "$stage"'],
        )
        yield "staged=1"
        yield '"${on_each[@]}" "${staging[@]}"'


def _runs(run: Run, dialect: Scheduler, runs: int) -> Iterator[str]:
    job = run.system.job
    yield 'mkdir -p -- "$folder/results/$system/resnet"'
    yield "failed=0"
    yield "for ((n = 0; n < runs; n++)); do"
    yield "  out=$folder/run_$n"
    if run.seed is None:
        yield "  seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')"
    else:
        yield f"  seed={run.seed}"
    yield "  begun=0"
    yield '  "${once[@]}" "$python" -m rn50.launch.job_steps begin "$out" \\'
    yield f'    --scheduler {dialect.name} --seed="$seed" --data="$dataset" -- "${{config[@]}}" \\'
    yield "    || begun=$?"
    yield "  if ((begun == 10 || begun == 11)); then # this run ended in a start before this one"
    yield "    failed=$((failed | (begun - 10)))"
    yield "    continue"
    yield "  fi"
    yield '  if ((begun)); then exit "$begun"; fi'
    yield '  train=("$python" -m rn50.train "$out/config.yaml" --out "$out")'
    yield "  if [[ -s $out/resume_from ]]; then # interrupted: on from its checkpoint"
    yield '    train+=(--resume "$(<"$out/resume_from")")'
    yield "  fi"
    if job.drop_caches:
        yield '  "${per_node[@]}" bash -c \'sync'
        yield "    { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null ||"
        yield "      sudo -n sysctl -q vm.drop_caches=3'"
    yield "  # The ranks drop the data set's caches themselves, and log it: cache_clear."
    train = '"${ranks[@]}" "${train[@]}"'
    if is_watched(run):
        yield "  # The watchdog: ends the step when a rank stops, which no scheduler sees."
        yield f'  "$python" -m rn50.launch.supervisor "$out" -- {train} &'
    else:
        yield f'  {train} 2>"$out/stderr.log" &'
    yield "  child=$! code=0"
    yield '  wait "$child" || code=$?'
    yield "  if [[ -n $stopped ]]; then"
    yield '    wait "$child" || code=$?'
    yield "  fi"
    yield "  child='' end=0"
    yield '  "${once[@]}" "$python" -m rn50.launch.job_steps end \\'
    yield f'    "$out" "$code" "$stopped" "$SECONDS" {dialect.name} || end=$?'
    yield "  if [[ -f $out/result_0.txt ]]; then"
    yield '    cp -- "$out/result_0.txt" "$folder/results/$system/resnet/result_$n.txt"'
    yield "  fi"
    yield "  # 1: the run ended short of its target, the next one may start; above: a rank failed."
    yield "  if [[ -n $stopped ]]; then exit 143; fi"
    yield '  if ((end > 1)); then exit "$end"; fi'
    yield "  failed=$((failed | end))"
    yield "done"
    if runs > 1:
        yield '"${once[@]}" "$python" -m rn50.cli.entry log score \\'
        yield '  "$folder/results/$system/resnet" || true'
    yield 'exit "$failed"'
