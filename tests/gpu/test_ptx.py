"""What NVRTC makes of device.cu is assembled for every GPU that runs it, as its driver would."""

import re
from pathlib import Path

import pytest

from tests.gpu.cuda import compile_ptx
from tests.waiting import finished


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0)])
def test_ptxas_assembles_every_kernel_without_spills(
    capability: tuple[int, int], kernels: str, site: Path, tmp_path: Path
) -> None:
    ptx_file = tmp_path / "device.ptx"
    ptx_file.write_bytes(compile_ptx(site, kernels, capability))
    ptxas = site / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
    architecture = "-arch=sm_{}{}".format(*capability)
    command = (ptxas, architecture, "-v", ptx_file, "-o", tmp_path / "device.cubin")
    done = finished(command)
    assert done.returncode == 0, done.stderr
    spilled = re.findall(
        r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr
    )
    untyped = re.findall(r"^KERNEL \w+\(", kernels, re.M)
    typed = re.findall(r"^TYPED_KERNEL\(\w+,", kernels, re.M)
    assert len(spilled) == len(untyped) + 2 * len(typed)
    assert set(spilled) == {("0", "0")}
    registers = re.findall(r"Used (\d+) registers", done.stderr)
    print(
        f"sm_{capability[0]}{capability[1]}: at most {max(map(int, registers))} registers"
    )
