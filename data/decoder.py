"""DALI's decoder, as training uses it: its options, and its verdict on one image.

Who decodes an image in training judges it when it is packed and checked. Pillow stands in where
DALI is not installed; it takes some images that DALI refuses, such as lossless grey JPEGs.
"""

from __future__ import annotations

import io
import os
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from ..config.schema import DECODING_THREADS, Data

_pipelines = dict[int, Any]()
"""The pipelines by process: one that was forked has not the threads of the other's pipeline, and
would wait for them if it dropped it."""


def decoder_options(data: Data, device_id: int | None) -> dict[str, Any]:
    """The options of DALI's decoder; on a GPU with NVIDIA's hints for this benchmark (v3.1,
    DGX H100).

    Their padding of nvJPEG's buffers, 256 MB a thread, is left out: a V100 of 16 GB has no room.
    EXIF's orientation is not applied, as in the reference.
    """
    stored = {"adjust_orientation": False}
    if device_id is None:
        return stored | {"device": "cpu"}
    load = data.hw_decoder_load
    if load is None:
        load = 0.0 if data.decode_threads >= DECODING_THREADS else 0.99
    return stored | {
        "device": "mixed",
        "hw_decoder_load": load,
        "preallocate_width_hint": 5980,
        "preallocate_height_hint": 6430,
    }


@cache
def has_dali() -> bool:
    """Whether DALI is installed. Loads it (0.8 s): processes forked afterwards share it."""
    try:
        import nvidia.dali  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


def check_decodes(image: Any, height: int, width: int) -> None:
    """Decode `height` x `width` pixels from the top left. One pixel of a baseline JPEG takes 0.3 ms
    and shows what its headers and tables lack.

    Raises ValueError: training cannot decode it.
    """
    if not has_dali():
        _decode_with_pillow(image)
        return
    process = os.getpid()
    pipeline = _pipelines.pop(process, None) or _build_pipeline()
    pipeline.feed_input("image", [np.frombuffer(image, np.uint8)])
    pipeline.feed_input("shape", [np.array([height, width], np.int32)])
    try:
        with _silence():
            pipeline.run()
    except RuntimeError as error:  # the pipeline is of no use any more
        _decode_with_pillow(
            image
        )  # it says better why, if it does not decode it either
        raise ValueError(
            f"found one that Pillow decodes but not DALI: {cause_of(error)}"
        ) from None
    _pipelines[process] = pipeline


def _decode_with_pillow(image: Any) -> None:
    with quiet_pillow():
        Image.open(io.BytesIO(image)).load()


@contextmanager
def _silence() -> Iterator[None]:
    """DALI's libraries print coloured lines on descriptor 2 beside their errors."""
    stderr = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


def cause_of(error: RuntimeError) -> str:
    """DALI's error is a page, of which one line says the cause."""
    page = str(error).rpartition("encountered:")[2]
    line = page.strip().partition("\n")[0]
    return line.partition(" sample #")[0]


def _build_pipeline() -> Any:
    """A part of an image at a time, decoded as in training on CPUs."""
    from nvidia.dali import Pipeline, fn

    pipeline = Pipeline(
        batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1
    )
    with pipeline:
        pixels = fn.decoders.image_slice(
            fn.external_source(name="image"),
            start=(0, 0),
            shape=fn.external_source(name="shape"),
            axis_names="HW",
            **decoder_options(Data(), None),
        )
        pipeline.set_outputs(pixels)
    pipeline.build()
    return pipeline


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Pillow's warnings, which are of metadata that training does not read, reach no user.

    Raises ValueError: Pillow cannot read an image.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (
        OSError,
        SyntaxError,
        ValueError,
        LookupError,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        reason = str(error).partition(" <_io.")[0]
        raise ValueError(f"found one that does not decode: {reason}") from None
