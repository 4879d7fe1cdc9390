"""Speeds that a model was asked for, kept in a table for compiled code.

A *class* is a row of use that some series has. The table is an open-addressed hash: a key stands for a set of classes,
in ascending order, in two numbers; its row holds the speeds of the set's members, per mille. H rows, a power of two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray, compiled

MOST = 10
"""Tenants that a set can have."""
BITS = 12
"""Of a class in a key: 5 classes in each of two numbers."""
EMPTY = -1
"""In place of a key's first number where a row is not used."""


@compiled
def _first(high: int, low: int, size: int) -> int:
    """Where a key's search begins."""
    mixed = (high * 0x9E3779B1 + low * 0x85EBCA6B) ^ (low >> 23) ^ (high >> 17)
    mixed ^= mixed >> 29
    return mixed & (size - 1)


@compiled
def find(high: int, low: int, keys: IntArray) -> int:
    """The row of a key among (H, 2), or −1."""
    size = keys.shape[0]
    at = _first(high, low, size)
    while keys[at, 0] != EMPTY:
        if keys[at, 0] == high and keys[at, 1] == low:
            return at
        at = (at + 1) & (size - 1)
    return -1


@compiled
def free_row(high: int, low: int, keys: IntArray) -> int:
    """Take a row for a key that is not there yet; the table must not be full."""
    size = keys.shape[0]
    at = _first(high, low, size)
    while keys[at, 0] != EMPTY:
        at = (at + 1) & (size - 1)
    keys[at, 0], keys[at, 1] = high, low
    return at


@compiled
def key_of(classes: IntArray, count: int) -> tuple[int, int]:
    """The key of these classes in ascending order; 0 stands for an empty place."""
    high, low = 0, 0
    for at in range(count):
        if at < MOST // 2:
            high = (high << BITS) | (classes[at] + 1)
        else:
            low = (low << BITS) | (classes[at] + 1)
    return high, low


@compiled
def move(keys: IntArray, known: NDArray[np.int16], to_keys: IntArray, to_known: NDArray[np.int16]) -> None:
    """Write a table into a larger, empty one."""
    for row in range(keys.shape[0]):
        if keys[row, 0] != EMPTY:
            at = free_row(keys[row, 0], keys[row, 1], to_keys)
            for place in range(MOST):
                to_known[at, place] = known[row, place]
