"""`python -m rn50.bench.input_worker CONFIG KIND IMAGES`: one way for images to come in, measured.

Each line on stdin is a pass; the answer on stdout is its images and CPU seconds (all
threads of this process). A process of its own for each kind: MXNet and Pillow each bring a libjpeg.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..config.load import load
from ..config.plan import build_plan
from ..config.schema import Run
from ..data import recordio
from ..data.dataset import load_table

SEEDS = {"shuffle": 1, "augment": 2, "flip": 3, "operations": 4}


def _full(run: Run) -> Callable[[], Any]:
    """The pipeline of training."""
    from ..data.pipeline import build_train_source

    source = build_train_source(
        run.data, build_plan(run), rank=0, seeds=SEEDS, layout=run.model.layout
    )
    return lambda: source.next().images.wait_to_read()


def _decode(run: Run) -> Callable[[], Any]:
    """DALI decoding the windows that training would see, nothing else."""
    from nvidia.dali import fn

    from ..data import pipeline

    def graph(jpegs: Any, labels: Any, anchors: Any, shapes: Any, _: Any) -> tuple[Any, Any]:
        return fn.decoders.image_slice(
            jpegs, anchors, shapes, axis_names="HW", device="cpu", adjust_orientation=False
        ), labels

    source = pipeline.build_train_source(
        run.data, build_plan(run), rank=0, seeds=SEEDS, graph=graph
    )
    return source.run


def _read(run: Run) -> Callable[[], Any]:
    """The bytes of the images in the order of training, copied once."""
    from ..data import sampling
    from ..data.pipeline import RecordFile

    folder, batch = Path(run.data.path), run.batch.per_rank
    table = load_table(folder, "train")
    records = RecordFile(folder / "train.rec", table)
    order = sampling.TrainOrder(build_plan(run), SEEDS["shuffle"])
    steps = itertools.count(1)
    return lambda: [
        image.tobytes() for image in records.images(order.batch(next(steps), 0).images[:batch])
    ]


def _mxnet(run: Run) -> Callable[[], Any]:
    """mx.io.ImageRecordIter with the same augmentation and one thread."""
    import mxnet as mx

    data, batch = run.data, run.batch.per_rank
    mean, std = (dict(zip("rgb", values, strict=True)) for values in (data.mean, data.std))
    iterator = mx.io.ImageRecordIter(
        path_imgrec=f"{data.path}/train.rec",
        path_imgidx=f"{data.path}/train.idx",
        data_shape=(3, data.crop_px, data.crop_px),
        batch_size=batch,
        shuffle=True,
        random_resized_crop=True,
        min_random_area=data.area[0],
        max_random_area=data.area[1],
        min_aspect_ratio=data.aspect[0],
        max_aspect_ratio=data.aspect[1],
        rand_mirror=data.flip,
        inter_method=1,
        preprocess_threads=1,
        verbose=False,
        **{f"mean_{name}": value for name, value in mean.items()},
        **{f"std_{name}": value for name, value in std.items()},
    )

    def step() -> None:
        try:
            fetched = iterator.next()
        except StopIteration:
            iterator.reset()
            fetched = iterator.next()
        fetched.data[0].wait_to_read()

    return step


def _jpeg(run: Run) -> Callable[[], Any]:
    """libjpeg-turbo alone, whole images to RGB, in the order of the file."""
    import simplejpeg

    folder = Path(run.data.path)
    table = load_table(folder, "train")
    content = np.memmap(folder / "train.rec", np.uint8, "r")
    rows = itertools.cycle(table[table["length"] > 0])

    def step() -> None:
        for row in itertools.islice(rows, run.batch.per_rank):
            start = int(row["offset"]) + recordio.HEADER_BYTES
            simplejpeg.decode_jpeg(content[start : start + int(row["length"])])

    return step


KINDS: dict[str, Callable[[Run], Callable[[], Any]]] = {
    "read": _read,
    "decode": _decode,
    "full": _full,
    "mxnet": _mxnet,
    "jpeg": _jpeg,
}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(config: str, kind: str, images: int) -> None:
    """Warm up, say so, then one pass for every line."""
    run = load(config).run
    step = KINDS[kind](run)
    batches = max(1, images // run.batch.per_rank)
    for _ in range(8):  # fills all queues: from here on a batch out is a batch in
        step()
    print("ready", flush=True)
    # From the end of a pass to that of the next: readers work ahead while they wait for their turn
    # (MXNet's decodes a chunk of up to 64 MB), and who takes those images has to pay for them.
    cpu_s = _cpu_s()
    for _ in sys.stdin:
        for _ in range(batches):
            step()
        before_s, cpu_s = cpu_s, _cpu_s()
        seconds = {
            "cpu_s": cpu_s - before_s,
            "images": batches * run.batch.per_rank,
        }
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
