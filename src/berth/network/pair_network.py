"""The network over pairs of a waiting job and a GPU: one pass corrects the cost by which `pairs` chooses.

With weights of zero the rule alone decides. Letters: X inputs, H units.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from berth.arrays import FloatArray, compiled
from berth.errors import ModelError
from berth.network.model_file import archive_bytes, read_arrays

FORMAT, VERSION = "berth-pairs", 1

INPUTS = 14
COST, EXTRA, TENANTS, TAKEN, HELD, LASTS, USE, PEAK, SUITS, WORK, WAITED, QUEUE, IDLE, ONE = range(INPUTS)
"""What is seen of a pair: what its start costs and adds to the time in use, in parts of the job's work; the GPU's
tenants, what they use of its compute on average and of its memory at most, and how long they last; the same uses of the
job, and how much more of this card it uses than of the best for it; its work and its wait, over the mean work of
waiting jobs; then the jobs that wait per GPU, the part of GPUs that are idle, and 1."""
SCORE, LONG_QUEUE, WAIT = range(3)
"""Columns of `direct`: for the cost, for the cost times the length of the queue, and for waiting."""


class PairNetwork(NamedTuple):
    """The weights: a linear part, and one hidden layer, which may be empty."""

    direct: FloatArray  # (X, 3)
    first: FloatArray  # (X, H)
    last: FloatArray  # (H, 2): for the cost and for waiting


NO_NETWORK = PairNetwork(np.zeros((INPUTS, 3)), np.zeros((INPUTS, 0)), np.zeros((0, 2)))


@compiled
def judge(network: PairNetwork, seen: FloatArray, found: FloatArray) -> None:
    """What is added to a pair's cost to rank it, and by how much less than waiting it must cost, in parts of the job's
    work: found (2,), by what is seen of it (X,)."""
    score, long_queue, wait = 0.0, 0.0, 0.0
    for at in range(INPUTS):
        score += network.direct[at, SCORE] * seen[at]
        long_queue += network.direct[at, LONG_QUEUE] * seen[at]
        wait += network.direct[at, WAIT] * seen[at]
    score += long_queue * seen[QUEUE]
    for unit in range(network.last.shape[0]):
        value = 0.0
        for at in range(INPUTS):
            value += network.first[at, unit] * seen[at]
        value /= 1.0 + abs(value)
        score += network.last[unit, 0] * value
        wait += network.last[unit, 1] * value
    found[0], found[1] = score, max(0.0, wait)


def pair_network_bytes(network: PairNetwork, command: str, figures: Mapping[str, float]) -> bytes:
    """The file of a network; the same gives the same bytes."""
    arrays = {name: np.asarray(array, np.float32) for name, array in network._asdict().items()}
    header = {"format": FORMAT, "version": VERSION, "command": command, "figures": dict(figures)}
    return archive_bytes(header, arrays)


def read_pair_network(path: Path) -> PairNetwork:
    """The network of a file; ModelError if it is not whole or not one over pairs."""
    _, arrays = read_arrays(path, FORMAT, VERSION)
    last = arrays.get("last", np.zeros((0, 0)))
    shapes = {"direct": (INPUTS, 3), "first": (INPUTS, len(last)), "last": (len(last), 2)}
    if odd := sorted(set(arrays) ^ set(shapes)):
        raise ModelError(
            f"{path}: too many or missing arrays: {', '.join(odd)}; expected {', '.join(shapes)}"
        )
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
            raise ModelError(
                f"{path}: {name} is {array.dtype} {array.shape}; expected finite float32 {shape}"
            )
    return PairNetwork(*(np.ascontiguousarray(arrays[name], np.float64) for name in PairNetwork._fields))
