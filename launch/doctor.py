"""`rn50 doctor`: what of this machine a run needs, looked at or tried, one row each.

The libraries are tried in processes of their own (`python -m rn50.launch.doctor LIBRARY DEVICE`):
on a GPU that they have no code for they may crash or hang.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import psutil

from ..host.errors import UserError
from ..host.inherited import LOCAL_JOB, inherited
from ..host.programs import NoAnswer, ask, ended_by
from ..host.progress import say
from ..train.communication.mpi_library import horovods_mpi
from ..train.cuda.code import PLAN_CAPABILITIES, gpu_code, runs
from ..train.cuda.driver import LIBRARY, Gpu, Gpus, check_driver, dotted, read_gpus
from ..train.mxnet_package import library
from . import nccl_trial
from .host_limits import SMALL_SHARED_BYTES, check_open_files, read_limits
from .installed import SITE, folders
from .launchers import LAUNCHERS, OF_FAMILY, pick_launcher
from .mpi_program import mpi_on_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

OK = "ok"
FAILED = "failed"
NO_GPU = "no GPU"
PATIENCE_S = 120
"""For one process; on two busy cores they took 9 s."""
MOST_OFF = {"float32": 0.003, "float16": 0.01}
"""Largest difference from NumPy, or from the losses on the CPU, as a share of the largest value;
TF32 may serve as float32."""
CUDA_LIBRARIES = {"cuDNN": "libcudnn", "cuBLAS": "libcublas", "NCCL": "libnccl"}
"""How the names of a library's files begin."""
MOST_GREY_LEVELS = 1.5
"""Mean difference of two decoders of one JPEG. libjpeg-turbo against itself with its quick
transform and colours repeated as nvJPEG does it: 0.8. One pixel to the side: 14.7."""


class Row(NamedTuple):
    """One thing that was looked at or tried; its outcome is OK, FAILED or NO_GPU."""

    check: str
    outcome: str
    found: str


def examine(hosts: Sequence[str]) -> Iterator[Row]:
    """Look at this machine and try the libraries of a run on its CPU and on each GPU. `hosts`:
    names that have to resolve beside this machine's own."""
    gpus = read_gpus()
    # else the command ends here
    yield Row("packages", OK, f"{len(folders(SITE))}, no file is gone")
    yield from machine_rows(hosts)
    yield from mpi_rows()
    yield from gpu_rows(gpus, library())
    devices = ["cpu"]
    if gpus:
        devices += [f"gpu{number}" for number in range(len(gpus.devices))]
    for device in devices:
        yield from try_library("mxnet", device)
        yield from try_library("dali", device)
    if len(devices) > 2:
        yield from gpus_together(len(devices) - 1)
    if len(devices) == 1:
        yield Row("MXNet and DALI on a GPU", NO_GPU, "not tried")


# --- what is looked at ----------------------------------------------------------------------------


def machine_rows(hosts: Sequence[str]) -> Iterator[Row]:
    """Memory, /dev/shm, limits of the shell, names of hosts."""
    limits = read_limits()
    free_bytes = psutil.virtual_memory().available
    cores = len(os.sched_getaffinity(0))
    system = " ".join(platform.libc_ver())
    yield Row("machine", OK, f"{platform.node()}: {cores} cores, {system}")
    yield Row("memory", OK, f"{free_bytes / 1e9:.1f} GB free")
    outcome = OK
    shared = f"{limits.shared_free_bytes / 1e6:,.0f} MB free"
    if limits.shared_free_bytes < SMALL_SHARED_BYTES:
        outcome = FAILED
        expected = f"{SMALL_SHARED_BYTES / 1e6:.0f} MB"
        shared += f"; {expected} expected (docker run --shm-size)"
    yield Row("/dev/shm", outcome, shared)
    files = f"{limits.ulimits.get('n', 'unlimited')} files"
    yield _unless_refused("ulimit -n", lambda: check_open_files(limits), files)
    for host in (platform.node(), *hosts):
        outcome = OK
        try:
            address = str(socket.getaddrinfo(host, None)[0][4][0])
        except (OSError, UnicodeError) as error:
            # a container without a network: MPI does without
            address = "no address; the launcher gloo needs one"
            if hosts:
                outcome = FAILED
                address = f"an address expected, found none ({error})"
        yield Row(f"host {host}", outcome, address)


def mpi_rows() -> Iterator[Row]:
    """The launcher of the MPI that Horovod was linked to, where it was linked to one."""
    if library := horovods_mpi():
        launcher = LAUNCHERS[OF_FAMILY[library.family or "openmpi"]]
        mpi = mpi_on_path(launcher.program, library)
        outcome = FAILED if mpi.first and mpi.right is None else OK
        yield Row(launcher.program, outcome, str(mpi))


def gpu_rows(gpus: Gpus | None, path: Path | None) -> Iterator[Row]:
    """The driver, and each GPU against the machine code of MXNet."""
    if not gpus:
        yield Row("driver", NO_GPU, f"no driver ({LIBRARY})")
        return
    if not gpus.devices:
        yield Row("driver", NO_GPU, "a driver, which shows no device")
        return
    release = (
        f"{gpus.driver_release or 'unknown release'}, CUDA {dotted(gpus.driver_cuda)}"
    )
    yield _unless_refused("driver", lambda: check_driver(gpus.driver_cuda), release)
    code = gpu_code(path) if path else {}
    for number, gpu in enumerate(gpus.devices):
        yield code_row(number, gpu, code)


def code_row(number: int, gpu: Gpu, code: Mapping[str, Collection[int]]) -> Row:
    """Whether a GPU can run the `code` of MXNet, or a plan."""
    texts = []
    for form, capabilities in code.items():
        names = ", ".join(f"sm_{version}" for version in sorted(capabilities))
        texts.append(f"{form} of {names}")
    kernels = " and ".join(texts) or "no GPU code (scripts/setup.sh --gpu)"
    first, last = PLAN_CAPABILITIES
    outcome = FAILED
    if runs(code, gpu.capability):
        outcome = OK
    elif code and first <= gpu.capability <= last:
        outcome = OK
        kernels += "; model.step=plan trains ResNet here"
    name = f"{gpu.name}, compute capability {dotted(gpu.capability)}"
    return Row(f"GPU {number}", outcome, f"{name}; MXNet has {kernels}")


def library_rows(maps: str, mxnet: Path) -> Iterator[Row]:
    """Rows on which files of CUDA a process has loaded, by its /proc/self/maps; none on a CPU.
    Those that set-up linked into the folder of MXNet have to be the linked ones."""
    mapped = re.findall(r"^(?:\S+ +){5}(/.*)", maps, re.M)
    loaded = [Path(name) for name in sorted(set(mapped))]
    for name, stem in CUDA_LIBRARIES.items():
        files = [file for file in loaded if file.name.startswith(stem)]
        for file in files:
            link = mxnet / file.name
            if link.is_symlink() and link.resolve() != file:
                problem = f"{link.resolve()} expected, found {file}"
                yield Row(name, FAILED, problem)
                break
        else:  # each is the one that was linked
            if files:
                yield Row(name, OK, f"{files[0]} and {len(files) - 1} parts")


def _unless_refused(name: str, check: Callable[[], None], fact: str) -> Row:
    try:
        check()
    except UserError as error:
        return Row(name, FAILED, str(error))
    return Row(name, OK, fact)


# --- what is tried, each library and device in a process ------------------------------------------


def try_library(library: str, device: str) -> list[Row]:
    """The rows of a process that tries `mxnet` or `dali` on `cpu` or `gpu0`, up to its end."""
    return _rows_of(f"{library} on {device}", "rn50.launch.doctor", library, device)


def gpus_together(gpus: int) -> Iterator[Row]:
    """Sums over the GPUs of this node, then over the nodes of this allocation."""
    nodes = 1
    with suppress(ImportError, UserError):  # the rows say so
        nodes = len(LAUNCHERS[pick_launcher(None)].hosts())
    for count in sorted({1, nodes or 1}):
        arguments = map(str, (count, gpus))
        yield from _rows_of("NCCL", nccl_trial.MODULE, "start", *arguments)


def _rows_of(name: str, module: str, *arguments: str) -> list[Row]:
    """The rows that a module prints as JSON, up to its end."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = ask(command, PATIENCE_S, inherited(os.environ, LOCAL_JOB))
    except NoAnswer as error:
        return [Row(name, FAILED, str(error))]
    lines = re.findall(r'^\[".*', done.out, re.M)
    rows = [Row(*json.loads(line)) for line in lines]
    if done.code:
        problem = f"{ended_by(done.code)}: {done.said(_last_line(done.err))}"
        rows.append(Row(name, FAILED, problem))
    return rows


def _last_line(output: str) -> str:
    return output.strip().rpartition("\n")[2][:200]


def _try_here(library: str, device: str) -> None:
    """Try a library within this process: print a line of JSON a row, each as soon as it is
    known."""
    number = None
    if device != "cpu":
        number = int(device.removeprefix("gpu"))
    trials: dict[str, Callable[[], str]] = {}
    if library == "dali":
        trials["JPEG decoder"] = partial(decoder, number)
    else:
        import mxnet as mx

        if number is None:
            trials["convolution"] = convolution
            maps = Path("/proc/self/maps").read_text()
            for row in library_rows(maps, Path(mx.__file__).parent):
                say(json.dumps(row))
        else:
            for dtype in MOST_OFF:
                trials[f"training {dtype}"] = partial(training, mx.gpu(number), dtype)
    for name, trial in trials.items():
        outcome = OK
        try:
            outcome_text = trial()
        except Exception as error:  # whatever a library raises is what the row is for
            outcome = FAILED
            outcome_text = f"{type(error).__name__}: {_last_line(str(error))}"
        say(json.dumps(Row(f"{name} on {device}", outcome, outcome_text)))
    sys.stderr.flush()
    os._exit(0)  # a library that lost its GPU can hang on its way out


def convolution() -> str:
    """1 x 1, forward, in float32 on the CPU."""
    import mxnet as mx

    rng = np.random.default_rng(5)
    images = rng.normal(size=(8, 16, 14, 14)).astype(np.float32)
    weight = rng.normal(size=(32, 16, 1, 1)).astype(np.float32)
    expected = np.einsum("nchw,ocij->nohw", images, weight)
    out = mx.nd.Convolution(
        mx.nd.array(images),
        mx.nd.array(weight),
        kernel=(1, 1),
        num_filter=32,
        no_bias=True,
    )
    largest_error = np.abs(out.asnumpy() - expected).max()
    share = float(largest_error / np.abs(expected).max())
    # so that NaN is no success
    if not share <= MOST_OFF["float32"]:
        raise ValueError(
            f"at most {MOST_OFF['float32']} from NumPy expected, found {share:.2g}"
        )
    return f"{share:.1g} from NumPy"


def training(device: Any, dtype: str) -> str:
    """Steps of a small ResNet-50 in both layouts: losses against the CPU's."""
    import mxnet as mx

    from ..config.schema import Model
    from ..train.trial_steps import STEPS, trial_losses

    expected = trial_losses(mx.cpu(), "float32")
    worst = 0.0
    for layout in get_args(Model.model_fields["layout"].annotation):
        losses = trial_losses(device, dtype, layout)
        share = float(np.abs(losses - expected).max() / expected[0])
        if not share <= MOST_OFF[dtype]:
            raise ValueError(
                f"{layout}: losses of {STEPS} steps at most {MOST_OFF[dtype]} from the CPU's "
                f"expected, found {share:.2g}"
            )
        worst = max(worst, share)
    return f"{STEPS} steps, NCHW and NHWC: losses within {worst:.1g} of the CPU's"


def decoder(device_id: int | None) -> str:
    """DALI's decoder against libjpeg-turbo."""
    import simplejpeg

    from ..config.schema import Synthetic
    from ..data.synthetic import draw_jpeg

    settings = Synthetic(train_samples=10, eval_samples=10, min_px=375, max_px=500)
    numbers = range(settings.train_samples)
    jpegs = [draw_jpeg(settings, "train", number) for number in numbers]
    luma = np.array([0.299, 0.587, 0.114])
    differences = []
    for jpeg, image in zip(jpegs, _decode(jpegs, device_id), strict=True):
        difference = image.astype(float) - simplejpeg.decode_jpeg(jpeg)
        differences.append(np.abs(difference @ luma).mean())
    mean = float(np.mean(differences))
    if mean > MOST_GREY_LEVELS:
        raise ValueError(
            f"at most {MOST_GREY_LEVELS} grey levels expected, found {mean:.1f}"
        )
    return f"{mean:.2g} grey levels from libjpeg-turbo"


def _decode(jpegs: Sequence[bytes], device_id: int | None) -> list[NDArray[Any]]:
    """Height x width x RGB of each image, by DALI."""
    from nvidia.dali import Pipeline, fn

    pipeline = Pipeline(len(jpegs), 1, device_id, prefetch_queue_depth=1)
    with pipeline:
        batch = [np.frombuffer(jpeg, np.uint8) for jpeg in jpegs]
        encoded = fn.external_source([batch])
        backend = "cpu" if device_id is None else "mixed"
        pipeline.set_outputs(fn.decoders.image(encoded, device=backend))
    pipeline.build()
    (images,) = pipeline.run()
    if device_id is not None:
        images = images.as_cpu()
    return [np.array(images.at(number)) for number in range(len(jpegs))]


if __name__ == "__main__":
    _try_here(*sys.argv[1:])
