"""What this process and its device use while a run's clock runs: memory, cores, GPU, energy.

Energy is that of the packages and their memory by Intel's and AMD's counters (RAPL, of the whole
host, read by its local rank 0) and of the rank's GPU by its driver (NVML). Fans, power supplies,
network and storage are not in it: it is no figure of MLPerf Power, which measures at the wall.
"""

from __future__ import annotations

import ctypes
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .gpu import LIBRARY

_POWERCAP = Path("/sys/class/powercap")
_NVML = "libnvidia-ml.so.1"


class Used(NamedTuple):
    """Since `Usage` was made. NaN: cannot be read here."""

    memory_peak_bytes: int
    """Of the process since its start, resident."""
    cpu_s: float
    """Of all its threads."""
    host_energy_j: float
    gpu_energy_j: float
    gpu_busy: float
    """Share of the time in which a kernel ran, by the driver; the mean over the log points."""
    gpu_memory_peak_bytes: float
    """At a log point, of all processes on it."""


class Usage:
    """Counters from now on; `sample` at every log point.

    Args:
        device_id: of the rank's GPU, as CUDA counts; None: it has none.
        reads_host: whether this rank answers for the host's counters.
    """

    def __init__(
        self,
        *,
        device_id: int | None,
        reads_host: bool,
        powercap: Path = _POWERCAP,
        libraries: tuple[str, str] = (LIBRARY, _NVML),
    ) -> None:
        self._cpu_begun_s = time.process_time()
        self._zones = _Zones(powercap) if reads_host else None
        self._gpu = None if device_id is None else _Gpu.find(device_id, *libraries)

    def sample(self) -> None:
        """Read what is an instant's value, and counters that begin anew."""
        if self._zones:
            self._zones.sample()
        if self._gpu:
            self._gpu.sample()

    def used(self) -> Used:
        self.sample()
        gpu = self._gpu
        nan = float("nan")
        return Used(
            memory_peak_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            cpu_s=time.process_time() - self._cpu_begun_s,
            host_energy_j=self._zones.joules if self._zones else nan,
            gpu_energy_j=gpu.joules if gpu else nan,
            gpu_busy=sum(gpu.busy) / len(gpu.busy) if gpu and gpu.busy else nan,
            gpu_memory_peak_bytes=gpu.memory_peak_bytes if gpu else nan,
        )


class _Zones:
    """RAPL's packages and their memory. Linux lets root alone read them since 5.10."""

    def __init__(self, powercap: Path) -> None:
        self.joules = float("nan")
        self._last_uj: dict[Path, int] = {}
        for zone in sorted(powercap.glob("*-rapl:*")):
            with suppress(OSError, ValueError):
                name = (zone / "name").read_text().strip()
                if name.startswith("package") or name == "dram":
                    self._last_uj[zone] = _read(zone / "energy_uj")
                    self.joules = 0.0

    def sample(self) -> None:
        for zone, last_uj in self._last_uj.items():
            with suppress(OSError, ValueError):
                now_uj = _read(zone / "energy_uj")
                wrapped = _read(zone / "max_energy_range_uj") if now_uj < last_uj else 0
                self.joules += (now_uj - last_uj + wrapped) / 1e6
                self._last_uj[zone] = now_uj


def _read(path: Path) -> int:
    return int(path.read_text())


class _Gpu:
    """One GPU, asked through its driver's own libraries."""

    def __init__(self, nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._nvml, self._handle = nvml, handle
        self.busy: list[float] = []
        self.memory_peak_bytes = float("nan")
        self._begun_mj = self._energy_mj()

    @classmethod
    def find(cls, device_id: int, cuda_library: str, nvml_library: str) -> _Gpu | None:
        """The GPU that CUDA counts as `device_id`; None: it cannot be asked."""
        handle, bus = ctypes.c_void_p(), ctypes.create_string_buffer(32)
        try:
            cuda, nvml = ctypes.CDLL(cuda_library), ctypes.CDLL(nvml_library)
            failed = (
                cuda.cuInit(0)
                or cuda.cuDeviceGetPCIBusId(bus, len(bus), device_id)
                or nvml.nvmlInit_v2()
                or nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle))
            )
        except (OSError, AttributeError):
            return None
        return None if failed else cls(nvml, handle)

    @property
    def joules(self) -> float:
        return (self._energy_mj() - self._begun_mj) / 1e3

    def sample(self) -> None:
        shares = (ctypes.c_uint * 2)()  # nvmlUtilization_t: gpu, memory, in percent
        if not self._nvml.nvmlDeviceGetUtilizationRates(self._handle, shares):
            self.busy.append(shares[0] / 100)
        memory = (ctypes.c_ulonglong * 3)()  # nvmlMemory_t: total, free, used
        if not self._nvml.nvmlDeviceGetMemoryInfo(self._handle, memory):
            self.memory_peak_bytes = max(memory[2], self.memory_peak_bytes)

    def _energy_mj(self) -> float:
        value = ctypes.c_ulonglong()  # from Volta on
        failed = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(value))
        return float("nan") if failed else float(value.value)
