"""The part of a job's script that starts containers: the host may have no Python of ours.

A loop in Bash around two steps of Python in the container (`job_steps.py`), which begin and end a
run as `rn50 launch` does. Ranks are not watched: what would watch them is inside the container.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from ..config.schema import Run
from .engine_environment import ENGINE_PREFIXES, backend_of, engine_environment
from .launchers import HOST_FILES, LAUNCHERS, Job
from .schedulers import LIMIT_SIGNAL, Scheduler
from .system_description import system_id

CONTAINER = "rn50"
"""Pyxis keeps the unpacked image under this name from step to step."""


def container_sections(run: Run, dialect: Scheduler, runs: int) -> list[Iterator[str]]:
    """What follows the names and modules of a script."""
    return [_environment(run), _commands(run, dialect), _begin(run, dialect), _runs(run, runs)]


def _environment(run: Run) -> Iterator[str]:
    yield "# What the engines read. A variable that is set already stays, and the run says so."
    yield 'default() { export "$1=${!1-$2}"; }'
    settings = engine_environment(run, backend_of(run, "mpi"), {}).settings
    for name, value in sorted(settings.items()):
        yield f"default {name} {shlex.quote(value)}"


def _commands(run: Run, dialect: Scheduler) -> Iterator[str]:
    """Arrays that start a command: `ranks`, `per_node`, `once` (in the container)."""
    job, system = run.system.job, run.system
    if job.stage:
        yield f"data={_shell_folder(job.stage)}/rn50_data"
    else:
        yield f"data={shlex.quote(run.data.path)}"
    yield from _container(run)
    inside, bind = '"${container[@]}"', ['"$home/scripts/bind.sh"']
    if job.bind == "none":
        bind = []
    elif job.bind != "auto":
        bind += ["--table", shlex.quote(job.bind)]
    before: list[str] = []
    if dialect.launcher == "mpirun":
        yield from _mpirun_exports(run)
        before = ["--host", '"$hosts"'] if system.nodes > 1 else []
        before.append('"${exports[@]}"')
    if dialect.launcher == "srun":
        yield 'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-}"'
    ranks = Job.of(run, [*before, inside, *bind])
    launcher = LAUNCHERS[dialect.launcher]
    yield bash_array("ranks", launcher.command(ranks))
    if job.stage or job.drop_caches:
        yield bash_array("per_node", launcher.command(ranks.once_per_node(before)))
    once = ["srun", "--nodes=1", "--ntasks=1"] if job.engine == "pyxis" else []
    yield bash_array("once", [*once, inside])


def _container(run: Run) -> Iterator[str]:
    job = run.system.job
    mounts = ['"$start:$start"', *(shlex.quote(mount) for mount in job.mounts)]
    if job.stage:
        mounts.append('"${data%/*}:${data%/*}"')
    image = shlex.quote(job.container or "")
    if job.engine == "pyxis":
        yield f"mounts={','.join(mounts)}"
        tokens = [f"--container-image={image}", f"--container-name={CONTAINER}"]
        tokens += ['--container-mounts="$mounts"', '--container-workdir="$start"']
    else:
        gpus = ["--nv"] if run.system.device == "gpu" else []
        binds = [token for mount in mounts for token in ("--bind", mount)]
        tokens = ["singularity", "exec", *gpus, *binds, "--pwd", '"$start"', image]
    yield bash_array("container", tokens)


def _mpirun_exports(run: Run) -> Iterator[str]:
    """Arrays `exports`, and `hosts` where there is more than one."""
    if run.system.nodes > 1:
        *others, last = HOST_FILES
        file = f"${{{last}:?a file with the names of the hosts, one a line, expected}}"
        for name in reversed(others):
            file = f"${{{name}:-{file}}}"
        slots = run.system.ranks_per_node
        print_host = f'!seen[$1]++ {{ printf "%s%s:{slots}", comma, $1; comma = "," }}'
        yield "# The allocation's hosts, each once, with its slots."
        yield f"hosts=$(awk '{print_host}' \"{file}\")"
    yield "if [[ $EUID -eq 0 ]]; then"
    yield "  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    yield "fi"
    yield "# The other nodes get what the engines read, whoever set it, and what modules set."
    yield "exports=()"
    yield f"pattern='^({'|'.join(ENGINE_PREFIXES)})|^(PATH|LD_LIBRARY_PATH|PYTHONPATH)$'"
    yield "while read -r name; do"
    yield '  if [[ $name =~ $pattern ]]; then exports+=(-x "$name"); fi'
    yield "done < <(compgen -e)"


def _shell_folder(value: str) -> str:
    """A folder as a shell word; $NAME between slashes is that variable, and has to be set."""
    parts = []
    for part in value.split("/"):
        if match := re.fullmatch(r"\$([A-Z][A-Z0-9_]*)", part):
            parts.append(f'"${{{match[1]}:?a node-local folder expected}}"')
        else:
            parts.append(shlex.quote(part) if part else "")
    return "/".join(parts)


def _begin(run: Run, dialect: Scheduler) -> Iterator[str]:
    """The job's lock, log and exit code, what a signal does, and the image set."""
    job = run.system.job
    yield 'mkdir -p -- "$folder"'
    yield 'exec 9>>"$folder/.job.lock"'
    yield "locked=0"
    yield "flock -n 9 || locked=$?  # above 1: a file system without locks"
    yield "if ((locked == 1)); then"
    yield '  echo "rn50: error: $folder: in use by $(<"$folder/.job.lock")" >&2'
    yield "  exit 2"
    yield "fi"
    requeue = job.requeue and dialect.requeue_command
    if requeue:
        yield 'kept() { compgen -G "$folder/run_*/checkpoint/step_*.ckpt" || true; }'
        yield "before=$(kept)"
    name = f", job {dialect.job_id}" if dialect.job_id else ""
    yield f'echo "process $$ on $HOSTNAME{name}, since $(date -u +%FT%TZ)" >"$folder/.job.lock"'
    yield 'exec >>"$folder/job.log" 2>&1 </dev/null'
    yield "# shellcheck disable=SC2317,SC2329  # called by the trap"
    yield "finish() {"
    yield "  code=$?"
    if job.stage:
        yield '  "${per_node[@]}" "${staging[@]}" --remove -- "${config[@]}" || true'
    yield "  # In place: a full disk has room for that."
    yield '  echo "$code" 1<>"$folder/exit_code" || true'
    yield '  truncate -s "$((${#code} + 1))" "$folder/exit_code" || true'
    if requeue:
        yield "  # Without a new checkpoint it would go on like this for ever."
        yield f'  if [[ $stopped == {LIMIT_SIGNAL} && $(kept) != "$before" ]]; then'
        yield f"    {requeue}"
        yield "  fi"
    yield "}"
    yield "stopped='' child=''"
    yield "# shellcheck disable=SC2317,SC2329  # called by the traps"
    yield "stop() {"
    yield "  stopped=$1"
    yield '  if [[ -n $child ]]; then kill -TERM "$child" || true; else exit 143; fi'
    yield "}"
    yield "trap 'stop SIGTERM' TERM"
    yield "trap 'stop SIGINT' INT"
    if requeue:
        yield f"trap 'stop {LIMIT_SIGNAL}' {LIMIT_SIGNAL[3:]}"
    if job.stage:
        yield "# Once a node: copied to its own disk, every byte checked there."
        stage = ['"${container[@]}" "$python"', '-m rn50.cli.entry data stage --to "$data"']
        yield bash_array("staging", stage)
    yield "trap finish EXIT"
    yield 'echo running >"$folder/exit_code"'
    if job.stage:
        yield '"${per_node[@]}" mkdir -p -- "${data%/*}"'
    yield '"${once[@]}" "$python" -m rn50.cli.entry data prepare -- "${config[@]}"'
    if job.stage:
        yield '"${per_node[@]}" "${staging[@]}" -- "${config[@]}"'


def _runs(run: Run, runs: int) -> Iterator[str]:
    yield 'steps=("${once[@]}" "$python" -m rn50.launch.job_steps)'
    yield "failed=0"
    yield f"for ((n = 0; n < {runs}; n++)); do"
    yield "  out=$folder/run_$n code=0"
    yield '  "${steps[@]}" begin "$out" "$data" "${config[@]}" || code=$?'
    yield "  if ((code == 10 || code == 11)); then # this run ended in a start before this one"
    yield "    failed=$((failed | (code - 10)))"
    yield "    continue"
    yield "  fi"
    yield '  if ((code)); then exit "$code"; fi'
    yield '  train=("$python" -m rn50.train "$out/config.yaml" --out "$out")'
    yield "  if [[ -s $out/resume_from ]]; then # interrupted: on from its checkpoint"
    yield '    train+=(--resume "$(<"$out/resume_from")")'
    yield "  fi"
    if run.system.job.drop_caches:
        yield '  "${per_node[@]}" bash -c \'sync'
        yield "    { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null ||"
        yield "      sudo -n sysctl -q vm.drop_caches=3'"
    yield '  "${ranks[@]}" "${train[@]}" 2>"$out/stderr.log" &'
    yield "  child=$!"
    yield '  wait "$child" || code=$?'
    yield '  if [[ -n $stopped ]]; then wait "$child" || code=$?; fi'
    yield "  child='' end=0"
    yield '  "${steps[@]}" end "$out" "$code" "$stopped" "$SECONDS" || end=$?'
    yield "  if [[ -n $stopped ]]; then exit 143; fi"
    yield "  # 1: short of its target, the next one may start; above: a rank failed."
    yield '  if ((end > 1)); then exit "$end"; fi'
    yield "  failed=$((failed | end))"
    yield "done"
    if runs > 1:
        yield '"${once[@]}" "$python" -m rn50.cli.entry log score \\'
        yield f'  "$folder/results/{system_id(run)}/resnet" || true'
    yield 'exit "$failed"'


def bash_array(name: str, tokens: Sequence[str]) -> str:
    """A Bash array of tokens that are shell text already, in lines of up to 100 columns."""
    lines = [f"{name}=({tokens[0]}"]
    for token in tokens[1:]:
        if len(lines[-1]) + len(token) > 97:
            lines.append(f"  {token}")
        else:
            lines[-1] += f" {token}"
    return "\n".join(lines) + ")"
