"""AlexNet in one tower (Krizhevsky, arXiv:1404.5997): 64-192-384-256-256 maps, 4096-4096 units.

No response normalisation and zero biases, as in the widely used form; 61,100,840 parameters for
1000 classes and 224 px.
"""

from __future__ import annotations

from mxnet.gluon import nn

from ...config.schema import Model
from .layers import ChannelsFirst, Network, build_convolution

# Maps, kernel, stride, padding, and whether a 3x3 maximum with stride 2 follows.
CONVOLUTIONS = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)
HIDDEN_UNITS = (4096, 4096)
DROPOUT = 0.5


class AlexNet(Network):
    """The network: images to logits (batch, classes).

    Its first dense layer fits one crop size alone, and reads the maps channel by channel in either
    layout, so that the same weights are the same function. Dropout follows the hidden dense layers
    (as in Krizhevsky et al., 2012, section 4.2); `build.py` says what seeds its masks.
    """

    def __init__(self, model: Model, classes: int, crop_px: int) -> None:
        super().__init__(model, classes)
        with self.name_scope():
            channels = 3
            side = crop_px
            for number, (maps, kernel, stride, padding, pooled) in enumerate(
                CONVOLUTIONS, start=1
            ):
                name = f"conv{number}"
                sizes = (channels, maps, kernel, stride, padding)
                self.body.add(build_convolution(model.layout, name, *sizes))
                channels = maps
                side = (side + 2 * padding - kernel) // stride + 1
                if pooled:
                    self.body.add(nn.MaxPool2D(3, 2, layout=model.layout))
                    side = (side - 3) // 2 + 1
            self.body.add(ChannelsFirst(model.layout), nn.Flatten())
            units = channels * side * side
            for number, hidden in enumerate(HIDDEN_UNITS, start=len(CONVOLUTIONS) + 1):
                self.body.add(
                    nn.Dense(
                        hidden, activation="relu", in_units=units, prefix=f"fc{number}_"
                    ),
                    nn.Dropout(DROPOUT),
                )
                units = hidden
            self.body.add(nn.Dense(classes, in_units=units, prefix="fc_"))
