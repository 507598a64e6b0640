"""systems/NAME.json of a submission: the machine, from the config and what the machine says.

Keys: mlperf-logging's system_desc_checker, which wants every one of them as text.
"""

from __future__ import annotations

import platform
import re
from contextlib import suppress
from pathlib import Path

import psutil

from ..config import benchmark
from ..config.schema import Run
from ..host.reading import read_text
from ..logging.records import Driver, Environment

UNKNOWN = ""
CPUS = Path("/sys/devices/system/cpu")
FROM_LINUX = (
    "host_processors_per_node",
    "host_processor_model_name",
    "host_processor_core_count",
    "host_processor_vcpu_count",
    "host_memory_capacity",
    "operating_system",
)
"""What `read_machine` fills in."""


def system_id(run: Run) -> str:
    """The machine's name as a submission's folders have it: `ABCI_n512`."""
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', run.system.name)}_n{run.system.nodes}"


def read_machine() -> dict[str, str]:
    """What Linux says of this machine: processor, sockets, cores, memory, system."""
    packages = CPUS.glob("cpu[0-9]*/topology/physical_package_id")
    sockets = len(set(map(read_text, packages))) or 1
    threads = psutil.cpu_count() or 1
    cores = psutil.cpu_count(logical=False) or threads
    memory_bytes = psutil.virtual_memory().total
    system = f"{platform.system()} {platform.release()}"
    with suppress(OSError):
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    return {
        "host_processors_per_node": str(sockets),
        "host_processor_model_name": processor(),
        "host_processor_core_count": str(cores // sockets),
        "host_processor_vcpu_count": str(threads // sockets),
        "host_memory_capacity": f"{memory_bytes / 2**30:.0f} GB",
        "operating_system": system,
    }


def processor() -> str:
    """The model's name as the kernel has it."""
    named = re.search(r"^model name\s*: *(.*)", read_text(Path("/proc/cpuinfo")), re.M)
    if not named:
        return platform.machine()
    return named[1].strip()


def describe_system(run: Run, environment: Environment) -> dict[str, str]:
    """The page, every key of it as text; what is not known is empty. `environment`: of one of the
    nodes."""
    system = run.system
    software = [
        f"{package} {number}" for package, number in environment.packages.items()
    ]
    if system.job.container:  # the packages are the host's
        software = []
    gpus = environment.gpus or Driver()
    if gpus.driver:
        software.append(f"NVIDIA driver {gpus.driver}")
    description = {
        # a key of the page has a hyphen, which the name of a field cannot have
        key.replace("on_chip", "on-chip"): value or UNKNOWN
        for key, value in system.description.model_dump().items()
    }
    page = description | {
        "submitter": run.log.org,
        "division": run.division,
        "status": benchmark.AVAILABILITY.get(run.log.status, run.log.status),
        "system_name": system_id(run),
        "number_of_nodes": str(system.nodes),
        **(dict.fromkeys(FROM_LINUX, UNKNOWN) | environment.machine),
        "host_networking": system.interconnect,
        "accelerators_per_node": "0",
        "accelerator_model_name": UNKNOWN,
        "accelerator_memory_capacity": UNKNOWN,
        "accelerator_interconnect": UNKNOWN,
        "framework": "MXNet",
        "other_software_stack": ", ".join(software[1:]),
        "sw_notes": f"{system.world_size} ranks, {system.scheduler}",
    }
    if software:
        page["framework"] = f"MXNet ({software[0]})"
    if system.device == "cpu":
        return page | {
            key: "N/A" for key in page if "accelerator" in key and not page[key]
        }
    model, _, memory = system.accelerator.partition(" GB")[0].rpartition(" ")
    if model and memory:
        page["accelerator_memory_capacity"] = f"{memory} GB"
    models = [device.rpartition(" (")[0] for device in gpus.devices]
    return page | {
        "accelerators_per_node": str(system.ranks_per_node),
        "accelerator_model_name": next(iter(models), system.accelerator),
        "accelerator_interconnect": system.interconnect,
    }
