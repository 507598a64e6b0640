"""The calls of a step before their buffers have addresses, and the memory that gives them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from mxnet import nd

from ...host.errors import UserError
from .backend import Plan
from .calls import Call, address_of, cuda, data_address
from .cudnn import Cudnn
from .memory import Buffer, lay_out
from .module import CudaModule

Word: TypeAlias = "int | Buffer | nd.NDArray | dict[str, Word] | None"
"""What a call is given: a number or an address, a buffer, an array; all tensors of a graph."""
_SPACE = "workspace"
"""The name of a graph's workspace among its tensors."""


class Arena:
    """The memory of all plans of a GPU, one of which runs at a time. It is CUDA's: an array of
    MXNet's wheel ends at 2^31 elements."""

    def __init__(self, token: nd.NDArray) -> None:
        self.token = token
        """Stands for the memory in the engine."""
        self.address = 0
        self.size_bytes = 0
        self.generation = 0
        """How often memory was taken. Plans of an earlier generation have to be made again."""

    def reserve(self, size_bytes: int) -> None:
        """Make it large enough; what it holds is lost. Raises UserError: the GPU has no more."""
        if size_bytes <= self.size_bytes:
            return  # the addresses in older plans stay right
        nd.waitall()  # calls of the plans before may still use it
        address = ctypes.c_void_p(self.address)
        cuda().cudaFree(address)  # of null, the first time, nothing
        size = ctypes.c_size_t(size_bytes)
        if cuda().cudaMalloc(ctypes.byref(address), size):
            raise UserError(
                f"batch: {size_bytes / 2**30:.1f} GiB of the GPU's memory for activations "
                "expected, found less; use a smaller batch"
            )
        self.address = address.value or 0
        self.size_bytes = size_bytes
        self.generation += 1


class Entry(NamedTuple):
    """A call before its buffers have addresses: of a kernel with `blocks`, else of cuDNN."""

    layer: str
    function: str
    arguments: tuple[Any, ...]
    reals: tuple[float, ...]
    blocks: int


class Tape:
    """The calls of a step in their order."""

    def __init__(self, cudnn: Cudnn, module: CudaModule) -> None:
        self._cudnn = cudnn
        self._module = module
        self.entries: list[Entry] = []
        self._buffers: list[Buffer] = []
        self.workspace = self.buffer(0)

    def buffer(self, size_bytes: int) -> Buffer:
        """Memory from the first call that is given it to the last."""
        self._buffers.append(Buffer(size_bytes))
        return self._buffers[-1]

    def call(
        self, layer: str, function: str, *arguments: Word, reals: tuple[float, ...] = ()
    ) -> None:
        """A function of cuDNN; its handle comes first."""
        arguments = (self._cudnn.handle, *arguments)
        self._add(Entry(layer, function, arguments, reals, 0))

    def graph(self, layer: str, plan: Plan, **operands: Word) -> None:
        """A graph of cuDNN's backend; its tensors by their names."""
        operands[_SPACE], _ = self.space(plan.workspace_bytes)
        self.call(layer, "cudnnBackendExecute", plan.descriptor, operands)

    def kernel(self, layer: str, name: str, blocks: int, *arguments: Any) -> None:
        """A kernel of device.cu."""
        self._add(Entry(layer, name, arguments, (), blocks))

    def space(self, size_bytes: int) -> tuple[Buffer, int]:
        """The workspace, and how much of it a call takes."""
        # Calls run one after the other, so all share one piece of the largest size.
        largest = max(self.workspace.size_bytes, size_bytes)
        self.workspace.size_bytes = largest
        return self.workspace, size_bytes

    def _add(self, entry: Entry) -> None:
        for argument in arguments_of(entry):
            if isinstance(argument, Buffer):
                argument.calls.append(len(self.entries))
        self.entries.append(entry)

    def calls(self, arena: Arena) -> list[tuple[str, Call]]:
        """The table, with a name for each call; the arena is made large enough."""
        # such as the workspace where no call wants one
        used = [buffer for buffer in self._buffers if buffer.calls]
        arena.reserve(lay_out(used))
        return [self._call(entry, arena.address) for entry in self.entries]

    def _call(self, entry: Entry, base: int) -> tuple[str, Call]:
        arguments = tuple(
            self._resolved(argument, base) for argument in entry.arguments
        )
        if entry.blocks:
            call = self._module.call(entry.function, entry.blocks, arguments)
        else:
            call = Call(function=address_of(cuda()[entry.function]))
            call.words[: len(arguments)] = arguments
            call.reals[: len(entry.reals)] = entry.reals
        return f"{entry.function} of {entry.layer}", call

    def _resolved(self, argument: Any, base: int) -> Any:
        if isinstance(argument, dict):
            addresses = {
                name: self._resolved(argument[name], base) for name in argument
            }
            return self._cudnn.backend.pack(addresses, addresses.pop(_SPACE))
        if isinstance(argument, Buffer):
            return base + argument.offset
        if isinstance(argument, nd.NDArray):
            return data_address(argument)
        return argument or 0


def arguments_of(entry: Entry) -> Iterator[Any]:
    """All that a call is given."""
    for argument in entry.arguments:
        yield argument
        if isinstance(argument, dict):
            yield from argument.values()
