"""What every command line tool has: a version, completion, choices in --help, whole words."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from rn50 import __version__
from rn50.config.benchmark import RULESETS, ruleset_name
from rn50.config.choices import LAUNCHERS
from rn50.config.load import load
from tests.conftest import GOLDEN_LOG, PROGRAM, Rn50, in_this_process, refused

CONFIGS = Path(__file__).parents[2] / "config"


def shown(*arguments: str) -> str:
    """What a command shows that starts no process."""
    return in_this_process(arguments).stdout


def test_version_and_help() -> None:
    assert shown("--version") == f"rn50 {__version__}\n"
    assert shown() == shown("--help")


@pytest.mark.in_process
def test_choices_are_shown_and_refused_with_their_list(rn50: Rn50) -> None:
    for command in ("launch", "bench loop"):
        assert "mpirun|gloo|srun" in shown(*command.split(), "--help")
    assert "slurm|sge|pbs|local" in shown("submit", "--help")
    error = rn50.error("submit", "smoke", "--scheduler", "slrum", "--dry-run")
    choices = "--scheduler: slurm, sge, pbs, local expected"
    assert error.endswith(f"{choices}, found slrum; did you mean slurm?")
    # beside a folder launch/
    error = rn50.error("launch", "quick", "--launcher", "glo")
    assert error.endswith("; did you mean gloo?")
    assert "Did you mean 'launch'?" in in_this_process(("launh",)).stderr


# --- rulesets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (4.0, "4.0.0"),
        ("v4.0", "4.0.0"),
        ("V0.7.0", "0.7.0"),
        (" 3.1 ", "3.1.0"),
        ("5.0", None),
        (4, None),
        ("4.0.1", None),
        ("", None),
        (None, None),
    ],
)
def test_a_ruleset_as_people_write_it(written: object, name: str | None) -> None:
    assert ruleset_name(written) == name


@pytest.mark.in_process
def test_an_unknown_ruleset_is_refused_with_the_list(
    rn50: Rn50, tmp_path: Path
) -> None:
    with refused(r"ruleset: expected 0\.6\.0, .* found 5\.0"):
        load("smoke", ["ruleset=5.0"])
    log = shutil.copy(GOLDEN_LOG, tmp_path / "result_0.txt")
    for command in (["log", "check", log], ["log", "score", tmp_path]):
        error = rn50.error(*map(str, command), "--ruleset", "5.0")
        assert "--ruleset: " in error
        assert ", ".join(RULESETS) in error


# --- completion ---------------------------------------------------------------------------------


def completed(*arguments: str) -> set[str]:
    """What bash itself offers for the last of `words`."""
    program = shlex.quote(str(PROGRAM))
    line = " ".join(f"'{argument}'" for argument in arguments)
    script = (
        f"source <(_RN50_COMPLETE=source_bash {program}); complete -p rn50 >/dev/null; "
        f"COMP_WORDS=({line}); COMP_CWORD={len(arguments) - 1}; _rn50_completion rn50; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}"}
    command = ["bash", "-c", script]
    out = subprocess.check_output(command, env=environment, text=True)
    return set(out.split())


@pytest.mark.parametrize(
    ("command_line", "offered"),
    [
        ("lo", {"log"}),
        ("launch qui", {path.stem for path in CONFIGS.glob("qui*.yaml")}),
        ("launch quick --launcher ", set(LAUNCHERS)),
        ("predict --system dgxh", {"dgxh100", "dgxh100_own"}),
        ("launch quick optimizer.base", {"optimizer.base_lr="}),
    ],
)
def test_completion_in_bash(command_line: str, offered: set[str]) -> None:
    assert completed("rn50", *command_line.split(" ")) == offered
