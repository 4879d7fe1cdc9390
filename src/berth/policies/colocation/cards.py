"""The applications on one GPU model as compiled code follows them, and how fast they advance together.

What was asked of a model once need not be asked again by whoever else has the same profiles and speeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from berth.arrays import IntArray
from berth.interference import Speeds
from berth.interference.known_speeds import BITS, EMPTY, MOST, move
from berth.policies.colocation.future_kernels import ENTERED, NEW, CardArrays
from berth.profiles import Series

TABLE = 1 << 14
"""Sets of classes of use whose speeds can be kept at first; then four times as many, and so on."""
AT_ONCE = 4096
"""Sets whose speeds are asked for at once, at most."""
MOST_CLASSES = (1 << BITS) - 1
"""Rows of use that are told apart."""
MOST_CARDS = 32
FOREVER_US = 1 << 60

_CARDS: dict[tuple[object, ...], Card] = {}


class Card:
    """The series of applications on one GPU model, and the speeds of sets of their rows as far as they are known."""

    def __init__(
        self, names: Sequence[str], series: Sequence[Series], capacity_mib: int, speeds: Speeds
    ) -> None:
        self.applications = {name: at for at, name in enumerate(names)}
        self.speeds = speeds
        rows = np.concatenate([one.usage for one in series]) if series else np.zeros((0, 4), np.int32)
        usage, classes = np.unique(rows, axis=0, return_inverse=True)
        self.rounded = len(usage) > MOST_CLASSES
        """Whether its series have more rows of use than can be told apart, and were rounded up to fewer."""
        if self.rounded:
            usage, classes = _rounded_up(rows)
        self.usage = usage  # (classes, 4)
        first, kind, until_us = _segments(series, classes.reshape(-1).astype(np.int64))
        self.arrays = CardArrays(
            first=first,
            kind=kind,
            until_us=until_us,
            mem_mib=usage[:, 1].astype(np.int64),
            capacity_mib=capacity_mib,
            keys=np.full((TABLE, 2), EMPTY, np.int64),
            speeds=np.zeros((TABLE, MOST), np.int16),
            asked=np.zeros((AT_ONCE + 1, MOST + 2), np.int64),
        )
        self.row_us: IntArray = np.array([one.interval_ms * 1000 for one in series], np.int64)
        self.rows: IntArray = np.array([len(one.usage) for one in series], np.int64)
        self._make_room()

    @property
    def lacks_speeds(self) -> bool:
        """Whether compiled code asked for speeds that it lacked."""
        return bool(self.arrays.asked[-1, NEW])

    def learn(self) -> None:
        """Ask the model for the speeds of the sets that compiled code lacked."""
        counts = self.arrays.asked[-1]
        asked = self.arrays.asked[: counts[NEW]]
        sizes = asked[:, MOST]
        tenants = int(sizes.max(initial=1))
        present = np.arange(tenants) < sizes[:, None]
        usage = np.where(present[:, :, None], self.usage[asked[:, :tenants]], 0).astype(np.int32)
        try:
            speeds = np.asarray(self.speeds(usage, present, self.arrays.capacity_mib))
        except BaseException:
            self.arrays.keys[:] = EMPTY  # sets without an answer stand in the table
            counts[:] = 0
            raise
        self.arrays.speeds[asked[:, MOST + 1], :tenants] = speeds
        counts[NEW] = 0
        self._make_room()

    def _make_room(self) -> None:
        """Have room in the table for all sets that can be asked for at once, and half of it empty."""
        old = self.arrays
        size = len(old.keys)
        while 2 * (old.asked[-1, ENTERED] + len(old.asked)) > size:
            size *= 4
        if size > len(old.keys):
            keys, speeds = np.full((size, 2), EMPTY, np.int64), np.zeros((size, MOST), np.int16)
            move(old.keys, old.speeds, keys, speeds)
            self.arrays = old._replace(keys=keys, speeds=speeds)


def card_of(names: Sequence[str], series: Sequence[Series], capacity_mib: int, speeds: Speeds) -> Card:
    """The card of these applications, the same one for the same profiles, memory and speeds."""
    rows = tuple((one.interval_ms, one.usage.tobytes()) for one in series)
    key = speeds, capacity_mib, rows, tuple(names)
    found = _CARDS.get(key)
    if found is None:
        if len(_CARDS) >= MOST_CARDS:
            _CARDS.clear()
        found = _CARDS[key] = Card(names, series, capacity_mib, speeds)
    return found


def _segments(series: Sequence[Series], kinds: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Where each application's segments begin, and of all segments the class and the work at which they end."""
    first: list[int] = []
    kind: list[int] = []
    until_us: list[int] = []
    for one in series:
        rows, kinds = kinds[: len(one.usage)], kinds[len(one.usage) :]
        ends = np.flatnonzero(np.append(rows[1:] != rows[:-1], True))
        first.append(len(kind))
        kind += rows[ends].tolist()
        until_us += ((ends + 1) * one.interval_ms * 1000).tolist()
        until_us[-1] = FOREVER_US
    return np.array(first, np.int64), np.array(kind, np.int64), np.array(until_us, np.int64)


def _rounded_up(rows: NDArray[np.int32]) -> tuple[NDArray[np.int32], IntArray]:
    """Rows rounded up to fewer different ones, and which of them each is: of profiles that are measured to the MiB."""
    step = 2
    while True:
        usage, classes = np.unique(-(-rows // step) * step, axis=0, return_inverse=True)
        if len(usage) <= MOST_CLASSES:
            return usage, classes
        step *= 2
