"""What the engines read, and what Horovod would do otherwise than asked."""

import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from rn50.config.load import load
from rn50.launch.engine_environment import engine_environment
from rn50.launch.host_limits import may_read_others
from tests.conftest import refused
from tests.waiting import output_of

FILE = Path(__file__).parents[1] / "golden/environments.yaml"
CASES = YAML(typ="safe").load(FILE)


@pytest.mark.parametrize("case", CASES)
def test_what_a_run_sets(case: dict[str, Any]) -> None:
    config, *overrides = shlex.split(case["run"])
    run = load(config, overrides).run
    arguments = {"present": {}} | case.get("given", {})
    with refused(case.get("refused") and f"comm.algorithm: .*{case['refused']}"):
        settings = engine_environment(run, **arguments).settings
        expected = case["sets"]
        assert {name: settings.get(name) for name in expected} == expected


def test_the_users_settings_win_over_the_machines() -> None:
    users = {"NCCL_IB_HCA": "mlx5_2", "HOROVOD_CYCLE_TIME": "7"}
    of_config = (
        "system.job.environment=[OMP_NUM_THREADS=5, 'NCCL_IB_HCA==mlx5_0,mlx5_1']"
    )
    environment = engine_environment(load("quick", [of_config]).run, users)
    assert environment.user_set == users
    assert not environment.settings.keys() & users


REFUSING = """
import ctypes, struct
rows = ((0x20, 0, 0, 0), (0x15, 0, 1, 310), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000))
rules = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
program = struct.pack("HxxxxxxQ", len(rows), ctypes.addressof(rules))
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, program) == 0
from rn50.launch.host_limits import may_read_others
print(may_read_others())
"""
"""A process for which seccomp refuses process_vm_readv, as many containers do."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its number of a call")
def test_where_a_rank_may_not_read_another_open_mpi_is_told() -> None:
    assert output_of([sys.executable, "-c", REFUSING]) == "False\n"
    assert may_read_others()
    name = "OMPI_MCA_btl_vader_single_copy_mechanism"
    for present, may_copy, expected in (
        ({}, False, "none"),
        ({}, True, None),
        ({name: "xpmem"}, False, None),
    ):
        chosen = engine_environment(load("smoke").run, present, may_copy=may_copy)
        assert chosen.settings.get(name) == expected
