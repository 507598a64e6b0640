"""systems/NAME.json of a submission: the machine, from the config and what the machine says.

Keys: mlperf-logging's system_desc_checker, which wants every one of them as text.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from ..config.reading import read_text
from ..config.schema import Run
from ..train.gpu import Gpus
from .environment_record import processor

UNKNOWN = ""
_UNTOLD = (
    *("host_processor_frequency", "host_processor_caches"),
    *("host_processor_interconnect", "host_storage_type", "host_storage_capacity"),
    *("host_networking_topology", "host_memory_configuration", "accelerator_host_interconnect"),
    *("accelerator_frequency", "accelerator_on-chip_memories", "accelerator_memory_configuration"),
    *("accelerator_interconnect_topology", "cooling", "hw_notes"),
)
"""Keys that the page must have and neither a config nor Linux tells."""
AVAILABILITY = {
    "onprem": "Available on-premise",
    "cloud": "Available cloud",
    "research": "Research, Development, or Internal (RDI)",
    "preview": "Preview",
}
"""log.status as the system page words it from ruleset 4.0.0 on."""


def system_id(run: Run) -> str:
    """The machine's name as a submission's folders have it: `ABCI_n512`."""
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', run.system.name)}_n{run.system.nodes}"


def read_machine(root: Path = Path("/")) -> dict[str, str]:
    """What Linux says of this machine: processor, sockets, cores, memory, system. `root`:
    where `proc`, `sys` and `etc` lie."""
    cpus = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*"))
    places = [
        (read_text(cpu / "topology/physical_package_id"), read_text(cpu / "topology/core_id"))
        for cpu in cpus
        if (cpu / "topology").is_dir()
    ]
    sockets = len({socket for socket, _ in places}) or 1
    memory = re.search(r"MemTotal:\s*(\d+) kB", read_text(root / "proc/meminfo"))
    release = re.search(r'^PRETTY_NAME="?([^"\n]*)', read_text(root / "etc/os-release"), re.M)
    return {
        "host_processors_per_node": str(sockets),
        "host_processor_model_name": processor(),
        "host_processor_core_count": str((len(set(places)) or os.cpu_count() or 1) // sockets),
        "host_processor_vcpu_count": str((len(places) or os.cpu_count() or 1) // sockets),
        "host_memory_capacity": f"{int(memory[1]) / 2**20:.0f} GB" if memory else UNKNOWN,
        "operating_system": release[1] if release else platform.platform(),
    }


def describe_system(
    run: Run,
    machine: Mapping[str, str],
    packages: Mapping[str, str],
    gpus: Gpus | None,
) -> dict[str, str]:
    """The page, every key of it as text; the arguments after `run` are read on one of its nodes.
    `packages`: of `installed_packages`; MXNet's comes first."""
    system = run.system
    count = system.ranks_per_node if system.device == "gpu" else 0
    name, _, memory = system.accelerator.partition(" GB")[0].rpartition(" ")
    (mxnet, version), *others = packages.items()
    software = [f"{package} {number}" for package, number in others]
    found = gpus.devices if gpus and count else ()
    if gpus and gpus.driver_release:
        software.append(f"NVIDIA driver {gpus.driver_release}")
    return dict.fromkeys(_UNTOLD, UNKNOWN) | {
        "submitter": run.log.org,
        "division": run.division,
        "status": AVAILABILITY.get(run.log.status, run.log.status),
        "system_name": system.name,
        "number_of_nodes": str(system.nodes),
        **machine,
        "host_networking": system.interconnect,
        "accelerators_per_node": str(count),
        "accelerator_model_name": (
            (found[0].name if found else system.accelerator) if count else "N/A"
        ),
        "accelerator_memory_capacity": f"{memory} GB" if count and name and memory else UNKNOWN,
        "accelerator_interconnect": system.interconnect if count else UNKNOWN,
        "framework": f"MXNet {version} ({mxnet})",
        "other_software_stack": ", ".join(software),
        "sw_notes": f"{system.world_size} ranks, {system.scheduler}",
    }
