"""What all networks share: the type of their images, and the way back to the order of NCHW."""

from __future__ import annotations

from typing import Any

from mxnet.gluon import nn

from ...config.schema import Model

TO_NCHW = (0, 3, 1, 2)
TO_NHWC = (0, 2, 3, 1)
"""Axes of a transposition from the other layout; convolutions' weights too, (out, in) as (N, C)."""


class Network(nn.HybridBlock):
    """Layers one after the other, from float32 images in `layout` to logits (batch, classes).

    A subclass fills `body`. In float16 the images are cast first, as MXNet's operators take one
    type alone.
    """

    has_dropout = True

    def __init__(self, model: Model, classes: int) -> None:
        super().__init__(prefix="")
        self.layout = model.layout
        self.classes = classes
        self.dtype = "float16" if model.dtype == "float16" else "float32"
        with self.name_scope():
            self.body = nn.HybridSequential(prefix="")

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Images to logits."""
        if self.dtype == "float16":
            x = F.cast(x, dtype="float16")
        return self.body(x)


class ChannelsFirst(nn.HybridBlock):
    """The maps of a layout as (batch, channels, H, W)."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self._layout = layout

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Transpose maps that have their channels last."""
        if self._layout == "NCHW":
            return x
        return F.transpose(x, axes=TO_NCHW)


def build_convolution(
    layout: str,
    name: str,
    in_channels: int,
    channels: int,
    kernel: int,
    stride: int = 1,
    padding: int | None = None,
) -> nn.Conv2D:
    """A convolution with bias and ReLU; by default it keeps the resolution but for its stride.

    Args:
        layout: of the maps.
        name: the prefix of its parameters.
        in_channels: of the maps that it reads.
        channels: of its result.
        kernel: side of a window.
        stride: from one window to the next.
        padding: around the maps; None: half of a window.
    """
    return nn.Conv2D(
        channels,
        kernel,
        stride,
        kernel // 2 if padding is None else padding,
        activation="relu",
        layout=layout,
        in_channels=in_channels,
        prefix=f"{name}_",
    )
