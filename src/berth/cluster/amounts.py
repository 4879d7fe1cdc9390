"""What nodes have, what is free of it, and what jobs ask for: amounts by name.

Letters: N nodes, G GPU slots of the largest node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from berth.arrays import IntArray
from berth.model import Node

UNCOUNTED = 2**40
"""What a node has of a resource whose amount is not known: enough for everything."""


class Amounts(NamedTuple):
    """An amount of each resource, for each node or GPU."""

    cpu_milli: IntArray  # (N,)
    mem_mib: IntArray  # (N,)
    milli: IntArray  # (N, G); −1 where there is no GPU
    gpu_mem_mib: IntArray  # (N, G); −1 where there is no GPU


class Request(NamedTuple):
    """What a job takes on one node; of a job that may spread (`nodes` 0), what it takes on a node that holds it whole.

    The first columns of the cluster's table of request types are these, in this order.
    """

    gpus: int
    milli: int
    """Of each GPU."""
    gpu_mem_mib: int
    """Of each GPU."""
    cpu_milli: int
    mem_mib: int


def amounts_of(nodes: Sequence[Node], width: int) -> Amounts:
    """What these nodes have, with `width` GPU slots each."""
    gpus = np.array([node.gpus for node in nodes], dtype=np.int64)
    there = np.arange(width) < gpus[:, None]  # (N, G)
    cards = np.array([card_mem_mib(node) for node in nodes], dtype=np.int64)
    return Amounts(
        _array(node.cpu_milli for node in nodes),
        _array(node.mem_mib for node in nodes),
        np.where(there, 1000, -1),
        np.where(there, cards[:, None], -1),
    )


def amount_of(value: int | None) -> int:
    """An amount, or `UNCOUNTED` if it is not known."""
    return UNCOUNTED if value is None else value


def card_mem_mib(node: Node) -> int:
    """The memory of each GPU of a node."""
    return (node.gpu_model.mem_mib if node.gpu_model else 0) or UNCOUNTED


def shown(array: IntArray) -> IntArray:
    """The same array, to be read only."""
    view = array.view()
    view.flags.writeable = False
    return view


def _array(values: Iterable[int | None]) -> IntArray:
    return np.array([amount_of(value) for value in values], dtype=np.int64)
