"""Which convolutions of a network cuDNN computes together with the batch norm beside them. Pure,
but for the question whether an engine takes a graph.

A graph is forward with the sums of its output, forward and filter gradient with the norm before
(whose output then lies nowhere), or data gradient with the sums of that norm's backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from . import backend
from .backend import Backend, Convolving, Plan
from .layers import Convolution, Layer, LayerList, Norm


class Fusion:
    """Plans of those graphs that an engine takes. A layer without one is computed by itself.

    Args:
        network: the layers.
        engines: which are asked.
        convolving: gives the shapes of a convolution.
        sums: whether graphs with sums are looked for at all.
        applies: whether a convolution that is the only reader of a norm does that norm as well.
    """

    def __init__(
        self,
        network: LayerList,
        engines: Backend,
        convolving: Callable[[Convolution], Convolving],
        *,
        sums: bool,
        applies: bool,
    ) -> None:
        self.forward: dict[int, Plan] = {}
        """Plans of forward with the sums of the output, by the output."""
        self.filter: dict[int, Plan] = {}
        """Plans of the filter's gradient with the norm before it, by the input: the norm's output,
        which lies nowhere."""
        self.data: dict[int, Plan] = {}
        """Plans of the data gradient with the sums of the norm before it, by the output of the
        convolution that completes the gradient of the norm's output."""
        self.summed_back: set[int] = set()
        """Outputs of norms whose gradient comes with those sums."""
        self._engines = engines
        self._producers: dict[int, Layer] = {}
        self._readers: dict[int, list[Layer]] = defaultdict(list)
        for layer in network.layers:
            self._producers[layer.target] = layer
            self._readers[layer.source].append(layer)
            if isinstance(layer, Norm) and layer.residual is not None:
                self._readers[layer.residual].append(layer)
        # All of forward first: whether a norm's backward can be summed depends on its sums there.
        convolutions = [
            layer for layer in network.layers if sums and isinstance(layer, Convolution)
        ]
        for layer in convolutions:
            shapes = convolving(layer)
            if not (applies and self._apply(layer, shapes)):
                self._keep(self.forward, layer.target, backend.forward(shapes))
        for layer in convolutions:
            self._sum_norm_back(layer, convolving(layer))

    def _apply(self, layer: Convolution, shapes: Convolving) -> bool:
        """Whether the convolution does the norm before it, in its filter's gradient too."""
        norm = self.norm_before(layer)
        # The graph has ReLU of scale x + bias before it, and no place for a unit's sum.
        if norm is None or norm.residual is not None:
            return False
        # Another reader, such as a shortcut, would not find the norm's output.
        if self._readers[norm.target] != [layer]:
            return False
        of_filter = self._engines.plan(backend.filter_back(shapes))
        graph = backend.forward(shapes, normalises=True)
        if of_filter is None or not self._keep(self.forward, layer.target, graph):
            return False
        self.filter[layer.source] = of_filter
        return True

    def _sum_norm_back(self, layer: Convolution, shapes: Convolving) -> None:
        """Find a plan for the convolution that completes the gradient of a norm's output."""
        norm = self.norm_before(layer)
        readers = self._readers[layer.source]
        # The first reader of a value is the last one in the backward pass.
        if norm is None or readers[0] is not layer:
            return
        graph = backend.data_back(
            shapes, joins=len(readers) > 1, adds=norm.residual is not None
        )
        if self._keep(self.data, layer.target, graph):
            self.summed_back.add(layer.source)

    def norm_before(self, layer: Convolution) -> Norm | None:
        """The norm that makes a convolution's input, if it ends in ReLU and its own input comes
        with sums."""
        norm = self._producers.get(layer.source)
        if not isinstance(norm, Norm) or not norm.relu:
            return None
        return norm if norm.source in self.forward else None

    def _keep(
        self, plans: dict[int, Plan], number: int, graph: backend.Operations
    ) -> bool:
        """Keep the plan of a graph under a value's number. Returns whether there is one."""
        plan = self._engines.plan(graph)
        if plan is not None:
            plans[number] = plan
        return plan is not None
