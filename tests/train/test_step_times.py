"""Where a step goes: the stamps of MXNet's engine, what is made of them, the profiled window."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mxnet import nd

from rn50.config.values import profiled_steps
from rn50.logging.metrics_read import read_metrics
from rn50.logging.timeline import Timeline
from rn50.train.nvtx import phase_ranges
from rn50.train.profile_window import add_collectives, add_operators
from rn50.train.step_times import PHASES, StepTimes, percentiles, phases_ms
from rn50.train.usage import Usage

# Two steps: host asks, has the batch; forward, backward, reduction, update are done.
STAMPS = np.array([[1.0, 1.1, 2.0, 4.0, 4.5, 4.6], [1.2, 5.0, 6.0, 8.0, 7.9, 8.1]])


def test_phases_add_up_to_the_step() -> None:
    ms = phases_ms(STAMPS, begun_s=0.5)
    by_name = [dict(zip(PHASES, row.round(3).tolist(), strict=False)) for row in ms]
    assert by_name[0] == {
        "host": 500, "input": 100, "forward": 900, "backward": 2000, "reduction": 500, "update": 100
    }  # fmt: skip
    # The second batch came 0.4 s after the device was free; its sums were there before backward's
    # end, as a rank alone sees them.
    assert by_name[1] == {
        "host": 0, "input": 400, "forward": 1000, "backward": 2000, "reduction": 0, "update": 100
    }  # fmt: skip
    assert ms[:, : len(PHASES)].sum(axis=1) == pytest.approx([4100, 3500])
    assert ms[:, -1].tolist() == [0, 0]  # no batch lay ready


def test_a_step_after_an_evaluation_begins_with_its_own_request() -> None:
    ms = phases_ms(STAMPS, begun_s=np.nan)
    assert ms[0, 0] == 0 and ms[0, : len(PHASES)].sum() == pytest.approx(3600)
    assert phases_ms(STAMPS[:0], np.nan).shape == (0, len(PHASES) + 1)
    ready = phases_ms(STAMPS[:1], begun_s=1.5)  # the batch came before the device was free
    assert ready[0, 1] == 0 and ready[0, -1] == pytest.approx(400)


def test_percentiles_fit_a_record(tmp_path: Path) -> None:
    found = percentiles(phases_ms(STAMPS, 0.5))
    assert found["step_p50_ms"] == pytest.approx(3800)
    assert found["step_max_ms"] == pytest.approx(4100)
    record = {"kind": "steps", "time_s": 1.0, "step": 2, **found}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    assert read_metrics(tmp_path / "metrics.jsonl").records == (record,)


def test_the_engine_stamps_what_it_has_done_and_nothing_waits() -> None:
    """Backward is a product of 0.1 s here; enqueuing it and its stamps takes no time."""
    times, square = StepTimes(4), nd.ones((1000, 1000))
    comm: Any = SimpleNamespace(buckets=[square, nd.ones(1)], written_last=[square])
    for step in range(1, 8):
        times.detailed = range(3, 5)
        begun_s = time.perf_counter()
        times.ask(step)
        times.batch()
        times.forward(square)
        comm.buckets[0] = comm.written_last[0] = backward = nd.dot(square, square)
        times.backward(comm)
        times.reduction(comm)
        times.update([backward])
        enqueued_s = time.perf_counter() - begun_s
        assert len(times.log_point()) <= step
        backward.wait_to_read()
        computed_s = time.perf_counter() - begun_s
    assert enqueued_s < computed_s / 2
    nd.waitall()
    block = times.end_block()
    assert [step for step, _ in block] == list(range(1, 8))
    ms = times.all_ms()
    share = ms[:, PHASES.index("backward")].sum() / ms[:, : len(PHASES)].sum()
    assert share > 0.8
    timeline = Timeline(3)
    times.add_profiled(timeline, later_s=100.0)
    names = [span["name"] for span in timeline.spans]
    assert names.count("backward") == 2 and {"step 3", "step 4", "allreduce group 1"} <= set(names)
    assert {span["pid"] for span in timeline.spans} == {3}


def take_step(times: StepTimes, step: int) -> None:
    comm: Any = SimpleNamespace(buckets=[nd.ones(1)], written_last=[nd.ones(1)])
    times.ask(step)
    times.batch()
    times.forward(nd.ones(1))
    times.backward(comm)
    times.reduction(comm)
    times.update(comm.buckets)


def test_steps_without_this_rank_are_in_no_figure() -> None:
    """Its share of the batch is none in steps 7 to 40: it asks for no batch in them."""
    times = StepTimes(4)
    for step in range(1, 7):
        take_step(times, step)
        if step == 4:
            nd.waitall()
            times.log_point()
    nd.waitall()
    time.sleep(0.2)
    for step in (41, 42):
        take_step(times, step)
    nd.waitall()
    assert len(times.log_point()) == 2
    assert [step for step, _ in times.end_block()] == [*range(1, 7), 41, 42]
    ms = times.all_ms()
    assert len(ms) == 8
    assert ms[6, PHASES.index("host")] == 0  # what lay between is no waiting


@pytest.mark.parametrize(
    ("text", "steps"),
    [("20", range(11, 31)), ("101-120", range(101, 121)), (None, range(0)), ("7-7", range(7, 8))],
)
def test_steps_to_profile(text: str | None, steps: range) -> None:
    assert profiled_steps(text) == steps


def test_traces_become_spans_of_the_runs_clock() -> None:
    timeline = Timeline(1)
    pair = [
        {"name": "Convolution", "ph": p, "ts": t, "tid": 7} for p, t in (("B", 5e6), ("E", 6e6))
    ]
    noise = [{"name": "DeleteVariable", "ph": p, "ts": 5e6, "tid": 7} for p in "BE"]
    add_operators(timeline, [{"ph": "M"}, *noise, pair[1], *pair, {"ph": "b", "ts": 1}], 2.0)
    epoch = {"name": "process_name", "pid": 0, "args": {"start_time_since_epoch_in_micros": 9e6}}
    tensor = {"name": "process_name", "pid": 4, "args": {"name": "horovod_allreduce.group1"}}
    inner = [
        {"ph": p, "pid": 4, "ts": t, "name": n}
        for p, t, n in (("B", 1e6, "ALLREDUCE"), ("B", 2e6, "MPI_ALLREDUCE"), ("E", 3e6, ""))
    ]
    add_collectives(timeline, [epoch, tensor, *inner, {"ph": "E", "pid": 4, "ts": 4e6}], 2.0)
    found = [(s["name"], s["ts"], s["dur"], s["tid"]) for s in timeline.spans]
    assert found == [
        ("Convolution", 7e6, 1e6, "MXNet's engine, thread 0"),
        ("MPI_ALLREDUCE", 13e6, 1e6, "Horovod, allreduce.group1"),
        ("ALLREDUCE", 12e6, 3e6, "Horovod, allreduce.group1"),
    ]


def compiled(tmp_path: Path, text: str) -> str:
    """A library that stands for a driver's."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    source, library = tmp_path / "driver.c", tmp_path / "libdriver.so"
    source.write_text(text)
    command = ["g++", "-x", "c", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return str(library)


def test_ranges_for_nvidias_profilers(tmp_path: Path) -> None:
    library = compiled(
        tmp_path,
        "#include <string.h>\n"
        "int seen_open, seen_most; char seen_last[40];\n"
        "int nvtxRangePushA(const char *name) { strcpy(seen_last, name);\n"
        "  if (++seen_open > seen_most) seen_most = seen_open; return 0; }\n"
        "int nvtxRangePop(void) { seen_open--; return 0; }\n",
    )
    begin = phase_ranges(library)
    for name in PHASES:
        begin(name)
    seen = ctypes.CDLL(library)
    values = [ctypes.c_int.in_dll(seen, name).value for name in ("seen_open", "seen_most")]
    assert values == [1, 1]
    assert (ctypes.c_char * 40).in_dll(seen, "seen_last").value == b"update"
    phase_ranges("libnone.so")("forward")


def zone(folder: Path, name: str, energy_uj: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", 10**9)):
        (folder / file).write_text(f"{value}\n")
    return folder


def test_energy_of_packages_and_memory_over_a_counters_end(tmp_path: Path) -> None:
    package = zone(tmp_path / "intel-rapl:0", "package-0", 999_000_000)
    memory = zone(tmp_path / "intel-rapl:0:0", "dram", 0)
    zone(tmp_path / "intel-rapl:0:1", "core", 5)
    usage = Usage(device_id=None, reads_host=True, powercap=tmp_path)
    zone(package, "package-0", 3_000_000)  # began anew
    zone(memory, "dram", 2_000_000)
    zone(tmp_path / "intel-rapl:0:1", "core", 10**8)  # in the package's already
    used = usage.used()
    assert used.host_energy_j == pytest.approx(6)
    assert used.memory_peak_bytes > 1 << 20 and used.cpu_s >= 0
    assert np.isnan(used.gpu_energy_j) and np.isnan(used.gpu_busy)
    other = Usage(device_id=None, reads_host=False, powercap=tmp_path).used()
    assert np.isnan(other.host_energy_j)
    none = Usage(device_id=0, reads_host=True, powercap=tmp_path / "none", libraries=("no", "no"))
    assert np.isnan(none.used().host_energy_j) and np.isnan(none.used().gpu_busy)


DRIVER = r"""
#include <string.h>
int cuInit(int flags) { return 0; }
int cuDeviceGetPCIBusId(char *bus, int n, int d) { strcpy(bus, d == 2 ? "02" : "?"); return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
  *handle = (void *)2;
  return strcmp(bus, "02");
}
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *mj) {
  static int calls;
  *mj = handle == (void *)2 ? 1000 * ++calls : 0;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *percent) {
  percent[0] = 75;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *bytes) {
  bytes[2] = 10;
  return 0;
}
"""


def test_a_gpu_is_asked_by_its_place_on_the_bus(tmp_path: Path) -> None:
    library = compiled(tmp_path, DRIVER)
    usage = Usage(device_id=2, reads_host=False, libraries=(library, library))
    used = usage.used()
    assert (used.gpu_energy_j, used.gpu_busy, used.gpu_memory_peak_bytes) == (1, 0.75, 10)
