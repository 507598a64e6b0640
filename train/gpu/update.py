"""Norms, learning rates and update of all tensors: three kernels, one operation of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from mxnet import nd
from numpy.typing import NDArray as Array

from ..communication.buckets import side_by_side
from ..schedule import Settings
from ..update.optimizer import AKIBA_EPSILON, AKIBA_MU2, Measured, Updater
from .calls import Call, Segment, data_address, float_bits
from .plan_operators import PlanOperators

CHUNK = 16384
"""Elements of a tensor that one block takes (device.cu)."""


class PlanUpdater(Updater):
    """Three launches a step for all tensors: sums of squares, learning rates, update."""

    operators: PlanOperators

    def __init__(
        self, *arguments: Any, buckets: Sequence[nd.NDArray], **options: Any
    ) -> None:
        self._buckets = list(buckets)
        self._flats = list[nd.NDArray]()
        super().__init__(*arguments, **options)

    def _zeros(self, shapes: Sequence[tuple[int, ...]]) -> list[nd.NDArray]:
        flat, views = side_by_side(self.operators, shapes, np.float32)
        self._flats.append(flat)
        return views

    def _prepare(self) -> None:
        """The table of the tensors' addresses, and for each block the tensor of its chunk."""
        tensors = self._tensors
        ctx = self.operators.ctx
        chunks = [-(-t.weight.size // CHUNK) for t in tensors]
        rows = []
        self._blocks = 0
        # None for each square where the rule is not RMSprop's
        for t, square, count in zip_longest(tensors, self._squares, chunks):
            row = [  # the struct Tensor of device.cu
                data_address(t.weight),
                data_address(t.gradient),
                data_address(t.momentum),
                data_address(t.master),
                data_address(square),
                t.weight.size,
                self._blocks,
                int(t.master is not None),
            ]
            rows.append(row)
            self._blocks += count

        def on_device(values: Any, dtype: str) -> nd.NDArray:
            """An array on the GPU."""
            return nd.array(np.array(values, dtype), ctx, dtype=dtype)

        # From here on `_by_tensor` adds up the sums of a tensor's chunks.
        self._first_blocks = np.cumsum([0, *chunks[:-1]])
        self._table = on_device(rows, "int64")
        numbers = np.arange(len(tensors))
        self._chunks = on_device(np.repeat(numbers, chunks), "int32")
        etas = [self._rule.eta if t.scaled else 0 for t in tensors]
        self._etas = on_device(etas, "float32")
        self._decays = on_device([t.decay for t in tensors], "float32")
        self._sums = self.operators.zeros(2 * self._blocks)
        # behind the rates: 1, or 0 where a gradient is not finite
        self._rates = self.operators.zeros(len(tensors) + 1)
        weights = self.operators.shared.weights
        changed = [*weights, *self._flats]
        self._settings = self.operators.settings()
        self._run = Segment(
            self.operators.module.device,
            [
                self._call(
                    "square_sums", self._blocks, self._table, self._chunks, self._sums
                ),
                self._rates_call(),
                self._update_call(),
            ],
            self._settings,
            self._buckets,
            [self._settings, *changed, self._sums, self._rates],
        )
        self.written_last = weights

    def _call(self, name: str, blocks: int, *arguments: Any) -> tuple[str, Call]:
        return name, self.operators.module.call(name, blocks, arguments)

    def _rates_call(self) -> tuple[str, Call]:
        rule = self._rule
        return self._call(
            "rates",
            1,  # block: the last number rests on all tensors
            self._table,
            self._etas,
            self._decays,
            self._sums,
            self._rates,
            self._settings,
            len(self._tensors),
            int(self.scaler.is_dynamic),
            rule.epsilon,
            self._trust_decay_factor,
            int(rule.epsilon_only_below),
        )

    def _update_call(self) -> tuple[str, Call]:
        arguments = [
            self._table,
            self._chunks,
            self._decays,
            self._rates,
            self._settings,
            len(self._tensors),
        ]
        name = "update"
        if self._squares:
            name = "update_rmsprop"
            arguments += [AKIBA_MU2, AKIBA_EPSILON]
        return self._call(name, self._blocks, *arguments)

    def measured_step(self, step: int, settings: Settings) -> Measured:
        """Do `step`, whose first kernel makes the sums anyway; they are copied."""
        rescale = self._rescale(settings)
        self.step(step, settings)
        # a copy: the next steps write theirs before this one is read
        return Measured(self._sums.copy(), rescale)

    def _by_tensor(self, squares: Array[np.float64]) -> Array[np.float64]:
        """A block has the sums of its chunk, of weight and gradient."""
        return np.add.reduceat(squares.reshape(-1, 2), self._first_blocks).T

    def _apply(self, step: int, settings: Settings) -> None:
        values = [settings.lr, settings.momentum, self._rescale(settings)]
        if self._squares:
            values += self._akiba_shares(step, settings)
        self._run([float_bits(number) for number in values])
        # a copy: the next steps write theirs before this one is read
        if self.scaler.is_dynamic:
            self.scaler.note(step, self._rates[len(self._tensors) :].copy())
