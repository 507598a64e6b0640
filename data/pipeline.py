"""DALI pipelines: JPEG records on disk to normalised float batches in MXNet, without a copy.

Order, crop windows and flips are decided in `sampling` and go in as data; DALI decodes just the
window, resizes, mirrors and normalises in its own threads, `prefetch` batches ahead. The record
file is opened by the first batch, not before: that is the first touch of the data set.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import mxnet as mx
import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from ..config.manifest import load_manifest
from ..config.plan import Plan
from ..config.schema import Data
from ..host.errors import UserError, failing_as
from ..host.reading import open_file
from . import recordio, sampling
from .dataset import Table, load_table, photo_name
from .decoder import cause_of, check_decodes, decoder_options

_LINEAR = {"interp_type": types.DALIInterpType.INTERP_LINEAR, "antialias": False}
Bytes = NDArray[np.uint8]
Inputs = tuple[Any, ...]
"""What DALI is fed with, the images first."""
Fed = tuple[sampling.Indices, Inputs]
"""The numbers of a batch's records, and the batch."""
Images = tuple[Any, Any]
"""DALI's own (images, labels)."""
Graph = Callable[..., Any]
NOT_COUNTED = -1
"""Label of an image that only fills an evaluation batch; no class has it."""


class Batch(NamedTuple):
    images: mx.nd.NDArray  # (batch, 3, crop_px, crop_px) float32; NHWC: 3 last
    labels: mx.nd.NDArray  # (batch,) float32

    def to(self, ctx: mx.Context) -> Batch:
        """The batch on `ctx`; enqueues the copies and returns."""
        return Batch(*(on_device(array, ctx) for array in self))


def on_device(array: mx.nd.NDArray, ctx: mx.Context) -> mx.nd.NDArray:
    """The array on `ctx`, in memory that it has now: MXNet's `as_in_context` takes it when the copy
    runs, and a plan that asks for the address before gets another."""
    if array.context == ctx:
        return array
    copy = mx.nd.empty(array.shape, ctx, array.dtype)
    array.copyto(copy)
    return copy


class RecordFile:
    """Images of one record file by number, as views of its memory map."""

    def __init__(self, folder: Path, split: str) -> None:
        self.path = folder / f"{split}.rec"
        self.table = load_table(folder, split)

    def find_undecodable(self, fed: Fed) -> str | None:
        """The first image of a batch that does not decode: record, photo, and why."""
        numbers, (images, *_) = fed
        for number, image in zip(numbers.tolist(), images, strict=True):
            row = self.table[number]
            try:
                check_decodes(image, row["height"], row["width"])
            except ValueError as error:
                name = photo_name(self.path, number)
                return (
                    f"record {number}, {name}: an image that decodes expected, {error}"
                )
        return None

    def images(self, numbers: sampling.Indices) -> list[Bytes]:
        """The stored bytes of the chosen images. Opens the file on first use."""
        rows = self.table[numbers]
        offsets = rows["offset"].tolist()
        lengths = rows["length"].tolist()
        return list(map(self._image, offsets, lengths))

    def _image(self, offset: int, length: int) -> Bytes:
        if length:
            start = offset + recordio.HEADER_BYTES
            return self._bytes[start : start + length]
        # a record in several parts
        with self._open() as file:
            record = recordio.read(file, offset, str(self.path))
        return np.frombuffer(record.image, np.uint8)

    def _open(self) -> BinaryIO:
        """Raises UserError: it is gone or cannot be read, after hours of training perhaps."""
        state = "cannot be read" if os.path.lexists(self.path) else "is gone"
        with failing_as(f"the image set {self.path.parent} {state}: {self.path}"):
            return open_file(self.path)

    @cached_property
    def _bytes(self) -> Bytes:
        with self._open() as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(pages, np.uint8)


class Source:
    """A DALI pipeline; `next()` gives one batch after the other.

    Args:
        data: the section of the config.
        device_id: the GPU that decodes; None: CPUs do.
        graph: DALI graph from the fed inputs, but for the labels, to images.
        batches: the records and inputs of one batch after the other, taken `prefetch` ahead.
        inputs: how many inputs a batch has.
        records: which the images are of, to name one in an error.
        batch_per_rank: the largest batch.
    """

    def __init__(
        self,
        graph: Graph,
        batches: Iterator[Fed],
        *,
        inputs: int,
        records: RecordFile,
        batch_per_rank: int,
        data: Data,
        device_id: int | None,
    ) -> None:
        self._records = records
        self.device_id = device_id
        # DALI reads the fed arrays in its own threads, uncopied: they live until it is done.
        self._alive: deque[Fed] = deque(maxlen=data.prefetch + 3)

        def next_inputs() -> Inputs:
            """The inputs of the next batch; they are kept while DALI may read them."""
            fed = next(batches)
            self._alive.append(fed)
            return fed[1]

        self._pipeline = Pipeline(
            batch_size=batch_per_rank,
            num_threads=data.decode_threads,
            device_id=device_id,
            prefetch_queue_depth=data.prefetch,
        )
        with self._pipeline:
            jpegs, labels, *more = fn.external_source(
                source=next_inputs, num_outputs=inputs, batch=True, no_copy=True
            )
            if device_id is not None:
                labels = labels.gpu()
            self._pipeline.set_outputs(graph(jpegs, *more), labels)
        self._pipeline.build()

    def next(self) -> Batch:
        """The next batch, handed over by DLPack: DALI's buffer becomes MXNet's array (6 us)."""
        buffers = (array.as_tensor().__dlpack__() for array in self.run())
        return Batch(*map(mx.nd.from_dlpack, buffers))

    def run(self) -> Images:
        """The next batch as DALI's own (images, labels). Raises UserError: it does not decode."""
        try:
            return self._pipeline.run()
        except RuntimeError as error:
            cause = cause_of(error)
        path = self._records.path
        for fed in self._alive:
            if fault := self._records.find_undecodable(fed):
                raise UserError(
                    f"{path}: {fault} (`rn50 data verify --full` names all such records, and a "
                    "set that is packed again refuses their photos)"
                )
        raise UserError(
            f"{path}: images that decode expected, found {cause}, though each of the last "
            f"{len(self._alive)} batches decodes on a CPU"
        )


def build_train_source(
    data: Data,
    plan: Plan,
    *,
    rank: int,
    seeds: Mapping[str, int],
    device_id: int | None = None,
    graph: Graph | None = None,
    first_step: int = 1,
    layout: str = "NCHW",
) -> Source:
    """The training stream of one rank from `first_step` on: random windows (or centre crops),
    flips, the operations of `data.augmentation`, endless.

    A batch has the size of its step; steps in which the rank has no share are left out.

    Args:
        data: the section of the config.
        plan: of the steps.
        rank: of this process.
        seeds: of the streams `shuffle`, `augment`, `flip` and `operations`.
        device_id: the GPU that decodes; None: CPUs do.
        graph: in place of decoding and what follows, to measure a part.
        first_step: from 1.
        layout: of the images.
    """
    folder = Path(data.path)
    if data.shards:
        load_manifest(folder, plan.part_of(rank))
    plain_from = data.no_augment_from_epoch or math.inf
    order = sampling.TrainOrder(plan, seeds["shuffle"], plain_from)
    ranges = {} if graph else data.augmentation.ranges
    records = RecordFile(folder, "train")
    steps = order.active_steps(rank, first_step)
    batches = _train_batches(
        data,
        records,
        (order.batch(step, rank) for step in steps),
        plain_from=plain_from,
        seeds=seeds,
        ranges=ranges,
    )

    def whole(
        jpegs: Any, anchors: Any, shapes: Any, mirror: Any, *operations: Any
    ) -> Any:
        """Decoded, resized or augmented, and normalised images."""
        images = fn.decoders.image_slice(
            jpegs, anchors, shapes, axis_names="HW", **decoder_options(data, device_id)
        )
        if ranges:
            tile = sampling.noise_tile(seeds["operations"], data.crop_px)
            images = _augment(images, operations, tile, data.crop_px)
        else:
            images = fn.resize(images, size=(data.crop_px, data.crop_px), **_LINEAR)
        return _normalise(images, data, mirror, layout)

    return Source(
        graph or whole,
        batches,
        inputs=8 if ranges else 5,  # of `_train_batches`
        records=records,
        batch_per_rank=max(segment.per_rank for segment in plan.segments),
        data=data,
        device_id=device_id,
    )


def _train_batches(
    data: Data,
    records: RecordFile,
    indices: Iterable[sampling.BatchIndices],
    *,
    plain_from: float,
    seeds: Mapping[str, int],
    ranges: Mapping[str, sampling.Bounds],
) -> Iterator[Fed]:
    """Records, and (images, labels, anchors, shapes, mirror, operations), of each batch. Nothing is
    augmented from the epoch `plain_from` on. `ranges`: of those operations of `data.augmentation`
    that are on."""
    for numbers, positions, epochs in indices:
        rows = records.table[numbers]
        sides = _sides(rows)
        anchors, shapes = sampling.crop_windows(
            sides, positions, seeds["augment"], area=data.area, aspect=data.aspect
        )
        plain = epochs >= plain_from
        centred = plain | (not data.augment)
        if centred.any():
            fraction = data.crop_px / data.eval_resize_px
            centre = sampling.centre_windows(sides, fraction)
            anchors[centred] = centre[0][centred]
            shapes[centred] = centre[1][centred]
        mirror = sampling.flips(positions, seeds["flip"])
        mirror *= data.flip & ~plain
        labels = rows["label"].astype(np.float32)
        inputs: Inputs = (records.images(numbers), labels, anchors, shapes, mirror)
        if ranges:
            inputs += sampling.operations(
                positions, seeds["operations"], ranges, centred, data.crop_px
            )
        yield numbers, inputs


def build_eval_source(
    data: Data,
    *,
    batch_per_rank: int,
    rank: int,
    ranks: int,
    device_id: int | None = None,
) -> Source:
    """The evaluation stream of one rank: its shard in order, again and again. Always NCHW.

    Args:
        data: the section of the config.
        batch_per_rank: images of a batch.
        rank: of this process.
        ranks: which share the images.
        device_id: the GPU that decodes; None: CPUs do.
    """
    records = RecordFile(Path(data.path), "val")
    count = sampling.eval_batches(data.eval_samples, ranks, batch_per_rank)

    def batches() -> Iterator[Fed]:
        """The records and inputs of one batch after the other, over and over."""
        for batch in itertools.cycle(range(count)):
            numbers, counts = sampling.eval_batch(
                data.eval_samples,
                batch,
                rank=rank,
                ranks=ranks,
                batch_per_rank=batch_per_rank,
            )
            rows = records.table[numbers]
            labels = rows["label"].astype(np.float32)
            labels[~counts] = NOT_COUNTED
            windows = sampling.eval_windows(_sides(rows), data.eval_resize_px)
            yield numbers, (records.images(numbers), labels, *windows)

    def graph(jpegs: Any, starts: Any, ends: Any) -> Any:
        """Decoded, resized and normalised images."""
        images = fn.decoders.image(jpegs, **decoder_options(data, device_id))
        images = fn.resize(
            images,
            resize_shorter=data.eval_resize_px,
            roi_start=starts,
            roi_end=ends,
            **_LINEAR,
        )
        return _normalise(images, data, mirror=0)

    return Source(
        graph,
        batches(),
        inputs=4,
        records=records,
        batch_per_rank=batch_per_rank,
        data=data,
        device_id=device_id,
    )


def _sides(rows: Table) -> sampling.Floats:
    """The heights and widths of images, in pixels."""
    sides = np.stack([rows["height"], rows["width"]], axis=1)
    return sides.astype(np.float32)


def _augment(images: Any, operations: Sequence[Any], tile: Any, crop_px: int) -> Any:
    """The operations of `data.augmentation` in DALI: one bilinear resampling of the window, whose
    border is repeated outside, then contrast, brightness and noise. Float HWC, 0 to 255."""
    matrices, colours, starts = operations
    if images.device == "gpu":
        matrices = matrices.gpu()
        colours = colours.gpu()
    floats = types.DALIDataType.FLOAT
    shape = images.shape(dtype=floats, device=images.device)
    # DALI has (height, width), the matrices (x, y)
    sides = fn.stack(shape[1], shape[0])
    matrices = matrices * fn.reshape(sides, shape=[2, 1])
    images = fn.warp_affine(images, matrices, size=(crop_px, crop_px), dtype=floats)
    tile = types.Constant(tile, device=images.device)
    noise = fn.slice(tile, start=starts, shape=[3 * crop_px**2], axes=[0])
    noise = fn.reshape(noise, shape=[crop_px, crop_px, 3], layout="HWC")
    return images * colours[0] + colours[1] + noise * colours[2]


def _normalise(images: Any, data: Data, mirror: Any, layout: str = "NCHW") -> Any:
    """Centre crop (of nothing where the size is right), mirror, mean and std, to floats."""
    return fn.crop_mirror_normalize(
        images,
        crop=(data.crop_px, data.crop_px),
        mirror=mirror,
        mean=list(data.mean),
        std=list(data.std),
        dtype=types.DALIDataType.FLOAT,
        output_layout=layout.removeprefix("N"),
    )
