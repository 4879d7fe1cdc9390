"""What is used beyond what there is: the accounts stay exact when a node shrinks under those that run on it.

A place is a GPU, or with the index `NO_GPU` the CPU and memory of a node. Each has two amounts: milli and GPU memory,
or CPU milli and memory. What is free of an amount is never below 0; what it lacks is owed, and paid back first.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from berth.cluster.amounts import Amounts
from berth.model import NO_GPU, GpuSlot

_NOTHING = (0, 0)


class Debts:
    """What is owed at each place, and the only writer of what is free there beside the kernels."""

    def __init__(self, free: Amounts, capacity: Amounts) -> None:
        self.free = free
        self.capacity = capacity
        self.owed: dict[GpuSlot, tuple[int, int]] = {}
        """Places with a debt alone."""

    def left(self, place: GpuSlot) -> tuple[int, int]:
        """What is left of both amounts, below 0 for what is owed."""
        (first, second), floor = self._read(place), self._floor(place)
        owed = self.owed.get(place, _NOTHING)
        return first - floor - owed[0], second - floor - owed[1]

    def set(self, place: GpuSlot, first: int, second: int) -> None:
        """Set what is left of both amounts; what is below 0 is owed."""
        floor, (node, index) = self._floor(place), place
        if index == NO_GPU:
            self.free.cpu_milli[node], self.free.mem_mib[node] = max(first, 0), max(second, 0)
        else:
            self.free.milli[node, index] = max(first, 0) + floor
            self.free.gpu_mem_mib[node, index] = max(second, 0) + floor
        owed = max(-first, 0), max(-second, 0)
        if owed == _NOTHING:
            self.owed.pop(place, None)
        else:
            self.owed[place] = owed

    def pay(self, slots: Iterable[GpuSlot]) -> int:
        """Pay back what is owed at these slots and on their nodes, of what has just been given back there.

        Returns how many GPU milli of it are not free for that.
        """
        paid_milli = 0
        for slot in slots:
            for place in (slot, GpuSlot(slot[0], NO_GPU)):
                if place not in self.owed:
                    continue
                left = self.left(place)
                if place[1] != NO_GPU:
                    paid_milli += self._read(place)[0] - self._floor(place) - max(left[0], 0)
                self.set(place, *left)
        return paid_milli

    def amounts(self) -> Amounts:
        """What is owed of each resource, 0 for what is not; (N,), (N,), (N, G), (N, G)."""
        found = Amounts(*(np.zeros_like(array) for array in self.free))
        for (node, index), (first, second) in self.owed.items():
            if index == NO_GPU:
                found.cpu_milli[node], found.mem_mib[node] = first, second
            else:
                found.milli[node, index], found.gpu_mem_mib[node, index] = first, second
        return found

    def _read(self, place: GpuSlot) -> tuple[int, int]:
        node, index = place
        if index == NO_GPU:
            return int(self.free.cpu_milli[node]), int(self.free.mem_mib[node])
        return int(self.free.milli[node, index]), int(self.free.gpu_mem_mib[node, index])

    def _floor(self, place: GpuSlot) -> int:
        """What the arrays hold if nothing is left: −1 if there is no such GPU."""
        return -1 if place[1] != NO_GPU and self.capacity.milli[place] < 0 else 0
