"""What `check` asks of a machine with one GPU, a function each; run by name in its own process.

A check returns what it measured. It raises Failed where the GPU answers wrong, NoGpu where there
is none, and whatever the libraries raise.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...train.gpu import SUPPORTED
from .device import DEVICE_ID, REHEARSE, Failed, Found, find_gpu
from .operators import OPERATORS, put

SEEDS = {"shuffle": 11, "augment": 12, "flip": 13}
BATCH, COMPARED, WINDOWS, BATCHES = 32, 6, 9, 12
LUMA = np.array([0.299, 0.587, 0.114], "float32")
LIMITS = {"brightness mean": 1.5, "brightness max": 32.0, "colour mean": 9.0}
"""Grey levels between two decoders of one JPEG. libjpeg-turbo against itself on these images, with
its quick transform and each colour value repeated as nvJPEG does it, not interpolated: 0.8, 17 and
7.5. One pixel to the side: 14.7 and 199 in brightness."""


# --- the machine and the program ----------------------------------------------------------------


def facts() -> Found:
    """GPU, driver, libraries."""
    name, capability = find_gpu()
    driver = Path("/proc/driver/nvidia/version")
    import mxnet as mx
    from nvidia import dali

    number = ctypes.c_int()
    libraries = Path(mx.__file__).parent
    ctypes.CDLL(str(libraries / "libnccl.so.2")).ncclGetVersion(ctypes.byref(number))
    return {
        "GPU": name,
        "capability": capability,
        "driver": driver.read_text().splitlines()[0] if driver.exists() else None,
        "glibc": platform.libc_ver()[1],
        "python": platform.python_version(),
        "mxnet": mx.__version__,
        "dali": dali.__version__,
        "cudnn": ctypes.CDLL(str(libraries / "libcudnn.so.8")).cudnnGetVersion(),
        "nccl": number.value,
    }


def train(*arguments: str) -> tuple[int, list[str]]:
    """Exit code of one rank, and what it said to the error stream about its end."""
    out = Path(os.environ["RN50_BRINGUP_OUT"]) / "rank"
    out.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "rn50.train", *arguments, "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return done.returncode, [line for line in done.stderr.splitlines() if "rank 0 on " in line]


def refusal() -> Found:
    """A rank on a GPU that MXNet has no code for ends with one line, before it looks for data."""
    name, capability = find_gpu()
    if tuple(map(int, capability.split("."))) <= SUPPORTED[1]:
        return {"not applicable": f"MXNet has code for {name} ({capability})"}
    settings = ("system.device=gpu", "system.ranks_per_node=1", "data.path=/nonexistent")
    code, said = train("smoke", *settings)
    line = said[-1] if said else "nothing"
    if code != 3 or len(said) != 1:
        raise Failed(f"exit code 3 and one line expected, found {code} and {line}")
    if capability not in line or name not in line or "/nonexistent" in line:
        raise Failed(f"a line that names {name} and {capability} expected, found {line}")
    return {"exit code": code, "said": line}


def exit_codes() -> Found:
    """Of one rank: a config that is none, and ranks that do not fit the launcher."""
    found = {}
    for name, arguments in {
        "no such config": ("nosuch",),
        "two ranks expected": ("smoke", "system.ranks_per_node=2"),
    }.items():
        code, said = train(*arguments)
        if code != 3 or len(said) != 1:
            raise Failed(f"{name}: exit code 3 and one line expected, found {code} and {said}")
        found[name] = said[0]
    return found


# --- DALI ---------------------------------------------------------------------------------------


def source(name: str, device_id: int | None, split: str = "train", **settings: Any) -> Any:
    """The program's own input pipeline over one of the packed sets."""
    from ...config.plan import Plan, Segment
    from ...config.schema import Data
    from ...data.dataset import load_table
    from ...data.pipeline import build_eval_source, build_train_source

    folder = Path(os.environ["RN50_BRINGUP_IMAGES"]) / name
    size, batch = (224, BATCH) if name == "whole" else (32, 4)
    chosen: dict[str, Any] = {
        "path": str(folder),
        "classes": 10,
        "train_samples": len(load_table(folder, "train")),
        "eval_samples": len(load_table(folder, "val")),
        "crop_px": size,
        "eval_resize_px": size * 8 // 7,
        "decode_threads": min(os.cpu_count() or 1, 16),
    }
    data = Data.model_validate(chosen | settings)
    if split == "val":
        return build_eval_source(data, batch_per_rank=batch, rank=0, ranks=1, device_id=device_id)
    plan = Plan(1, data.train_samples, "mix", (Segment(1, 0, 0, batch, active_ranks=1),))
    return build_train_source(data, plan, rank=0, seeds=SEEDS, device_id=device_id)


def on_host(tensors: Any) -> NDArray[Any]:
    """DALI's own copy of a batch to the host."""
    return np.array((tensors if DEVICE_ID is None else tensors.as_cpu()).as_array())


def dali_pixels() -> Found:
    """DALI's mixed pipeline gives the CPU's batches: labels equal, pixels within the tolerance."""
    from ...config.schema import Data

    std = np.array(Data().std, "float32")[:, None, None]
    found: Found = {}
    for split in ("train", "val"):
        plain = source("whole", None, split)
        mixed = source("whole", DEVICE_ID, split)
        apart = []
        for step in range(COMPARED):
            expected = [part.as_array() for part in plain.run()]
            batch = [on_host(part) for part in mixed.run()]
            if not np.array_equal(expected[1], batch[1]):
                raise Failed(f"{split}, batch {step}: the CPU's labels expected, found others")
            apart.append((expected[0] - batch[0]) * std)
        colour = np.concatenate(apart)
        brightness = np.abs(np.einsum("nchw,c->nhw", colour, LUMA))
        levels = (brightness.mean(), brightness.max(), np.abs(colour).mean())
        found[split] = dict(zip(LIMITS, (round(float(level), 3) for level in levels), strict=True))
        found[split]["colour max"] = round(float(np.abs(colour).max()), 1)
        if any(found[split][key] > limit for key, limit in LIMITS.items()):
            raise Failed(f"{split}: at most {LIMITS} levels apart expected, found {found[split]}")
    return found


def dali_speed() -> Found:
    """Images/s of both pipelines, batches left where they are: median, lowest, highest of n."""
    found: Found = {"n": WINDOWS, "images each": BATCHES * BATCH, "cores": os.cpu_count()}
    for name, device_id in (("CPU", None), ("mixed", DEVICE_ID)):
        stream = source("whole", device_id)
        rates = []
        for _ in range(WINDOWS + 1):
            start_s = time.perf_counter()
            for _ in range(BATCHES):
                stream.run()
            rates.append(BATCHES * BATCH / (time.perf_counter() - start_s))
        found[f"{name} images/s"] = [
            round(value) for value in (statistics.median(rates[1:]), min(rates[1:]), max(rates[1:]))
        ]
    return found


def dali_broken() -> Found:
    """A JPEG that does not decode, or half of one: the same line, or the same skip, as on a CPU."""
    found: Found = {}
    for name in ("broken", "cut"):
        for skip_bad in (0, 1):
            told = [read_all(name, device, skip_bad) for device in (None, DEVICE_ID)]
            key = f"{name}, skip_bad={skip_bad}"
            found[key] = told[1]
            # The cause is the decoder's text; what comes before it is ours.
            ours = [text.partition(" expected, found ")[0].partition("): ")[0] for text in told]
            if ours[0] != ours[1] or any("\n" in text.strip() for text in told):
                raise Failed(f"{key}: '{told[0]}' as on the CPU expected, found '{told[1]}'")
    return found


def read_all(name: str, device_id: int | None, skip_bad: int) -> str:
    """What two epochs over a small set say: the labels shown, warnings, the error that ends it."""
    from ...config.errors import UserError

    said = io.StringIO()
    labels: list[int] = []
    with contextlib.redirect_stderr(said):
        try:
            stream = source(name, device_id, skip_bad=skip_bad)
            for _ in range(6):
                _, shown = stream.run()
                host = shown if device_id is None else shown.as_cpu()
                labels += np.array(host.as_array()).ravel().astype(int).tolist()
        except UserError as error:
            return str(error)
    return f"labels {''.join(map(str, labels))} {said.getvalue()}".strip()


def dlpack() -> Found:
    """DALI's GPU tensor becomes MXNet's array, and its copy to the host is DALI's own copy."""
    import mxnet as mx

    stream = source("whole", DEVICE_ID)
    held = []
    for _ in range(8):  # more than DALI's buffers: none may be written while MXNet holds it
        pixels, labels = stream.run()
        expected = on_host(pixels), on_host(labels)
        arrays = [mx.nd.from_dlpack(part.as_tensor().__dlpack__()) for part in (pixels, labels)]
        held.append((arrays, expected))
        del pixels, labels
    context = str(held[0][0][0].context)
    if context != ("cpu(0)" if REHEARSE else "gpu(0)"):
        raise Failed(f"an array on gpu(0) expected, found {context}")
    for step, (arrays, expected) in enumerate(held):
        for array, wanted in zip(arrays, expected, strict=True):
            if not np.array_equal(array.asnumpy().reshape(wanted.shape), wanted):
                raise Failed(f"batch {step}: DALI's own copy expected, found other values")
    return {"context": context, "batches": len(held)}


# --- Horovod ------------------------------------------------------------------------------------


def horovod() -> Found:
    """One rank over NCCL: join, sum a float32 and a float16 array on the GPU, leave."""
    import horovod.mxnet as hvd
    import mxnet as mx

    if not REHEARSE and not hvd.nccl_built():
        raise Failed("Horovod built over NCCL expected, found one without")
    start_s = time.perf_counter()
    hvd.init()
    found: Found = {"nccl_built": hvd.nccl_built(), "size": hvd.size()}
    found["init s"] = round(time.perf_counter() - start_s, 2)
    for dtype in ("float32", "float16"):
        values = (np.arange(1 << 16) % 100).astype(dtype)
        array = put(values)
        start_s = time.perf_counter()
        hvd.allreduce_(array, op=hvd.Sum, name=f"sum-{dtype}")
        result = array.asnumpy()
        found[f"{dtype} s"] = round(time.perf_counter() - start_s, 2)
        if not np.array_equal(result, values):
            raise Failed(f"{dtype}: the sum over one rank expected, found other values")
    mx.nd.waitall()
    hvd.shutdown()
    return found


CHECKS: dict[str, tuple[Callable[[], Found], int]] = {  # and their time limits in seconds
    "facts": (facts, 60),
    "refusal": (refusal, 90),
    "exit_codes": (exit_codes, 90),
    "dali_pixels": (dali_pixels, 90),
    "dali_broken": (dali_broken, 60),
    "dali_speed": (dali_speed, 90),
    "dlpack": (dlpack, 60),
    **{name: (operator, 60) for name, operator in OPERATORS.items()},
    "horovod": (horovod, 240),
}
