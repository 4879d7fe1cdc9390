"""What will come of starting jobs together on a GPU: when each ends, and whether memory runs out.

It is the simulator's own arithmetic on profiles, run ahead for every combination of a GPU's offered jobs at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.interference import Speeds
from berth.kernels import IntArray
from berth.model import GpuModel, Profile
from berth.policies.forecast_kernels import BITS, DONE, MOST, REFUSED, UNKNOWN, enter, forecast, move
from berth.profiles import Series, series

__all__ = ["MOST", "Candidate", "Forecaster", "Forecasts", "Offer"]


FEW, AHEAD = 64, 8
"""When the speeds of a few sets of rows are asked for, those of so many rows further on are asked for with them."""
MIX: IntArray = np.array(
    [pow(0x9E3779B97F4A7C15, at + 1, 2**62) | 1 for at in range(MOST + 1)], dtype=np.int64
)


class Candidate(NamedTuple):
    """A job as a forecast sees it."""

    application: str
    left_us: int
    """Work left, as run time alone, in microseconds."""
    work_us: int
    """All of its work."""
    ran_ms: int = 0
    """How long it has been running."""


class Offer(NamedTuple):
    """A GPU with room, and the waiting jobs that it is offered."""

    tenants: tuple[Candidate, ...]
    window: tuple[Candidate, ...]
    largest: int = MOST
    """The most jobs that may start together."""


@dataclass(frozen=True, slots=True, eq=False)
class Forecasts:
    """What becomes of each combination (O offers, C combinations, K places: tenants first, then the window)."""

    offers: tuple[Offer, ...]
    fits: NDArray[np.bool_]  # (O, C)
    """Whether it may be started: memory never runs out. Of combinations of the same applications the first."""
    ends_ms: IntArray  # (O, C, K)
    """After how long each job ends, 0 for those that take no part."""
    next_ms: IntArray  # (O,)
    """If nobody starts: how long until somebody ends or enters a new row of its profile."""

    @property
    def total_ms(self) -> IntArray:
        """(O, C): how long until all have ended."""
        longest: IntArray = self.ends_ms.max(axis=2)
        return longest

    def alone_ms(self) -> IntArray:
        """(O, C): the work that each combination starts, as run time one after the other."""
        count = self.fits.shape[1]
        masks = np.arange(count)
        work = np.zeros((len(self.offers), count), dtype=np.int64)
        for number, offer in enumerate(self.offers):
            for job, candidate in enumerate(offer.window):
                work[number] += np.where(masks >> job & 1, -(-candidate.left_us // 1000), 0)
        return work


@dataclass(slots=True, eq=False)
class _Card:
    """One GPU model's series, and the speeds of sets of their rows as far as they are known."""

    capacity_mem: int
    applications: dict[str, int]
    first_row: IntArray
    row_class: IntArray
    class_mem: IntArray
    interval_ms: IntArray
    further: IntArray  # (AHEAD, classes): the row that comes so many changes later, the last where none does
    usage: NDArray[np.int32]  # (classes, 4)
    keys: IntArray
    known: IntArray
    entered: int = 0


_CARDS: dict[tuple[object, ...], _Card] = {}
"""What was asked once need not be asked again by the next forecaster of the same profiles and speeds."""
MOST_CARDS = 32


class Forecaster:
    """Runs the model of interference ahead, for GPUs of any model.

    An application without a profile cannot be forecast: ask `knows` first.
    """

    def __init__(self, profiles: Mapping[str, Profile], speeds: Speeds) -> None:
        self.profiles = profiles
        self.speeds = speeds
        self._cards: dict[GpuModel | None, _Card] = {}
        self._alone: dict[tuple[str, GpuModel | None], bool] = {}
        self._scratch: IntArray = np.zeros((5, MOST), dtype=np.int64)

    def knows(self, application: str) -> bool:
        """Whether there is a profile."""
        return application in self.profiles

    def fits_alone(self, application: str, gpu: GpuModel | None) -> bool:
        """Whether its memory never exceeds the card's."""
        found = self._alone.get((application, gpu))
        if found is None:
            mem_mib = gpu.mem_mib if gpu else 0
            found = mem_mib == 0 or self._series(application, gpu).peak_mem_mib <= mem_mib
            self._alone[application, gpu] = found
        return found

    def forecasts(self, offers: Sequence[Offer], gpu: GpuModel | None) -> Forecasts:
        """What becomes of every combination of each offer, on GPUs of one model."""
        card = self._card(gpu, offers)
        tenants = np.array([len(offer.tenants) for offer in offers], dtype=np.int64)
        window = np.array([len(offer.window) for offer in offers], dtype=np.int64)
        width = int((tenants + window).max(initial=1))
        there = np.zeros((len(offers), width, 3), dtype=np.int64)
        for number, offer in enumerate(offers):
            for at, one in enumerate((*offer.tenants, *offer.window)):
                there[number, at] = card.applications[one.application], one.left_us, one.work_us
        largest = np.array([offer.largest for offer in offers], dtype=np.int64)
        combinations = 1 << int(window.max(initial=0))
        status: NDArray[np.int8] = np.where(
            np.arange(combinations) < (1 << window)[:, None], UNKNOWN, REFUSED
        ).astype(np.int8)
        ends_ms = np.zeros((len(offers), combinations, width), dtype=np.int64)
        next_ms = np.zeros(len(offers), dtype=np.int64)
        missing = np.zeros((max(64, status.size), MOST + 1), dtype=np.int64)
        while misses := forecast(
            card.capacity_mem, card.first_row, card.row_class, card.class_mem, card.interval_ms,
            card.keys, card.known, there, tenants, window, largest, status, ends_ms, next_ms, missing,
            self._scratch,
        ):  # fmt: skip
            self._learn(card, missing[:misses])
            missing[:misses] = 0
        return Forecasts(tuple(offers), status == DONE, ends_ms, next_ms)

    def _card(self, gpu: GpuModel | None, offers: Sequence[Offer]) -> _Card:
        card = self._cards.get(gpu)
        asked = {one.application for offer in offers for one in (*offer.tenants, *offer.window)}
        known = card.applications.keys() if card else set()
        if card is None or not asked <= known:
            few = self.profiles.keys() if len(self.profiles) <= FEW else set()
            card = self._cards[gpu] = self._made(gpu, sorted(known | asked | few))
        return card

    def _made(self, gpu: GpuModel | None, applications: Sequence[str]) -> _Card:
        scaled = [self._series(name, gpu) for name in applications]
        mem_mib = gpu.mem_mib if gpu else 0
        key = self.speeds, mem_mib, tuple((one.interval_ms, one.usage.tobytes()) for one in scaled)
        if (same := _CARDS.get((*key, tuple(applications)))) is not None:
            return same
        lengths = [len(one.usage) for one in scaled]
        rows = np.concatenate([one.usage for one in scaled]) if scaled else np.zeros((0, 4), np.int32)
        usage, classes = np.unique(rows, axis=0, return_inverse=True)
        if len(usage) >= 1 << BITS:
            usage, classes = _coarser(rows)
        classes = classes.reshape(-1).astype(np.int64)
        following: IntArray = np.arange(len(usage), dtype=np.int64)
        for begin, length in zip(np.cumsum([0, *lengths[:-1]]).tolist(), lengths, strict=True):
            rows_of = classes[begin : begin + length]
            changes = rows_of[:-1] != rows_of[1:]
            following[rows_of[:-1][changes]] = rows_of[1:][changes]
        further = [following]
        while len(further) < AHEAD:
            further.append(following[further[-1]])
        if len(_CARDS) >= MOST_CARDS:
            _CARDS.clear()
        made = _CARDS[*key, tuple(applications)] = _Card(
            mem_mib,
            {name: at for at, name in enumerate(applications)},
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            classes,
            usage[:, 1].astype(np.int64),
            np.array([one.interval_ms for one in scaled], dtype=np.int64),
            np.array(further),
            usage,
            np.full((1 << 12, 2), -1, dtype=np.int64),
            np.zeros((1 << 12, MOST), dtype=np.int64),
        )
        return made

    def _series(self, application: str, gpu: GpuModel | None) -> Series:
        return series(self.profiles[application], gpu or GpuModel(""))

    def _ahead(self, card: _Card, missing: IntArray) -> IntArray:
        """The same sets when one of their members is some rows further: they are asked for next."""
        members = int(missing[:, MOST].max(initial=0))
        place = np.arange(MOST)
        further = card.further[:, missing[:, :MOST]]  # (AHEAD, n, MOST)
        moves = (place == np.arange(members)[:, None])[:, None, None, :]  # (members, 1, 1, MOST)
        sets = np.where(moves, further, missing[:, :MOST])  # (members, AHEAD, n, MOST)
        counts = np.broadcast_to(missing[:, MOST], sets.shape[:-1])
        there = place < counts[..., None]
        ordered = np.sort(np.where(there, sets, 1 << BITS), axis=-1)
        found: IntArray = np.concatenate([np.where(there, ordered, 0), counts[..., None]], axis=-1)
        return found.reshape(-1, MOST + 1)

    def _learn(self, card: _Card, missing: IntArray) -> None:
        """Ask the model for the speeds of sets of rows that it was not asked for before."""
        if len(missing) <= FEW:
            missing = np.concatenate([missing, self._ahead(card, missing)])
        # One of those that are equal; should two that differ have one sum, the other is missing once more.
        _, first = np.unique(missing @ MIX, return_index=True)
        sets = missing[first]
        counts = sets[:, MOST]
        present = np.arange(MOST) < counts[:, None]
        usage = np.where(present[:, :, None], card.usage[np.where(present, sets[:, :MOST], 0)], 0)
        speeds = np.asarray(self.speeds(usage, present, card.capacity_mem)).astype(np.int64)
        if 2 * (card.entered + len(sets)) > len(card.keys):
            _grow(card, 4 * (card.entered + len(sets)))
        card.entered += enter(
            np.ascontiguousarray(sets[:, :MOST]), np.ascontiguousarray(counts), speeds, card.keys, card.known
        )


def _grow(card: _Card, entries: int) -> None:
    """A larger table with the same in it."""
    keys, known = card.keys, card.known
    size = 1 << entries.bit_length()
    card.keys = np.full((size, 2), -1, dtype=np.int64)
    card.known = np.zeros((size, MOST), dtype=np.int64)
    move(keys, known, card.keys, card.known)


def _coarser(rows: NDArray[np.int32]) -> tuple[NDArray[np.int32], IntArray]:
    """Rows rounded up to fewer different ones, and which of them each is: of profiles that are measured to the MiB."""
    step = 2
    while True:
        usage, classes = np.unique(-(-rows // step) * step, axis=0, return_inverse=True)
        if len(usage) < 1 << BITS:
            return usage, classes
        step *= 2
