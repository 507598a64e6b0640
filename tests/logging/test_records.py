"""Records of a run: what is written reads back the same, and what does not fit is one line."""

from pathlib import Path
from typing import Any

import pytest

from rn50.host.errors import UserError
from rn50.launch.engine_environment import EngineSettings
from rn50.launch.environment_record import describe_environment
from rn50.logging.records import (
    Environment,
    Next,
    Result,
    Stopped,
    Verdict,
    read,
    write,
)
from tests.conftest import read_json, write_json


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert read(path, Result) is None
    onward = Next("launch --resume", "a b", ("--launcher", "mpi"))
    check = Verdict("PASS", messages=("x",))
    result = Result(
        "aborted", "why", Stopped("SIGTERM", 9), onward, epochs=0, check=check
    )
    write(path, result)
    assert read(path, Result) == result
    assert {"seed", "repeats"}.isdisjoint(read_json(path))
    assert str(onward) == "rn50 launch --resume 'a b' --launcher mpi"


def test_the_environment_of_a_run_reads_back(tmp_path: Path) -> None:
    settings = EngineSettings({"OMP_NUM_THREADS": "1"}, {}, {"PMI_RANK": "x"})
    record = describe_environment(settings, "gloo", ["python"])
    write(tmp_path / "environment.json", record)
    assert read(tmp_path / "environment.json", Environment) == record
    assert record.packages
    assert record.machine
    assert record.processor


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"stopped": "asked to stop at step 9"}, "stopped: "),  # of an older version
        ({"next": {"verb": "launch"}}, "next.folder: "),
        ({"format": 2}, "format: "),
        ({"ranks": True}, "ranks: "),
        ({"target": float("inf")}, "JSON: "),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, more: dict[str, Any], key: str
) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"status": "aborted"} | more)
    with pytest.raises(UserError) as caught:
        read(path, Result)
    assert len(caught.value.args) == 1
    assert str(caught.value).startswith(f"{path}: {key}")
